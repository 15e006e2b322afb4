# SPDX-License-Identifier: LGPL-2.1-or-later
"""``remote``: the handles that background sections look up."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

from kcovdbg.abi.handle import decode_handle
from kcovdbg.commands.command import Command, Example
from kcovdbg.commands.session import Context
from kcovdbg.model.remote import RemoteHandle
from kcovdbg.render.column import Column
from kcovdbg.render.kind import ADDRESS, COMM, HANDLE, NUMBER, PID, WORD
from kcovdbg.render.renderable import Table


def _part(name: str) -> Callable[[RemoteHandle], Any]:
    return lambda entry: None if entry.handle is None else getattr(decode_handle(entry.handle), name)


_COLUMNS = (
    Column("handle", HANDLE),
    Column("subsystem", value=_part("subsystem_name")),
    Column("instance", NUMBER, value=_part("instance")),
    Column("bucket", NUMBER, priority=1),
    Column("kcov", ADDRESS),
    Column("pid", PID),
    Column("comm", COMM, elastic=8),
    Column("word", WORD, value=lambda entry: entry.handle, priority=2, text_only=True),
)
_SHOWN = ("handle", "pid", "comm", "kcov", "word", "bucket")


def _run(context: Context, args: Namespace) -> Table:  # noqa: ARG001
    rows = context.census.remote
    return Table(
        _COLUMNS,
        rows,
        remarks=context.census.remarks(),
        empty="no remote handle is registered",
        errors=lambda entry: entry.errors,
        label=lambda entry: f"handle {'?' if entry.handle is None else decode_handle(entry.handle)}",
        show=_SHOWN,
    )


REMOTE = Command(
    name="remote",
    summary="remote handles in kcov_remote_map",
    run=_run,
    description=(
        "Background work that runs under a handle (a USB bus, a task's own common handle) collects for the object that "
        "registered it. A KCOV_REMOTE_ENABLE with a handle that is listed here fails with EEXIST."
    ),
    examples=(Example("remote", "who holds usb:1?"),),
)
