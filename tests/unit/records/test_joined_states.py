# SPDX-License-Identifier: LGPL-2.1-or-later
"""Several traces of a small image together."""

from array import array
from dataclasses import replace

import pytest

from kcovdbg.abi.record import PC, Encoding
from kcovdbg.elf.file import ElfFile
from kcovdbg.model.buffer import Buffer, Order
from kcovdbg.records.code_states import CodeStates
from kcovdbg.records.joined_states import NamedTrace, join_states, quality_text
from kcovdbg.records.line_states import (
    INCOMPLETE,
    OPEN,
    SET,
    WHOLE,
    LineState,
    Quality,
    TraceRecords,
    quality_of,
)
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.table_builder import make_table
from tests.support.compiled_image import FIRST, SECOND, compile_image


@pytest.fixture
def table(tmp_path):
    with ElfFile(compile_image(tmp_path)) as elf:
        make_table(elf).write(tmp_path / "table")
    return LocationTable(tmp_path / "table")


def trace(table, name, function, quality):
    (symbol,) = [one for one in table.functions_named(function) if one.name == function]
    pcs = [
        pc for pc in table.pcs(PointKind.PC) if symbol.address < pc <= symbol.address + symbol.size
    ]
    return NamedTrace(
        name, TraceRecords(dict.fromkeys(pcs, 2), quality, frozenset({PointKind.PC})), ""
    )


def line_of(text, part):
    return next(number for number, line in enumerate(text.splitlines(), 1) if part in line)


CONDITION, LOOP = line_of(FIRST, "if (__builtin_expect"), line_of(SECOND, "sum += ")


@pytest.mark.parametrize("other", [SET, INCOMPLETE, OPEN])
def test_not_executed_needs_all_traces(table, other):
    """What one trace cannot say, two cannot say together; what one executed, both did."""
    one, two = trace(table, "one", "second", SET), trace(table, "two", "second", other)
    wanted = dict.fromkeys(table.files(), ())
    first = next(file for file in wanted if file.endswith("first.c"))
    second = next(file for file in wanted if file.endswith("second.c"))
    code = CodeStates([table])
    alone, both = join_states(code, [one], wanted), join_states(code, [one, two], wanted)
    assert alone[first][CONDITION].state is LineState.NOT_EXECUTED
    assert [tuple(hit) for hit in alone[second][LOOP].traces] == [("one", 2)]
    assert [tuple(hit) for hit in both[second][LOOP].traces] == [("one", 2), ("two", 2)]
    assert both[second][LOOP].hits == 4
    is_complete = other is SET
    assert (both[first][CONDITION].state is LineState.NOT_EXECUTED) == is_complete
    assert both[first][CONDITION].state.is_unknown != is_complete


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "whole"),
        ({"order": Order(False, "a set")}, "a set of PCs"),
        ({"is_open": True}, "open"),
        ({"capacity": 3}, "overflowed"),
        ({"is_incomplete": True}, "could be read"),
        ({"bits_set": 3}, "unique"),
        ({"mode": "OTHER"}, "mode"),
    ],
)
def test_quality_in_words(change, words):
    buffer = replace(Buffer("41", Encoding(PC, 8), array("Q", [5, 6, 7]), 3), **change)
    quality = quality_of(buffer)
    assert words in quality_text(buffer, quality)
    assert "stack" in quality_text(buffer, OPEN | Quality.PLACED)
    assert (quality == WHOLE) == (words == "whole")
