# SPDX-License-Identifier: LGPL-2.1-or-later
"""The start of the shell: open the target, and show a banner."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Final, TextIO

from kcovdbg import __version__
from kcovdbg.console.grid import remark_line
from kcovdbg.console.paragraph import wrap_line
from kcovdbg.console.renderable import Line
from kcovdbg.console.terminal import is_terminal
from kcovdbg.console.text import escape
from kcovdbg.console.workspace import Workspace


def banner_lines(workspace: Workspace) -> Iterator[Line]:
    """Yield the lines of the banner."""
    target = workspace.kernel.target
    text = f": {target.memory_problem or target.name}, Linux {target.release} {target.machine}"
    if target.memory_problem is None:
        text += f", {'live' if target.live else 'not running'}, KCOV {workspace.kernel.layout.generation.era}"
    yield (("header", f"kcovdbg {__version__}"), ("", text))
    stop_note = target.connection.stop_note()
    for note in [*target.notes, *([stop_note] if stop_note is not None else [])]:
        yield from wrap_line(remark_line(note), workspace.terminal().width)
    yield (("hint", "help lists the commands, COMMAND? shows help for one; C-d leaves"),)


def status_words(workspace: Workspace) -> tuple[str, ...]:
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


_PATIENCE: Final = 1.0
_WORD: Final = "reading debug info …"


def open_workspace(workspace: Workspace, patience: float = _PATIENCE) -> None:
    """Open the target and detect the KCOV of one that has memory.

    :param patience: seconds before a progress message is shown.
    :raises KcovdbgError: when it cannot be opened, or has no KCOV.
    """
    with progress_word(workspace.terminal().stderr, _WORD, patience):
        if workspace.kernel.target.memory_problem is None:
            _ = workspace.kernel.layout


@contextlib.contextmanager
def progress_word(stream: TextIO, word: str, patience: float) -> Iterator[None]:
    """Show a message on a terminal while a block takes longer than expected, then clear it."""
    if not is_terminal(stream):
        yield
        return
    shown = threading.Event()

    def show() -> None:
        shown.set()
        stream.write(word)
        stream.flush()

    # The timer only writes: the Program belongs to this thread. drgn releases the GIL while it reads debug info.
    timer = threading.Timer(patience, show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        if shown.is_set():
            # Blanks work on every terminal, unlike escape sequences.
            stream.write(f"\r{' ' * len(word)}\r")
            stream.flush()
