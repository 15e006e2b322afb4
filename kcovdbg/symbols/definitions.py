# SPDX-License-Identifier: LGPL-2.1-or-later
"""The definitions of functions, by debug info. A line is in the function with the last definition
before it, whether that function has code of its own or is inlined everywhere.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import count
from posixpath import normpath
from typing import Final, NamedTuple

from kcovdbg.compiled_module import zeros
from kcovdbg.symbols.table_rows import Locations, gather, sort_rows

# Function, file, line, column.
_FRAME_ITEMS: Final = 4


class Definition(NamedTuple):
    """The definition of a function with code, which may be inlined everywhere."""

    file: str
    """Relative to the build root, without ``./`` and ``..`` if it is below the root."""
    line: int
    """``DW_AT_decl_line``."""
    name: str


class DefinitionColumns(NamedTuple):
    """Definitions as columns, by file and line."""

    files: Sequence[str]
    """Ascending."""
    names: Sequence[str]
    of_file: array[int]
    """The file of each definition: an index of ``files``."""
    lines: array[int]
    of_name: array[int]
    """The name of each definition: a number in ``names``, counted from 1."""


NO_DEFINITIONS: Final = DefinitionColumns((), (), array("I"), array("I"), array("I"))


def list_definitions(parts: Iterable[Locations]) -> DefinitionColumns:
    """Return the definitions of the functions that an image has code of.

    :param parts: the definitions in parts of the units, as frames.
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
    index_of = zeros("I", len(strings) + 1)
    for number, path in paths.items():
        index_of[number] = indexes[path]
    of_file = gather(files, index_of, 0)
    return DefinitionColumns(ascending, strings, *sort_rows(of_file, lines, names))
