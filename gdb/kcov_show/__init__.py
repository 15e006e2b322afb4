# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcov-show`` inside GDB: commands, parameters, functions, pretty printers, MI, and a window of the TUI.

This is a client of a process with kcovdbg and drgn (kcovdbg.frontends.gdb), to which it lends what GDB has open. It uses the
standard library of Python 3.8 and GDB's module, and imports nothing of kcovdbg. GDB owns packets, modes of the stub, selected
threads and running.
"""

from __future__ import annotations

_installed: list[object] = []


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
    _installed.append(lender)
    parameters.define()
    commands.define(lender)
    functions.define(lender)
    printers.define(lender)
    window.define(lender)
