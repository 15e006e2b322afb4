# SPDX-License-Identifier: LGPL-2.1-or-later
"""The table of generations has the rows that the code knows, and tells truly what each was tested on."""

from __future__ import annotations

import re
from pathlib import Path

from kcovdbg.abi.era import ERAS, Variant
from tests.imitations.build import ROWS as IMITATIONS
from tests.imitations.test_imitations import RECOGNISED
from tests.lab.golden import DESTINATION, read_truth
from tests.unit.kernels import rows as in_memory
from tests.unit.test_walk_missing import count_removals

PAGE = Path(__file__).parents[2] / "docs" / "generations.md"


def read_tables() -> list[dict[str, dict[str, str]]]:
    """Read each table of the page: rows by their first column, cells by the column's title."""
    tables: list[dict[str, dict[str, str]]] = []
    titles: list[str] = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            titles = []
        elif not titles:
            titles = cells
            tables.append({})
        elif not set(line) <= set("|-"):
            assert len(cells) == len(titles), line
            tables[-1][cells[0]] = dict(zip(titles, cells, strict=True))
    return tables


def names_in(row: dict[str, str], what: str) -> set[str]:
    """Return the kernels, or the imitations, that a row names."""
    named: set[str] = set()
    for kind, names in re.findall(r"(kernel|imitation)s? ((?:`[^`]+`(?:, )?)+)", row["tested on"]):
        if kind == what:
            named |= set(re.findall(r"`([^`]+)`", names))
    return named


def test_rows_are_those_of_the_code() -> None:
    eras, variants = read_tables()
    assert {name: row["kernels"] for name, row in eras.items()} == {era.name: era.kernels for era in ERAS}
    assert list(variants) == [variant.value for variant in Variant]


def test_kernels_are_those_that_are_kept() -> None:
    eras, variants = read_tables()
    kept = {path.parent.name: read_truth(path.parent)["generation"] for path in DESTINATION.glob("*/truth.json.zst")}
    for name, row in eras.items():
        # A kernel with a posted series is that series's.
        assert names_in(row, "kernel") == {k for k, about in kept.items() if about["era"] == name and not about["variants"]}, (
            name
        )
    for name, row in variants.items():
        assert names_in(row, "kernel") == {kernel for kernel, about in kept.items() if name in about["variants"]}, name


def test_imitations_are_those_that_there_are() -> None:
    eras, variants = read_tables()
    assert set(RECOGNISED) == set(IMITATIONS)
    for name, row in eras.items():
        assert names_in(row, "imitation") == {i for i, (era, series, _) in RECOGNISED.items() if era == name and not series}, (
            name
        )
    for name, row in variants.items():
        begun = {i for i, (_, series, _) in RECOGNISED.items() if any(name.startswith(start) for start in series)}
        assert names_in(row, "imitation") == begun, name


def test_every_row_is_made_in_memory() -> None:
    assert {row.era for row in in_memory.ROWS} == {era.name for era in ERAS}
    begun = {start for row in in_memory.ROWS for start in row.variants}
    assert [variant for variant in Variant if not any(variant.value.startswith(start) for start in begun)] == []


def test_as_many_members_are_taken_away_as_it_says() -> None:
    every, of_kcov = count_removals()
    said = f"{len(in_memory.ROWS)} rows, {every:,} members and enumerators, KCOV's own by {len(of_kcov)} names"
    assert said in " ".join(PAGE.read_text().split())
