# SPDX-License-Identifier: LGPL-2.1-or-later
"""arm64's kernel stacks by frame records, for targets whose debugger does not unwind them (arch/arm64/kernel/stacktrace.c)."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Final

from kcovdbg.abi.address import WORD_MASK
from kcovdbg.errors import ReadError
from kcovdbg.target.pointer import is_kernel_pointer
from kcovdbg.target.protocol import Target
from kcovdbg.target.stack_walk import MAX_FRAMES, Registers, StackMemory, UnwoundFrame

# The caller's x29, and the return address.
_RECORD: Final = struct.Struct("<2Q")
_WORD: Final = 8
# The bit of an address that decides between the tables of the kernel and of user space, and is never part of a signature.
_IS_KERNEL: Final = 1 << 55
_PT_REGS: Final = "struct pt_regs"
# Code of an exception in the kernel, whose record is that of struct pt_regs (arch/arm64/kernel/entry.S); without "64" before
# v5.14.
_ENTRY: Final = re.compile(r"el1[th]?(?:_64)?_(?:sync|irq|fiq|error)$")


class FrameRecordWalk:
    """Unwinds stacks.

    :param target: the kernel.
    :raises MissingTypeError: when the debug info lacks ``struct pt_regs``.
    :raises MissingSymbolError: when the kernel has no text.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._memory = StackMemory(target)
        self._record = target.member(_PT_REGS, "stackframe").offset
        self._registers = target.member(_PT_REGS, "regs").offset
        self._pc = target.member(_PT_REGS, "pc").offset
        # Code is in the upper half of the addresses of the smallest size that the kernel can run with. Return addresses are
        # signed in the bits above (CONFIG_ARM64_PTR_AUTH_KERNEL).
        text = target.symbol("_text").address - target.kaslr_offset
        self._signature = WORD_MASK & -(1 << (~text & WORD_MASK).bit_length())

    def unwind(self, registers: Registers, *, is_interrupted: bool) -> Iterator[UnwoundFrame]:
        """Yield the frames of a stack, innermost first, up to the entry from user space, or to what cannot be unwound.

        :param registers: with pc, x29 and, of an interrupted CPU, x30.
        :param is_interrupted: as :attr:`~kcovdbg.target.stack_walk.UnwoundFrame.is_interrupted` of the first frame.
        """
        current = {**registers, "pc": self._strip(registers["pc"])}
        seen: set[tuple[int, int]] = set()
        while len(seen) < MAX_FRAMES:
            pc, pointer = current["pc"], current["x29"]
            # Frames of user space do not belong to the kernel's stack.
            if not is_kernel_pointer(self._target, pc, 1) or (pc, pointer) in seen:
                return
            seen.add((pc, pointer))
            frame = UnwoundFrame(pc, is_interrupted)
            yield frame
            try:
                if self._is_entry(frame.instruction):
                    current, is_interrupted = self._read_registers(pointer - self._record), True
                    continue
                current = self._step(current, frame)
                is_interrupted = False
            except ReadError:
                return

    def _is_entry(self, address: int) -> bool:
        return _ENTRY.match(self._target.symbol_name(address) or "") is not None

    def _step(self, registers: Registers, frame: UnwoundFrame) -> dict[str, int]:
        """Return the registers of the caller."""
        pointer = registers["x29"]
        if frame.is_interrupted and "x30" in registers:
            # An interrupted function may not have made its record yet, or may have removed it: its return address is then in
            # x30. After it has called others, x30 points into the function itself.
            back = self._strip(registers["x30"])
            if is_kernel_pointer(self._target, back, 1) and not self._is_same_function(back - 1, frame.instruction):
                _, recorded = self._read_record(pointer)
                if back != recorded:
                    return {"pc": back, "x29": pointer}
        following, back = self._read_record(pointer)
        return {"pc": back, "x29": following}

    def _is_same_function(self, one: int, other: int) -> bool:
        return self._target.symbol_name(one) == self._target.symbol_name(other)

    def _read_record(self, address: int) -> tuple[int, int]:
        following, back = _RECORD.unpack(self._memory.read(address, _RECORD.size))
        return following, self._strip(back)

    def _strip(self, address: int) -> int:
        """Return an address of code without its signature."""
        return address | self._signature if address & _IS_KERNEL else address

    def _read_registers(self, address: int) -> dict[str, int]:
        """Read ``struct pt_regs``."""
        frame, back = _RECORD.unpack(self._memory.read(address + self._registers + 29 * _WORD, _RECORD.size))
        return {"pc": self._memory.word(address + self._pc), "x29": frame, "x30": back}
