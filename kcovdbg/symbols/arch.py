# SPDX-License-Identifier: LGPL-2.1-or-later
"""Calls and jumps of each architecture. native/branches.c searches for them by these descriptions.

Encodings are those of the architectures' manuals, as words in the order of bytes of the machine's
instructions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntFlag
from typing import Final, NamedTuple, TypeAlias

from kcovdbg.elf.header import EM_386, EM_AARCH64, EM_RISCV, EM_S390, EM_X86_64

THUNKS: Final = ("__x86_indirect_thunk_", "__s390_indirect_jump_", "__SCT__")
"""Prefixes of functions that lead to others: thunks against Spectre, and trampolines of static
calls.
"""


class BranchKind(IntFlag):
    """The kinds of branches."""

    CALL = 1
    JUMP = 2
    SHORT_JUMP = 4
    """A jump of x86 within 128 bytes: bytes that look like one are often something else."""
    INDIRECT_CALL = 8
    """Through a register or memory."""
    INDIRECT_JUMP = 16
    SWITCH_JUMP = 32
    """Through a table at a fixed address, which stays in its function."""
    CONDITIONAL = 64
    """A conditional branch with a displacement, or a conditional return or jump without one."""
    RETURN = 128
    TRAP = 256
    """An exception, always."""
    NEAR_JUMP = 512
    """A jump of s390 within 64 KiB, which compilers emit inside functions."""


class DisplacementPart(NamedTuple):
    """A part of a displacement."""

    shift: int
    """Position of its lowest bit in the instruction."""
    width: int
    place: int
    """Position of its lowest bit in the displacement."""
    is_signed: bool = False


_Parts: TypeAlias = tuple[DisplacementPart, ...]


class Form(NamedTuple):
    """One encoding of a branch."""

    kind: BranchKind
    """0 for an instruction that only looks like a branch."""
    length: int
    """In bytes."""
    mask: int
    value: int
    pieces: _Parts = ()
    """Bits of the displacement; none for a branch through a register or memory."""
    before: int = 0
    """Bytes before its last instruction, which alone is an indirect branch."""


class Architecture(NamedTuple):
    """The branches of an architecture."""

    step: int
    """Instructions are at multiples of this many bytes."""
    forms: tuple[Form, ...]
    """The first one that fits a word is right."""
    relocations: Mapping[int, int]
    """The types of relocations that calls have, with the bytes from there to the call's end."""
    is_big_endian: bool = False
    is_from_end: bool = False
    """Displacements count from the end of a branch, not from its start."""
    has_arm64_switches: bool = False
    """Switches jump by tables of offsets as native/arm64_switch.c reads them."""


_NONE: Final = BranchKind(0)


def _x86() -> Iterator[Form]:
    near = (DisplacementPart(8, 32, 0, True),)
    yield Form(BranchKind.CALL, 5, 0xFF, 0xE8, near)
    yield Form(BranchKind.JUMP, 5, 0xFF, 0xE9, near)
    yield Form(BranchKind.JUMP, 6, 0xF0FF, 0x800F, (DisplacementPart(16, 32, 0, True),))
    for mask, value in ((0xFF, 0xEB), (0xF0, 0x70)):
        yield Form(BranchKind.SHORT_JUMP, 2, mask, value, (DisplacementPart(8, 8, 0, True),))
    for kind, table, operation in (
        (BranchKind.INDIRECT_CALL, BranchKind.INDIRECT_CALL, 0x10),
        (BranchKind.INDIRECT_JUMP, BranchKind.SWITCH_JUMP, 0x20),
    ):
        # By a ModRM byte's mode; the register 4 means a SIB byte, and 5 without a displacement one
        # of 32 bits alone.
        yield Form(table, 7, 0x07FFFF, 0x0504FF | operation << 8)
        yield Form(kind, 3, 0xFFFF, 0x04FF | operation << 8)
        yield Form(kind, 6, 0xFFFF, 0x05FF | operation << 8)
        yield Form(kind, 2, 0xF8FF, 0x00FF | operation << 8)
        yield Form(kind, 4, 0xFFFF, 0x44FF | operation << 8)
        yield Form(kind, 3, 0xF8FF, 0x40FF | operation << 8)
        yield Form(kind, 7, 0xFFFF, 0x84FF | operation << 8)
        yield Form(kind, 6, 0xF8FF, 0x80FF | operation << 8)
        yield Form(kind, 2, 0xF8FF, 0xC0FF | operation << 8)


def _arm64() -> Iterator[Form]:
    displacement = (DisplacementPart(0, 26, 2, True),)
    yield Form(BranchKind.CALL, 4, 0xFC000000, 0x94000000, displacement)
    yield Form(BranchKind.JUMP, 4, 0xFC000000, 0x14000000, displacement)
    # b.cond, cbz and cbnz, tbz and tbnz.
    far, near = (DisplacementPart(5, 19, 2, True),), (DisplacementPart(5, 14, 2, True),)
    yield Form(BranchKind.CONDITIONAL, 4, 0xFF000000, 0x54000000, far)
    yield Form(BranchKind.CONDITIONAL, 4, 0x7E000000, 0x34000000, far)
    yield Form(BranchKind.CONDITIONAL, 4, 0x7E000000, 0x36000000, near)
    # ret and eret, also with authentication; brk, udf.
    for opcode in (0xD65F0000, 0xD69F0000):
        yield Form(BranchKind.RETURN, 4, 0xFFFFF000, opcode)
    yield Form(BranchKind.TRAP, 4, 0xFFE0001F, 0xD4200000)
    yield Form(BranchKind.TRAP, 4, 0xFFFF0000, 0)
    for kind, opcode in (
        (BranchKind.INDIRECT_CALL, 0xD63F0000),
        (BranchKind.INDIRECT_JUMP, 0xD61F0000),
    ):
        yield Form(kind, 4, 0xFFFFFC1F, opcode)
        # With authentication of the pointer.
        yield Form(kind, 4, 0xFEFFF800, opcode | 0x800)


def _s390() -> Iterator[Form]:
    far, near = (DisplacementPart(0, 32, 1, True),), (DisplacementPart(0, 16, 1, True),)
    # brasl and bras with %r14; jg and its conditions, of which 0 is none and 15 all.
    yield Form(BranchKind.CALL, 6, 0xFFFF << 32, 0xC0E5 << 32, far)
    yield Form(BranchKind.CALL, 4, 0xFFFF << 16, 0xA7E5 << 16, near)
    yield Form(_NONE, 6, 0xFFFF << 32, 0xC004 << 32)
    yield Form(BranchKind.JUMP, 6, 0xFFFF << 32, 0xC0F4 << 32, far)
    yield Form(BranchKind.JUMP | BranchKind.CONDITIONAL, 6, 0xFF0F << 32, 0xC004 << 32, far)
    # j and its conditions; brct and brctg, brcth; brxh and brxle; compare and branch.
    yield Form(_NONE, 4, 0xFFFF << 16, 0xA704 << 16)
    yield Form(BranchKind.NEAR_JUMP, 4, 0xFFFF << 16, 0xA7F4 << 16, near)
    for opcode in (0xA704, 0xA706, 0xA707):
        yield Form(BranchKind.CONDITIONAL, 4, 0xFF0F << 16, opcode << 16, near)
    yield Form(BranchKind.CONDITIONAL, 4, 0xFE << 24, 0x84 << 24, near)
    yield Form(BranchKind.CONDITIONAL, 6, 0xFF0F << 32, 0xCC06 << 32, far)
    for opcode in (0x44, 0x45, 0x64, 0x65, 0x76, 0x77, 0x7C, 0x7D, 0x7E, 0x7F):
        yield Form(
            BranchKind.CONDITIONAL,
            6,
            0xFF << 40 | 0xFF,
            0xEC << 40 | opcode,
            (DisplacementPart(16, 16, 1, True),),
        )
    # A jump through %r14 is a return; lpswe; a monitor call, which warnings are.
    yield Form(BranchKind.RETURN, 2, 0xFFFF, 0x07FE)
    yield Form(BranchKind.RETURN, 4, 0xFFFF << 16, 0xB2B2 << 16)
    yield Form(BranchKind.TRAP, 4, 0xFF << 24, 0xAF << 24)
    yield Form(BranchKind.TRAP, 2, 0xFFFF, 0x0001)
    # basr with %r14, and br; the register 0 is none.
    for kind, opcode in ((BranchKind.INDIRECT_CALL, 0x0DE0), (BranchKind.INDIRECT_JUMP, 0x07F0)):
        yield Form(_NONE, 2, 0xFFFF, opcode)
        yield Form(kind, 2, 0xFFF0, opcode)
    # bcr with other conditions, of which 0 is none, and bc.
    yield Form(_NONE, 2, 0xFFF0, 0x0700)
    yield Form(_NONE, 2, 0xFF0F, 0x0700)
    yield Form(BranchKind.CONDITIONAL, 2, 0xFF00, 0x0700)
    yield Form(_NONE, 4, 0xFFF0 << 16, 0x4700 << 16)
    yield Form(BranchKind.CONDITIONAL, 4, 0xFF << 24, 0x47 << 24)


# The registers that assemblers and linkers take for far calls and jumps.
_RISCV_FAR: Final = (1, 5, 6, 7)


def _join_parts(*parts: tuple[int, int, int] | tuple[int, int, int, bool]) -> _Parts:
    """Return the parts of a displacement."""
    return tuple(DisplacementPart(*part) for part in parts)


def _riscv() -> Iterator[Form]:
    near = _join_parts((21, 10, 1), (20, 1, 11), (12, 8, 12), (31, 1, 20, True))
    far = _join_parts((12, 20, 12, True), (52, 12, 0, True))
    short = _join_parts(
        (2, 1, 5), (3, 3, 1), (6, 1, 7), (7, 1, 6), (8, 1, 10), (9, 2, 8), (11, 1, 4)
    )
    # By the register that the return address is put into.
    for direct, indirect, register in (
        (BranchKind.CALL, BranchKind.INDIRECT_CALL, 1 << 7),
        (BranchKind.JUMP, BranchKind.INDIRECT_JUMP, 0),
    ):
        # auipc with jalr, and jal.
        for through in _RISCV_FAR:
            yield Form(
                direct,
                8,
                0xFFFFF << 32 | 0xFFF,
                (through << 15 | 0x67 | register) << 32 | through << 7 | 0x17,
                far,
                4,
            )
        yield Form(direct, 4, 0xFFF, 0x6F | register, near)
        # jalr, c.jr and c.jalr. A jump through ra is a return.
        long = 0x67 | register
        compressed = 0x9002 if register else 0x8002
        yield Form(_NONE, 4, 0xFFFFF, long)
        # Without a register c.jalr is c.ebreak.
        yield Form(BranchKind.TRAP if register else _NONE, 2, 0xFFFF, compressed)
        if not register:
            yield Form(BranchKind.RETURN, 4, 0xFFFFF, 1 << 15 | long)
            yield Form(BranchKind.RETURN, 2, 0xFFFF, 1 << 7 | compressed)
        yield Form(indirect, 4, 0x7FFF, long)
        yield Form(indirect, 2, 0xF07F, compressed)
    yield Form(BranchKind.JUMP, 2, 0xE003, 0xA001, (*short, DisplacementPart(12, 1, 11, True)))
    # beq and others; c.beqz and c.bnez; sret, mret and ebreak; unimp.
    long_parts = _join_parts((31, 1, 12, True), (25, 6, 5), (8, 4, 1), (7, 1, 11))
    yield Form(BranchKind.CONDITIONAL, 4, 0x7F, 0x63, long_parts)
    short_parts = _join_parts((12, 1, 8, True), (10, 2, 3), (5, 2, 6), (3, 2, 1), (2, 1, 5))
    for opcode in (0xC001, 0xE001):
        yield Form(BranchKind.CONDITIONAL, 2, 0xE003, opcode, short_parts)
    for word in (0x10200073, 0x30200073):
        yield Form(BranchKind.RETURN, 4, 0xFFFFFFFF, word)
    for word in (0x00100073, 0xC0001073):
        yield Form(BranchKind.TRAP, 4, 0xFFFFFFFF, word)
    yield Form(BranchKind.TRAP, 2, 0xFFFF, 0)


# R_X86_64_PC32 and R_X86_64_PLT32, which jumps have as well.
_X86: Final = Architecture(1, tuple(_x86()), {2: 4, 4: 4}, is_from_end=True)
ARCHITECTURES: Final = {
    EM_X86_64: _X86,
    EM_386: _X86,
    # R_AARCH64_CALL26.
    EM_AARCH64: Architecture(4, tuple(_arm64()), {283: 4}, has_arm64_switches=True),
    # R_390_PC32DBL and R_390_PLT32DBL.
    EM_S390: Architecture(2, tuple(_s390()), {19: 4, 20: 4}, is_big_endian=True),
    # R_RISCV_JAL, R_RISCV_CALL and R_RISCV_CALL_PLT.
    EM_RISCV: Architecture(2, tuple(_riscv()), {17: 4, 18: 8, 19: 8}),
}
"""The known architectures, by the machine of an ELF file."""
