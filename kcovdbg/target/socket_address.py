# SPDX-License-Identifier: LGPL-2.1-or-later
"""Addresses of sockets as users write them: a path, or host:port."""

from __future__ import annotations

import re
import select
import socket
import time
from typing import Final, NamedTuple

from kcovdbg.errors import TargetError
from kcovdbg.limits import REPLY_SIZE, find_limit, over_limit

_HOST_PORT: Final = re.compile(r"(?P<host>[^/.][^/]*)?:(?P<port>[0-9]{1,5})")


class SocketAddress(NamedTuple):
    """A path, or a host and a port."""

    text: str
    path: str | None
    host: str
    port: int


def parse_address(text: str) -> SocketAddress:
    """Parse an address as drgn does: host:port, :port on this machine, otherwise the path of a unix socket.

    A path with a colon starts with ``/`` or ``.``; QEMU's prefixes ``unix:`` and ``tcp:`` are accepted.
    """
    if text.startswith("unix:"):
        return SocketAddress(text, text[5:], "", 0)
    match = _HOST_PORT.fullmatch(text.removeprefix("tcp:"))
    if match is not None and 0 < int(match["port"]) < 65536:
        return SocketAddress(text, None, (match["host"] or "localhost").strip("[]"), int(match["port"]))
    return SocketAddress(text, text, "", 0)


def connect(address: SocketAddress, what: str, hint: str, timeout: float) -> socket.socket:
    """Return a socket connected to an address.

    :param what: what listens there, for the message.
    :param hint: how to make it listen.
    :param timeout: of the socket, in seconds.
    :raises TargetError: when nothing accepts the connection.
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
            reason = "no such socket"
        elif isinstance(error, ConnectionRefusedError):
            reason = "connection refused: nothing listens there"
        elif isinstance(error, PermissionError):
            reason = "no permission"
        elif isinstance(error, TimeoutError | BlockingIOError):
            reason = f"no answer within {timeout:g} s: another client may use it"
        else:
            reason = str(getattr(error, "strerror", None) or error)
        raise TargetError(f"could not connect to {what} at {address.text}: {reason}", hint=hint) from None


def receive(connection: socket.socket, buffer: bytearray, deadline: float) -> None:
    """Add what a peer sends next to a buffer.

    :param deadline: of :func:`time.monotonic`, however often the peer sends a little.
    :raises TimeoutError: when it has passed.
    :raises ConnectionResetError: when the peer has closed the connection.
    :raises LimitError: when the buffer is larger than a reply may be.
    """
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError("timed out")
    connection.settimeout(remaining)
    data = connection.recv(65536)
    if not data:
        raise ConnectionResetError("connection closed")
    buffer += data
    if len(buffer) > find_limit(REPLY_SIZE):
        raise over_limit(REPLY_SIZE, "a reply of the machine")


def is_closed_by_peer(connection: socket.socket) -> bool:
    """Return whether the other side has closed a connection, with unread data or not; False when this side has."""
    if connection.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))
