# SPDX-License-Identifier: LGPL-2.1-or-later
"""Full-screen applications that a shell stops and continues (SIGSTOP, SIGCONT)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Any

from prompt_toolkit.application import Application


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
