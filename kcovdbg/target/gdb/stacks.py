# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kernel stacks in GDB, which knows the CPUs as threads, and no tasks."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Final

import gdb
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import EM_AARCH64
from kcovdbg.elf.note import NT_PRSTATUS
from kcovdbg.errors import CapabilityError, KcovdbgError, MissingSymbolError, MissingTypeError, ReadError
from kcovdbg.model.location import Frame
from kcovdbg.model.memory import StackFrame
from kcovdbg.target.frame_record_walk import FrameRecordWalk
from kcovdbg.target.gdb.dwarf_walk import DwarfWalk
from kcovdbg.target.gdb.stub import Stub
from kcovdbg.target.orc_tables import OrcTables
from kcovdbg.target.pointer import check_pointer, read_pointer
from kcovdbg.target.protocol import Target
from kcovdbg.target.stack_walk import SAVED, Registers, StackWalk, UnwoundFrame
from kcovdbg.target.struct_layout import BlockLayout
from kcovdbg.target.stub_registers import PRSTATUS_REGISTERS

_TASK: Final = "struct task_struct"
_INT: Final = 4
_THREAD_MASK: Final = 0xFFFF_FFFF
_KGDB_CPU: Final = _THREAD_MASK - 1


class _X86Stacks:
    """Stacks of x86-64, unwound by ORC, or by GDB where the kernel has no ORC tables.

    :raises MissingSymbolError: when the kernel has neither ORC tables nor call frame information.
    :raises MissingTypeError: when the debug info lacks the types of tasks.
    """

    names: Final = (*SAVED, "rip", "rsp")
    core_names: Final = (*SAVED, "orig_rax", "rip", "cs", "eflags", "rsp", "ss")

    def __init__(
        self,
        target: Target,
        image: ElfFile,
        address_in_gdb: Callable[[int], int],
        frames_at: Callable[[int], Sequence[Frame]],
    ) -> None:
        self._target = target
        self.note: str | None = None
        self.unwind: Callable[..., Iterator[UnwoundFrame]]
        try:
            self.unwind = StackWalk(target, OrcTables(target, image)).unwind
        except (MissingSymbolError, ReadError) as error:
            self.unwind = DwarfWalk(target, image, address_in_gdb, frames_at).unwind
            self.note = f"stacks are unwound by GDB: {error}"
        self._saved_stack = target.member(_TASK, "thread.sp").offset
        saved = {"rip": ("ret_addr",), "rbp": ("bp",), "rbx": ("bx",)}
        saved |= {name: (name,) for name in ("r12", "r13", "r14", "r15")}
        self._frame = BlockLayout(target, "struct inactive_task_frame", saved)
        for name in self._frame.names:
            self._frame.offset(name)

    def saved_registers(self, task: int) -> Registers:
        """Return the registers of a task that is on no CPU."""
        sp = read_pointer(self._target, task + self._saved_stack)
        check_pointer(self._target, sp, "the stack of a task")
        values = dict(zip(self._frame.names, self._frame.read(self._target, sp), strict=True))
        return {**values, "rsp": sp + self._frame.size}


class _Arm64Stacks:
    """Stacks of arm64, unwound by frame records.

    :raises MissingSymbolError: when the kernel has no text.
    :raises MissingTypeError: when the debug info lacks the types of tasks.
    """

    names: Final = ("pc", "x29", "x30")
    core_names: Final = (*(f"x{number}" for number in range(31)), "sp", "pc", "pstate")

    note: str | None = None

    def __init__(self, target: Target) -> None:
        self._target = target
        self.unwind = FrameRecordWalk(target).unwind
        self._saved = BlockLayout(target, _TASK, {"pc": ("thread.cpu_context.pc",), "x29": ("thread.cpu_context.fp",)})
        for name in self._saved.names:
            self._saved.offset(name)

    def saved_registers(self, task: int) -> Registers:
        """Return the registers of a task that is on no CPU."""
        return dict(zip(self._saved.names, self._saved.read(self._target, task), strict=True))


class GdbStacks:
    """Kernel stacks: GDB by itself knows neither tasks nor the kernel's entry code.

    :param target: the kernel.
    :param image: its vmlinux.
    :param address_in_gdb: returns the address in GDB's symbols of one in the kernel.
    :param frames_at: returns the functions that an instruction is in, innermost first.
    :param core: the core that GDB reads, None on a connection.
    :param stub: what GDB is connected to, None without a stub.
    :raises MissingSymbolError: when the kernel lacks what unwinding needs.
    :raises MissingTypeError: when the debug info lacks the types of tasks.
    """

    def __init__(
        self,
        target: Target,
        image: ElfFile,
        address_in_gdb: Callable[[int], int],
        frames_at: Callable[[int], Sequence[Frame]],
        core: ElfFile | None,
        stub: Stub | None,
    ) -> None:
        self._target = target
        self._frames_at = frames_at
        self._core = core
        self._stub = stub
        self._machine: _X86Stacks | _Arm64Stacks
        if image.header.machine == EM_AARCH64:
            self._machine = _Arm64Stacks(target)
        else:
            self._machine = _X86Stacks(target, image, address_in_gdb, frames_at)
        self.note = self._machine.note
        self._stack = target.member(_TASK, "stack").offset

    def stack_trace(self, task: int) -> Sequence[StackFrame]:
        """Return a task's kernel stack, innermost frame first; a dead task has none.

        :param task: ``struct task_struct *``.
        :raises CapabilityError: when it runs and the registers of its CPU are unknown.
        :raises ReadError: when the task cannot be read.
        """
        cpu = self._running.get(task)
        # Since 68f24b08ee89 (v4.9), the saved stack pointer of a dead task leads into freed memory.
        if cpu is None and not read_pointer(self._target, task + self._stack):
            return ()
        registers = self._machine.saved_registers(task) if cpu is None else self._find_registers(task, cpu)
        places = self._machine.unwind(registers, is_interrupted=cpu is not None)
        return [frame for place in places for frame in self._make_frames(place.pc, place.instruction)]

    def find_callers(self) -> Sequence[StackFrame] | None:
        """Return the callers of the function that GDB's thread is stopped in; None where GDB's own frames have them.

        They do not on arm64: return addresses are signed, and QEMU's stub may not name the bits of the signature.
        """
        if not isinstance(self._machine, _Arm64Stacks):
            return None
        registers = _read_newest_registers(self._machine.names)
        _, *places = self._machine.unwind(registers, is_interrupted=True)
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
                found[read_pointer(self._target, self._target.per_cpu("runqueues", cpu) + offset)] = cpu
        except KcovdbgError:
            # Then its saved frame is an old one.
            pass
        return found

    def _find_registers(self, task: int, cpu: int) -> Registers:
        try:
            if self._core is None:
                # QEMU numbers CPUs from 1; kgdb from -2 downwards, and tasks by their ids.
                thread = _KGDB_CPU - cpu if self._stub is Stub.KGDB else cpu + 1
                return _read_registers(thread, self._machine.names)
            notes = [note for note in self._core.notes if note.type == NT_PRSTATUS and note.name == "CORE"]
            names = self._machine.core_names
            values = struct.unpack_from(f"<{len(names)}Q", notes[cpu].desc, PRSTATUS_REGISTERS)
            return dict(zip(names, values, strict=True))
        except (IndexError, LookupError, gdb.error, struct.error):
            raise CapabilityError(
                f"cannot unwind the stack of task {task:#x}: the registers of CPU {cpu} are not available"
            ) from None


def _read_registers(number: int, names: Sequence[str]) -> Registers:
    """Read the registers of a thread of a stub.

    :raises LookupError: when it has no such thread.
    """
    selected = gdb.selected_thread()
    frame = gdb.selected_frame() if selected is not None else None
    thread = next((one for one in gdb.selected_inferior().threads() if one.ptid[1] & _THREAD_MASK == number), None)
    if thread is None:
        raise LookupError(number)
    try:
        thread.switch()
        return _read_newest_registers(names)
    finally:
        if selected is not None and frame is not None:
            selected.switch()
            frame.select()


def _read_newest_registers(names: Sequence[str]) -> Registers:
    newest = gdb.newest_frame()
    return {name: int(newest.read_register(name)) & (1 << 64) - 1 for name in names}


def find_stacks(
    target: Target,
    image: ElfFile,
    address_in_gdb: Callable[[int], int],
    frames_at: Callable[[int], Sequence[Frame]],
    core: ElfFile | None,
    stub: Stub | None,
) -> GdbStacks | None:
    """Return the stacks of a target, None when the kernel or its debug info lacks what unwinding needs."""
    try:
        return GdbStacks(target, image, address_in_gdb, frames_at, core, stub)
    except (MissingSymbolError, MissingTypeError, ReadError):
        return None
