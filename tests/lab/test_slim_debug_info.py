# SPDX-License-Identifier: LGPL-2.1-or-later
"""Slim debug info has the types of the wanted sources and the address of every symbol, but no code or data of the image."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import drgn
import pytest

from tests.lab import requirements
from tests.lab.slim_debug_info import blank_image, blank_strings, keep_units

if TYPE_CHECKING:
    from pathlib import Path

WANTED = "struct wanted { int first; long second_of_wanted; }; struct wanted wanted = { 0x1234, 0x5678 };"
OTHER = """struct other { char only_of_other[9]; }; struct other other = { "in image" };
int main(void) { return other.only_of_other[0]; }"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    lacking = requirements.missing({"gcc": "build-essential", "readelf": "binutils"})
    if lacking:
        pytest.skip(f"needs {', '.join(lacking)}")
    (tmp_path / "wanted.c").write_text(WANTED)
    (tmp_path / "other.c").write_text(OTHER)
    subprocess.run(["gcc", "-g", "-no-pie", "-o", "program", "wanted.c", "other.c"], cwd=tmp_path, check=True)
    return tmp_path / "program"


def read_types(path: Path) -> drgn.Program:
    prog = drgn.Program()
    prog.extra_module("program", create=True).try_file(path, force=True)
    return prog


def test_units_of_other_sources_go(program: Path) -> None:
    both = read_types(program)
    size, address = drgn.sizeof(both.type("struct wanted")), both["wanted"].address_
    assert both.type("struct other")
    keep_units(program, {"wanted.c"})
    blank_strings(program)
    one = read_types(program)
    assert drgn.sizeof(one.type("struct wanted")) == size
    assert [member.name for member in one.type("struct wanted").members] == ["first", "second_of_wanted"]
    assert one["wanted"].address_ == address
    with pytest.raises(LookupError):
        one.type("struct other")
    assert b"only_of_other" not in program.read_bytes()


def test_image_goes_and_symbols_stay(program: Path) -> None:
    before = subprocess.run(["nm", program], check=True, capture_output=True, text=True).stdout
    assert b"in image" in program.read_bytes()
    blank_image(program)
    assert b"in image" not in program.read_bytes()
    assert subprocess.run(["nm", program], check=True, capture_output=True, text=True).stdout == before
    assert read_types(program).type("struct other")
