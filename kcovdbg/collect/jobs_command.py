# SPDX-License-Identifier: LGPL-2.1-or-later
"""``jobs``: collectors in the background."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Final

from kcovdbg.collect.background_jobs import find_jobs
from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.column import LIST, NUMBER, PID, Column, RowType
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.renderable import Lines, Renderable, Table
from kcovdbg.errors import CollectError, WordError

_COLUMNS: Final = (
    Column("job", NUMBER, value="number", meaning="number of the job"),
    Column("pid", PID, title="COLLECTOR", meaning="process id of the collector"),
    Column(
        "state",
        value=lambda job: "running" if job.status is None else "ended",
        meaning="`running` or `ended`",
    ),
    Column("status", NUMBER, meaning="exit status of the command", null="it has not ended"),
    Column("buffers", LIST, elastic=12, meaning="names of the buffers that it collects into"),
    Column("kept", LIST, meaning="names under which its buffers are kept"),
    Column(
        "files",
        LIST,
        value=lambda job: [] if job.name is not None else [str(path) for path in job.files],
        json_only=True,
        meaning="trace files that it writes",
    ),
    Column("command", value="title", elastic=16, meaning="the command line"),
)


def _run(context: Context, args: Namespace) -> Iterator[Renderable]:
    jobs = find_jobs(context.workspace)
    chosen = list(jobs) if args.number is None else [jobs.find(args.number)]
    if args.output:
        if args.number is None:
            raise WordError("jobs: --output needs a job number", None, hint="jobs lists the jobs")
        yield Lines([(("", line),) for line in chosen[0].lines])
        return
    if args.end:
        if args.number is None and not jobs.running:
            raise CollectError("no running job", hint="jobs also lists jobs that have ended")
        for job in chosen:
            job.end()
    elif args.wait:
        for job in chosen:
            job.wait()
    if args.end or args.wait:
        yield Lines(context.workspace.announce())
        if args.number is not None:
            context.status = chosen[0].status or 0
        return
    yield Table(_COLUMNS, chosen, empty="no job; collect -- COMMAND & starts one")


COMMAND: Final = Command(
    name="jobs",
    summary="list collectors in the background (collect … &)",
    topic=Topic.MAINTENANCE,
    run=_run,
    row_types=(RowType(_COLUMNS),),
    description=(
        "With & at the end of the line, collect runs in the background: tasks shows the command "
        "while it is traced, and buffer fd:PID/FD and view fd:PID/FD show the buffers listed "
        "here. When the command ends, the trace is kept as @collectN or under the name of --keep, "
        "or is written to the file of -o; the next prompt says so. C-c and leaving the shell end "
        "running jobs; a trace with -o is still written."
    ),
    arguments=(
        Argument("number [JOB]", Value.NUMBER, "the job"),
        Argument("--end", Value.FLAG, "end the job, or all jobs; their traces are kept"),
        Argument(
            "--wait",
            Value.FLAG,
            "wait for the job, or all jobs, to end; the exit status is the command's",
        ),
        Argument("--output", Value.FLAG, "show the output of the command and the collector"),
    ),
    examples=(
        Example("jobs", "which jobs are running, and which buffers do they have?"),
        Example("jobs --end 1", "end job 1 and keep its trace"),
    ),
    needs=frozenset(),
)
