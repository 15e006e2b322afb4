# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables are built from an image with source lines, or not at all."""

import re
import shutil

import pytest

from kcovdbg.elf.file import ElfFile
from kcovdbg.errors import CapabilityError, TargetError
from kcovdbg.symbols.awaited_table import find_awaited_table
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.table_builder import build_table_file, make_table
from kcovdbg.symbols.table_cache import TableBuild, find_table_key, open_table
from kcovdbg.target.dump_file import unpack
from tests.lab.golden import DEBUG_INFO, DESTINATION
from tests.support.compiled_image import compile_image


@pytest.fixture
def image(tmp_path):
    return compile_image(tmp_path)


def test_image_that_goes_while_it_is_read(image, tmp_path):
    """The decompressed image is removed when its program ends; the table must be complete
    nevertheless.
    """
    folder = tmp_path / "tables"
    key = find_table_key(image)
    assert find_awaited_table("00" * 20, image, folder=folder).found is None
    process = TableBuild(image, key, folder).process
    image.unlink()
    assert process.wait(60) == 0
    table = open_table(key, folder)
    assert table is not None
    functions = {
        frame.function for _, frames in table.get_rows(table.pcs(PointKind.PC)) for frame in frames
    }
    assert {"first", "second"} <= functions


def test_an_image_without_locations_is_refused(image, tmp_path):
    """Its debug info is in a form that is not read: a table of nothing would stand in for a better
    one.
    """
    data = bytearray(image.read_bytes())
    with ElfFile(image) as elf:
        data[elf.section(".debug_info").offset + 4] = 3
    image.write_bytes(data)
    folder = tmp_path / "tables"
    with pytest.raises(CapabilityError, match=r"\d+ of \d+"):
        build_table_file(image, folder=folder)
    assert open_table(find_table_key(image), folder) is None


def test_image_that_is_not_there(tmp_path):
    with pytest.raises(TargetError, match=re.escape(str(tmp_path / "none"))):
        build_table_file(tmp_path / "none", folder=tmp_path)


def test_slim_debug_info_makes_no_table(tmp_path):
    """It has the whole image's build-id: a table without points would stand in for that image's for
    good.
    """
    slim = tmp_path / "vmlinux"
    shutil.copy(unpack(DESTINATION / "6.12-gcc" / DEBUG_INFO).path, slim)
    elf = ElfFile(slim)
    with pytest.raises(CapabilityError):
        make_table(elf)
    table = find_awaited_table(elf.build_id, slim, folder=tmp_path)
    assert table.found is None
    assert not table.is_awaited
    assert [path.name for path in tmp_path.iterdir()] == ["vmlinux"]
