# SPDX-License-Identifier: LGPL-2.1-or-later
"""Counting in columns gives the same as the locations themselves, in C and in Python, with and
without a location table.
"""

from array import array
from collections import Counter, defaultdict
from functools import reduce
from itertools import groupby
from operator import or_

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kcovdbg.compiled_module import zeros
from kcovdbg.model.location import Frame, FrameColumns, chain_word, frames_of_chain
from kcovdbg.records import native_loops
from kcovdbg.records.coverage import find_lines, join_code
from kcovdbg.records.line_states import NO_CODE_LINES
from kcovdbg.records.located_records import PcFilter
from kcovdbg.records.native_loops import NO_ID
from kcovdbg.records.pc_counts import PcCounts, as_counts
from kcovdbg.records.pc_locations import LocationCache
from kcovdbg.records.pc_shares import count_repeats, rank
from kcovdbg.symbols.awaited_table import AwaitedTable
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.location_table import FunctionSymbol, LocationTable, TextRange
from kcovdbg.symbols.symbolizer import Symbolizer
from kcovdbg.symbols.table_rows import combine_flags, gather
from tests.support.table_writer import TableWriter

BASE = 0xFFFFFFFF81000000
TEXT = TextRange(BASE, BASE + 0x1000, ".text")
FRAMES = st.builds(
    Frame,
    st.none() | st.sampled_from(["f", "g", "h"]),
    st.none() | st.sampled_from(["a.c", "./b.h", "dir/c.c"]),
    st.none() | st.integers(1, 4),
    st.none() | st.just(7),
)
# As a compiler makes them: the outermost function has a name and a file, unless nothing is known.
CHAINS = st.tuples() | st.builds(
    lambda inner, outer: (*inner, outer),
    st.lists(FRAMES, max_size=3),
    st.builds(
        Frame,
        st.sampled_from(["f", "g", "h"]),
        st.sampled_from(["a.c", "dir/c.c"]),
        st.integers(1, 4),
        st.none(),
    ),
)
PCS = st.integers(BASE + 1, BASE + 60)
ROWS = st.dictionaries(PCS, st.tuples(st.sampled_from(PointKind), CHAINS), max_size=40)
# Some PCs are in no table: in the text, in a module, or in no code.
TRACES = st.lists(
    PCS | st.sampled_from([BASE + 0x2000, 0xFFFFFFFFC0000010, 5, (1 << 64) - 1]), max_size=80
)


def make_names(folder, rows):
    """Return names by a table of these rows; what it lacks is in a module, or nowhere.

    None for no table.
    """

    def fallback(address):
        return (
            (Frame("in_module", "module.c", 3, None),)
            if address >= 0xFFFFFFFFC0000000 and address % 2
            else ()
        )

    if rows is None:
        symbolizer = Symbolizer(
            fallback=lambda address: (Frame(f"f{address % 3}", "a.c", address % 5 or None, None),)
        )
        return LocationCache(symbolizer.locate_all, lambda: None)
    writer = TableWriter("00" * 20, [TEXT])
    for pc, (kind, frames) in rows.items():
        writer.add_frames(pc, kind, frames)
    for number in range(6):
        writer.add_function(
            FunctionSymbol(f"s{number}", BASE + 10 * number, 8, unit="a.c" if number else None)
        )
    writer.write(folder / "table")
    table = LocationTable(folder / "table")
    symbolizer = Symbolizer(table=AwaitedTable(table), fallback=fallback)
    return LocationCache(symbolizer.locate_all, lambda: table)


def random_traces(test):
    given_data = given(rows=ROWS | st.none(), words=TRACES)
    return settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))(
        given_data(test)
    )


@random_traces
def test_repeats(tmp_path_factory, rows, words):
    names = make_names(tmp_path_factory.mktemp("t"), rows)
    expected = Counter()
    for _, members in groupby([*words, 0, *words], lambda pc: names.symbol(pc) if pc else ""):
        seen = set()
        for word in members:
            expected[word] += word in seen
            seen.add(word)
    columns = names.columns(array("Q", sorted(set(words))))
    found = count_repeats(columns, array("Q", [*words, 0, *words]))
    assert dict(zip(columns.pcs, found, strict=True)) == {pc: expected[pc] for pc in set(words)}


@random_traces
@pytest.mark.parametrize("by", ["function", "file", "pc"])
@pytest.mark.parametrize("patterns", [(None, None, None), (["f*"], ["b.h"], ["g"])])
def test_ranking(tmp_path_factory, by, patterns, rows, words):
    names = make_names(tmp_path_factory.mktemp("t"), rows)
    counts = Counter(words)

    def key(pc):
        frame = names.frame(pc)
        of_function = (frame.function, frame.file, names[pc].approximate) if frame.function else pc
        return {"function": of_function, "file": frame.file, "pc": pc}[by]

    wanted = PcFilter(names, *patterns)
    groups = defaultdict(list)
    for pc in filter(wanted, sorted(counts)):
        groups[key(pc)].append(pc)
    expected = [
        (sum(counts[pc] for pc in pcs), len(pcs), max(pcs, key=lambda pc: (counts[pc], -pc)))
        for pcs in groups.values()
    ]
    known = as_counts(counts)
    columns = names.columns(known.pcs)
    chosen = None if wanted.passes_all else wanted.select(columns)
    found = rank(columns, known.records, zeros("Q", len(columns)), by, chosen)
    expected.sort(key=lambda share: (-share[0], share[2]))
    assert [(share.records, share.points, share.pc) for share in found.shares] == expected
    assert (found.groups, found.records, found.repeats) == (
        len(expected),
        sum(share[0] for share in expected),
        0,
    )
    assert rank(columns, known.records, zeros("Q", len(columns)), by, chosen, 2) == found._replace(
        shares=found.shares[:2]
    )
    if expected:
        assert abs(sum(share.share for share in found.shares) - 1) < 1e-9


@random_traces
@pytest.mark.parametrize("file", [None, "a.c"])
def test_lines_of_executed_functions(tmp_path_factory, file, rows, words):
    names = make_names(tmp_path_factory.mktemp("t"), rows)
    kinds = {PointKind.PC, PointKind.ENTRY}
    counts = {pc: count for pc, count in Counter(words).items() if not names[pc].approximate}
    expected = {}

    def add(frames, count):
        # What was inlined covers the line that calls it, each line once.
        for place in {(frame.file, frame.line) for frame in frames if frame.file and frame.line}:
            if file in (None, place[0]):
                hits, points, covered = expected.get(place, (0, 0, 0))
                expected[place] = hits + count, points + 1, covered + (count > 0)

    for pc, count in counts.items():
        add(names[pc].frames, count)
    executed = {names[pc].frames[-1][:2] for pc in counts if names[pc].frames}
    for pc, (kind, frames) in (rows or {}).items():
        if pc not in counts and kind in kinds and frames and frames[-1][:2] in executed:
            add(frames, 0)
    known = as_counts(Counter(words))
    columns = names.columns(known.pcs)
    points = find_lines(
        columns, known.records, kinds, None if file is None else lambda frame: frame.file == file
    )
    found = join_code(points, NO_CODE_LINES, {}).files()
    lines = [line for part in found for line in part.rows()]
    assert [(*line[:2], *line[3:]) for line in lines] == [
        (*place, *counted) for place, counted in sorted(expected.items())
    ]
    assert all(part.lines for part in found)
    assert sum(part.executed_lines for part in found) == sum(
        covered > 0 for _, _, covered in expected.values()
    )
    # Points do not say that a line was not executed.
    assert all(line.state.was_executed or line.state.is_unknown for line in lines)


@given(
    st.dictionaries(st.integers(0, (1 << 64) - 1), st.integers(1, 9)), st.integers(0, (1 << 64) - 1)
)
def test_counts_are_a_mapping(counts, other):
    found = as_counts(counts)
    assert isinstance(found, PcCounts)
    assert found == counts
    assert list(found) == sorted(counts)
    for pc in (*counts, other):
        assert found.get(pc, 0) == counts.get(pc, 0)
        assert (pc in found) == (pc in counts)
    assert found.select(bytes(pc % 2 for pc in found)) == {
        pc: count for pc, count in counts.items() if pc % 2
    }


NUMBERS = st.lists(st.integers(0, 12) | st.just(NO_ID), max_size=12).map(
    lambda numbers: array("I", numbers)
)
WORDS = st.lists(
    st.builds(chain_word, st.integers(0, 5), st.integers(0, 14), st.integers(0, 4)), max_size=10
).map(lambda words: array("Q", words))


@settings(deadline=None)
@given(chain_frame=NUMBERS, chains=WORDS, values=NUMBERS, data=st.data())
def test_damaged_numbers_do_no_harm(chain_frame, chains, values, data):
    """Chains beyond the frames, and frames beyond their columns."""
    frames = FrameColumns(chain_frame, values, values, values, values, ())
    hits = array(
        "Q", data.draw(st.lists(st.integers(0, 9), min_size=len(chains), max_size=len(chains)))
    )
    flags = bytes(value & 7 for value in values)
    plain = [frames_of_chain(frames, chain) for chain in chains]
    assert list(native_loops.find_innermost(frames, chains)) == [
        chain[0] if len(chain) else NO_ID for chain in plain
    ]
    assert list(native_loops.find_outermost(frames, chains)) == [
        chain[-1] if len(chain) else NO_ID for chain in plain
    ]
    lengths, flat = native_loops.flatten_chains(frames, chains)
    assert (list(lengths), list(flat)) == (
        [*map(len, plain)],
        [frame for chain in plain for frame in chain],
    )
    assert list(combine_flags(frames, chains, flags)) == [
        reduce(or_, (flags[frame] for frame in chain if frame < len(flags)), 0) for chain in plain
    ]
    assert list(gather(chain_frame, values, 77)) == [
        values[at] if at < len(values) else 77 for at in chain_frame
    ]
    sums = native_loops.add_lines(frames, [(chains, hits), (chains, None)], values, 9)
    lines = [{values[frame] for frame in chain if frame < len(values)} for chain in plain]
    for line in range(9):
        of_line = [hit for hit, own in zip(hits, lines, strict=True) if line in own]
        found = sums.hits[line], sums.points[line], sums.covered[line]
        assert found == (sum(of_line), 2 * len(of_line), sum(hit > 0 for hit in of_line))
