# SPDX-License-Identifier: LGPL-2.1-or-later
"""Stacks of arm64 made by hand: signed return addresses, exceptions, functions without their record, damage."""

from __future__ import annotations

import struct

import pytest

from kcovdbg.target.frame_record_walk import FrameRecordWalk
from kcovdbg.target.protocol import Member, Symbol
from tests.support.memory_target import MemoryTarget, Structure

TEXT = 0xFFFF_8000_8000_0000
OFFSET = 0x2A9A_2040_0000
STACK = 0xFFFF_8000_8123_0000
SIZE = 0x4000
# Any bits above those of addresses, but the one that says whose they are.
SIGNATURE = 0x0052 << 48
PC, RECORD = 256, 312
FUNCTIONS = {
    0x1000: "leaf",
    0x2000: "middle",
    0x3000: "outer",
    0x4000: "el1h_64_irq",
    0x5000: "el1h_64_irq_handler",
    0x6000: "el0t_64_sync",
}


class Stack:
    """A kernel with one stack."""

    def __init__(self) -> None:
        self.target = MemoryTarget(
            types={
                "struct pt_regs": Structure(
                    336,
                    {
                        "regs": Member(0, 248, "u64", length=31),
                        "pc": Member(PC, 8, "u64"),
                        "stackframe": Member(RECORD, 16, "u64", length=2),
                    },
                )
            },
            symbols={
                "_text": Symbol("_text", TEXT + OFFSET, 0),
                **{name: Symbol(name, TEXT + OFFSET + start, 0x1000) for start, name in FUNCTIONS.items()},
            },
            kaslr_offset=OFFSET,
            machine="aarch64",
        )
        self.memory = bytearray(SIZE)
        self.target.segments[STACK] = self.memory

    def put(self, address: int, *words: int) -> None:
        struct.pack_into(f"<{len(words)}Q", self.memory, address - STACK, *words)

    def unwind(self, pc: int, pointer: int, link: int | None = None, *, is_interrupted: bool = False) -> list[tuple[int, bool]]:
        registers = {"pc": pc, "x29": pointer} | ({} if link is None else {"x30": link})
        return [
            (frame.pc - TEXT - OFFSET, frame.is_interrupted)
            for frame in FrameRecordWalk(self.target).unwind(registers, is_interrupted=is_interrupted)
        ]


def at(offset: int) -> int:
    return TEXT + OFFSET + offset


def signed(offset: int) -> int:
    """Return an address as the CPU signs it: bits 63 to 56 and 54 to 48."""
    return at(offset) & ~(0xFF7F << 48) | SIGNATURE | 1 << 55


@pytest.fixture
def stack() -> Stack:
    made = Stack()
    made.put(STACK + 0x100, STACK + 0x200, signed(0x3010))
    made.put(STACK + 0x200, STACK + 0x300, signed(0x6010))
    # The last record is that of the entry from user space.
    made.put(STACK + 0x300, 0, 0)
    return made


def test_a_task_that_sleeps(stack: Stack) -> None:
    assert stack.unwind(at(0x2010), STACK + 0x100) == [(0x2010, False), (0x3010, False), (0x6010, False)]


def test_a_cpu_that_was_stopped_in_a_leaf(stack: Stack) -> None:
    found = [(0x1004, True), (0x2010, False), (0x3010, False), (0x6010, False)]
    assert stack.unwind(at(0x1004), STACK + 0x100, signed(0x2010), is_interrupted=True) == found
    # Its record is there already: x30 is what the record has, or leads back into itself.
    stack.put(STACK + 0x80, STACK + 0x100, signed(0x2010))
    assert stack.unwind(at(0x1004), STACK + 0x80, signed(0x2010), is_interrupted=True) == found
    assert stack.unwind(at(0x1004), STACK + 0x80, at(0x1080), is_interrupted=True) == found


def test_an_exception(stack: Stack) -> None:
    registers = STACK + 0x1000
    # x29 and x30 of what was interrupted, then its program counter.
    stack.put(registers + 29 * 8, STACK + 0x200, signed(0x3010))
    stack.put(registers + PC, at(0x2004))
    stack.put(registers + RECORD, STACK + 0x200, at(0x2004))
    stack.put(STACK + 0x900, registers + RECORD, signed(0x4010))
    found = stack.unwind(at(0x5010), STACK + 0x900)
    assert found == [(0x5010, False), (0x4010, False), (0x2004, True), (0x3010, False), (0x6010, False)]


@pytest.mark.parametrize("pointer", [0, 0x1234, STACK - 0x10, STACK + SIZE, 1 << 63])
def test_a_record_that_cannot_be_read(stack: Stack, pointer: int) -> None:
    stack.put(STACK + 0x200, pointer, signed(0x6010))
    assert stack.unwind(at(0x2010), STACK + 0x100) == [(0x2010, False), (0x3010, False), (0x6010, False)]


def test_records_in_a_circle(stack: Stack) -> None:
    stack.put(STACK + 0x200, STACK + 0x100, signed(0x2010))
    assert stack.unwind(at(0x2010), STACK + 0x100) == [(0x2010, False), (0x3010, False)]


def test_user_space_is_none_of_it(stack: Stack) -> None:
    assert stack.unwind(0x40_1000, STACK + 0x100) == []
