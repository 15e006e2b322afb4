# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where modules were loaded: read from sysfs, kept in side files, and applied to traces of other
boots.
"""

import json
import struct

import pytest

from kcovdbg.abi.record import decode_record
from kcovdbg.collect.trace_writer import find_loaded_modules, make_header, write_trace
from kcovdbg.elf.header import NT_GNU_BUILD_ID, make_note
from kcovdbg.inputs.trace_kernel import TraceModules
from kcovdbg.model.location import LoadedModule, move_pcs
from kcovdbg.records.pc_list import TraceKernel
from kcovdbg.records.side_file import read_header, side_path
from kcovdbg.records.trace_reader import read_trace

OFFSET = 0x5000000
TEXT = 0xFFFFFFFF81000000
# As KCOV records them.
OLD = 0xFFFFFFFFC0000000
NEW = 0xFFFFFFFFC0400000
KEEP = LoadedModule("keep", "aa" * 20, 0x2000, ((".exit.text", OLD + 0x1800), (".text", OLD)))
OTHER = LoadedModule("other", "bb" * 20, 0x1000, ((".text", OLD + 0x10000),))
MOVED = KEEP._replace(sections=((".exit.text", NEW + 0x300), (".text", NEW)))


def make_module(folder, name, build_id, **sections):
    (folder / name / "sections").mkdir(parents=True)
    (folder / name / "notes").mkdir()
    (folder / name / "coresize").write_text("8192\n")
    for section, address in sections.items():
        (folder / name / "sections" / f".{section.replace('__', '.')}").write_text(
            f"{address:#018x}\n"
        )
    note = make_note("GNU", NT_GNU_BUILD_ID, bytes.fromhex(build_id), "=")
    (folder / name / "notes" / ".note.gnu.build-id").write_bytes(note)


def test_modules_of_sysfs(tmp_path):
    # Init code is freed: its address may be that of another module.
    sections = {
        "text": OLD,
        "exit__text": OLD + 0x1800,
        "init__text": OLD + 0x8000,
        "rodata": OLD + 0x3000,
    }
    make_module(tmp_path, "keep", "aa" * 20, **sections)
    (tmp_path / "builtin" / "parameters").mkdir(parents=True)
    assert find_loaded_modules(tmp_path) == (KEEP,)
    # Without CAP_SYSLOG.
    make_module(tmp_path, "other", "bb" * 20, text=0)
    assert find_loaded_modules(tmp_path) is None
    assert find_loaded_modules(tmp_path / "nowhere") is None


def test_no_modules_are_not_unknown_modules(tmp_path):
    assert find_loaded_modules(tmp_path) == ()


@pytest.mark.parametrize(
    ("pc", "expected"),
    [
        (OLD + 1, NEW + 1),
        (OLD + 0x1800, NEW + 0x1800),  # the return address of a call at the end of .text
        (OLD + 0x1801, NEW + 0x301),
        (OLD, None),
        (OLD + 0x1800 + 0x2001, None),
        (TEXT, None),
    ],
)
def test_return_addresses_move_with_their_sections(pc, expected):
    assert move_pcs([pc], [KEEP, OTHER], [MOVED])[0] == ({} if expected is None else {pc: expected})


def test_modules_of_another_build_are_not_there():
    for there in ([], [MOVED._replace(build_id="cc" * 20)], [MOVED._replace(name="peek")]):
        assert move_pcs([OLD + 5, TEXT], [KEEP], there) == ({}, {OLD + 5: "keep"})


def write(path, words, mode="TRACE_PC", modules=(KEEP,)):
    places = [
        {
            **place._asdict(),
            "sections": {name: hex(address + OFFSET) for name, address in place.sections},
        }
        for place in modules
    ]
    side = {
        "format": 1,
        "mode": mode,
        "word_size": 8,
        "byteorder": "little",
        "kaslr_offset": hex(OFFSET),
        "modules": places,
    }
    path.write_bytes(struct.pack(f"<{len(words)}Q", *words))
    side_path(path).write_text(json.dumps(side))
    return path


def test_records_are_read_where_the_modules_are(tmp_path):
    path = write(tmp_path / "a.kcov", [3, TEXT + 5, OLD + 5, OLD + 0x1805])
    assert list(read_trace(path).words) == [TEXT + 5, OLD + 5, OLD + 0x1805]
    moved = read_trace(path, TraceKernel(find_modules=lambda: [MOVED]))
    assert list(moved.words) == [TEXT + 5, NEW + 5, NEW + 0x305]
    assert len(moved.remarks) == 1
    same = read_trace(path, TraceKernel(find_modules=lambda: [KEEP]))
    assert (list(same.words), same.remarks) == ([TEXT + 5, OLD + 5, OLD + 0x1805], ())


@pytest.mark.parametrize("there", [None, [], [OTHER]])
def test_unknown_places_are_told(tmp_path, there):
    buffer = read_trace(
        write(tmp_path / "a.kcov", [2, TEXT + 5, OLD + 5]), TraceKernel(find_modules=lambda: there)
    )
    assert list(buffer.words) == [TEXT + 5, OLD + 5]
    assert ["keep" in remark for remark in buffer.remarks] == [True]
    # None of its records is in a module.
    assert (
        read_trace(
            write(tmp_path / "b.kcov", [1, TEXT + 5]), TraceKernel(find_modules=lambda: there)
        ).remarks
        == ()
    )


def test_operands_stay(tmp_path):
    """A comparison's operand may look like an address in a module."""
    path = write(tmp_path / "a.kcov", [1, 7, OLD + 5, OLD + 5, OLD + 5], "TRACE_CMP")
    assert list(read_trace(path, TraceKernel(find_modules=lambda: [MOVED])).words) == [
        7,
        OLD + 5,
        OLD + 5,
        NEW + 5,
    ]


def test_entries_and_exits_keep_their_kind(tmp_path):
    kind = 0xFF << 56 ^ 1 << 60
    path = write(tmp_path / "a.kcov", [2, (OLD + 5) ^ kind, OLD + 9 & ~kind], "TRACE_PC_EXT")
    before = read_trace(path)
    after = read_trace(path, TraceKernel(find_modules=lambda: [MOVED]))
    records = [
        [decode_record(buffer.words, index, buffer.encoding) for index in range(2)]
        for buffer in (before, after)
    ]
    assert [record.kind for record in records[0]] == [record.kind for record in records[1]]
    assert [record.pc for record in records[1]] == [record.pc - OLD + NEW for record in records[0]]


def test_side_files_name_the_modules_with_records(tmp_path):
    buffer = read_trace(write(tmp_path / "a.kcov", [2, TEXT + 5, OLD + 5], modules=()))
    loaded = [place.shift(OFFSET) for place in (KEEP, OTHER)]
    header = make_header(buffer, kaslr_offset=OFFSET, modules=loaded)
    write_trace(tmp_path / "b.kcov", buffer, header)
    found = read_header(tmp_path / "b.kcov")
    assert found == header
    assert found.modules == (loaded[0],)
    assert found.recorded_modules == (KEEP,)


@pytest.mark.parametrize(
    "known", [{"kaslr_offset": OFFSET, "modules": None}, {"kaslr_offset": None, "modules": [KEEP]}]
)
def test_unknown_modules_have_no_key(tmp_path, known):
    buffer = read_trace(write(tmp_path / "a.kcov", [1, OLD + 5], modules=()))
    write_trace(tmp_path / "b.kcov", buffer, make_header(buffer, **known))
    assert "modules" not in json.loads(side_path(tmp_path / "b.kcov").read_text())
    assert read_header(tmp_path / "b.kcov").modules is None


@pytest.mark.parametrize(
    "content",
    [
        None,
        7,
        {"name": "keep"},
        ["keep"],
        [None],
        [{"name": "keep"}],
        [{"name": "keep", "build_id": None, "size": 1, "sections": []}],
        [{"name": "keep", "build_id": None, "size": "x", "sections": {}}],
        [{"name": "keep", "build_id": None, "size": -1, "sections": {}}],
        [{"name": "keep", "build_id": None, "size": 1, "sections": {".text": "zz"}}],
        [{"name": "keep", "build_id": None, "size": 1, "sections": {".text": hex(1 << 70)}}],
    ],
)
def test_malformed_modules_are_left_out(tmp_path, content):
    path = write(tmp_path / "a.kcov", [1, OLD + 5])
    side_path(path).write_text(json.dumps({"format": 1, "kaslr_offset": 0, "modules": content}))
    assert not read_header(path).modules
    assert list(read_trace(path, TraceKernel(find_modules=lambda: [MOVED])).words) == [OLD + 5]


def test_modules_of_two_boots_do_not_overlap(tmp_path):
    """One module where another boot had another one: each has a place of its own, and both traces
    are read for these.
    """
    stranger = OTHER._replace(sections=((".text", OLD + 0x1000),))
    paths = [
        write(tmp_path / "a.kcov", [1, OLD + 5]),
        write(tmp_path / "b.kcov", [1, OLD + 0x1005], modules=[stranger]),
    ]
    modules = TraceModules(map(read_header, paths), {})
    traces = [read_trace(path, TraceKernel(find_modules=lambda: modules.loaded)) for path in paths]
    assert [modules.name_at(trace.words[0] - 1) for trace in traces] == ["keep", "other"]
