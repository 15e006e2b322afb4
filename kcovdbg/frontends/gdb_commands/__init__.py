# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcov-show`` inside GDB: commands, parameters, functions, pretty printers, MI, and a window of the TUI.

Loaded by gdb/kcov.py. Only the standard library and GDB's own module: GDB's Python is the system's, and drgn must not get into
its process, where it crashes it.
"""

from __future__ import annotations

import sys

_installed = False


def install() -> None:
    """Make everything known to GDB, once.

    :raises RuntimeError: outside of GDB.
    """
    global _installed
    import gdb

    # From a checkout plain Python's `import gdb` finds our folder.
    if not hasattr(gdb, "execute"):
        raise RuntimeError(f"this is for GDB, not for {sys.executable}")
    if _installed:
        return
    _installed = True
    from kcovdbg.frontends.gdb_commands.functions import define_functions
    from kcovdbg.frontends.gdb_commands.machine_interface import define_mi
    from kcovdbg.frontends.gdb_commands.parameters import define_parameters
    from kcovdbg.frontends.gdb_commands.printers import define_printers
    from kcovdbg.frontends.gdb_commands.show import Show, define_commands
    from kcovdbg.frontends.gdb_commands.window import define_window

    define_parameters()
    show = Show()
    define_commands(show)
    define_functions()
    define_printers()
    define_mi(show)
    define_window(show)
    show.known.watch()
