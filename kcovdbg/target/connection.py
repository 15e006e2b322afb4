# SPDX-License-Identifier: LGPL-2.1-or-later
"""The connection to a machine, the address of its socket, and records of runs of kcovdbg that stop
the machine.

A record is written before the machine is stopped, and removed after it goes on. So the record of a
killed run shows that the run stopped the machine. It is a file beside the machine's socket, or in
the user's directory for state if the address is a TCP address.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shlex
import socket
import sys
import time
from contextlib import AbstractContextManager
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

from kcovdbg.errors import LimitError, TargetError
from kcovdbg.input_file import find_number, parse_json, read_input
from kcovdbg.limits import (
    REPLY_SIZE,
    REPLY_TIME,
    count_wait,
    find_limit,
    over_limit,
    time_for_replies,
)
from kcovdbg.user_folder import find_user_folder, make_folder


class MachineState(str, Enum):
    """The state of a machine."""

    RUNNING = "running"
    STOPPED = "stopped"
    GONE = "gone"


class Connection:
    """The connection of a target. This base class is for files, which do not change."""

    is_slow: bool = False
    """Whether the read of a page takes a round trip."""

    def pause(self) -> AbstractContextManager[bool]:
        """Stop the kernel during a block; afterwards it continues if it ran before. The block gets
        whether the kernel is stopped.
        """
        return contextlib.nullcontext(True)

    def state(self) -> MachineState | None:
        """Return the state of the machine at the moment, None for files."""
        return None

    def is_gone(self) -> bool:
        """Return whether the machine has ended, without asking it."""
        return False

    def stop_note(self) -> str | None:
        """Return a note on a machine that was stopped before kcovdbg connected to it, None if it
        runs.
        """
        return None

    def resume(self) -> str | None:
        """Let a machine continue that an ended run of kcovdbg left stopped; return a note for the
        user.

        :raises TargetError: when no run left it stopped.
        """
        raise TargetError("kcovdbg did not stop this machine")

    def leave_stopped(self, reason: str) -> str | None:
        """Leave a machine that kcovdbg stopped in this state when the target is closed.

        :param reason: the reason, for later runs of kcovdbg.
        :return: a note for the user, None if this connection stops nothing.
        """
        del reason
        return None

    def close(self) -> None:
        """Close the connection, also done at exit; a second call does nothing. A machine behind a
        GDB stub continues.
        """


_HOST_PORT: Final = re.compile(r"(?P<host>[^/.][^/]*)?:(?P<port>[0-9]{1,5})")


class SocketAddress(NamedTuple):
    """A path, or a host and a port."""

    text: str
    path: str | None
    host: str
    port: int


def parse_socket_address(text: str) -> SocketAddress:
    """Parse an address as drgn does: host:port, :port on this machine, or the path of a unix
    socket.

    A path with a colon must start with ``/`` or ``.``. QEMU's prefixes ``unix:`` and ``tcp:`` are
    accepted.
    """
    if text.startswith("unix:"):
        return SocketAddress(text, text[5:], "", 0)
    match = _HOST_PORT.fullmatch(text.removeprefix("tcp:"))
    if match is not None and 0 < int(match["port"]) < 65536:
        host = (match["host"] or "localhost").strip("[]")
        return SocketAddress(text, None, host, int(match["port"]))
    return SocketAddress(text, text, "", 0)


def connect(address: SocketAddress, what: str, hint: str, timeout: float) -> socket.socket:
    """Return a socket connected to an address.

    :param what: the peer's name in messages.
    :param hint: how to let the peer listen.
    :param timeout: the timeout of the socket, in seconds.
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
        silent = f"no answer within {timeout:g} s: another client may use it"
        reasons: dict[type[Exception], str] = {
            FileNotFoundError: "no such socket",
            ConnectionRefusedError: "connection refused: nothing listens there",
            PermissionError: "no permission",
            TimeoutError: silent,
            BlockingIOError: silent,
        }
        reason = reasons.get(type(error)) or str(getattr(error, "strerror", None) or error)
        raise TargetError(
            f"could not connect to {what} at {address.text}: {reason}", hint=hint
        ) from None


def time_left(start: float, seconds: float | None) -> float | None:
    """Return the seconds left of a time limit, at least 0; None without a limit.

    :param start: the start of the time, by :func:`time.monotonic`.
    """
    return None if seconds is None else max(start + seconds - time.monotonic(), 0)


def receive(connection: socket.socket, buffer: bytearray, deadline: float) -> None:
    """Add the next bytes of a peer to a buffer.

    :param deadline: the end of the time for a whole reply, by :func:`time.monotonic`.
    :raises TimeoutError: when the deadline has passed.
    :raises LimitError: when the command's time for replies is over, or the buffer exceeds the limit
        for a reply.
    :raises ConnectionResetError: when the peer has closed the connection.
    """
    start = time.monotonic()
    left = time_for_replies()
    if left <= 0:
        raise over_limit(REPLY_TIME, "waiting for the machine")
    remaining = min(deadline - start, left)
    if remaining <= 0:
        raise TimeoutError("timed out")
    connection.settimeout(remaining)
    try:
        data = connection.recv(65536)
    except TimeoutError:
        if remaining == left:
            raise over_limit(REPLY_TIME, "waiting for the machine") from None
        raise
    finally:
        count_wait(time.monotonic() - start)
    if not data:
        raise ConnectionResetError("connection closed")
    buffer += data
    if len(buffer) > find_limit(REPLY_SIZE):
        raise over_limit(REPLY_SIZE, "a reply of the machine")


def is_closed_by_peer(connection: socket.socket) -> bool:
    """Return whether the peer has closed a connection, even if there is unread data; False if this
    side has closed it.
    """
    if connection.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


_SUFFIX: Final = ".kcovdbg-stopped"


class StopRecord(NamedTuple):
    """The run of kcovdbg that stopped a machine."""

    pid: int
    started: str
    """Start time of the process, which distinguishes it from later processes with its id."""
    command: str
    stopped_at: str
    reason: str = ""
    """Why the run left the machine stopped; empty if the run was to let it go on."""

    @property
    def is_running(self) -> bool:
        """Whether the process still runs."""
        return self.started != "" and _start_time(self.pid) == self.started


def write_record(address: SocketAddress, reason: str = "") -> None:
    """Record that this run stops the machine at an address. If the record cannot be written, there
    is none.

    :param reason: why the run leaves the machine stopped; empty if it does not.
    """
    command = shlex.join(["kcovdbg", *sys.argv[1:]])
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    restore_record(address, StopRecord(os.getpid(), _start_time(os.getpid()), command, now, reason))


def restore_record(address: SocketAddress, record: StopRecord | None) -> None:
    """Write a record of the machine at an address; remove the file for None."""
    path = _find_path(address)
    with contextlib.suppress(OSError):
        if address.path is None:
            make_folder(path.parent)
        path.unlink(missing_ok=True)
        if record is None:
            return
        # O_EXCL: another user may have made a link meanwhile.
        with os.fdopen(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644), "wb"
        ) as file:
            file.write(json.dumps(record._asdict()).encode())


def read_record(address: SocketAddress) -> StopRecord | None:
    """Return the record of the run that stopped the machine at an address, or None."""
    try:
        # Other users can put a file beside a socket in /tmp.
        data = read_input(_find_path(address), owned=True)
        found = parse_json(data.decode("utf-8", "surrogateescape"))
        pid = find_number(found["pid"])
        if pid is None:
            return None
        started, command, stopped_at = found["started"], found["command"], found["stopped_at"]
        reason = str(found.get("reason", ""))
        return StopRecord(pid, str(started), str(command), str(stopped_at), reason)
    except (OSError, LimitError, ValueError, KeyError, TypeError, AttributeError):
        return None


def describe_record(record: StopRecord) -> str:
    """Return a note on the run that stopped a machine."""
    if record.pid == os.getpid() and record.is_running:
        return "the machine is stopped by this kcovdbg; resume lets it go on"
    run = f"'{record.command}' (process {record.pid})"
    if record.is_running:
        return f"the machine is stopped by {run}, which still runs"
    cause = f"{run} stopped it at {record.stopped_at} and was killed"
    if record.reason:
        cause = f"{run} left it so at {record.stopped_at}, {record.reason}"
    return f"the machine is stopped: {cause}; resume lets it go on"


def remove_record(address: SocketAddress) -> None:
    """Remove the record of a machine that goes on. The record of another process that still runs
    stays, as that process is about to stop the machine.
    """
    record = read_record(address)
    if record is not None and record.is_running and record.pid != os.getpid():
        return
    with contextlib.suppress(OSError):
        _find_path(address).unlink()


def _find_path(address: SocketAddress) -> Path:
    if address.path is not None:
        return Path(f"{address.path}{_SUFFIX}")
    # Without a directory for state, records are neither found nor written.
    folder = find_user_folder("state").path or Path(os.devnull)
    return folder / f"{address.host.replace('/', '_')}:{address.port}{_SUFFIX}"


def _start_time(pid: int) -> str:
    """Return the start time of a process in the kernel's unit, empty when there is none."""
    try:
        # The name of the process, in parentheses, may have blanks and parentheses.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
