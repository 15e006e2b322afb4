# SPDX-License-Identifier: LGPL-2.1-or-later
"""States of lines, compared with QEMU's log of every instruction that a guest executed in some
hundred system calls.
"""

from __future__ import annotations

import subprocess
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Final

import pytest

from kcovdbg.compiled_module import load_native
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.placed_module import PlacedModule
from kcovdbg.records.line_states import (
    OPEN,
    WHOLE,
    BlockState,
    BranchState,
    CodeBlock,
    LineState,
    Place,
    Quality,
    StateColumns,
    StateFinder,
    TraceRecords,
    find_code_columns,
    make_finder,
)
from kcovdbg.symbols.address_locator import AddressLocator
from kcovdbg.symbols.blocks import (
    BlockColumns,
    BlockFlag,
    BlockMaker,
    FunctionFlag,
    order_rows,
    read_linked,
)
from kcovdbg.symbols.coverage_points import PointKind, find_points
from kcovdbg.symbols.dwarf_reader import DwarfReader
from kcovdbg.symbols.table_builder import make_module_table
from tests.lab.execution_truth import (
    LINE_MODULE,
    Call,
    CallReplay,
    ImageInstructions,
    Instruction,
    UninterruptedCalls,
    X86Contexts,
    find_high_half,
    log_calls,
    read_loaded_module,
)
from tests.lab.initramfs import make_modules
from tests.lab.kernel import Kernel
from tests.support.objdump import Range, compare_decoders

_PC = frozenset({PointKind.PC})
# Instructions of a call; others wait, and what they execute meanwhile is no part of them.
_MOST = 300_000
# Where calls are cut, by turns.
_CUTS = (1 / 7, 1 / 4, 1 / 2, 3 / 5, 3 / 4, 9 / 10)
_DECODED_SHARE = 5
# The program resets the buffer before each call: the system call that enables KCOV has no records.
_WHOLE = WHOLE & ~Quality.ENABLES
_OPEN = OPEN & ~Quality.ENABLES


class CodeTruth:
    """What was executed of the kernel's image or of a module, beside what its blocks say.

    :param elf: the image, or the module where it was loaded.
    :param blocks: of the same code.
    """

    def __init__(
        self, elf: ElfFile, blocks: BlockColumns, finder: StateFinder, points: Collection[int]
    ) -> None:
        self.elf = elf
        self.blocks = blocks
        self.finder = finder
        self.points = frozenset(points)
        self.instructions = ImageInstructions(elf)
        self.parts: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        columns = (blocks.part_start, blocks.part_size, blocks.part_function)
        for start, size, function in zip(*columns, strict=True):
            self.parts[function].append((blocks.base + start, size))
        self._known: dict[int, tuple[bool, list[tuple[int, int]]]] = {}
        self._at: dict[int, Instruction | None] = {}

    def _look_at(self, function: int) -> tuple[bool, list[tuple[int, int]]]:
        """Return whether a function is instrumented, and the ranges of it that are padding."""
        if function not in self._known:
            found = self.finder.find_blocks(TraceRecords({}, _WHOLE, _PC), function)
            unreached = [
                one
                for one in found.blocks
                if one.flags & BlockFlag.NO_LINES and not one.successors and not one.lines
            ]
            padding = [(one.address, one.address + one.size) for one in unreached]
            self._known[function] = (bool(found.flags & FunctionFlag.INSTRUMENTED), padding)
        return self._known[function]

    def _is_padding(self, function: int, address: int) -> bool:
        return any(low <= address < high for low, high in self._look_at(function)[1])

    def functions_of(self, executed: Iterable[int]) -> list[int]:
        """Return the instrumented functions that were executed."""
        found = {self.finder.find_function(address) for address in executed}
        return sorted(
            function for function in found if function is not None and self._look_at(function)[0]
        )

    def lines_of(self, functions: Sequence[int], executed: set[int]) -> dict[tuple[str, int], bool]:
        """Return the lines of functions, those of calls that were inlined included, and whether an
        instruction of each was executed.
        """
        lines: dict[tuple[str, int], bool] = {}
        for function in functions:
            for start, size in self.parts[function]:
                for one in self.instructions.read(start, size):
                    # What is never reached fills gaps.
                    if self._is_padding(function, one.address):
                        continue
                    for line in one.frames:
                        lines[line] = lines.get(line, False) or one.address in executed
        return lines

    def instruction_at(self, address: int) -> Instruction | None:
        """Return the instruction at an address of a function."""
        if address not in self._at:
            function = self.finder.find_function(address)
            self._at[address] = None
            for start, size in self.parts[function] if function is not None else ():
                self._at.update((one.address, one) for one in self.instructions.read(start, size))
        return self._at[address]


class Truth(CodeTruth):
    """What was executed of a kernel's image in each call of a program, and of a module."""

    def __init__(
        self, kernel: Kernel, elf: ElfFile, folder: Path, program: str = "calls.c"
    ) -> None:
        image = read_linked(elf, elf.symbols)
        base = min(section.address for section in image.sections if section.is_text)
        units = AddressLocator(DwarfReader(elf), elf.symbols, array("Q"), lambda _: None).finish()
        blocks = BlockMaker(image).make(order_rows(units.rows), base)
        points = find_points(elf).pc
        offsets = array("I", sorted(point - base for point in points))
        finder = StateFinder(blocks, offsets, array("Q", bytes(8 * len(offsets))))
        super().__init__(elf, blocks, finder, points)
        platform = kernel.recipe.platform
        self.has_checks = "CONFIG_KASAN=y" in kernel.config.read_text()
        self.high = find_high_half(platform)
        self.contexts = X86Contexts(elf) if platform.name == "x86_64" else UninterruptedCalls(elf)
        self.calls: list[tuple[Call, list[int]]] = []
        self.left_out = 0
        (self.module_file,) = make_modules(kernel, LINE_MODULE)
        for call in log_calls(kernel, folder, program=program, modules=[self.module_file]):
            steps = self.contexts.split(call.executed) if len(call.executed) <= _MOST else None
            if steps is None:
                self.left_out += 1
                continue
            own = [
                self.high | address
                for step in steps
                if step.is_own
                for address in call.executed[step.start : step.end]
            ]
            self.calls.append((call, own))
        self.module: CodeTruth | None = None
        if (folder / "exchange" / "sections").exists():
            self.module = read_module(self.module_file, folder)

    @property
    def all_code(self) -> Iterator[CodeTruth]:
        """The image, and the module that was loaded."""
        yield self
        if self.module is not None:
            yield self.module

    def find_logged(self, call: Call) -> set[int]:
        """Return the addresses of all instructions in a call, with those of interrupts."""
        return {self.high | address for address in set(call.executed)}

    def find_instruction(self, address: int) -> Instruction | None:
        """Return the instruction at an address of the image or the module."""
        found = (code.instruction_at(address) for code in self.all_code)
        return next(filter(None, found), None)

    def find_function(self, address: int) -> tuple[int, int] | None:
        """Return the function of the image or the module that an address is in, by numbers."""
        for number, code in enumerate(self.all_code):
            function = code.finder.find_function(address)
            if function is not None:
                return number, function
        return None


def read_module(path: Path, folder: Path) -> CodeTruth:
    """Return what a guest executed of a module."""
    loaded = read_loaded_module(folder, path)
    table = make_module_table(loaded, str(path))
    assert table.blocks is not None
    # Open as long as instructions are read.
    elf = PlacedModule(path, dict(loaded.sections))
    return CodeTruth(elf, table.blocks, make_finder(table), find_points(elf).pc)


@pytest.fixture(scope="module", params=["calls.c", "more_calls.c"])
def truth(
    request: pytest.FixtureRequest, kernel: Kernel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Truth]:
    if kernel.recipe.platform.name not in ("x86_64", "aarch64"):
        pytest.skip("the log of instructions is of x86-64 and arm64")
    if request.param != "calls.c" and not request.config.getoption("exhaustive"):
        pytest.skip("takes minutes: --exhaustive runs it")
    with ElfFile(kernel.vmlinux) as elf:
        yield Truth(kernel, elf, tmp_path_factory.mktemp("executed"), request.param)


def compare(
    states: StateColumns, lines: dict[tuple[str, int], bool]
) -> tuple[Counter[str], list[object]]:
    """Return how many lines have each state, and those whose state is wrong."""
    tally: Counter[str] = Counter()
    wrong: list[object] = []
    by_file = find_code_columns(states, None).rows()
    found = {(file, line.line): line.state for file, rows in by_file.items() for line in rows}
    assert found.keys() == lines.keys()
    for line, was_executed in lines.items():
        state = found[line]
        tally[state.name] += 1
        if (state.was_executed and not was_executed) or (
            state is LineState.NOT_EXECUTED and was_executed
        ):
            wrong.append((line, state.name))
    return tally, wrong


def share_of_unknown(tally: Counter[str]) -> float:
    """Return the share of lines that the records don't decide, without those that the compiler
    moved.
    """
    print(dict(tally))
    return (tally["UNDECIDED"] + tally["EDGES"]) / tally.total()


def compare_calls(truth: Truth, code: CodeTruth) -> tuple[Counter[str], list[object]]:
    """Return how many lines of the functions that calls executed have each state, and those whose
    state is wrong.
    """
    tally: Counter[str] = Counter()
    wrong: list[object] = []
    for call, own in truth.calls:
        executed = set(own)
        functions = code.functions_of(executed)
        trace = TraceRecords(Counter(call.records), _WHOLE, _PC)
        states = code.finder.find_columns(trace, functions, with_others=False)
        assert states.contradictions == 0, call.text
        more, different = compare(states, code.lines_of(functions, executed))
        tally += more
        wrong += [(call.text, *map(str, different))] if different else []
    return tally, wrong


def test_whole_calls(truth: Truth) -> None:
    tally, wrong = compare_calls(truth, truth)
    # With KASAN and lockdep, more calls have too many instructions.
    assert len(truth.calls) >= (150 if truth.has_checks else 180)
    assert wrong == []
    # Functions of arm64 have fewer lines.
    assert tally.total() >= (50_000 if truth.has_checks else 70_000)
    assert share_of_unknown(tally) <= 0.005
    assert tally["MOVED"] / tally.total() <= 0.015


def test_whole_calls_of_a_module(truth: Truth) -> None:
    if truth.module is None:
        pytest.skip("the program loads no module")
    tally, wrong = compare_calls(truth, truth.module)
    assert wrong == []
    assert tally.total() >= 700
    assert share_of_unknown(tally) <= 0.01
    assert all(tally[state] > 20 for state in ("EXECUTED", "PARTLY", "NOT_EXECUTED"))


def test_lines_of_a_module_are_those_of_addr2line(truth: Truth, kernel: Kernel) -> None:
    """What the comparison takes for the line of an instruction."""
    if truth.module is None:
        pytest.skip("the program loads no module")
    by_section: defaultdict[str, dict[int, tuple[str, int]]] = defaultdict(dict)
    for part in chain.from_iterable(truth.module.parts.values()):
        for one in truth.module.instructions.read(*part):
            section = truth.module.elf.section_at(one.address)
            assert section is not None
            if one.line is not None:
                file, line = one.line
                by_section[section.name][one.address - section.address] = Path(file).name, line
    assert sum(map(len, by_section.values())) > 500
    for name, lines in by_section.items():
        addr2line = f"{kernel.recipe.platform.tools}addr2line"
        command = [addr2line, "-e", str(truth.module_file), "-j", name, *map(hex, lines)]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        places = [text.split()[0].rpartition(":") for text in shown.splitlines()]
        assert [(Path(file).name, int(line)) for file, _, line in places] == [*lines.values()]


# A call instruction has at least two bytes, and at most so many.
_CALL_BYTES: Final = range(2, 8)


def has_records_from_outside(records: Iterable[int], logged: Collection[int]) -> bool:
    """Return whether there are records of code that was not logged: of a page fault or interrupt
    between the reset of the buffer and the log's marker, or behind it.

    :param logged: addresses.
    """
    return any(all(pc - size not in logged for size in _CALL_BYTES) for pc in set(records))


def test_all_calls_as_one_trace(truth: Truth) -> None:
    """With every function of the kernel: functions without points are executed as well."""
    counts: Counter[int] = Counter()
    own_executed: set[int] = set()
    executed: set[int] = set()
    outside = 0
    for call, own in truth.calls:
        logged = truth.find_logged(call)
        if has_records_from_outside(call.records, logged):
            outside += 1
            continue
        counts.update(call.records)
        own_executed.update(own)
        executed |= logged
    assert outside <= len(truth.calls) // 10
    states = truth.finder.find_columns(TraceRecords(counts, _WHOLE, _PC))
    assert states.contradictions == 0
    ran = {
        function
        for address in executed
        if (function := truth.finder.find_function(address)) is not None
    }
    lines = truth.lines_of(sorted(ran), executed)
    by_file = find_code_columns(states, None).rows()
    found = {(file, line.line): line.state for file, rows in by_file.items() for line in rows}
    executed_lines = {line for line, was_executed in lines.items() if was_executed}
    own_lines = {
        line
        for line, was_executed in truth.lines_of(sorted(ran), own_executed).items()
        if was_executed
    }
    # The end of an interrupt is recorded in the task that it interrupted: what is executed is so by
    # one of the two.
    wrong = [(line, "not executed") for line in own_lines if found[line] is LineState.NOT_EXECUTED]
    wrong += [
        (line, state.name)
        for line, state in found.items()
        if state.was_executed and line not in executed_lines
    ]
    assert wrong == []
    unknown = sum(state.is_unknown for state in found.values()) / len(found)
    most = 0.006 if truth.has_checks else 0.005
    if not isinstance(truth.contexts, X86Contexts):
        # Some switches keep the address of their table in the stack, and libfdt has no points.
        most = 0.02
    assert unknown <= most


# What the last instruction of a branch does not do.
_NO_BRANCH: Final = BlockFlag.NO_LINES | BlockFlag.CALL | BlockFlag.INDIRECT


def find_branches(blocks: Sequence[CodeBlock]) -> list[CodeBlock]:
    """Return the blocks whose branches are counted: those that are left in one of two ways."""
    return [
        block
        for block in blocks
        if block.flags & BlockFlag.FALLS
        and not block.flags & _NO_BRANCH
        and len(set(block.successors)) == len(block.successors) == 2
        and block.lines
    ]


class Steps:
    """How often a call executed each instruction, and each instruction after another one."""

    def __init__(self, code: CodeTruth, own: Sequence[int]) -> None:
        self._code = code
        self.counts = Counter(own)
        self._pairs = Counter(pairwise(own))

    def sides_of(self, block: CodeBlock, blocks: Sequence[CodeBlock]) -> tuple[int, ...] | None:
        """Return how often a block was left to each of its successors; None for a block that only
        an exception leaves in another way.
        """
        _, lib = load_native()
        address, last = block.address, None
        while address < block.address + block.size:
            last = self._code.instruction_at(address)
            if last is None:
                return None
            address = last.end
        if last is None or last.flow != lib.KCOVDBG_FLOW_BRANCH:
            return None
        return tuple(self._pairs[last.address, blocks[to].address] for to in block.successors)


def test_counts_of_blocks_and_branches(truth: Truth, request: pytest.FixtureRequest) -> None:
    """How often each block of a call was executed, and each branch was left to either side."""
    if not request.config.getoption("exhaustive"):
        pytest.skip("takes minutes: --exhaustive runs it")
    tally: Counter[str] = Counter()
    wrong: list[object] = []
    for call, own in truth.calls:
        steps = Steps(truth, own)
        records = Counter(call.records)
        # A page fault or an interrupt outside of the log has records as well.
        if any(count > steps.counts[pc] for pc, count in records.items()):
            continue
        trace = TraceRecords(records, _WHOLE, _PC)
        functions = truth.functions_of(set(own))
        columns = truth.finder.find_columns(trace, functions, with_others=False)
        hits = list(zip(columns.branch_hits[::2], columns.branch_hits[1::2], strict=True))
        branches = iter(zip(columns.branch_state, hits, strict=True))
        for function in functions:
            blocks = truth.finder.find_blocks(trace, function).blocks
            for block in blocks:
                ran = steps.counts[block.address]
                if block.flags & BlockFlag.NO_LINES or block.state is BlockState.UNKNOWN:
                    continue
                tally["blocks"] += 1
                is_right = (block.state is BlockState.EXECUTED) == bool(ran)
                if not is_right or (block.records or 0) > ran:
                    wrong.append((call.text, block, ran))
            for block in find_branches(blocks):
                state, found = next(branches)
                sides = steps.sides_of(block, blocks)
                if sides is None or state == BranchState.UNKNOWN:
                    continue
                tally["branches"] += 1
                # What follows from other records counts 1.
                for count, side in zip(found, sides, strict=True):
                    if bool(count) != bool(side) or count > side:
                        wrong.append((call.text, block, found, sides))
        assert next(branches, None) is None
    print(dict(tally))
    assert wrong == []
    assert tally["blocks"] > 50_000
    assert tally["branches"] > 20_000


@pytest.mark.parametrize("is_placed", [True, False], ids=["with the stack", "without the stack"])
def test_calls_cut_anywhere(truth: Truth, is_placed: bool) -> None:
    points = frozenset[int]().union(*(code.points for code in truth.all_code))
    replay = CallReplay(truth.find_instruction, truth.find_function, points, truth.contexts)
    tally: Counter[str] = Counter()
    wrong = []
    for number, (call, own) in enumerate(truth.calls):
        if len(own) > 30_000:
            continue
        cut = next(replay.cut(own, [int(len(own) * _CUTS[number % len(_CUTS)])]), None)
        if cut is None or has_records_from_outside(call.records, set(own)):
            continue
        # What the guest recorded itself begins with what it had recorded until then.
        assert [pc for pc in call.records if pc in points][: len(cut.records)] == cut.records, (
            call.text
        )
        place = Place(cut.positions, cut.stack) if is_placed else None
        quality = _OPEN | Quality.PLACED if is_placed else _OPEN
        last = cut.records[-1] if cut.records else None
        trace = TraceRecords(Counter(cut.records), quality, _PC, place, last)
        for code in truth.all_code:
            functions = code.functions_of(cut.executed)
            states = code.finder.find_columns(trace, functions, with_others=False)
            assert states.contradictions == 0, call.text
            more, different = compare(states, code.lines_of(functions, cut.executed))
            tally += more
            wrong += [(call.text, *map(str, different))] if different else []
    assert wrong == []
    assert share_of_unknown(tally) <= (0.005 if is_placed else 0.4)


def test_decoder(kernel: Kernel, request: pytest.FixtureRequest) -> None:
    """The kernel's functions, decoded as objdump does, but for what objdump doesn't know;
    ``--exhaustive`` takes all of them.
    """
    if kernel.recipe.platform.name != "x86_64":
        pytest.skip("the decoder is of x86-64")
    share = 1 if request.config.getoption("exhaustive") else _DECODED_SHARE

    def pick(functions: list[Range]) -> list[Range]:
        """Return those that were linked last, with assembly code."""
        return functions[len(functions) - len(functions) // share :]

    total, different = compare_decoders(kernel.vmlinux, pick)
    assert total > 1_000_000 / share
    with ElfFile(kernel.vmlinux) as elf:
        symbols = sorted({symbol.address for symbol in elf.symbols})
    others = []
    for one in different:
        # Thunks have code that is another one's middle; objdump begins anew at each symbol.
        is_cut = bisect_right(symbols, one.address) < bisect_left(symbols, one.address + 15)
        # lkgs is newer than some objdump, and fwait is a part of finit there.
        if one.code[:3] != b"\xf2\x0f\x00" and one.code != b"\x9b" and not is_cut:
            others.append(one)
    assert others == []
