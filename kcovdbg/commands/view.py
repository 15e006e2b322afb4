# SPDX-License-Identifier: LGPL-2.1-or-later
"""``view``: a buffer full-screen, or two side by side."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from kcovdbg.analysis.located_records import PcFilter
from kcovdbg.analysis.pc_counts import count_pcs
from kcovdbg.collect.machine import is_this_machine
from kcovdbg.engine.argument import Argument, Count, Value, WordError
from kcovdbg.engine.buffer_arguments import NOT_FUNCTION, TEXT_PCS
from kcovdbg.engine.buffer_sources import (
    FD,
    find_buffer,
    name_remarks,
    read_both_views,
    recorded_syscall_remarks,
    syscall_remarks,
)
from kcovdbg.engine.command import Command, Example, Topic
from kcovdbg.engine.context import Context
from kcovdbg.engine.trace_builds import BuildComparison, build_remarks, compare_builds, find_builds
from kcovdbg.engine.trace_view import TracePane, TraceView
from kcovdbg.errors import CapabilityError, KcovdbgError
from kcovdbg.render.renderable import Line, Lines

# Without a terminal: enough for two functions with their places.
_WIDTH: Final = 160
_LEAST: Final = 20
_MOST: Final = 10_000


def make_view(context: Context, what: str, other: str | None, args: Namespace) -> TraceView:
    """Read the buffers and make a view of them.

    :raises KcovdbgError: when one cannot be read.
    """
    if other is None and what.startswith(FD):
        target = context.workspace.optional_target
        if target is not None and is_this_machine(target):
            return _make_both_views(context, what, PcFilter(context.workspace.names, None, None, args.not_function))
    whats = [what] if other is None else [what, other]
    builds = find_builds(context, [[name] for name in whats])
    buffers = [find_buffer(context, name, build.kernel) for name, build in zip(whats, builds, strict=True)]
    panes = [
        TracePane(buffer, build.names, PcFilter(build.names, None, None, args.not_function))
        for buffer, build in zip(buffers, builds, strict=True)
    ]
    same = len(buffers) == 2 and buffers[0].address == buffers[1].address is not None
    # A task may have both buffers.
    remarks = [remark for buffer in buffers for remark in syscall_remarks(context, buffer)]
    for build, buffer in zip(builds, buffers, strict=True):
        remarks += recorded_syscall_remarks(build.names, buffer)
    remarks = [*dict.fromkeys(remarks), *build_remarks(context, builds)]
    comparison: BuildComparison | None = None
    if len(builds) == 2 and builds[0] is not builds[1]:
        comparison = compare_builds(builds, [count_pcs(pane.buffer) for pane in panes])
        remarks += comparison.remarks()
    return TraceView(*panes, by_index=args.by_index or same, source=builds[0].source, comparison=comparison, remarks=remarks)


def _make_both_views(context: Context, what: str, wanted: PcFilter) -> TraceView:
    """Make a view of the user's and the kernel's side of a buffer."""
    try:
        return _read_both_views(context, what, wanted)
    except KcovdbgError as error:
        # The kernel's side needs no process that maps the buffer.
        remarks = [f"kernel's view only: {error}", *name_remarks(context)]
        side = TracePane(find_buffer(context, what), context.workspace.names, wanted)
        return TraceView(side, source=context.workspace.source, remarks=remarks)


def _read_both_views(context: Context, what: str, wanted: PcFilter) -> TraceView:
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


def _run(context: Context, args: Namespace) -> Lines | None:
    if args.width is not None and not _LEAST <= args.width <= _MOST:
        raise WordError(f"view: --width {args.width} is impossible, {_LEAST} to {_MOST} are possible", str(args.width))
    show = context.workspace.show_view
    if not args.text and (show is None or not context.terminal.is_terminal):
        raise CapabilityError(
            "view: standard output is not a terminal" if show is not None else "view: no full-screen view here",
            hint="view --text prints the same",
        )
    view = make_view(context, args.what, args.other, args)
    if args.fold:
        view.rows = view.folded()
    if args.text or show is None:
        width = args.width if args.width is not None else context.width or _WIDTH
        return Lines(_text_lines(view, max(width, _LEAST)), remarks=view.remarks)
    show(view)
    return None


def _text_lines(view: TraceView, width: int) -> Iterator[Line]:
    yield view.heading(width)
    for number in range(len(view.rows)):
        yield view.line(view.rows.row(number), width)


COMMAND: Final = Command(
    name="view",
    summary="view a buffer with its source full-screen, or two side by side",
    topic=Topic.BUFFERS,
    run=_run,
    description=(
        "Two traces are aligned by the records that they have in common. With --by-index, or when both names are those of one "
        "buffer, records are paired by index. On this machine's own kernel, fd:PID/FD alone shows the user's view of the "
        "buffer beside the kernel's, rereads both every second, and reports differences beyond the record in flight as "
        "findings; user:PID/FD names the user's view. At the last record the view follows new ones. ? shows the keys.\n\n"
        "Traces of two builds of a kernel are aligned by function and line, as diff compares them.\n\n"
        "--text prints the two sides instead, as wide as the terminal or as --width says: < marks records only on the left, > "
        "only on the right, | a pair that differs."
    ),
    arguments=(
        Argument(("what",), Value.BUFFER, "the buffer, or the left one", metavar="A"),
        Argument(("other",), Value.BUFFER, "the right buffer", count=Count.OPTIONAL, metavar="B"),
        Argument(("--text",), Value.FLAG, "print the view as text"),
        Argument(("--width",), Value.NUMBER, f"width of --text; {_WIDTH} without a terminal", metavar="N"),
        Argument(("--by-index",), Value.FLAG, "pair records by index"),
        Argument(("--fold",), Value.FLAG, "fold equal records and runs of one function"),
        NOT_FUNCTION,
        TEXT_PCS,
    ),
    examples=(
        Example("view 41", "browse a trace"),
        Example("view @before 41", "two traces side by side"),
        Example("view fd:41/3", "the user's view beside the kernel's, on this machine"),
        Example("view file:run.kcov fd:41/1000", "a trace collected in a guest beside the guest's memory (--qemu)"),
    ),
    needs=frozenset(),
)
