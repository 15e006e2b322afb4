# SPDX-License-Identifier: LGPL-2.1-or-later
"""Views of buffers by name: one, two side by side, or the user's side of one beside the kernel's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kcovdbg.buffers.trace_view import TracePane, TraceView
from kcovdbg.compare.build_match import BuildComparison
from kcovdbg.compare.trace_builds import build_remarks, compare_builds, find_builds
from kcovdbg.console.buffer_arguments import check_functions
from kcovdbg.console.buffer_sources import (
    FD,
    find_buffer,
    read_both_views,
    recorded_syscall_remarks,
    syscall_remarks,
)
from kcovdbg.console.context import Context
from kcovdbg.errors import KcovdbgError
from kcovdbg.model.buffer import Buffer
from kcovdbg.records.located_records import PcFilter
from kcovdbg.records.pc_counts import count_pcs
from kcovdbg.records.pc_names import LocationCache
from kcovdbg.target.local_kernel import is_this_machine


def make_view(
    context: Context, what: str, other: str | None, not_function: Sequence[str] = (), *, by_index: bool = False
) -> TraceView:
    """Read the buffers and make a view of them.

    :param not_function: patterns of functions whose records are left out.
    :raises KcovdbgError: when one cannot be read.
    """
    if other is None and what.startswith(FD):
        target = context.kernel.optional_target
        if target is not None and is_this_machine(target):
            check_functions([context.kernel.names], not_function)
            return _make_both_views(context, what, not_function)
    whats = [what] if other is None else [what, other]
    builds = find_builds(context, [[name] for name in whats])
    check_functions([build.names for build in builds], not_function)
    buffers = [find_buffer(context, name, build.kernel) for name, build in zip(whats, builds, strict=True)]
    panes = [_make_pane(buffer, build.names, not_function) for buffer, build in zip(buffers, builds, strict=True)]
    same = len(buffers) == 2 and buffers[0].address == buffers[1].address is not None
    # A task may have both buffers.
    remarks = [remark for buffer in buffers for remark in syscall_remarks(context, buffer)]
    for buffer, build in zip(buffers, builds, strict=True):
        remarks += recorded_syscall_remarks(build.names, buffer)
    remarks = [*dict.fromkeys(remarks), *build_remarks(context, builds)]
    comparison: BuildComparison | None = None
    if len(builds) == 2 and builds[0] is not builds[1]:
        comparison = compare_builds(builds, [count_pcs(pane.buffer) for pane in panes])
        remarks += comparison.remarks()
    return TraceView(
        *panes,
        by_index=by_index or same,
        sources=[build.source for build in builds],
        comparison=comparison,
        remarks=remarks,
    )


def _make_pane(buffer: Buffer, names: LocationCache, not_function: Sequence[str]) -> TracePane:
    return TracePane(buffer, names, PcFilter(names, None, None, not_function))


def _make_both_views(context: Context, what: str, not_function: Sequence[str]) -> TraceView:
    """Make a view of the user's and the kernel's side of a buffer."""
    try:
        return _read_both_views(context, what, not_function)
    except KcovdbgError as error:
        # The kernel's side needs no process that maps the buffer.
        remarks = [f"kernel's view only: {error}", *context.kernel.name_remarks]
        side = _make_pane(find_buffer(context, what), context.kernel.names, not_function)
        return TraceView(side, sources=[context.kernel.source], remarks=remarks)


def _read_both_views(context: Context, what: str, not_function: Sequence[str]) -> TraceView:
    compared = read_both_views(context, what)
    found = [f"FINDING: {finding}" for finding in compared.findings] or ["the user's view and the kernel's are equal"]
    names = context.kernel.names
    return TraceView(
        _make_pane(compared.user, names, not_function),
        _make_pane(compared.kernel, names, not_function),
        by_index=True,
        sources=[context.kernel.source],
        remarks=[*found, *context.kernel.name_remarks],
        renew=lambda: _read_both_views(replace(context, _reader=None), what, not_function),
    )


def make_followed_view(context: Context, what: str) -> TraceView:
    """Read a buffer of a kernel that runs and make a view that follows it: it is read again while it is shown.

    :raises KcovdbgError: when it cannot be read.
    """
    view = make_view(replace(context, _reader=None), what, None)
    view.renew = lambda: make_followed_view(context, what)
    return view
