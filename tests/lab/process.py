# SPDX-License-Identifier: LGPL-2.1-or-later
"""Child processes that never outlive their owner."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1
# Loaded before any fork: between fork and exec, only the call itself is left to do.
_LIBC = ctypes.CDLL(None, use_errno=True)


class DieWithOwner:
    """For Popen's `preexec_fn`: the kernel kills the child when the thread that started it ends, whatever ends it.

    It is the thread, not the process: start what should live long from a thread that does.
    """

    def __init__(self) -> None:
        self._owner = os.getpid()

    def __call__(self) -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # The owner may have died before the request was in place.
        if os.getppid() != self._owner:
            os._exit(127)


def is_alive(pid: int) -> bool:
    """Whether a process exists and isn't just waiting to be reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
