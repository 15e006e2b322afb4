# SPDX-License-Identifier: LGPL-2.1-or-later
"""Views of buffers by name: one, two side by side, or the user's side of one beside the kernel's."""

from __future__ import annotations

from dataclasses import replace

from kcovdbg.analysis.located_records import PcFilter
from kcovdbg.collect.machine import is_this_machine
from kcovdbg.engine.buffer_sources import (
    FD,
    find_buffer,
    name_remarks,
    read_both_views,
    recorded_syscall_remarks,
    syscall_remarks,
)
from kcovdbg.engine.context import Context
from kcovdbg.engine.trace_view import TracePane, TraceView
from kcovdbg.errors import KcovdbgError


def make_view(
    context: Context, what: str, other: str | None, wanted: PcFilter | None = None, *, by_index: bool = False
) -> TraceView:
    """Read the buffers and make a view of them.

    :param wanted: leaves out the other records; None: all are shown.
    :raises KcovdbgError: when one cannot be read.
    """
    names = context.workspace.names
    if other is None and what.startswith(FD):
        target = context.workspace.optional_target
        if target is not None and is_this_machine(target):
            return _make_both_views(context, what, wanted)
    left = TracePane(find_buffer(context, what), names, wanted)
    right = None if other is None else TracePane(find_buffer(context, other), names, wanted)
    same = right is not None and right.buffer.address == left.buffer.address is not None
    # A task may have both buffers.
    buffers = [pane.buffer for pane in filter(None, (left, right))]
    remarks = [remark for buffer in buffers for remark in syscall_remarks(context, buffer)]
    remarks += [remark for buffer in buffers for remark in recorded_syscall_remarks(names, buffer)]
    remarks = [*dict.fromkeys(remarks), *name_remarks(context)]
    return TraceView(left, right, by_index=by_index or same, source=context.workspace.source, remarks=remarks)


def _make_both_views(context: Context, what: str, wanted: PcFilter | None) -> TraceView:
    """Make a view of the user's and the kernel's side of a buffer."""
    try:
        return _read_both_views(context, what, wanted)
    except KcovdbgError as error:
        # The kernel's side needs no process that maps the buffer.
        remarks = [f"kernel's view only: {error}", *name_remarks(context)]
        side = TracePane(find_buffer(context, what), context.workspace.names, wanted)
        return TraceView(side, source=context.workspace.source, remarks=remarks)


def _read_both_views(context: Context, what: str, wanted: PcFilter | None) -> TraceView:
    compared = read_both_views(context, what)
    found = [f"FINDING: {finding}" for finding in compared.findings] or ["the user's view and the kernel's are equal"]
    names = context.workspace.names
    return TraceView(
        TracePane(compared.user, names, wanted),
        TracePane(compared.kernel, names, wanted),
        by_index=True,
        source=context.workspace.source,
        remarks=[*found, *name_remarks(context)],
        renew=lambda: _read_both_views(replace(context, _reader=None), what, wanted),
    )


def make_followed_view(context: Context, what: str) -> TraceView:
    """Read a buffer of a kernel that runs and make a view that follows it: it is read again while it is shown.

    :raises KcovdbgError: when it cannot be read.
    """
    view = make_view(replace(context, _reader=None), what, None)
    view.renew = lambda: make_followed_view(context, what)
    return view
