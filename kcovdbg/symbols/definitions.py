# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where functions are defined, by debug info: a line of a file is in the function that is defined
last before it, whether that one has code of its own or is inlined everywhere.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable
from posixpath import normpath
from typing import NamedTuple

from kcovdbg.symbols.table_rows import LocationArrays, Locations

# Function, file, line, column.
_FRAME_ITEMS = 4


class Definition(NamedTuple):
    """A function with code, in its own place or inlined."""

    file: str
    """Relative to the build root, without ``./`` and ``..`` where it is below it."""
    line: int
    """``DW_AT_decl_line``."""
    name: str


class DefinitionColumns(NamedTuple):
    """Definitions as columns, by file and line."""

    files: list[str]
    lines: array[int]
    names: list[str]


def list_definitions(parts: Iterable[LocationArrays]) -> DefinitionColumns:
    """Return the functions that an image has code of.

    :param parts: frames where they are defined, as units have them.
    """
    merged = Locations()
    for part in parts:
        merged.add(part)
    found = merged.arrays()
    strings = found.strings()
    by_number: defaultdict[int, set[tuple[int, str]]] = defaultdict(set)
    columns = (found.frames[item::_FRAME_ITEMS] for item in range(3))
    for name, file, line in zip(*columns, strict=True):
        by_number[file].add((line, strings[name - 1]))
    by_path: defaultdict[str, set[tuple[int, str]]] = defaultdict(set)
    for file, functions in by_number.items():
        by_path[normpath(strings[file - 1])] |= functions
    definitions = DefinitionColumns([], array("I"), [])
    for path in sorted(by_path):
        lines, names = zip(*sorted(by_path[path]), strict=True)
        definitions.files.extend([path] * len(lines))
        definitions.lines.extend(lines)
        definitions.names.extend(names)
    return definitions
