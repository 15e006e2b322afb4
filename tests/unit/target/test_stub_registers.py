# SPDX-License-Identifier: LGPL-2.1-or-later
"""Registers of a stub as members of structures of the kernel and of a core."""

from __future__ import annotations

import struct

from kcovdbg.elf.header import EM_AARCH64, EM_S390, EM_X86_64
from kcovdbg.target.stub_registers import stub_registers_of

ARM64 = struct.pack(
    "<33QI",
    *(0xA0 + number for number in range(31)),
    0xFFFF_8000_8123_0000,
    0xFFFF_8000_8001_0004,
    0x8000_03C5,
)
X86 = struct.pack("<17Q7I", *range(100, 117), 0x246, 0x10, 0x18, 0, 0, 0, 0)


def test_arm64() -> None:
    registers = stub_registers_of(EM_AARCH64)
    found = registers.parse(ARM64)
    assert (found["regs"][0], found["regs"][30], found["sp"]) == (
        0xA0,
        0xA0 + 30,
        0xFFFF_8000_8123_0000,
    )
    assert (found["pc"], found["pstate"]) == (0xFFFF_8000_8001_0004, 0x8000_03C5)
    assert registers.find_pc(ARM64) == 0xFFFF_8000_8001_0004
    assert registers.parse_before(ARM64)["pc"] == 0xFFFF_8000_8001_0003
    # struct elf_prstatus has 392 bytes there: at 112 x0 to x30, sp, pc, pstate.
    status = registers.make_prstatus(3, ARM64)
    assert status is not None
    assert len(status) == 392
    assert struct.unpack_from("<I", status, 32) == (4,)
    assert struct.unpack_from("<34Q", status, 112) == (
        *found["regs"],
        found["sp"],
        found["pc"],
        found["pstate"],
    )


def test_x86_64() -> None:
    registers = stub_registers_of(EM_X86_64)
    found = registers.parse(X86)
    assert (found["ax"], found["bx"], found["sp"], found["r15"], found["ip"]) == (
        100,
        101,
        107,
        115,
        116,
    )
    assert registers.parse_before(X86)["ip"] == registers.find_pc(X86) - 1 == 115
    status = registers.make_prstatus(0, X86)
    assert status is not None
    assert len(status) == 336
    # struct user_regs_struct: r15 is first, rip the 17th, rsp the 20th.
    words = struct.unpack_from("<27Q", status, 112)
    assert (words[0], words[10], words[16], words[19]) == (115, 100, 116, 107)


def test_unknown_registers() -> None:
    for registers, data in (
        (stub_registers_of(EM_S390), X86),
        (stub_registers_of(EM_X86_64), b""),
        (stub_registers_of(EM_AARCH64), ARM64[:-1]),
    ):
        assert registers.parse(data) == {}
        assert registers.parse_before(data) == {}
        assert registers.find_pc(data) == 0
        assert registers.make_prstatus(0, data) is None
    assert stub_registers_of(EM_S390).names == ()
