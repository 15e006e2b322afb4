# SPDX-License-Identifier: LGPL-2.1-or-later
"""Completion of ``kcov-show``: the adapter between GDB and the engine's completion."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import gdb
from kcovdbg.engine.command import CommandTable
from kcovdbg.engine.completion.candidates import find_candidates
from kcovdbg.engine.completion.code_index import CodeIndex
from kcovdbg.engine.completion.cursor import find_cursor, quote
from kcovdbg.engine.completion.index import Index, index_kept, index_modes, index_state
from kcovdbg.errors import KcovdbgError
from kcovdbg.frontends.gdb import parameters
from kcovdbg.model.state import Part
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.target.gdb.opener import open_target
from kcovdbg.walk.layout import detect_layout
from kcovdbg.walk.state import read_state

# Opening a target takes a few reads. Where they take longer than this, as on a serial line, the state is not read for a TAB.
_PATIENCE: Final = 0.25
_EVENTS: Final = (
    "stop",
    "cont",
    "memory_changed",
    "new_objfile",
    "clear_objfiles",
    "inferior_deleted",
    "connection_removed",
)


class GdbCompleter:
    """Completes the arguments of commands from the state of the target, which is read once while it stands still.

    :param commands: the commands that GDB offers.
    :param kept: kept buffers by name.
    :param find_table: returns the table of the kernel's coverage points, None while there is none.
    """

    def __init__(
        self, commands: CommandTable, kept: Mapping[str, object], find_table: Callable[[], LocationTable | None]
    ) -> None:
        self._commands = commands
        self._kept = kept
        self._find_table = find_table
        self._code = CodeIndex(find_table)
        self._index: Index | None = None

    def watch(self) -> None:
        """Forget the state when GDB reports a change."""
        for name in _EVENTS:
            registry = getattr(gdb.events, name, None)
            if registry is not None:
                registry.connect(self._forget)

    def _forget(self, event: object) -> None:  # noqa: ARG002 - GDB's signature
        self._index = None
        self._code = CodeIndex(self._find_table)

    def complete(self, line: str, word: str, aliases: Mapping[str, Sequence[str]]) -> list[str]:
        """Return the candidates for the last word of a line.

        :param line: the line after ``kcov-show``, up to the cursor.
        :param word: the part of the last word that GDB replaces: it begins after the last ``-``, ``=``, ``:`` or ``/``.
        :param aliases: the user's: the words that each stands for.
        """
        cursor = find_cursor(line)
        typed = line[cursor.column :]
        if not typed.endswith(word):
            return []
        head = len(typed) - len(word)
        if self._index is None:
            # Whatever comes of it: the next key press must not fail again.
            self._index = Index()
            self._index = _read_index()
        index = replace(self._index, kept=index_kept(self._kept), code=self._code)
        candidates = find_candidates(cursor, self._commands, index, aliases)
        # GDB appends to what was typed; a file that was found by its name alone would need another beginning.
        return [quote(candidate.text)[head:] for candidate in candidates if candidate.text.startswith(cursor.prefix)]


def _read_index() -> Index:
    """Return the index of the target; empty where it cannot be read, which commands report."""
    try:
        start = time.monotonic()
        target = open_target(parameters.kaslr_offset())
        is_slow = time.monotonic() - start > _PATIENCE
        layout = detect_layout(target)
        if is_slow:
            return Index(modes=index_modes(layout.modes))
        return index_state(read_state(target, layout, Part.TASKS | Part.REMOTE | Part.SAVED), layout.modes)
    except (KcovdbgError, gdb.error):
        return Index()
