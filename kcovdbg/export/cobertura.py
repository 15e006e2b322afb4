# SPDX-License-Identifier: LGPL-2.1-or-later
"""Cobertura's XML (coverage-04.dtd): line coverage by source file. Read by GitLab, Jenkins and Coverage Gutters.

A package is a directory and a class a file. As in lcov's tracefile there are no functions and no branches.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from posixpath import dirname
from typing import NamedTuple

from kcovdbg.records.coverage import FileCoverage
from kcovdbg.console.escape import escape

_NO_BRANCHES = 'branch-rate="0" complexity="0"'


class SourcePlace(NamedTuple):
    """Where the text of a source file is."""

    root: str | None
    """The directory that the name is relative to; None for an absolute name, or where the text is not found."""
    name: str


def cobertura_lines(coverage: Iterable[FileCoverage], place_of: Callable[[str], SourcePlace]) -> Iterator[str]:
    """Iterate over the lines of the document.

    :param coverage: ordered by line within a file.
    :param place_of: from a file's name in debug info to where its text is.
    """
    placed = [(place_of(file.file), file) for file in coverage]
    files = sorted(((place.name, file) for place, file in placed), key=lambda item: (dirname(item[0]), item[0]))
    valid, covered = _sums(file for _, file in files)
    yield '<?xml version="1.0" encoding="UTF-8"?>'
    yield '<!DOCTYPE coverage SYSTEM "http://cobertura.sourceforge.net/xml/coverage-04.dtd">'
    # KCOV records no time: the same trace gives the same file.
    yield (
        f'<coverage line-rate="{_rate(covered, valid)}" branch-rate="0" lines-covered="{covered}" lines-valid="{valid}" '
        'branches-covered="0" branches-valid="0" complexity="0" version="0" timestamp="0">'
    )
    yield " <sources>"
    for root in dict.fromkeys(place.root for place, _ in placed):
        if root is not None:
            yield f"  <source>{html.escape(escape(root))}</source>"
    yield " </sources>"
    yield " <packages>"
    for directory, members in groupby(files, key=lambda item: dirname(item[0])):
        yield from _package(directory, list(members))
    yield " </packages>"
    yield "</coverage>"


def _package(directory: str, files: Sequence[tuple[str, FileCoverage]]) -> Iterator[str]:
    rate = _rate(*reversed(_sums(file for _, file in files)))
    yield f'  <package name={_quote(directory)} line-rate="{rate}" {_NO_BRANCHES}>'
    yield "   <classes>"
    for name, file in files:
        rate = _rate(file.covered_lines, len(file.lines))
        yield f'    <class name={_quote(name)} filename={_quote(name)} line-rate="{rate}" {_NO_BRANCHES}>'
        yield "     <methods/>"
        yield "     <lines>"
        for line, hits in zip(file.lines, file.hits, strict=True):
            yield f'      <line number="{line}" hits="{hits}"/>'
        yield "     </lines>"
        yield "    </class>"
    yield "   </classes>"
    yield "  </package>"


def _quote(text: str) -> str:
    return f'"{html.escape(escape(text))}"'


def _sums(files: Iterable[FileCoverage]) -> tuple[int, int]:
    """Return the number of lines with points, and of those covered."""
    valid = covered = 0
    for file in files:
        valid += len(file.lines)
        covered += file.covered_lines
    return valid, covered


def _rate(covered: int, valid: int) -> str:
    return f"{covered / valid:.4g}" if valid else "0"
