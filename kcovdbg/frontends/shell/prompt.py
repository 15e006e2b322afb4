# SPDX-License-Identifier: LGPL-2.1-or-later
"""The prompt on a terminal: completion, suggestions, history, status line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.cursor_shapes import ModalCursorShapeConfig
from prompt_toolkit.enums import EditingMode
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.output import ColorDepth, Output, create_output
from prompt_toolkit.shortcuts import CompleteStyle
from prompt_toolkit.styles import Style

from kcovdbg.console.harvest import Harvest
from kcovdbg.console.workspace import Workspace
from kcovdbg.frontends.shell.banner import status_words
from kcovdbg.frontends.shell.completer import LineCompleter
from kcovdbg.frontends.shell.highlight import LineLexer
from kcovdbg.frontends.shell.history import open_history
from kcovdbg.frontends.shell.history_command import make_history_command
from kcovdbg.frontends.shell.keys import KEYS, key_lines, make_bindings
from kcovdbg.frontends.shell.loop import run_in_shell
from kcovdbg.frontends.shell.plain_input import PROMPT
from kcovdbg.console.theme import is_terminal, wants_color
from kcovdbg.console.width import elide, text_width

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
    workspace: Workspace, harvest: Harvest, environment: Mapping[str, str], keys: Input | None, screen: Output | None
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
        run_in_shell(workspace, "help" if topic is None else f"help {topic}", environment)
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
        bottom_toolbar=_make_toolbar(status_words(workspace), lambda: screen.get_size().columns),
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
