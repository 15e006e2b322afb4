# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kernel stacks in GDB, which knows the CPUs as threads, and no tasks."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final

import gdb
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.note import NT_PRSTATUS
from kcovdbg.errors import CapabilityError, KcovdbgError, MissingSymbolError, MissingTypeError, ReadError
from kcovdbg.model.location import Frame
from kcovdbg.model.memory import StackFrame
from kcovdbg.target.orc_tables import OrcTables
from kcovdbg.target.pointer import check_pointer, read_word
from kcovdbg.target.protocol import Target
from kcovdbg.target.stack_walk import SAVED, Registers, StackWalk
from kcovdbg.target.struct_layout import BlockLayout

_TASK: Final = "struct task_struct"
_FRAME: Final = "struct inactive_task_frame"
# struct elf_prstatus: pr_reg, laid out as struct pt_regs.
_CORE_REGISTERS: Final = struct.Struct("<112x21Q")
_NAMES: Final = (*SAVED, "orig_rax", "rip", "cs", "eflags", "rsp", "ss")
_INT: Final = 4


class GdbStacks:
    """Kernel stacks of x86-64, unwound by ORC: GDB's own unwinder knows neither tasks nor the kernel's entry code.

    :param target: the kernel.
    :param image: its vmlinux.
    :param frames_at: returns the functions that an instruction is in, innermost first.
    :param core: the core that GDB reads, None on a connection.
    :raises MissingSymbolError: when the kernel has no ORC tables.
    :raises MissingTypeError: when the debug info lacks the types of tasks.
    """

    def __init__(
        self, target: Target, image: ElfFile, frames_at: Callable[[int], Sequence[Frame]], core: ElfFile | None
    ) -> None:
        self._target = target
        self._frames_at = frames_at
        self._core = core
        self._walk = StackWalk(target, OrcTables(target, image))
        self._saved_stack = target.member(_TASK, "thread.sp").offset
        self._frame = BlockLayout(
            target, _FRAME, {"rip": ("ret_addr",), "rbp": ("bp",), **{name: (name,) for name in ("r12", "r13", "r14", "r15")}}
        )
        for name in self._frame.names:
            self._frame.offset(name)

    def stack_trace(self, task: int) -> Sequence[StackFrame]:
        """Return a task's kernel stack, innermost frame first.

        :param task: ``struct task_struct *``.
        :raises CapabilityError: when it runs and the registers of its CPU are unknown.
        :raises ReadError: when the task cannot be read.
        """
        cpu = self._running.get(task)
        if cpu is None:
            sp = read_word(self._target, task + self._saved_stack)
            check_pointer(self._target, sp, "the stack of a task")
            values = dict(zip(self._frame.names, self._frame.read(self._target, sp), strict=True))
            registers: Registers = {**values, "rsp": sp + self._frame.size}
        else:
            registers = self._find_registers(task, cpu)
        places = self._walk.unwind(registers, is_interrupted=cpu is not None)
        return [frame for place in places for frame in self._make_frames(place.pc, place.instruction)]

    def _make_frames(self, pc: int, instruction: int) -> Sequence[StackFrame]:
        found = self._frames_at(instruction)
        if not found:
            return (StackFrame(pc, self._target.symbol_name(pc), None, None, None, False),)
        return [
            StackFrame(pc, frame.function, frame.file, frame.line, frame.column, number < len(found))
            for number, frame in enumerate(found, 1)
        ]

    def crashed_task(self) -> int | None:
        """Return the ``struct task_struct *`` that crashed the kernel, None when none did."""
        # Set by panic() (in v4.5), and by crash_kexec(). -1 is none.
        for name in ("panic_cpu", "crashing_cpu"):
            try:
                data = self._target.read(self._target.symbol(name).address, _INT)
            except (MissingSymbolError, ReadError):
                continue
            cpu = int.from_bytes(data, "little", signed=True)
            found = next((task for task, number in self._running.items() if number == cpu), None)
            if found is not None:
                return found
        return None

    @cached_property
    def _running(self) -> dict[int, int]:
        """The CPU of each task that is on one."""
        found: dict[int, int] = {}
        try:
            offset = self._target.member("struct rq", "curr").offset
            for cpu in self._target.cpus():
                found[read_word(self._target, self._target.per_cpu("runqueues", cpu) + offset)] = cpu
        except KcovdbgError:
            # Then its saved frame is an old one.
            pass
        return found

    def _find_registers(self, task: int, cpu: int) -> Registers:
        try:
            if self._core is None:
                return _read_registers(cpu)
            notes = [note for note in self._core.notes if note.type == NT_PRSTATUS and note.name == "CORE"]
            return dict(zip(_NAMES, _CORE_REGISTERS.unpack_from(notes[cpu].desc), strict=True))
        except (IndexError, LookupError, gdb.error, struct.error):
            raise CapabilityError(
                f"cannot unwind the stack of task {task:#x}: the registers of CPU {cpu} are not available"
            ) from None


def _read_registers(cpu: int) -> Registers:
    """Read a CPU's registers from a stub, which numbers CPUs from 1.

    :raises LookupError: when it has no such CPU.
    """
    selected = gdb.selected_thread()
    frame = gdb.selected_frame() if selected is not None else None
    thread = next((one for one in gdb.selected_inferior().threads() if one.ptid[1] - 1 == cpu), None)
    if thread is None:
        raise LookupError(cpu)
    try:
        thread.switch()
        newest = gdb.newest_frame()
        return {name: int(newest.read_register(name)) & (1 << 64) - 1 for name in (*SAVED, "rip", "rsp")}
    finally:
        if selected is not None and frame is not None:
            selected.switch()
            frame.select()


def find_stacks(
    target: Target, image: ElfFile, frames_at: Callable[[int], Sequence[Frame]], core: ElfFile | None
) -> GdbStacks | None:
    """Return the stacks of a target, None when the kernel or its debug info lacks what unwinding needs."""
    try:
        return GdbStacks(target, image, frames_at, core)
    except (MissingSymbolError, MissingTypeError, ReadError):
        return None
