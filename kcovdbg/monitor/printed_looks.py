# SPDX-License-Identifier: LGPL-2.1-or-later
"""Looks of the monitor as text, for logs, pipes and terminals without a screen."""

from __future__ import annotations

import contextlib
import shutil
import time
from typing import Final

from kcovdbg.console.terminal import Terminal
from kcovdbg.monitor.monitor_source import LiveSource, follow
from kcovdbg.monitor.screen_state import MonitorState

# Columns and lines where nobody looks at a screen: all rows are written.
_UNLIMITED: Final = (120, 100_000)


def print_looks(
    source: LiveSource, terminal: Terminal, seconds: float | None, pause: float
) -> None:
    """Print each look, without the lines that the look before had, until C-c or the end of the
    source.

    :param seconds: until the end; None for no end.
    :param pause: seconds between two looks that are printed; the last one is always printed.
    """
    state = MonitorState(source)
    size = shutil.get_terminal_size() if terminal.is_terminal else _UNLIMITED
    due = time.monotonic()
    before: list[str] = []
    with contextlib.suppress(KeyboardInterrupt):
        for _ in follow(source, seconds):
            if source.pause is not None and time.monotonic() < due:
                continue
            due = time.monotonic() + pause
            state.refresh()
            shown = [terminal.painter.paint(line).rstrip() for line, _ in state.lines(*size)]
            changed = [line for line in shown if line and line not in before]
            terminal.stdout.write("".join(f"{line}\n" for line in changed) + "\n")
            terminal.stdout.flush()
            before = shown
