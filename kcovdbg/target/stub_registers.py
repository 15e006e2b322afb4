# SPDX-License-Identifier: LGPL-2.1-or-later
"""The general registers in a stub's ``g`` packet, decoded for ``struct pt_regs`` and ELF notes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kcovdbg.elf.header import EM_AARCH64, EM_X86_64

PtRegs = Mapping[str, Any]
"""Values of the members of ``struct pt_regs``."""

# struct elf_prstatus of 64-bit machines has pr_pid, pr_reg, and pr_fpvalid at its end.
_PID_OFFSET: Final = 32
PRSTATUS_REGISTERS: Final = 112
"""Offset of pr_reg, which has the layout of ``struct pt_regs`` on x86-64, and of ``struct
user_pt_regs`` on arm64.
"""
# Size of pr_fpvalid, aligned.
_TAIL: Final = 8


class StubRegisters(NamedTuple):
    """The registers of a machine, and their decoder."""

    names: tuple[str, ...]
    """GDB's names of the registers, in the order of its packet; empty for an unknown machine."""
    packet: struct.Struct
    """The start of its ``g`` packet, with the registers that unwinding needs."""
    pc: str
    """The program counter's member of ``struct pt_regs``."""
    make_pt_regs: Callable[[tuple[int, ...]], dict[str, Any]]
    prstatus: tuple[str, ...]
    """The registers of pr_reg, in GDB's names; "0" stands for a register that the stub lacks."""
    stops_before_write: bool
    """Whether a watchpoint stops a CPU before the instruction that writes; otherwise after it."""

    def pack(self, values: Sequence[int]) -> bytes:
        """Return registers as a stub sends them.

        :param values: of :attr:`names`.
        """
        return self.packet.pack(*values)

    def _unpack(self, registers: bytes) -> tuple[int, ...]:
        if len(registers) < self.packet.size:
            return ()
        return self.packet.unpack_from(registers)

    def parse(self, registers: bytes) -> PtRegs:
        """Return registers as members of ``struct pt_regs``.

        :param registers: as a stub sends them.
        :return: nothing if the packet is too short.
        """
        values = self._unpack(registers)
        return self.make_pt_regs(values) if values else {}

    def find_pc(self, registers: bytes) -> int:
        """Return the program counter, 0 when it is unknown."""
        return int(self.parse(registers).get(self.pc, 0))

    def parse_before(self, registers: bytes) -> PtRegs:
        """Return registers as :meth:`parse` does, with the program counter in the instruction
        before it.
        """
        found = self.parse(registers)
        if not found:
            return {}
        return {**found, self.pc: found[self.pc] - 1}

    def make_prstatus(self, cpu: int, registers: bytes) -> bytes | None:
        """Return the ``struct elf_prstatus`` of a CPU as in QEMU's dumps, None when the registers
        are unknown.
        """
        values = self._unpack(registers)
        if not values:
            return None
        named = dict(zip(self.names, values, strict=True))
        words = [named.get(name, 0) for name in self.prstatus]
        status = bytearray(PRSTATUS_REGISTERS + 8 * len(words) + _TAIL)
        # QEMU numbers CPUs from 1 in its dumps.
        struct.pack_into("<I", status, _PID_OFFSET, cpu + 1)
        struct.pack_into(f"<{len(words)}Q", status, PRSTATUS_REGISTERS, *words)
        return bytes(status)


_X86_NAMES: Final = tuple(
    "rax rbx rcx rdx rsi rdi rbp rsp r8 r9 r10 r11 r12 r13 r14 r15 rip eflags cs ss ds es fs "
    "gs".split()
)
_X86_PT_REGS: Final = tuple(
    "ax bx cx dx si di bp sp r8 r9 r10 r11 r12 r13 r14 r15 ip flags".split()
)
# struct user_regs_struct; unwinding does not use orig_rax, fs_base and gs_base.
_X86_PRSTATUS: Final = tuple(
    "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi 0 rip cs eflags rsp ss 0 0 ds "
    "es fs gs".split()
)
_ARM64_NAMES: Final = (*(f"x{number}" for number in range(31)), "sp", "pc", "cpsr")
_MACHINES: Final = {
    EM_X86_64: StubRegisters(
        _X86_NAMES,
        struct.Struct("<17Q7I"),
        "ip",
        lambda values: dict(zip(_X86_PT_REGS, values, strict=False)),
        _X86_PRSTATUS,
        stops_before_write=False,
    ),
    # The packet has the layout of struct user_pt_regs, but the last register has 4 bytes.
    EM_AARCH64: StubRegisters(
        _ARM64_NAMES,
        struct.Struct("<33QI"),
        "pc",
        lambda values: {
            "regs": values[:31],
            "sp": values[31],
            "pc": values[32],
            "pstate": values[33],
        },
        _ARM64_NAMES,
        stops_before_write=True,
    ),
}
_UNKNOWN: Final = StubRegisters(
    (), struct.Struct(""), "", lambda _: {}, (), stops_before_write=False
)


def stub_registers_of(machine: int) -> StubRegisters:
    """Return the registers of a machine, without any for an unknown machine.

    :param machine: ``e_machine``.
    """
    return _MACHINES.get(machine, _UNKNOWN)
