# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kernel stacks of x86-64 by GDB's own unwinder, which reads DWARF's call frame information, for kernels without ORC."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Final, NamedTuple

import gdb.unwinder

import gdb
from kcovdbg.elf.file import ElfFile
from kcovdbg.errors import CapabilityError, KcovdbgError, MissingSymbolError, MissingTypeError
from kcovdbg.model.location import Frame
from kcovdbg.target.pointer import read_word
from kcovdbg.target.protocol import Target
from kcovdbg.target.stack_walk import SAVED, Registers, StackMemory, UnwoundFrame, follow_frames, read_registers

_CALL_FRAMES: Final = (".debug_frame", ".eh_frame")
_NAMES: Final = (*SAVED, "rsp", "rip")
_WORD: Final = 8
# __KERNEL_CS
_KERNEL_CODE: Final = 0x10


class DwarfWalk:
    """Unwinds stacks of the selected machine by GDB.

    The assembly that the kernel is entered by has no call frame information, and the compiler does not know where a function
    changes to the stack for interrupts: both are followed as the kernel lays them out.

    :param target: the kernel.
    :param image: its vmlinux.
    :param address_in_gdb: returns the address in GDB's symbols of one in the kernel.
    :param frames_at: returns the functions that an instruction is in; none in assembly.
    :raises MissingSymbolError: when the vmlinux has no call frame information.
    """

    def __init__(
        self,
        target: Target,
        image: ElfFile,
        address_in_gdb: Callable[[int], int],
        frames_at: Callable[[int], Sequence[Frame]],
    ) -> None:
        if not any(section is not None and section.size for section in map(image.section, _CALL_FRAMES)):
            raise MissingSymbolError("the kernel has no call frame information")
        self._target = target
        self._address_in_gdb = address_in_gdb
        self._frames_at = frames_at
        self._memory = StackMemory(target)

    def unwind(self, registers: Registers, *, is_interrupted: bool) -> Iterator[UnwoundFrame]:
        """Yield the frames of a stack; see :func:`~kcovdbg.target.stack_walk.follow_frames`.

        :raises CapabilityError: when GDB has no CPU selected.
        """
        # All at once: GDB's user must not meet frames of a task's stack between two of them.
        with _unwinding() as step:
            return iter(
                list(
                    follow_frames(
                        self._target,
                        registers,
                        lambda frame, current: self._step(frame, current, step),
                        is_interrupted=is_interrupted,
                    )
                )
            )

    def _step(self, frame: UnwoundFrame, registers: Registers, step: _Step) -> tuple[Registers, bool] | None:
        low, high = self._entry_code
        if low <= frame.pc < high and not frame.is_interrupted:
            before = read_registers(self._memory, registers["rsp"])
            return (before, True) if before["cs"] == _KERNEL_CODE else None
        if not self._frames_at(frame.instruction):
            return None
        # GDB looks for what is in front of a return address.
        found = step.unwind({**registers, "rip": self._address_in_gdb(frame.instruction) + 1})
        # GDB may have read the vmlinux file, or have guessed.
        if found is None or self._memory.word(found["rsp"] - _WORD) != found["rip"]:
            return None
        if found["rsp"] in self._interrupt_stacks:
            return {**found, "rsp": self._memory.word(found["rsp"])}, False
        return found, False

    @cached_property
    def _entry_code(self) -> tuple[int, int]:
        """The range of assembly that calls functions with ``struct pt_regs`` on top of the stack."""
        try:
            return self._target.symbol("__entry_text_start").address, self._target.symbol("__entry_text_end").address
        except MissingSymbolError:
            return 0, 0

    @cached_property
    def _interrupt_stacks(self) -> frozenset[int]:
        """Where each CPU's stack for interrupts has the stack pointer of what was interrupted (call_on_stack())."""
        try:
            # From Linux kernel commit d7b6d709a76a ("x86/percpu: Move irq_stack variables next to current_task") (in v6.2) to
            # commit 839be1619fb8 ("x86/irq: Move irq stacks to percpu hot section") (in v6.15).
            name, offset = "pcpu_hot", self._target.member("struct pcpu_hot", "hardirq_stack_ptr").offset
        except MissingTypeError:
            name, offset = "hardirq_stack_ptr", 0
        try:
            cpus = self._target.cpus()
            return frozenset(read_word(self._target, self._target.per_cpu(name, cpu) + offset) for cpu in cpus)
        except KcovdbgError:
            return frozenset()


class _FrameId(NamedTuple):
    """What GDB tells frames apart by."""

    sp: gdb.Value
    pc: gdb.Value


class _Step(gdb.unwinder.Unwinder):
    """Has GDB unwind one frame of which only the registers are known.

    GDB asks this unwinder first. For the innermost frame, that of the CPU, the answer is that the frame before has the given
    registers. GDB unwinds that one, and asks about the frame before it, whose registers are the answer.
    """

    def __init__(self) -> None:
        super().__init__("kcovdbg")
        self._given: Registers | None = None
        self._is_innermost = True
        self._found: Registers | None = None

    def unwind(self, registers: Registers) -> Registers | None:
        """Return the registers of the frame before, None where GDB does not unwind it."""
        self._given, self._is_innermost, self._found = registers, True, None
        gdb.invalidate_cached_frames()
        try:
            frame: gdb.Frame | None = gdb.newest_frame()
            # Functions inlined into the frame have frames between.
            while frame is not None and self._found is None:
                frame = frame.older()
        except gdb.error:
            pass
        finally:
            self._given = None
        return self._found

    def __call__(self, pending_frame: gdb.PendingFrame) -> gdb.UnwindInfo | None:
        """Answer GDB."""
        if self._given is None:
            return None
        if self._is_innermost:
            self._is_innermost = False
            return self._make_info(pending_frame, self._given)
        here = _read_registers(pending_frame)
        if all(here.get(name) == self._given[name] for name in ("rip", "rsp")):
            return None
        if "rip" in here and "rsp" in here:
            self._found = here
        # The last one: GDB would unwind it by an address that is not where its symbols are.
        return self._make_info(pending_frame, {})

    @staticmethod
    def _make_info(pending: gdb.PendingFrame, registers: Registers) -> gdb.UnwindInfo:
        stack = registers.get("rsp", 0)
        info = pending.create_unwind_info(_FrameId(_make_word(stack - _WORD if stack else 0), _make_word(0)))
        for name in _NAMES:
            if name in registers:
                info.add_saved_register(name, _make_word(registers[name]))
        return info


def _make_word(value: int) -> gdb.Value:
    return gdb.Value(value).cast(gdb.lookup_type("unsigned long"))


def _read_registers(pending: gdb.PendingFrame) -> dict[str, int]:
    """Read the registers of a frame, without those that GDB does not know."""
    found: dict[str, int] = {}
    for name in _NAMES:
        try:
            found[name] = int(pending.read_register(name)) & (1 << 64) - 1
        except gdb.error:
            continue
    return found


@contextmanager
def _unwinding() -> Iterator[_Step]:
    """Have GDB ask an unwinder of ours, and restore its frames.

    :raises CapabilityError: when GDB has no CPU selected.
    """
    try:
        selected = gdb.selected_frame()
    except gdb.error:
        raise CapabilityError("cannot unwind stacks: GDB has no registers of a CPU") from None
    step = _Step()
    gdb.unwinder.register_unwinder(None, step, replace=True)
    try:
        yield step
    finally:
        gdb.frame_unwinders.remove(step)
        gdb.invalidate_cached_frames()
        if selected.is_valid():
            selected.select()
