# SPDX-License-Identifier: LGPL-2.1-or-later
"""The repository's own files agree: Python versions, version and changelog, and what its pages
name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import kcovdbg
from tests.support.page_steps import created_files

ROOT = Path(kcovdbg.__file__).parent.parent


def read(name):
    return (ROOT / name).read_text()


def test_the_declared_pythons_are_tested():
    project = read("pyproject.toml")
    declared = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    (matrix,) = re.findall(r"python: \[(.*)\]", read(".github/workflows/ci.yaml"))
    assert declared == re.findall(r"3\.\d+", matrix)
    assert f'requires-python = ">={declared[0]}"' in project


def test_public_ci_runs_make_targets():
    targets = set(re.findall(r"^([a-z]+):", read("Makefile"), re.MULTILINE))
    runs = re.findall(r"- run: make (\w+)", read(".github/workflows/ci.yaml"))
    assert set(runs) == {"check", "test", "docs"} <= targets


def test_the_version_is_in_the_changelog():
    newest = re.search(r"^## (\S+)", read("CHANGELOG.md"), re.MULTILINE)
    assert newest is not None
    assert newest[1] in (kcovdbg.__version__, "Unreleased")


def test_what_contributors_are_shown_is_there():
    for name in ("CONTRIBUTING.md", "SECURITY.md"):
        assert [
            path for path in re.findall(r"\]\(([^):]+)\)", read(name)) if not (ROOT / path).exists()
        ] == [], name
    contributing = read("CONTRIBUTING.md")
    assert re.findall(r"\]\(docs/", contributing)
    targets = set(re.findall(r"^([a-z]+):", read("Makefile"), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z]+)\b", contributing))
    assert {"check", "format", "test"} <= named <= targets
    assert (
        {*re.findall(r"^make (\w+)", read("README.md"), re.MULTILINE)}
        == {"demo", "test"}
        <= targets
    )


PAGES = sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
TREES = "kcovdbg|tests|docs|native|gdb|examples"
PATH = re.compile(rf"`((?:{TREES})/[\w/.*-]+)`")
# In architecture.md, a package's own files without the package's name.
PACKAGE_PATH = re.compile(
    r"`((?:"
    + "|".join(sorted(path.name for path in (ROOT / "kcovdbg").iterdir() if path.is_dir()))
    + r")/[\w/.]*)`"
)
MODULE = re.compile(r"python -m ((?:tests|docs|kcovdbg)[\w.]*)")


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
    assert [
        name
        for name in names_in(page)
        if "NAME" not in name and name not in created_files(page) and not exists(name)
    ] == []


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
