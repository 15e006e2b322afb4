# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kernel stacks of 64-bit RISC-V by frame pointers, as the kernel walks them (arch/riscv/kernel/stacktrace.c)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from kcovdbg.elf.note import NT_PRSTATUS, Note
from kcovdbg.errors import ReadError
from kcovdbg.target.pointer import UPPER_HALF_START

# Below the address that the frame pointer holds: the caller's frame pointer, the return address.
_FRAME: Final = struct.Struct("<QQ")
# The beginning of struct pt_regs, and of the registers in a PRSTATUS note: epc, ra, sp, gp, tp, t0 to t2, s0.
_REGISTERS: Final = struct.Struct("<9Q")
_REGISTERS_OFFSET: Final = 112
_MAX_FRAMES: Final = 256
# THREAD_SIZE with KASAN, in bytes; text is farther from stacks.
_MAX_STACK: Final = 64 << 10


class StackRegisters(NamedTuple):
    """The registers from which a stack is walked."""

    pc: int
    ra: int
    fp: int
    is_interrupted: bool
    """Whether the program counter is that of an interrupted instruction, and not a return address."""


class WalkedFrame(NamedTuple):
    """A frame of a stack."""

    pc: int
    is_interrupted: bool


class ExceptionCode(NamedTuple):
    """The range of the kernel's code for exceptions: a return into it has ``struct pt_regs`` on the stack above."""

    start: int
    end: int


def find_registers(notes: Iterable[Note], cpu: int) -> StackRegisters | None:
    """Return the registers of a CPU among the notes of a dump, None where it has none."""
    found = [note.desc for note in notes if note.type == NT_PRSTATUS and note.name == "CORE"]
    if cpu >= len(found) or len(found[cpu]) < _REGISTERS_OFFSET + _REGISTERS.size:
        return None
    return _parse_registers(found[cpu][_REGISTERS_OFFSET:])


def walk_stack(
    registers: StackRegisters, exceptions: ExceptionCode, read: Callable[[int, int], bytes]
) -> Iterator[WalkedFrame]:
    """Yield the frames of a kernel stack, innermost first, up to the entry from user space, or up to what is not a frame.

    :param read: reads the kernel's memory; raises ReadError.
    """
    pc, ra, fp, is_interrupted = registers
    # Interrupts may have a stack of their own, whose outermost frame points to the other one.
    seen: set[int] = set()
    while fp not in seen and len(seen) < _MAX_FRAMES:
        yield WalkedFrame(pc, is_interrupted)
        seen.add(fp)
        if fp % 8 or fp < UPPER_HALF_START:
            return
        try:
            caller, back = _FRAME.unpack(read(fp - _FRAME.size, _FRAME.size))
            if is_interrupted and fp + _FRAME.size <= back < fp + _MAX_STACK:
                # A function that calls none has only the frame pointer on the stack.
                caller, back = back, ra
            above, fp, is_interrupted = fp, caller, False
            if exceptions.start <= back < exceptions.end:
                yield WalkedFrame(back, False)
                back, ra, fp, is_interrupted = _parse_registers(read(above, _REGISTERS.size))
        except ReadError:
            return
        pc = back


def _parse_registers(data: bytes) -> StackRegisters:
    pc, ra, *_, fp = _REGISTERS.unpack_from(data)
    return StackRegisters(pc, ra, fp, is_interrupted=True)
