# SPDX-License-Identifier: LGPL-2.1-or-later
"""Collectors in the background: starting one for a line that ends with ``&``, and reporting the ones that have ended."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Final

from kcovdbg.records.compact_buffer import keep
from kcovdbg.collect.background_job import BackgroundJob, Jobs
from kcovdbg.console.argument import WordError
from kcovdbg.console.buffer_sources import read_trace_file
from kcovdbg.console.context import Context
from kcovdbg.console.workspace import Workspace
from kcovdbg.errors import CapabilityError, KcovdbgError
from kcovdbg.console.renderable import Line, Lines

# Of the last lines that a failed collector wrote.
_SHOWN_LINES: Final = 3


class Collectors:
    """The collectors of a workspace, which announces their ends and ends them with the program.

    :param workspace: what they have collected is kept there.
    :param program: the words that run kcovdbg in another process.
    """

    def __init__(self, workspace: Workspace, program: Sequence[str]) -> None:
        self._workspace = workspace
        self.jobs = Jobs(program)
        """The collectors."""

    def announce(self) -> list[Line]:
        """Keep what ended collectors collected, and return a line for each one that has ended since the last call."""
        ended = [job for job in self.jobs if not job.is_told and job.status is not None]
        return [(("", text),) for job in ended for text in _announce(self._workspace, job)]

    def end(self) -> list[Line]:
        """End all collectors that run, because the program ends; return what to report."""
        lines: list[Line] = [(("", f"[{job.number}] ending: {job.title}"),) for job in self.jobs.running]
        self.jobs.close()
        lines += self.announce()
        self.jobs.remove()
        return lines


def find_jobs(workspace: Workspace) -> Jobs:
    """Return the collectors of a workspace.

    :raises CapabilityError: inside another debugger.
    """
    found = next((work for work in workspace.background if isinstance(work, Collectors)), None)
    if found is None:
        if workspace.program is None:
            raise CapabilityError(
                "cannot run commands in the background here", hint="use kcovdbg's own shell, or collect without &"
            )
        found = Collectors(workspace, workspace.program)
        workspace.background.append(found)
    return found.jobs


def start_collect(context: Context, args: Namespace, words: Sequence[str]) -> Lines:
    """Start ``collect`` in the background.

    :param words: its own, without its name.
    :raises CapabilityError: inside another debugger.
    :raises WordError: for options whose answer comes at the end.
    """
    jobs = find_jobs(context.workspace)
    if not args.command:
        raise WordError("collect: missing command", None, hint="collect -- COMMAND ARG… &, for instance collect -- sleep 60 &")
    for name, value in (
        ("--syscall", args.syscall),
        ("--repeat", args.repeat),
        ("--json", args.json),
        ("--jsonl", args.jsonl),
        ("--csv", args.csv),
    ):
        if value:
            raise WordError(f"collect: {name} cannot be combined with &", name, hint="run it without &")
    if args.format != "kcov" and args.output is None:
        raise WordError(f"collect: --format {args.format} needs an output file", "--format", hint="add -o FILE")
    job = jobs.start(words, output=args.output, name=args.keep, title=shlex.join(args.command))
    return Lines(((("", f"[{job.number}] collector {job.pid}: {job.title}"),),))


def _announce(workspace: Workspace, job: BackgroundJob) -> Iterator[str]:
    job.is_told = True
    status = job.status or 0
    head = f"[{job.number}] "
    files = job.files
    if not files:
        errors = [line for line in job.lines if line.startswith(("kcovdbg:", "hint:", "  "))]
        ended = f"ended by signal {status - 128}" if status > 128 else f"failed with status {status}"
        yield f"{head}{ended}, nothing was collected: {job.title}"
        yield from (f"  {line}" for line in errors[:_SHOWN_LINES] or job.lines[-_SHOWN_LINES:])
        return
    kept = _keep(workspace, job) if job.name is not None else []
    parts = [f"{head}ended with status {status}: {job.title}"]
    parts += kept or [f"written: {', '.join(map(str, files))}"]
    yield "; ".join(parts)
    number = len(job.lines)
    if number:
        yield f"  {number} line{'s' if number > 1 else ''} of output: jobs --output {job.number}"


def _keep(workspace: Workspace, job: BackgroundJob) -> list[str]:
    """Keep a job's traces: the first one under its name, others under that name and their label."""
    told = []
    files = job.files
    stem = files[0].stem
    for index, path in enumerate(files):
        name = f"{job.name}{'' if not index else '-' + (path.stem.removeprefix(stem).strip('.') or str(index))}"
        try:
            buffer = read_trace_file(workspace, str(path))
        except KcovdbgError as error:
            told.append(str(error))
            continue
        workspace.kept[name] = keep(buffer, name, f"collect -- {job.title}")
        job.kept.append(name)
        told.append(f"kept as {name}: {buffer.count} records{', FULL' if buffer.full else ''}")
    job.forget_files()
    return told
