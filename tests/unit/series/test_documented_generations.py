# SPDX-License-Identifier: LGPL-2.1-or-later
"""docs/generations.md has the rows of the table in the code, and names the kernels that each was
tested on.
"""

from __future__ import annotations

import re
from pathlib import Path
from pkgutil import iter_modules

import kcovdbg.series
from kcovdbg.abi.generations import ERAS
from kcovdbg.series import table
from tests.integration.imitations.build import ROWS as IMITATIONS
from tests.integration.imitations.test_imitations import RECOGNISED
from tests.lab.golden import DESTINATION, read_truth
from tests.support.kernels import rows as in_memory

VARIANTS = [variant for series in table.SERIES for variant in series.variants if variant.text]
PAGE = Path(__file__).parents[3] / "docs" / "generations.md"


def read_tables() -> list[dict[str, dict[str, str]]]:
    """Read each table of the page: rows by their first column, cells by the column's title."""
    tables: list[dict[str, dict[str, str]]] = []
    titles: list[str] = []
    for line in PAGE.read_text().splitlines():
        cells = (
            [cell.strip() for cell in line.strip().strip("|").split("|")]
            if line.startswith("|")
            else []
        )
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
    eras, _ = read_tables()
    assert {name: row["kernels"] for name, row in eras.items()} == {
        era.name: era.kernels for era in ERAS
    }


def test_kernels_and_imitations_are_those_that_are_kept() -> None:
    eras, variants = read_tables()
    kept = {
        path.parent.name: read_truth(path.parent)["generation"]
        for path in DESTINATION.glob("*/truth.json.zst")
    }
    kernels = [(kernel, about["era"], tuple(about["variants"])) for kernel, about in kept.items()]
    imitations = [(name, era, tuple(series)) for name, (era, series, _) in RECOGNISED.items()]
    assert set(RECOGNISED) == set(IMITATIONS)
    for what, known in (("kernel", kernels), ("imitation", imitations)):
        for name, row in eras.items():
            # A kernel with a posted series is that series's.
            assert names_in(row, what) == {
                one for one, era, series in known if era == name and not series
            }, name
        for name, row in variants.items():
            # A generation that a series declares begins with its name.
            begun = {one for one, era, series in known if name.startswith((*series, f"{era}:"))}
            assert names_in(row, what) == begun, name


def test_every_row_is_made_in_memory() -> None:
    assert {row.era for row in in_memory.ROWS} == {era.name for era in table.eras()}
    begun = {start for row in in_memory.ROWS for start in row.variants}
    assert [
        variant
        for variant in VARIANTS
        if not any(variant.text.startswith(start) for start in begun)
    ] == []


def test_every_series_has_a_page() -> None:
    modules = {module.name for module in iter_modules(kcovdbg.series.__path__)} - {
        "declaration",
        "table",
    }
    assert {name.replace("_", "-") for name in modules} == {
        path.stem for path in PAGE.parent.glob("series/*.md")
    } - {"index"}
