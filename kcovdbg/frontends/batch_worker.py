# SPDX-License-Identifier: LGPL-2.1-or-later
"""Asks one file of a batch: ``python -m kcovdbg.frontends.batch_worker``, with the job as JSON on standard input.

Says a line of JSON for the file, then one for each command when its rows are in the data set.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcovdbg.collect.trace_file import read_header, read_trace
from kcovdbg.commands import COMMANDS
from kcovdbg.commands.batch_job import Job
from kcovdbg.commands.line import parse_line
from kcovdbg.commands.run import answer, explain, find_command
from kcovdbg.commands.session import Context, Session
from kcovdbg.errors import KcovdbgError
from kcovdbg.frontends.completion.cursor import quote
from kcovdbg.render.parquet import import_arrow, write_parquet
from kcovdbg.render.renderable import Clear, Flush, Lines, Record, Table
from kcovdbg.render.writer import Format
from kcovdbg.symbols.resolve import open_symbolizer
from kcovdbg.target import dumpfile, elf
from kcovdbg.target.opening import TargetOptions, open_target

if TYPE_CHECKING:
    from collections.abc import Iterator


def main() -> int:
    """Run the job on standard input.

    :return: 2 where nothing could be asked; then the last line of standard error says why.
    """
    given: dict[str, Any] = json.load(sys.stdin)
    job = Job(given["path"], tuple(given["lines"]), given["output"], _pairs(given["symbols"]), given["timeout"])
    try:
        import_arrow()
        is_dump = dumpfile.identify(job.path).is_dump
        session, build_id = _open_dump(job) if is_dump else _open_trace(job)
        _say({"build_id": build_id})
        for line in job.lines:
            _say(_run(session, job, line, build_id))
    except Exception as error:  # noqa: BLE001 - whatever it is, this file can't be asked
        told = explain(error)
        hint = f"; {told.hint}" if told.hint else ""
        print(f"{told}{hint}", file=sys.stderr)  # noqa: T201 - this process's answer
        return 2
    return 0


def _pairs(given: list[list[Any]]) -> tuple[tuple[str | None, str], ...]:
    return tuple((build_id, path) for build_id, path in given)


def _say(said: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def _open_dump(job: Job) -> tuple[Session, str | None]:
    """Open a dump with the debug info of its build, so that the others' needn't be looked at."""
    wanted = _read_build_id(job.path)
    paths = [path for build_id, path in job.symbols if build_id is None or wanted is None or build_id == wanted]
    if job.symbols and not paths:
        raise KcovdbgError(f"none of the debug info given is that of build-id {wanted}")
    target = open_target(TargetOptions(core=job.path, symbols=paths))
    return Session(COMMANDS, lambda: target), target.build_id


def _read_build_id(path: str) -> str | None:
    """Return the build-id in a dump's VMCOREINFO.

    Linux kernel commit 0935288c6e00 ("kdump: append kernel build-id string to VMCOREINFO") (in v5.9).
    """
    notes = dumpfile.read_notes(dumpfile.unpack(path).path)
    for order in "<>":
        for note in elf.parse_notes(notes, order):
            if note.name == "VMCOREINFO":
                lines = note.desc.decode("ascii", "replace").splitlines()
                return next((line.removeprefix("BUILD-ID=") for line in lines if line.startswith("BUILD-ID=")), None)
    return None


def _open_trace(job: Job) -> tuple[Session, str | None]:
    """Make a session without a kernel; names come from the debug info of the trace's build.

    :raises KcovdbgError: when the file is no trace either.
    """
    read_trace(job.path)
    header = read_header(Path(job.path))
    build_id = None if header is None else header.build_id
    image = next((path for known, path in job.symbols if build_id is not None and known == build_id), None)
    session = Session(COMMANDS)
    if build_id is not None:
        unpacked = None if image is None else dumpfile.unpack(image).path
        session.symbolizer = open_symbolizer(0, build_id=build_id, image=unpacked, may_build=False)
    return session, build_id


def _run(session: Session, job: Job, line: str, build_id: str | None) -> dict[str, object]:
    """Run a command and put its rows into the data set."""
    try:
        words = [word.text for word in parse_line(line.replace("{}", quote(f"file:{job.path}"))).words]
        command, args = find_command(session, words)
        context = Context(session, command, session.terminal(), Format.JSON)
        path = Path(job.output, f"command={command.name}", f"{job.key}-{job.lines.index(line)}.parquet")
        constants = {"dump": job.path, "dump_build_id": build_id, "line": line}
        rows = write_parquet(path, _tables(answer(context, args)), constants)
    except Exception as error:  # noqa: BLE001 - the other commands are asked all the same
        told = explain(error)
        return {"line": line, "status": told.status, "rows": 0, "error": str(told)}
    return {"line": line, "status": context.status, "rows": rows, "error": None}


def _tables(renderables: Iterator[Table | Record | Lines | Flush | Clear]) -> Iterator[Table | Record]:
    for renderable in renderables:
        if isinstance(renderable, (Table, Record)):
            yield renderable
        elif isinstance(renderable, Lines) and renderable.data is not None:
            yield renderable.data


if __name__ == "__main__":
    sys.exit(main())
