# SPDX-License-Identifier: LGPL-2.1-or-later
"""Records of runs of kcovdbg that stop a machine. If a run was killed, its record says that it stopped the machine.

The record is written before the machine is stopped, and removed after it goes on. It is a file beside the machine's socket; for
TCP addresses, in the user's directory for state.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

from kcovdbg.errors import LimitError
from kcovdbg.input_file import parse_json, read_input
from kcovdbg.target.socket_address import SocketAddress
from kcovdbg.user_folder import find_user_folder

_SUFFIX: Final = ".kcovdbg-stopped"


class StopRecord(NamedTuple):
    """The run of kcovdbg that stopped a machine."""

    pid: int
    started: str
    """Start time of the process, which distinguishes it from later ones with its number."""
    command: str
    stopped_at: str
    reason: str = ""
    """Why the run left the machine stopped on purpose; empty for one that would have let it go on."""

    @property
    def is_running(self) -> bool:
        """Return whether the run still goes on."""
        return self.started != "" and _start_time(self.pid) == self.started


def write_record(address: SocketAddress, reason: str = "") -> None:
    """Record that this run stops the machine at an address; without a place for it, there is no record.

    :param reason: why it leaves the machine stopped, if it does.
    """
    command = shlex.join(["kcovdbg", *sys.argv[1:]])
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    restore_record(address, StopRecord(os.getpid(), _start_time(os.getpid()), command, now, reason))


def restore_record(address: SocketAddress, record: StopRecord | None) -> None:
    """Let the record of the machine at an address be one that was read before."""
    path = _find_path(address)
    with contextlib.suppress(OSError):
        if address.path is None:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if record is None:
            return
        # Exclusive: not through a link that another user made in the meantime.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644), "wb") as file:
            file.write(json.dumps(record._asdict()).encode())


def read_record(address: SocketAddress) -> StopRecord | None:
    """Return the record of the run that stopped the machine at an address, None when there is none."""
    try:
        # Beside a socket in /tmp anyone can put a file.
        found = parse_json(read_input(_find_path(address), owned=True).decode("utf-8", "surrogateescape"))
        return StopRecord(
            int(found["pid"]),
            str(found["started"]),
            str(found["command"]),
            str(found["stopped_at"]),
            str(found.get("reason", "")),
        )
    except (OSError, LimitError, ValueError, KeyError, TypeError):
        return None


def describe_record(record: StopRecord) -> str:
    """Return a note on the run that stopped a machine."""
    if record.pid == os.getpid() and record.is_running:
        return "the machine is stopped by this kcovdbg; resume lets it go on"
    run = f"'{record.command}' (process {record.pid})"
    if record.is_running:
        return f"the machine is stopped by {run}, which still runs"
    if record.reason:
        return f"the machine is stopped: {run} left it so at {record.stopped_at}, {record.reason}; resume lets it go on"
    return f"the machine is stopped: {run} stopped it at {record.stopped_at} and was killed; resume lets it go on"


def remove_record(address: SocketAddress) -> None:
    """Remove the record, because the machine goes on; not that of another run, which is about to stop it."""
    record = read_record(address)
    if record is not None and record.is_running and record.pid != os.getpid():
        return
    with contextlib.suppress(OSError):
        _find_path(address).unlink()


def _find_path(address: SocketAddress) -> Path:
    if address.path is not None:
        return Path(f"{address.path}{_SUFFIX}")
    # Without a place, no record is found, and none can be written.
    folder = find_user_folder("state").path or Path(os.devnull)
    return folder / f"{address.host.replace('/', '_')}:{address.port}{_SUFFIX}"


def _start_time(pid: int) -> str:
    """Return the start time of a process in the kernel's unit, empty when there is none."""
    try:
        # The name before it may have blanks and parentheses.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
