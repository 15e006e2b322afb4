# SPDX-License-Identifier: LGPL-2.1-or-later
"""Opens the target before the first prompt, with a word to those who wait."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Final, TextIO

from kcovdbg.commands.session import Session
from kcovdbg.render.theme import is_terminal

_PATIENCE: Final = 1.0
_WORD: Final = "reading debug info …"


def open_session(session: Session, patience: float = _PATIENCE) -> None:
    """Open the target and find out which KCOV it has.

    :param patience: seconds after which a word tells that it goes on.
    :raises KcovdbgError: when it can't be opened, or has no KCOV.
    """
    with progress_word(session.terminal().stderr, _WORD, patience):
        _ = session.target
        _ = session.layout


@contextlib.contextmanager
def progress_word(stream: TextIO, word: str, patience: float) -> Iterator[None]:
    """Show a word on a terminal while a block takes longer than expected, and take it away again."""
    if not is_terminal(stream):
        yield
        return
    shown = threading.Event()

    def show() -> None:
        shown.set()
        stream.write(word)
        stream.flush()

    # It only writes; the Program belongs to this thread. drgn lets others run while it reads debug info.
    timer = threading.Timer(patience, show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        if shown.is_set():
            # Blanks rather than an escape sequence: they work on every terminal.
            stream.write(f"\r{' ' * len(word)}\r")
            stream.flush()
