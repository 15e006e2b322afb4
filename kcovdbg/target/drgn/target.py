# SPDX-License-Identifier: LGPL-2.1-or-later
"""A kernel that drgn reads: a crash dump, /proc/kcore, a QEMU guest, or memory by a reader of kcovdbg."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

import drgn
from drgn.helpers.linux.boot import kaslr_offset
from drgn.helpers.linux.cpumask import for_each_possible_cpu
from drgn.helpers.linux.percpu import per_cpu_ptr
from drgn.helpers.linux.pid import find_task
from drgn.helpers.linux.sched import cpu_curr

from kcovdbg.abi.address import word_mask
from kcovdbg.elf.header import NT_PRSTATUS, parse_notes, parse_vmcoreinfo
from kcovdbg.errors import CapabilityError, GoneError, MissingSymbolError, MissingTypeError, ReadError
from kcovdbg.model.memory import StackFrame
from kcovdbg.target.connection import Connection, MachineState
from kcovdbg.target.drgn.kernel_memory import UPPER_HALF, exclude_per_cpu_data, is_walked
from kcovdbg.target.drgn.lines import DrgnLines
from kcovdbg.target.drgn.program_types import ProgramTypes
from kcovdbg.target.drgn.riscv_stacks import FramePointerUnwinder
from kcovdbg.target.dump_file import working_path
from kcovdbg.target.mappings import MappingWalk, find_mappings
from kcovdbg.target.page_array import find_page_array
from kcovdbg.target.pointer import UPPER_HALF_START, find_pointer_tag, strip_tag
from kcovdbg.target.slab_memory import SlabWalk, find_slab_memory
from kcovdbg.target.vmalloc_areas import VmallocWalk, find_vmalloc_areas

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from kcovdbg.target.watchpoints import Watchpoints

    StoppedProgram = Callable[[], AbstractContextManager[drgn.Program]]
    CurrentRegisters = Callable[[int], Mapping[str, int] | None]

# What drgn's helpers raise when they walk damaged or missing memory.
_WALK_ERRORS: Final = (
    drgn.FaultError,
    drgn.ObjectAbsentError,
    drgn.OutOfBoundsError,
    drgn.helpers.ValidationError,
    AttributeError,
    LookupError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
)


# What drgn raises for the memory or the QMP connection of a QEMU that has ended.
_GONE_ERRORS: Final = (ProcessLookupError, ConnectionError)


class DrgnTarget(ProgramTypes):
    """A :class:`~kcovdbg.target.protocol.Target` over a drgn Program.

    Types and symbols are cached. Only one thread at a time may use it, as with any Program.

    :param prog: with the kernel's debug info loaded.
    :param name: what messages call it.
    :param live: whether the kernel runs while it is read.
    :param notes: for the user, on how it was opened.
    :param connection: what it is read through; None for a Program that is only read.
    :param stopped: stops the machine and yields a Program of it with the registers of its CPUs, for a target whose Program has
        none; None where that is not possible.
    :param code: path of the stripped image that has the kernel's code, None where the image with debug info has it.
    """

    memory_problem: str | None = None

    @property
    def files(self) -> Iterator[str]:
        """The files that are read: the dump, and the debug info of the kernel and of modules."""
        yield from self.connection.files
        if self.prog.core_dump_path is not None:
            yield self.prog.core_dump_path
        for module in self.prog.modules():
            yield from filter(None, map(working_path, (module.debug_file_path, module.loaded_file_path)))

    def __init__(
        self,
        prog: drgn.Program,
        name: str,
        live: bool,
        notes: Sequence[str] = (),
        connection: Connection | None = None,
        stopped: StoppedProgram | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(prog)
        platform = prog.platform
        assert platform is not None
        self.name = name
        self.live = live
        self.notes: Sequence[str] = tuple(notes)
        self.damage: Sequence[str] = ()
        self.connection = connection or Connection()
        self.code = code
        exclude_per_cpu_data(prog)
        self.kernel_range = _find_kernel_range(prog, platform, self.word_size)
        self.kaslr_offset = int(kaslr_offset(prog))
        self.release = prog["UTS_RELEASE"].string_().decode(errors="backslashreplace")
        self.machine = _find_machine(prog, platform)
        self.build_id = _find_build_id(prog)
        unwinder = FramePointerUnwinder(self.connection.read_notes, self.symbol_name) if is_walked(prog) else None
        self.stacks = DrgnStacks(
            prog,
            self.symbol_name,
            lambda task: strip_tag(self, task),
            self.kernel_range,
            self._program_with_registers,
            unwinder,
        )
        self.lines = DrgnLines(prog)
        self.watchpoints: Watchpoints | None = None
        """Of a machine that stops at them."""
        # Called most often by the walkers.
        self._stopped = stopped
        self.read_count = 0
        self._read: Callable[[int, int], bytes] = prog.read
        self._per_cpu: dict[tuple[str, int], int] = {}
        self._cpus: tuple[int, ...] | None = None
        self._tasks: dict[int, int] = {}

    @cached_property
    def pointer_tag(self) -> int:
        """The bits of a pointer that are a tag; 0 in kernels without tags."""
        return find_pointer_tag(self)

    @cached_property
    def vmas(self) -> MappingWalk | None:
        """The mappings of user address spaces."""
        return find_mappings(self)

    @cached_property
    def vmalloc(self) -> VmallocWalk | None:
        """The vmalloc areas."""
        return find_vmalloc_areas(self)

    @cached_property
    def slab(self) -> SlabWalk | None:
        """The slab caches."""
        return find_slab_memory(self, find_page_array(self))

    def forget(self) -> None:
        """Forget what was kept of memory that stood still: the machine has run."""
        vars(self).pop("slab", None)

    def close(self) -> None:
        """Close the connection: a machine behind a GDB stub continues. Done at exit as well."""
        self.connection.close()

    def state(self) -> MachineState | None:
        """Ask what the machine does at the moment; None for a dump."""
        return self.connection.state()

    def _program_with_registers(self) -> AbstractContextManager[drgn.Program] | None:
        """Return what yields a Program with the CPUs' registers, None for a machine that runs and has not panicked."""
        if self._stopped is None or (self.state() is not MachineState.STOPPED and find_panic_cpu(self.prog) is None):
            return None
        return self._stopped()

    def stop_note(self) -> str | None:
        """Return a note on who stopped the machine before kcovdbg connected to it; None while it runs."""
        return self.connection.stop_note()

    def resume(self) -> str | None:
        """Let a machine go on that an ended run of kcovdbg left stopped; return a note for the user.

        :raises TargetError: when none did.
        """
        return self.connection.resume()

    def leave_stopped(self, reason: str) -> str | None:
        """Leave a machine that kcovdbg stopped so when the target is closed; return a note for the user."""
        return self.connection.leave_stopped(reason)

    def is_gone(self) -> bool:
        """Return whether the machine has ended, without asking it."""
        return self.connection.is_gone()

    def read(self, address: int, size: int) -> bytes:
        """Read virtual memory of the kernel.

        :raises ReadError: when any of it cannot be read.
        :raises GoneError: when the machine has ended.
        """
        self.read_count += 1
        try:
            return self._read(address, size)
        except drgn.FaultError as error:
            raise ReadError(f"could not read {size} bytes at {address:#x}", error.address) from None
        except _GONE_ERRORS:
            raise GoneError(self.name) from None
        except (OverflowError, ValueError, MemoryError):
            # A size or an address that no address space has.
            raise ReadError(f"could not read {size} bytes at {address:#x}", address) from None

    def cpus(self) -> Sequence[int]:
        """Return the possible CPUs.

        :raises ReadError: when their mask cannot be read.
        """
        if self._cpus is None:
            with _walking("the mask of possible CPUs"):
                self._cpus = tuple(for_each_possible_cpu(self.prog))
        return self._cpus

    def assume_cpus(self) -> str | None:
        """Where the mask of possible CPUs is missing, assume those whose registers the dump has, and return a line on it."""
        try:
            self.cpus()
        except ReadError:
            notes = parse_notes(self.connection.read_notes(), ">" if self.big_endian else "<")
            self._cpus = tuple(range(sum(note.type == NT_PRSTATUS and note.name == "CORE" for note in notes)))
            return f"the mask of possible CPUs is missing: assuming {len(self._cpus)}, by the registers in the dump"
        return None

    def per_cpu(self, name: str, cpu: int) -> int:
        """Return the address of a CPU's instance of a per-CPU variable.

        :raises MissingSymbolError: when the kernel has no such variable; debug info may have one of size 0.
        :raises ReadError: when the offset of the CPU cannot be read.
        """
        try:
            return self._per_cpu[name, cpu]
        except KeyError:
            pass
        try:
            variable = self.prog.variable(name)
        except LookupError:
            raise MissingSymbolError(f"the kernel has no per-CPU variable {name}") from None
        if variable.absent_:
            raise MissingSymbolError(f"the kernel has no per-CPU variable {name}: it takes no space")
        with _walking(f"the offset of CPU {cpu}"):
            address = int(per_cpu_ptr(variable.address_of_(), cpu))
        self._per_cpu[name, cpu] = address
        return address

    def find_task(self, tid: int) -> int:
        """Return the ``struct task_struct *`` of a thread by the kernel's table of thread ids, 0 where it has none.

        :raises ReadError: when the table cannot be read.
        """
        known = self._tasks.get(tid, 0)
        if known and self._is_thread(known, tid):
            return known
        with _walking(f"the task of thread {tid}"):
            found = self._tasks[tid] = int(find_task(self.prog, tid))
        return found

    def _is_thread(self, task: int, tid: int) -> bool:
        """Return whether what was a task's memory is still that of this thread: its end takes it out of the table."""
        try:
            pid, entry = (self.member("struct task_struct", name) for name in ("pid", "thread_pid"))
            return self.read(task + pid.offset, pid.size) == tid.to_bytes(
                pid.size, "big" if self.big_endian else "little"
            ) and any(self.read(task + entry.offset, entry.size))
        except (MissingTypeError, ReadError):
            return False


class DrgnStacks:
    """Kernel stacks.

    :param find_address: returns the address that a pointer of the kernel leads to.
    """

    note: str | None = None

    def __init__(
        self,
        prog: drgn.Program,
        symbol_name: Callable[[int], str | None],
        find_address: Callable[[int], int],
        kernel_range: tuple[int, int],
        stopped: Callable[[], AbstractContextManager[drgn.Program] | None],
        unwinder: FramePointerUnwinder | None = None,
    ) -> None:
        self._prog = prog
        self._unwinder = unwinder
        self._symbol_name = symbol_name
        self._find_address = find_address
        self._kernel_range = kernel_range
        self._stopped = stopped
        self.current_registers: CurrentRegisters | None = None
        """Returns the registers of a CPU now, by name; None where those that the Program has are right."""

    def stack_trace(self, task: int) -> Sequence[StackFrame]:
        """Return a task's kernel stack, innermost frame first; a dead task has none. Errors do not name the task.

        :param task: ``struct task_struct *``.
        :raises CapabilityError: when it cannot be unwound: a running task of a live kernel, whose registers are not saved.
        :raises ReadError: when the task or its stack cannot be read.
        """
        registers = self._find_registers(task)
        if registers is not None:
            return self.unwind(registers)
        try:
            try:
                return self._unwind(self._prog, task)
            except drgn.UnsupportedOperation:
                stopped = self._stopped()
                if stopped is None:
                    raise
            with stopped as prog:
                return self._unwind(prog, task)
        except drgn.UnsupportedOperation as error:
            reason = "it is running" if "running" in str(error) else error
            raise CapabilityError(
                f"cannot unwind its stack: {reason}", hint="try again when it sleeps, or use a dump"
            ) from None

    def _find_registers(self, task: int) -> Mapping[str, int] | None:
        """Return the registers of the CPU that a task runs on; None where it runs on none, or the Program has them."""
        if self.current_registers is None:
            return None
        with _walking(f"the CPU of task {task:#x}"):
            for cpu in for_each_possible_cpu(self._prog):
                if self._find_address(int(cpu_curr(self._prog, cpu))) == task:
                    return self.current_registers(cpu)
        return None

    def unwind(self, registers: Mapping[str, int]) -> Sequence[StackFrame]:
        """Return the kernel stack of a CPU, innermost frame first.

        :param registers: by the names of the members of ``struct pt_regs``.
        :raises CapabilityError: when it cannot be unwound.
        """
        return self._make_trace(self._prog, drgn.Object(self._prog, "struct pt_regs", registers), "the CPU's stack")

    def _unwind(self, prog: drgn.Program, task: int) -> Sequence[StackFrame]:
        thread = drgn.Object(prog, "struct task_struct *", value=task)
        with _walking(f"the stack of task {task:#x}"):
            # Since 68f24b08ee89 (v4.9), the saved stack pointer of a dead task leads into freed memory.
            if not thread.member_("stack"):
                return ()
            if self._unwinder is not None:
                return self._in_kernel(self._unwinder.unwind(prog, task))
        return self._make_trace(prog, thread, "its stack")

    def _make_trace(self, prog: drgn.Program, thread: drgn.Object, what: str) -> Sequence[StackFrame]:
        try:
            trace = prog.stack_trace(thread)
        except drgn.UnsupportedOperation:
            raise
        except drgn.FaultError as error:
            raise ReadError(f"could not read {what}: {_first_line(error)}", error.address) from None
        except _WALK_ERRORS as error:
            # A running task, when the dump has no registers of its CPU.
            raise CapabilityError(f"cannot unwind {what}: {_first_line(error)}") from None
        except Exception as error:
            if type(error) is not Exception:
                raise
            # libdw's, of debug info that lacks a section.
            raise CapabilityError(f"cannot unwind {what}: {_first_line(error)}") from None
        return self._in_kernel(map(self._make_frame, trace))

    def _in_kernel(self, frames: Iterable[StackFrame]) -> Sequence[StackFrame]:
        # Frames beyond the entry from user space are guesses.
        low = self._kernel_range[0]
        return list(itertools.takewhile(lambda frame: frame.pc >= low, frames))

    def crashed_task(self) -> int | None:
        """Return the ``struct task_struct *`` that crashed the kernel, None when none did."""
        try:
            cpu = find_panic_cpu(self._prog)
            if cpu is not None:
                return self._find_address(int(cpu_curr(self._prog, cpu)))
        except _WALK_ERRORS:
            pass
        try:
            return self._find_address(int(self._prog.crashed_thread().object.value_()))
        except _WALK_ERRORS:
            return None

    def _make_frame(self, frame: drgn.StackFrame) -> StackFrame:
        try:
            pc = frame.pc
        except LookupError:
            pc = 0
        function: str | None = frame.function_name or self._symbol_name(pc)
        try:
            file, line, column = frame.source()
        except LookupError:
            return StackFrame(pc, function, None, None, None, frame.is_inline)
        return StackFrame(pc, function, file, line, column or None, frame.is_inline)


def find_panic_cpu(prog: drgn.Program) -> int | None:
    """Return the CPU that panicked, None when none did, or the kernel does not say."""
    try:
        # Set by panic() since Linux kernel commit 1717f2096b54 ("panic, x86: Fix re-entrance problem due to panic on NMI")
        # (in v4.5). PANIC_CPU_INVALID is -1.
        cpu = int(prog["panic_cpu"].counter.value_())
    except _WALK_ERRORS:
        return None
    return cpu if cpu >= 0 else None


@contextlib.contextmanager
def _walking(what: str, address: int = 0) -> Iterator[None]:
    """Raise :class:`ReadError` for the exceptions of drgn's helpers in the block."""
    try:
        yield
    except Exception as error:
        # drgn raises bare Exceptions, for debug info without the variables of the direct map for instance.
        if isinstance(error, ReadError) or not (type(error) is Exception or isinstance(error, _WALK_ERRORS)):
            raise
        raise ReadError(f"could not read {what}: {_first_line(error)}", _address_of(error, address)) from None


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def _address_of(error: Exception, default: int) -> int:
    return error.address if isinstance(error, drgn.FaultError) else default


def _find_kernel_range(prog: drgn.Program, platform: drgn.Platform, word_size: int) -> tuple[int, int]:
    last = word_mask(word_size)
    if platform.arch in UPPER_HALF:
        return UPPER_HALF_START, last
    return int(prog["PAGE_SIZE"].value_()), last


def _find_machine(prog: drgn.Program, platform: drgn.Platform) -> str:
    try:
        machine: str = prog["init_uts_ns"].name.machine.string_().decode(errors="backslashreplace")
    except _WALK_ERRORS:
        machine = ""
    return machine or platform.arch.name.lower()


def _find_build_id(prog: drgn.Program) -> str | None:
    try:
        build_id = prog.main_module().build_id
    except LookupError:
        build_id = None
    if build_id is not None:
        return bytes(build_id).hex()
    return read_vmcoreinfo(prog).get("BUILD-ID")


def read_vmcoreinfo(prog: drgn.Program) -> dict[str, str]:
    """Return the lines ``KEY=value`` of the kernel's VMCOREINFO; empty when it has none."""
    try:
        return parse_vmcoreinfo(prog["VMCOREINFO"].string_())
    except _WALK_ERRORS:
        return {}
