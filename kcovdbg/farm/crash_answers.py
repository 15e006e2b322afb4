# SPDX-License-Identifier: LGPL-2.1-or-later
"""Answers about a crash, each as text in a file: of its dump, or its report with source lines.

``python -m kcovdbg.farm.crash_answers`` writes them, as the worker of a batch.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from kcovdbg.console.command_line import quote
from kcovdbg.console.context import Workspace
from kcovdbg.console.output_files import open_text
from kcovdbg.console.runner import find_command, make_context, run_line
from kcovdbg.console.text import escape
from kcovdbg.console.writer import Format
from kcovdbg.crash.crash_summary import find_crashed_task, has_buffer, summarize_crash
from kcovdbg.farm.batch_job import BatchJob, DebugInfo, LineOutcome, Outcome
from kcovdbg.farm.batch_worker import failure, main, make_workspace, open_dump
from kcovdbg.model.kcov import name_task
from kcovdbg.target import dump_file as dumpfile
from kcovdbg.target.opener import TargetOptions, open_target

SLICE: Final = "kcov.slice.zst"
REPORT: Final = "report.txt"

_CRASHED: Final = "{crashed}"
"""Stands for the crashed task's thread id."""
_COVERED: Final = "{covered}"
"""The same, for a command that needs the task's buffer."""
_ANSWERS: Final = (
    ("last --all", "last.txt"),
    (f"why {_CRASHED}", "why.txt"),
    ("check", "check.txt"),
    (f"trace {_COVERED}", "trace.txt"),
)
_SHOW_REPORT: Final = "sym -"


def make_job(source: Path, answers: Path, output: Path, symbols: DebugInfo, timeout: float, *, is_dump: bool) -> BatchJob:
    """Return the job that answers about a dump or a report.

    :param answers: the directory of its answers, made if it does not exist.
    """
    answers.mkdir(parents=True, exist_ok=True)
    of_dump = (*_ANSWERS, (f"slice -o {quote(str(answers / SLICE))}", "slice.txt"))
    lines, names = zip(*of_dump if is_dump else ((_SHOW_REPORT, REPORT),), strict=True)
    files = tuple(str(answers / name) for name in names)
    return BatchJob(str(source), lines, str(output), symbols, timeout, files, "kcovdbg.farm.crash_answers")


def _show_report(job: BatchJob) -> Iterator[Outcome]:
    """Write a report with the source lines of the kernel's image."""
    target = open_target(TargetOptions(symbols=[path for _, path in job.symbols], image=True))
    outcome = Outcome(job.path, build_id=target.build_id)
    yield outcome
    with dumpfile.open_file(job.path) as file:
        sys.stdin = io.TextIOWrapper(file)
        line = _write_answer(make_workspace(job, target), outcome, _SHOW_REPORT, _SHOW_REPORT, job.files[0])
    yield replace(outcome, lines=(line,))


def _answer(job: BatchJob) -> Iterator[Outcome]:
    """Write the answers about a dump one by one; yield the outcome so far."""
    target, outcome = open_dump(job)
    # Known even if the process dies of the first command.
    yield outcome
    workspace = make_workspace(job, target)
    context = make_context(workspace, *find_command(workspace, ["last"]), workspace.terminal(), Format.TEXT)
    crashed = find_crashed_task(context.target, context.reader)
    outcome = replace(outcome, crash=summarize_crash(context, crashed))
    tid = "" if crashed.task is None else str(crashed.task.fields.pid)
    for line, path in zip(job.lines, job.files, strict=True):
        missing = None
        if crashed.task is None and (_CRASHED in line or _COVERED in line):
            missing = f"crashed task unknown: {crashed.error}" if crashed.error else "no task crashed"
        elif crashed.task is not None and _COVERED in line and not has_buffer(crashed.task):
            missing = f"{name_task(crashed.task.fields)} had no coverage"
        source = line.replace(_CRASHED, tid).replace(_COVERED, tid)
        outcome = replace(outcome, lines=(*outcome.lines, _write_answer(workspace, outcome, line, source, path, missing)))
        yield outcome


def _write_answer(
    workspace: Workspace, opened: Outcome, line: str, source: str, path: str, missing: str | None = None
) -> LineOutcome:
    """Run a command with its text in a file, after which the file says what is wrong with the dump.

    :param line: what the command is in the job.
    :param source: what is run.
    :param missing: why there is nothing to run.
    """
    status = 0
    try:
        if missing is None:
            status = run_line(workspace, f"{source} > {quote(path)}")
        notes = (*filter(None, [missing]), *(f"note: {note}" for note in opened.damage))
        with open_text(path, append=missing is None) as stream:
            stream.writelines(f"{escape(note)}\n" for note in notes)
    except Exception as error:  # noqa: BLE001 - continue with the other commands
        return failure(line, error)
    return LineOutcome(line, status, 0)


if __name__ == "__main__":
    sys.exit(main(lambda job: (_show_report if job.lines[0] == _SHOW_REPORT else _answer)(job)))
