# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel's log, in both layouts, with text that wraps, and with damage."""

import struct

import pytest

from kcovdbg.target.target import Symbol
from kcovdbg.walk.printk_log import read_kernel_log
from tests.support.kernels.asker import Asker
from tests.support.kernels.declare import Declarations
from tests.support.memory_target import MemoryTarget

# kernel/printk/printk_ringbuffer.h of v6.12, without what is not read.
RING = """
struct dev_printk_info { char subsystem[16]; char device[48]; };
struct printk_info { u64 seq; u64 ts_nsec; char text_len[2]; char facility; char flags:5; char level:3; u32 caller_id; struct dev_printk_info dev_info; };
struct atomic_long_t { long counter; };
struct prb_data_blk_lpos { unsigned long begin; unsigned long next; };
struct prb_desc { struct atomic_long_t state_var; struct prb_data_blk_lpos text_blk_lpos; };
struct prb_data_ring { unsigned int size_bits; char *data; };
struct prb_desc_ring { unsigned int count_bits; struct prb_desc *descs; struct printk_info *infos; struct atomic_long_t head_id; struct atomic_long_t tail_id; };
struct printk_ringbuffer { struct prb_desc_ring desc_ring; struct prb_data_ring text_data_ring; };
"""
# kernel/printk/printk.c of v5.9.
RECORDS = """
struct printk_log { u64 ts_nsec; char len[2]; char text_len[2]; char dict_len[2]; char facility; char flags:5; char level:3; };
"""
BASE = 0xFFFFFFFF82000000
RING_AT, DESCS, INFOS, DATA = BASE, BASE + 0x1000, BASE + 0x10000, BASE + 0x20000
BITS, COUNT_BITS = 8, 3
ID_MASK = (1 << 62) - 1
FINALIZED = 2 << 62


def declare(text):
    types = Declarations().declare(text).types
    for name in ("printk_info", "printk_log"):
        members = types[f"struct {name}"].members if f"struct {name}" in types else {}
        # The kernel's u16, which these declarations do not have.
        for member in ("text_len", "len", "dict_len"):
            if member in members:
                members[member] = members[member]._replace(length=None, type_name="u16")
    return types


class Ring:
    """Writes records as prb_reserve() and prb_commit() of the kernel do."""

    def __init__(self, first=(1 << 62) - 3):
        self.target = MemoryTarget(
            types=declare(RING), symbols={"prb": Symbol("prb", BASE + 0x800, 8)}
        )
        self.target.segments = {
            BASE + 0x800: bytearray(struct.pack("<Q", RING_AT)),
            DESCS: bytearray(24 << COUNT_BITS),
            INFOS: bytearray(self.target.type_size("struct printk_info") << COUNT_BITS),
            DATA: bytearray(1 << BITS),
        }
        self.tail = self.next_id = first
        self.position = (1 << 64) - (1 << BITS)
        self.seq = 0

    def write(self, text, time=1_000_000, level=6, caller=41, state=FINALIZED):
        size = -(-(8 + len(text)) // 8) * 8
        begin = self.position
        if (begin + size - 1) >> BITS != begin >> BITS:
            # The rest of the ring stays empty.
            end = (begin + size >> BITS << BITS) + size
            offset = 0
        else:
            end, offset = begin + size, begin % (1 << BITS)
        self.position = end & (1 << 64) - 1
        if text == b"":
            begin, end, block = 3, 3, None
        else:
            block = struct.pack("<Q", self.next_id) + text
        self.put(begin & (1 << 64) - 1, end & (1 << 64) - 1, state)
        if block:
            self.target.write(DATA + offset, block)
        size = self.target.type_size("struct printk_info")
        self.target.put(
            INFOS + self.next_id % 8 * size,
            "struct printk_info",
            {
                "seq": self.seq,
                "ts_nsec": time,
                "text_len": len(text),
                "level": level,
                "caller_id": caller,
            },
        )
        self.seq += 1
        self.next_id = self.next_id + 1 & ID_MASK
        return self

    def put(self, begin, end, state):
        self.target.write(
            DESCS + self.next_id % 8 * 24, struct.pack("<QQQ", self.next_id | state, begin, end)
        )

    def done(self):
        self.target.put(
            RING_AT,
            "struct printk_ringbuffer",
            {
                "desc_ring.count_bits": COUNT_BITS,
                "desc_ring.descs": DESCS,
                "desc_ring.infos": INFOS,
                "desc_ring.head_id.counter": self.next_id - 1 & ID_MASK,
                "desc_ring.tail_id.counter": self.tail,
                "text_data_ring.size_bits": BITS,
                "text_data_ring.data": DATA,
            },
        )
        return self.target


def texts(log):
    return [record.text for record in log.records]


def test_records():
    log = read_kernel_log(
        Ring()
        .write(b"one")
        .write(b"two\nlines", 2_500_000_000, 3, 0x80000001)
        .write(b"")
        .write(b"three")
        .done()
    )
    assert texts(log) == ["one", "two\nlines", "", "three"]
    assert log.records[1][:5] == (1, 2_500_000_000, 3, 0, "C1")
    assert list(log.records[1].lines()) == ["[    2.500000] two", "[    2.500000] lines"]
    assert log.records[0].caller == "T41"
    assert log.remarks == ()


def test_newest():
    ring = Ring().write(b"one").write(b"two").write(b"three")
    assert texts(read_kernel_log(ring.done(), 2)) == ["two", "three"]
    assert texts(read_kernel_log(ring.target, 100)) == ["one", "two", "three"]
    assert texts(read_kernel_log(ring.target, 0)) == []


@pytest.mark.parametrize("length", [80, 85, 120, 56])
def test_text_wraps(length):
    """Text that does not fit before the end of the ring is at its start; one that fits exactly
    stays (120, 56).
    """
    ring = Ring()
    for letter in b"abcdef":
        ring.write(bytes([letter]) * length)
        ring.tail = ring.next_id - 1 & ID_MASK
        assert texts(read_kernel_log(ring.done())) == [chr(letter) * length]


def test_overwritten_and_unfinished_records_are_left_out():
    ring = Ring().write(b"one").write(b"two")
    # reserved by a printk() that is under way
    ring.write(b"three", state=0)
    assert texts(read_kernel_log(ring.done())) == ["one", "two"]
    # its block has another record's id
    ring.target.write(DATA, struct.pack("<Q", 99))
    log = read_kernel_log(ring.target)
    assert texts(log) == ["two"]
    assert len(log.remarks) == 1


def test_damage_loses_only_what_it_hits():
    ring = Ring().write(b"one").write(b"two").write(b"three")
    target = ring.done()
    target.holes = [(DATA, DATA + 16)]
    log = read_kernel_log(target)
    # Memory is missing by page.
    assert texts(log) == []
    assert len(log.remarks) == 1
    target.holes = [(RING_AT, RING_AT + 8)]
    assert read_kernel_log(target).records == ()
    assert len(read_kernel_log(target).remarks) == 1


@pytest.mark.parametrize(
    "values",
    [
        {"desc_ring.count_bits": 40},
        {"text_data_ring.size_bits": 60},
        {"text_data_ring.data": 0},
        {"desc_ring.descs": 0x1000},
        {"desc_ring.head_id.counter": 12345},
        {"desc_ring.tail_id.counter": 12345},
    ],
)
def test_damaged_ring(values):
    target = Ring().write(b"one").write(b"two").done()
    target.put(RING_AT, "struct printk_ringbuffer", values)
    log = read_kernel_log(target)
    assert set(texts(log)) <= {"one", "two"}
    assert log.remarks
    assert len(target.reads) < 100


def test_damaged_blocks():
    for begin, end in (
        (0, 0),
        (8, 1 << 40),
        ((1 << 64) - 8, 0),
        (1, 1),
        (3, 5),
        (12, 20),
        (64, 56),
    ):
        ring = Ring().write(b"one")
        ring.put(begin, end, FINALIZED)
        ring.next_id += 1
        assert texts(read_kernel_log(ring.write(b"two").done())) == ["one", "two"]


def make_old(texts, first=0, size=256, seq=7, damage=b""):
    """A log of a kernel before v5.10, as log_store() writes it."""
    target = MemoryTarget(types=declare(RECORDS))
    data = bytearray(size)
    position = first
    for number, text in enumerate(texts):
        length = -(-(16 + len(text)) // 8) * 8
        if position + length + 16 > size:
            data[position : position + 16] = bytes(16)
            position = 0
        header = struct.pack("<QHHHBB", number * 1_000_000_000, length, len(text), 0, 0, 6 << 5)
        data[position : position + length] = (header + text).ljust(length, b"\0")
        position += length
    data[first : first + len(damage)] = damage
    values = {
        "log_first_idx": first,
        "log_next_idx": position,
        "log_first_seq": seq,
        "log_buf_len": size,
    }
    address = BASE
    for name, value in {**values, "log_buf": DATA}.items():
        width = 8 if name in ("log_first_seq", "log_buf") else 4
        target.symbols[name] = Symbol(name, address, width)
        target.segments[address] = bytearray(value.to_bytes(width, "little"))
        address += 64
    target.symbols["__log_buf"] = Symbol("__log_buf", DATA, size)
    target.segments[DATA] = data
    return target


def test_old_records():
    log = read_kernel_log(make_old([b"one", b"two", b"three"]))
    assert [record[:6] for record in log.records] == [
        (7, 0, 6, 0, None, "one"),
        (8, 1_000_000_000, 6, 0, None, "two"),
        (9, 2_000_000_000, 6, 0, None, "three"),
    ]


def test_old_records_wrap():
    assert texts(read_kernel_log(make_old([b"a" * 40, b"b" * 40, b"c" * 40], first=128))) == [
        "a" * 40,
        "b" * 40,
        "c" * 40,
    ]


def test_the_other_variable_of_that_name():
    target = make_old([b"one"])
    target.segments[target.symbols["log_buf"].address][:] = bytes(8)
    assert texts(read_kernel_log(target)) == ["one"]


@pytest.mark.parametrize("damage", [b"\xff" * 16, b"\0" * 8 + b"\x01\0" + b"\0" * 6, b"\0" * 16])
def test_damaged_old_records(damage):
    log = read_kernel_log(make_old([b"one", b"two"], damage=damage))
    assert texts(log) == []
    assert log.remarks


def test_no_printk():
    assert read_kernel_log(MemoryTarget()) == ((), ())


def test_command():
    ring = Ring().write(b"calm", 1_000_000_000).write(b"\x1b[2Jbad\xff", 2_000_000_000, 3)
    asker = Asker(ring.done())
    rows, said = asker.rows("log")
    assert said == ""
    assert rows == [
        {"seq": 0, "time": 1.0, "level": "info", "facility": 0, "caller": "T41", "text": "calm"},
        {
            "seq": 1,
            "time": 2.0,
            "level": "err",
            "facility": 0,
            "caller": "T41",
            "text": "\x1b[2Jbad\\xff",
        },
    ]
    text, _ = asker.ask("log")
    assert "\x1b" not in text
    assert "[    1.000000] calm\n" in text
    assert [row["seq"] for row in asker.rows("log -n 1")[0]] == [1]
    assert [row["seq"] for row in asker.rows("log --since 1.5")[0]] == [1]
    assert [row["seq"] for row in asker.rows("log --level warn")[0]] == [1]
    assert [row["seq"] for row in asker.rows("log --level info --since 1 -n 1")[0]] == [1]
    asker = Asker(MemoryTarget())
    assert asker.ask("log")[1].startswith("error: ")
