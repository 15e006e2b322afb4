# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kernel stacks of RISC-V, which drgn does not unwind."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import drgn
from drgn.helpers.linux.cpumask import for_each_possible_cpu
from drgn.helpers.linux.sched import cpu_curr

from kcovdbg.elf.note import parse_notes
from kcovdbg.errors import CapabilityError, ReadError
from kcovdbg.model.memory import StackFrame
from kcovdbg.target.drgn.lines import frames_at
from kcovdbg.target.frame_pointers import ExceptionCode, StackRegisters, WalkedFrame, find_registers, walk_stack


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
