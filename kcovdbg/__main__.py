# SPDX-License-Identifier: LGPL-2.1-or-later
"""``python -m kcovdbg``, and the console script."""

from __future__ import annotations

import sys

_INTERRUPTED = 130
# Nothing else is imported before main() has set the signal: an interrupt meanwhile would end in a traceback.
try:
    import signal
except KeyboardInterrupt:
    sys.exit(_INTERRUPTED)


def main() -> int:
    """Run kcovdbg with the process's arguments."""
    # Under nohup, or as a background job of a shell, C-c is ignored.
    takes_interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if takes_interrupts:
        # Importing takes long enough to be interrupted, and a traceback of it says nothing: let the signal end the process.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from kcovdbg.frontends.cli import end_by_signal
    from kcovdbg.frontends.cli import main as run

    for number in (signal.SIGTERM, signal.SIGHUP):
        # What is ignored, under nohup for instance, stays so.
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, end_by_signal)
    try:
        if takes_interrupts:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        status = run()
    except KeyboardInterrupt:
        status = _INTERRUPTED
    if takes_interrupts:
        # What is left is to delete temporary files.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return status


if __name__ == "__main__":
    sys.exit(main())
