# SPDX-License-Identifier: LGPL-2.1-or-later
"""Read lines at a prompt on a terminal, with completion, suggestions, history and a status line."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app, run_in_terminal
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import (
    CompleteEvent,
    Completer,
    Completion,
    get_common_complete_suffix,
)
from prompt_toolkit.cursor_shapes import ModalCursorShapeConfig
from prompt_toolkit.document import Document
from prompt_toolkit.enums import EditingMode
from prompt_toolkit.filters import completion_is_selected, emacs_insert_mode, vi_insert_mode
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import Lexer
from prompt_toolkit.output import ColorDepth, Output, create_output
from prompt_toolkit.shortcuts import CompleteStyle
from prompt_toolkit.styles import Style

from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.column import NUMBER, Column, RowType
from kcovdbg.console.command import Command, CommandTable, Example
from kcovdbg.console.command_line import Piece, split_pieces, unquote
from kcovdbg.console.completion import CursorContext, find_candidates, find_cursor
from kcovdbg.console.completion_index import Harvest
from kcovdbg.console.context import Context, Workspace
from kcovdbg.console.renderable import Line, Table
from kcovdbg.console.terminal import is_terminal, wants_color
from kcovdbg.console.text import elide, escape, text_width
from kcovdbg.frontends.shell.loop import PROMPT, Transcript, run_in_shell
from kcovdbg.inputs.input_commands import quote
from kcovdbg.target.target import Target
from kcovdbg.user_folder import find_user_folder, make_folder


class Key(NamedTuple):
    """A key and its action."""

    label: str
    """The key's name in help."""
    help: str
    short: str = ""
    """The action in the status line; empty if it is not shown there."""


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


def key_lines() -> Iterator[Line]:
    """Yield the help for keys that F1 shows."""
    yield ()
    yield (("header", "Keys:"),)
    for key in KEYS:
        yield (("key", f"    {key.label:<20}"), ("", key.help))


def make_bindings(workspace: Workspace, show_help: Callable[[str | None], None]) -> KeyBindings:
    """Return the key bindings that prompt_toolkit lacks.

    :param show_help: shows help for a command, or for None the list of commands.
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
        # prompt_toolkit's own binding does nothing until its menu is ready. Our completer answers
        # at once, so ask it directly.
        asked = CompleteEvent(completion_requested=True)
        found = list(buffer.completer.get_completions(buffer.document, asked))
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
        pieces = split_pieces(event.current_buffer.text)
        words = [unquote(piece.text) for piece in pieces if piece.kind == "word"]
        topic = None
        if words and words[0] in workspace.commands:
            topic = words[0]
        run_in_terminal(lambda: show_help(topic))

    @bindings.add("f4")
    def _switch(event: KeyPressEvent) -> None:
        if event.app.editing_mode is EditingMode.VI:
            event.app.editing_mode = EditingMode.EMACS
        else:
            event.app.editing_mode = EditingMode.VI

    return bindings


def open_history(environment: Mapping[str, str]) -> History:
    """Open the history, in memory if the file cannot be written."""
    folder = find_user_folder("state", environment).path
    if folder is None:
        return InMemoryHistory()
    path = folder / "history"
    try:
        make_folder(path.parent)
        # Only its owner reads it: lines hold paths and names.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
    except OSError:
        return InMemoryHistory()
    return LineHistory(str(path))


class LineHistory(FileHistory):
    """A history file without repeated lines, and without lines that begin with a blank."""

    def __init__(self, filename: str) -> None:
        super().__init__(filename)
        self._last: str | None = None

    def load_history_strings(self) -> Iterable[str]:
        """Return the lines, the latest first."""
        try:
            return super().load_history_strings()
        except OSError:
            return ()

    def append_string(self, string: str) -> None:
        """Add a line, as bash does with ``HISTCONTROL=ignoreboth``."""
        if string.startswith((" ", "\t")) or string == self._last:
            return
        self._last = string
        super().append_string(string)

    def store_string(self, string: str) -> None:
        """Write a line to the file; a full disk does not end the shell."""
        with contextlib.suppress(OSError):
            super().store_string(string)


_COLUMNS: Final = (
    Column("number", NUMBER, meaning="number of the line, the oldest first"),
    Column("line", meaning="the line as typed"),
)


def make_history_command(history: History) -> Command:
    """Return the command that lists a history."""

    def run(context: Context, args: Namespace) -> Table:  # noqa: ARG001 - a handler's arguments
        # The latest line comes first.
        lines = list(history.load_history_strings())[::-1]
        rows = [{"number": number, "line": line} for number, line in enumerate(lines, 1)]
        if args.count is not None:
            rows = rows[max(len(rows) - args.count, 0) :]
        return Table(_COLUMNS, rows, empty="no line was typed")

    return Command(
        name="history",
        summary="list the lines typed in the shell",
        run=run,
        row_types=(RowType(_COLUMNS),),
        description="Up and C-r bring a line back to the prompt.",
        arguments=(Argument("count [N]", Value.NUMBER, "only the last N lines"),),
        examples=(
            Example("history 10", "the last ten lines"),
            Example("history | grep diff", "search the history"),
        ),
        needs=frozenset(),
    )


class LineCompleter(Completer):
    """Complete words at every keystroke, from an index and without reading the kernel."""

    def __init__(self, commands: CommandTable, harvest: Harvest) -> None:
        self._commands = commands
        self._harvest = harvest

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterator[Completion]:
        """Yield completions of the word before the cursor."""
        text = document.text_before_cursor
        cursor = find_cursor(text)
        is_asked = complete_event.completion_requested
        if cursor.context in (CursorContext.FILE, CursorContext.PROGRAM) and not is_asked:
            # Reading a directory can be slow, so do it only on request.
            return
        for entry in find_candidates(cursor, self._commands, self._harvest.index):
            if entry.text == cursor.prefix and not is_asked:
                # The word is complete: Enter should run the line.
                continue
            yield Completion(
                quote(entry.text),
                start_position=cursor.column - len(text),
                display=escape(entry.text),
                display_meta=escape(entry.meta),
            )


# Styles of words that begin with a pattern; the first match wins.
_WORD_STYLES: Final = (
    (re.compile("-"), "class:line.option"),
    (re.compile("@"), "class:line.name"),
    (re.compile("[\"']"), "class:line.string"),
    (re.compile(r"(?:\w+:)?0x[0-9a-fA-F]+$"), "class:line.address"),
)
# Styles of pieces that are not words, by kind.
_PIECE_STYLES: Final = {
    "comment": "class:line.comment",
    "pipe": "class:line.shell",
    "shell": "class:line.shell",
    "redirect": "class:line.shell",
}


class LineLexer(Lexer):
    """Style commands, options, addresses, names and shell commands."""

    def __init__(self, commands: CommandTable) -> None:
        self._commands = commands

    def lex_document(self, document: Document) -> Callable[[int], StyleAndTextTuples]:
        """Return a function that returns the styled text of a line by its number."""

        def lex(number: int) -> StyleAndTextTuples:
            if number >= len(document.lines):
                return []
            return list(self._styled(document.lines[number]))

        return lex

    def _styled(self, line: str) -> Iterator[tuple[str, str]]:
        is_first = True
        for piece in split_pieces(line):
            yield self._style(piece, is_first), piece.text
            is_first = piece.text == ";" or (is_first and piece.kind == "blank")

    def _style(self, piece: Piece, is_first: bool) -> str:
        if piece.kind != "word":
            return _PIECE_STYLES.get(piece.kind, "")
        if is_first:
            if unquote(piece.text).rstrip("?") in self._commands:
                return "class:line.command"
            return ""
        for pattern, style in _WORD_STYLES:
            if pattern.match(piece.text):
                return style
        return ""


_STYLE: Final = Style.from_dict(
    {
        "prompt": "bold",
        "line.command": "bold",
        "line.option": "ansicyan",
        "line.address": "ansicyan",
        "line.name": "ansimagenta",
        "line.string": "ansigreen",
        "line.shell": "ansimagenta",
        "line.comment": "ansibrightblack",
        "auto-suggestion": "ansibrightblack",
        "bottom-toolbar.key": "bold",
    }
)
_VI_EDITORS: Final = frozenset(
    {"vi", "vim", "nvim", "view", "gvim", "vis", "elvis", "nvi", "vim.basic", "vim.tiny"}
)
# Seconds after which Esc is a key of its own. The default of half a second is too long in vi mode.
_ESCAPE_SECONDS: Final = 0.05
# The status line shows the keys only if so many columns are left for the target.
_LEAST_STATUS: Final = 30


def make_reader(
    workspace: Workspace,
    harvest: Harvest,
    environment: Mapping[str, str],
    transcript: Transcript,
    keys: Input | None,
    screen: Output | None,
) -> Callable[[], str]:
    """Return the prompt: a function that returns the next line.

    :param keys: where keys come from; by default standard input, which is a terminal.
    :param screen: where the prompt goes; by default the one of standard output and standard error
        that is a terminal.
    """
    if keys is None:
        keys = create_input()
    if screen is None:
        stream = sys.stdout
        if not is_terminal(stream):
            stream = sys.stderr
        screen = create_output(stdout=stream)

    def show_help(topic: str | None) -> None:
        if topic is not None:
            run_in_shell(workspace, f"help {topic}", environment, transcript)
            return
        run_in_shell(workspace, "help", environment, transcript)
        workspace.terminal().show(key_lines())

    history = open_history(environment)
    workspace.commands = workspace.commands.with_commands(make_history_command(history))
    prompt: PromptSession[str] = PromptSession(
        [("class:prompt", PROMPT)],
        input=keys,
        output=screen,
        history=history,
        auto_suggest=AutoSuggestFromHistory(),
        completer=LineCompleter(workspace.commands, harvest),
        complete_while_typing=True,
        complete_style=CompleteStyle.COLUMN,
        lexer=LineLexer(workspace.commands),
        bottom_toolbar=_make_toolbar(_status_text(workspace), lambda: screen.get_size().columns),
        key_bindings=make_bindings(workspace, show_help),
        editing_mode=find_editing_mode(environment, workspace.settings.keys),
        cursor=ModalCursorShapeConfig(),
        search_ignore_case=True,
        enable_suspend=True,
        enable_open_in_editor=True,
        enable_system_prompt=True,
        color_depth=_find_color_depth(workspace, environment),
        style=_STYLE,
    )
    prompt.app.ttimeoutlen = _ESCAPE_SECONDS
    return prompt.prompt


def _find_color_depth(workspace: Workspace, environment: Mapping[str, str]) -> ColorDepth | None:
    """Return the color depth of the prompt; None to let prompt_toolkit decide."""
    if not wants_color(workspace.color, terminal=True, environment=environment):
        return ColorDepth.DEPTH_1_BIT
    if environment.get("NO_COLOR"):
        # Color was asked for in spite of NO_COLOR, which prompt_toolkit would obey.
        return ColorDepth.DEPTH_4_BIT
    return None


def find_editing_mode(environment: Mapping[str, str], keys: str = "auto") -> EditingMode:
    """Return the keys that the user set, or vi keys if the user's editor is vi, as zsh does."""
    is_vi = keys == "vi"
    if keys == "auto":
        editor = environment.get("VISUAL") or environment.get("EDITOR") or ""
        words = editor.split()
        is_vi = bool(words) and Path(words[0]).name in _VI_EDITORS
    if is_vi:
        return EditingMode.VI
    return EditingMode.EMACS


def _status_text(workspace: Workspace) -> str:
    """Return the target for the status line, the most important words first."""
    target = workspace.inputs.kernel.target
    # The status line is not painted by a Painter, which would escape the text.
    return "  ".join(map(escape, (target.name, target.release, _state_word(target))))


def _state_word(target: Target) -> str:
    if target.memory_problem is not None:
        return "no memory"
    if target.is_gone():
        return "gone"
    if target.live:
        return "live"
    if target.state() is None:
        return "dump"
    return "stopped"


def _make_toolbar(status: str, find_width: Callable[[], int]) -> Callable[[], StyleAndTextTuples]:
    """Return a function that draws the status line; it is called at every keystroke."""

    def draw() -> StyleAndTextTuples:
        width = find_width()
        keys: StyleAndTextTuples = []
        for key in KEYS:
            if key.short:
                keys += [("class:bottom-toolbar.key", f"  {key.label}"), ("", f" {key.short}")]
        if get_app().editing_mode is EditingMode.VI:
            keys.append(("class:bottom-toolbar.key", "  vi"))
        keys_width = sum(text_width(text) for _, text, *_ in keys)
        room = width - keys_width - 2
        if room < _LEAST_STATUS:
            # A narrow terminal shows the target alone.
            return [("", f" {elide(status, max(width - 2, 1))}")]
        shown = elide(status, room)
        return [("", f" {shown}"), ("", " " * (room - text_width(shown))), *keys]

    return draw
