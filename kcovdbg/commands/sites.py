# SPDX-License-Identifier: LGPL-2.1-or-later
"""``sites``: the places in this kernel that announce a remote handle."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from kcovdbg.abi.generations import Feature
from kcovdbg.abi.handle import decode_handle, name_subsystem
from kcovdbg.console.argument import Argument, Value, matches_name, select_rows
from kcovdbg.console.column import (
    ADDRESS,
    BOOL,
    COMM,
    DETAIL,
    HANDLE,
    NUMBER,
    PID,
    SYMBOL,
    UNKNOWN_TASK,
    Column,
    RowType,
)
from kcovdbg.console.command import Command, Example, Need, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.renderable import Table
from kcovdbg.console.writer import Format
from kcovdbg.model.remote import RemoteHandle, RemoteSite
from kcovdbg.model.state import Part
from kcovdbg.symbols.remote_calls import RemoteSites


class _SiteRow(NamedTuple):
    """A site, with one of the registered handles that it can announce."""

    site: RemoteSite
    registration: RemoteHandle | None
    """None if none is registered, or registered handles are unknown."""
    registered: bool | None
    """None if registered handles are unknown."""

    @property
    def subsystem(self) -> str | None:
        if self.site.subsystem is None:
            return None
        return name_subsystem(self.site.subsystem)

    @property
    def handle(self) -> int | None:
        return self.registration and self.registration.handle

    @property
    def pid(self) -> int | None:
        return self.registration and self.registration.pid

    @property
    def comm(self) -> str | None:
        return self.registration and self.registration.comm


_COLUMNS: Final = (
    Column(
        "function",
        SYMBOL,
        value="site.function",
        elastic=16,
        meaning="function in whose source the handle is announced; it may be inlined",
    ),
    Column(
        "subsystem",
        meaning="subsystem of the handles: `usb` or `common`",
        null="the caller passes a whole handle",
    ),
    Column(
        "context",
        value="site.context",
        meaning="`task` or `softirq`: where the function runs",
        null="the code does not say",
    ),
    Column(
        "file",
        value="site.file",
        elastic=16,
        meaning="source file of the call, relative to the build root",
        null="the debug info has no line for it",
    ),
    Column(
        "line",
        NUMBER,
        value="site.line",
        meaning="line of the call",
        null="the debug info has no line for it",
    ),
    Column(
        "handle",
        HANDLE,
        meaning="a registered handle of this subsystem; a row for each",
        null="none is registered",
    ),
    Column(
        "registered",
        BOOL,
        priority=DETAIL,
        meaning="whether a handle of this subsystem is registered",
        null="the target has no memory",
    ),
    Column("pid", PID, meaning="thread id of the owner of the handle", null=UNKNOWN_TASK),
    Column("comm", COMM, elastic=8),
    Column(
        "module",
        value="site.module",
        json_only=True,
        meaning="loaded module that the site is in",
        null="it is in the kernel's image",
    ),
    Column(
        "symbol",
        SYMBOL,
        value="site.symbol",
        json_only=True,
        meaning="function whose code has the call, with a compiler's suffix",
        null="no symbol is there",
    ),
    Column(
        "wrapper",
        SYMBOL,
        value="site.wrapper",
        json_only=True,
        meaning="function that the source calls: `kcov_remote_start` or one of its wrappers",
    ),
    Column(
        "address",
        ADDRESS,
        value="site.address",
        json_only=True,
        meaning="address after the call, in the running kernel",
    ),
)
_SHOWN: Final = ("function", "subsystem", "context", "file", "line", "handle", "pid", "comm")


def _rows(
    found: RemoteSites, handles: Sequence[RemoteHandle], problem: str | None
) -> Iterator[_SiteRow]:
    """Yield each site with each registered handle that it can announce.

    :param problem: why registered handles are unknown; None if they are known.
    """
    for site in found.sites:
        announced = [
            entry
            for entry in handles
            if entry.handle is not None
            and site.subsystem in (None, decode_handle(entry.handle).subsystem)
        ]
        for entry in announced:
            yield _SiteRow(site, entry, True)
        if not announced:
            yield _SiteRow(site, None, None if problem else False)


def _matches(row: _SiteRow, word: str) -> bool:
    site = row.site
    names = [site.function, site.file, site.symbol, row.subsystem, site.context, site.module]
    if row.handle is not None:
        names.append(str(decode_handle(row.handle)))
    return matches_name(word, [name or "" for name in names])


def _run(context: Context, args: Namespace) -> Table:
    if not context.layout.generation.has(Feature.REMOTE):
        return Table(_COLUMNS, (), empty="this kernel has no remote coverage", show=_SHOWN)
    lack = context.target.memory_problem
    found = context.kernel.code.find_remote_sites()
    problem = None
    handles: Sequence[RemoteHandle] = ()
    own_errors: tuple[str, ...] = ()
    if lack is None:
        handles = context.state(Part.REMOTE).handles
        notes = context.notes
    else:
        problem = f"which handles are registered is unknown: {lack}"
        notes = (problem,)
        if context.format is not Format.TEXT:
            own_errors = notes
    rows = _rows(found, sorted(handles, key=lambda entry: entry.handle or 0), problem)
    chosen, missed = select_rows(rows, args.patterns, _matches)
    if missed and not chosen:
        context.status = 2
    empty = "nothing in this kernel announces a remote handle"
    if args.patterns:
        empty = "no such site"
    return Table(
        _COLUMNS,
        chosen,
        remarks=(*notes, *found.remarks, *(f"no site matches '{word}'" for word in missed)),
        empty=empty,
        errors=lambda row: (*row.site.errors, *own_errors),
        label=lambda row: f"site {row.site.function}",
        # Handles are a detail of sites, which are in the code.
        rests_on=Part.NOTHING,
        show=_SHOWN,
    )


COMMAND: Final = Command(
    name="sites",
    summary="list the places in this kernel that announce a remote handle",
    topic=Topic.STATE,
    run=_run,
    row_types=(RowType(_COLUMNS, errors=True),),
    description=(
        "A site is a call of kcov_remote_start() or of one of its wrappers. Code between it and "
        "kcov_remote_stop() is recorded for the owner of the announced handle, if the handle is "
        "registered. Other background work (kernel threads, work items and softirqs) cannot be "
        "recorded.\n\n"
        "kcovdbg finds the calls in the code of the kernel's image, and in the memory of loaded "
        "modules. A site is listed once for each registered handle of its subsystem, or once "
        "without a handle. Which of several common handles it announces depends on its work: why "
        "HANDLE says which work carries a handle."
    ),
    arguments=(
        Argument(
            "patterns [PATTERN…]",
            Value.FUNCTION,
            "patterns (usb*) or parts of functions, files, subsystems, contexts, modules or "
            "handles",
        ),
    ),
    examples=(
        Example("sites", "which background work can be recorded on this kernel?"),
        Example("sites usb", "who receives the coverage of USB devices?"),
    ),
    needs=frozenset({Need.CODE}),
)
