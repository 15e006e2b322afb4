# SPDX-License-Identifier: LGPL-2.1-or-later
"""The signal handling of child processes."""

from __future__ import annotations

import signal


def restore_signals() -> None:
    """Restore the default actions; to be used as ``preexec_fn``.

    A child inherits ignored signals, and under nohup or in the background of a shell some are ignored.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
