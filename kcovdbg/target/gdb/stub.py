# SPDX-License-Identifier: LGPL-2.1-or-later
"""The stub that GDB is connected to, by what only it answers."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

import gdb

Send = Callable[[str], bytes]


class Stub(Enum):
    """What GDB is connected to."""

    QEMU = auto()
    KGDB = auto()
    OTHER = auto()


def find_packets() -> Send | None:
    """Return a function that sends a packet to the stub and returns its answer, None before GDB 12 and without a stub.

    Unlike those of ``monitor``, its answers are not mixed with what ``set debug remote`` prints.
    """
    connection = gdb.selected_inferior().connection
    send: Send | None = getattr(connection, "send_packet", None)
    return send


def identify_stub() -> Stub:
    """Return which stub it is; one that cannot be asked is another one."""
    send = find_packets()
    if send is None:
        return Stub.OTHER
    try:
        if send("qqemu.sstepbits"):
            return Stub.QEMU
        # kgdb's name of its thread -2 (kernel/debug/gdbstub.c).
        if send("qThreadExtraInfo,fffffffe") == b"shadowCPU0".hex().encode():
            return Stub.KGDB
    except gdb.error:
        pass
    return Stub.OTHER
