# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where functions are defined, by debug info: a line of a file is in the function that is defined
last before it, whether that one has code of its own or is inlined everywhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import partial
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


def list_definitions(parts: Iterable[LocationArrays]) -> list[Definition]:
    """Return the functions that an image has code of, by file and line.

    :param parts: frames where they are defined, as units have them.
    """
    merged = Locations()
    for part in parts:
        merged.add(part)
    found = merged.arrays()
    strings = found.strings()
    by_file: defaultdict[str, set[tuple[int, str]]] = defaultdict(set)
    paths: dict[int, str] = {}
    columns = (found.frames[item::_FRAME_ITEMS] for item in range(3))
    for name, file, line in zip(*columns, strict=True):
        if file not in paths:
            paths[file] = normpath(strings[file - 1])
        by_file[paths[file]].add((line, strings[name - 1]))
    make = partial(tuple.__new__, Definition)
    return [
        make((path, line, name)) for path in sorted(by_file) for line, name in sorted(by_file[path])
    ]
