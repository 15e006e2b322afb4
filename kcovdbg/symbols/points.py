# SPDX-License-Identifier: LGPL-2.1-or-later
"""Finds a kernel's coverage points: where the compiler put calls to ``__sanitizer_cov_trace_*``.

KCOV records the return address of such a call, so that is what a point is known by. A compiler may end a function with a
*jump* to ``__sanitizer_cov_trace_pc`` (gcc before 14 does, for 2 points of 100): then the return address is that of whoever
called the function, and these addresses are found as well. Return addresses behind indirect calls are among them, since
nobody knows what such a call calls.
"""

from __future__ import annotations

import re
import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from enum import IntEnum
from typing import Final, NamedTuple

from kcovdbg.symbols.elf import EM_386, EM_AARCH64, EM_S390, EM_X86_64, ElfFile, ElfSymbol, Relocation

_TRACE_PC: Final = "__sanitizer_cov_trace_pc"
# Other callbacks by name: comparisons, and clang's edges and entry and exit.
_PREFIX: Final = "__sanitizer_cov_trace_"
_COMPARISON: Final = re.compile(r"__sanitizer_cov_trace_(const_cmp[1248]|cmp[1248]|switch)$")


class PointKind(IntEnum):
    """What calls there."""

    PC = 0
    """The compiler's call for a basic block, or for a function's entry or exit."""
    CMP = 1
    """The call for a comparison or a switch."""
    TAIL = 2
    """A call of a function that may end in a jump to the callback; the PC is recorded in its caller's name."""


class Points(NamedTuple):
    """The return addresses of all points of an image, each ascending."""

    pc: array[int]
    cmp: array[int]
    tail: array[int]


class _Branches(NamedTuple):
    """Calls, or jumps, with a fixed target; two columns, since there are hundreds of thousands."""

    back: list[int]
    """Address of the instruction after it."""
    target: list[int]

    def back_from(self, targets: AbstractSet[int]) -> list[int]:
        """Return the addresses behind those that go to one of these."""
        return [back for back, target in zip(self.back, self.target, strict=True) if target in targets]


class _Code(NamedTuple):
    calls: _Branches
    jumps: _Branches
    indirect: list[int]
    """Return addresses of calls through registers or memory."""


# A displacement within 128 MiB: all that a kernel's text needs, and a sieve for bytes that only look like a call.
_X86_CALL: Final = re.compile(rb"\xe8(?=...[\x00-\x07\xf8-\xff])", re.DOTALL)
_X86_JUMP: Final = re.compile(rb"(?:\xe9|\x0f[\x80-\x8f])(?=...[\x00-\x07\xf8-\xff])", re.DOTALL)
_X86_INDIRECT: Final = re.compile(rb"\xff(?=[\xd0-\xd7\x10-\x13\x16\x17\x50-\x53\x55-\x57\x90-\x93\x95-\x97])")


def _scan_x86(text: bytes, address: int, is_big_endian: bool) -> _Code:  # noqa: ARG001
    displacement = struct.Struct("<i").unpack_from

    def follow(pattern: re.Pattern[bytes]) -> _Branches:
        ends = [match.end() for match in pattern.finditer(text)]
        back = address + 4
        return _Branches([back + end for end in ends], [back + end + displacement(text, end)[0] for end in ends])

    return _Code(follow(_X86_CALL), follow(_X86_JUMP), [])


def _scan_x86_indirect(text: bytes, address: int) -> list[int]:
    # Bytes that only look like such a call do no harm: an address more that nobody looks up.
    lengths = {0x10: 2, 0x50: 3, 0x90: 6, 0xD0: 2}
    return [address + match.start() + lengths[text[match.end()] & 0xF0] for match in _X86_INDIRECT.finditer(text)]


_X86_SHORT: Final = re.compile(rb"[\xeb\x70-\x7f]")


def _find_short_jumps(elf: ElfFile, target: int) -> list[int]:
    """Return the addresses of x86's jumps with a short displacement to an address; few enough to be looked for one by one."""
    section = elf.text_section_at(target)
    if section is None:
        return []
    start = max(target - 129, section.address)
    text = elf.read_at(start, target + 128 - start)
    return [
        start + match.end()
        for match in _X86_SHORT.finditer(text, 0, len(text) - 1)
        if start + match.end() + 1 + (text[match.end()] ^ 0x80) - 0x80 == target
    ]


def _words(text: bytes) -> array[int]:
    words = array("I")
    words.frombytes(text[: len(text) & ~3])
    if sys.byteorder == "big":
        words.byteswap()
    return words


def _scan_arm64(text: bytes, address: int, is_big_endian: bool) -> _Code:  # noqa: ARG001
    # Instructions are little-endian in every arm64 kernel: BL, B and BLR of the architecture's manual.
    code = _Code(_Branches([], []), _Branches([], []), [])
    for index, word in enumerate(_words(text)):
        opcode = word >> 26
        if opcode in (0x25, 0x05):
            at = address + 4 * index
            branches = code.calls if opcode == 0x25 else code.jumps
            branches.back.append(at + 4)
            branches.target.append(at + 4 * (((word & 0x3FFFFFF) ^ 0x2000000) - 0x2000000))
        elif word & 0xFFFFFC1F == 0xD63F0000:
            code.indirect.append(address + 4 * index + 4)
    return code


_S390_BRANCH: Final = re.compile(rb"\xc0(?=[\xe5\x04-\xf4]....)", re.DOTALL)


def _scan_s390(text: bytes, address: int, is_big_endian: bool) -> _Code:  # noqa: ARG001
    # brasl %r14 is c0 e5, jg is c0 f4 and its conditions c0 14 to c0 e4; displacements count halfwords.
    code = _Code(_Branches([], []), _Branches([], []), [])
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
    return code


_SCANNERS: Final[dict[int, Callable[[bytes, int, bool], _Code]]] = {
    EM_X86_64: _scan_x86,
    EM_386: _scan_x86,
    EM_AARCH64: _scan_arm64,
    EM_S390: _scan_s390,
}


class _Functions:
    """Which function an address lies in."""

    def __init__(self, symbols: Iterable[ElfSymbol]) -> None:
        by_start: dict[int, ElfSymbol] = {}
        self.by_name: dict[str, int] = {}
        for symbol in symbols:
            if symbol.is_function and symbol.size:
                by_start.setdefault(symbol.value, symbol)
                self.by_name.setdefault(symbol.name, symbol.value)
        self._starts = sorted(by_start)
        self._symbols = by_start

    def is_start(self, address: int) -> bool:
        return address in self._symbols

    def start_of(self, address: int) -> int | None:
        index = bisect_right(self._starts, address) - 1
        if index < 0:
            return None
        start = self._starts[index]
        symbol = self._symbols[start]
        if address >= start + symbol.size:
            return None
        # A function's cold part is entered by jumps from the function, with the function's return address.
        name, cold, _ = symbol.name.partition(".cold")
        return self.by_name.get(name, start) if cold else start


def _callbacks(symbols: Iterable[ElfSymbol]) -> tuple[set[int], set[int]]:
    pc: set[int] = set()
    cmp: set[int] = set()
    for symbol in symbols:
        # On arm64 far calls go through a veneer: ____sanitizer_cov_trace_pc_veneer.
        name = symbol.name[2:-7] if symbol.name.endswith("_veneer") else symbol.name
        if not name.startswith(_PREFIX) or symbol.section == 0:
            continue
        if _COMPARISON.match(name):
            cmp.add(symbol.value)
        else:
            pc.add(symbol.value)
    return pc, cmp


def _find_tail_functions(elf: ElfFile, jumps: _Branches, callbacks: AbstractSet[int], functions: _Functions) -> set[int]:
    """Return the functions that may return to their caller by way of a callback."""
    has_short = elf.machine in (EM_X86_64, EM_386)
    # A jump's last byte tells as well as its first which function it lies in.
    todo = {functions.start_of(back - 1) for back in jumps.back_from(callbacks)}
    if has_short:
        todo.update(functions.start_of(at) for callback in callbacks for at in _find_short_jumps(elf, callback))
    found: set[int] = set()
    sources: dict[int, list[int]] | None = None
    while todo:
        start = todo.pop()
        if start is None or start in found:
            continue
        found.add(start)
        if sources is None:
            sources = {}
            for back, target in zip(jumps.back, jumps.target, strict=True):
                if functions.is_start(target):
                    sources.setdefault(target, []).append(back - 1)
        todo.update(functions.start_of(at) for at in sources.get(start, ()))
        if has_short:
            todo.update(functions.start_of(at) for at in _find_short_jumps(elf, start))
    return found


def can_find_points(machine: int) -> bool:
    """Tell whether this architecture's calls can be recognised; for others no points are found."""
    return machine in _SCANNERS


def find_points(elf: ElfFile) -> Points:
    """Find all points of a linked kernel image; addresses as in the image.

    About 0.4 s for 10 MiB of text. None where the image has no text (a file with debug info alone), no symbols, or an
    architecture whose calls aren't known here: x86, arm64 and s390x are.

    :raises TargetError: when the file is damaged.
    """
    scan = _SCANNERS.get(elf.machine)
    if scan is None or elf.is_relocatable:
        return Points(array("Q"), array("Q"), array("Q"))
    symbols = elf.symbols()
    pc_callbacks, cmp_callbacks = _callbacks(symbols)
    tail: set[int] = set()
    texts = [(section, elf.read(section)) for section in elf.text_sections()]
    calls, jumps = _Branches([], []), _Branches([], [])
    for section, text in texts:
        code = scan(text, section.address, elf.big_endian)
        for branches, more in ((calls, code.calls), (jumps, code.jumps)):
            branches.back.extend(more.back)
            branches.target.extend(more.target)
        tail.update(code.indirect)
    pc = calls.back_from(pc_callbacks)
    cmp = calls.back_from(cmp_callbacks)
    functions = _Functions(symbols)
    tail_functions = _find_tail_functions(elf, jumps, pc_callbacks | cmp_callbacks, functions)
    if tail_functions:
        # Through these, other calls go: thunks against Spectre, and trampolines of static calls.
        tail_functions.update(
            symbol.value for symbol in symbols if symbol.name.startswith(("__x86_indirect_thunk_", "__SCT__"))
        )
        tail.update(calls.back_from(tail_functions))
        if elf.machine in (EM_X86_64, EM_386) and "__x86_indirect_thunk_array" not in functions.by_name:
            for section, text in texts:
                tail.update(_scan_x86_indirect(text, section.address))
    else:
        tail.clear()
    tail.difference_update(pc, cmp)
    return Points(array("Q", sorted(pc)), array("Q", sorted(cmp)), array("Q", sorted(tail)))


def find_points_between(elf: ElfFile, start: int, end: int) -> Points:
    """Find the points of one function or any other part of a linked image; without those behind tail calls.

    :param start: first address, as in the image.
    :param end: the address after the last one.
    :raises TargetError: when the file is damaged.
    """
    scan = _SCANNERS.get(elf.machine)
    found = Points(array("Q"), array("Q"), array("Q"))
    if scan is None or elf.is_relocatable:
        return found
    pc_callbacks, cmp_callbacks = _callbacks(elf.symbols())
    calls = scan(elf.read_at(start, end - start), start, elf.big_endian).calls
    found.pc.extend(calls.back_from(pc_callbacks))
    found.cmp.extend(calls.back_from(cmp_callbacks))
    return found


# Relocations of a call or jump: how far behind the field the next instruction starts.
_BRANCH_RELOCATIONS: Final[dict[int, dict[int, int]]] = {
    EM_X86_64: {2: 4, 4: 4},  # R_X86_64_PC32, R_X86_64_PLT32
    EM_386: {2: 4, 4: 4},  # R_386_PC32, R_386_PLT32
    EM_AARCH64: {283: 4, 282: 4},  # R_AARCH64_CALL26, R_AARCH64_JUMP26
    EM_S390: {19: 4, 20: 4},  # R_390_PC32DBL, R_390_PLT32DBL
}


def _is_call(machine: int, text: bytes, relocation: Relocation) -> bool:
    at = relocation.offset
    if machine == EM_AARCH64:
        return relocation.type == 283
    if machine == EM_S390:
        return text[at - 2 : at] == b"\xc0\xe5"
    return text[at - 1 : at] == b"\xe8"


def find_module_points(elf: ElfFile) -> dict[str, Points]:
    """Find the points of a module's object file by its relocations, without those behind tail calls.

    :return: per section of code, offsets into it.
    :raises TargetError: when the file is damaged.
    """
    lengths = _BRANCH_RELOCATIONS.get(elf.machine)
    found: dict[str, Points] = {}
    if lengths is None or not elf.is_relocatable:
        return found
    symbols = elf.symbols()
    for section in elf.text_sections():
        text = elf.read(section)
        points = Points(array("Q"), array("Q"), array("Q"))
        for relocation in sorted(elf.relocations(section)):
            length = lengths.get(relocation.type)
            if length is None or relocation.symbol >= len(symbols) or not _is_call(elf.machine, text, relocation):
                continue
            name = symbols[relocation.symbol].name
            if name.startswith(_PREFIX):
                (points.cmp if _COMPARISON.match(name) else points.pc).append(relocation.offset + length)
        found[section.name] = points
    return found
