# SPDX-License-Identifier: LGPL-2.1-or-later
"""The prompt on a terminal: completion, suggestions, history, status line."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.cursor_shapes import ModalCursorShapeConfig
from prompt_toolkit.document import Document
from prompt_toolkit.enums import EditingMode
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.lexers import Lexer
from prompt_toolkit.output import ColorDepth, Output, create_output
from prompt_toolkit.shortcuts import CompleteStyle
from prompt_toolkit.styles import Style

from kcovdbg.console.command import CommandTable
from kcovdbg.console.command_line import Piece, quote, split_pieces, unquote
from kcovdbg.console.completion import CursorPlace, find_candidates, find_cursor
from kcovdbg.console.completion_index import Harvest
from kcovdbg.console.terminal import is_terminal, wants_color
from kcovdbg.console.text import elide, escape, text_width
from kcovdbg.console.workspace import Workspace
from kcovdbg.frontends.shell.history import make_history_command, open_history
from kcovdbg.frontends.shell.keys import KEYS, key_lines, make_bindings
from kcovdbg.frontends.shell.loop import run_in_shell
from kcovdbg.frontends.shell.session_commands import PROMPT, Transcript


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
        reads_folders = cursor.place in (CursorPlace.FILE, CursorPlace.SHELL, CursorPlace.PROGRAM)
        if reads_folders and not complete_event.completion_requested:
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


_ADDRESS: Final = re.compile(r"(?:\w+:)?0x[0-9a-fA-F]+$")
_STYLES: Final = {
    "comment": "class:line.comment",
    "pipe": "class:line.shell",
    "shell": "class:line.shell",
    "redirect": "class:line.shell",
}


class LineLexer(Lexer):
    """Styles commands, options, addresses, names and shell commands.

    :param commands: the words that may begin a line.
    """

    def __init__(self, commands: CommandTable) -> None:
        self._commands = commands

    def lex_document(self, document: Document) -> Callable[[int], StyleAndTextTuples]:
        """Return the function from a line's number to its styled text."""
        lines = document.lines

        def style_line(number: int) -> StyleAndTextTuples:
            try:
                return list(self._styled(lines[number]))
            except IndexError:
                return []

        return style_line

    def _styled(self, line: str) -> Iterator[tuple[str, str]]:
        is_first = True
        for piece in split_pieces(line):
            yield self._style(piece, is_first), piece.text
            is_first = piece.text == ";" or (is_first and piece.kind == "blank")

    def _style(self, piece: Piece, is_first: bool) -> str:
        if piece.kind != "word":
            return _STYLES.get(piece.kind, "")
        text = piece.text
        if is_first:
            return "class:line.command" if unquote(text).rstrip("?") in self._commands else ""
        if text.startswith("-"):
            return "class:line.option"
        if text.startswith("@"):
            return "class:line.name"
        if text[0] in "\"'":
            return "class:line.string"
        return "class:line.address" if _ADDRESS.match(text) else ""


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
_VI_EDITORS: Final = frozenset({"vi", "vim", "nvim", "view", "gvim", "vis", "elvis", "nvi", "vim.basic", "vim.tiny"})
# The default, half a second, is too long after Esc in vi mode.
_ESCAPE_SECONDS: Final = 0.05


class PromptReader:
    """Reads lines with prompt_toolkit."""

    def __init__(self, prompt: PromptSession[str]) -> None:
        self._prompt = prompt

    def read(self) -> str:
        """Return the next line.

        :raises EOFError: for C-d.
        :raises KeyboardInterrupt: for C-c.
        """
        return self._prompt.prompt()


def make_reader(
    workspace: Workspace,
    harvest: Harvest,
    environment: Mapping[str, str],
    transcript: Transcript,
    keys: Input | None,
    screen: Output | None,
) -> PromptReader:
    """Return the prompt.

    :param keys: where keys come from; by default standard input, which is a terminal.
    :param screen: where the prompt goes; by default standard output, or standard error where that is the terminal.
    """
    keys = create_input() if keys is None else keys
    if screen is None:
        screen = create_output(stdout=sys.stdout if is_terminal(sys.stdout) else sys.stderr)
    colored = wants_color(workspace.color, terminal=True, environment=environment)

    def show_help(topic: str | None) -> None:
        run_in_shell(workspace, "help" if topic is None else f"help {topic}", environment, transcript)
        if topic is None:
            terminal = workspace.terminal()
            terminal.stdout.writelines(f"{terminal.painter.paint(line)}\n" for line in key_lines())
            terminal.stdout.flush()

    history = open_history(environment)
    workspace.commands = workspace.commands.with_commands(make_history_command(history))
    prompt: PromptSession[str] = PromptSession(
        [("class:prompt", PROMPT)],
        input=keys,
        output=screen,
        history=history,
        auto_suggest=AutoSuggestFromHistory(),
        completer=LineCompleter(workspace.commands, harvest, workspace.settings.aliases),
        complete_while_typing=True,
        complete_style=CompleteStyle.COLUMN,
        lexer=LineLexer(workspace.commands),
        bottom_toolbar=_make_toolbar(_status_words(workspace), lambda: screen.get_size().columns),
        key_bindings=make_bindings(workspace, show_help),
        editing_mode=find_editing_mode(environment, workspace.settings.keys),
        cursor=ModalCursorShapeConfig(),
        search_ignore_case=True,
        enable_suspend=True,
        enable_open_in_editor=True,
        enable_system_prompt=True,
        # With None, prompt_toolkit would apply NO_COLOR again.
        color_depth=None
        if colored and not environment.get("NO_COLOR")
        else ColorDepth.DEPTH_4_BIT
        if colored
        else ColorDepth.DEPTH_1_BIT,
        style=_STYLE,
    )
    prompt.app.ttimeoutlen = _ESCAPE_SECONDS
    return PromptReader(prompt)


def find_editing_mode(environment: Mapping[str, str], keys: str = "auto") -> EditingMode:
    """Return the keys that the user set, or vi keys if the user's editor is vi, as zsh does."""
    if keys != "auto":
        return EditingMode.VI if keys == "vi" else EditingMode.EMACS
    editor = environment.get("VISUAL") or environment.get("EDITOR") or ""
    words = editor.split()
    return EditingMode.VI if words and Path(words[0]).name in _VI_EDITORS else EditingMode.EMACS


def _status_words(workspace: Workspace) -> tuple[str, ...]:
    """Return the words of the status line, the most important first."""
    target = workspace.kernel.target
    if target.memory_problem is not None:
        words: tuple[str, ...] = (target.name, target.release, "no memory")
    else:
        words = (
            target.name,
            target.release,
            "gone" if target.is_gone() else "live" if target.live else "dump" if target.state() is None else "stopped",
            workspace.kernel.layout.generation.era,
        )
    # The painter, which escapes text, is not used for the status line.
    return tuple(escape(word) for word in words)


def _make_toolbar(words: tuple[str, ...], find_width: Callable[[], int]) -> Callable[[], StyleAndTextTuples]:
    """Return the function that draws the status line, at every keystroke."""
    status = "  ".join(words)

    def draw() -> StyleAndTextTuples:
        width = find_width()
        keys: StyleAndTextTuples = []
        for key in KEYS:
            if key.short:
                keys += [("class:bottom-toolbar.key", f"  {key.label}"), ("", f" {key.short}")]
        if get_app().editing_mode is EditingMode.VI:
            keys.append(("class:bottom-toolbar.key", "  vi"))
        wide = sum(text_width(text) for _, text, *_ in keys)
        # The target is more important than the keys.
        if text_width(status) + wide + 2 > width:
            return [("", f" {elide(status, max(width - 2, 1))}")]
        return [("", f" {status}"), ("", " " * (width - text_width(status) - wide - 2)), *keys]

    return draw
