# SPDX-License-Identifier: LGPL-2.1-or-later
"""The coverage points of a kernel and of modules' files: the compiler's calls to
``__sanitizer_cov_trace_*``.

KCOV records the return address of such a call, which identifies the point. A compiler may end a
function with a *jump* to ``__sanitizer_cov_trace_pc`` (gcc before 14 does, for 2 points of 100).
KCOV then records the return address of the function's caller. These addresses are found as well.
The jump is known if the call before the address leads to only one function with such a jump.

In a module's file, which is not linked yet, the calls have relocations.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import IntEnum
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from kcovdbg.elf.file import ElfFile, read_relocations
from kcovdbg.elf.symbol_table import SymbolTable
from kcovdbg.model.location import LoadedModule
from kcovdbg.symbols.arch import ARCHITECTURES, THUNKS, BranchKind
from kcovdbg.symbols.branches import BranchColumns, BranchSearch, find_branches, search_branches
from kcovdbg.symbols.table_rows import merge_kinds, subtract

if TYPE_CHECKING:
    from kcovdbg.abi.record import Codec

_TRACE_PC: Final = "__sanitizer_cov_trace_pc"
# Other callbacks by name: comparisons, and clang's guards, entries and exits of functions.
_PREFIX: Final = "__sanitizer_cov_trace_"
_COMPARISON: Final = re.compile(r"__sanitizer_cov_trace_(const_cmp[1248]|cmp[1248]|switch)$")
# The symbol of images with thunks for indirect branches.
_X86_THUNKS: Final = "__x86_indirect_thunk_array"


class PointKind(IntEnum):
    """Kinds of code before a recorded return address."""

    PC = 0
    """The call for a basic block."""
    CMP = 1
    """A call for a comparison or a switch."""
    TAIL = 2
    """Not a point: the call of a function that may end in a jump to the callback.

    Which jump it was is unknown.
    """
    TAIL_KNOWN = 3
    """Not a point: the call of a function that ends in a jump to the callback, or of one that leads
    to that function only.
    """
    ENTRY = 4
    """The call for the entry of a function (-fsanitize-coverage=trace-pc-entry-exit), in place of
    the call for its first block.
    """
    EXIT = 5
    """The call for the exit of a function; recorded only in formats that show a record's kind."""


POINT_KINDS: Final = frozenset({PointKind.PC, PointKind.CMP, PointKind.ENTRY, PointKind.EXIT})
"""The kinds of coverage points: all kinds except tail calls."""


def recorded_kinds(codec: Codec) -> frozenset[PointKind]:
    """Return the kinds of points that a buffer of this format can have records of."""
    if codec.has_operands:
        return frozenset({PointKind.CMP})
    kinds = {PointKind.PC, PointKind.ENTRY}
    # An exit is recorded only where it can be distinguished from other records.
    if codec.has_calls:
        kinds.add(PointKind.EXIT)
    return frozenset(kinds)


class Points(NamedTuple):
    """The return addresses of an image's points, by kind and ascending, and the addresses that tail
    calls may record.
    """

    pc: array[int]
    cmp: array[int]
    tail: array[int]
    """Return addresses that a jump to a callback may record."""
    entry: array[int]
    exit: array[int]
    jumps: Mapping[int, tuple[int, ...]]
    """Addresses inside the jumps, for each address in ``tail`` whose call leads to only one
    function with such jumps.
    """


_KINDS_OF_NAMES: Final = {
    f"{_TRACE_PC}_entry": PointKind.ENTRY,
    f"{_TRACE_PC}_exit": PointKind.EXIT,
}


def kind_of_callback(name: str) -> PointKind | None:
    """Return the kind of the points that call this function, None if no point does."""
    # On arm64 far calls go through a veneer: ____sanitizer_cov_trace_pc_veneer.
    name = name[2:-7] if name.endswith("_veneer") else name
    if not name.startswith(_PREFIX):
        return None
    if _COMPARISON.match(name):
        return PointKind.CMP
    return _KINDS_OF_NAMES.get(name, PointKind.PC)


class Functions:
    """Functions by address. Of several with one address, the first in the symbol table counts."""

    def __init__(self, symbols: SymbolTable) -> None:
        columns = symbols.function_columns
        self._sizes: dict[int, int] = {}
        self._names: dict[int, str] = {}
        for index in columns.by_address:
            if columns.sizes[index]:
                self._sizes.setdefault(columns.addresses[index], columns.sizes[index])
                self._names.setdefault(columns.addresses[index], columns.names[index])
        self._starts = [*self._sizes]
        # The function of each cold part, which is entered by a jump from that function, with its
        # return address.
        self._whole = {
            columns.addresses[cold]: columns.addresses[owner]
            for cold, owner in columns.find_whole().items()
        }

    @property
    def starts(self) -> AbstractSet[int]:
        """The addresses at which functions start."""
        return self._sizes.keys()

    def _part_of(self, address: int) -> int | None:
        index = bisect_right(self._starts, address)
        start = self._starts[index - 1] if index else address
        return start if address - start < self._sizes.get(start, 0) else None

    def start_of(self, address: int) -> int | None:
        """Return the start of the function that contains an address, None when none does."""
        start = self._part_of(address)
        return None if start is None else self._whole.get(start, start)

    def name_at(self, address: int) -> str | None:
        """Return the name of the symbol that contains an address, None when none does."""
        start = self._part_of(address)
        return None if start is None else self._names[start]

    def sources(self, addresses: Iterable[int]) -> set[int]:
        """Return the starts of the functions that contain addresses."""
        # As start_of(), without tens of thousands of calls.
        starts, sizes, whole = self._starts, self._sizes, self._whole
        found: set[int] = set()
        for address in addresses:
            index = bisect_right(starts, address)
            start = starts[index - 1] if index else address
            if address - start < sizes.get(start, 0):
                found.add(start)
        return {whole.get(start, start) for start in found}


def find_callbacks(symbols: SymbolTable) -> dict[int, PointKind]:
    """Return the callbacks' addresses, each with the kind of the points that call it."""
    found: dict[int, PointKind] = {}
    for symbol in symbols.find_containing(_PREFIX):
        kind = kind_of_callback(symbol.name)
        if kind is not None and symbol.section != 0:
            found[symbol.address] = kind
    return found


class _TailCalls:
    """The functions that may return to their caller by way of a callback.

    :param jumps: all jumps of the image to callbacks and to starts of functions, without the short
        jumps of x86.
    :param short_jumps: bytes that look like a short jump of x86 to one of these.
    :param callbacks: addresses of the callbacks.
    :param functions: the functions of the image.
    :param open_ended: functions with indirect jumps, which may lead anywhere.
    """

    def __init__(
        self,
        jumps: BranchColumns,
        short_jumps: BranchColumns,
        callbacks: AbstractSet[int],
        functions: Functions,
        open_ended: AbstractSet[int],
    ) -> None:
        self._open_ended = open_ended
        self._jumps: defaultdict[int, list[int]] = defaultdict(list)
        self._next: defaultdict[int, set[int]] = defaultdict(set)
        self._ends: dict[int, int | None] = {}
        # The bytes of other instructions may look like a short jump: it is uncertain whether such a
        # function leads to a callback.
        short: defaultdict[int, list[int]] = defaultdict(list)
        for back, target in zip(*short_jumps, strict=True):
            short[target].append(back - 1)
        for back, target in zip(*jumps, strict=True):
            if target not in callbacks:
                continue
            # The last byte of a jump is in the same function as the first.
            start = functions.start_of(back - 1)
            if start is not None:
                self._jumps[start].append(back - 1)
        self._uncertain = functions.sources(
            chain.from_iterable(short.get(callback, ()) for callback in callbacks)
        )
        self.functions: set[int] = set()
        """The addresses of the functions."""
        todo = {*self._jumps, *self._uncertain}
        if self._jumps:
            # A jump that may lead anywhere may lead to one of these functions.
            todo |= open_ended
        sources: defaultdict[int, list[int]] = defaultdict(list)
        if todo:
            for back, target in zip(*jumps, strict=True):
                sources[target].append(back - 1)
        while todo:
            start = todo.pop()
            self.functions.add(start)
            if start not in sources and start not in short:
                continue
            before = functions.sources(sources.get(start, ())) - {start}
            for source in before:
                self._next[source].add(start)
            perhaps = functions.sources(short.get(start, ())) - {start}
            self._uncertain |= perhaps
            todo |= (before | perhaps) - self.functions

    def find_jumps(self, function: int) -> tuple[int, ...]:
        """Return an address inside each jump that may record the return address of a call of this
        function; nothing if several functions have such jumps, or the jumps are unknown.
        """
        if function not in self._ends:
            self._ends[function] = self._find_end(function)
        end = self._ends[function]
        return () if end is None else tuple(sorted(self._jumps[end]))

    def _find_end(self, function: int) -> int | None:
        reached: set[int] = set()
        todo = {function}
        while todo:
            start = todo.pop()
            if start in self._open_ended or start in self._uncertain:
                return None
            reached.add(start)
            todo |= self._next.get(start, set()) - reached
        ends = [start for start in reached if start in self._jumps]
        return ends[0] if len(ends) == 1 else None


def find_text_points(
    text: bytes, address: int, elf: ElfFile, offset: int = 0
) -> list[tuple[int, PointKind]]:
    """Return the points in a part of the kernel's or a module's code: PCs, ascending, with kinds.
    Tail calls are left out.

    :param text: the code.
    :param address: the address of its start.
    :param elf: the kernel's image, which has the callbacks.
    :param offset: the KASLR offset that the address includes.
    """
    kinds = {symbol + offset: kind for symbol, kind in find_callbacks(elf.symbols).items()}
    if not kinds or elf.header.machine not in ARCHITECTURES or elf.is_relocatable:
        return []
    calls = find_branches([(address, text)], elf.header.machine, BranchKind.CALL, kinds)
    return list(zip(calls.back, map(kinds.__getitem__, calls.target), strict=True))


class _PointBranches(NamedTuple):
    """The branches of an image that record points or may lead to callbacks."""

    pc: BranchColumns
    """The calls of callbacks for basic blocks; the next three are for the other kinds of points."""
    cmp: BranchColumns
    entry: BranchColumns
    exit: BranchColumns
    jumps: BranchColumns
    """The jumps to callbacks and to starts of functions."""
    short_jumps: BranchColumns
    """Bytes that look like a short jump of x86 to one of these."""
    thunk_jumps: BranchColumns
    indirect_jumps: BranchColumns
    indirect_calls: BranchColumns


def _find_point_branches(
    texts: Sequence[tuple[int, bytes | memoryview]],
    machine: int,
    callbacks: Mapping[int, PointKind],
    functions: Functions,
    thunks: AbstractSet[int],
    has_thunks: bool,
) -> _PointBranches:
    """Return the branches that record points or may lead to callbacks.

    :param has_thunks: whether all indirect branches lead to thunks: then bytes that look like
        another indirect branch are something else.
    """
    ends = [*callbacks, *functions.starts]
    indirect_jump = BranchKind.INDIRECT_JUMP | BranchKind.SWITCH_JUMP
    indirect_call = BranchKind.INDIRECT_CALL
    if has_thunks:
        indirect_jump = indirect_call = BranchKind(0)

    def calls_for(wanted: PointKind) -> BranchSearch:
        targets = [address for address, kind in callbacks.items() if kind is wanted]
        return BranchSearch(BranchKind.CALL, targets)

    searches = (
        calls_for(PointKind.PC),
        calls_for(PointKind.CMP),
        calls_for(PointKind.ENTRY),
        calls_for(PointKind.EXIT),
        BranchSearch(BranchKind.JUMP, ends),
        BranchSearch(BranchKind.SHORT_JUMP, ends),
        BranchSearch(BranchKind.JUMP, thunks),
        BranchSearch(indirect_jump),
        BranchSearch(indirect_call),
    )
    return _PointBranches(*search_branches(texts, machine, searches))


def find_points(elf: ElfFile, symbols: SymbolTable | None = None) -> Points:
    """Return all points of a linked kernel image, with addresses as in the image.

    A file without text (of debug info alone) or without symbols has none; neither has an image for
    a machine whose calls are unknown. 10 MiB of text of x86 or arm64 take 0.1 s of processor time;
    all cores search.

    :param symbols: its symbols, which another file may have.
    :raises ElfError: when the file is damaged.
    """
    machine = elf.header.machine
    if machine not in ARCHITECTURES or elf.is_relocatable:
        none = array("Q")
        return Points(none, none, none, none, none, {})
    symbols = elf.symbols if symbols is None else symbols
    callbacks = find_callbacks(symbols)
    thunks: set[int] = set()
    has_thunks = False
    for symbol in symbols.find_containing(*THUNKS):
        if symbol.name.startswith(THUNKS):
            thunks.add(symbol.address)
            has_thunks = has_thunks or (symbol.name == _X86_THUNKS and symbol.size > 0)
    texts = elf.map_code()
    functions = Functions(symbols)
    found = _find_point_branches(texts, machine, callbacks, functions, thunks, has_thunks)
    points = Points(
        found.pc.back, found.cmp.back, array("Q"), found.entry.back, found.exit.back, {}
    )
    open_ended = functions.sources(
        back - 1 for back in (*found.thunk_jumps.back, *found.indirect_jumps.back)
    )
    tail_calls = _TailCalls(found.jumps, found.short_jumps, callbacks.keys(), functions, open_ended)
    if not tail_calls.functions:
        return points
    # Calls of callbacks are points.
    targets = (tail_calls.functions | thunks) - callbacks.keys()
    calls = find_branches(texts, machine, BranchKind.CALL, targets)
    # Branches of several lengths need not end in the order in which they begin.
    direct = array("Q", sorted(set(calls.back)))
    indirect = array("Q", sorted(set(found.indirect_calls.back)))
    for others in (points.pc, points.cmp, points.entry, points.exit, direct):
        indirect = subtract(indirect, others)
    tail = merge_kinds(((indirect, 0), (direct, 1))).pcs
    return points._replace(tail=tail, jumps=_match_jumps(calls, tail_calls))


def _match_jumps(calls: BranchColumns, tail_calls: _TailCalls) -> Mapping[int, tuple[int, ...]]:
    """Return :attr:`Points.jumps`.

    :param calls: the calls of functions that end in jumps.
    """
    targets = {*calls.target} & tail_calls.functions
    jumps = {target: found for target in targets if (found := tail_calls.find_jumps(target))}
    return {back: jumps[target] for back, target in zip(*calls, strict=True) if target in jumps}


def find_file_points(elf: ElfFile) -> Mapping[str, Mapping[int, PointKind]]:
    """Return the points in each section with code: offsets of return addresses, with kinds.

    :param elf: a relocatable file.
    :raises ElfError: when the file is damaged.
    """
    machine = elf.header.machine
    if machine not in ARCHITECTURES:
        return {}
    sizes = ARCHITECTURES[machine].relocations
    kinds = {number: kind_of_callback(symbol.name) for number, symbol in enumerate(elf.symbols)}
    found: dict[str, Mapping[int, PointKind]] = {}
    for section in elf.text_sections():
        calls = set(find_branches([(0, elf.map_section(section))], machine, BranchKind.CALL).back)
        points: dict[int, PointKind] = {}
        for entry in read_relocations(elf, section):
            kind = kinds.get(entry.symbol)
            back = entry.offset + sizes.get(entry.type, 0)
            if kind is not None and back in calls:
                points[back] = kind
        found[section.name] = points
    return found


def points_of_loaded(module: LoadedModule, path: str) -> Mapping[int, PointKind]:
    """Return the points of a loaded module: return addresses, with kinds.

    :param path: the path of its file.
    :raises ElfError: when the file is damaged.
    """
    with ElfFile(path) as elf:
        of_section = find_file_points(elf)
    found: dict[int, PointKind] = {}
    for name, address in module.sections:
        for offset, kind in of_section.get(name, {}).items():
            found[address + offset] = kind
    return found
