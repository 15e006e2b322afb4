# SPDX-License-Identifier: LGPL-2.1-or-later
"""Stacks of RISC-V laid out by hand as the compiler and the kernel's entry code do."""

import struct

import pytest

from kcovdbg.elf.header import NT_PRSTATUS, Note
from kcovdbg.errors import ReadError
from kcovdbg.target.drgn.stacks import StackRegisters, find_registers, walk_stack

STACK = 0xFFFF_FFC6_0000_4000
TEXT = 0xFFFF_FFFF_8000_0000
EXCEPTIONS = range(TEXT + 0x100, TEXT + 0x200)
USER = 0x1_0000


class Stack:
    def __init__(self):
        self.words = {}

    def frame(self, fp, caller, back):
        self.words |= {fp - 16: caller, fp - 8: back}

    def registers(self, at, pc, ra, fp):
        """A struct pt_regs."""
        self.words |= dict.fromkeys(range(at, at + 72, 8), 0) | {at: pc, at + 8: ra, at + 64: fp}

    def read(self, address, size):
        try:
            return struct.pack(
                f"<{size // 8}Q", *(self.words[at] for at in range(address, address + size, 8))
            )
        except KeyError as error:
            raise ReadError("not there", error.args[0]) from None

    def walk(self, registers):
        return [tuple(frame) for frame in walk_stack(registers, EXCEPTIONS, self.read)]


def test_from_sleep_to_user_space():
    """__switch_to, two functions, the entry of a system call, and user space."""
    stack = Stack()
    stack.frame(STACK + 0x3000, STACK + 0x3100, TEXT + 0x1010)
    stack.frame(STACK + 0x3100, STACK + 0x3200, EXCEPTIONS.start + 4)
    stack.registers(STACK + 0x3100, USER, USER + 0x44, 0x7FFF_0000)
    expected = [
        (TEXT + 0x900, False),
        (TEXT + 0x1010, False),
        (EXCEPTIONS.start + 4, False),
        (USER, True),
    ]
    assert (
        stack.walk(StackRegisters(TEXT + 0x900, 0, STACK + 0x3000, is_interrupted=False))
        == expected
    )


def test_an_interrupted_function_that_calls_none():
    """It has the caller's frame pointer where others have the return address, which is still in
    ra.
    """
    stack = Stack()
    stack.frame(STACK + 0x2000, STACK + 0x2100, EXCEPTIONS.stop - 4)
    stack.registers(STACK + 0x2000, TEXT + 0x5000, TEXT + 0x6004, STACK + 0x2200)
    stack.words[STACK + 0x2200 - 8] = STACK + 0x2300
    stack.words[STACK + 0x2200 - 16] = 0x1234
    stack.frame(STACK + 0x2300, 0, TEXT + 0x7000)
    assert stack.walk(StackRegisters(TEXT + 0x900, 0, STACK + 0x2000, is_interrupted=False)) == [
        (TEXT + 0x900, False),
        (EXCEPTIONS.stop - 4, False),
        (TEXT + 0x5000, True),
        (TEXT + 0x6004, False),
        (TEXT + 0x7000, False),
    ]


def test_an_interrupt_s_own_stack():
    stack = Stack()
    other = STACK + 0x10_0000
    stack.frame(STACK + 0x3F00, other + 0x1000, TEXT + 0x1000)
    stack.frame(other + 0x1000, 0, TEXT + 0x2000)
    frames = stack.walk(StackRegisters(TEXT, 0, STACK + 0x3F00, is_interrupted=False))
    assert [pc for pc, _ in frames] == [TEXT, TEXT + 0x1000, TEXT + 0x2000]


@pytest.mark.parametrize("caller", [STACK + 0x3000, STACK + 0x3004, 0x4000, STACK + 0x3800])
def test_damaged_stacks_end(caller):
    """A cycle, an odd address, one of user space, one that is not there."""
    stack = Stack()
    stack.frame(STACK + 0x3000, caller, TEXT + 0x1010)
    assert stack.walk(StackRegisters(TEXT, 0, STACK + 0x3000, is_interrupted=False))[0] == (
        TEXT,
        False,
    )
    assert len(stack.walk(StackRegisters(TEXT, 0, STACK + 0x3000, is_interrupted=False))) <= 2


def test_registers_of_each_cpu():
    def prstatus(pc):
        return Note("CORE", NT_PRSTATUS, bytes(112) + struct.pack("<33Q", pc, 7, *range(31)))

    notes = [prstatus(TEXT), Note("VMCOREINFO", 0, b""), prstatus(TEXT + 8)]
    assert find_registers(notes, 1) == StackRegisters(TEXT + 8, 7, 6, is_interrupted=True)
    assert find_registers(notes, 2) is None
    assert find_registers([Note("CORE", NT_PRSTATUS, b"short")], 0) is None
