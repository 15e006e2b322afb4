# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kernel stacks, which drgn unwinds. It cannot on RISC-V: there, frame pointers are followed as
arch/riscv/kernel/stacktrace.c does.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import drgn

from kcovdbg.abi.address import ReadMemory
from kcovdbg.elf.header import NT_PRSTATUS, Note, parse_notes
from kcovdbg.elf.symbol_table import demangle
from kcovdbg.errors import CapabilityError, CutStackError, ReadError, TargetError
from kcovdbg.model.memory import StackFrame
from kcovdbg.target.connection import MachineState
from kcovdbg.target.drgn.drgn_messages import WALK_ERRORS, first_line, walking
from kcovdbg.target.drgn.lines import frames_at
from kcovdbg.target.drgn.program_memory import copy_program, is_walked, physical_memory
from kcovdbg.target.drgn.program_types import ProgramTypes
from kcovdbg.target.pointer import UPPER_HALF_START, read_task_of_cpu, strip_tag


class DrgnStacks:
    """The kernel stacks of a target.

    :param read_notes: returns the notes of a dump, with the registers of its CPUs.
    """

    def __init__(self, target: ProgramTypes, read_notes: Callable[[], bytes]) -> None:
        self._target = target
        self._read_notes = read_notes
        self.current_registers: Callable[[int], Mapping[str, int] | None] | None = None
        """Returns the registers that a CPU has now, by name; None if the Program has the right
        registers.
        """

    def stack_trace(self, task: int) -> Sequence[StackFrame]:
        registers = self._find_registers(task)
        if registers is not None:
            return self.unwind(registers)
        try:
            try:
                return self._unwind(self._target.prog, task)
            except drgn.UnsupportedOperation:
                # drgn unwinds no running task of a live machine, even if the machine is stopped.
                if not self._stands_still():
                    raise
                with self._target.connection.pause() as is_stopped:
                    if not is_stopped:
                        raise
                    return self._unwind(self._copy_stopped(), task)
        except drgn.UnsupportedOperation as error:
            reason = "it is running" if "running" in str(error) else error
            raise CapabilityError(
                f"cannot unwind its stack: {reason}", hint="try again when it sleeps, or use a dump"
            ) from None

    def _stands_still(self) -> bool:
        """Return whether a live machine is stopped, or has panicked; others are not paused."""
        state = self._target.state() if self._target.live else None
        if state is None:
            return False
        return state is MachineState.STOPPED or find_panic_cpu(self._target.prog) is not None

    def _copy_stopped(self) -> drgn.Program:
        """Return a Program of a stopped machine with the registers of its CPUs, as of a dump."""
        prog = self._target.prog
        try:
            return copy_program(prog, self._read_notes(), physical_memory(prog))
        except (KeyError, TargetError) as error:
            raise CapabilityError(
                f"the registers of the guest's CPUs are unavailable: {error}"
            ) from None

    def _find_registers(self, task: int) -> Mapping[str, int] | None:
        """Return the registers of the CPU that a task runs on; None if the task does not run, or if
        the Program has the registers.
        """
        if self.current_registers is None:
            return None
        with walking(f"the CPU of task {task:#x}"):
            cpu = self._find_cpu(task)
        return None if cpu is None else self.current_registers(cpu)

    def _find_cpu(self, task: int) -> int | None:
        """Return the CPU that a task runs on, None if it does not run."""
        for cpu in self._target.cpus():
            if read_task_of_cpu(self._target, cpu, "curr") == task:
                return cpu
        return None

    def unwind(self, registers: Mapping[str, int]) -> Sequence[StackFrame]:
        """Return the kernel stack of a CPU, innermost frame first.

        :param registers: by the names of the members of ``struct pt_regs``.
        :raises CapabilityError: when it cannot be unwound.
        """
        prog = self._target.prog
        thread = drgn.Object(prog, "struct pt_regs", registers)
        return self._make_trace(prog, thread, "the CPU's stack")

    def _unwind(self, prog: drgn.Program, task: int) -> Sequence[StackFrame]:
        thread = drgn.Object(prog, "struct task_struct *", value=task)
        with walking(f"the stack of task {task:#x}"):
            # Since 68f24b08ee89 (v4.9), the saved stack pointer of a dead task leads into freed
            # memory.
            if not thread.member_("stack"):
                return ()
            if is_walked(prog):
                return self._in_kernel(self._unwind_riscv(prog, task))
        return self._make_trace(prog, thread, "its stack")

    def _make_trace(
        self, prog: drgn.Program, thread: drgn.Object, what: str
    ) -> Sequence[StackFrame]:
        try:
            trace = prog.stack_trace(thread)
        except drgn.UnsupportedOperation:
            raise
        except drgn.FaultError as error:
            raise ReadError(f"could not read {what}: {first_line(error)}", error.address) from None
        except WALK_ERRORS as error:
            # The dump has no registers of a running task's CPU.
            raise CapabilityError(f"cannot unwind {what}: {first_line(error)}") from None
        except Exception as error:
            if type(error) is not Exception:
                raise
            # libdw reports debug info that lacks a section.
            raise CapabilityError(f"cannot unwind {what}: {first_line(error)}") from None
        frames = self._in_kernel(map(self._make_frame, trace))
        # If frames were dropped, the stack reaches user space.
        if frames and len(frames) == len(trace):
            self._check_end(frames[-1], trace[len(trace) - 1], what)
        return frames

    def _check_end(self, frame: StackFrame, last: drgn.StackFrame, what: str) -> None:
        """Check that a stack does not end because memory above its last frame is unreadable, which
        drgn does not report.

        :raises CutStackError: if it does.
        """
        if is_outermost(frame):
            return
        try:
            self._target.read(last.sp, _MAX_FRAME_SIZE)
        except LookupError:
            return
        except ReadError as error:
            raise CutStackError(
                f"could not read {what} above {frame.function or hex(frame.pc)}", error.address
            ) from None

    def _unwind_riscv(self, prog: drgn.Program, task: int) -> Iterator[StackFrame]:
        """Yield the frames of a task's stack on RISC-V, innermost first.

        :raises CapabilityError: when the task runs, and the registers of its CPU are unknown.
        :raises drgn.UnsupportedOperation: when the task runs on a live kernel.
        """
        low = prog.symbol("handle_exception").address
        high = prog.symbol("ret_from_exception_end").address
        registers = self._find_riscv_registers(prog, task)
        for frame in walk_stack(registers, range(low, high), self._target.read):
            found = frames_at(prog, frame.pc if frame.is_interrupted else frame.pc - 1)
            if not found:
                function = self._name(frame.pc)
                yield StackFrame(frame.pc, function, None, None, None, False, frame.is_interrupted)
            for number, source in enumerate(found, 1):
                yield StackFrame(
                    frame.pc,
                    source.function and demangle(source.function),
                    source.file,
                    source.line,
                    source.column,
                    number < len(found),
                    frame.is_interrupted,
                )

    def _find_riscv_registers(self, prog: drgn.Program, task: int) -> StackRegisters:
        cpu = self._find_cpu(task)
        if cpu is not None:
            if prog.flags & drgn.ProgramFlags.IS_LIVE:
                # drgn raises this on other machines.
                raise drgn.UnsupportedOperation("cannot unwind stack of running task")
            found = find_registers(parse_notes(self._read_notes(), "<"), cpu)
            if found is None:
                raise CapabilityError(f"the registers of CPU {cpu} are not available")
            return found
        thread = drgn.Object(prog, "struct task_struct *", value=task).thread
        return StackRegisters(thread.ra.value_(), 0, thread.s[0].value_(), is_interrupted=False)

    def _in_kernel(self, frames: Iterable[StackFrame]) -> Sequence[StackFrame]:
        # drgn guesses the frames above the entry from user space.
        low = self._target.kernel_range[0]
        return list(itertools.takewhile(lambda frame: frame.pc >= low, frames))

    def crashed_task(self) -> int | None:
        try:
            cpu = find_panic_cpu(self._target.prog)
            if cpu is not None:
                return read_task_of_cpu(self._target, cpu, "curr")
        except (ReadError, *WALK_ERRORS):
            pass
        try:
            return strip_tag(self._target, int(self._target.prog.crashed_thread().object.value_()))
        except WALK_ERRORS:
            return None

    def _make_frame(self, frame: drgn.StackFrame) -> StackFrame:
        try:
            pc = frame.pc
        except LookupError:
            pc = 0
        function: str | None = frame.function_name or self._name(pc)
        try:
            file, line, column = frame.source()
        except LookupError:
            return StackFrame(pc, function, None, None, None, frame.is_inline, frame.interrupted)
        if file.endswith(".rs") and not frame.is_inline:
            # drgn has only the last part of the function's path.
            with suppress(LookupError):
                function = demangle(frame.symbol().name)
        column = column or None
        return StackFrame(pc, function, file, line, column, frame.is_inline, frame.interrupted)

    def _name(self, pc: int) -> str | None:
        return demangle(self._target.symbol_name(pc) or "") or None


def find_panic_cpu(prog: drgn.Program) -> int | None:
    """Return the CPU that panicked, None when none did, or the kernel does not say."""
    try:
        # Set by panic() since Linux kernel commit 1717f2096b54 ("panic, x86: Fix re-entrance
        # problem due to panic on NMI") (in v4.5). PANIC_CPU_INVALID is -1.
        cpu = int(prog["panic_cpu"].counter.value_())
    except WALK_ERRORS:
        return None
    return cpu if cpu >= 0 else None


# Limit for the bytes of a frame: kernels are built with -Wframe-larger-than=2048.
_MAX_FRAME_SIZE: Final = 2048
# The functions in which CPUs begin: the outermost ones on their stacks.
_STARTS: Final = re.compile(
    r"((common|secondary)_|x86_64_|smp_)?start\w*|__(primary|secondary)_switched"
)


def is_outermost(frame: StackFrame) -> bool:
    """Return whether a frame is the kernel's outermost one."""
    return frame.is_entry or _STARTS.fullmatch(frame.function or "") is not None


# The two words below the frame pointer: the caller's frame pointer, and the return address.
_FRAME: Final = struct.Struct("<QQ")
# The beginning of struct pt_regs, and of the registers in a PRSTATUS note: epc, ra, sp, gp, tp, t0
# to t2, s0.
_REGISTERS: Final = struct.Struct("<9Q")
_REGISTERS_OFFSET: Final = 112
_MAX_FRAMES: Final = 256
# THREAD_SIZE with KASAN, in bytes. Text is farther from a stack.
_MAX_STACK: Final = 64 << 10


class StackRegisters(NamedTuple):
    """The registers with which the walk of a stack begins."""

    pc: int
    ra: int
    fp: int
    is_interrupted: bool
    """Whether the program counter is at an interrupted instruction, and not a return address."""


class WalkedFrame(NamedTuple):
    """A frame of a stack."""

    pc: int
    is_interrupted: bool


def find_registers(notes: Iterable[Note], cpu: int) -> StackRegisters | None:
    """Return the registers of a CPU in the notes of a dump, None if it has none."""
    found = [note.desc for note in notes if note.type == NT_PRSTATUS and note.name == "CORE"]
    if cpu >= len(found) or len(found[cpu]) < _REGISTERS_OFFSET + _REGISTERS.size:
        return None
    return _parse_registers(found[cpu][_REGISTERS_OFFSET:])


def walk_stack(
    registers: StackRegisters, exceptions: range, read: ReadMemory
) -> Iterator[WalkedFrame]:
    """Yield the frames of a kernel stack, innermost first, up to the entry from user space, or up
    to damage.

    :param exceptions: the addresses of the kernel's code for exceptions. Above a return address
        into it, the stack has a ``struct pt_regs``.
    :param read: reads the kernel's memory; raises ReadError.
    """
    pc, ra, fp, is_interrupted = registers
    # The outermost frame of an interrupt's own stack points to the interrupted stack.
    seen: set[int] = set()
    while fp not in seen and len(seen) < _MAX_FRAMES:
        yield WalkedFrame(pc, is_interrupted)
        seen.add(fp)
        if fp % 8 or fp < UPPER_HALF_START:
            return
        try:
            caller, back = _FRAME.unpack(read(fp - _FRAME.size, _FRAME.size))
            if is_interrupted and fp + _FRAME.size <= back < fp + _MAX_STACK:
                # A function without calls saves only the frame pointer: its word is in the place of
                # the return address, which is still in a register.
                caller, back = back, ra
            above, fp, is_interrupted = fp, caller, False
            if back in exceptions:
                yield WalkedFrame(back, False)
                back, ra, fp, is_interrupted = _parse_registers(read(above, _REGISTERS.size))
        except ReadError:
            return
        pc = back


def _parse_registers(data: bytes) -> StackRegisters:
    pc, ra, *_, fp = _REGISTERS.unpack_from(data)
    return StackRegisters(pc, ra, fp, is_interrupted=True)
