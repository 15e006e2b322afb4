# SPDX-License-Identifier: LGPL-2.1-or-later
"""The keys of the shell, for bindings, the status line and help."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.completion import CompleteEvent, get_common_complete_suffix
from prompt_toolkit.enums import EditingMode
from prompt_toolkit.filters import completion_is_selected, emacs_insert_mode, vi_insert_mode
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from kcovdbg.console.command_line import split_pieces, unquote
from kcovdbg.console.renderable import Line
from kcovdbg.console.workspace import Workspace

HelpShower: TypeAlias = "Callable[[str | None], None]"


class Key(NamedTuple):
    """A key and its action."""

    label: str
    """The key's name in help."""
    help: str
    short: str = ""
    """The action in the status line; empty where it is not shown."""


KEYS: Final = (
    Key("F1", "show help for the typed command, or list all commands", "help"),
    Key("Tab", "complete; Tab and S-Tab go through the list, Enter takes a word", "complete"),
    Key("C-Space", "show the completions"),
    Key("→", "take the gray suggestion; M-f takes one word of it"),
    Key("C-r", "search the history; C-r again continues", "search"),
    Key("F4", "switch between vi and emacs keys"),
    Key("C-x C-e", "edit the line in $EDITOR"),
    Key("C-c", "clear the line, or stop a running command"),
    Key("C-d", "leave", "leave"),
    Key("C-z", "suspend kcovdbg"),
)


def key_lines(keys: Iterable[Key] = KEYS) -> Iterator[Line]:
    """Yield the help for keys that F1 shows."""
    yield ()
    yield (("header", "Keys:"),)
    for key in keys:
        yield (("key", f"    {key.label:<20}"), ("", key.help))


def make_bindings(workspace: Workspace, show_help: HelpShower) -> KeyBindings:
    """Return the bindings that prompt_toolkit lacks.

    :param show_help: shows help for a command, or the list of commands.
    """
    bindings = KeyBindings()

    @bindings.add("enter", filter=completion_is_selected)
    def _take(event: KeyPressEvent) -> None:
        # The first Enter takes the selected word, the second runs the line.
        event.current_buffer.complete_state = None

    @bindings.add("tab", filter=emacs_insert_mode | vi_insert_mode)
    def _complete(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state:
            buffer.complete_next()
            return
        # prompt_toolkit's own binding does nothing until its menu is ready; the completer answers at once.
        found = list(buffer.completer.get_completions(buffer.document, CompleteEvent(completion_requested=True)))
        if len(found) == 1:
            buffer.apply_completion(found[0])
        elif found:
            buffer.insert_text(get_common_complete_suffix(buffer.document, found))
            buffer.start_completion(select_first=False)

    @bindings.add("c-space")
    def _open(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state:
            buffer.complete_next()
        else:
            buffer.start_completion(select_first=False)

    @bindings.add("f1")
    def _help(event: KeyPressEvent) -> None:
        first = next((unquote(piece.text) for piece in split_pieces(event.current_buffer.text) if piece.kind == "word"), None)
        topic = first if first is not None and first in workspace.commands else None
        run_in_terminal(lambda: show_help(topic))

    @bindings.add("f4")
    def _switch(event: KeyPressEvent) -> None:
        is_vi = event.app.editing_mode is EditingMode.VI
        event.app.editing_mode = EditingMode.EMACS if is_vi else EditingMode.VI

    return bindings
