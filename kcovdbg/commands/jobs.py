# SPDX-License-Identifier: LGPL-2.1-or-later
"""``jobs``: collectors that run in the background."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Final

from kcovdbg.analysis.keeping import keep
from kcovdbg.collect.job import Job, Jobs
from kcovdbg.commands.argument import Argument, Count, Value, WordError
from kcovdbg.commands.command import Command, Example
from kcovdbg.commands.session import Context, Session
from kcovdbg.commands.what import FILE, find_buffer
from kcovdbg.errors import CapabilityError, CollectError, KcovdbgError
from kcovdbg.render.column import Column
from kcovdbg.render.kind import LIST, NUMBER, PID, TEXT
from kcovdbg.render.renderable import Line, Lines, Renderable, Table

# Of what a collector that failed has said last.
_TOLD_LINES: Final = 3


def find_jobs(session: Session) -> Jobs:
    """Return the session's collectors.

    :raises CapabilityError: inside another debugger.
    """
    if session.jobs is None:
        raise CapabilityError(
            "nothing runs in the background here", hint="kcovdbg's own shell does it; without & collect works here too"
        )
    return session.jobs


def start_collect(context: Context, args: Namespace, words: Sequence[str]) -> Lines:
    """Start ``collect`` in the background.

    :param words: its own, without its name.
    :raises CapabilityError: inside another debugger.
    :raises WordError: for what can only be shown at once.
    """
    jobs = find_jobs(context.session)
    if not args.command:
        raise WordError("collect what?", None, hint="collect -- COMMAND ARG… &, for instance collect -- sleep 60 &")
    for name, value in (("--syscall", args.syscall), ("--repeat", args.repeat), ("--json", args.json), ("--csv", args.csv)):
        if value:
            raise WordError(f"{name} shows its answer at the end: it doesn't go with &", name, hint="without & it works")
    if args.format != "kcov" and args.output is None:
        raise WordError(f"--format {args.format} is that of a file", "--format", hint="-o FILE writes one")
    job = jobs.start(words, output=args.output, name=args.keep, title=shlex.join(args.command))
    return Lines(((("", f"[{job.number}] collector {job.pid}: {job.title}"),),))


def announce(session: Session) -> list[Line]:
    """Return a line for each collector that has ended since the last time, and keep what it collected."""
    if session.jobs is None:
        return []
    return [(("", text),) for job in session.jobs if not job.is_told and job.status is not None for text in _tell(session, job)]


def _tell(session: Session, job: Job) -> Iterator[str]:
    job.is_told = True
    status = job.status or 0
    head = f"[{job.number}] "
    files = job.files
    if not files:
        said = [line for line in job.lines if line.startswith(("kcovdbg:", "hint:", "  "))][:_TOLD_LINES] or job.lines[
            -_TOLD_LINES:
        ]
        ended = f"was ended by signal {status - 128}" if status > 128 else f"failed with status {status}"
        yield f"{head}{ended}, nothing was collected: {job.title}"
        yield from (f"  {line}" for line in said)
        return
    counts = _keep(session, job) if job.name is not None else []
    parts = [f"{head}ended with status {status}: {job.title}"]
    parts += counts if counts else [f"written: {', '.join(map(str, files))}"]
    yield "; ".join(parts)
    number = len(job.lines)
    if number:
        yield f"  it left {number} line{'s' if number > 1 else ''} of output: jobs --output {job.number}"


def _keep(session: Session, job: Job) -> list[str]:
    """Keep a job's traces: the first one by its name, others by that and what they are."""
    context = Context(session, JOBS, session.terminal())
    told = []
    files = job.files
    stem = files[0].stem
    for index, path in enumerate(files):
        name = f"{job.name}{'' if not index else '-' + (path.stem.removeprefix(stem).strip('.') or str(index))}"
        try:
            buffer = find_buffer(context, f"{FILE}{path}")
        except KcovdbgError as error:
            told.append(str(error))
            continue
        session.kept[name] = keep(buffer, name, f"collect -- {job.title}")
        job.kept.append(name)
        told.append(f"kept as {name}: {buffer.count} records{', FULL' if buffer.full else ''}")
    job.forget_files()
    return told


def end_jobs(session: Session) -> list[Line]:
    """End all that run, because the session ends.

    :return: what to tell.
    """
    if session.jobs is None:
        return []
    lines: list[Line] = [(("", f"[{job.number}] ending: {job.title}"),) for job in session.jobs.running]
    session.jobs.close()
    lines += announce(session)
    session.jobs.remove()
    return lines


_COLUMNS: Final = (
    Column("job", NUMBER, value=lambda job: job.number),
    Column("pid", PID, title="COLLECTOR", value=lambda job: job.pid),
    Column("state", TEXT, value=lambda job: "running" if job.status is None else "ended"),
    Column("status", NUMBER, value=lambda job: job.status),
    Column("buffers", LIST, value=lambda job: job.buffers, elastic=12),
    Column("kept", LIST, value=lambda job: job.kept),
    Column("files", LIST, value=lambda job: [] if job.name is not None else [str(path) for path in job.files], json_only=True),
    Column("command", TEXT, value=lambda job: job.title, elastic=16),
)


def _run(context: Context, args: Namespace) -> Iterator[Renderable]:
    jobs = find_jobs(context.session)
    chosen = list(jobs) if args.number is None else [jobs.find(args.number)]
    if args.output:
        if args.number is None:
            raise WordError("jobs --output needs a job's number", None, hint="jobs lists them")
        yield Lines([(("", line),) for line in chosen[0].lines])
        return
    if args.end:
        if args.number is None and not jobs.running:
            raise CollectError("no job runs", hint="jobs lists those that have ended, too")
        for job in chosen:
            job.end()
    elif args.wait:
        for job in chosen:
            job.wait()
    if args.end or args.wait:
        yield Lines(announce(context.session))
        if args.number is not None:
            context.status = chosen[0].status or 0
        return
    yield Table(_COLUMNS, chosen, empty="nothing runs in the background: collect -- COMMAND & starts something")


JOBS = Command(
    name="jobs",
    summary="collectors that run in the background: collect … &",
    run=_run,
    description=(
        "collect with & at the end of the line runs as a process of its own, and the shell goes on: tasks shows the command "
        "while it is traced, and each of the buffers here can be looked at: buffer fd:PID/FD, view fd:PID/FD. At its end the "
        "trace is kept as @collectN, or under the name that --keep gives it, or written to the file of -o; the next prompt "
        "tells. Leaving the shell ends what still runs, as C-c would; what it has collected is written where -o was given."
    ),
    arguments=(
        Argument(("number",), Value.NUMBER, "which job", count=Count.OPTIONAL, metavar="JOB"),
        Argument(("--end",), Value.FLAG, "end it, or all of them; what it has collected is kept"),
        Argument(("--wait",), Value.FLAG, "wait until it has ended, or all of them; the exit status is its command's"),
        Argument(("--output",), Value.FLAG, "what the command and the collector have written"),
    ),
    examples=(
        Example("jobs", "what collect -- COMMAND & started: view fd:PID/FD shows a buffer as it fills"),
        Example("jobs --end 1", "that is enough of it"),
    ),
    needs=frozenset(),
)
