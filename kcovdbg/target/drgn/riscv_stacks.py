# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kernel stacks of RISC-V, which drgn does not unwind, by frame pointers, as the kernel walks them
(arch/riscv/kernel/stacktrace.c).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import drgn
from drgn.helpers.linux.cpumask import for_each_possible_cpu
from drgn.helpers.linux.sched import cpu_curr

from kcovdbg.elf.header import NT_PRSTATUS, Note, parse_notes
from kcovdbg.errors import CapabilityError, ReadError
from kcovdbg.model.memory import StackFrame
from kcovdbg.target.drgn.lines import frames_at
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


class FramePointerUnwinder:
    """Walks the frame pointers of tasks.

    :param read_notes: returns the notes of a dump, with the registers of its CPUs.
    :param symbol_name: returns the name of the symbol that an address is in.
    """

    def __init__(self, read_notes: Callable[[], bytes], symbol_name: Callable[[int], str | None]) -> None:
        self._read_notes = read_notes
        self._symbol_name = symbol_name

    def unwind(self, prog: drgn.Program, task: int) -> Iterator[StackFrame]:
        """Yield the frames of a task's stack, innermost first.

        :param prog: of the kernel.
        :param task: ``struct task_struct *``.
        :raises CapabilityError: when it runs, and the registers of its CPU are unknown.
        :raises drgn.UnsupportedOperation: when it runs on a live kernel.
        """
        low, high = (prog.symbol(name).address for name in ("handle_exception", "ret_from_exception_end"))

        def read(address: int, count: int) -> bytes:
            try:
                data: bytes = prog.read(address, count)
                return data
            except drgn.FaultError as error:
                raise ReadError(str(error), error.address) from None

        for frame in walk_stack(self._find_registers(prog, task), ExceptionCode(low, high), read):
            yield from self._frames_of(prog, frame)

    def _find_registers(self, prog: drgn.Program, task: int) -> StackRegisters:
        for cpu in for_each_possible_cpu(prog):
            if int(cpu_curr(prog, cpu)) == task:
                if prog.flags & drgn.ProgramFlags.IS_LIVE:
                    # As drgn refuses it on other machines.
                    raise drgn.UnsupportedOperation("cannot unwind stack of running task")
                found = find_registers(parse_notes(self._read_notes(), "<"), cpu)
                if found is None:
                    raise CapabilityError(f"the registers of CPU {cpu} are not available")
                return found
        thread = drgn.Object(prog, "struct task_struct *", value=task).thread
        return StackRegisters(thread.ra.value_(), 0, thread.s[0].value_(), is_interrupted=False)

    def _frames_of(self, prog: drgn.Program, frame: WalkedFrame) -> Iterator[StackFrame]:
        found = frames_at(prog, frame.pc if frame.is_interrupted else frame.pc - 1)
        if not found:
            yield StackFrame(frame.pc, self._symbol_name(frame.pc), None, None, None, False)
        for number, place in enumerate(found, 1):
            yield StackFrame(frame.pc, place.function, place.file, place.line, place.column, number < len(found))
