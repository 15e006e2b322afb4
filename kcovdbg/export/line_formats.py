# SPDX-License-Identifier: LGPL-2.1-or-later
"""Formats of executed lines for other tools."""

from __future__ import annotations

import html
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from posixpath import dirname
from typing import Final, NamedTuple

from kcovdbg.console.text import escape
from kcovdbg.records.source_coverage import BranchCoverage, SourceCoverage, sum_up

_NO_NAME: Final = re.compile(r"\W", re.ASCII)


def lcov_lines(
    name: str, coverage: Iterable[SourceCoverage], path_of: Callable[[str], str]
) -> Iterator[str]:
    """Iterate over the tracefile's lines.

    :param name: name of the test. genhtml takes letters, digits and underscores only; other
        characters become underscores.
    :param coverage: files, sorted by path.
    :param path_of: returns the path of a file's text.
    """
    test = _NO_NAME.sub("_", name)
    for file in coverage:
        if not file.lines:
            continue
        yield f"TN:{test}"
        yield f"SF:{escape(path_of(file.path))}"
        # Readers split at commas, which names of generic functions have.
        functions = file.functions
        names = [escape(function.name).replace(",", "\\x2c") for function, _ in functions]
        for (function, _), text in zip(functions, names, strict=True):
            # genhtml 2 refuses a function that begins on a line without DA.
            first = bisect_left(file.lines, function.line)
            line = next(iter(file.lines[first : first + 1]), function.line)
            yield f"FN:{line},{text}"
        for (_, hits), text in zip(functions, names, strict=True):
            yield f"FNDA:{hits},{text}"
        yield f"FNF:{len(names)}"
        yield f"FNH:{file.executed_functions}"
        yield from _lcov_branches(file)
        yield from map("DA:{},{}".format, file.lines, file.hits)
        yield f"LF:{len(file.lines)}"
        yield f"LH:{file.executed_lines}"
        yield "end_of_record"


def _lcov_branches(file: SourceCoverage) -> Iterator[str]:
    for branch in file.branches:
        for side, hits in enumerate(branch.hits):
            taken = str(hits) if branch.was_executed else "-"
            yield f"BRDA:{branch.line},{branch.number},{side},{taken}"
    if file.branches:
        yield f"BRF:{2 * len(file.branches)}"
        yield f"BRH:{file.taken_sides}"


class _Class(NamedTuple):
    """A file, which is a class of the document."""

    name: str
    """Its name in the document."""
    coverage: SourceCoverage


def cobertura_lines(
    coverage: Iterable[SourceCoverage],
    path_of: Callable[[str], tuple[str | None, str]],
    other_root: str,
) -> Iterator[str]:
    """Iterate over the lines of the document.

    :param path_of: returns the directory in which a file's text is found, and the file's name
        there; None and the name if the text is not found, or the name is absolute.
    :param other_root: an absolute directory for files whose text is not found: gcovr's reader needs
        one.
    """
    roots: dict[str, None] = {}
    classes: list[_Class] = []
    for file in coverage:
        if not file.lines:
            continue
        root, name = path_of(file.path)
        classes.append(_Class(name, file))
        if root is not None:
            roots[root] = None
    classes.sort(key=lambda item: (dirname(item.name), item.name))
    totals = sum_up(item.coverage for item in classes)
    yield '<?xml version="1.0" encoding="UTF-8"?>'
    yield '<!DOCTYPE coverage SYSTEM "http://cobertura.sourceforge.net/xml/coverage-04.dtd">'
    # KCOV records no time: the same trace gives the same file.
    yield (
        f'<coverage {_rates(classes)} lines-covered="{totals.executed_lines}" '
        f'lines-valid="{totals.lines}" '
        f'branches-covered="{totals.taken_sides}" branches-valid="{totals.sides}" version="0" '
        f'timestamp="0">'
    )
    yield " <sources>"
    for root in roots or (other_root,):
        yield f"  <source>{html.escape(escape(root))}</source>"
    yield " </sources>"
    yield " <packages>"
    for directory, members in groupby(classes, key=lambda item: dirname(item.name)):
        yield from _package(directory, list(members))
    yield " </packages>"
    yield "</coverage>"


def _package(directory: str, classes: Sequence[_Class]) -> Iterator[str]:
    yield f"  <package name={_quote(directory)} {_rates(classes)}>"
    yield "   <classes>"
    for item in classes:
        yield f"    <class name={_quote(item.name)} filename={_quote(item.name)} {_rates([item])}>"
        yield "     <methods>"
        for function, hits in item.coverage.functions:
            rate = int(hits > 0)
            yield (
                f'      <method name={_quote(function.name)} signature="" line-rate="{rate}" '
                f'branch-rate="0" complexity="0">'
                f'<lines><line number="{function.line}" hits="{hits}"/></lines></method>'
            )
        yield "     </methods>"
        yield "     <lines>"
        branches: dict[int, list[BranchCoverage]] = defaultdict(list)
        for branch in item.coverage.branches:
            branches[branch.line].append(branch)
        for line, hits in zip(item.coverage.lines, item.coverage.hits, strict=True):
            conditions = _conditions(branches[line])
            yield f'      <line number="{line}" hits="{hits}"{conditions}/>'
        yield "     </lines>"
        yield "    </class>"
    yield "   </classes>"
    yield "  </package>"


def _conditions(branches: Sequence[BranchCoverage]) -> str:
    """Return the attributes of a line's branches."""
    if not branches:
        return ""
    sides = 2 * len(branches)
    taken = sum(bool(hits) for branch in branches for hits in branch.hits)
    return f' branch="true" condition-coverage="{100 * taken // sides}% ({taken}/{sides})"'


def _quote(text: str) -> str:
    return f'"{html.escape(escape(text))}"'


def _rates(classes: Iterable[_Class]) -> str:
    totals = sum_up(item.coverage for item in classes)
    lines = _rate(totals.executed_lines, totals.lines)
    branches = _rate(totals.taken_sides, totals.sides)
    return f'line-rate="{lines}" branch-rate="{branches}" complexity="0"'


def _rate(covered: int, valid: int) -> str:
    return f"{covered / valid:.4g}" if valid else "0"
