# SPDX-License-Identifier: LGPL-2.1-or-later
"""Buffers read from a kernel made up in memory, under all their names and with every kind of
damage.
"""

import struct
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcovdbg.abi.address import PAGE_SIZE, align
from kcovdbg.abi.generations import Generation
from kcovdbg.abi.record import CMP, PC
from kcovdbg.errors import KcovdbgError, ReadError, UsageError
from kcovdbg.model.buffer import Gap
from kcovdbg.model.memory import VmallocArea
from kcovdbg.series import draft_2016
from kcovdbg.series.declaration import BufferFacts
from kcovdbg.series.table import traits_of
from kcovdbg.target.target import Member, Symbol
from kcovdbg.walk.buffer_names import parse_name
from kcovdbg.walk.buffers import read_buffer_at
from kcovdbg.walk.layout import Layout
from kcovdbg.walk.objects import find_capacity
from tests.support.kernels.asker import Asker
from tests.support.kernels.build import Kernel
from tests.support.kernels.rows import E7, E9A, J
from tests.support.memory_target import MemoryTarget, MemoryVmalloc, Structure
from tests.support.state import KCOV
from tests.support.stub import make_stub

AREA = 0xFFFFC90000200000
TEXT = 0xFFFFFFFF81000000
OFFSET = 0x1200000
MODES = {0: "DISABLED", 1: "INIT", 2: "TRACE_PC", 3: "TRACE_CMP", 4: "REMOTE"}


def pcs(count):
    return [TEXT + 16 * index + 5 for index in range(count)]


def make_layout(features=(), word=8):
    return make_stub(
        Layout,
        generation=Generation("E9a", (), frozenset(features)),
        traits=traits_of(features),
        buffer_word=word,
        mode_name=lambda value: MODES.get(value & 0xFFFF, f"{value & 0xFFFF:#x}"),
        object_mode_name=lambda value: MODES.get(value, f"{value:#x}"),
    )


def make_target(words, size=None, *, area=AREA, word=8, order="<", **values):
    size = len(words) if size is None else size
    data = struct.pack(f"{order}{len(words)}{'Q' if word == 8 else 'I'}", *words)
    return MemoryTarget(
        segments={area: bytearray(data.ljust(size * word, b"\0"))},
        symbols={"_stext": Symbol("_stext", TEXT + OFFSET, 0)},
        kaslr_offset=OFFSET,
        **values,
    )


def facts_of(size, mode="TRACE_PC", **values):
    return BufferFacts("41", AREA, size, mode, **values)


def read(words, size=None, mode="TRACE_PC", *, layout=None, where=None, **values):
    size = len(words) if size is None else size
    return read_buffer_at(
        make_target(words, size, **values), layout or make_layout(), where or facts_of(size, mode)
    )


def test_size_limit_of_a_series():
    """The draft of 2016 accepts INT_MAX words (kcov-abi.md 2), mainline INT_MAX bytes."""
    size = 1 << 30
    draft = make_layout((draft_2016.SERIES.feature,), word=4)
    assert find_capacity(draft, "TRACE", size) == size - 1
    assert find_capacity(make_layout(), "TRACE_PC", size) is None


def test_plain():
    buffer = read([3, *pcs(3), 0xDEAD], 512)
    assert list(buffer.words) == pcs(3)
    assert (buffer.count, buffer.stored_count, buffer.capacity, buffer.full) == (3, 3, 511, False)
    assert (buffer.kaslr_offset, buffer.remarks, buffer.gaps) == (OFFSET, (), ())


def test_one_read_for_all_records():
    target = make_target([400, *pcs(400)], 512)
    read_buffer_at(target, make_layout(), facts_of(512))
    assert target.reads == [(AREA, 8), (AREA + 8, 3200)]


@pytest.mark.parametrize("stored", [512, 1 << 32, (1 << 64) - 1])
def test_hostile_counts_are_cut(stored):
    buffer = read([stored, *pcs(511)])
    assert list(buffer.words) == pcs(511)
    assert buffer.stored_count == stored
    assert f"{stored:#x}" in buffer.remarks[0]
    private = read([stored, *pcs(511)], where=facts_of(512, private=True))
    assert f"{stored:#x}" in private.remarks[0]
    assert private.remarks[0] != buffer.remarks[0]


def test_full_says_that_it_may_be_cut():
    buffer = read([511, *pcs(511)])
    assert buffer.full
    assert "full" in buffer.remarks[0]
    assert not read([510, *pcs(511)]).remarks


def test_comparisons_and_what_is_left_over_at_the_end():
    records = [word for pc in pcs(3) for word in (5, 1, 2, pc)]
    buffer = read([3, *records, 7, 7, 7], mode="TRACE_CMP")
    assert list(buffer.words) == records
    assert (buffer.count, buffer.capacity, buffer.full) == (3, 3, True)
    assert read([(1 << 64) - 1, *records, 7, 7, 7], mode="TRACE_CMP").count == 3


def test_big_endian_and_32_bits():
    words = [2, 0xC0000005, 0xC0000015]
    buffer = read(
        words, 64, word=4, order=">", big_endian=True, word_size=4, layout=make_layout(word=4)
    )
    assert list(buffer.words) == words[1:]
    records = struct.pack(">5Q", 1, 5, 1, 2, 0xC0000005)
    target = make_target([0], 64, word=4, big_endian=True, word_size=4)
    target.write(AREA, records)
    compared = read_buffer_at(target, make_layout(word=4), facts_of(64, "TRACE_CMP"))
    assert list(compared.words) == [5, 1, 2, 0xC0000005]
    assert compared.capacity == (64 * 4 // 8 - 1) // 4


def test_a_missing_page_is_a_gap_and_no_zeros():
    target = make_target([1500, *pcs(1500)], 2048)
    target.holes = [(AREA + 4096, AREA + 8192)]
    buffer = read_buffer_at(target, make_layout(), facts_of(2048))
    # Word 512 is record 511; a page holds 512 words.
    assert buffer.gaps == (Gap(511, 512),)
    assert list(buffer.words[:511]) == pcs(511)
    assert list(buffer.words[1023:]) == pcs(1500)[1023:]
    assert any("512 of 1500 records" in remark for remark in buffer.remarks)


def test_a_comparison_over_a_missing_page_is_missing_as_a_whole():
    records = [word for pc in pcs(300) for word in (5, 1, 2, pc)]
    target = make_target([300, *records], 2048)
    target.holes = [(AREA + 4096, AREA + 8192)]
    buffer = read_buffer_at(target, make_layout(), facts_of(2048, "TRACE_CMP"))
    # Records 127 and 255 begin or end in the page that is missing.
    assert buffer.gaps == (Gap(127, 129),)


def test_the_page_with_the_count_is_missing():
    target = make_target([700, *pcs(700)], 1024)
    target.holes = [(AREA, AREA + 4096)]
    buffer = read_buffer_at(target, make_layout(), facts_of(1024))
    assert buffer.stored_count is None
    assert buffer.count == 700
    assert buffer.gaps == (Gap(0, 511),)
    assert "may be left over" in buffer.remarks[0]


def test_nothing_can_be_read():
    target = make_target([3, *pcs(3)], 512)
    target.segments.clear()
    with pytest.raises(ReadError, match="no record of the buffer"):
        read_buffer_at(target, make_layout(), facts_of(512))
    with pytest.raises(ReadError, match="0x1000"):
        read_buffer_at(target, make_layout(), replace(facts_of(512), address=0x1000))


def test_zeros_and_a_record_that_is_not_written_yet():
    buffer = read([4, pcs(1)[0], 0, pcs(1)[0], 0], 64)
    assert buffer.count == 4
    assert len(buffer.remarks) == 1


class LiveTarget:
    """A kernel that writes between two reads."""

    def __init__(self, target, changes):
        self._target, self._changes = target, list(changes)

    def __getattr__(self, name):
        return getattr(self._target, name)

    def read(self, address, size):
        data = self._target.read(address, size)
        if self._changes and address == AREA + 8:
            self._changes.pop(0)(self._target)
        return data


def live(words, *changes, size=64):
    target = make_target(words, size, live=True)
    return read_buffer_at(LiveTarget(target, changes), make_layout(), facts_of(size))


def test_a_record_in_flight():
    stale = 0xFFFFFFFF81999995
    buffer = live(
        [3, *pcs(2), stale], lambda target: target.write(AREA + 24, struct.pack("<Q", pcs(3)[2]))
    )
    assert list(buffer.words) == pcs(3)
    assert ["record 2" in remark for remark in buffer.remarks] == [True]
    assert not live([3, *pcs(3)]).remarks
    # Further records that are written meanwhile do no harm.
    assert list(
        live([3, *pcs(3)], lambda target: target.write(AREA, struct.pack("<Q", 9))).words
    ) == pcs(3)


def test_a_buffer_that_is_reset_meanwhile():
    again = [1, 0xFFFFFFFF81777775]
    buffer = live([3, *pcs(3)], lambda target: target.write(AREA, struct.pack("<2Q", *again)))
    assert list(buffer.words) == again[1:]
    emptied = live([3, *pcs(3)], lambda target: target.write(AREA, bytes(8)))
    assert emptied.count == 0
    assert emptied.remarks == ("the buffer was reset while it was read",)

    def shrink(target):
        count = int.from_bytes(target.read(AREA, 8), "little")
        target.write(AREA, struct.pack("<Q", count - 1))

    racing = live([40, *pcs(40)], *[shrink] * 10)
    assert any("reset" in remark for remark in racing.remarks)


# Variants.


def test_bitmap_with_its_trace():
    target = make_target([0b1011, 1 << 63, 2, *pcs(2)], 64)
    target.types = {
        "struct kcov": Structure(16, {"state": Member(8, 8, "struct kcov_state")}),
        "struct kcov_state": Structure(8, {"bitmap_size": Member(0, 4, "unsigned int")}),
    }
    target.put(KCOV, "struct kcov", {"state.bitmap_size": 128})
    buffer = read_buffer_at(
        target, make_layout({"kcov-state", "unique-bitmap"}), facts_of(64, "0x5", kcov=KCOV)
    )
    assert buffer.encoding.codec is PC
    assert list(buffer.words) == pcs(2)
    assert (buffer.bits_set, buffer.capacity) == (4, 61)
    # A bitmap that is larger than the buffer is damage.
    target.put(KCOV, "struct kcov", {"state.bitmap_size": 1 << 30})
    damaged = read_buffer_at(
        target, make_layout({"kcov-state", "unique-bitmap"}), facts_of(64, "0x5", kcov=KCOV)
    )
    assert any("16777216 words" in remark for remark in damaged.remarks)


def test_a_bitmap_that_the_kernel_has_forgotten():
    target = make_target([1 << 63 | 0b1011, 0, 3, *pcs(3)], 64)
    layout = make_layout({"kcov-state", "unique-bitmap"})
    assert any(
        "bitmap" in remark
        for remark in read_buffer_at(target, layout, facts_of(64, "INIT")).remarks
    )
    # There is none if the mode has none, in kernels without bitmaps, and where the word is a
    # plausible count.
    for other, mode in ((layout, "TRACE_PC"), (make_layout(set()), "INIT")):
        assert not any(
            "bitmap" in remark
            for remark in read_buffer_at(target, other, facts_of(64, mode)).remarks
        )
    counted = make_target([3, *pcs(3)], 64)
    assert not any(
        "bitmap" in remark
        for remark in read_buffer_at(counted, layout, facts_of(64, "INIT")).remarks
    )


def test_what_nobody_collects_into_is_guessed():
    records = [word for pc in pcs(3) for word in (5, 1, 2, pc)]
    buffer = read([3, *records], 512, "INIT")
    assert buffer.encoding.codec is CMP
    assert list(buffer.words) == records
    assert "a guess" in buffer.remarks[0]
    assert read([3, *pcs(3)], 512, "INIT").remarks == ()
    # While the object is enabled, its mode decides the format, whatever the words look like.
    assert read([3, *records], 512, "TRACE_PC").encoding.codec is PC


def test_small_numbers_are_no_code_where_the_kernel_is_linked_low():
    """On s390x _stext is at 1 MiB, so that all comparisons of small numbers are below it."""
    low = 0x100000
    records = [word for number in range(3) for word in (5, 0, 7, low + 16 * number)]
    target = make_target([3, *records], 512)
    target.symbols["_stext"] = Symbol("_stext", low + OFFSET, 0)
    buffer = read_buffer_at(target, make_layout(), facts_of(512, "INIT"))
    assert buffer.encoding.codec is CMP
    assert list(buffer.words) == records


# Names.


@pytest.mark.parametrize(
    ("row", "names", "count", "private"),
    [
        (
            E9A,
            ("40", "kcov:0x{local:x}", "kcov:{local:x}", "area:0x{area:x}", "fd:40/3"),
            17,
            False,
        ),
        (E9A, ("kcov:0x{interrupted:x}", "saved:t60", "fd:60/64"), 7, False),
        (E7, ("saved:1", "saved:t60"), 7, False),
        # An owner's buffer, and a section's.
        (E7, ("50", "kcov:0x{remote:x}"), 30, False),
        (E9A, ("7",), 12, True),
    ],
)
def test_names_of_one_buffer(row, names, count, private):
    kernel = Kernel(row)
    found = [
        kernel.read_buffer(name)
        for name in (name.format(**kernel.objects, area=kernel.buffers["local"]) for name in names)
    ]
    assert {(buffer.count, buffer.private) for buffer in found} == {(count, private)}
    assert len({buffer.address for buffer in found}) == 1


class CutVmalloc(MemoryVmalloc):
    """Vmalloc areas up to a page that is missing."""

    def for_each_vmalloc_area(self):
        yield from super().for_each_vmalloc_area()
        raise ReadError("page is missing", 0xFFFF888000001000)


def test_areas():
    kernel = Kernel(E9A)
    cached = kernel.read_buffer(f"area:{kernel.cached['task'][0][0]:x}")
    assert (cached.count, cached.stored_count) == (0, None)
    assert "free list" in cached.remarks[0]
    address = align(kernel.allocate(2 * PAGE_SIZE), PAGE_SIZE)
    kernel.write_word(address, 1)
    kernel.write_word(address + 8, kernel.text)
    known = [VmallocArea(address, 512, "kcov_ioctl", True)]
    # A list that is whole, one that is cut behind the area, and one that is cut before it.
    for vmalloc, capacity in (
        (MemoryVmalloc(known), 63),
        (CutVmalloc(known), 63),
        (CutVmalloc(()), None),
    ):
        kernel.target.vmalloc = vmalloc
        lost = kernel.read_buffer(f"area:{address:#x}")
        assert (lost.count, lost.capacity) == (1, capacity)
        assert any("size" in remark for remark in lost.remarks) == (capacity is None)
        assert lost.remarks


def test_an_address_inside_of_a_page_is_no_buffer():
    """Buffers are allocated in whole pages: what is read there is no count."""
    kernel = Kernel(E9A)
    address = kernel.buffers["local"] + 8
    kernel.put(kernel.objects["local"], "struct kcov", area=address)
    kernel.put(kernel.tasks[40], "struct task_struct", kcov_area=address)
    for name in (f"kcov:{kernel.objects['local']:x}", "40", f"area:{address:x}"):
        with pytest.raises(KcovdbgError):
            kernel.read_buffer(name)
    found, _ = Asker(kernel.target).rows("tasks")
    rows = {row["pid"]: row for row in found}
    assert rows[40]["count"] is None
    assert rows[40]["errors"]
    kernel.put(kernel.tasks[60], "struct task_struct", kcov_area=address)
    found, _ = Asker(kernel.target).rows("areas")
    (area,) = (row for row in found if row["pid"] == 60)
    assert area["errors"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("99", "task 99"),
        ("45", "task 45 .* has no coverage buffer"),
        ("fd:40/4", "descriptor 4 of task 40"),
        ("saved:0", "CPU 0 has no saved session"),
        ("saved:t8", "task 8 has no saved session"),
        ("kcov:ffff888000000000", "0xffff888000000000"),
    ],
)
def test_what_is_not_there(name, message):
    with pytest.raises(KcovdbgError, match=message):
        Kernel(E9A).read_buffer(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "x",
        "1x",
        "kcov:",
        "kcov:zz",
        "area:",
        "fd:41",
        "fd:/3",
        "fd:a/b",
        "saved:",
        "saved:t",
        "pid:3",
    ],
)
def test_what_is_no_name(name):
    with pytest.raises(UsageError) as caught:
        parse_name(name)
    assert caught.value.hint


@settings(deadline=None, max_examples=150)
@given(
    words=st.lists(st.integers(0, (1 << 64) - 1) | st.sampled_from([0, 5, *pcs(3)]), max_size=100),
    size=st.integers(2, 1200),
    mode=st.sampled_from([None, *MODES.values(), "UNIQUE_PC"]),
    features=st.sets(st.sampled_from(["unique-bitmap", "ext-records", "unique-maps"])),
    hole=st.none() | st.integers(0, 2),
    private=st.booleans(),
    cached=st.booleans(),
    live_kernel=st.booleans(),
)
def test_random_memory_never_breaks_a_reader(
    words, size, mode, features, hole, private, cached, live_kernel
):
    target = make_target(words[:size], size, live=live_kernel)
    if hole is not None:
        target.holes = [(AREA + 4096 * hole, AREA + 4096 * (hole + 1))]
    try:
        buffer = read_buffer_at(
            target,
            make_layout(features),
            facts_of(size, mode, kcov=KCOV, private=private, cached=cached),
        )
    except ReadError:
        assert hole is not None
        return
    assert len(buffer.words) == buffer.count * buffer.encoding.record_words
    assert buffer.capacity is None or buffer.count <= buffer.capacity
    assert all(
        gap.first >= 0 and gap.first + gap.length <= buffer.count and gap.length
        for gap in buffer.gaps
    )


def test_addresses_and_edges_in_one_answer():
    kernel = Kernel(J)
    asker = Asker(kernel.target)
    kcov = kernel.objects["both"]
    (row,) = asker.rows(f"objects {kcov:#x}")[0]
    edges = int(row["edge_area"], 16)
    assert (row["count"], row["edge_count"]) == (3, 3)
    assert edges not in (0, kernel.buffers["both"])
    # One edge less than addresses, and another one first.
    kernel.write_word(edges, 2)
    kernel.write_word(edges + 8, kernel.text + 0x123)
    kernel.write_word(edges + 16, kernel.text + 0x456)
    for name in (f"kcov:{kcov:#x}", "202"):
        rows, said = Asker(kernel.target).rows(f"buffer {name} --raw")
        assert [(row["kind"], row["index"], int(row["pc"], 16) - kernel.text) for row in rows] == [
            *(("pc", index, 0x10 * index) for index in range(3)),
            ("edge", 0, 0x123),
            ("edge", 1, 0x456),
        ]
        assert f"area:{edges:#x}" in said
    text, _ = Asker(kernel.target).ask(f"buffer kcov:{kcov:#x} -n 1")
    assert "1 more edges" in text
    # The function of an edge is unknown: a filter leaves edges out, and a remark says so.
    rows, said = Asker(kernel.target).rows(f"buffer kcov:{kcov:#x} --function nothing_of_this_name")
    assert rows == []
    assert "2 edges are left out" in said


def test_edges_that_are_left():
    kernel = Kernel(J)
    kcov = kernel.objects["both"]
    kernel.put(kcov, "struct kcov", mode=1, t=0, sequence=2)
    kernel.put(
        kernel.tasks[202], "struct task_struct", kcov=0, kcov_mode=0, kcov_size=0, kcov_area=0
    )
    rows, said = Asker(kernel.target).rows(f"buffer kcov:{kcov:#x}")
    assert [row["kind"] for row in rows] == ["pc"] * 3 + ["edge"] * 3
    assert "edges are left" in said
    # A buffer without records is shown as empty.
    rows, said = Asker(kernel.target).rows(f"buffer kcov:{kernel.objects['stopped']:#x}")
    assert {row["kind"] for row in rows} == {"pc"}
    assert "edges" not in said


def test_edges_that_can_t_be_read_are_named():
    kernel = Kernel(J)
    kcov = kernel.objects["both"]
    kernel.put(kernel.maps["both", "map_edge"], "struct kcov_map", area=0xFFFFC9007F000000)
    rows, said = Asker(kernel.target).rows(f"buffer kcov:{kcov:#x}")
    assert {row["kind"] for row in rows} == {"pc"}
    assert "0xffffc9007f000000 can" in said
    (row,) = Asker(kernel.target).rows(f"objects {kcov:#x}")[0]
    assert row["edge_count"] is None
    assert any("0xffffc9007f000000" in error for error in row["errors"])
