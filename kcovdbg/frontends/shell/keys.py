# SPDX-License-Identifier: LGPL-2.1-or-later
"""The shell's keys as data: bindings, the status line and what F1 shows are made from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.completion import CompleteEvent, get_common_complete_suffix
from prompt_toolkit.enums import EditingMode
from prompt_toolkit.filters import completion_is_selected, emacs_insert_mode, vi_insert_mode
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from kcovdbg.commands.session import Session
from kcovdbg.frontends.completion.cursor import split_pieces, unquote
from kcovdbg.render.renderable import Line

HelpShower: TypeAlias = "Callable[[str | None], None]"


class Key(NamedTuple):
    """A key with what it does."""

    label: str
    """As people write it."""
    help: str
    short: str = ""
    """In the status line; nothing for what isn't shown there."""


KEYS: Final = (
    Key("F1", "help on the command that is typed, or on all", "help"),
    Key("Tab", "complete; again, or S-Tab, goes through the list; Enter takes one", "complete"),
    Key("C-Space", "show what may come here"),
    Key("→", "take the grey suggestion; M-f takes a word of it"),
    Key("C-r", "search the history; C-r again goes further back", "search"),
    Key("F4", "vi keys, or emacs keys again"),
    Key("C-x C-e", "edit the line in $EDITOR"),
    Key("C-c", "clear the line; stop a command that runs"),
    Key("C-d", "leave", "leave"),
    Key("C-z", "suspend kcovdbg"),
)


def key_lines(keys: Iterable[Key] = KEYS) -> Iterator[Line]:
    """Yield what F1 says about keys."""
    yield ()
    yield (("header", "Keys:"),)
    for key in keys:
        yield (("key", f"    {key.label:<20}"), ("", key.help))


def make_bindings(session: Session, show_help: HelpShower) -> KeyBindings:
    """Bind what prompt_toolkit's own bindings lack.

    :param show_help: shows help on a command, or on everything.
    """
    bindings = KeyBindings()

    @bindings.add("enter", filter=completion_is_selected)
    def _take(event: KeyPressEvent) -> None:
        # The first Enter takes what is selected, the second one runs the line.
        event.current_buffer.complete_state = None

    @bindings.add("tab", filter=emacs_insert_mode | vi_insert_mode)
    def _complete(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state:
            buffer.complete_next()
            return
        # prompt_toolkit's own binding does nothing while the menu of what was just typed is still being made; the answer is
        # there at once.
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
        topic = first if first is not None and first in session.commands else None
        run_in_terminal(lambda: show_help(topic))

    @bindings.add("f4")
    def _switch(event: KeyPressEvent) -> None:
        is_vi = event.app.editing_mode is EditingMode.VI
        event.app.editing_mode = EditingMode.EMACS if is_vi else EditingMode.VI

    return bindings
