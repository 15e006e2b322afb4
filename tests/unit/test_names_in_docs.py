# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the pages name in backquotes exists: files, modules, functions, commands, options."""

from __future__ import annotations

import ast
import builtins
import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from kcovdbg.commands import COMMANDS
from kcovdbg.console.context import Context
from kcovdbg.model.state import State
from tests.support.page_steps import DIFF, NEW_FILE, ROOT

DOCS = ROOT / "docs"
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *DOCS.rglob("*.md")]
)
# Pages about kcovdbg's own code.
ABOUT_CODE = [
    page for page in PAGES if page.stem.startswith("adding-") or page.stem == "architecture"
]
TREES = ("kcovdbg", "tests", "docs", "gdb", "examples", "native")
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
FENCE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
# A file in the place of a command.
PLACEHOLDER = re.compile(r"[a-z]\.[a-z]|vmlinux|vmcore")
# Words of pages about code that are other people's: the kernel's, drgn's, tools'.
FOREIGN = {
    "NAME_command.py",
    "__arm64_sys_read",
    "__init__.py",
    "always",
    "e_machine",
    "false",
    "kcov_sample",
    "kcov_section",
    "kcov_softirq",
    "objdump",
}


def spans(page: Path) -> list[str]:
    """Return what stands in backquotes in a page's sentences."""
    return SPAN.findall(FENCE.sub("", page.read_text()))


@cache
def defined() -> frozenset[str]:
    """Return each name that the sources define: functions, classes, arguments, members, modules and
    folders, and the texts that are one word, as keys and enumerators have them.
    """
    names = set()
    for tree in TREES:
        for path in ROOT.joinpath(tree).rglob("*"):
            if path.is_dir():
                names.add(path.name)
            elif path.suffix in (".py", ".c", ".h", ".ini", ".toml"):
                names |= {path.name, path.stem}
            if path.suffix == ".py":
                names |= names_in(ast.parse(path.read_text()))
    return frozenset(names)


def names_in(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and IDENTIFIER.fullmatch(str(node.value)):
            names.add(str(node.value))
    return names


def created_on(page: Path) -> set[str]:
    """Return the names that a page's own steps define."""
    text = page.read_text()
    blocks = [match[2] for match in NEW_FILE.finditer(text)]
    blocks += [match[1] for match in DIFF.finditer(text)]
    return set(IDENTIFIER.findall("\n".join(blocks)))


@pytest.mark.parametrize("page", ABOUT_CODE, ids=lambda page: page.stem)
def test_names_of_code_exist(page: Path) -> None:
    known = defined() | created_on(page) | {*dir(builtins)} | FOREIGN
    known |= {command.name for command in COMMANDS}
    unknown = []
    for span in spans(page):
        # A name, with a call or an assigned value: `spam`, `spam.eggs(1)`, `spam=True`.
        match = re.fullmatch(r"([A-Za-z_]\w*(?:\.\w+)*)(\(.*\)|=.*)?", span)
        if match is not None and match[1] not in FOREIGN | {"NAME"}:
            parts = [match[1]] if match[1] in known else match[1].split(".")
            unknown += [span for part in parts if part not in known]
    assert unknown == []


@pytest.mark.parametrize("page", ABOUT_CODE, ids=lambda page: page.stem)
def test_members_of_state_and_context_exist(page: Path) -> None:
    members = {"state": {*dir(State), *State.__annotations__}, "context": {*dir(Context)}}
    members["context"] |= names_in(ast.parse((ROOT / "kcovdbg/console/context.py").read_text()))
    found = re.findall(r"(?<![\w/])(state|context)\.(?!py\b)([a-z]\w*)", page.read_text())
    assert [f"{of}.{name}" for of, name in found if name not in members[of]] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_commands_exist(page: Path) -> None:
    for span in spans(page):
        line = re.sub(r"^(sudo |\$ )", "", span)
        for start in ("kcov-show ", "%kcov "):
            if line.startswith(start):
                word = line.removeprefix(start).split()[0]
                assert word in COMMANDS or not word.isalpha(), span
        words = shlex.split(line) if line.startswith("kcovdbg ") else []
        if len(words) > 1 and re.fullmatch(r"[a-z]+", words[1]) and not PLACEHOLDER.search(line):
            assert words[1] in COMMANDS, span


def test_questions_name_commands() -> None:
    """Each command in README's table of questions."""
    table = (ROOT / "README.md").read_text().partition("<!-- questions -->")[2]
    table = table.partition("<!-- end")[0]
    names = [
        span.split()[0]
        for row in table.splitlines()[2:]
        for span in SPAN.findall(row.split("|")[2])
    ]
    assert len(names) > 30
    assert [name for name in names if name not in COMMANDS] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_files_exist(page: Path) -> None:
    """Files of Python that a page names without their folder."""
    files = {path.name for tree in TREES for path in ROOT.joinpath(tree).rglob("*.py")}
    created = {Path(match[1]).name for match in NEW_FILE.finditer(page.read_text())}
    named = {span for span in spans(page) if re.fullmatch(r"\w+\.py", span)}
    assert named - files - created - FOREIGN == set()
