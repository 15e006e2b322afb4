# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables are built from an image with source lines, or not at all."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import zstandard

from kcovdbg.elf.file import ElfFile
from kcovdbg.errors import CapabilityError, TargetError
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.symbolizer import open_symbolizer
from kcovdbg.symbols.table_builder import build_table, make_table
from kcovdbg.symbols.table_cache import TableBuild, open_table

SOURCE = """
void __attribute__((noinline)) __sanitizer_cov_trace_pc(void) { __asm__ volatile(""); }
static int value;
int __attribute__((noinline)) inner(int number) { __sanitizer_cov_trace_pc(); return number + value; }
int __attribute__((noinline)) outer(int number) { __sanitizer_cov_trace_pc(); return inner(number) + 1; }
void _start(void) { value = outer(1); for (;;) ; }
"""


@pytest.fixture
def image(tmp_path):
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    (tmp_path / "points.c").write_text(SOURCE)
    built = tmp_path / "points"
    flags = ["-g", "-O2", "-nostdlib", "-static", "-no-pie", "-fno-stack-protector", "-Wl,--build-id=sha1"]
    subprocess.run(["gcc", *flags, "points.c", "-o", built], cwd=tmp_path, check=True)
    return built


def frames_of(table):
    return {frame.function for _, frames in table.get_rows(table.pcs(PointKind.PC)) for frame in frames}


def test_image_that_goes_while_it_is_read(image, tmp_path):
    """The decompressed image is removed when its program ends; the table must be complete nevertheless."""
    folder = tmp_path / "tables"
    build_id = ElfFile(image).build_id
    process = TableBuild(image, build_id, folder).process
    image.unlink()
    assert process.wait(60) == 0
    table = open_table(build_id, folder)
    assert table is not None
    assert {"inner", "outer"} <= frames_of(table)


def test_an_image_without_locations_is_refused(image, tmp_path):
    """Its debug info is in a form that is not read: a table of nothing would stand in for a better one."""
    data = bytearray(image.read_bytes())
    with ElfFile(image) as elf:
        data[elf.section(".debug_info").offset + 4] = 3
    image.write_bytes(data)
    folder = tmp_path / "tables"
    with pytest.raises(CapabilityError, match=r"\b2\b"):
        build_table(image, folder=folder)
    assert open_table(ElfFile(image).build_id, folder) is None


def test_image_that_is_not_there(tmp_path):
    with pytest.raises(TargetError, match=re.escape(str(tmp_path / "none"))):
        build_table(tmp_path / "none", folder=tmp_path)


def test_slim_debug_info_makes_no_table(tmp_path):
    """It has the whole image's build-id: a table without points would stand in for that image's for good."""
    slim = tmp_path / "vmlinux"
    packed = Path(__file__).parents[1] / "golden/generations/6.12-gcc/vmlinux.zst"
    with packed.open("rb") as source, slim.open("wb") as target:
        zstandard.ZstdDecompressor().copy_stream(source, target)
    elf = ElfFile(slim)
    with pytest.raises(CapabilityError):
        make_table(elf)
    symbolizer = open_symbolizer(0, build_id=elf.build_id, image=slim, folder=tmp_path)
    assert symbolizer.table is None
    assert not symbolizer.waits_for_table
    assert [path.name for path in tmp_path.iterdir()] == ["vmlinux"]
