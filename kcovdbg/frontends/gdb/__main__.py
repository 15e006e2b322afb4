# SPDX-License-Identifier: LGPL-2.1-or-later
"""Starts the process: ``python -m kcovdbg.frontends.gdb FD``, where FD is a socket to GDB."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module

from kcovdbg.frontends.gdb.link import VERSION, Link
from kcovdbg.frontends.gdb.server import Server


def main() -> None:
    """Serve GDB until it ends."""
    link = Link(int(sys.argv[1]))
    link.interrupts.watch()
    server = Server(link)
    server.greet(VERSION)
    # While GDB reads its files. Where drgn is missing, the first command says so.
    with suppress(ImportError):
        import_module("kcovdbg.target.drgn.programs")
    server.serve()


if __name__ == "__main__":
    main()
