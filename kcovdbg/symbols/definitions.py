# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where functions are defined, by debug info. A line is in the function whose definition comes last
before it, whether that function has code of its own or is inlined everywhere.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import count
from posixpath import normpath
from typing import Final, NamedTuple

from kcovdbg.symbols.table_rows import Locations, sort_rows

# Function, file, line, column.
_FRAME_ITEMS: Final = 4


class Definition(NamedTuple):
    """A function with code, in its own place or inlined."""

    file: str
    """Relative to the build root, without ``./`` and ``..`` where it is below it."""
    line: int
    """``DW_AT_decl_line``."""
    name: str


class DefinitionColumns(NamedTuple):
    """Definitions as columns, by file and line."""

    files: Sequence[str]
    """Ascending."""
    names: Sequence[str]
    of_file: array[int]
    """The file of each, by its index."""
    lines: array[int]
    of_name: array[int]
    """The name of each, counted from 1."""


NO_DEFINITIONS: Final = DefinitionColumns((), (), array("I"), array("I"), array("I"))


def list_definitions(parts: Iterable[Locations]) -> DefinitionColumns:
    """Return the functions that an image has code of.

    :param parts: frames where they are defined, as units have them.
    """
    merged = Locations()
    for part in parts:
        merged.add_all(part)
    found = merged.arrays()
    strings = found.strings()
    names, files, lines = (found.frames[item::_FRAME_ITEMS] for item in range(3))
    # Strings are counted from 1.
    paths = {number: normpath(strings[number - 1]) for number in set(files)}
    for number, path in paths.items():
        strings[number - 1] = path
    ascending = sorted(set(paths.values()))
    indexes = dict(zip(ascending, count()))
    index_of = {number: indexes[path] for number, path in paths.items()}
    of_file = array("I", map(index_of.__getitem__, files))
    return DefinitionColumns(ascending, strings, *sort_rows(of_file, lines, names))
