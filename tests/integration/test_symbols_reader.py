# SPDX-License-Identifier: LGPL-2.1-or-later
"""The compiled reader of DWARF agrees with llvm-symbolizer and drgn, and survives damage."""

import os
import subprocess

import pytest

from kcovdbg.elf.file import ElfFile
from kcovdbg.errors import CapabilityError
from kcovdbg.model.location import normalize_path
from kcovdbg.symbols import address_locator, table_builder
from kcovdbg.symbols.awaited_table import AwaitedTable
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.symbolizer import ImageText, Symbolizer, find_image_text
from kcovdbg.symbols.table_builder import build_table_file
from kcovdbg.symbols.table_cache import TableBuild, find_table_key, lock_path, table_path
from tests.support.compiled_image import HEADER, VARIANTS, compile_image, find_compilers
from tests.support.programs import output_of, split_image


@pytest.fixture
def image(tmp_path):
    return compile_image(tmp_path)


def rows_of(path):
    table = LocationTable(path)
    pcs = list(table.pcs())
    rows = table.get_rows(pcs)
    return pcs, rows, list(table.functions()), table.text_ranges()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("compiler", find_compilers())
def test_tables_have_what_debug_info_says(tmp_path, compiler, variant):
    """Of every compiler, for every machine; drgn reads the same debug info."""
    image = compile_image(tmp_path, compiler, *VARIANTS[variant])
    if variant == "64-bit DWARF":
        with pytest.raises(CapabilityError):
            build_table_file(image, folder=tmp_path / "reader")
        return
    table = LocationTable(build_table_file(image, folder=tmp_path / "reader"))
    pcs = list(table.pcs(PointKind.PC))
    mine = [frames for _, frames in table.get_rows(pcs)]
    assert len(pcs) > 9
    assert {frame.file for frames in mine for frame in frames} >= {"src/first.c", "src/second.c"}
    if "split" in variant:
        # Inlined frames are in other files, which are not read.
        assert {frames[0].function for frames in mine} >= {"first", "second"}
        return
    assert max(map(len, mine)) == 3
    from kcovdbg.target.drgn.lines import frames_at, open_image_program

    program = open_image_program(image, pcs[0] - 0x1000, pcs[-1] + 0x1000)
    # For some files of clang drgn has the whole path.
    theirs = [
        [
            frame._replace(file=frame.file.removeprefix(f"{tmp_path}/"))
            for frame in frames_at(program, pc - 1)
        ]
        for pc in pcs
    ]
    assert list(map(list, mine)) == theirs


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_many_other_addresses_are_located_at_once(tmp_path, compiler):
    """Those of all instructions, most of which are no points; the debugger is not asked."""
    image = compile_image(tmp_path, compiler)
    table = LocationTable(build_table_file(image, folder=tmp_path / "reader"))
    (text,) = (part for part in table.text_ranges() if part.name == ".text")
    pcs = [pc + 1 for pc in range(text.start, text.end) if table.get_rows([pc + 1]) == [None]]
    assert len(pcs) > 200
    from kcovdbg.target.drgn.lines import frames_at, open_image_program

    program = open_image_program(image, text.start, text.end)

    def by_debugger(address):
        # For some files of clang drgn has the whole path.
        frames = frames_at(program, address)
        return tuple(
            frame._replace(file=normalize_path(frame.file.removeprefix(f"{tmp_path}/")))
            for frame in frames
        )

    asked = []
    awaited = AwaitedTable(table)
    one_by_one = Symbolizer(table=awaited, fallback=by_debugger).locate_all(pcs)
    with ElfFile(image) as elf:
        code = find_image_text(elf.build_id, image)
    at_once = Symbolizer(table=awaited, fallback=asked.append, text=code).locate_all(pcs)
    assert at_once == one_by_one
    assert not asked
    # An image that is gone leaves them to the debugger.
    gone = ImageText(table.text_ranges(), tmp_path / "none")
    alone = Symbolizer(table=awaited, fallback=by_debugger, text=gone)
    assert alone.locate_all(pcs) == one_by_one


def test_debug_info_in_a_file_of_its_own(image, tmp_path):
    """As debuginfod serves it: code from the stripped image, everything else from the other
    file.
    """
    whole = rows_of(build_table_file(image, folder=tmp_path / "whole"))
    debug, stripped = split_image(image)
    assert rows_of(build_table_file(debug, code=stripped, folder=tmp_path / "apart")) == whole
    with pytest.raises(CapabilityError) as alone:
        build_table_file(debug, folder=tmp_path / "alone")
    assert alone.value.hint is not None
    (tmp_path / "other").mkdir()
    other = compile_image(
        tmp_path / "other", "gcc", "-gdwarf-5", "-DOTHER", "-fno-inline-small-functions"
    )
    with pytest.raises(CapabilityError):
        build_table_file(debug, code=other, folder=tmp_path / "other")


@pytest.mark.parametrize("kind", ["zlib", "zlib-gnu", "zstd"])
def test_compressed_debug_info(image, tmp_path, kind):
    whole = rows_of(build_table_file(image, folder=tmp_path / "whole"))
    done = subprocess.run(
        ["objcopy", f"--compress-debug-sections={kind}", image], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"objcopy cannot compress with {kind}")
    assert rows_of(build_table_file(image, folder=tmp_path / "compressed")) == whole


def test_progress_of_a_build(image, tmp_path, monkeypatch):
    """Other processes see how many parts are finished; what an earlier build left is no
    progress.
    """
    monkeypatch.setattr(address_locator, "_PART_BYTES", 1)
    seen = []
    written = table_builder.write_progress
    lock = lock_path(table_path(find_table_key(image), tmp_path))
    lock.write_bytes(b"\1" * 8)

    def write(descriptor, progress):
        seen.append((len(lock.read_bytes()), progress))
        written(descriptor, progress)

    monkeypatch.setattr(table_builder, "write_progress", write)
    build_table_file(image, folder=tmp_path)
    assert seen == [(8, (0, 0)), (8, (1, 2)), (8, (2, 2))]


@pytest.mark.parametrize("content", [b"", b"\1", bytes(8), b"\2\0\0\0\1\0\0\0", bytes(9)])
def test_damaged_progress_is_none(image, tmp_path, content):
    key = find_table_key(image)
    build_table_file(image, folder=tmp_path)
    build = TableBuild(image, key, tmp_path)
    lock_path(table_path(key, tmp_path)).write_bytes(content)
    assert build.progress() is None
    assert build.find() is not None


SPELLINGS = ("../sub/inlined.h", "sub/inlined.h", "../src/./..//sub/inlined.h", "inlined.h")


@pytest.mark.parametrize("version", ["-gdwarf-4", "-gdwarf-5"])
def test_a_file_has_one_name_however_units_reach_it(tmp_path, version):
    """Names are those of addr2line, as normpath() has them."""
    for name in ("src", "sub"):
        (tmp_path / name).mkdir()
    (tmp_path / "sub/inlined.h").write_text(HEADER)
    objects = []
    for number, spelling in enumerate(SPELLINGS):
        body = (
            f'#include "{spelling}"\n__attribute__((noinline)) int f{number}(int a) {{ return '
            f"chained(a); }}\n"
        )
        objects.append(f"src/f{number}.o")
        (tmp_path / f"src/f{number}.c").write_text(body)
        flags = [version, "-O2", "-fno-pie", "-I.", "-I./sub", "-fsanitize-coverage=trace-pc"]
        output_of("gcc", *flags, "-c", f"src/f{number}.c", "-o", objects[-1], cwd=tmp_path)
    start = "void __sanitizer_cov_trace_pc(void) {}\nvoid _start(void) {}\n"
    (tmp_path / "start.c").write_text(start)
    link = [
        "-fno-pie",
        "-no-pie",
        "-nostdlib",
        "-static",
        "-Wl,--build-id",
        "-o",
        "image",
        "start.c",
        *objects,
    ]
    output_of("gcc", *link, cwd=tmp_path)
    table = LocationTable(build_table_file(tmp_path / "image", folder=tmp_path / "tables"))
    pcs = list(table.pcs(PointKind.PC))
    text = output_of(
        "addr2line", "-i", "-a", "-e", tmp_path / "image", *(f"{pc - 1:#x}" for pc in pcs)
    )
    theirs = []
    for line in text.splitlines():
        if line.startswith("0x"):
            theirs.append([])
        else:
            file = os.path.normpath(line.partition(":")[0])
            theirs[-1].append(file.removeprefix(f"{tmp_path}/"))
    assert len(pcs) > 8
    assert [
        [os.path.normpath(frame.file) for frame in frames] for _, frames in table.get_rows(pcs)
    ] == theirs
    assert sorted(map(os.path.normpath, table.files())) == [
        "src/f0.c",
        "src/f1.c",
        "src/f2.c",
        "src/f3.c",
        "sub/inlined.h",
    ]
    from kcovdbg.target.drgn.lines import frames_at, open_image_program

    program = open_image_program(tmp_path / "image", pcs[0] - 0x1000, pcs[-1] + 0x1000)
    for pc in pcs:
        assert all("/.." not in frame.file for frame in frames_at(program, pc - 1))


PATHS = (
    "a/b.c",
    "./a/b.c",
    "a/../b.c",
    "./a/../b.c",
    "a/b/../../c.h",
    "../a/../b.c",
    "a/../../b.c",
    "./../a",
    "/../a//b/./c",
    "..",
)


@pytest.mark.parametrize("path", PATHS)
def test_paths_without_parents(path):
    """As normpath() has them, but for what they begin with."""
    normal = normalize_path(path)
    assert os.path.normpath(normal) == normal.removeprefix("./") == os.path.normpath(path)
