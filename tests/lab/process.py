# SPDX-License-Identifier: LGPL-2.1-or-later
"""Child processes that end with their owner."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
# Loaded before any fork: between fork and exec only the call itself is safe.
_LIBC = ctypes.CDLL(None, use_errno=True)


class DieWithOwner:
    """Have the kernel kill the child when the thread that started it ends. For Popen's
    `preexec_fn`.

    It is the thread that counts, not the process: start long-lived children from a long-lived
    thread.
    """

    def __init__(self) -> None:
        self._owner = os.getpid()

    def __call__(self) -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # The owner may have ended before prctl() was called.
        if os.getppid() != self._owner:
            os._exit(127)
