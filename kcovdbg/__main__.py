# SPDX-License-Identifier: LGPL-2.1-or-later
"""``python -m kcovdbg``, and the console script."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import NoReturn

from kcovdbg.frontends.cli import main as run


def main() -> int:
    """Run kcovdbg with the process's arguments."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        # What is ignored, under nohup for instance, stays so.
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)
    return run()


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    # A signal's own way would leave behind what was decompressed, gigabytes for some dumps, and a terminal in disorder.
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
