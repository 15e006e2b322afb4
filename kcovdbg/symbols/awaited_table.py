# SPDX-License-Identifier: LGPL-2.1-or-later
"""Open the location table of a kernel, or start to build it."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from kcovdbg.elf.file import ElfFile
from kcovdbg.errors import CapabilityError, TargetError
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.table_cache import (
    Progress,
    TableBuild,
    UsableCache,
    find_table_key,
    find_usable_cache,
    make_build_key,
    open_table,
)

# Seconds between two looks for a table that is being built.
_INTERVAL: Final = 0.05


class AwaitedTable:
    """The location table of a kernel, which exists, is being built, or is missing.

    :param found: the table, None while there is none.
    :param build: the process that builds it.
    :param note: a note for the user on its folder, if that is not the cache.
    :param problem: why it cannot be built.
    """

    def __init__(
        self,
        found: LocationTable | None = None,
        *,
        build: TableBuild | None = None,
        note: str | None = None,
        problem: CapabilityError | None = None,
    ) -> None:
        self.note = note
        self.problem = problem
        """Why there will be no table unless another process builds it."""
        self.was_awaited = False
        """Whether the user has waited for it once."""
        self.was_noted = False
        """Whether the user has seen the note."""
        self._found = found
        self._build = build
        self._next_look = 0.0

    @property
    def found(self) -> LocationTable | None:
        """The table, None while there is none."""
        if self._build is not None and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _INTERVAL
            try:
                self._found = self._build.find()
            except CapabilityError as error:
                self._build, self.problem = None, error
            if self._found is not None:
                self._build = None
        return self._found

    @property
    def is_awaited(self) -> bool:
        """Whether there is no table yet, but may be one later."""
        return self.found is None and self._build is not None

    def progress(self) -> Progress | None:
        """Return the progress of its build, None before its first part."""
        return None if self._build is None else self._build.progress()


def find_awaited_table(
    build_id: str | None,
    image: str | os.PathLike[str] | None,
    code: str | os.PathLike[str] | None = None,
    *,
    spare: LocationTable | None = None,
    folder: Path | None = None,
) -> AwaitedTable:
    """Return the location table of a kernel; start a process to build a missing one.

    :param build_id: the build ID of the kernel's image, hexadecimal; no table is found for None.
    :param image: the kernel's image with debug info, if there is one.
    :param code: the image with the code, if that is another file.
    :param spare: the table to use if there is neither an image nor a complete table.
    :param folder: the directory of tables; None for the user's cache.
    """
    if image is None:
        built = None
        if build_id is not None:
            built = open_table(make_build_key(build_id), folder)
        return AwaitedTable(built or spare)
    key: str | None = None
    # An image that cannot be read is reported when it is opened for more.
    with suppress(TargetError):
        key = find_table_key(image, code)
    if key is None or not key.startswith(f"{build_id}-"):
        return AwaitedTable()
    table = open_table(key, folder)
    if table is not None or not _can_build(build_id, image, code):
        return AwaitedTable(table)
    cache = find_usable_cache() if folder is None else UsableCache(folder)
    try:
        build = TableBuild(image, key, cache.require(), code=code)
    except CapabilityError as error:
        return AwaitedTable(note=cache.note, problem=error)
    return AwaitedTable(build=build, note=cache.note)


def _can_build(
    build_id: str | None, image: str | os.PathLike[str], code: str | os.PathLike[str] | None
) -> bool:
    """Return whether an image has code and source lines, of which a table is made."""
    with suppress(TargetError), ElfFile(code or image) as elf:
        if build_id != elf.build_id or not elf.text_sections():
            return False
        with ElfFile(image) as debug_file:
            return debug_file.has_lines
    return False
