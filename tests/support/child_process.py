# SPDX-License-Identifier: LGPL-2.1-or-later
"""Child processes: their signals, whether they run, and waiting for what they do."""

from __future__ import annotations

import signal
import time
from pathlib import Path


def restore_signals() -> None:
    """Restore the default actions; to be used as ``preexec_fn``.

    A child inherits ignored signals, and under nohup or in the background of a shell some are
    ignored.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def children_of(pid):
    """Return the processes that the threads of a process have started."""
    return [
        int(word)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for word in (task / "children").read_text().split()
    ]


def is_alive(pid):
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_for(condition, seconds=60):
    """Return what a function returns as soon as that is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found
