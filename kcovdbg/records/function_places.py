# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where functions are in the source: a function has the lines from that of its name to the one in
front of the next function.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from kcovdbg.symbols.location_table import LocationTable

_LAST_LINE: Final = 1 << 32


class FunctionGroup(NamedTuple):
    """The functions that begin on one line, such as those of a macro."""

    line: int
    end: int
    """The line behind their last one."""
    names: Sequence[str]


def find_starts(table: LocationTable) -> dict[str, dict[int, list[str]]]:
    """Return the functions that begin on each line of each file, by path."""
    found: dict[str, dict[int, list[str]]] = {}
    for path, definitions in table.definitions.items():
        lines = found[path] = {}
        for definition in definitions:
            lines.setdefault(definition.line, []).append(definition.name)
    return found


def group_functions(starts: Mapping[int, Sequence[str]]) -> list[FunctionGroup]:
    """Return the functions of a file, ascending."""
    lines = sorted(starts)
    ends = [*lines[1:], _LAST_LINE]
    return [FunctionGroup(line, end, starts[line]) for line, end in zip(lines, ends, strict=False)]


def find_unexecuted(
    calls: Iterable[int],
    groups: Sequence[FunctionGroup],
    missed: Sequence[int],
    others: Sequence[int],
) -> list[int]:
    """Return those lines at which code was inlined that were not executed.

    More code may have been inlined there, without points. So it is known where all other lines of
    the function are.

    :param calls: lines without code of their own and without a record.
    :param groups: the functions of the file.
    :param missed: the lines with code that was not executed, ascending.
    :param others: the lines with code that was executed or may have been, ascending.
    """
    starts = [group.line for group in groups]
    found = []
    for line in calls:
        at = bisect_right(starts, line) - 1
        if at < 0:
            continue
        group = groups[at]
        has_missed = bisect_left(missed, group.end) > bisect_left(missed, group.line)
        has_others = bisect_left(others, group.end) > bisect_left(others, group.line)
        if has_missed and not has_others:
            found.append(line)
    return found
