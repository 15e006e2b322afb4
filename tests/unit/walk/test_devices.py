# SPDX-License-Identifier: LGPL-2.1-or-later
"""A device that a posted series adds: its objects, handles, sessions and records of different
lengths.
"""

import dataclasses
from array import array

import pytest

from kcovdbg.abi import record
from kcovdbg.collect.trace_writer import make_header, write_trace
from kcovdbg.errors import KcovdbgError
from kcovdbg.model.state import Part, Source
from kcovdbg.records.located_records import select_records
from kcovdbg.records.trace_reader import read_trace
from kcovdbg.series.kcov_dataflow import CODEC, EARLY_CODEC, WITHOUT_HANDLES
from tests.support.kernels.asker import Asker
from tests.support.kernels.build import Kernel
from tests.support.kernels.device import (
    HANDLE,
    LOCAL,
    REMOTE_WORDS,
    WORDS,
    WORKER,
    argument,
    early,
    records_of,
)
from tests.support.kernels.rows import D2, D_EARLY, E8


@pytest.fixture
def kernel():
    return Kernel(D2)


@pytest.fixture
def ask(kernel):
    asker = Asker(kernel.target)

    def rows(command):
        found, said = asker.rows(command)
        assert "error" not in said, said
        return found

    return rows


def of_device(rows):
    return [row for row in rows if row["device"] is not None]


def test_objects(kernel, ask):
    found = {row["kcov"]: row for row in of_device(ask("objects"))}
    objects = {name: hex(address) for name, address in kernel.device.objects.items()}
    assert set(found) == set(objects.values())
    keys = (
        "device",
        "refcount",
        "counted",
        "mode",
        "size",
        "pid",
        "remote",
        "count",
        "capacity",
        "full",
    )
    assert [
        [found[objects[name]][key] for key in keys] for name in ("local", "remote", "idle")
    ] == [
        ["dataflow", 2, 2, "DATAFLOW", WORDS, LOCAL, False, 18, WORDS - 1, False],
        ["dataflow", 2, 2, "DATAFLOW", WORDS, None, True, 0, WORDS - 1, False],
        ["dataflow", 1, 1, None, WORDS, None, False, 0, WORDS - 1, False],
    ]
    kinds = [
        (one["kind"], one["counts"], one["pid"], one["handle"])
        for one in found[objects["remote"]]["references"]
    ]
    assert sorted(kinds, key=str) == [
        ("fd", 1, 40, None),
        ("remote", 0, None, hex(HANDLE)),
        ("section", 1, 1, None),
    ]


def test_handles(kernel, ask):
    (found,) = of_device(ask("remote"))
    assert (found["handle"], found["bucket"], found["kcov"]) == (
        hex(HANDLE),
        3,
        hex(kernel.device.objects["remote"]),
    )


def test_tasks(kernel, ask):
    found = {row["pid"]: row["devices"] for row in ask("tasks") if row["devices"]}
    areas = {name: hex(area) for name, area in kernel.device.areas.items()}
    local = {"role": "local", "area": areas["local"], "size": WORDS, "count": 18, "sequence": 4}
    section = {
        "role": "remote-section",
        "area": areas["section"],
        "size": REMOTE_WORDS,
        "count": 4,
        "sequence": 4,
    }
    assert set(found) == {LOCAL, 1}
    for pid, expected in ((LOCAL, local), (1, section)):
        (session,) = found[pid]
        assert {key: session[key] for key in expected} == expected


def test_records(kernel, ask):
    rows = ask(f"buffer dataflow:{kernel.device.objects['local']:#x}")
    assert [(row["kind"], row["argument"], row["size"], row["values"]) for row in rows] == [
        ("argument", 0, 4, ["0x5"]),
        ("argument", 1, 16, ["0x10", None]),
        ("cmp", None, 4, ["0x2", "0x7"]),
        ("return", None, 8, ["0xffffffffffffffff"]),
    ]
    assert [int(row["pc"], 16) for row in rows] == [words[1] for words in records_of(kernel)]


@pytest.mark.parametrize("name", [str(LOCAL), f"dataflow:{LOCAL}", "fd:40/30", "area:LOCAL"])
def test_names_of_a_buffer(kernel, ask, name):
    name = (
        name.replace("LOCAL", hex(kernel.device.areas["local"]))
        if name.startswith("area")
        else name
    )
    assert ask(f"buffer {name}") == ask(f"buffer dataflow:{kernel.device.objects['local']:#x}")


def test_unknown_names(kernel):
    for name in ("dataflow:40", "dataflow:0x10", f"dataflow:{kernel.objects['local']:#x}"):
        assert "error: " in Asker(kernel.target).ask(f"buffer {name}")[1]


def test_an_object_without_a_buffer(kernel):
    idle = kernel.device.objects["idle"]
    kernel.put(idle, "struct kcov_dataflow", size=0, area=0)
    with pytest.raises(KcovdbgError) as caught:
        kernel.read_buffer(f"dataflow:{idle:#x}")
    # The request is the series' own.
    assert "KCOV_DF_INIT_TRACK" in (caught.value.hint or "")


def test_filtered_records_keep_their_length(ask):
    assert [row["index"] for row in ask(f"buffer {LOCAL} --tail -n 2")] == [2, 3]


@pytest.mark.parametrize(
    "line",
    ["source 44", "report 44 -o -", "export lcov 44", "diff 44 dataflow:1", "diff --ordered 44 44"],
)
def test_what_needs_coverage_points_refuses_in_one_line(kernel, line):
    out, said = Asker(kernel.target).ask(line)
    assert out == ""
    assert said.startswith("error: ")
    assert CODEC.noun in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    "line", ["trace 44", "top 44", "view 44 --text", "view 44 dataflow:1 --text", "why 44"]
)
def test_what_needs_functions_answers(kernel, line):
    out, said = Asker(kernel.target).ask(line)
    assert out
    assert "error" not in said


def test_trace_names_the_values_of_a_call(kernel, ask):
    (row,) = ask(f"trace {LOCAL} --include all")
    assert row["values"] == ["#0 = 0x5", "#1 = {0x10 (16), ?}", "return 0xffffffffffffffff (-1)"]
    words = [word for words in (*records_of(kernel), *records_of(kernel)) for word in words]
    kernel.device.fill(kernel.device.areas["local"], words)
    # A second call is another one's values.
    assert ask(f"trace {LOCAL} --include all")[0]["values"] == row["values"]
    assert ask("trace 42")[0]["values"] == []


def test_trace_file(kernel, tmp_path):
    buffer = kernel.read_buffer(str(LOCAL))
    write_trace(tmp_path / "a.kcov", buffer, make_header(buffer))
    assert (tmp_path / "a.kcov").read_bytes() == kernel.target.read(
        kernel.device.areas["local"], 8 * 19
    )
    again = read_trace(tmp_path / "a.kcov")
    assert (again.count, list(again.words), again.encoding.codec) == (4, list(buffer.words), CODEC)
    assert list(again.encoding.starts) == list(buffer.encoding.starts) == [0, 4, 9, 14]


def test_reasons(kernel, ask):
    def reasons(subject):
        return {row["code"] for row in ask(f"why {subject}") if row["code"].startswith("device")}

    objects = kernel.device.objects
    assert reasons(LOCAL) == {"device-records"}
    assert reasons(hex(HANDLE)) == {"device-records"}
    assert reasons(hex(objects["remote"])) == {"device-records"}
    assert reasons(hex(objects["idle"])) == {"device-disabled"}
    kernel.device.fill(kernel.device.areas["local"], [0] * (WORDS - 4))
    assert reasons(LOCAL) == {"device-full"}
    assert reasons(hex(objects["local"])) == {"device-records", "device-full"}


def find(words):
    return record.split_records(array("Q", words), record.make_encoding(CODEC, 8))


def test_words_that_are_no_record_end_the_records():
    whole = argument(1, 0x1000, 0, 1)
    for rest in ([], [0], whole[:3], [0xA << 28, 1, 2, 3], [0xFFFF << 32 | 0xE << 28, 1, 2, 3]):
        words, encoding = find([*whole, *rest])
        assert (list(words), list(encoding.starts)) == (whole, [0])
        with pytest.raises(IndexError):
            record.decode_record(words, 1, encoding)


def test_overwritten_words_are_told(kernel):
    kernel.write_word(kernel.device.areas["local"] + 8 * 5, 0, 8)
    rows, said = Asker(kernel.target).rows(f"buffer {LOCAL}")
    assert len(rows) == 1
    assert "14 of 18 words" in said


@pytest.mark.parametrize(
    ("used", "full"), [(WORDS - 5, False), (WORDS - 4, True), (WORDS - 1, True), (2**63, True)]
)
def test_full(kernel, ask, used, full):
    kernel.write_word(kernel.device.areas["idle"], used, 8)
    idle = hex(kernel.device.objects["idle"])
    assert {row["kcov"]: row["full"] for row in of_device(ask("objects"))}[idle] is full


def test_broken_lists_are_told(kernel):
    kernel.write_word(
        kernel.device.entry + kernel.offset("struct kcov_df_remote", "hnode"),
        kernel.device.entry + 16,
    )
    kernel.write_word(kernel.device.free[0], 0x10)
    state = kernel.reader().read(Part.DEVICES)
    assert len(state.notes) >= 2
    (device,) = state.devices
    assert device.idle_count is None


def test_areas(kernel, ask):
    kernel.device.allocate_section()
    section, free = kernel.device.areas["section"], kernel.device.free
    found = {
        int(row["area"], 16): (row["state"], row["size"], row["pid"], row["list"])
        for row in of_device(ask("areas"))
    }
    assert {found.pop(area) for area in free} == {("cached", REMOTE_WORDS, None, "task")}
    assert found.pop(section) == ("in-use", REMOTE_WORDS, WORKER, "task")
    assert list(found.values()) == [("unclaimed", REMOTE_WORDS, None, "task")]
    # Where part of the device is unreadable, an area may be on the rest of its list.
    kernel.write_word(free[0], 0x10)
    assert {row["state"] for row in of_device(ask("areas"))} == {"cached", "in-use", None}


SECTION_SYMBOLS = ("kcov_df_remote_map", "kcov_df_scratch_pool", "kcov_df_scratch_pool_nr")


def without_sections(kernel, *, symbols=SECTION_SYMBOLS, has_type=False):
    """Remove what a build without remote sections lacks."""
    for name in symbols:
        del kernel.target.symbols[name]
    if not has_type:
        del kernel.target.types["struct kcov_df_remote"]


def test_sections_that_a_kernel_lacks_are_not_unread(kernel):
    without_sections(kernel)
    assert kernel.reader().read(Part.DEVICES).lacks(Source.DEVICES) == ()


@pytest.mark.parametrize(
    "lost",
    [
        {"symbols": ()},
        {"has_type": True},
        {"symbols": SECTION_SYMBOLS[:1]},
        {"symbols": (*SECTION_SYMBOLS, "kcov_df_fops")},
    ],
    ids=["type", "symbols", "type and map", "type and all symbols of the device"],
)
def test_sections_of_which_a_part_is_lost_are_unread(kernel, lost):
    without_sections(kernel, **lost)
    assert kernel.reader().read(Part.DEVICES).lacks(Source.DEVICES)


@pytest.fixture
def second_posting():
    return Kernel(D_EARLY)


def test_the_second_posting(second_posting):
    asker = Asker(second_posting.target)
    device = second_posting.device
    found = {row["kcov"]: row for row in of_device(asker.rows("objects")[0])}
    keys = ("refcount", "counted", "size", "pid", "remote", "count", "full")
    assert [
        [found[hex(device.objects[name])][key] for key in keys] for name in ("local", "idle")
    ] == [
        [1, 1, WORDS, LOCAL, None, 15, False],
        [1, 1, WORDS, None, None, 0, False],
    ]
    (session,) = next(row["devices"] for row in asker.rows("tasks")[0] if row["pid"] == LOCAL)
    assert (session["kcov"], session["role"], session["sequence"]) == (
        hex(device.objects["local"]),
        "local",
        3,
    )
    rows, said = asker.rows(f"buffer {LOCAL}")
    assert said == ""
    pc = second_posting.text + 0x40 + second_posting.target.kaslr_offset
    assert [
        (row["kind"], row["argument"], row["size"], row["values"], int(row["address"], 16))
        for row in rows
    ] == [
        ("argument", 0, 4, ["0x5"], pc),
        ("argument", 1, 32, ["0x10", None, "0xe0000003", "0x10"], pc),
        ("return", None, 8, ["0xffffffffffffffff"], pc + 8),
    ]
    assert asker.rows(f"buffer dataflow:{device.objects['local']:#x}")[0] == rows
    assert [
        row["code"] for row in asker.rows(f"why {LOCAL}")[0] if row["code"].startswith("device")
    ] == ["device-records"]


def test_pcs_of_the_second_posting_have_the_kaslr_offset(second_posting):
    target = second_posting.target
    before = Asker(target).rows(f"buffer {LOCAL}")[0]
    target.kaslr_offset += 0x1000000
    after = Asker(target).rows(f"buffer {LOCAL}")[0]
    assert [(row["pc"], row["address"]) for row in after] == [
        (row["pc"], row["address"]) for row in before
    ]


def test_a_part_of_the_records_of_the_second_posting(second_posting):
    """Where a record ends is known by the next one, which a filter may leave out."""
    device, pc = (
        second_posting.device,
        second_posting.text + 0x40 + second_posting.target.kaslr_offset,
    )
    records = [
        early(0xE, number, pc + (0x1000 if 1 < number < 90 else 0), 0, (number,))
        for number in range(1, 95)
    ]
    device.fill(device.areas["local"], [word for one in records for word in one])
    part = select_records(second_posting.read_buffer(str(LOCAL)), [0, 89, 90])
    found = [record.decode_record(part.words, index, part.encoding) for index in range(part.count)]
    assert [one.values.values for one in found] == [(1,), (90,), (91,)]


PC = 0xFFFFFFFF81000040


def find_early(*records):
    words = array("Q", [word for one in records for word in one])
    words, encoding = record.split_records(words, record.make_encoding(EARLY_CODEC, 8))
    found = [record.decode_record(words, index, encoding) for index in range(len(encoding.starts))]
    return [
        (
            one.kind.value,
            one.values.argument,
            one.values.size,
            one.values.pointer,
            one.values.values,
        )
        for one in found
    ]


@pytest.mark.parametrize("counts", [False, True])
def test_records_end_where_the_next_one_begins(counts):
    """By the number of values in the header, and where it has none by what the next record looks
    like.
    """
    pointer = 0xFFFF888003005000
    given = [(0xE, 0, (1,)), (0xE, 1, (2, 3, 4)), (0xF, 0, (5,)), (0xE, 0, (PC, 0xE0000009, PC))]
    records = [
        early(kind, sequence, PC, pointer, values, 8, argument, len(values) if counts else 0)
        for sequence, (kind, argument, values) in enumerate(given, 7)
    ]
    expected = [
        (
            "return" if kind == 0xF else "argument",
            None if kind == 0xF else argument,
            8,
            pointer,
            values,
        )
        for kind, argument, values in given
    ]
    assert find_early(*records) == expected


def test_early_sequences_wrap_and_may_be_out_of_order():
    numbers = (0xFFFFFE, 0xFFFFFF, 0, 2, 1, 3)
    found = find_early(*(early(0xE, number, PC, 0, (number, 9)) for number in numbers))
    assert [values for *_, values in found] == [(number, 9) for number in numbers]


def test_a_value_that_looks_like_a_header_is_one_by_its_pc():
    # A member of a structure may have any value; what follows a header is an address of code.
    assert [
        values
        for *_, values in find_early(
            early(0xE, 1, PC, 0, (0xE0000002, 0x42, 7)), early(0xF, 2, PC, 0, (8,))
        )
    ] == [
        (0xE0000002, 0x42, 7),
        (8,),
    ]


def test_more_values_than_the_second_posting_can_count():
    given = tuple(range(0x100, 0x113))
    found = find_early(early(0xF, 1, PC, 0, given), early(0xE, 2, PC, 0, (1,), count=1))
    assert [values for *_, values in found] == [given, (1,)]


@pytest.mark.parametrize(
    "rest", [[], [0], [0xE0000001], [0xE0000001, PC, 0], [1 << 32 | 0xE0000001, PC, 0, 0]]
)
def test_early_words_that_are_no_record(rest):
    assert find_early(rest) == []


def test_the_second_posting_is_recognized():
    kernel = Kernel(D_EARLY)
    (info,) = Asker(kernel.target).rows("info")[0]
    assert "dataflow-early" in info["features"]
    assert info["variants"] == [WITHOUT_HANDLES.text]
    assert len(Asker(kernel.target).rows(f"buffer {LOCAL}")[0]) == 3


def test_the_first_posting_is_not_taken_for_a_later_one():
    """Its records are of another form."""
    task = D_EARLY.task.replace("kcov_df_seq", "kcov_dataflow_seq")
    kernel = Kernel(dataclasses.replace(E8, task=task, more=D_EARLY.more))
    asker = Asker(kernel.target)
    (info,) = asker.rows("info")[0]
    assert (info["generation"], info["variants"]) == ("E8", [])
    assert not [feature for feature in info["features"] if feature.startswith("dataflow")]
    assert of_device(asker.rows("objects")[0]) == []
