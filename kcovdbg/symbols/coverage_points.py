# SPDX-License-Identifier: LGPL-2.1-or-later
"""The coverage points of a kernel: the compiler's calls to ``__sanitizer_cov_trace_*``.

KCOV records the return address of such a call, so that is what a point is known by. A compiler may end a function with a
*jump* to ``__sanitizer_cov_trace_pc`` (gcc before 14 does, for 2 points of 100). The recorded return address is then the one
of the function's caller. These addresses are found as well, with the jump that recorded each, where the call leads to one
function with such a jump only. Where it may lead to several, and after indirect calls, the jump is unknown.
"""

from __future__ import annotations

import re
import struct
import sys
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import IntEnum
from itertools import compress
from typing import Final, NamedTuple

from kcovdbg.abi.record import Codec
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import EM_386, EM_AARCH64, EM_RISCV, EM_S390, EM_X86_64
from kcovdbg.elf.symbol_table import ElfSymbol, SymbolTable
from kcovdbg.symbols.compiled_reader import SEARCHED, BranchColumns, BranchKind, find_branches

_TRACE_PC: Final = "__sanitizer_cov_trace_pc"
# Other callbacks by name: comparisons, and clang's guards, entries and exits of functions.
_PREFIX: Final = "__sanitizer_cov_trace_"
_COMPARISON: Final = re.compile(r"__sanitizer_cov_trace_(const_cmp[1248]|cmp[1248]|switch)$")
# Other functions are reached through these: thunks against Spectre, and trampolines of static calls.
THUNKS: Final = ("__x86_indirect_thunk_", "__s390_indirect_jump_", "__SCT__")
# In images with thunks for indirect branches.
_X86_THUNKS: Final = "__x86_indirect_thunk_array"


class PointKind(IntEnum):
    """What a recorded return address belongs to."""

    PC = 0
    """The call for a basic block."""
    CMP = 1
    """A call for a comparison or a switch."""
    TAIL = 2
    """Not a point: the call of a function that may end in a jump to the callback. Which jump it was is unknown."""
    TAIL_KNOWN = 3
    """Not a point: the call of a function that ends in a jump to the callback, or of one that leads to that function only."""
    ENTRY = 4
    """The call for the entry of a function (-fsanitize-coverage=trace-pc-entry-exit), in place of that for its first block."""
    EXIT = 5
    """The call for the exit of a function; recorded only where records say which kind they are."""


POINT_KINDS: Final = frozenset({PointKind.PC, PointKind.CMP, PointKind.ENTRY, PointKind.EXIT})
"""The kinds of coverage points: all but those of tail calls."""


def recorded_kinds(codec: Codec) -> frozenset[PointKind]:
    """Return which kinds of points a buffer of this format can have records of."""
    if codec.has_operands:
        return frozenset({PointKind.CMP})
    # An exit is recorded only where it can be distinguished from other records.
    return frozenset({PointKind.PC, PointKind.ENTRY, *((PointKind.EXIT,) if codec.has_calls else ())})


class Points(NamedTuple):
    """The return addresses of all points of an image, each ascending, and those recorded by tail calls."""

    pc: array[int]
    cmp: array[int]
    tail: array[int]
    """Return addresses that a jump to a callback may record."""
    entry: array[int]
    exit: array[int]
    jumps: Mapping[int, tuple[int, ...]]
    """For those in ``tail`` whose call leads to one function with such jumps: addresses inside these jumps."""


def _no_points() -> Points:
    return Points(array("Q"), array("Q"), array("Q"), array("Q"), array("Q"), {})


_KINDS_OF_NAMES: Final = {f"{_TRACE_PC}_entry": PointKind.ENTRY, f"{_TRACE_PC}_exit": PointKind.EXIT}


def kind_of_callback(name: str) -> PointKind | None:
    """Return the kind of point that calls this function, None where none does."""
    # On arm64 far calls go through a veneer: ____sanitizer_cov_trace_pc_veneer.
    name = name[2:-7] if name.endswith("_veneer") else name
    if not name.startswith(_PREFIX):
        return None
    if _COMPARISON.match(name):
        return PointKind.CMP
    return _KINDS_OF_NAMES.get(name, PointKind.PC)


class Branches(NamedTuple):
    """Calls, or jumps, with a fixed target: two columns, as there are hundreds of thousands."""

    back: list[int]
    """The address after each."""
    target: list[int]

    def to(self, targets: AbstractSet[int]) -> BranchColumns:
        """Return those that lead to targets."""
        led = [target in targets for target in self.target]
        return BranchColumns(array("Q", compress(self.back, led)), array("Q", compress(self.target, led)))


class Code(NamedTuple):
    """Code in which every branch has been found."""

    calls: Branches
    jumps: Branches
    indirect: list[int]
    """Return addresses of calls through registers or memory."""
    indirect_jumps: list[int]
    """Addresses inside jumps through registers or memory."""

    def calls_to(self, targets: AbstractSet[int]) -> BranchColumns:
        """Return the calls of targets."""
        return self.calls.to(targets)

    def jumps_to(self, targets: AbstractSet[int]) -> BranchColumns:
        """Return the jumps to targets, but the short ones of x86."""
        return self.jumps.to(targets)

    def indirect_beside(self, callbacks: AbstractSet[int]) -> Iterable[int]:
        """Return the return addresses of indirect calls that are not also those of calls of callbacks."""
        return set(self.indirect).difference(self.calls_to(callbacks).back)


class _CompiledCode(NamedTuple):
    """Code whose branches are found by the compiled module, by where they lead to: as :class:`Code`."""

    texts: Sequence[tuple[int, bytes | memoryview]]
    """Addresses and contents."""
    machine: int
    has_indirect: bool
    """Whether its indirect calls and jumps are of interest."""

    def calls_to(self, targets: AbstractSet[int]) -> BranchColumns:
        return self._find(targets, BranchKind.CALL)

    def jumps_to(self, targets: AbstractSet[int]) -> BranchColumns:
        return self._find(targets, BranchKind.JUMP)

    def indirect_beside(self, callbacks: AbstractSet[int]) -> Iterable[int]:
        return self._find(callbacks, BranchKind.INDIRECT_CALL).back if self.has_indirect else ()

    @property
    def indirect_jumps(self) -> Iterable[int]:
        return self._find((), BranchKind.INDIRECT_JUMP).back if self.has_indirect else ()

    def short_jumps_to(self, targets: AbstractSet[int]) -> Callable[[int], Iterable[int]]:
        found: defaultdict[int, list[int]] = defaultdict(list)
        for back, target in zip(*self._find(targets, BranchKind.SHORT_JUMP), strict=True):
            found[target].append(back - 1)
        return lambda target: found.get(target, ())

    def _find(self, targets: Collection[int], kind: BranchKind) -> BranchColumns:
        return find_branches(self.texts, self.machine, targets, kind)


# Displacements of 128 MiB at most, more than the size of a kernel's text: fewer other bytes look like a call.
_X86_CALL: Final = re.compile(rb"\xe8(?=...[\x00-\x07\xf8-\xff])", re.DOTALL)
_X86_JUMP: Final = re.compile(rb"(?:\xe9|\x0f[\x80-\x8f])(?=...[\x00-\x07\xf8-\xff])", re.DOTALL)


def _scan_x86(text: bytes | memoryview, address: int, is_big_endian: bool) -> Code:  # noqa: ARG001
    displacement = struct.Struct("<i").unpack_from

    def follow(pattern: re.Pattern[bytes]) -> Branches:
        ends = [match.end() for match in pattern.finditer(text)]
        back = address + 4
        return Branches([back + end for end in ends], [back + end + displacement(text, end)[0] for end in ends])

    return Code(follow(_X86_CALL), follow(_X86_JUMP), [], [])


X86_SHORT: Final = re.compile(rb"[\xeb\x70-\x7f]")


def _no_jumps(target: int) -> tuple[int, ...]:  # noqa: ARG001
    return ()


def _words(text: bytes | memoryview) -> array[int]:
    words = array("I")
    words.frombytes(text[: len(text) & ~3])
    if sys.byteorder == "big":
        words.byteswap()
    return words


def _scan_arm64(text: bytes | memoryview, address: int, is_big_endian: bool) -> Code:  # noqa: ARG001
    # Instructions are little-endian in every arm64 kernel: BL, B, BLR and BR of the architecture's manual.
    code = Code(Branches([], []), Branches([], []), [], [])
    for index, word in enumerate(_words(text)):
        opcode = word >> 26
        if opcode in (0x25, 0x05):
            at = address + 4 * index
            branches = code.calls if opcode == 0x25 else code.jumps
            branches.back.append(at + 4)
            branches.target.append(at + 4 * (((word & 0x3FFFFFF) ^ 0x2000000) - 0x2000000))
        elif word & 0xFFFFFC1F == 0xD63F0000:
            code.indirect.append(address + 4 * index + 4)
        elif word & 0xFFFFFC1F == 0xD61F0000:
            code.indirect_jumps.append(address + 4 * index)
    return code


_S390_BRANCH: Final = re.compile(rb"\xc0(?=[\xe5\x04-\xf4]....)", re.DOTALL)


def _scan_s390(text: bytes | memoryview, address: int, is_big_endian: bool) -> Code:  # noqa: ARG001
    # brasl %r14 is c0 e5, jg is c0 f4 and its conditions c0 14 to c0 e4; displacements count halfwords.
    code = Code(Branches([], []), Branches([], []), [], [])
    for match in _S390_BRANCH.finditer(text):
        at = match.start()
        kind = text[at + 1]
        if at & 1 or (kind != 0xE5 and kind & 0xF != 4):
            continue
        branches = code.calls if kind == 0xE5 else code.jumps
        branches.back.append(address + at + 6)
        branches.target.append(address + at + 2 * struct.unpack_from(">i", text, at + 2)[0])
    # basr %r14,%rX.
    code.indirect.extend(
        address + match.start() + 2 for match in re.finditer(rb"\x0d[\xe1-\xef]", text) if not match.start() & 1
    )
    # br %rX; br %r14 is a return.
    code.indirect_jumps.extend(
        address + match.start() for match in re.finditer(rb"\x07[\xf1-\xfd\xff]", text) if not match.start() & 1
    )
    return code


# jal ra is xef x0 and jal zero x6f x0, in the order of memory; then auipc, whose register jalr takes.
_RISCV_BRANCH: Final = re.compile(b"[\xef\x6f](?=[%b]..)" % re.escape(bytes(range(0, 256, 16))), re.DOTALL)
_RISCV_FAR: Final = re.compile(rb"[\x17\x97](?=...[\xe7\x67][\x00\x80]..)", re.DOTALL)
# c.j; c.jalr and c.jr, and jalr of ra and zero.
_RISCV_NEAR: Final = re.compile(b"[%b](?=[\xa0-\xbf])" % re.escape(bytes(range(1, 256, 4))))
_RISCV_INDIRECT: Final = re.compile(rb"[\x02\x82](?=[\x80-\x9f])|[\xe7\x67](?=[\x00\x80]..)", re.DOTALL)
_RISCV_RA: Final = 1


def riscv_displacement(word: int) -> int:
    """Return the displacement of a ``jal`` of RISC-V."""
    value = (word >> 21 & 0x3FF) << 1 | (word >> 20 & 1) << 11 | (word >> 12 & 0xFF) << 12 | (word >> 31) << 20
    return (value ^ 1 << 20) - (1 << 20)


def riscv_far_displacement(first: int, second: int) -> int | None:
    """Return the displacement of a pair ``auipc`` and ``jalr`` from the first, None where it is none."""
    if first & 0x7F != 0x17 or second & 0x707F != 0x67 or first >> 7 & 0x1F != second >> 15 & 0x1F:
        return None
    upper = ((first & 0xFFFFF000) ^ 1 << 31) - (1 << 31)
    return upper + ((second >> 20 ^ 1 << 11) - (1 << 11))


def _scan_riscv(text: bytes | memoryview, address: int, is_big_endian: bool) -> Code:  # noqa: ARG001
    # Instructions are of two or four bytes. What looks like one in the middle of another leads to no callback.
    code = Code(Branches([], []), Branches([], []), [], [])
    word_at = struct.Struct("<I").unpack_from
    for match in _RISCV_BRANCH.finditer(text):
        at = match.start()
        if at & 1:
            continue
        branches = code.calls if text[at] == 0xEF else code.jumps
        branches.back.append(address + at + 4)
        branches.target.append(address + at + riscv_displacement(word_at(text, at)[0]))
    far = set()
    for match in _RISCV_FAR.finditer(text):
        at = match.start()
        displacement = None if at & 1 else riscv_far_displacement(word_at(text, at)[0], word_at(text, at + 4)[0])
        if displacement is not None:
            far.add(at + 4)
            branches = code.calls if text[at + 4] == 0xE7 else code.jumps
            branches.back.append(address + at + 8)
            branches.target.append(address + at + displacement)
    for match in _RISCV_NEAR.finditer(text):
        at = match.start()
        if not at & 1:
            code.jumps.back.append(address + at + 2)
            code.jumps.target.append(address + at + _riscv_near_displacement(text[at] | text[at + 1] << 8))
    for match in _RISCV_INDIRECT.finditer(text):
        at = match.start()
        if at & 1 or at in far:
            continue
        is_short = text[at] & 3 == 2
        half = text[at] | text[at + 1] << 8
        register = half >> 7 & 0x1F if is_short else word_at(text, at)[0] >> 15 & 0x1F
        if half & 0x1000 if is_short else text[at] == 0xE7:
            # Without a register it is c.ebreak.
            if register:
                code.indirect.append(address + at + (2 if is_short else 4))
        elif register > _RISCV_RA:
            code.indirect_jumps.append(address + at)
    return code


def _riscv_near_displacement(half: int) -> int:
    """Return the displacement of a ``c.j``, which has its bits in the order 11|4|9:8|10|6|7|3:1|5."""
    value = half >> 3 & 7
    value = value << 1 | (half >> 11 & 1) << 4 | (half >> 2 & 1) << 5 | (half >> 7 & 1) << 6 | (half >> 6 & 1) << 7
    value |= (half >> 9 & 3) << 8 | (half >> 8 & 1) << 10 | (half >> 12 & 1) << 11
    return (value ^ 1 << 11) - (1 << 11)


SCANNERS: Final[dict[int, Callable[[bytes | memoryview, int, bool], Code]]] = {
    EM_X86_64: _scan_x86,
    EM_386: _scan_x86,
    EM_AARCH64: _scan_arm64,
    EM_S390: _scan_s390,
    EM_RISCV: _scan_riscv,
}


class Functions:
    """Functions by address; of several at one address, or with one name, the first in the symbol table."""

    def __init__(self, symbols: SymbolTable) -> None:
        columns = symbols.function_columns()
        names, addresses, sizes = columns.names[::-1], columns.addresses[::-1], columns.sizes[::-1]
        self._sizes = dict(zip(addresses, sizes, strict=True))
        # A list, because an array makes a new number for each comparison.
        self._starts = sorted(self._sizes)
        # The cold part of a function is entered by jumps from it, with its return address.
        by_name = dict(zip(names, addresses, strict=True))
        cold = {start for start, name in zip(addresses, names, strict=True) if b".cold" in name}
        named = {start: name for start, name in zip(addresses, names, strict=True) if start in cold}
        self._whole = {
            start: by_name.get(name.partition(b".cold")[0], start) for start, name in named.items() if b".cold" in name
        }

    @property
    def starts(self) -> AbstractSet[int]:
        """The addresses that a function starts at."""
        return self._sizes.keys()

    def start_of(self, address: int) -> int | None:
        """Return the start of the function that an address is in, None when it is in none."""
        index = bisect_right(self._starts, address)
        start = self._starts[index - 1] if index else address
        return self._whole.get(start, start) if address - start < self._sizes.get(start, 0) else None

    def sources(self, addresses: Iterable[int]) -> set[int]:
        """Return the starts of the functions that addresses are in."""
        # As start_of(), without a call for each: there are tens of thousands.
        starts, sizes, whole = self._starts, self._sizes, self._whole
        found: set[int] = set()
        for address in addresses:
            index = bisect_right(starts, address)
            start = starts[index - 1] if index else address
            if address - start < sizes.get(start, 0):
                found.add(start)
        return {whole.get(start, start) for start in found}


def find_callbacks(symbols: Iterable[ElfSymbol]) -> dict[int, PointKind]:
    """Return the callbacks' addresses, each with the kind of point that calls it."""
    found: dict[int, PointKind] = {}
    for symbol in symbols:
        kind = kind_of_callback(symbol.name)
        if kind is not None and symbol.section != 0:
            found[symbol.address] = kind
    return found


class _TailCalls:
    """The functions that may return to their caller by way of a callback.

    :param jumps: all its jumps to callbacks and to starts of functions, but the short ones of x86.
    :param short_jumps: returns addresses inside what looks like a short jump of x86 to an address.
    :param callbacks: addresses of the callbacks.
    :param functions: of the image.
    """

    def __init__(
        self,
        jumps: BranchColumns,
        short_jumps: Callable[[int], Iterable[int]],
        callbacks: AbstractSet[int],
        functions: Functions,
    ) -> None:
        self._jumps: defaultdict[int, list[int]] = defaultdict(list)
        self._next: defaultdict[int, set[int]] = defaultdict(set)
        self._ends: dict[int, int | None] = {}
        # Bytes of other instructions may look like the two of a short jump: what such functions lead to is uncertain.
        self._uncertain: set[int] = set()
        # The last byte of a jump is in the same function as the first.
        for at in (back - 1 for back, target in zip(*jumps, strict=True) if target in callbacks):
            start = functions.start_of(at)
            if start is not None:
                self._jumps[start].append(at)
        self._uncertain |= functions.sources(at for callback in callbacks for at in short_jumps(callback))
        self.functions: set[int] = set()
        """Their addresses."""
        todo = {*self._jumps, *self._uncertain}
        sources: defaultdict[int, list[int]] = defaultdict(list)
        if todo:
            for back, target in zip(*jumps, strict=True):
                sources[target].append(back - 1)
        while todo:
            start = todo.pop()
            self.functions.add(start)
            before = functions.sources(sources.get(start, ())) - {start}
            for source in before:
                self._next[source].add(start)
            short = functions.sources(short_jumps(start)) - {start}
            self._uncertain |= short
            todo |= (before | short) - self.functions

    def find_jumps(self, function: int, open_ended: AbstractSet[int]) -> tuple[int, ...]:
        """Return addresses inside the jumps that may record the return address of a call of this function.

        :param open_ended: functions with indirect jumps, which may lead anywhere.
        :return: empty where the jumps are of more functions than one, or unknown.
        """
        if function not in self._ends:
            self._ends[function] = self._find_end(function, open_ended)
        end = self._ends[function]
        return () if end is None else tuple(sorted(self._jumps[end]))

    def _find_end(self, function: int, open_ended: AbstractSet[int]) -> int | None:
        reached: set[int] = set()
        todo = {function}
        while todo:
            start = todo.pop()
            if start in open_ended or start in self._uncertain:
                return None
            reached.add(start)
            todo |= self._next.get(start, set()) - reached
        ends = [start for start in reached if start in self._jumps]
        return ends[0] if len(ends) == 1 else None


def can_find_points(machine: int) -> bool:
    """Return whether points can be found on a machine: its calls are recognized."""
    return machine in SCANNERS


def _scan(elf: ElfFile, machine: int, *, has_thunks: bool) -> Code | _CompiledCode:
    """Find the branches of an image.

    :param has_thunks: its indirect calls and jumps lead to thunks.
    """
    # By address, so that what is found in them is ascending.
    sections = sorted(elf.text_sections(), key=lambda section: section.address)
    texts = [(section.address, elf.map_section(section)) for section in sections]
    if machine in SEARCHED:
        return _CompiledCode(texts, machine, not has_thunks)
    code = Code(Branches([], []), Branches([], []), [], [])
    for address, text in texts:
        part = SCANNERS[machine](text, address, elf.header.big_endian)
        for branches, more in ((code.calls, part.calls), (code.jumps, part.jumps)):
            branches.back.extend(more.back)
            branches.target.extend(more.target)
        code.indirect.extend(part.indirect)
        code.indirect_jumps.extend(part.indirect_jumps)
    return code


_X86_ANY_CALL: Final = re.compile(rb"\xe8(?=....)", re.DOTALL)


def find_loaded_points(text: bytes, address: int, elf: ElfFile, offset: int) -> list[tuple[int, PointKind]]:
    """Return the points of a module's code in memory: return addresses of calls of callbacks, ascending, and their kinds.

    :param text: the code.
    :param address: of its start in the running kernel.
    :param elf: the kernel's image, which has the callbacks.
    :param offset: the KASLR offset.
    """
    kinds = {symbol + offset: kind for symbol, kind in find_callbacks(elf.symbols.find_containing(_PREFIX)).items()}
    header = elf.header
    if header.machine in (EM_X86_64, EM_386):
        # Modules are farther from the callbacks than any code of the image.
        ends = [match.end() + 4 for match in _X86_ANY_CALL.finditer(text)]
        back = [address + end for end in ends]
        target = [address + end + int.from_bytes(text[end - 4 : end], "little", signed=True) for end in ends]
    else:
        back, target = SCANNERS[header.machine](text, address, header.big_endian).calls
    return [(at, kinds[to]) for at, to in zip(back, target, strict=True) if to in kinds]


def find_points(elf: ElfFile, symbols: SymbolTable | None = None) -> Points:
    """Return all points of a linked kernel image, with addresses as in the image.

    There are none without text (a file of debug info alone), without symbols, or on machines without a scanner.
    10 MiB of text of x86 or arm64 take 0.1 s of processor time; all cores search.

    :param symbols: its symbols, where another file has them.
    :raises ElfError: when the file is damaged.
    """
    machine = elf.header.machine
    if machine not in SCANNERS or elf.is_relocatable:
        return _no_points()
    symbols = elf.symbols if symbols is None else symbols
    named = list(symbols.find_containing(_PREFIX, *THUNKS))
    callbacks = find_callbacks(named)
    thunks = {symbol.address for symbol in named if symbol.name.startswith(THUNKS)}
    code = _scan(elf, machine, has_thunks=any(symbol.name == _X86_THUNKS and symbol.size for symbol in named))
    found = _points_of(code, callbacks)
    functions = Functions(symbols)
    jumps = code.jumps_to(callbacks.keys() | functions.starts | thunks)
    short_jumps: Callable[[int], Iterable[int]] = _no_jumps
    if isinstance(code, _CompiledCode):
        short_jumps = code.short_jumps_to(callbacks.keys() | functions.starts)
    tail_calls = _TailCalls(jumps, short_jumps, callbacks.keys(), functions)
    if not tail_calls.functions:
        return found
    indirect_jumps = [*code.indirect_jumps, *(back - 1 for back, target in zip(*jumps, strict=True) if target in thunks)]
    open_ended = functions.sources(indirect_jumps)
    # Calls of callbacks are points.
    calls = code.calls_to((tail_calls.functions | thunks) - callbacks.keys())
    leading = {target: tail_calls.find_jumps(target, open_ended) for target in {*calls.target} & tail_calls.functions}
    known = {back: at for back, target in zip(*calls, strict=True) if (at := leading.get(target))}
    tail = {*calls.back, *code.indirect_beside(callbacks.keys())}
    return found._replace(tail=array("Q", sorted(tail)), jumps=known)


def _points_of(code: Code | _CompiledCode, callbacks: Mapping[int, PointKind]) -> Points:
    """Return the return addresses of calls of callbacks."""

    def calls(kind: PointKind) -> array[int]:
        targets = {target for target, of in callbacks.items() if of is kind}
        return code.calls_to(targets).back if targets else array("Q")

    return _no_points()._replace(
        pc=calls(PointKind.PC), cmp=calls(PointKind.CMP), entry=calls(PointKind.ENTRY), exit=calls(PointKind.EXIT)
    )


def find_points_between(elf: ElfFile, start: int, end: int) -> Points:
    """Return the points of a part of a linked image, without those of tail calls.

    :param start: the first address, as in the image.
    :param end: the address after the last one.
    :raises ElfError: when the file is damaged.
    """
    scan = SCANNERS.get(elf.header.machine)
    if scan is None or elf.is_relocatable:
        return _no_points()
    return _points_of(
        scan(elf.read(start, end - start), start, elf.header.big_endian), find_callbacks(elf.symbols.find_containing(_PREFIX))
    )
