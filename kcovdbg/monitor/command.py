# SPDX-License-Identifier: LGPL-2.1-or-later
"""``monitor``: activity of a running kernel, shown full-screen, recorded, and summarized."""

from __future__ import annotations

import contextlib
from argparse import Namespace
from collections.abc import Iterator
from typing import Final

from kcovdbg.buffers.trace_view import make_followed_view
from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.column import RowType
from kcovdbg.console.command import Command, CommandResult, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.output_files import open_text
from kcovdbg.console.renderable import Lines, Renderable, Table, Text
from kcovdbg.console.writer import Format
from kcovdbg.errors import (
    INTERRUPTED,
    CapabilityError,
    GoneError,
    KcovdbgError,
    UsageError,
    WordError,
)
from kcovdbg.monitor.monitor_source import LEAST_INTERVAL, SHARE, LiveSource, follow
from kcovdbg.monitor.page import recording_page
from kcovdbg.monitor.printed_looks import print_looks
from kcovdbg.monitor.samples import SAMPLE_COLUMNS, open_recording, read_samples
from kcovdbg.monitor.summary import (
    SUMMARY_ROWS,
    advice_lines,
    buffer_table,
    heading_lines,
    seconds_text,
    section_table,
    share_table,
    summarize,
)
from kcovdbg.target.end_signals import signals_as_exit

_MOST_PERCENT: Final = 100
_BUFFERS_SHOWN: Final = 20


def _run(context: Context, args: Namespace) -> CommandResult:
    if args.file is None:
        if args.summary or args.output is not None:
            raise WordError(
                "monitor: --summary needs a recording", None, hint="monitor FILE --summary"
            )
        return _watch(context, args)
    if args.record is not None:
        raise UsageError("monitor: a recording cannot be recorded", hint="leave out --record")
    return _summarize(context, args)


def _watch(context: Context, args: Namespace) -> Iterator[Renderable]:
    """Show a running kernel on a screen, print it, or yield a row per look; record it if asked
    to.
    """
    if not 0 < args.cpu <= _MOST_PERCENT:
        raise WordError(
            f"monitor: --cpu {args.cpu} is impossible, 1 to {_MOST_PERCENT} are possible",
            str(args.cpu),
        )
    is_text = context.format is Format.TEXT
    if is_text and args.record is None and not args.print:
        context.require_screen(
            "monitor --print prints each look as text, --jsonl as data; --record FILE records them"
        )
    target = context.target
    if not target.live and (target.state() is None or target.watchpoints is None):
        raise CapabilityError(
            f"monitor needs a running kernel; {target.name} is not one",
            hint="tasks, objects and check show its state",
        )
    has_screen = context.has_screen and not args.print
    with contextlib.ExitStack() as stack:
        if not has_screen:
            # The screen handles signals itself.
            stack.enter_context(signals_as_exit())
        record = None
        if args.record is not None:
            record = stack.enter_context(open_recording(args.record, context.input_files))
        names = None
        if not args.no_records:
            names = context.names
        machine = None
        if not target.live:
            machine = target.watchpoints
        source = LiveSource(
            target, context.layout, names, args.interval, args.cpu / 100, record, machine
        )
        source.advance()
        if has_screen:
            # An error of the first look is better read without a screen.
            if source.activity.sample is None:
                raise KcovdbgError(f"monitor: {source.problem}")
            _show(context, source)
        elif args.print:
            print_looks(source, context.terminal, args.seconds, pause=0)
        else:
            last = None
            try:
                for activity in follow(source, args.seconds):
                    if not is_text and activity.sample not in (None, last):
                        yield Table(SAMPLE_COLUMNS, (activity.sample,))
                    last = activity.sample
            except KeyboardInterrupt:
                if not source.is_recording:
                    context.status = INTERRUPTED
    if record is not None and is_text:
        activity = source.activity
        text = f"{activity.looks} looks in {seconds_text(activity.seconds)} recorded: {args.record}"
        yield Lines(((("", text),),), remarks=filter(None, (source.problem,)))


def _show(context: Context, source: LiveSource) -> None:
    # Imported here: prompt_toolkit takes a tenth of a second.
    from kcovdbg.buffers.view_screen import show_view
    from kcovdbg.monitor.screen import show_monitor

    def view(name: str) -> str:
        try:
            show_view(make_followed_view(context, name))
        except GoneError:
            # The monitor also notices it.
            return ""
        except KcovdbgError as error:
            return str(error)
        return ""

    show_monitor(source, view)


def _summarize(context: Context, args: Namespace) -> Iterator[Renderable]:
    summary = summarize(read_samples(args.file))
    page = (f"{line}\n" for line in recording_page(summary))
    if context.writes_stdout(args.output):
        yield Text(page)
        return
    if args.output is not None:
        with open_text(args.output, context.input_files) as stream:
            stream.writelines(page)
    if context.format is not Format.TEXT:
        yield Table(SUMMARY_ROWS.columns, [summary])
        return
    yield Lines((*heading_lines(summary), ()))
    yield buffer_table(summary, _BUFFERS_SHOWN)
    yield Lines((*advice_lines(summary), ()), is_prose=True)
    if summary.activity.sections:
        yield section_table(summary.activity.sections)
        yield Lines(((),))
    for by, shares in summary.shares.items():
        if shares:
            yield Lines(((("header", f"records by {by}, estimated from samples"),),))
            yield share_table(shares, by=by)
            yield Lines(((),))
    objects = f"objects: {summary.activity.came} came, {summary.activity.went} went"
    yield Lines(((("header", objects),),), remarks=summary.errors)
    if args.output is not None:
        yield Lines(((("remark", f"written: {args.output}"),),))


COMMAND: Final = Command(
    name="monitor",
    summary="watch tasks and buffers of a running kernel, or record them",
    topic=Topic.STATE,
    run=_run,
    row_types=(
        RowType(SAMPLE_COLUMNS, when="of a running kernel: a row per look"),
        SUMMARY_ROWS,
    ),
    description=(
        "Shows each task with KCOV state: mode, fill of its buffer, records per second, how often "
        "the buffer became full, and its system call; the remote sections in flight and per "
        "second, by handle; and objects that come and go. F1 shows the keys. Looking at the "
        "kernel takes at most --cpu percent of a core. All counts are lower bounds: a buffer that "
        "is emptied and filled again between two looks counts once.\n\n"
        "--record writes every look to a file, as JSON Lines. monitor FILE says which buffers "
        "overflowed, what was lost, which size would have held 99 % of the rounds, and where the "
        "records went; -o writes a page with plots. Without a screen, --print writes what has "
        "changed in each look, --jsonl a row per look, and --record records until C-c or for "
        "--seconds."
    ),
    arguments=(
        Argument("file [FILE]", Value.FILE, "a recording to summarize"),
        Argument("--record FILE", Value.FILE, "record every look in a file", is_output=True),
        Argument("--print", Value.FLAG, "print what has changed in each look, without a screen"),
        Argument("--summary", Value.FLAG, "summarize the recording, which is the default"),
        Argument(
            "-o, --output FILE",
            Value.FILE,
            "write the summary as an HTML page with plots; - for standard output",
            is_output=True,
        ),
        Argument(
            "--interval SECONDS",
            Value.SECONDS,
            f"time from look to look, at least; default {LEAST_INTERVAL}",
            default=LEAST_INTERVAL,
        ),
        Argument(
            "--cpu PERCENT",
            Value.NUMBER,
            f"percentage of one core that looking may take; default {SHARE * 100:.0f}",
            default=round(SHARE * 100),
        ),
        Argument("--seconds SECONDS", Value.SECONDS, "end after this time"),
        Argument("--no-records", Value.FLAG, "read no records to see where they went"),
    ),
    examples=(
        Example("monitor", "who collects coverage, and whose buffer overflows?"),
        Example("monitor --record fuzz.jsonl", "watch, and keep what is seen"),
        Example("monitor --print --interval 2", "the same in a log or a pipe"),
        Example("monitor fuzz.jsonl", "which buffers overflowed, and which size would do?"),
        Example("monitor fuzz.jsonl -o fuzz.html", "the same as a page with plots"),
    ),
    needs=frozenset(),
    endless=True,
)
