# SPDX-License-Identifier: LGPL-2.1-or-later
"""Completion as prompt_toolkit's completer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from kcovdbg.console.command import CommandTable
from kcovdbg.console.candidates import find_candidates
from kcovdbg.console.cursor import CursorPlace, find_cursor, quote
from kcovdbg.console.harvest import Harvest
from kcovdbg.console.escape import escape


class LineCompleter(Completer):
    """Completes at every keystroke, from an existing index and without reading the kernel.

    :param commands: the table.
    :param harvest: has the index.
    :param aliases: the user's: the words that each stands for.
    """

    def __init__(self, commands: CommandTable, harvest: Harvest, aliases: Mapping[str, Sequence[str]]) -> None:
        self._commands = commands
        self._aliases = aliases
        self._harvest = harvest

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """Yield completions of the word before the cursor."""
        text = document.text_before_cursor
        cursor = find_cursor(text)
        if cursor.place in (CursorPlace.FILE, CursorPlace.SHELL) and not complete_event.completion_requested:
            # Reading a directory can be slow: only on request.
            return
        for entry in find_candidates(cursor, self._commands, self._harvest.index, self._aliases):
            if entry.text == cursor.prefix and not complete_event.completion_requested:
                # Nothing to add: Enter should run the line.
                continue
            yield Completion(
                quote(entry.text),
                start_position=cursor.column - len(text),
                display=escape(entry.text),
                display_meta=escape(entry.meta),
            )
