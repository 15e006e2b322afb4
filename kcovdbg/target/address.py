# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where a socket is, as users write it: a path, or host:port."""

from __future__ import annotations

import re
import socket
from typing import Final, NamedTuple

from kcovdbg.errors import TargetError

_HOST_PORT: Final = re.compile(r"(?P<host>[^/.][^/]*)?:(?P<port>[0-9]{1,5})")


class SocketAddress(NamedTuple):
    """Either a path or a host and a port."""

    text: str
    path: str | None
    host: str
    port: int


def parse_address(text: str) -> SocketAddress:
    """Understand an address as drgn does: host:port, :port on this machine, or else the path of a unix socket.

    A path with a colon starts with ``/`` or ``.``; QEMU's prefixes ``unix:`` and ``tcp:`` are understood.
    """
    if text.startswith("unix:"):
        return SocketAddress(text, text[5:], "", 0)
    match = _HOST_PORT.fullmatch(text.removeprefix("tcp:"))
    if match is not None and 0 < int(match["port"]) < 65536:
        return SocketAddress(text, None, (match["host"] or "localhost").strip("[]"), int(match["port"]))
    return SocketAddress(text, text, "", 0)


def connect(address: SocketAddress, what: str, hint: str, timeout: float) -> socket.socket:
    """Connect; the socket's timeout is the one given.

    :param what: what should listen there, for the message.
    :param hint: how one makes it listen.
    :param timeout: in seconds.
    :raises TargetError: when nothing answers there.
    """
    connection: socket.socket | None = None
    try:
        if address.path is None:
            return socket.create_connection((address.host, address.port), timeout=timeout)
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout)
        connection.connect(address.path)
        return connection
    except (OSError, ValueError) as error:
        if connection is not None:
            connection.close()
        if isinstance(error, FileNotFoundError):
            reason = "there is no such socket"
        elif isinstance(error, ConnectionRefusedError):
            reason = "connection refused; nothing listens there"
        elif isinstance(error, PermissionError):
            reason = "no permission"
        elif isinstance(error, TimeoutError | BlockingIOError):
            reason = f"no answer within {timeout:g} s; another client may hold it"
        else:
            reason = str(getattr(error, "strerror", None) or error)
        raise TargetError(f"can't connect to {what} at {address.text}: {reason}", hint=hint) from None
