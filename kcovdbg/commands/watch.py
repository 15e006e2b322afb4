# SPDX-License-Identifier: LGPL-2.1-or-later
"""``watch``: a command, repeated."""

from __future__ import annotations

import dataclasses
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from kcovdbg.analysis.awaited_events import AwaitedEvent, find_events, find_new
from kcovdbg.analysis.overflow_counts import BufferLook, OverflowCounts
from kcovdbg.engine.argument import Argument, Count, Value
from kcovdbg.engine.command import Command, Example, Topic
from kcovdbg.engine.context import Context
from kcovdbg.engine.runner import INTERRUPTED, answer, find_command, find_format
from kcovdbg.errors import CapabilityError, UsageError
from kcovdbg.render.renderable import Clear, Flush, Lines, Renderable, Table
from kcovdbg.render.writer import Format
from kcovdbg.target.connection import MachineState
from kcovdbg.walk.state import StateReader

# The key of the columns by which tasks and objects say that their buffer is full.
_FULL: Final = "full"
# Limit for names in the line below an answer.
_NAMED: Final = 8


def _keep_rows(renderable: Renderable) -> Renderable:
    """Return a part of an answer whose rows can be read twice."""
    if isinstance(renderable, Table) and any(column.key == _FULL for column in renderable.columns):
        return dataclasses.replace(renderable, rows=tuple(renderable.rows))
    return renderable


def _look_at_buffers(shown: Iterable[Renderable]) -> Iterator[BufferLook]:
    """Yield the buffers that an answer tells about."""
    for part in shown:
        if not isinstance(part, Table) or part.label is None:
            continue
        for column in part.columns:
            if column.key == _FULL:
                full = column.reader()
                yield from (BufferLook(part.label(row), full(row)) for row in part.rows)


def _describe_overflows(counts: OverflowCounts, looks: int) -> Lines:
    times = counts.times
    named = ", ".join(f"{name} {count}" for name, count in list(times.items())[:_NAMED])
    more = f", {len(times) - _NAMED} more" if len(times) > _NAMED else ""
    text = f"became full in {looks} looks, at least: {named or 'none'}{more}"
    return Lines(((("remark", text),),), is_prose=True)


class _Wait:
    """Waits for an event, at which the kernel is stopped."""

    def __init__(self, context: Context, event: AwaitedEvent) -> None:
        self._context = context
        self._event = event
        if context.target.state() is MachineState.STOPPED:
            raise CapabilityError(f"watch: {context.target.name} is stopped already", hint="resume lets it go on")
        # Also shows at once whether it can be stopped.
        self._known = frozenset(self._look_at_stopped())
        context.target.resume()

    def _look(self) -> Mapping[str, str]:
        return find_events(self._make_reader(), self._event)

    def _look_at_stopped(self) -> Mapping[str, str]:
        self._context.target.stop()
        try:
            return self._look()
        except BaseException:
            # C-c, for instance: a shell goes on, and the kernel must as well.
            self._context.target.resume()
            raise

    def _make_reader(self) -> StateReader:
        context = self._context
        return StateReader(context.target, context.layout, context.workspace.point_proof)

    def happens(self) -> str | None:
        """Return the event in words if it happens now, None if not; then the kernel is stopped."""
        # A buffer that was full before has to be emptied first; other events count from the first look on.
        known = self._known if self._event is AwaitedEvent.FULL else ()
        if not self._event.is_short:
            seen = self._look()
            self._known &= seen.keys()
            if find_new(seen, known) is None:
                return None
        found = find_new(self._look_at_stopped(), known)
        if found is None:
            # It was over before the kernel stopped.
            self._context.target.resume()
        return found


def _run(context: Context, args: Namespace) -> Iterator[Renderable]:
    wait = None if args.until is None else _Wait(context, AwaitedEvent(args.until))
    if not args.line:
        if wait is None:
            raise UsageError("watch: missing command", hint="watch 2 tasks")
        yield from _wait_silently(context, wait, args)
        return
    command, its_args = find_command(context.workspace, args.line)
    if command.name == context.command.name:
        raise UsageError("watch: cannot watch itself")
    its_format = find_format(context.workspace, its_args)
    if its_format is not context.format and its_format is not Format.TEXT:
        raise UsageError(f"watch: --{its_format.value} must come first", hint=f"watch --{its_format.value} …")
    title = f"every {args.seconds:g} s: {' '.join(args.line)}"
    overflows, looks = OverflowCounts(), 0
    event: str | None = None
    try:
        while True:
            if wait is not None:
                event = wait.happens()
            # A new context each time: one reads the kernel's state once.
            its_context = Context(context.workspace, command, context.terminal, context.format)
            # The last answer stays on the screen until the next one is complete.
            shown = [_keep_rows(part) for part in answer(its_context, its_args)]
            buffers = list(_look_at_buffers(shown))
            overflows, looks = overflows.after(buffers), looks + 1
            yield Clear()
            if context.terminal.is_terminal:
                yield Lines(((("remark", title),), ()))
            yield from shown
            if buffers:
                yield _describe_overflows(overflows, looks)
            # Where an event ends the watch, only the answer at the event counts.
            context.status = its_context.status if wait is not None else max(context.status, its_context.status)
            yield Flush()
            if event is not None:
                yield _stop_there(context, event)
                return
            if looks == args.count or _stands_still(context, its_context):
                return
            time.sleep(args.seconds)
    except KeyboardInterrupt:
        context.status = INTERRUPTED
        if context.terminal.is_terminal:
            # The terminal echoed ^C: end that line.
            yield Lines(((),))


def _wait_silently(context: Context, wait: _Wait, args: Namespace) -> Iterator[Renderable]:
    """Wait for an event without showing anything meanwhile."""
    looks = 0
    try:
        while (event := wait.happens()) is None:
            looks += 1
            if looks == args.count:
                return
            time.sleep(args.seconds)
    except KeyboardInterrupt:
        context.status = INTERRUPTED
        return
    yield _stop_there(context, event)


def _stop_there(context: Context, event: str) -> Lines:
    """Let the frontend go on with the kernel stopped; return the line that says where."""
    context.workspace.stop_reason = f"when {event}"
    return Lines(((("header", "stopped: "), ("", event)),), is_prose=True)


def _stands_still(context: Context, its_context: Context) -> bool:
    """Return whether all further answers would be the same, and nobody waits for the user's C-c."""
    reads = its_context.uses_target or its_context.shows_target
    return reads and not context.target.live and not context.terminal.is_terminal


COMMAND: Final = Command(
    name="watch",
    summary="repeat a command every N seconds, or until something happens",
    topic=Topic.OTHER,
    run=_run,
    description=(
        "On a terminal each answer replaces the one before; elsewhere they follow each other. Below the rows of tasks and "
        "objects, text counts how often each buffer became full since the start. A buffer that is emptied and filled again "
        "between two looks counts once. Where the kernel stands still and there is no terminal, one answer is all.\n\n"
        "With --until, a QEMU guest behind QMP is stopped when a rule of check is violated (violation), a buffer becomes full "
        "(full) or a task is in a remote or softirq section (section). It is looked at every N seconds; an event that is over "
        "before the guest stops does not count, and for sections the guest is stopped during each look. The last answer of "
        "COMMAND, which may be left out, is that of the stopped guest. On a terminal a single command then goes on in the "
        "shell; elsewhere the guest stays stopped, and resume lets it go on."
    ),
    arguments=(
        Argument(
            ("--until",),
            Value.CHOICE,
            "stop the guest when this happens",
            choices=tuple(event.value for event in AwaitedEvent),
            metavar="EVENT",
        ),
        Argument(("-n", "--count"), Value.NUMBER, "end after N looks", metavar="N"),
        Argument(("seconds",), Value.SECONDS, "pause between two looks", metavar="SECONDS"),
        Argument(("line",), Value.COMMAND, "a command with its arguments", count=Count.REST, metavar="COMMAND"),
    ),
    examples=(
        Example("watch 2 tasks", "see buffers fill on a running kernel"),
        Example("watch --until full 0.1 objects", "stop the guest when a buffer is full, and look around"),
    ),
    needs=frozenset(),
    endless=True,
)
