# SPDX-License-Identifier: LGPL-2.1-or-later
"""Each exporter against a reader of its format, written from the format's documentation; names are
hostile.
"""

import csv
import json
import re
import xml.etree.ElementTree as ET
from array import array
from collections import Counter
from itertools import groupby
from posixpath import normpath
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcovdbg.console.text import escape
from kcovdbg.export import line_formats, point_formats
from kcovdbg.model.location import Frame, Location
from kcovdbg.records.pc_locations import LocationCache
from kcovdbg.records.source_coverage import BranchCoverage, FunctionCoverage, SourceCoverage

NAMES = st.text(min_size=1, max_size=8) | st.sampled_from(
    [
        "a;b",
        "a b",
        "a\nb",
        "evil\x1b[2J",
        "</script>",
        '"quoted"',
        "a,b",
        "7",
        "x 7",
        "\udcff",
        "\u202e",
        "üñ",
        "\\x3b",
        "+",
    ]
)
FRAMES = st.builds(
    Frame, NAMES | st.none(), NAMES | st.none(), st.integers(1, 9999) | st.none(), st.none()
)
ADDRESSES = st.integers(0, 2**64 - 1)
PLACES = st.lists(
    st.builds(
        point_formats.ModulePoint, ADDRESSES, NAMES | st.none(), st.integers(0, 2**40) | st.none()
    ),
    max_size=8,
)


class Point(NamedTuple):
    call: int
    hits: int
    frames: tuple[Frame, ...]
    symbol: str | None


POINTS = st.lists(
    st.builds(
        Point,
        ADDRESSES,
        st.integers(0, 10**9),
        st.lists(FRAMES, max_size=3).map(tuple),
        NAMES | st.none(),
    ),
    max_size=8,
)


def in_columns(points):
    calls, hits, frames, symbols = zip(*points, strict=True) if points else ((), (), (), ())
    located = LocationCache(
        lambda pcs: [Location(*row) for row in zip(pcs, frames, strict=True)]
    ).columns(array("Q", calls))
    return [point_formats.PointColumns(calls, hits, located.chains, located.frames, symbols)]


def shown(point):
    """The frames that syzkaller shows: those with a function, a file and a line."""
    functions = [frame.function for frame in point.frames[:-1]] + [
        point.symbol or frame.function for frame in point.frames[-1:]
    ]
    rows = zip(functions, point.frames, strict=True)
    return [
        (name, frame.file, frame.line) for name, frame in rows if name and frame.file and frame.line
    ]


def one_line_each(lines):
    lines = list(lines)
    assert not any(re.search(r"[\x00-\x1f\x7f\u2028\u2029\ud800-\udfff]", line) for line in lines)
    return lines


@given(POINTS, PLACES)
def test_rawcoverfiles(points, places):
    modules = {place.call: place for place in places}
    points += [Point(call, 0, (Frame("fn", "a.c", 1, None),), None) for call in modules]
    rows = list(
        csv.DictReader(
            one_line_each(point_formats.rawcoverfiles_lines(in_columns(points), modules))
        )
    )
    for row in rows:
        place = modules.get(
            int(row["PC"], 16), point_formats.ModulePoint(0, None, int(row["PC"], 16))
        )
        assert bool(row["Module"]) == bool(place.module)
        assert row["Offset"] == ("" if place.offset is None else hex(place.offset))
    assert [int(row["PC"], 16) for row in rows] == sorted(
        point.call for point in points for _ in shown(point)
    )
    assert all(
        set(row) == {"PC", "Module", "Offset", "Filename", "Inline", "StartLine", "EndLine"}
        for row in rows
    )
    # The function itself before what was inlined there.
    assert Counter(row["Inline"] for row in rows)["false"] == sum(
        bool(shown(point)) for point in points
    )


@given(st.lists(st.tuples(NAMES, NAMES, st.integers(0, 99), st.integers(0, 99)), max_size=8))
def test_funccover(functions):
    rows = list(csv.DictReader(one_line_each(point_formats.funccover_lines(functions))))
    assert sorted((int(row["Covered PCs"]), int(row["Total PCs"])) for row in rows) == sorted(
        function[2:] for function in functions
    )
    assert all(row["Module"] == "" for row in rows)


@given(POINTS)
def test_jsonl(points):
    rows = [
        json.loads(line) for line in one_line_each(point_formats.jsonl_lines(in_columns(points)))
    ]
    assert [(row["pc"], row["hit_count"]) for row in rows] == [
        (point.call, point.hits) for point in points for _ in shown(point)
    ]
    assert [(row["func_name"], row["file_path"], row["sl"], row["inline"]) for row in rows] == [
        (escape(function), escape(normpath(file).lstrip("/")), line, number < len(shown(point)))
        for point in points
        for number, (function, file, line) in enumerate(shown(point), 1)
    ]
    keys = ["file_path", "func_name", "sl", "sc", "el", "ec", "hit_count", "inline", "pc"]
    assert all(list(row) == keys for row in rows)


@given(PLACES)
def test_modoff(points):
    # Lighthouse: split at the last plus sign, base 16; comments begin with ; or #.
    read = []
    for line in one_line_each(point_formats.modoff_lines(points)):
        name, offset = line.rsplit("+", 1)
        read.append((name, int(offset, 16)))
    known = [point for point in points if point.offset is not None]
    assert [offset for _, offset in read] == [point.offset for point in known]
    for (name, _), point in zip(read, known, strict=True):
        assert name == "vmlinux" if point.module is None else name.endswith(".ko")


class LcovFile(NamedTuple):
    lines: dict[int, int]
    functions: dict[str, tuple[int, int]]
    """By name: line and hits."""
    branches: dict[tuple[int, int], list[int | None]]
    """By line and number: hits of each side, None where it was not executed."""


def read_lcov(lines):
    """Read a tracefile as geninfo(1) describes it; its own sums are checked."""
    files, file, found, starts, entered, branches = {}, None, {}, {}, {}, {}
    for line in lines:
        if line == "end_of_record":
            assert starts.keys() == entered.keys()
            functions = {name: (start, entered[name]) for name, start in starts.items()}
            assert file not in files
            files[file] = LcovFile(found, functions, branches)
            file, found, starts, entered, branches = None, {}, {}, {}, {}
            continue
        kind, _, rest = line.partition(":")
        if kind == "TN":
            assert re.fullmatch(r"\w*", rest, re.ASCII)
        elif kind == "SF":
            assert file is None
            file = rest
        elif kind in ("FN", "FNDA"):
            # lcov 1 takes a name up to the next comma.
            number, name = rest.split(",")
            assert name not in (starts if kind == "FN" else entered)
            (starts if kind == "FN" else entered)[name] = int(number)
        elif kind == "BRDA":
            number, block, side, taken = rest.split(",")
            sides = branches.setdefault((int(number), int(block)), [])
            assert len(sides) == int(side)
            sides.append(None if taken == "-" else int(taken))
        elif kind == "DA":
            number, hits = rest.split(",")
            found[int(number)] = int(hits)
        else:
            taken = [side for sides in branches.values() for side in sides]
            expected = {
                "LF": len(found),
                "LH": sum(hits > 0 for hits in found.values()),
                "FNF": len(starts),
                "FNH": sum(hits > 0 for hits in entered.values()),
                "BRF": len(taken),
                "BRH": sum(bool(hits) for hits in taken),
            }
            assert int(rest) == expected[kind]
    assert file is None
    return files


LINES = st.dictionaries(
    st.tuples(st.sampled_from(["a.c", "b\n.c", "end_of_record", "c,d.c"]), st.integers(1, 999)),
    st.integers(0, 99),
    max_size=20,
)


def make_coverage(lines):
    """Make files with a function at each odd line and a branch at each line that 3 divides."""
    coverage = []
    for file, members in groupby(sorted(lines.items()), key=lambda item: item[0][0]):
        numbers, hits = zip(*((number, count) for (_, number), count in members), strict=True)
        rows = list(zip(numbers, hits, strict=True))
        functions = [
            FunctionCoverage(f"f<{number}, T>", number, count)
            for number, count in rows
            if number % 2
        ]
        branches = [
            BranchCoverage(number, 1, count > 0, (count, 0))
            for number, count in rows
            if number % 3 == 0
        ]
        coverage.append(
            SourceCoverage(
                file, array("I", numbers), array("Q", hits), functions, branches, array("I")
            )
        )
    return coverage


@given(NAMES, LINES)
def test_lcov(name, lines):
    read = read_lcov(
        one_line_each(
            line_formats.lcov_lines(name, make_coverage(lines), lambda file: f"/src/{file}")
        )
    )
    found = {}
    for file, records in read.items():
        found.update({(file, line): hits for line, hits in records.lines.items()})
        for line, hits in records.lines.items():
            assert records.functions.get(f"f<{line}\\x2c T>") == (
                (line, hits) if line % 2 else None
            )
            sides = [hits, 0] if hits else [None, None]
            assert records.branches.get((line, 1)) == (sides if line % 3 == 0 else None)
    assert found == {
        ("/src/" + file.replace("\n", "\\x0a"), line): hits for (file, line), hits in lines.items()
    }


RATES = {"line-rate", "branch-rate", "complexity"}
SUMS = {f"{kind}-{sum_}" for kind in ("lines", "branches") for sum_ in ("covered", "valid")}
# Of coverage-04.dtd: an element's required attributes and what it contains.
COBERTURA = {
    "coverage": ({*RATES, *SUMS, "version", "timestamp"}, ["sources", "packages"]),
    "sources": (set(), "source"),
    "source": (set(), []),
    "packages": (set(), "package"),
    "package": ({"name", *RATES}, ["classes"]),
    "classes": (set(), "class"),
    "class": ({"name", "filename", *RATES}, ["methods", "lines"]),
    "methods": (set(), "method"),
    "method": ({"name", "signature", *RATES}, ["lines"]),
    "lines": (set(), "line"),
    "line": ({"number", "hits"}, []),
}


def read_cobertura(lines):
    """Read a document as its DTD describes it; its own sums are checked."""
    root = ET.fromstring("\n".join(lines).encode())
    for element in root.iter():
        attributes, children = COBERTURA[element.tag]
        assert set(element.attrib) - {"branch", "condition-coverage"} == attributes
        found = [child.tag for child in element]
        assert found == children if isinstance(children, list) else set(found) <= {children}
    files = {}
    for found in root.iter("class"):
        lines = {int(line.get("number")): int(line.get("hits")) for line in found.find("lines")}
        assert found.get("filename") not in files
        files[found.get("filename")] = lines
        assert float(found.get("line-rate")) == pytest.approx(
            sum(map(bool, lines.values())) / len(lines), abs=1e-3
        )
    every = [hits for found in files.values() for hits in found.values()]
    assert (int(root.get("lines-covered")), int(root.get("lines-valid"))) == (
        sum(map(bool, every)),
        len(every),
    )
    conditions = [
        line.get("condition-coverage") for line in root.iter("line") if line.get("branch") == "true"
    ]
    taken, sides = 0, 0
    for condition in conditions:
        match = re.fullmatch(r"\d+% \((\d+)/(\d+)\)", condition)
        taken, sides = taken + int(match[1]), sides + int(match[2])
    assert (int(root.get("branches-covered")), int(root.get("branches-valid"))) == (taken, sides)
    return [source.text for source in root.iter("source")], files


@given(LINES)
def test_cobertura(lines):
    def path_of(file):
        return (None if file[0] == "a" else "/src<&>"), file

    written = one_line_each(
        line_formats.cobertura_lines(make_coverage({**lines, ("x/<\"&'>.h", 7): 1}), path_of, "/")
    )
    sources, read = read_cobertura(written)
    assert sources == ["/src<&>"]
    assert read.pop("x/<\"&'>.h") == {7: 1}
    assert {(file, line): hits for file, found in read.items() for line, hits in found.items()} == {
        (file.replace("\n", "\\x0a"), line): hits for (file, line), hits in lines.items()
    }


def read_drcov(lines):
    """Read a log of version 2 as Lighthouse does (reader/parsers/drcov.py) and Cartographer:
    modules, and blocks of each.
    """
    lines = list(lines)
    assert lines[0] == "DRCOV VERSION: 2"
    assert re.fullmatch(r"DRCOV FLAVOR: \w+", lines[1])
    count = int(re.fullmatch(r"Module Table: version 2, count (\d+)", lines[2])[1])
    assert lines[3] == "Columns: id, base, end, entry, path"
    names = []
    for number, line in enumerate(lines[4 : 4 + count]):
        # Cartographer splits at commas alone.
        identifier, base, end, entry, name = [part.strip() for part in line.split(",")]
        assert int(identifier) == number
        assert 0 <= int(base, 16) <= int(end, 16)
        assert int(entry, 16) == 0
        names.append((name, int(base, 16), int(end, 16)))
    blocks = lines[4 + count + 2 :]
    assert lines[4 + count] == f"BB Table: {len(blocks)} bbs"
    assert lines[4 + count + 1] == "module id, start, size:"
    found = []
    for line in blocks:
        number, start, size = re.fullmatch(
            r"module\[\s*(\d+)\]: (0x[0-9a-f]+),\s*(\d+)", line
        ).groups()
        found.append((names[int(number)], int(start, 16), int(size)))
    return found


@given(PLACES)
def test_drcov(points):
    # A block is in its module.
    points = [point._replace(call=point.call + (point.offset or 0)) for point in points]
    read = read_drcov(one_line_each(point_formats.drcov_lines(points, 5, {None: 7}.get)))
    known = [point for point in points if point.offset is not None]
    assert [(start, size) for _, start, size in read] == [(point.offset, 5) for point in known]
    for ((name, base, end), start, size), point in zip(read, known, strict=True):
        assert name == "vmlinux" if point.module is None else name.endswith(".ko")
        assert base + start + size <= end or base != point.call - point.offset
