# SPDX-License-Identifier: LGPL-2.1-or-later
"""States of blocks and lines: each rule, and random walks through random functions, of which none
may be misjudged.
"""

from __future__ import annotations

import random
import subprocess
from array import array
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import pytest

from kcovdbg.abi.record import CMP, PC, Encoding
from kcovdbg.compiled_module import load_native
from kcovdbg.elf.file import ElfFile
from kcovdbg.errors import CapabilityError
from kcovdbg.model.buffer import Buffer, Gap, ListFit, Order
from kcovdbg.records.line_states import (
    INCOMPLETE,
    OPEN,
    SET,
    WHOLE,
    BlockState,
    BranchState,
    FunctionState,
    LineState,
    Place,
    Quality,
    StateFinder,
    TraceRecords,
    quality_of,
    read_records,
)
from kcovdbg.records.line_states import make_finder as make_image_finder
from kcovdbg.symbols.blocks import BlockColumns, BlockFlag, FunctionFlag
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.location_table import LocationTable, TextRange
from kcovdbg.symbols.table_builder import make_table
from tests.support.compiled_image import compile_image
from tests.support.table_writer import TableWriter

BASE = 0xFFFFFFFF81000000
SIZE = 16
# The point is in the middle of its block.
MIDDLE = 8
KINDS = frozenset({PointKind.PC})


class Block(NamedTuple):
    successors: tuple[int, ...]
    flags: int = 0
    has_point: bool = False
    lines: tuple[tuple[int, ...], ...] = ()
    """Line, 1 where a statement begins, and the offset of its code, 0 by default."""
    calls: tuple[tuple[int, ...], ...] = ()
    """Each line that code was inlined at, the offset of that code, and whether a statement of it
    begins in the block, which is the default.
    """


def number(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def zigzag(value):
    return value << 1 if value >= 0 else (-value << 1) - 1


def encode(blocks, flags=FunctionFlag.INSTRUMENTED):
    out = number(flags) + number(len(blocks))
    before, is_first = 0, True
    last_calls, last_call = (), 0
    for index, block in enumerate(blocks):
        others = [to for to in block.successors if to != index + 1]
        falls = BlockFlag.FALLS if index + 1 in block.successors else 0
        out += number(SIZE) + number(block.flags | falls | len(others) << 6)
        for to in others:
            out += number(zigzag(to - index))
        offsets = [line[2] if len(line) > 2 else 0 for line in block.lines]
        has_offset = bool(offsets) and offsets[0] > 0
        calls = [(line, offset, all(begins)) for line, offset, *begins in block.calls]
        same = 0
        for (line, offset, _), (last_line, *_) in zip(calls, last_calls, strict=False):
            if offset or line != last_line:
                break
            same += 1
        unbegun = 0
        while unbegun < same and not calls[same - 1 - unbegun][2]:
            unbegun += 1
        has_changed = same < max(len(calls), len(last_calls)) or unbegun
        out += number(len(block.lines) << 2 | bool(has_changed) << 1 | has_offset)
        if has_changed:
            more = calls[same:]
            out += number(same << 4 | bool(unbegun) << 3 | min(len(more), 7))
            out += number(len(more) - 7) if len(more) >= 7 else b""
            out += number(unbegun) if unbegun else b""
            for line, offset, begins in more:
                is_other = not last_call
                rest = offset << 1 | (not begins)
                out += number(zigzag(line - last_call) << 2 | bool(rest) << 1 | is_other)
                out += (number(1) if is_other else b"") + (number(rest) if rest else b"")
                last_call = line
        last_calls = calls
        out += number(offsets[0]) if has_offset else b""
        for at, (line, begins, *_) in enumerate(block.lines):
            out += number(zigzag(line - before) << 3 | 4 | begins << 1 | is_first)
            # The first file.
            out += number(1) if is_first else b""
            out += number(offsets[at] - offsets[at - 1]) if at else b""
            before, is_first = line, False
    return out


def make_finder(*functions, flags=FunctionFlag.INSTRUMENTED):
    code, ends, starts, sizes, offsets = b"", array("Q"), array("I"), array("I"), array("I")
    at = 0x1000
    for blocks in functions:
        code += encode(blocks, flags)
        ends.append(len(code))
        starts.append(at)
        sizes.append(SIZE * len(blocks))
        offsets.extend(
            at + SIZE * index + MIDDLE for index, block in enumerate(blocks) if block.has_point
        )
        at += SIZE * len(blocks) + 64
    columns = BlockColumns(
        BASE, starts, sizes, array("I", range(len(functions))), ends, code, ("file.c",)
    )
    return StateFinder(columns, offsets, array("Q", bytes(8 * len(offsets))))


def point(index):
    """The PC of a block of the first function."""
    return BASE + 0x1000 + SIZE * index + MIDDLE


def states_of(
    blocks, counts, quality=WHOLE, place=None, flags=FunctionFlag.INSTRUMENTED, last=None
):
    trace = TraceRecords(
        {point(index): count for index, count in counts.items()}, quality, KINDS, place, last
    )
    return make_finder(blocks, flags=flags).find_blocks(trace, 0)


def letters(found):
    return "".join("?-+!"[block.state] for block in found.blocks)


ENTRY, EXIT, CALL = BlockFlag.ENTRY, BlockFlag.EXIT, BlockFlag.CALL
DIAMOND = (Block((1, 2), ENTRY, True), Block((3,)), Block((3,), 0, True), Block((), EXIT))


@pytest.mark.parametrize(
    ("blocks", "counts", "quality", "wanted"),
    [
        # 1: nothing leads there; 2: it leads nowhere; 3: the only way on; 4: the only way there.
        ((Block((1,), ENTRY, True), Block((), EXIT)), {}, SET, "--"),
        (
            (Block((1, 2), ENTRY, True), Block((3,)), Block((), EXIT, True), Block((), EXIT, True)),
            {0: 1, 2: 1},
            SET,
            "+-+-",
        ),
        ((Block((1,), ENTRY, True), Block((), EXIT)), {0: 1}, SET, "++"),
        ((Block((1, 2), ENTRY), Block((), EXIT, True), Block((), EXIT, True)), {1: 1}, SET, "++-"),
        # 5: the number of records says what a set does not.
        (DIAMOND, {0: 3, 2: 1}, WHOLE, "++++"),
        (DIAMOND, {0: 3, 2: 3}, WHOLE, "+-++"),
        (DIAMOND, {0: 3, 2: 1}, SET, "+?++"),
        # 5, with a check in front of block 2: how often it was made is unknown, but not how often
        # control went on.
        (
            (
                Block((1, 2), ENTRY, True),
                Block((2, 5)),
                Block((3, 4)),
                Block((), EXIT, True),
                Block((), EXIT),
                Block((6,), CALL),
                Block((2,)),
            ),
            {0: 3, 3: 3},
            WHOLE,
            "+?++-??",
        ),
        # A loop whose blocks lead to each other only.
        (
            (Block((1, 3), ENTRY, True), Block((2,)), Block((1, 3)), Block((), EXIT)),
            {},
            SET,
            "----",
        ),
        # 6: what is on each way there, or on each way on, though no edge is the only one.
        (
            (Block((1, 2), ENTRY), Block((3,)), Block((3,)), Block((), EXIT, True)),
            {3: 2},
            SET,
            "+??+",
        ),
        (
            (Block((1, 2), ENTRY, True), Block((3,)), Block((3,)), Block((4,)), Block((), EXIT)),
            {0: 1},
            SET,
            "+??++",
        ),
        # By one of two exits it may have been left.
        (
            (Block((1, 2), ENTRY, True), Block((3,)), Block((3,), EXIT), Block((), EXIT)),
            {0: 1},
            SET,
            "+???",
        ),
        # Without all records, nothing is known not to be executed.
        (DIAMOND, {0: 3}, INCOMPLETE, "+???"),
    ],
)
def test_rules(blocks, counts, quality, wanted):
    found = states_of(blocks, counts, quality)
    assert letters(found) == wanted
    assert not found.is_contradicted


@pytest.mark.parametrize(
    "blocks",
    [
        # Executed, but nothing leads there; and a way that ends.
        ((Block((1,), ENTRY, True), Block((), EXIT, True))),
        ((Block((1, 2), ENTRY, True), Block((), EXIT, True), Block((), EXIT, True))),
    ],
)
def test_contradiction(blocks):
    """Nothing is inferred then: what has records was executed, and that is all."""
    counts = {0: 1} if len(blocks) == 3 else {1: 1}
    found = states_of(blocks, counts)
    assert found.is_contradicted
    assert letters(found) == "".join(
        "+" if index in counts else "?" for index in range(len(blocks))
    )


def test_two_points_of_a_block_disagree():
    blocks = (Block((1,), ENTRY, True), Block((), EXIT))
    finder = make_finder(blocks)
    finder = StateFinder(finder._blocks, array("I", [0x1004, 0x1008]), array("Q", [0, 0]))
    trace = TraceRecords({BASE + 0x1004: 2}, WHOLE, KINDS)
    assert finder.find_blocks(trace, 0).is_contradicted


def test_calls_of_a_task_inside_the_kernel():
    blocks = (Block((1,), ENTRY | CALL, True), Block((2,), 0), Block((), EXIT))
    assert letters(states_of(blocks, {0: 1})) == "+++"
    inside = Place([BASE + 0x9000], [BASE + 0x1000 + SIZE])
    assert letters(states_of(blocks, {0: 1}, OPEN | Quality.PLACED, inside)) == "+--"
    # It was called before, and returned.
    assert letters(states_of(blocks, {0: 2}, OPEN | Quality.PLACED, inside)) == "+++"
    # Two calls of a function that calls itself.
    twice = Place(inside.positions, 2 * inside.stack)
    assert letters(states_of(blocks, {0: 2}, OPEN | Quality.PLACED, twice)) == "+--"
    assert states_of(blocks, {0: 1}, OPEN | Quality.PLACED, twice).is_contradicted
    elsewhere = Place([BASE + 0x9000], [BASE + 0x9100])
    assert letters(states_of(blocks, {0: 1}, OPEN | Quality.PLACED, elsewhere)) == "+++"
    assert letters(states_of(blocks, {0: 1}, OPEN)) == "+??"


def test_the_block_that_a_task_is_in():
    blocks = (Block((1,), ENTRY, True), Block((2,), 0, True), Block((), EXIT, True))
    here = Place([BASE + 0x1000 + SIZE + 2], [])
    # What is in front of the next instruction is a block of its own.
    assert letters(states_of(blocks, {0: 1}, OPEN | Quality.PLACED, here)) == "++--"
    assert letters(states_of(blocks, {0: 2, 1: 1, 2: 1}, OPEN | Quality.PLACED, here)) == "++++"
    # In the callback, whose record may be there already.
    there = Place([BASE + 0x9000], [point(1)])
    assert letters(states_of(blocks, {0: 1}, OPEN | Quality.PLACED, there)) == "++--"
    assert letters(states_of(blocks, {0: 1, 1: 1}, OPEN | Quality.PLACED, there)) == "++--"
    assert letters(states_of(blocks, {0: 2, 1: 1, 2: 1}, OPEN | Quality.PLACED, there)) == "++++"
    # Where it is unknown, what is in front of the next callback is, too, and what is behind the
    # last one.
    assert letters(states_of(blocks, {0: 1}, OPEN)) == "+?-"
    assert letters(states_of(blocks, {0: 1}, OPEN, last=point(0))) == "!?-"


def test_the_call_that_enables_kcov():
    blocks = (Block((1,), ENTRY | CALL, True), Block((), EXIT, True))
    flags = FunctionFlag.INSTRUMENTED | FunctionFlag.ENABLES
    assert letters(states_of(blocks, {1: 1}, flags=flags)) == "-+"
    assert states_of(blocks, {1: 1}).is_contradicted


def test_a_task_that_ends():
    """Nothing returns to what called the function that it ends in."""
    caller = (Block((1,), ENTRY | CALL, True), Block((), EXIT))
    finder = make_finder(caller, caller)
    code = encode(caller) + encode(caller, FunctionFlag.INSTRUMENTED | FunctionFlag.ENDS_TASK)
    ended = StateFinder(
        finder._blocks._replace(code=code), array("I", [0x1008, 0x1068]), array("Q", [0, 0])
    )
    assert letters(ended.find_blocks(TraceRecords({point(0): 1}, SET, KINDS), 0)) == "++"
    assert (
        letters(ended.find_blocks(TraceRecords({point(0): 1, BASE + 0x1068: 1}, SET, KINDS), 0))
        == "+?"
    )


def test_functions_one_after_another():
    """Blocks do not depend on which function was asked for before."""
    blocks = (Block((1,), ENTRY, True), Block((), EXIT))
    code = encode(blocks) + encode(blocks, FunctionFlag(0))
    finder = make_finder(blocks, blocks)
    finder = StateFinder(finder._blocks._replace(code=code), array("I", [0x1008]), array("Q", [0]))
    trace = TraceRecords({point(0): 3}, WHOLE, KINDS)
    recorded = finder.find_blocks(trace, 0)
    assert [block.records for block in recorded.blocks] == [3, 3]
    # Without points, how often it was executed is unknown.
    assert [block.records for block in finder.find_blocks(trace, 1).blocks] == [None, None]
    assert finder.find_blocks(trace, 0) == recorded
    missed = finder.find_blocks(TraceRecords({}, WHOLE, KINDS), 0)
    assert letters(missed) == "--"
    assert letters(finder.find_blocks(trace, 0)) == "++"


LINES = (
    Block((1, 2), ENTRY, True, ((10, 1), (11, 1), (12, 0))),
    Block((3,), 0, False, ((11, 0), (12, 1), (13, 1))),
    Block((3,), 0, True, ((12, 1), (14, 1))),
    Block((), EXIT, False, ((13, 0), (15, 1))),
)


def line_states(counts, quality=WHOLE, **kwargs):
    trace = TraceRecords({point(index): count for index, count in counts.items()}, quality, KINDS)
    found = make_finder(LINES, **kwargs).find_lines(trace)
    return {line.line: (line.state, line.hits) for line in found.get("file.c", ())}


def test_lines():
    found = line_states({0: 4, 2: 4})
    assert found == {
        10: (LineState.EXECUTED, 4),
        11: (LineState.PARTLY, 4),
        12: (LineState.PARTLY, 4),
        # Its code was executed, but where its statement begins was not.
        13: (LineState.MOVED, 4),
        14: (LineState.EXECUTED, 4),
        15: (LineState.EXECUTED, 4),
    }
    assert {state for state, _ in line_states({}).values()} == {LineState.NOT_EXECUTED}
    assert line_states({0: 4, 2: 1}, SET)[13][0] is LineState.MOVED
    assert line_states({}, INCOMPLETE)[10][0] is LineState.UNDECIDED
    assert (
        line_states({0: 1}, flags=FunctionFlag.INSTRUMENTED | FunctionFlag.VOID)[15][0]
        is LineState.EDGES
    )
    assert line_states({}, flags=FunctionFlag(0))[10][0] is LineState.NOT_INSTRUMENTED


def test_line_with_code_in_functions_without_points():
    inlined = (Block((), ENTRY | EXIT, True, ((10, 1),)),)
    finder = make_finder(inlined, inlined)
    columns = finder._blocks._replace(code=encode(inlined) + encode(inlined, FunctionFlag(0)))
    mixed = StateFinder(columns, array("I", [0x1008]), array("Q", [0]))
    (line,) = mixed.find_lines(TraceRecords({}, WHOLE, KINDS))["file.c"]
    assert line.state is LineState.OUTSIDE
    (line,) = mixed.find_lines(TraceRecords({point(0): 2}, WHOLE, KINDS))["file.c"]
    assert line.state is LineState.EXECUTED


def test_lines_that_code_was_inlined_at():
    blocks = (
        Block((1, 2), ENTRY, True, ((10, 1), (22, 1)), ((20, 0), (21, 4))),
        Block((2,), 0, True, ((22, 1),), ((20, 0), (21, 0), (10, 8))),
        # The first goes on, a second one of the same line begins.
        Block((), EXIT, True, ((11, 1),), ((20, 0), (21, 2))),
    )
    finder = make_finder(blocks)

    def find(*executed, **kwargs):
        counts = {point(index): 2 + index for index in executed}
        found = finder.find_lines(TraceRecords(counts, SET, KINDS, **kwargs))
        return {line.line: (line.state, line.hits) for line in found["file.c"]}

    executed, partly = LineState.EXECUTED, LineState.PARTLY
    # Own code that was executed decides, as that of line 10.
    assert find(0, 2) == {
        10: (executed, 2),
        11: (executed, 4),
        20: (partly, 4),
        21: (partly, 4),
        22: (partly, 2),
    }
    assert find(0, 1, 2)[20] == (executed, 4)
    assert {state for state, _ in find().values()} == {LineState.NOT_EXECUTED}
    calls = [
        [line for _, line in block.calls]
        for block in finder.find_blocks(TraceRecords({}, SET, KINDS), 0).blocks
    ]
    assert calls == [[20, 21], [20, 21, 10], [20, 21]]
    inlined = (Block((), ENTRY | EXIT, True, ((10, 1),), tuple((20 + i, 0) for i in range(9))),)
    found = make_finder(inlined).find_lines(TraceRecords({}, INCOMPLETE, KINDS))["file.c"]
    assert [line.line for line in found] == [10, *range(20, 29)]
    assert {line.state for line in found} == {LineState.UNDECIDED}


def test_inlined_code_that_was_moved():
    blocks = (
        Block((1, 2), ENTRY, True, ((10, 1),), ((20, 0), (21, 0, 0), (22, 0, 0), (23, 4, 0))),
        Block((2,), 0, True, ((11, 1), (22, 1)), ((20, 0), (21, 0), (22, 0, 0))),
        Block((), EXIT, True, ((12, 1),), ((20, 0, 0), (21, 0, 0))),
    )
    finder = make_finder(blocks)

    def find(*executed):
        counts = {point(index): 2 + index for index in executed}
        found = finder.find_lines(TraceRecords(counts, SET, KINDS))["file.c"]
        return {line.line: line.state for line in found if line.line >= 20}

    executed, partly, moved = LineState.EXECUTED, LineState.PARTLY, LineState.MOVED
    # No statement of line 23 begins anywhere; one of line 22 does in its own code.
    assert find(0, 2) == {20: partly, 21: moved, 22: moved, 23: executed}
    assert find(0, 1, 2) == dict.fromkeys((20, 21, 22, 23), executed)
    assert set(find().values()) == {LineState.NOT_EXECUTED}


def test_own_code_that_was_moved_and_inlined_code_that_was_not():
    blocks = (
        Block((1, 2), ENTRY, True, ((10, 1), (12, 0))),
        Block((3,), 0, True, (), ((12, 0),)),
        Block((3,), 0, True, ((12, 1),)),
        Block((), EXIT, True, ((11, 1),)),
    )
    finder = make_finder(blocks)
    for way, wanted in (((0, 1, 3), LineState.PARTLY), ((0, 3), LineState.MOVED)):
        counts = {point(index): 2 + index for index in way}
        found = finder.find_lines(TraceRecords(counts, SET, KINDS))["file.c"]
        assert {line.line: (line.state, line.hits) for line in found}[12][0] is wanted


def test_own_code_that_was_not_executed_and_inlined_code_that_was():
    blocks = (
        Block((1, 2), ENTRY, True, ((10, 1),), ((12, 0),)),
        Block((2,), 0, True, ((12, 1), (13, 1))),
        Block((), EXIT, True, ((11, 1),)),
    )
    found = make_finder(blocks).find_lines(TraceRecords({point(0): 3, point(2): 3}, SET, KINDS))
    states = {line.line: (line.state, line.hits) for line in found["file.c"]}
    assert states[12] == (LineState.PARTLY, 3)
    assert states[13] == (LineState.NOT_EXECUTED, 0)


def add_calls(generator, blocks):
    """Return blocks into which code was inlined, and the pieces of blocks that each line has."""
    calls = [[] for _ in blocks]
    pieces = {}
    for line in range(1001, 1001 + generator.randrange(4)):
        first = generator.randrange(len(blocks))
        end = generator.randrange(first, len(blocks)) + 1
        offset = generator.choice((0, SECOND))
        for index in range(first, end):
            at = offset if index == first else 0
            calls[index].append((line, at, generator.random() < 0.8))
            pieces.setdefault(line, set()).update((index, unit) for unit in UNITS if unit >= at)
    for own in calls:
        own.sort(key=lambda call: call[1])
    return [
        block._replace(calls=tuple(own)) for block, own in zip(blocks, calls, strict=True)
    ], pieces


def random_function(generator):
    """Return blocks, and the edges that control really takes; all others are there because nobody
    knows better.
    """
    count = generator.randrange(2, 12)
    real = [
        sorted({generator.randrange(count) for _ in range(generator.randrange(3))})
        for _ in range(count)
    ]
    blocks = []
    reached = {to for edges in real for to in edges}
    for index in range(count):
        more = {generator.randrange(count)} if generator.random() < 0.15 else set()
        flags = EXIT if not real[index] or generator.random() < 0.1 else BlockFlag(0)
        if index == 0 or index not in reached or generator.random() < 0.05:
            flags |= ENTRY
        flags |= CALL if generator.random() < 0.2 else BlockFlag(0)
        has_point = generator.random() < generator.choice((0.4, 0.8))
        blocks.append(Block(tuple(sorted({*real[index], *more})), flags, has_point))
    return blocks, real


def walk(generator, blocks, real):
    """Return the blocks of one call, in order; None if it never ends."""
    entries = [index for index, block in enumerate(blocks) if block.flags & ENTRY]
    at = generator.choice(entries)
    path = [at]
    while len(path) < 200:
        leaves = blocks[at].flags & EXIT and (not real[at] or generator.random() < 0.4)
        if leaves:
            return path
        at = generator.choice(real[at])
        path.append(at)
    return None


# Where instructions of a block begin.
UNITS = range(0, SIZE, 2)
# The second line of each block.
SECOND = 6


class Walks(NamedTuple):
    """Calls of a function, of which the last ones may be unfinished."""

    paths: list[list[int]]
    records: Counter[int]
    executed: set[tuple[int, int]]
    """Blocks and their instructions."""
    place: Place | None
    last: int | None
    """The last record."""


def cut_walks(generator, blocks, paths):
    """Return calls of which the last one was cut off, and the ones before it, if the function calls
    itself.
    """
    finished, unfinished = list(paths), [finished_path(generator, paths.pop())]
    finished.pop()
    while finished and generator.random() < 0.4:
        calls = [at for at, index in enumerate(finished[-1]) if blocks[index].flags & CALL]
        if not calls:
            break
        unfinished.insert(0, finished.pop()[: generator.choice(calls) + 1])
    order = [index for path in finished for index in path if blocks[index].has_point]
    executed = {(index, unit) for path in finished for index in path for unit in UNITS}
    positions, stack = [], []
    for number, path in enumerate(unfinished):
        stopped = path[-1]
        is_inner = number < len(unfinished) - 1
        is_call = is_inner or (blocks[stopped].flags & CALL and generator.random() < 0.5)
        # In front of the point, in its callback, or behind it.
        offset = SIZE if is_call else generator.choice((0, 4, MIDDLE, 14))
        address = BASE + 0x1000 + SIZE * stopped + offset
        is_in_callback = offset == MIDDLE and blocks[stopped].has_point
        (stack if is_call or is_in_callback else positions).append(address)
        order += [index for index in path[:-1] if blocks[index].has_point]
        has_record = offset > MIDDLE or (is_in_callback and generator.random() < 0.5)
        order += [stopped] if blocks[stopped].has_point and has_record else []
        executed |= {(index, unit) for index in path[:-1] for unit in UNITS}
        executed |= {(stopped, unit) for unit in UNITS if unit < offset}
    place = Place(positions or [BASE + 0x9000], stack)
    last = point(order[-1]) if order else None
    return Walks([*finished, *unfinished], Counter(order), executed, place, last)


def finished_path(generator, path):
    """Return the start of a path."""
    return path[: generator.randrange(len(path)) + 1]


def make_walks(generator, blocks, real):
    """Return some calls, and whether they are open."""
    paths = [
        path
        for _ in range(generator.randrange(5))
        if (path := walk(generator, blocks, real)) is not None
    ]
    if paths and generator.random() < 0.4:
        return cut_walks(generator, blocks, paths), True
    records = Counter(index for path in paths for index in path if blocks[index].has_point)
    executed = {(index, unit) for path in paths for index in path for unit in UNITS}
    return Walks(paths, records, executed, None, None), False


@pytest.mark.parametrize("seed", range(8))
def test_random_walks(seed):
    generator = random.Random(seed)
    decided, branches = Counter(), Counter()
    for _ in range(250):
        blocks, real = random_function(generator)
        # Each has two lines of its own.
        blocks = [
            block._replace(lines=((2 * index + 1, 1), (2 * index + 2, 1, SECOND)))
            for index, block in enumerate(blocks)
        ]
        blocks, inlined = add_calls(generator, blocks)
        walks, is_open = make_walks(generator, blocks, real)
        executed = walks.executed
        quality, place, last = generator.choice((WHOLE, SET)), None, None
        if is_open and generator.random() < 0.6:
            quality, place = OPEN | Quality.PLACED, walks.place
        elif is_open:
            quality, last = OPEN, walks.last
        counts = {point(index): count for index, count in walks.records.items()}
        trace = TraceRecords(counts, quality, KINDS, place, last)
        finder = make_finder(blocks)
        case = (blocks, walks, quality, place)
        found = finder.find_blocks(trace, 0)
        assert not found.is_contradicted, case
        for block in found.blocks:
            decided[block.state] += 1
            start = block.address - BASE - 0x1000
            units = {divmod(start + unit, SIZE) for unit in range(0, block.size, 2)}
            if block.state is BlockState.EXECUTED:
                assert units <= executed, (*case, block)
            if block.state is BlockState.NOT_EXECUTED:
                assert not units & executed, (*case, block)
        for line, state, _ in finder.find_lines(trace).get("file.c", ()):
            index, is_second = divmod(line - 1, 2)
            pieces = inlined.get(line, {(index, SECOND if is_second else 0)})
            was_executed = not pieces.isdisjoint(executed)
            if state.was_executed:
                assert was_executed, (*case, line)
            if state is LineState.NOT_EXECUTED:
                assert not was_executed, (*case, line)
        edges = {pair for walked in walks.paths for pair in pairwise(walked)}
        columns = finder.find_columns(trace)
        sides = zip(columns.branch_hits[::2], columns.branch_hits[1::2], strict=True)
        for line, state, hits in zip(columns.branch_line, columns.branch_state, sides, strict=True):
            branches[state] += 1
            index = (line - 1) // 2
            (other,) = (to for to in blocks[index].successors if to != index + 1)
            taken = tuple((index, to) in edges for to in (index + 1, other))
            if state != BranchState.UNKNOWN:
                assert tuple(map(bool, hits)) == taken, case
            if state == BranchState.NOT_EXECUTED:
                assert (index, UNITS[-1]) not in executed, case
        (entry,) = columns.entry_state
        if entry != FunctionState.UNKNOWN:
            assert (entry == FunctionState.EXECUTED) == bool(walks.paths), case
        assert entry == FunctionState.EXECUTED or not walks.records
    assert (
        decided[BlockState.EXECUTED] + decided[BlockState.NOT_EXECUTED]
        > decided[BlockState.UNKNOWN]
    )
    assert (
        branches[BranchState.EXECUTED] + branches[BranchState.NOT_EXECUTED]
        > branches[BranchState.UNKNOWN]
    )


def test_damaged_blocks_are_left_out():
    generator = random.Random(5)
    good = encode(LINES)
    for _ in range(2000):
        code = bytearray(good)
        for _ in range(generator.randrange(1, 4)):
            code[generator.randrange(len(code))] = generator.randrange(256)
        code = code[: generator.randrange(len(code) + 1)] if generator.random() < 0.3 else code
        columns = make_finder(LINES)._blocks._replace(
            code=bytes(code), code_end=array("Q", [len(code)])
        )
        finder = StateFinder(columns, array("I", [0x1008, 0x1028]), array("Q", [0, 0]))
        trace = TraceRecords({point(0): 1}, WHOLE, KINDS)
        lines = finder.find_lines(trace)
        assert all(0 <= line.line <= 0xFFFFF for rows in lines.values() for line in rows)
        finder.find_blocks(trace, 0)


def test_blocks_of_a_table(tmp_path):
    """Of a compiled image: what a run of its functions records decides all their lines."""
    image = compile_image(tmp_path)
    with ElfFile(image) as elf:
        make_table(elf).write(tmp_path / "table")
    table = LocationTable(tmp_path / "table")
    assert table.blocks is not None
    finder = StateFinder(table.blocks, table.columns.offset, table.columns.chain)
    kinds = frozenset({PointKind.PC})
    everything = dict.fromkeys(table.pcs(PointKind.PC), 1)
    states = finder.find_lines(TraceRecords(everything, SET, kinds))
    (first,) = (name for name in states if name.endswith("src/first.c"))
    found = {line.line: line.state for line in states[first]}
    # Lines of first() and of rare(), and of the callback, which has no points.
    assert {found[5], found[8], found[9]} <= {LineState.EXECUTED, LineState.PARTLY}
    assert found[3] is LineState.NOT_INSTRUMENTED
    nothing = finder.find_lines(TraceRecords({}, SET, kinds))
    assert {line.state for line in nothing[first]} == {
        LineState.NOT_EXECUTED,
        LineState.NOT_INSTRUMENTED,
    }


def test_table_without_blocks(tmp_path):
    writer = TableWriter("ab" * 20, [TextRange(BASE, BASE + 100, ".text")])
    writer.write(tmp_path / "table")
    assert LocationTable(tmp_path / "table").blocks is None


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({}, WHOLE),
        ({"mode": "TRACE_PC", "capacity": 5}, WHOLE),
        ({"capacity": 3}, INCOMPLETE),
        ({"mode": "OTHER"}, INCOMPLETE),
        ({"is_incomplete": True}, INCOMPLETE),
        ({"gaps": (Gap(0, 1),)}, INCOMPLETE),
        ({"bits_set": 3}, INCOMPLETE),
        ({"encoding": Encoding(CMP, 8)}, INCOMPLETE),
        ({"order": Order(False, "a set")}, SET),
        ({"was_full": True}, INCOMPLETE),
        ({"is_open": True}, OPEN),
        ({"fit": ListFit(1, 2, "half of them")}, WHOLE),
        ({"fit": ListFit(1, 3, "a third of them")}, INCOMPLETE),
        ({"is_open": True, "capacity": 3}, INCOMPLETE & ~Quality.ENDED),
    ],
)
def test_quality_of_buffers(change, wanted):
    buffer = Buffer("41", Encoding(PC, 8), array("Q", [5, 6, 7]), 3)
    assert quality_of(replace(buffer, **change)) == wanted


def test_place_of_a_task():
    buffer = Buffer("41", Encoding(PC, 8), array("Q", [5, 6, 5]), 3, is_open=True)
    unplaced = read_records(buffer)
    assert (unplaced.last, unplaced.place, dict(unplaced.counts)) == (5, None, {5: 2, 6: 1})
    placed = read_records(buffer, Place([1], [2]))
    assert (placed.last, placed.quality) == (None, OPEN | Quality.PLACED)


def test_lines_of_executed_functions_count_other_code(tmp_path):
    """A line of an inlined function is not executed only if it is so in every function that it is
    inlined in.
    """
    image = compile_image(tmp_path)
    with ElfFile(image) as elf:
        make_table(elf).write(tmp_path / "table")
    table = LocationTable(tmp_path / "table")
    (second,) = table.functions_named("second")
    inside = [
        pc for pc in table.pcs(PointKind.PC) if second.address < pc <= second.address + second.size
    ]
    trace = TraceRecords(dict.fromkeys(inside, 1), SET, frozenset({PointKind.PC}))
    finder = make_image_finder(table)
    found = finder.find_lines(trace, finder.find_executed(trace.counts))
    everything = finder.find_lines(trace)
    assert not any(name.endswith("src/first.c") for name in found)
    assert any(name.endswith("src/first.c") for name in everything)
    for name, lines in found.items():
        states = {line.line: line for line in everything[name]}
        assert [states[line.line] for line in lines] == list(lines)


def test_table_without_blocks_has_no_states(tmp_path):
    TableWriter("ab" * 20, [TextRange(BASE, BASE + 100, ".text")]).write(tmp_path / "table")
    with pytest.raises(CapabilityError):
        make_image_finder(LocationTable(tmp_path / "table"))


@pytest.mark.parametrize(
    ("offsets", "wanted"),
    [
        ((), []),
        # In front of all functions, between two, and behind all.
        ((0x10, 0x1041, 0x2001), []),
        ((0x1004, 0x1010), [0]),
        # The last and the first byte of functions; a PC is behind its point.
        ((0x1020, 0x1061, 0x10C0), [0, 1]),
        ((0x10C2, 0x1060, 0x20), [2]),
    ],
)
def test_functions_with_records(offsets, wanted):
    two = (Block((1,), ENTRY, True), Block((), EXIT))
    finder = make_finder(two, two, two)
    assert finder.find_executed(BASE + offset for offset in offsets) == wanted
    one_by_one = {finder.find_function(BASE + offset - 1) for offset in offsets} - {None}
    assert sorted(one_by_one) == wanted


def test_lines_in_front_of_a_place(tmp_path):
    """At each instruction of a function's first block: those that addr2line names before it."""
    image = compile_image(tmp_path)
    with ElfFile(image) as elf:
        make_table(elf).write(tmp_path / "table")
        table = LocationTable(tmp_path / "table")
        starts = [symbol.address for symbol in table.functions()]
        points = table.pcs(PointKind.PC)
        finder = make_image_finder(table)
        checked = 0
        for start in starts:
            function = finder.find_function(start)
            whole = finder.find_blocks(TraceRecords({}, SET, KINDS), function)
            if not whole.flags & FunctionFlag.INSTRUMENTED:
                continue
            first = next(block for block in whole.blocks if block.address == start)
            addresses = list_instructions(elf.read(start, first.size), start)
            lines = name_lines(image, addresses)
            for index, address in enumerate(addresses):
                passed = {pc: 1 for pc in points if start < pc <= address}
                trace = TraceRecords(passed, OPEN | Quality.PLACED, KINDS, Place([address], []))
                found = finder.find_lines(trace, [function], with_others=False)
                executed = {
                    (name.rpartition("/")[2], line.line)
                    for name, rows in found.items()
                    for line in rows
                    if line.state.was_executed or line.state is LineState.MOVED
                }
                assert executed == set(lines[:index]), hex(address)
                checked += len(set(lines)) > 1
    assert checked > 10


def list_instructions(code, start):
    """Return the addresses of the instructions of code."""
    ffi, lib = load_native()
    size = len(code)
    offsets, lengths = ffi.new("uint32_t[]", size), ffi.new("uint8_t[]", size)
    flows, displacements = ffi.new("uint8_t[]", size), ffi.new("int64_t[]", size)
    count = lib.kcovdbg_x86_decode_all(code, size, offsets, lengths, flows, displacements)
    return [start + offset for offset in offsets[0:count]]


def name_lines(image, addresses):
    """Return the file's name and the line of each address."""
    command = ["addr2line", "-e", image, *map(hex, addresses)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = []
    for line in output.splitlines():
        place, _, number = line.partition(" ")[0].rpartition(":")
        found.append((place.rpartition("/")[2], int(number)))
    return found
