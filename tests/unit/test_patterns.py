# SPDX-License-Identifier: LGPL-2.1-or-later
"""No regular expression of the package is quadratic: each meets inputs that are made for it, and
twice them.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

import kcovdbg
from kcovdbg.records import oops_words, report_table
from tests.support.pattern_attack import find_attacks, measure

_TOP: Final = Path(kcovdbg.__file__).parent
_SCANS: Final = frozenset(("search", "finditer", "findall", "sub", "subn", "split"))
_ANCHORED: Final = frozenset(("match", "fullmatch"))
_METHODS: Final = _SCANS | _ANCHORED
_USED: Final = re.compile(rf"\.({'|'.join((*_METHODS, 'compile'))})\b")
# Text in memory of which a quadratic match takes a thousand times as long as a linear one.
_SIZE: Final = 16384
_FEW: Final = 16
# A pattern with a bound on its repeats is quadratic for texts that are shorter, in little time. How
# long that takes differs between machines: the unit is the time of 200,000 steps of a match.
_UNIT: Final = measure(re.compile("a{1,100}b").findall, "a" * 2000, 9)
_QUICK: Final = 16 * _UNIT
_MOST: Final = 2.5
# Patterns that get no longer text than so many characters.
_BOUNDS: Final = {
    "kcovdbg.records.report_table._ROLES": report_table.KSYM_NAME_LEN,
    "kcovdbg.records.report_table._LEAK": report_table.KSYM_NAME_LEN,
    "kcovdbg.records.report_table.EXACT_BEFORE": oops_words._BEFORE,
}
# The user's own patterns, on what they look at.
_OWN_PATTERNS: Final = frozenset(("buffers/view_state.py", "buffers/view_screen.py"))


class Use(NamedTuple):
    """A pattern of the package."""

    place: str
    pattern: re.Pattern[Any]
    methods: frozenset[str]
    """Those that are called, as far as its name shows: of one in a list, those that match at one
    place.
    """


def _modules() -> Iterator[tuple[str, Any]]:
    for module in pkgutil.walk_packages([str(_TOP)], "kcovdbg."):
        if module.name.endswith("__main__") or ".gdb." in module.name:
            continue
        try:
            yield module.name, importlib.import_module(module.name)
        except ImportError as error:  # pragma: no cover - an optional dependency
            if (error.name or "").startswith("kcovdbg"):
                raise


def _patterns_in(value: object) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, (tuple, list, set, frozenset)):
        for one in value:
            yield from _patterns_in(one)
    elif isinstance(value, dict):
        yield from _patterns_in(list(value.values()))


def _find_methods(tree: ast.AST) -> dict[str, frozenset[str]]:
    """Return the methods of patterns that are used of each name."""
    found: dict[str, frozenset[str]] = {}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr in _METHODS
            and isinstance(node.value, ast.Name)
        ):
            found[node.value.id] = found.get(node.value.id, frozenset()) | {node.attr}
    return found


def _inline(tree: ast.AST, place: str) -> Iterator[Use]:
    """Yield the patterns that are written where they are used."""
    for node in ast.walk(tree):
        is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args
        if not is_call or not isinstance(node.func.value, ast.Name) or node.func.value.id != "re":
            continue
        first = node.args[0]
        if node.func.attr in (*_METHODS, "compile") and isinstance(first, ast.Constant):
            flags = next(
                (ast.unparse(one) for one in node.args[1:] if ast.unparse(one).startswith("re.")),
                "0",
            )
            pattern = re.compile(first.value, eval(flags, {"re": re}))
            yield Use(
                f"{place}:{node.lineno}",
                pattern,
                frozenset((node.func.attr,)) & _METHODS or _ANCHORED,
            )


def _find_searches(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the names that are searched with, and the lines."""
    for node in ast.walk(tree):
        is_search = isinstance(node, ast.Attribute) and node.attr in (
            "search",
            "finditer",
            "findall",
        )
        if is_search and isinstance(node.value, ast.Name):
            yield node.value.id, node.lineno


class Source(NamedTuple):
    """What a file does with patterns."""

    place: str
    methods: dict[str, frozenset[str]]
    inline: list[Use]
    searches: list[tuple[str, int]]


def _sources() -> Iterator[Source]:
    """Yield the files that may use a pattern: parsing the others takes seconds."""
    for top in (_TOP, _TOP.parent / "gdb"):
        for path in sorted(top.rglob("*.py")):
            text = path.read_text()
            if _USED.search(text):
                place, tree = str(path.relative_to(top)), ast.parse(text)
                inline, searches = [*_inline(tree, place)], [*_find_searches(tree)]
                yield Source(place, _find_methods(tree), inline, searches)


def _uses() -> list[Use]:
    methods = {source.place: source.methods for source in SOURCES}
    found: dict[tuple[Any, int], Use] = {}
    for name, module in _modules():
        for attribute, value in vars(module).items():
            for pattern in _patterns_in(value):
                key = pattern.pattern, pattern.flags
                home = name.removeprefix("kcovdbg.").replace(".", "/")
                names = methods.get(f"{home}.py", methods.get(f"{home}/__init__.py", {}))
                used = names.get(
                    attribute,
                    frozenset() if isinstance(value, re.Pattern) and key in found else _ANCHORED,
                )
                found[key] = Use(
                    f"{name}.{attribute}",
                    pattern,
                    used | (found[key].methods if key in found else frozenset()),
                )
    for source in SOURCES:
        for use in source.inline:
            found.setdefault((use.pattern.pattern, use.pattern.flags), use)
    return list(found.values())


def _scan(pattern: re.Pattern[Any]) -> Callable[[Any], object]:
    return lambda text: sum(1 for _ in pattern.finditer(text))


def _find_slow(use: Use) -> str | None:
    """Return an input that costs more than twice as much when it is twice as large."""
    runs: list[Callable[[Any], object]] = [
        getattr(use.pattern, name) for name in sorted(use.methods & _ANCHORED)
    ]
    if use.methods & _SCANS:
        runs.append(_scan(use.pattern))
    is_binary = isinstance(use.pattern.pattern, bytes)
    for attack in find_attacks(use.pattern):
        for run in runs:

            def cost(size: int, times: int = 3, attack: Any = attack, run: Any = run) -> float:
                text = attack.make(size)
                return measure(run, text.encode("latin-1", "replace") if is_binary else text, times)

            # First a few characters: what is exponential must not be tried with thousands.
            size = _FEW
            most = _BOUNDS.get(use.place, _SIZE)
            # A single measurement may be of something else that the machine did.
            while size <= most and (cost(size, 1) < _QUICK or cost(size) < _QUICK):
                size *= 2
            if (
                size <= most
                and cost(size) > _MOST * cost(size // 2)
                and cost(size, 9) > _MOST * cost(size // 2, 9)
            ):
                return f"{use.place}: {attack}"
    return None


SOURCES: Final = tuple(_sources())
USES: Final = _uses()


def test_all_are_found() -> None:
    places = {use.place for use in USES}
    assert len(USES) > 100
    assert {"kcovdbg.records.pc_file._LINE", "kcovdbg.farm.syzkaller_workdir._EXECUTED"} <= places


@pytest.mark.parametrize(
    "pattern",
    [
        rb"\s*x\s*,?\s*",
        rb"(^|\n)\s*#[^\n]*",
        rb"after running for [^\n]*:\n",
        rb"\s*module\[",
        rb"(a|aa)+b",
        rb"a.*b.*c",
    ],
)
def test_what_is_quadratic_is_found(pattern: bytes) -> None:
    assert _find_slow(Use("here", re.compile(pattern), _METHODS)) is not None


@pytest.mark.parametrize("use", USES, ids=lambda use: use.place)
def test_cost_grows_with_the_input(use: Use) -> None:
    assert _find_slow(use) is None


def test_patterns_are_searched_by_their_names() -> None:
    """What is searched by another name is not measured as a search."""
    known = {use.place.rpartition(".")[2] for use in USES} | {"re"}
    for source in SOURCES:
        for name, line in source.searches if source.place not in _OWN_PATTERNS else ():
            assert name in known, f"{source.place}:{line}"
