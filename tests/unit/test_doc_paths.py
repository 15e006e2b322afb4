# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files, directories and modules that the documentation names exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
TREES = "kcovdbg|tests|docs|native|gdb|examples"
PATH = re.compile(rf"`((?:{TREES})/[\w/.*-]+)`")
# In architecture.md, a package's own files without the package's name.
PACKAGE_PATH = re.compile(
    r"`((?:" + "|".join(sorted(path.name for path in (ROOT / "kcovdbg").iterdir() if path.is_dir())) + r")/[\w/.]*)`"
)
MODULE = re.compile(r"python -m ((?:tests|docs|kcovdbg)[\w.]*)")
# Files that a page tells its reader to create.
CREATED = {"kcovdbg/commands/modes.py"}


def names_in(page: Path) -> Iterator[str]:
    """Yield every path that a page names, from the root of the tree."""
    text = page.read_text()
    yield from (match[1] for match in PATH.finditer(text))
    yield from (match[1].rstrip(".").replace(".", "/") for match in MODULE.finditer(text))
    if page.name == "architecture.md":
        yield from (f"kcovdbg/{match[1]}" for match in PACKAGE_PATH.finditer(text))


def exists(name: str) -> bool:
    name = name.rstrip("/")
    return any(ROOT.glob(name)) or (ROOT / f"{name}.py").is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_paths_exist(page: Path) -> None:
    assert [name for name in names_in(page) if "NAME" not in name and name not in CREATED and not exists(name)] == []


CITATION = re.compile(r"kcov-abi\.md ([A-Z]?\d[\w.]*)((?:(?:, | and )[A-Z]?\d[\w.]*)*)")


def cited() -> Iterator[tuple[str, str]]:
    """Yield the sections and rules of docs/kcov-abi.md that sources cite, with the source."""
    for tree in ("kcovdbg", "native", "tests"):
        for path in ROOT.joinpath(tree).rglob("*.[pch]*"):
            if path.suffix in (".py", ".c", ".h") and path != Path(__file__):
                for match in CITATION.finditer(path.read_text()):
                    for name in re.findall(r"[A-Z]?\d[\w.]*", match[1] + match[2]):
                        yield name.rstrip("."), str(path.relative_to(ROOT))


def test_cited_sections_exist() -> None:
    text = (ROOT / "docs/kcov-abi.md").read_text()
    there = {number.rstrip(".") for number in re.findall(r"^##+ ([\d.]+)", text, re.MULTILINE)}
    there |= set(re.findall(r"^\| ([A-Z]\d+) \|", text, re.MULTILINE))
    listed = text.partition("\n## 10. ")[2].partition("\n## ")[0]
    there |= {f"10.{number}" for number in re.findall(r"^(\d)\. ", listed, re.MULTILINE)}
    found = list(cited())
    assert found
    assert [(name, source) for name, source in found if name not in there] == []
