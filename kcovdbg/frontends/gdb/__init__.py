# SPDX-License-Identifier: LGPL-2.1-or-later
"""The process behind ``kcov-show`` in GDB: every command, on the kernel that GDB has open and
lends.

``python -m kcovdbg.frontends.gdb.server FD`` is started by what GDB sources (gdb/kcov.py), and ends
with it. It asks GDB for memory, registers and the monitor of a stub; nothing that it can say lets
the machine run, but the watchpoint of ``catch``.
"""
