# SPDX-License-Identifier: LGPL-2.1-or-later
"""``python -m kcovdbg``, and the console script."""

from __future__ import annotations

import gc
import sys

_INTERRUPTED = 130
_FAILED = 2
# Nothing else is imported before main() has set the signal: an interrupt meanwhile would end in a
# traceback.
try:
    import signal
except KeyboardInterrupt:
    sys.exit(_INTERRUPTED)


def main() -> int:
    """Run kcovdbg with the process's arguments."""
    # Imports and answers make few cycles: the default of 700 objects takes a tenth of a short
    # command's time.
    gc.set_threshold(20_000, 20, 20)
    # Under nohup, or as a background job of a shell, C-c is ignored.
    takes_interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if takes_interrupts:
        # Importing takes long enough to be interrupted, and a traceback of it says nothing: let the
        # signal end the process.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from kcovdbg.console.terminal import discard_output
    from kcovdbg.frontends.cli import main as run
    from kcovdbg.target.end_signals import (
        end_handling,
        exit_status,
        has_hung_up,
        take_signals,
        watch_terminal,
    )

    try:
        if takes_interrupts:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        # The default action would leave guests stopped, the terminal raw, and gigabytes of
        # decompressed dumps.
        take_signals()
        watch_terminal()
        status = run()
    except KeyboardInterrupt:
        status = _INTERRUPTED
    except OSError:
        # Nobody can read what failed.
        if not has_hung_up():
            raise
        status = _FAILED
    finally:
        end_handling()
        if has_hung_up():
            # Python writes what is left in the buffers when it exits, and fails with a status of
            # its own.
            for stream in (sys.stdout, sys.stderr):
                discard_output(stream)
        # Python collects at exit, although the memory is released anyway.
        gc.freeze()
    return exit_status(status)


if __name__ == "__main__":
    sys.exit(main())
