# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcov-show`` inside GDB: commands, parameters, functions, pretty printers, MI, and a window of
the TUI.

kcovdbg and drgn run in another process, the child (kcovdbg.frontends.gdb). This package sends it
command lines, and lends it what GDB has open: memory and registers. It uses the standard library of
Python 3.8 and GDB's module, and imports nothing of kcovdbg.
"""

from __future__ import annotations

from typing import Any

_installed: list[Any] = []
"""The :class:`~kcov_show.lender.Lender`, once everything is defined."""


def install() -> None:
    """Define everything in GDB, once.

    :raises RuntimeError: outside GDB, or in one that is too old.
    """
    import gdb

    if not hasattr(gdb, "execute"):
        raise RuntimeError("not inside GDB")
    if not hasattr(gdb, "MICommand"):
        raise RuntimeError("kcov-show needs GDB 12 or newer; this is " + gdb.VERSION)
    if _installed:
        return
    from . import commands, functions, parameters, printers, window
    from .lender import Lender

    lender = Lender()
    parameters.define()
    commands.define(lender)
    functions.define(lender)
    printers.define(lender)
    window.define(lender)
    # Last: after an error, the next call defines everything again.
    _installed.append(lender)


def greet() -> None:
    """Wait until the child serves; after C-c, the first command waits for it."""
    import contextlib

    from . import commands

    with contextlib.suppress(KeyboardInterrupt):
        commands.greet(_installed[0])


def announce() -> None:
    """Say where the kernel is before the first prompt, and after each new connection."""
    from .announcement import announce_at_prompts

    announce_at_prompts(_installed[0])
