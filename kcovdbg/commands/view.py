# SPDX-License-Identifier: LGPL-2.1-or-later
"""``view``: a buffer full-screen, or two side by side."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from kcovdbg.collect.machine import is_this_machine
from kcovdbg.commands.argument import Argument, Count, Value, WordError
from kcovdbg.commands.buffer import TEXT_PCS
from kcovdbg.commands.command import Command, Example
from kcovdbg.commands.session import Context
from kcovdbg.commands.viewing import Side, View
from kcovdbg.commands.what import FD, find_buffer, name_remarks, read_both_views
from kcovdbg.errors import CapabilityError, KcovdbgError
from kcovdbg.render.renderable import Line, Lines

# Without a terminal: wide enough for two functions with their places.
_WIDTH: Final = 160
_LEAST: Final = 20


def make_view(context: Context, what: str, other: str | None, *, by_index: bool) -> View:
    """Read the buffers and put them beside each other.

    :raises KcovdbgError: when one can't be read.
    """
    names = context.session.names
    if other is None and what.startswith(FD):
        target = context.session.optional_target
        if target is not None and is_this_machine(target):
            return _make_both_views(context, what)
    left = Side(find_buffer(context, what), names)
    right = None if other is None else Side(find_buffer(context, other), names)
    same = right is not None and right.buffer.address == left.buffer.address is not None
    return View(left, right, by_index=by_index or same, source=context.session.source, remarks=name_remarks(context))


def _make_both_views(context: Context, what: str) -> View:
    """Put what user space sees beside what the kernel holds."""
    try:
        return _read_both_views(context, what)
    except KcovdbgError as error:
        # The kernel's view needs no process that maps the buffer.
        remarks = [f"only the kernel's view: {error}", *name_remarks(context)]
        side = Side(find_buffer(context, what), context.session.names)
        return View(side, source=context.session.source, remarks=remarks)


def _read_both_views(context: Context, what: str) -> View:
    compared = read_both_views(context, what)
    found = [f"FINDING: {finding}" for finding in compared.findings] or ["user space sees what the kernel holds"]
    names = context.session.names
    return View(
        Side(compared.user, names),
        Side(compared.kernel, names),
        by_index=True,
        source=context.session.source,
        remarks=[*found, *name_remarks(context)],
        renew=lambda: _read_both_views(replace(context, _census=None), what),
    )


def _run(context: Context, args: Namespace) -> Lines | None:
    if args.width is not None and args.width < _LEAST:
        raise WordError(f"a width of {args.width} has no room for two sides", str(args.width))
    show = context.session.show_view
    if not args.text and (show is None or not context.terminal.is_terminal):
        raise CapabilityError(
            "view needs a terminal, and the answer doesn't go to one"
            if show is not None
            else "view needs a terminal of its own",
            hint="view --text prints the same side by side",
        )
    view = make_view(context, args.what, args.other, by_index=args.by_index)
    if args.fold:
        view.rows = view.folded()
    if args.text or show is None:
        width = args.width if args.width is not None else context.width or _WIDTH
        return Lines(_text_lines(view, max(width, _LEAST)), remarks=view.remarks)
    show(view)
    return None


def _text_lines(view: View, width: int) -> Iterator[Line]:
    yield view.heading(width)
    for number in range(len(view.rows)):
        yield view.line(view.rows.row(number), width)


VIEW = Command(
    name="view",
    summary="a buffer full-screen with its source, or two side by side",
    run=_run,
    description=(
        "Two traces are aligned by what they have in common; one buffer under two names, or --by-index, record by record: what "
        "user space maps must be what the kernel writes. On this machine's own kernel, fd:PID/FD alone shows just these two, "
        "read anew every second, and what differs beyond the record in flight as a finding; user:PID/FD names the user's side. "
        "At the last record the view follows what is added. In the view ? shows the keys.\n\n"
        "--text prints the two sides instead, in the terminal's width or that of --width: < is only on the left, > only on the "
        "right, | stands between two that differ."
    ),
    arguments=(
        Argument(("what",), Value.BUFFER, "the left one", metavar="A"),
        Argument(("other",), Value.BUFFER, "the right one", count=Count.OPTIONAL, metavar="B"),
        Argument(("--text",), Value.FLAG, "print it"),
        Argument(("--width",), Value.NUMBER, f"columns of --text; {_WIDTH} where there is no terminal", metavar="N"),
        Argument(("--by-index",), Value.FLAG, "pair records by their index"),
        Argument(("--fold",), Value.FLAG, "start with what is alike folded"),
        TEXT_PCS,
    ),
    examples=(
        Example("view 41", "look through a trace"),
        Example("view @before 41", "two traces side by side"),
        Example("view fd:41/3", "what user space sees beside what the kernel holds, on this machine"),
        Example("view file:run.kcov fd:41/1000", "what was collected in a guest beside the guest's memory (--qemu)"),
    ),
    needs=frozenset(),
)
