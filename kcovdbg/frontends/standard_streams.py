# SPDX-License-Identifier: LGPL-2.1-or-later
"""Standard streams that the caller closed (``>&-``)."""

from __future__ import annotations

import io
import os
import sys
from typing import NoReturn

from kcovdbg.errors import KcovdbgError


class ClosedOutput(io.TextIOBase):
    """Takes the place of a standard output that is closed: Python has none then."""

    def write(self, text: str) -> NoReturn:
        """Refuse the text.

        :raises KcovdbgError: always.
        """
        del text
        raise KcovdbgError("standard output is closed", hint="redirect it, for instance to /dev/null")


def replace_closed_streams() -> None:
    """Make sure that there are standard streams, and that no other file gets their descriptors.

    Otherwise the next file opened would get descriptor 1, and child processes would write their output to it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest one that is free is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    # Python has None where a stream was closed, whatever the annotations say.
    streams = vars(sys)
    if streams["stdin"] is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - open until the end
    if streams["stdout"] is None:
        sys.stdout = ClosedOutput()
    if streams["stderr"] is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - as above
