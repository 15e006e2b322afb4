# SPDX-License-Identifier: LGPL-2.1-or-later
"""Candidates in prompt_toolkit's words."""

from __future__ import annotations

from collections.abc import Iterator

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from kcovdbg.commands.command import CommandTable
from kcovdbg.frontends.completion.candidates import find_candidates
from kcovdbg.frontends.completion.cursor import Place, find_cursor, quote
from kcovdbg.frontends.completion.harvest import Harvest
from kcovdbg.render.escape import escape


class LineCompleter(Completer):
    """Completes from an index that is there already: it must answer at every keystroke, and not touch the kernel.

    :param commands: the table.
    :param harvest: has the index.
    """

    def __init__(self, commands: CommandTable, harvest: Harvest) -> None:
        self._commands = commands
        self._harvest = harvest

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """Yield what the word before the cursor may become."""
        text = document.text_before_cursor
        cursor = find_cursor(text)
        if cursor.place in (Place.FILE, Place.SHELL) and not complete_event.completion_requested:
            # A directory may be slow to read: only when asked.
            return
        for entry in find_candidates(cursor, self._commands, self._harvest.index):
            if entry.text == cursor.prefix and not complete_event.completion_requested:
                # Nothing to add: Enter shall run the line.
                continue
            yield Completion(
                quote(entry.text),
                start_position=cursor.column - len(text),
                display=escape(entry.text),
                display_meta=escape(entry.meta),
            )
