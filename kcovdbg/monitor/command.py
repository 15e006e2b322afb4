# SPDX-License-Identifier: LGPL-2.1-or-later
"""``monitor``: activity of a running kernel, shown full-screen, recorded, and played back."""

from __future__ import annotations

import contextlib
import time
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Final

from kcovdbg.buffers.buffer_view import make_followed_view
from kcovdbg.console.argument import Argument, Count, Value, WordError
from kcovdbg.console.command import Command, CommandResult, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.json_schema import RowType
from kcovdbg.console.output_files import STDOUT, open_text
from kcovdbg.console.renderable import Fields, Flush, Line, Lines, Renderable, Table, Text
from kcovdbg.console.writer import Format
from kcovdbg.errors import INTERRUPTED, CapabilityError, GoneError, KcovdbgError, UsageError
from kcovdbg.monitor.monitor_source import LiveSource, PlaybackSource
from kcovdbg.monitor.page import recording_page
from kcovdbg.monitor.sampler import LEAST_INTERVAL, SHARE, Sampler
from kcovdbg.monitor.samples import (
    FINDING_COLUMNS,
    MEANINGS,
    SAMPLE_COLUMNS,
    Facts,
    RecordingWriter,
    Sample,
    make_row,
    open_recording,
    read_run,
    read_samples,
)
from kcovdbg.monitor.summary import (
    SUMMARY_COLUMNS,
    SUMMARY_MEANINGS,
    advice_lines,
    buffer_table,
    heading_lines,
    place_table,
    seconds_text,
    section_table,
    summarize,
)
from kcovdbg.target.end_signals import signals_as_exit
from kcovdbg.target.watchpoints import RunEnd, Watchpoints

_MOST_PERCENT: Final = 100
_BUFFERS_SHOWN: Final = 20
_NO_TERMINAL: Final = "standard output is not a terminal"
_NO_SCREEN: Final = "no full-screen view here"


def _run(context: Context, args: Namespace) -> CommandResult:
    summarizes = args.summary or args.output is not None
    if args.file is None:
        if summarizes:
            raise WordError("monitor: --summary needs a recording", None, hint="monitor FILE --summary")
        return _watch(context, args)
    if args.record is not None:
        raise UsageError("monitor: a recording cannot be recorded", hint="leave out --record")
    if summarizes:
        return _summarize(context, args)
    _play_back(context, args)
    return None


def _watch(context: Context, args: Namespace) -> CommandResult:
    if not 0 < args.cpu <= _MOST_PERCENT:
        raise WordError(f"monitor: --cpu {args.cpu} is impossible, 1 to {_MOST_PERCENT} are possible", str(args.cpu))
    has_screen = context.terminal.is_terminal and context.workspace.has_screen
    if context.format is Format.TEXT and args.record is None and not has_screen:
        raise CapabilityError(
            f"monitor: {_NO_TERMINAL if context.workspace.has_screen else _NO_SCREEN}",
            hint="monitor --record FILE records without a screen; monitor --jsonl prints a line per look",
        )
    if not context.target.live and (context.target.state() is None or context.target.watchpoints is None):
        raise CapabilityError(
            f"monitor needs a running kernel; {context.target.name} is not one", hint="tasks, objects and check show its state"
        )
    shows = has_screen and context.format is Format.TEXT
    return _show(context, args) if shows else _write_samples(context, args)


def _play_back(context: Context, args: Namespace) -> None:
    has_screen = context.workspace.has_screen
    if not has_screen or not context.terminal.is_terminal or context.format is not Format.TEXT:
        raise CapabilityError(f"monitor: {_NO_TERMINAL if has_screen else _NO_SCREEN}", hint=f"monitor {args.file} --summary")
    # Imported here, as in _show(): prompt_toolkit takes a tenth of a second.
    from kcovdbg.monitor.screen import show_monitor

    show_monitor(PlaybackSource(read_run(args.file)), lambda _name: "a recording has no buffers to view")


def _show(context: Context, args: Namespace) -> Iterator[Renderable]:
    """Show the kernel full-screen, and record it if the user wants that."""
    from kcovdbg.buffers.view_screen import show_view
    from kcovdbg.monitor.screen import show_monitor

    def view(name: str) -> str | None:
        try:
            show_view(make_followed_view(context, name))
        except GoneError:
            # The monitor notices it as well.
            return None
        except KcovdbgError as error:
            return str(error)
        return None

    with _maybe_recording(context, args.record) as writer:
        source = _make_source(context, args, writer)
        # An error of the first look is better read without a screen.
        source.advance()
        if source.activity.sample is None:
            raise KcovdbgError(f"monitor: {source.problem}")
        show_monitor(source, view)
    if writer is not None:
        yield _describe_recording(args.record, source, writer)


def _describe_recording(path: str, source: LiveSource, writer: RecordingWriter) -> Lines:
    activity = source.activity
    seconds = 0.0 if activity.sample is None else activity.sample.time - activity.started
    text = f"{writer.samples} looks in {seconds_text(seconds)} recorded: {path}"
    return Lines(((("", text),),), remarks=() if source.problem is None or source.is_gone else (source.problem,))


def _find_facts(context: Context) -> Facts:
    target = context.target
    return {"target": target.name, "release": target.release, "build_id": target.build_id}


def _make_source(context: Context, args: Namespace, writer: RecordingWriter | None = None) -> LiveSource:
    share, target = args.cpu / 100, context.target
    names = None if args.no_records else context.workspace.names
    sampler = Sampler(target, context.layout, names, share, is_stepped=not target.live)
    let_run = None if target.live or target.watchpoints is None else partial(_let_run, target.watchpoints)
    return LiveSource(sampler, _find_facts(context), args.interval, share, writer, let_run)


def _let_run(machine: Watchpoints, seconds: float) -> bool:
    """Let a machine behind a stub run for some seconds; return whether it would go on."""
    end = machine.run((), lambda: True, seconds)
    if end is RunEnd.INTERRUPT:
        raise KeyboardInterrupt
    return end is RunEnd.TIME


def _maybe_recording(context: Context, path: str | None) -> contextlib.AbstractContextManager[RecordingWriter | None]:
    return contextlib.nullcontext() if path is None else open_recording(path, _find_facts(context), context.inputs)


def _take_samples(context: Context, source: LiveSource, seconds: float | None) -> Iterator[Sample]:
    """Yield samples until C-c, the end of the machine, or the end of the time."""
    end = None if seconds is None else time.monotonic() + seconds
    last = None
    try:
        while True:
            source.advance()
            sample = source.activity.sample
            if sample is not None and sample is not last:
                yield sample
            last = sample
            pause = source.pause
            if pause is None or (end is not None and time.monotonic() + pause > end):
                return
            source.wait(pause)
    except KeyboardInterrupt:
        context.status = 0 if source.is_recording else INTERRUPTED


def _write_samples(context: Context, args: Namespace) -> Iterator[Renderable]:
    """Record without a screen, and write a row per look, as soon as it is known, where rows are wanted."""
    facts = _find_facts(context)
    with signals_as_exit(), _maybe_recording(context, args.record) as writer:
        source = _make_source(context, args, writer)
        for sample in _take_samples(context, source, args.seconds):
            if context.format is not Format.TEXT:
                yield Table(SAMPLE_COLUMNS, (make_row(sample, facts),))
                yield Flush()
    if writer is not None and context.format is Format.TEXT:
        yield _describe_recording(args.record, source, writer)


def _summarize(context: Context, args: Namespace) -> Iterator[Renderable]:
    rows = read_samples(args.file)
    first, facts = next(rows)
    summary = summarize(chain((first,), (sample for sample, _ in rows)), facts)
    if args.output == STDOUT:
        if context.format is not Format.TEXT:
            raise UsageError("monitor: cannot write JSON or CSV to standard output", hint="add -o FILE")
        yield Text(f"{line}\n" for line in recording_page(summary))
        return
    if args.output is not None:
        with open_text(args.output, context.inputs) as stream:
            stream.writelines(f"{line}\n" for line in recording_page(summary))
    if context.format is not Format.TEXT:
        yield Fields(SUMMARY_COLUMNS, summary)
        return
    yield Lines((*heading_lines(summary), ()))
    yield buffer_table(summary, _BUFFERS_SHOWN)
    yield Lines((*advice_lines(summary), ()), is_prose=True)
    if summary.sections:
        yield section_table(summary.sections)
        yield Lines(((),))
    if summary.functions:
        for by, places in (("function", summary.functions), ("file", summary.files), ("directory", summary.directories)):
            yield Lines((_heading(f"records by {by}, estimated from samples"),))
            yield place_table(places, by=by)
            yield Lines(((),))
    if summary.findings:
        yield Lines((_heading("findings of two looks in a row"),))
        yield Table(FINDING_COLUMNS, summary.findings)
    yield Lines((_heading(f"objects: {summary.came} came, {summary.went} went"),), remarks=summary.errors)
    if args.output is not None:
        yield Lines(((("remark", f"written: {args.output}"),),))


def _heading(text: str) -> Line:
    return (("header", text),)


COMMAND: Final = Command(
    name="monitor",
    summary="watch tasks and buffers of a running kernel, or record them",
    topic=Topic.STATE,
    run=_run,
    row_types=(
        RowType(SAMPLE_COLUMNS, MEANINGS, when="of a running kernel: a row per look"),
        RowType(SUMMARY_COLUMNS, SUMMARY_MEANINGS, when="`--summary`"),
    ),
    description=(
        "Shows each task with KCOV state: mode, fill of its buffer, records a second, how often the buffer became full, and "
        "its system call; remote sections in flight and a second by handle; areas; objects that come and go; findings of the "
        "rules that need little reading. F1 shows the keys. Looking takes no more than --cpu percent of a core: looks come "
        "less often when they take longer. All counts are lower bounds: a buffer that is emptied and filled again between "
        "two looks counts once.\n\n"
        "--record writes every look to a file, as JSON Lines. monitor FILE plays it back, and --summary says which buffers "
        "overflowed, what was lost, which size would have held 99 % of the rounds, and where records went; -o writes that as "
        "a page with plots. Without a terminal, --record records until C-c or for --seconds, and --jsonl prints a row per look."
    ),
    arguments=(
        Argument(("file",), Value.FILE, "a recording to play back", count=Count.OPTIONAL, metavar="FILE"),
        Argument(("--record",), Value.FILE, "record every look in a file", metavar="FILE", is_output=True),
        Argument(("--summary",), Value.FLAG, "summarize a recording"),
        Argument(
            ("-o", "--output"),
            Value.FILE,
            "write the summary as an HTML page with plots; - for standard output",
            metavar="FILE",
            is_output=True,
        ),
        Argument(
            ("--interval",),
            Value.SECONDS,
            f"time from look to look, at least; default {LEAST_INTERVAL}",
            metavar="SECONDS",
            default=LEAST_INTERVAL,
        ),
        Argument(
            ("--cpu",),
            Value.NUMBER,
            f"percentage of one core that looking may take; default {SHARE * 100:.0f}",
            metavar="PERCENT",
            default=round(SHARE * 100),
        ),
        Argument(("--seconds",), Value.SECONDS, "end after this time", metavar="SECONDS"),
        Argument(("--no-records",), Value.FLAG, "read no records to see where they went"),
    ),
    examples=(
        Example("monitor", "who collects coverage, and whose buffer overflows?"),
        Example("monitor --record fuzz.jsonl", "watch, and keep what is seen"),
        Example("monitor fuzz.jsonl --summary", "which buffers overflowed, and which size would do?"),
        Example("monitor fuzz.jsonl -o fuzz.html", "the same as a page with plots"),
    ),
    needs=frozenset(),
    endless=True,
)
