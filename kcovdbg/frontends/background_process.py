# SPDX-License-Identifier: LGPL-2.1-or-later
"""``python -m kcovdbg.frontends.background_process PID WORD…``: kcovdbg that ends with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from kcovdbg.frontends.cli import main

# <linux/prctl.h>
_PR_SET_PDEATHSIG = 1


def run(arguments: list[str]) -> int:
    """Run the program.

    :param arguments: process id of the parent, and the program's arguments.
    :return: the exit status.
    """
    # On SIGTERM a collector ends its command and writes what it has.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != int(arguments[0]):
        # The parent ended before the call.
        return 128 + signal.SIGTERM
    return main(arguments[1:])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
