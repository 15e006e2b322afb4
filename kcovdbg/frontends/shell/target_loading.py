# SPDX-License-Identifier: LGPL-2.1-or-later
"""Opening of the target before the first prompt, with a progress message."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Final, TextIO

from kcovdbg.console.workspace import Workspace
from kcovdbg.console.theme import is_terminal

_PATIENCE: Final = 1.0
_WORD: Final = "reading debug info …"


def open_workspace(workspace: Workspace, patience: float = _PATIENCE) -> None:
    """Open the target and detect the KCOV of one that has memory.

    :param patience: seconds before a progress message is shown.
    :raises KcovdbgError: when it cannot be opened, or has no KCOV.
    """
    with progress_word(workspace.terminal().stderr, _WORD, patience):
        if workspace.target.memory_problem is None:
            _ = workspace.layout


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
