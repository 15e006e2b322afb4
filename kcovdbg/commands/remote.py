# SPDX-License-Identifier: LGPL-2.1-or-later
"""``remote``: the remote handles that are registered."""

from __future__ import annotations

import contextlib
from argparse import Namespace
from collections.abc import Callable
from typing import Any, Final

from kcovdbg.abi.generations import Feature
from kcovdbg.abi.handle import decode_handle, parse_handle
from kcovdbg.console.argument import Argument, Value, matches_name, select_rows
from kcovdbg.console.column import (
    ADDRESS,
    COMM,
    HANDLE,
    NUMBER,
    PID,
    UNKNOWN_TASK,
    WORD,
    Column,
    RowType,
)
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.renderable import Table
from kcovdbg.model.remote import RemoteHandle
from kcovdbg.model.state import Part


def _part(name: str) -> Callable[[RemoteHandle], Any]:
    def value(entry: RemoteHandle) -> object:
        if entry.handle is None:
            return None
        return getattr(decode_handle(entry.handle), name)

    return value


_COLUMNS: Final = (
    Column("handle", HANDLE),
    Column("subsystem", value=_part("subsystem_name")),
    Column("instance", NUMBER, value=_part("instance")),
    Column("bucket", NUMBER, priority=1),
    Column("kcov", ADDRESS),
    Column(
        "device",
        hide_empty=True,
        meaning="device of a posted series that it is registered with",
        null="it is KCOV's own",
    ),
    Column("pid", PID, meaning="thread id of the owner", null=UNKNOWN_TASK),
    Column("comm", COMM, elastic=8),
    Column("word", WORD, value="handle", priority=2, text_only=True),
)
_SHOWN: Final = ("handle", "device", "pid", "comm", "kcov", "word", "bucket")


def _matches(entry: RemoteHandle, word: str) -> bool:
    """Return whether a word selects a handle: the handle itself, its owner's thread id, or a
    pattern or part of a name.
    """
    if word.isdecimal():
        return entry.pid == int(word)
    names = [entry.comm or ""]
    if entry.handle is not None:
        with contextlib.suppress(ValueError):
            return parse_handle(word) == entry.handle
        names.append(str(decode_handle(entry.handle)))
    return matches_name(word, names)


def _run(context: Context, args: Namespace) -> Table:
    state = context.state(Part.REMOTE | Part.DEVICES)
    every = [*state.handles, *(entry for device in state.devices for entry in device.handles)]
    rows, missed = select_rows(every, args.handles, _matches)
    if missed and not rows:
        context.status = 2
    parts = Part.REMOTE | Part.DEVICES
    absent = [state.say_absent(f"no registered handle matches '{word}'", parts) for word in missed]
    empty = "no such handle" if args.handles else "no remote handle is registered"
    if not context.layout.generation.has(Feature.REMOTE):
        empty = f"this kernel's KCOV ({context.layout.generation.era}) has no remote handles"
    return Table(
        _COLUMNS,
        rows,
        remarks=(*context.notes, *absent),
        empty=empty,
        errors=lambda entry: entry.errors,
        label=lambda entry: (
            f"handle {'?' if entry.handle is None else decode_handle(entry.handle)}"
        ),
        show=_SHOWN,
    )


COMMAND: Final = Command(
    name="remote",
    summary="list the remote handles in kcov_remote_map",
    topic=Topic.STATE,
    run=_run,
    row_types=(RowType(_COLUMNS, errors=True, unread=True),),
    description=(
        "Background work that runs under a handle (of a USB bus, or a task's common handle) "
        "collects for the object that registered the handle. A KCOV_REMOTE_ENABLE with a handle "
        "that is listed here fails with EEXIST."
    ),
    arguments=(
        Argument(
            "handles [HANDLE|PATTERN|TID…]",
            Value.REGISTERED,
            "handles such as usb:1, thread ids of owners, or patterns (usb:*) or parts of "
            "handles and names",
        ),
    ),
    examples=(
        Example("remote", "which handles are registered?"),
        Example("remote usb:1", "who holds usb:1?"),
    ),
)
