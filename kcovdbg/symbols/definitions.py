# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where functions are defined, by debug info: a line of a file is in the function that is defined
last before it, whether that one has code of its own or is inlined everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from posixpath import normpath
from typing import NamedTuple

from kcovdbg.symbols.dwarf_reader import DwarfReader
from kcovdbg.symbols.table_rows import LocationArrays

# Function, file, line, column.
_FRAME_ITEMS = 4


class Definition(NamedTuple):
    """A function with code, in its own place or inlined."""

    file: str
    """Relative to the build root, without ``./`` and ``..`` where it is below it."""
    line: int
    """``DW_AT_decl_line``."""
    name: str


def read_definitions(reader: DwarfReader) -> list[Definition]:
    """Return the functions that an image has code of, by file and line.

    Functions inside other entries, as Rust has them, are left out.
    """
    found: set[Definition] = set()
    for part in reader.read_all(reader.read_definitions):
        found.update(_list_definitions(part))
    return sorted(found)


def _list_definitions(part: LocationArrays) -> Sequence[Definition]:
    strings = part.strings()
    paths: dict[int, str] = {}
    definitions = []
    frames = part.frames
    for at in range(0, len(frames), _FRAME_ITEMS):
        name, file, line = frames[at : at + 3]
        if file not in paths:
            paths[file] = normpath(strings[file - 1])
        definitions.append(Definition(paths[file], line, strings[name - 1]))
    return definitions
