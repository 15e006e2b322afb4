# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kernel stacks by ORC, for targets whose debugger does not unwind them (arch/x86/kernel/unwind_orc.c)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from kcovdbg.abi.address import PAGE_SIZE, WORD_MASK, page_align_down
from kcovdbg.errors import ReadError
from kcovdbg.target.orc_tables import OrcEntry, OrcTables, OrcType
from kcovdbg.target.pointer import is_kernel_pointer
from kcovdbg.target.protocol import Target

Registers = Mapping[str, int]
"""By the names that GDB has for them; of a task that sleeps, those that are saved."""

SAVED: Final = ("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi")
"""The registers at the beginning of ``struct pt_regs``, in order."""
_WORD: Final = struct.Struct("<Q")
_REGISTERS: Final = struct.Struct("<21Q")
# Of struct pt_regs: orig_ax, then what an interrupt pushes.
_RIP, _CS, _RSP = 16, 17, 19
_INTERRUPT_FRAME: Final = struct.Struct("<5Q")

# ORC_REG_*. Those of pt_regs by their names.
_UNDEFINED, _PREVIOUS_SP, _DX, _DI, _BP, _SP, _R10, _R13, _BP_INDIRECT, _SP_INDIRECT, _AX = range(11)
_BASES: Final = {_DX: "rdx", _DI: "rdi", _R10: "r10", _R13: "r13", _AX: "rax"}

MAX_FRAMES: Final = 1024


class UnwoundFrame(NamedTuple):
    """A frame of a stack as it was unwound."""

    pc: int
    is_interrupted: bool
    """Whether the instruction was interrupted or comes next, and is not that after a call."""

    @property
    def instruction(self) -> int:
        """An address in the instruction that the frame is at."""
        return self.pc if self.is_interrupted else self.pc - 1


class StackMemory:
    """Memory of stacks, read by pages, which are kept.

    :param target: the kernel.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._pages: dict[int, bytes | None] = {}

    def word(self, address: int) -> int:
        """Read a word.

        :raises ReadError: when it cannot be read.
        """
        found: int = _WORD.unpack(self.read(address & WORD_MASK, _WORD.size))[0]
        return found

    def read(self, address: int, size: int) -> bytes:
        """Read a few words of a stack.

        :raises ReadError: when they cannot be read.
        """
        if not is_kernel_pointer(self._target, address, 1):
            raise ReadError(f"a stack: {address:#x} is not a kernel address", address)
        start = page_align_down(address)
        page = self._page(start)
        data = page[address - start : address - start + size] if page is not None else b""
        return data if len(data) == size else self._target.read(address, size)

    def _page(self, start: int) -> bytes | None:
        if start not in self._pages:
            try:
                self._pages[start] = self._target.read(start, PAGE_SIZE)
            except ReadError:
                self._pages[start] = None
        return self._pages[start]


Step = Callable[[UnwoundFrame, Registers], tuple[Registers, bool] | None]
"""Return the registers of the frame before one, and whether that was interrupted; None where the stack cannot be unwound."""


def follow_frames(target: Target, registers: Registers, step: Step, *, is_interrupted: bool) -> Iterator[UnwoundFrame]:
    """Yield the frames of a stack, innermost first, up to the entry from user space, or to what cannot be unwound.

    :param registers: with rip, rsp and rbp at least.
    :param step: may raise ReadError, which ends the stack.
    :param is_interrupted: as :attr:`UnwoundFrame.is_interrupted` of the first frame.
    """
    seen: set[tuple[int, int]] = set()
    while len(seen) < MAX_FRAMES:
        frame = UnwoundFrame(registers["rip"], is_interrupted)
        # Frames of user space do not belong to the kernel's stack.
        if not is_kernel_pointer(target, frame.pc, 1) or (frame.pc, registers["rsp"]) in seen:
            return
        seen.add((frame.pc, registers["rsp"]))
        yield frame
        try:
            found = step(frame, registers)
        except ReadError:
            return
        if found is None:
            return
        registers, is_interrupted = found


def read_registers(memory: StackMemory, address: int) -> Registers:
    """Read ``struct pt_regs``.

    :raises ReadError: when it cannot be read.
    """
    values = _REGISTERS.unpack(memory.read(address, _REGISTERS.size))
    return {**dict(zip(SAVED, values, strict=False)), "rip": values[_RIP], "cs": values[_CS], "rsp": values[_RSP]}


class StackWalk:
    """Unwinds stacks by ORC.

    :param target: the kernel.
    :param tables: its ORC tables.
    """

    def __init__(self, target: Target, tables: OrcTables) -> None:
        self._target = target
        self._tables = tables
        self._memory = StackMemory(target)

    def unwind(self, registers: Registers, *, is_interrupted: bool) -> Iterator[UnwoundFrame]:
        """Yield the frames of a stack; see :func:`follow_frames`."""
        return follow_frames(self._target, registers, self._step, is_interrupted=is_interrupted)

    def _step(self, frame: UnwoundFrame, registers: Registers) -> tuple[Registers, bool] | None:
        entry = self._tables.find(frame.instruction)
        if entry is not None and entry.type in (OrcType.UNDEFINED, OrcType.END_OF_STACK):
            return None
        before = self._step_by_frame_pointer(registers) if entry is None else self._step_by_entry(registers, entry)
        return None if before is None else (before, entry is not None and entry.is_signal)

    def _step_by_entry(self, registers: Registers, entry: OrcEntry) -> Registers | None:
        """Return the registers of the frame before; None when a register that it needs is unknown."""
        base = {_SP: "rsp", _SP_INDIRECT: "rsp", _BP: "rbp", _BP_INDIRECT: "rbp", **_BASES}.get(entry.sp_register)
        value = None if base is None else registers.get(base)
        if value is None:
            return None
        if entry.sp_register == _SP_INDIRECT:
            sp = self._memory.word(value) + entry.sp_offset
        elif entry.sp_register == _BP_INDIRECT:
            sp = self._memory.word(value + entry.sp_offset)
        else:
            sp = value if entry.sp_register in _BASES else value + entry.sp_offset
        sp &= WORD_MASK
        if entry.type is OrcType.REGS:
            return read_registers(self._memory, sp)
        if entry.type is OrcType.REGS_PARTIAL:
            rip, _, _, rsp, _ = _INTERRUPT_FRAME.unpack(self._memory.read(sp, _INTERRUPT_FRAME.size))
            # Nothing has changed the others yet.
            return {**registers, "rip": rip, "rsp": rsp, **self._frame_pointer(registers, entry, sp)}
        return {"rip": self._memory.word(sp - _WORD.size), "rsp": sp, **self._frame_pointer(registers, entry, sp)}

    def _frame_pointer(self, registers: Registers, entry: OrcEntry, sp: int) -> dict[str, int]:
        if entry.bp_register == _PREVIOUS_SP:
            return {"rbp": self._memory.word(sp + entry.bp_offset)}
        if "rbp" not in registers:
            return {}
        if entry.bp_register == _BP:
            return {"rbp": self._memory.word(registers["rbp"] + entry.bp_offset)}
        return {"rbp": registers["rbp"]}

    def _step_by_frame_pointer(self, registers: Registers) -> Registers | None:
        """Return the registers of the frame before one of generated code, which ORC does not know."""
        pointer = registers.get("rbp")
        if pointer is None or not is_kernel_pointer(self._target, pointer):
            return None
        return {
            "rip": self._memory.word(pointer + _WORD.size),
            "rsp": pointer + 2 * _WORD.size,
            "rbp": self._memory.word(pointer),
        }
