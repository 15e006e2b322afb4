# SPDX-License-Identifier: LGPL-2.1-or-later
"""Images with code in Rust: names of llvm-cxxfilt, locations of llvm-symbolizer; either form of a
name is accepted.
"""

import csv
import io
import lzma
from pathlib import Path

import pytest

from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.symbol_table import demangle
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.table_builder import build_table_file
from tests.lab.kcovdbg_run import ask, run_lines
from tests.support.programs import ask_llvm

FOLDER = Path(__file__).parents[1] / "golden" / "rust"
NAMES = [line.split("\t") for line in (FOLDER / "names.tsv").read_text("utf-8").splitlines()]
AREA = "<lib::shapes::Square as lib::shapes::Area>::area"


def unpack(name, folder):
    path = folder / "image"
    path.write_bytes(lzma.decompress((FOLDER / f"{name}.xz").read_bytes()))
    return path


@pytest.fixture
def v0(tmp_path):
    return unpack("v0-5", tmp_path)


def table_of(image):
    return LocationTable(build_table_file(image, folder=image.parent / "tables"))


def test_names_are_those_of_llvm():
    assert {name: demangle(name) for name, _ in NAMES} == dict(NAMES)


@pytest.mark.parametrize(
    "name",
    [
        # References that double the text at each step, or nothing but nesting.
        "_RIC1a"
        + "TB1_"
        + "".join(f"TB{at}_B{at}_E" for at in "56789abcdefghijklmnopqrstuvwxyz")
        + "EE",
        "_RIC1a" + "R" * 3000 + "hE",
        "_RNv" * 900 + "C1a" + "1b" * 900,
        "_RIC1aFG" + "z" * 9 + "_EuE",
        "_RNvC1au5000a" + "z" * 5000,
        "_RNvC1a" + "9" * 3000 + "a",
        "_RNvC1au4ab\0c",
        # Digits and letters that can be cut into parts in 2^40 ways.
        "_ZN" + "1a" * 40 + "E",
    ],
)
def test_hostile_names_stay_as_they_are(name):
    assert demangle(name) == name


def test_growing_names_end():
    """Each part has the one before twice: 2^30 characters."""
    name, at = "_RIC1aThhE", 4
    for _ in range(60):
        start = (
            ""
            if at == 0
            else "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"[at - 1]
        )
        part = f"TB{start}_B{start}_E"
        at, name = len(name) - 2, name + part
        if at > 60:
            break
    assert len(demangle(f"{name}E")) < 1 << 17


@pytest.mark.parametrize("name", ["v0-4", "v0-5", "legacy-5"])
def test_locations_are_those_of_llvm_symbolizer(tmp_path, name):
    image = unpack(name, tmp_path)
    table = table_of(image)
    pcs = list(table.pcs(PointKind.PC))
    theirs = [
        [
            (frame["FunctionName"], frame["Line"], frame["Column"], Path(frame["FileName"]).name)
            for frame in frames
        ]
        for frames in ask_llvm(image, (pc - 1 for pc in pcs), "--relativenames")
    ]
    mine = [
        [
            (frame.function, frame.line or 0, frame.column or 0, Path(frame.file).name)
            for frame in table.get_rows((pc,))[0][1]
        ]
        for pc in pcs
    ]
    assert mine == theirs
    assert len(pcs) > 40
    assert max(map(len, mine)) > 4
    assert {place[3] for frames in mine for place in frames} >= {"lib.rs", "main.c", "mod.rs"}


def answers(image, *lines):
    """Return what lines about an image answer."""
    return ask(["--image", image], *lines, cache=image.parent)


def symbols_of(image):
    with ElfFile(image) as elf:
        return {demangle(symbol.name): symbol.name for symbol in elf.symbols.functions()}


def test_either_form_of_a_name_is_accepted(v0):
    symbols = symbols_of(v0)
    # Names with brackets are no patterns.
    for name in (AREA, "<[u32] as lib::shapes::Area>::area"):
        rows, same = answers(v0, f"points '{name}'", f"points {symbols[name]}")
        assert rows == same != []
        assert {row["symbol"] for row in rows} == {symbols[name]}
        assert {row["frames"][-1]["function"] for row in rows} == {name}


@pytest.fixture
def trace(v0, tmp_path):
    path = tmp_path / "pcs.txt"
    path.write_text("".join(f"{pc:#x}\n" for pc in table_of(v0).pcs(PointKind.PC)))
    return f"file:{path}"


def test_filters_take_either_form(v0, trace):
    symbol = symbols_of(v0)[AREA]
    filters = ("", f"--function '{AREA}'", f"--function {symbol}", "--function '*Square as*::area'")
    whole, rows, *same = answers(v0, *(f"buffer {trace} {words}" for words in filters))
    assert 0 < len(rows) < len(whole)
    assert same == [rows, rows]
    assert {row["symbol"] for row in rows} == {symbol}


def test_text_and_exports_have_names_to_read(v0, trace):
    lines = (f"points '{AREA}'", *(f"export {kind} {trace}" for kind in ("jsonl", "funccover")))
    for text in run_lines(["--image", v0], *lines, status=0, cache=v0.parent):
        assert AREA in text
        assert "_RN" not in text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert {row["Filename"] for row in rows} == {"lib.rs", "main.c"}
    # A name with a comma is one.
    assert {AREA, "<lib::shapes::Pair<u8, 3> as lib::shapes::Area>::area"} <= {
        row["Function"] for row in rows
    }
