# SPDX-License-Identifier: LGPL-2.1-or-later
"""Stacks made by hand, unwound by ORC tables made by hand; entries are written as arch/x86/include/asm/orc_types.h has them."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcovdbg.target.orc_tables import OrcEntry, OrcType, _Table
from kcovdbg.target.stack_walk import StackWalk, UnwoundFrame
from tests.support.memory_target import MemoryTarget

TEXT = 0xFFFF_FFFF_8100_0000
TABLE = 0xFFFF_FFFF_8200_0000
STACK = 0xFFFF_C900_0001_0000
SIZE = 0x4000
PREVIOUS_SP, DX, DI, BP, SP, R10, R13, BP_INDIRECT, SP_INDIRECT = range(1, 10)
UNDEFINED, END, CALL, REGS, PARTIAL = range(5)


def word(sp, bp, kind, signal):
    """As since v6.4."""
    return sp | bp << 4 | kind << 8 | signal << 11


def word_6_3(sp, bp, kind, signal):
    """With the end of the stack as a bit, and no type for what is undefined."""
    end = kind == END
    return (0 if kind in (UNDEFINED, END) else sp) | bp << 4 | max(kind - CALL, 0) << 8 | signal << 10 | end << 11


def word_6_2(sp, bp, kind, signal):
    """Interrupted frames are those with registers."""
    end = kind == END
    return (0 if kind in (UNDEFINED, END) else sp) | bp << 4 | max(kind - CALL, 0) << 8 | end << 10


def make_table(entries, make_word=word):
    """Make a table of (address, sp_offset, bp_offset, sp register, bp register, type, signal)."""
    places = b"".join(struct.pack("<i", entry[0] - TABLE - 4 * number) for number, entry in enumerate(entries))
    data = b"".join(struct.pack("<hhH", entry[1], entry[2], make_word(*entry[3:])) for entry in entries)
    return _Table(TABLE, places, data)


# A real table has a quarter of a million entries, nearly all of them of calls.
CALLS = [(TEXT + 0x1_0000 + 16 * number, 8, 0, SP, 0, CALL, 0) for number in range(64)]
CODE = [
    (TEXT, 8, 0, SP, 0, CALL, 0),
    (TEXT + 0x100, 32, -16, SP, PREVIOUS_SP, CALL, 0),
    (TEXT + 0x200, 16, -16, BP, PREVIOUS_SP, CALL, 0),
    (TEXT + 0x300, 0, 0, SP, 0, REGS, 1),
    (TEXT + 0x400, 0, 0, SP, 0, PARTIAL, 1),
    (TEXT + 0x500, 0, 0, 0, 0, UNDEFINED, 0),
    (TEXT + 0x600, 0, 0, 0, 0, END, 0),
    (TEXT + 0x700, 8, 0, SP_INDIRECT, 0, CALL, 0),
    (TEXT + 0x800, -8, 0, BP_INDIRECT, 0, CALL, 0),
    (TEXT + 0x900, 0, 0, R10, 0, CALL, 0),
    *CALLS,
]


@pytest.mark.parametrize("make_word", [word, word_6_3, word_6_2])
def test_entries_of_each_format(make_word):
    # One of an interrupted frame that ends: the bit that only 6.3 and later have.
    table = make_table(CODE, make_word)
    for address, sp_offset, bp_offset, sp, bp, kind, signal in CODE:
        found = table.find(address + 3)
        assert found.type is OrcType(kind)
        if kind not in (UNDEFINED, END):
            assert found == OrcEntry(sp_offset, bp_offset, sp, bp, OrcType(kind), bool(signal))
    assert table.find(TEXT - 1) is None


def test_of_two_entries_for_one_address_the_last_counts():
    table = make_table([(TEXT, 0, 0, 0, 0, UNDEFINED, 0), (TEXT, 8, 0, SP, 0, CALL, 0), *CALLS])
    assert table.find(TEXT + 5).type is OrcType.CALL


class Kernel:
    """A stack and a table."""

    def __init__(self, table=None):
        self.table = table or make_table(CODE)
        self.target = MemoryTarget(segments={STACK: bytearray(SIZE)})

    def find(self, address):
        # Generated code has none.
        return self.table.find(address) if address < TEXT + 0x10_0000 else None

    def write(self, address, *words):
        struct.pack_into(f"<{len(words)}Q", self.target.segments[STACK], address - STACK, *words)

    def unwind(self, rip, rsp, rbp=0, is_interrupted=False, **others):
        walk = StackWalk(self.target, self)
        return list(walk.unwind({"rip": rip, "rsp": rsp, "rbp": rbp, **others}, is_interrupted=is_interrupted))


def test_calls_by_stack_and_frame_pointer():
    kernel = Kernel()
    # A frame of 32 bytes that saved rbp, one addressed by that rbp, the end.
    kernel.write(STACK + 16, STACK + 0x100, TEXT + 0x210)
    kernel.write(STACK + 0x100, 0, TEXT + 0x610)
    assert kernel.unwind(TEXT + 0x110, STACK) == [
        UnwoundFrame(TEXT + 0x110, False),
        UnwoundFrame(TEXT + 0x210, False),
        UnwoundFrame(TEXT + 0x610, False),
    ]


def test_a_return_address_belongs_to_its_call():
    kernel = Kernel()
    # A call that ends a function returns to the first instruction of the next one, which could not be unwound.
    kernel.write(STACK, TEXT + 0x610)
    assert len(kernel.unwind(TEXT + 0x100, STACK)) == 2
    assert len(kernel.unwind(TEXT + 0x500, STACK, is_interrupted=True)) == 1


def test_interrupted_frames():
    kernel = Kernel()
    registers = list(range(0x10, 0x10 + 15))
    registers[4] = STACK + 0x800
    kernel.write(STACK, *registers, 0, TEXT + 0x200, 0x10, 0, STACK + 0x700, 0x18)
    kernel.write(STACK + 0x800, 0, TEXT + 0x610)
    found = kernel.unwind(TEXT + 0x310, STACK)
    assert found == [UnwoundFrame(TEXT + 0x310, False), UnwoundFrame(TEXT + 0x200, True), UnwoundFrame(TEXT + 0x610, False)]
    # What an interrupt pushes, before the handler has saved the rest.
    kernel.write(STACK, TEXT + 0x900, 0x10, 0, STACK + 0x700, 0x18)
    kernel.write(STACK + 0x7F8, TEXT + 0x610)
    assert [place.pc for place in kernel.unwind(TEXT + 0x410, STACK, r10=STACK + 0x800)] == [
        TEXT + 0x410,
        TEXT + 0x900,
        TEXT + 0x610,
    ]
    # Without the register that it needs, the stack ends there.
    assert len(kernel.unwind(TEXT + 0x410, STACK)) == 2


def test_other_stacks():
    kernel = Kernel()
    kernel.write(STACK + 0x20, STACK + 0x1000)
    kernel.write(STACK + 0x1000, TEXT + 0x610)
    assert [place.pc for place in kernel.unwind(TEXT + 0x710, STACK + 0x20)] == [TEXT + 0x710, TEXT + 0x610]
    kernel.write(STACK + 0x20, STACK + 0x1008)
    assert [place.pc for place in kernel.unwind(TEXT + 0x810, 0, rbp=STACK + 0x28)] == [TEXT + 0x810, TEXT + 0x610]


def test_the_entry_from_user_space_is_the_end():
    kernel = Kernel()
    kernel.write(STACK, *[0] * 16, 0x401000, 0x33, 0, 0x7FFF_0000_0000, 0x2B)
    assert kernel.unwind(TEXT + 0x310, STACK) == [UnwoundFrame(TEXT + 0x310, False)]
    assert kernel.unwind(0x401000, 0x7FFF_0000_0000, is_interrupted=True) == []


def test_generated_code_has_a_frame_pointer():
    kernel = Kernel()
    kernel.write(STACK + 0x40, STACK + 0x80, TEXT + 0x610)
    generated = TEXT + 0x20_0000
    assert [place.pc for place in kernel.unwind(generated, STACK, STACK + 0x40)] == [generated, TEXT + 0x610]
    for pointer in (0, 0x1234, STACK + 0x41, STACK + SIZE):
        assert len(kernel.unwind(generated, STACK, pointer)) == 1


def test_a_cycle_ends():
    kernel = Kernel(make_table([(TEXT, 0, 0, R13, 0, CALL, 0), *CALLS]))
    kernel.write(STACK + 0x38, TEXT + 0x10)
    assert len(kernel.unwind(TEXT + 0x10, STACK, r13=STACK + 0x40)) <= 3


def test_missing_pages_end_a_stack():
    kernel = Kernel()
    kernel.write(STACK + 0xFF8, TEXT + 0x10)
    kernel.write(STACK + 0x1000, TEXT + 0x610)
    kernel.target.holes.append((STACK + 0x1000, STACK + 0x2000))
    assert [place.pc for place in kernel.unwind(TEXT + 0x10, STACK + 0xFF8)] == [TEXT + 0x10, TEXT + 0x10]


@settings(max_examples=200)
@given(
    data=st.lists(
        st.integers(0, 2**64 - 1) | st.sampled_from([TEXT + 0x110, TEXT + 0x310, STACK + 8, STACK + 0x100]), max_size=64
    ),
    entries=st.lists(st.tuples(*[st.integers(-(2**15), 2**15 - 1)] * 2, st.integers(0, 2**16 - 1)), min_size=1, max_size=40),
    rsp=st.integers(STACK - 64, STACK + 600),
    rbp=st.integers(0, 2**64 - 1) | st.just(STACK + 16),
)
def test_nothing_in_memory_or_tables_breaks_it(data, entries, rsp, rbp):
    places = b"".join(struct.pack("<i", TEXT + 0x40 * number - TABLE - 4 * number) for number in range(len(entries)))
    table = _Table(TABLE, places, b"".join(struct.pack("<hhH", *entry) for entry in entries))
    kernel = Kernel(table)
    kernel.write(STACK, *data)
    assert len(kernel.unwind(TEXT + 0x110, rsp, rbp)) <= 1024
