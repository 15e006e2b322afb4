# SPDX-License-Identifier: LGPL-2.1-or-later
"""A line before the prompt that tells the kernel's KASLR offset, so that no user sets a breakpoint
at an address without it.
"""

from __future__ import annotations

from typing import Any, Optional

import gdb

from .lender import Lender


def announce_at_prompts(lender: Lender) -> None:
    """Write the line before the first prompt of each connection."""
    announced: Optional[Any] = None

    def announce(*_: object) -> None:
        nonlocal announced
        connection = gdb.selected_inferior().connection
        if connection is None or connection is announced:
            return
        announced = connection
        try:
            if lender.describe().get("stub") == "kgdb":
                # Finding the kernel takes minutes on a serial line.
                return
            line = lender.ask("where")["line"]
        except (gdb.GdbError, gdb.error, KeyboardInterrupt) as error:
            line = str(error)
        if line:
            gdb.write(line + "\n")

    gdb.events.before_prompt.connect(announce)
