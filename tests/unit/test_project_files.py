# SPDX-License-Identifier: LGPL-2.1-or-later
"""The repository's own files agree: Python versions, version and changelog, the page for contributors."""

import re
from pathlib import Path

import kcovdbg

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
        assert [path for path in re.findall(r"\]\(([^):]+)\)", read(name)) if not (ROOT / path).exists()] == [], name
    contributing = read("CONTRIBUTING.md")
    assert re.findall(r"\]\(docs/", contributing)
    targets = set(re.findall(r"^([a-z]+):", read("Makefile"), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z]+)\b", contributing))
    assert {"check", "format", "test"} <= named <= targets
    assert {*re.findall(r"^make (\w+)", read("README.md"), re.MULTILINE)} == {"demo", "test"} <= targets
