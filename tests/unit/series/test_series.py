# SPDX-License-Identifier: LGPL-2.1-or-later
"""A posted series is one module: each can be taken out of the table, one can be added, and no other
module knows its names.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from dataclasses import replace
from pathlib import Path

import pytest

import kcovdbg
import kcovdbg.series
from docs.generate.generation_pages import table_of
from docs.generate.rule_pages import write_rules
from kcovdbg.abi.generations import TASK
from kcovdbg.abi.mode import EnableRequest, Mode
from kcovdbg.abi.record import Codec, RecordKind
from kcovdbg.collect.requests import find_mode
from kcovdbg.errors import UsageError
from kcovdbg.model.rule import Rule, task_violation, values
from kcovdbg.model.state import Part
from kcovdbg.series import table
from kcovdbg.series.declaration import Series, SeriesMember, Variant
from kcovdbg.target.struct_layout import find_member
from kcovdbg.walk.layout import detect_layout
from tests.support.kernels.asker import Asker, ask_everything
from tests.support.kernels.build import Kernel
from tests.support.kernels.rows import E7, ROWS

ROOT = Path(kcovdbg.__file__).parent
NAMES = [series.name for series in table.SERIES]
# Mainline's kernels, and which commands beside those of the state are asked.
MAINLINE = [row for row in ROWS if not row.variants and row.name in ("E1", "E2", "E4", "E7", "E9b")]
# The series' rows among the kernels in memory; the flag of KCOV_PAUSED is in no type.
ROWS_OF = {
    series.name: [
        row
        for row in ROWS
        if any(variant.text.startswith(row.variants) for variant in series.variants if row.variants)
        or (series.era is not None and series.era.name == row.era)
        or (series.name, row.name) == ("KCOV_PAUSED", "K")
    ]
    for series in table.SERIES
}


@pytest.fixture
def remove(monkeypatch):
    """Take a series out of the table."""

    def do(name):
        left = tuple(series for series in table.SERIES if series.name != name)
        assert len(left) == len(table.SERIES) - 1
        monkeypatch.setattr(table, "SERIES", left)

    return do


def ask(kernel):
    """Ask everything that a series may have a part in."""
    answers, said = ask_everything(kernel.target)
    asker = Asker(kernel.target)
    for name, address in kernel.objects.items():
        answers[name] = asker.rows(f"buffer kcov:{address:#x}")
    answers["check"] = asker.rows("check --all")
    assert "internal error" not in said
    return answers


@pytest.fixture(scope="module")
def base():
    """The answers with all series."""
    return {row.name: ask(Kernel(row)) for row in MAINLINE}


@pytest.mark.parametrize("name", NAMES)
def test_mainline_needs_no_series(name, base, remove):
    remove(name)
    for row in MAINLINE:
        assert ask(Kernel(row)) == base[row.name], row.name


@pytest.mark.parametrize("name", NAMES)
def test_kernel_of_a_missing_series_has_a_mainline_view(name, remove):
    rows = ROWS_OF[name]
    assert rows
    before = {row.name: ask_everything(Kernel(row).target)[0] for row in rows}
    remove(name)
    for row in rows:
        answers, said = ask_everything(Kernel(row).target)
        assert "internal error" not in said
        (info,) = answers["info"]
        assert not any(info["variants"])
        for command, key in (("tasks -a", "task"), ("objects", "kcov"), ("remote", "handle")):
            # What belongs to a device of the series is gone with it.
            mainline = {one[key] for one in before[row.name][command] if one.get("device") is None}
            assert {one[key] for one in answers[command]} == mainline
        for one in answers["tasks -a"]:
            assert one["comm"]
        # Members that no generation has are named; these two have none.
        assert bool(info["errors"]) == (row.name not in ("K", "X2"))


def test_every_module_of_a_series_is_in_the_table():
    modules = {info.name for info in pkgutil.iter_modules(kcovdbg.series.__path__)} - {
        "declaration",
        "table",
    }
    declared = {importlib.import_module(f"kcovdbg.series.{name}").SERIES.name for name in modules}
    assert declared == set(NAMES)
    assert len(modules) == len(NAMES)


# Each of these belongs to one series. Terms of the field, such as "bitmap" and "edge", do not.
WORDS = re.compile(
    r"""TRACE_PC_EXT|ext_format|EXT_RECORDS|ext-records
      |UNIQ_|uniq-|map_edge|kcov_map\b|kcov_entry|prev_pc|unique-maps
      |UNIQUE_ENABLE|UNIQUE_PC|kcov_state\b|guard_max_index|sancov_guards|kcov_unique|unique-bitmap|RESET_TRACE|saved_state\.
      |PAUSED\b|paused-flag
      |kcov_df|kcov_dataflow|dataflow
      |kcov_mode_trace|\brc\.|32-bit-words|vma-references
      |[Pp]osting|\d{4}\ series|series\ of\ (January|20)""",
    re.VERBOSE,
)


def test_names_of_a_series_are_in_its_module_only():
    paths = [path for path in ROOT.rglob("*.py") if path.parent.name != "series"] + list(
        (ROOT.parent / "native").glob("*.[ch]")
    )
    found = [
        f"{path.relative_to(ROOT.parent)}:{number}: {line.strip()}"
        for path in sorted(paths)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if WORDS.search(line)
    ]
    assert found == []


def test_modules_of_series_are_imported_by_the_table_only():
    modules = "|".join(info.name for info in pkgutil.iter_modules(kcovdbg.series.__path__))
    modules = modules.replace("declaration|", "").replace("|table", "")
    pattern = re.compile(
        rf"kcovdbg\.series\.({modules})\b|kcovdbg\.series import .*\b({modules})\b"
    )
    paths = [path for path in ROOT.rglob("*.py") if path != ROOT / "series" / "table.py"]
    assert [str(path.relative_to(ROOT)) for path in paths if pattern.search(path.read_text())] == []


# A series that nobody posted.


class _ToyCodec(Codec):
    __slots__ = ()

    def decode_address(self, word, encoding):
        del encoding
        return RecordKind.PC, word - 0x100000


TOY = _ToyCodec("toy", "toy records", has_plain_pcs=False)


@Rule(
    "Y1",
    "a toy is even",
    since="never posted",
    guaranteed_by="kcov_toy()",
    needs=Part.SERIES | Part.TASKS,
    features=("toy",),
)
def check_toy(state):
    """Y1."""
    for fields in state.task_fields:
        number = state.series["toy"].get(fields.address, 0)
        if number % 2:
            yield task_violation(fields, f"its toy is {number}", values(kcov_toy=number))


def read_toy(target, state, read_buffer):
    del read_buffer
    member = find_member(target, TASK, ("kcov_toy",))
    return {
        task.address: target.read(task.address + member.offset, member.size)[0]
        for task in state.task_fields
    }, ()


TOY_VARIANT = Variant(
    "KCOV_TOY (never)",
    "`kcov_toy`",
    "toys",
    "in memory only",
    features=frozenset({"toy"}),
    marks=((TASK, "kcov_toy"),),
    enumerators=("KCOV_MODE_TRACE_TOY",),
)
TOY_SERIES = Series(
    name="KCOV_TOY",
    feature="toy",
    variants=(TOY_VARIANT,),
    members=(SeriesMember(TASK, ("kcov_toy",)),),
    enumerators=("KCOV_MODE_TRACE_TOY",),
    modes=(Mode("TRACE_TOY", TOY, EnableRequest(7, "toy", "the toy series")),),
    read=read_toy,
    rules=(check_toy,),
    rule_groups={"Y": "Toys"},
)
TOY_ROW = replace(
    E7,
    name="toy",
    task=E7.task + "unsigned int kcov_toy;",
    modes={**E7.modes, "KCOV_MODE_TRACE_TOY": 7},
    special={"toy": 7},
)


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setattr(table, "SERIES", (*table.SERIES, TOY_SERIES))
    kernel = Kernel(TOY_ROW)
    kernel.put(kernel.objects["toy"], "struct kcov", mode=7)
    return kernel


def test_toy_is_seen_everywhere(toy):
    asker = Asker(toy.target)
    (info,) = asker.rows("info")[0]
    assert (info["variants"], info["errors"]) == (["KCOV_TOY (never)"], [])
    assert "toy" in info["features"]
    (task,) = asker.rows("tasks 200")[0]
    assert (task["kcov_mode"], task["role"], task["count"]) == ("TRACE_TOY", "local", 3)
    rows, _ = asker.rows("buffer 200")
    assert [int(row["address"], 16) for row in rows] == [
        toy.text - 0x100000 + 0x10 * index for index in range(3)
    ]
    (listed,) = [row for row in asker.rows("check --list")[0] if row["rule"] == "Y1"]
    assert listed["sentence"] == "a toy is even"
    assert any(
        line.startswith("| KCOV_TOY (never) | `kcov_toy` | toys |")
        for line in table_of(table.SERIES)
    )
    assert "a toy is even" in write_rules()


def test_toy_is_collected(toy):
    mode = find_mode("toy", detect_layout(toy.target).generation.features)
    assert (mode.name, mode.codec, mode.request.argument) == ("TRACE_TOY", TOY, 7)
    with pytest.raises(UsageError, match="the toy series"):
        find_mode("toy", frozenset())


def test_toy_is_checked(toy):
    assert [row for row in Asker(toy.target).rows("check Y1")[0] if row["rule"] == "Y1"] == []
    toy.put(toy.tasks[200], TASK, kcov_toy=3)
    (found,) = Asker(toy.target).rows("check Y1")[0]
    assert (found["rule"], found["object"]) == ("Y1", "task 200 (toy)")
