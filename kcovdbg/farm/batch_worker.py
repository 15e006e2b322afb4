# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs a batch's commands on one file: ``python -m kcovdbg.farm.batch_worker``, with the job on standard input.

Writes the outcome so far as a line of JSON, again after each command when its rows are in the data set.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from kcovdbg.console.command import CommandTable
from kcovdbg.console.command_line import parse_line, quote
from kcovdbg.console.context import Context, Workspace
from kcovdbg.console.kernel import Kernel
from kcovdbg.console.output_files import open_text
from kcovdbg.console.renderable import find_data
from kcovdbg.console.runner import answer, explain, find_command, make_context, run_line
from kcovdbg.console.text import escape
from kcovdbg.console.writer import Format
from kcovdbg.crash.crash_summary import find_crashed_task, has_buffer, summarize_crash
from kcovdbg.errors import KcovdbgError
from kcovdbg.farm.batch_job import COVERED, CRASHED, REPORT, BatchJob, LineOutcome, Outcome
from kcovdbg.farm.batch_run import import_arrow, write_parquet
from kcovdbg.model.kcov import name_task
from kcovdbg.records.trace_file import read_header, read_trace
from kcovdbg.target import dump_file as dumpfile
from kcovdbg.target.opener import TargetOptions, open_target


class _Opened(NamedTuple):
    """The file of a job."""

    workspace: Workspace
    build_id: str | None
    damage: Sequence[str] = ()


def main() -> int:
    """Run the job on standard input.

    :return: the exit status: 2 if no command could be run, with the reason as the last line of standard error.
    """
    # Lists in place of tuples.
    job = BatchJob(**json.load(sys.stdin))
    try:
        for outcome in _run_job(job):
            sys.stdout.write(json.dumps(asdict(outcome)) + "\n")
            sys.stdout.flush()
    except Exception as error:  # noqa: BLE001 - any error means that this file failed
        problem = explain(error)
        hint = f"; {problem.hint}" if problem.hint else ""
        print(f"{problem}{hint}", file=sys.stderr)  # noqa: T201 - the parent reads it
        return 2
    return 0


def _run_job(job: BatchJob) -> Iterator[Outcome]:
    """Run the commands one by one; yield the outcome so far."""
    if not job.files:
        import_arrow()
    # A command on a trace names it.
    is_trace = any("{}" in line for line in job.lines) and not dumpfile.identify(job.path).is_dump
    open_job = _open_report if REPORT in job.lines else _open_trace if is_trace else _open_dump
    opened = open_job(job)
    outcome = Outcome(job.path, build_id=opened.build_id, damage=tuple(opened.damage))
    # Known even if the process dies of the first command.
    yield outcome
    if REPORT in job.lines:
        lines = iter((_run_to_file(opened, REPORT, REPORT, job.files[0]),))
    elif job.files:
        workspace = opened.workspace
        context = make_context(workspace, *find_command(workspace, ["last"]), workspace.terminal(), Format.TEXT)
        outcome = replace(outcome, crash=summarize_crash(context))
        lines = _run_to_files(opened, job, context)
    else:
        lines = (_run(opened, job, line) for line in job.lines)
    for line in lines:
        outcome = replace(outcome, lines=(*outcome.lines, line))
        yield outcome


def _commands_of(job: BatchJob) -> CommandTable:
    table: CommandTable = import_module(job.table).COMMANDS
    return table


def _open_dump(job: BatchJob) -> _Opened:
    """Open a dump with the debug info of its build alone."""
    unpacked = dumpfile.unpack_dump(job.path)
    # Linux kernel commit 0935288c6e00 ("kdump: append kernel build-id string to VMCOREINFO") (in v5.9).
    wanted = dumpfile.read_vmcoreinfo(unpacked.path).get("BUILD-ID")
    paths = [path for build_id, path in job.symbols if build_id is None or wanted is None or build_id == wanted]
    if job.symbols and not paths:
        raise KcovdbgError("; ".join((*unpacked.damage, f"no debug info given for build-id {wanted}")))
    target = open_target(TargetOptions(core=job.path, symbols=paths, unpacked=unpacked))
    return _Opened(Workspace(_commands_of(job), Kernel(lambda: target)), target.build_id, target.damage)


def _open_trace(job: BatchJob) -> _Opened:
    """Return a workspace for a trace: with the image of its build, or the only one, as target, where one is given.

    :raises KcovdbgError: when the file is not a trace either.
    """
    read_trace(job.path)
    header = read_header(Path(job.path))
    build_id = None if header is None or header.build_id is None else header.build_id.lower()
    images = {known for known, _ in job.symbols if known is not None}
    if build_id is None and len(images) == 1:
        (build_id,) = images
    if build_id not in images:
        return _Opened(Workspace(_commands_of(job), Kernel(is_named=False)), build_id)
    paths = [path for known, path in job.symbols if known in (None, build_id)]
    target = open_target(TargetOptions(symbols=paths, image=True))
    return _Opened(Workspace(_commands_of(job), Kernel(lambda: target)), build_id)


def _open_report(job: BatchJob) -> _Opened:
    """Open the image of a kernel, for a report that becomes standard input."""
    target = open_target(TargetOptions(symbols=[path for _, path in job.symbols], image=True))
    with dumpfile.open_file(job.path) as file:
        os.dup2(file.fileno(), sys.stdin.fileno())
    sys.stdin = os.fdopen(sys.stdin.fileno(), closefd=False)
    return _Opened(Workspace(_commands_of(job), Kernel(lambda: target)), target.build_id)


def _run(opened: _Opened, job: BatchJob, line: str) -> LineOutcome:
    """Run a command and put its rows into the data set."""
    try:
        words = [word.text for word in parse_line(line.replace("{}", quote(f"file:{job.path}"))).words]
        command, args = find_command(opened.workspace, words)
        context = make_context(opened.workspace, command, args, opened.workspace.terminal(), Format.JSON)
        path = Path(job.output, f"command={command.name}", f"{job.key}-{job.lines.index(line)}.parquet")
        damage = "; ".join(opened.damage) or None
        constants = {"dump": job.path, "dump_build_id": opened.build_id, "dump_damage": damage, "command_line": line}
        rows = write_parquet(path, filter(None, map(find_data, answer(context, args))), constants)
    except Exception as error:  # noqa: BLE001 - continue with the other commands
        return _failure(line, error)
    return LineOutcome(line, context.status, rows)


def _failure(line: str, error: Exception) -> LineOutcome:
    problem = explain(error)
    return LineOutcome(line, problem.status, 0, str(problem))


def _run_to_files(opened: _Opened, job: BatchJob, context: Context) -> Iterator[LineOutcome]:
    """Run the commands with a text file for each, those about the crashed task where there is one."""
    crashed = find_crashed_task(context.target, context.reader)
    tid = "" if crashed.task is None else str(crashed.task.fields.pid)
    for line, path in zip(job.lines, job.files, strict=True):
        missing = None
        if crashed.task is None and (CRASHED in line or COVERED in line):
            missing = f"crashed task unknown: {crashed.error}" if crashed.error else "no task crashed"
        elif crashed.task is not None and COVERED in line and not has_buffer(crashed.task):
            missing = f"{name_task(crashed.task.fields)} had no coverage"
        yield _run_to_file(opened, line, line.replace(CRASHED, tid).replace(COVERED, tid), path, missing)


def _run_to_file(opened: _Opened, line: str, source: str, path: str, missing: str | None = None) -> LineOutcome:
    """Run a command with its text in a file, after which the file says what is wrong with the dump.

    :param line: what the command is in the job.
    :param source: what is run.
    :param missing: why there is nothing to run.
    """
    status = 0
    try:
        if missing is None:
            status = run_line(opened.workspace, f"{source} > {quote(path)}")
        with open_text(path, append=missing is None) as stream:
            stream.writelines(
                f"{escape(line)}\n" for line in (*filter(None, [missing]), *map("note: {}".format, opened.damage))
            )
    except Exception as error:  # noqa: BLE001 - continue with the other commands
        return _failure(line, error)
    return LineOutcome(line, status, 0)


if __name__ == "__main__":
    sys.exit(main())
