# SPDX-License-Identifier: LGPL-2.1-or-later
"""Full-screen applications that a shell stops and continues (SIGSTOP, SIGCONT)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from typing import Any, Final

from prompt_toolkit.application import Application
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.styles import Style

from kcovdbg.console.renderable import Line
from kcovdbg.console.terminal import THEME


def redraw_when_continued(application: Application[Any]) -> None:
    """Show a full-screen application again when its process is continued; called once it runs.

    What stops a process without asking it leaves it no time to restore the terminal, and the shell then sets it for itself.
    """

    def restore() -> None:
        source = application.input
        with contextlib.suppress(OSError):
            if not application.is_running or os.tcgetpgrp(source.fileno()) != os.getpgrp():
                # Continued in the background: the terminal is another process's. `fg` sends the signal again.
                return
        # The mode to restore at the end is the application's to remember: here only that of now is set.
        source.raw_mode().__enter__()
        application.renderer.reset()
        application.invalidate()

    # Outside of the main thread there are no handlers.
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGCONT, restore)


_SGR: Final[Mapping[str, str]] = {
    "1": "bold",
    "2": "ansibrightblack",
    "31": "ansired",
    "32": "ansigreen",
    "33": "ansiyellow",
    "34": "ansiblue",
    "35": "ansimagenta",
    "36": "ansicyan",
}


def make_style() -> Style:
    """Return the theme as prompt_toolkit's style, with the classes of views."""
    rules = {
        name.replace(".", "-"): " ".join(_SGR[code] for code in codes.split(";") if code in _SGR)
        for name, codes in THEME.items()
    }
    # Reversed colors would be white on cyan or on green in a light terminal.
    reverse = "noinherit reverse"
    return Style.from_dict({**rules, "cursor": reverse, "match": "underline", "bar": reverse, "help": reverse})


def style_line(line: Line, extra: str = "") -> StyleAndTextTuples:
    """Return a line with the classes of its styles, and one more for all of it."""
    return [(f"{'class:' + style.replace('.', '-') if style else ''} {extra}".strip(), text) for style, text in line]
