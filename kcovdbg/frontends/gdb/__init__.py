# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcov-show`` inside GDB: commands, parameters, functions, pretty printers, MI, and a window of the TUI.

Loaded by gdb/kcov.py. Only the standard library and GDB's own module: GDB's Python is the system's, and drgn must not get into
its process, where it crashes it.
"""

from __future__ import annotations

import sys
from functools import cache


@cache
def install() -> None:
    """Define everything in GDB, once.

    :raises RuntimeError: outside GDB.
    """
    import gdb

    # In a checkout, `import gdb` in plain Python finds our directory.
    if not hasattr(gdb, "execute"):
        raise RuntimeError(f"not inside GDB: {sys.executable}")
    from kcovdbg.frontends.gdb.functions import define_functions
    from kcovdbg.frontends.gdb.kcov_show import Show, define_commands
    from kcovdbg.frontends.gdb.machine_interface import define_mi
    from kcovdbg.frontends.gdb.parameters import define_parameters
    from kcovdbg.frontends.gdb.printers import define_printers
    from kcovdbg.frontends.gdb.window import define_window

    define_parameters()
    show = Show()
    define_commands(show)
    define_functions()
    define_printers()
    define_mi(show)
    define_window(show)
    show.completer.watch()
