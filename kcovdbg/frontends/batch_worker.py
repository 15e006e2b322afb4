# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs a batch's commands on one file: ``python -m kcovdbg.frontends.batch_worker FOLDER``, with the job on standard input.

Temporary files are made in the folder, which the parent removes. Writes a line of JSON for the file, then one for each
command when its rows are in the data set.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcovdbg.collect.trace_file import read_header, read_trace
from kcovdbg.commands import COMMANDS
from kcovdbg.engine.batch_job import COVERED, CRASHED, BatchJob
from kcovdbg.engine.command_line import parse_line
from kcovdbg.engine.completion.cursor import quote
from kcovdbg.engine.context import Context
from kcovdbg.engine.crash_summary import find_crashed_task, has_buffer, summarize_crash
from kcovdbg.engine.output_files import open_text
from kcovdbg.engine.runner import answer, explain, find_command, run_line
from kcovdbg.engine.workspace import Workspace
from kcovdbg.errors import KcovdbgError
from kcovdbg.model.object_names import name_task
from kcovdbg.render.escape import escape
from kcovdbg.render.parquet import import_arrow, write_parquet
from kcovdbg.render.renderable import Fields, Renderable, Table, find_data
from kcovdbg.render.writer import Format
from kcovdbg.symbols.symbolizer import open_symbolizer
from kcovdbg.target import dump_file as dumpfile
from kcovdbg.target.opener import TargetOptions, open_target

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kcovdbg.model.task import Task


def main() -> int:
    """Run the job on standard input.

    :return: the exit status: 2 if no command could be run, with the reason as the last line of standard error.
    """
    tempfile.tempdir = sys.argv[1]
    given: dict[str, Any] = json.load(sys.stdin)
    job = BatchJob(
        given["path"],
        tuple(given["lines"]),
        given["output"],
        _pairs(given["symbols"]),
        given["timeout"],
        tuple(given["files"]),
    )
    try:
        if not job.files:
            import_arrow()
        is_dump = dumpfile.identify(job.path).is_dump
        workspace, build_id = _open_dump(job) if is_dump else _open_trace(job)
        _say({"build_id": build_id})
        if job.files:
            _run_to_files(workspace, job)
        else:
            for line in job.lines:
                _say(_run(workspace, job, line, build_id))
    except Exception as error:  # noqa: BLE001 - any error means that this file failed
        told = explain(error)
        hint = f"; {told.hint}" if told.hint else ""
        print(f"{told}{hint}", file=sys.stderr)  # noqa: T201 - the parent reads it
        return 2
    return 0


def _pairs(given: list[list[Any]]) -> tuple[tuple[str | None, str], ...]:
    return tuple((build_id, path) for build_id, path in given)


def _say(said: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def _open_dump(job: BatchJob) -> tuple[Workspace, str | None]:
    """Open a dump with the debug info of its build alone."""
    unpacked = dumpfile.unpack_dump(job.path)
    # Linux kernel commit 0935288c6e00 ("kdump: append kernel build-id string to VMCOREINFO") (in v5.9).
    wanted = dumpfile.read_vmcoreinfo(unpacked.path).get("BUILD-ID")
    paths = [path for build_id, path in job.symbols if build_id is None or wanted is None or build_id == wanted]
    if job.symbols and not paths:
        raise KcovdbgError(f"no debug info given for build-id {wanted}")
    target = open_target(TargetOptions(core=job.path, symbols=paths, unpacked=unpacked))
    return Workspace(COMMANDS, lambda: target), target.build_id


def _open_trace(job: BatchJob) -> tuple[Workspace, str | None]:
    """Return a workspace without a kernel, with names from the debug info of the trace's build.

    :raises KcovdbgError: when the file is not a trace either.
    """
    read_trace(job.path)
    header = read_header(Path(job.path))
    build_id = None if header is None else header.build_id
    image = next((path for known, path in job.symbols if build_id is not None and known == build_id), None)
    if build_id is None:
        return Workspace(COMMANDS), None
    unpacked = None if image is None else dumpfile.unpack(image).path
    symbolizer = open_symbolizer(0, build_id=build_id, image=unpacked, may_build=False)
    return Workspace(COMMANDS, find_symbolizer=lambda _target: symbolizer), build_id


def _run(workspace: Workspace, job: BatchJob, line: str, build_id: str | None) -> dict[str, object]:
    """Run a command and put its rows into the data set."""
    try:
        words = [word.text for word in parse_line(line.replace("{}", quote(f"file:{job.path}"))).words]
        command, args = find_command(workspace, words)
        context = Context(workspace, command, workspace.terminal(), Format.JSON)
        path = Path(job.output, f"command={command.name}", f"{job.key}-{job.lines.index(line)}.parquet")
        constants = {"dump": job.path, "dump_build_id": build_id, "line": line}
        rows = write_parquet(path, _tables(answer(context, args)), constants)
    except Exception as error:  # noqa: BLE001 - continue with the other commands
        told = explain(error)
        return {"line": line, "status": told.status, "rows": 0, "error": str(told)}
    return {"line": line, "status": context.status, "rows": rows, "error": None}


def _run_to_files(workspace: Workspace, job: BatchJob) -> None:
    """Run the commands with a text file for each, and find out where the kernel crashed."""
    command, _ = find_command(workspace, ["last"])
    context = Context(workspace, command, workspace.terminal())
    _say({"crash": dataclasses.asdict(summarize_crash(context))})
    crashed = find_crashed_task(context)
    missing = f"crashed task unknown: {crashed.error}" if crashed.error else "no task crashed"
    for line, path in zip(job.lines, job.files, strict=True):
        if crashed.task is None and (CRASHED in line or COVERED in line):
            _say(_write_answer(line, path, missing))
        elif crashed.task is not None and COVERED in line and not has_buffer(crashed.task):
            _say(_write_answer(line, path, f"{name_task(crashed.task.fields)} had no coverage"))
        else:
            _say(_run_to_file(workspace, line, path, crashed.task))


def _write_answer(line: str, path: str, answer: str) -> dict[str, object]:
    with open_text(path) as stream:
        stream.write(f"{escape(answer)}\n")
    return {"line": line, "status": 0, "rows": 0, "error": None}


def _run_to_file(workspace: Workspace, line: str, path: str, crashed: Task | None) -> dict[str, object]:
    tid = "" if crashed is None else str(crashed.fields.pid)
    try:
        status = run_line(workspace, f"{line.replace(CRASHED, tid).replace(COVERED, tid)} > {quote(path)}")
    except Exception as error:  # noqa: BLE001 - continue with the other commands
        told = explain(error)
        return {"line": line, "status": told.status, "rows": 0, "error": str(told)}
    return {"line": line, "status": status, "rows": 0, "error": None}


def _tables(renderables: Iterator[Renderable]) -> Iterator[Table | Fields]:
    return filter(None, map(find_data, renderables))


if __name__ == "__main__":
    sys.exit(main())
