# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run a job's commands on one file: ``python -m kcovdbg.farm.batch_worker``, with the job on
standard input.

The worker writes the outcome so far as a line of JSON: once when the file is open, and again after
each command, when its rows are in the data set, or its text is in a file. The types of Parquet's
columns follow from the JSON types of the command's columns and not from values: the files of many
dumps form one data set, in which a column without values also needs its type.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, Final

from kcovdbg.child_process import find_install_command
from kcovdbg.console.column import Column
from kcovdbg.console.command_line import parse_line
from kcovdbg.console.context import Context, Workspace
from kcovdbg.console.output_files import open_text
from kcovdbg.console.renderable import Table, find_data
from kcovdbg.console.runner import answer, explain, find_command, make_context, run_line
from kcovdbg.console.text import escape
from kcovdbg.console.writer import Format, encode_rows
from kcovdbg.crash.crash_summary import (
    CrashedTask,
    CrashSummary,
    find_crashed_task,
    has_buffer,
    summarize_crash,
)
from kcovdbg.errors import CapabilityError, KcovdbgError
from kcovdbg.farm.batch_run import COVERED, CRASHED, SHOW_REPORT, BatchJob, LineOutcome, Outcome
from kcovdbg.inputs.input_commands import quote
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.inputs.kernel_memory import KernelOptions
from kcovdbg.inputs.user_inputs import UserInputs
from kcovdbg.limits import hold_memory
from kcovdbg.model.crash_evidence import TaskStack
from kcovdbg.model.kcov import name_task
from kcovdbg.model.state import Part
from kcovdbg.output_file import open_output
from kcovdbg.records.side_file import read_header
from kcovdbg.records.trace_reader import read_trace
from kcovdbg.target import dump_file as dumpfile
from kcovdbg.target.target import Target
from kcovdbg.target.target_options import TargetOptions, open_target
from kcovdbg.walk.crash_evidence import read_crash_evidence, read_stack

_COMMANDS: Final = "kcovdbg.commands"
_LARGEST: Final = (1 << 63) - 1
# Number of rows that are written at once.
_ROWS: Final = 65536


def import_arrow() -> Any:
    """Return pyarrow.

    :raises CapabilityError: when it is not installed.
    """
    try:
        import_module("pyarrow.parquet")
        return import_module("pyarrow")
    except ImportError as error:
        raise CapabilityError(
            "Parquet files need pyarrow, which is not installed", hint=find_install_command("farm")
        ) from error


def write_parquet(path: Path, tables: Iterable[Table], constants: Mapping[str, str | None]) -> int:
    """Write the tables of one command to a file. Without a table, write no file.

    :param constants: values of every row, in columns before the table's.
    :return: the number of rows.
    :raises CapabilityError: when pyarrow is not installed.
    :raises OSError: when the file cannot be written.
    """
    arrow = import_arrow()
    writer = None
    number = 0
    with contextlib.ExitStack() as stack:
        for table in tables:
            fields = [arrow.field(name, arrow.string()) for name in constants]
            fields += _find_fields(arrow, table.columns)
            if table.errors is not None:
                fields.append(arrow.field("errors", arrow.list_(arrow.string())))
            schema = arrow.schema(fields)
            if writer is None:
                path.parent.mkdir(parents=True, exist_ok=True)
                stream = stack.enter_context(open_output(path))
                writer = stack.enter_context(
                    arrow.parquet.ParquetWriter(stream, schema, compression="zstd")
                )
            kind = arrow.struct(schema)
            rows = (_fit(arrow, row, kind, "")[0] | constants for row in encode_rows(table))
            while some := list(islice(rows, _ROWS)):
                writer.write_table(arrow.Table.from_pylist(some, schema=schema))
                number += len(some)
    return number


def _find_fields(arrow: Any, columns: Sequence[Column]) -> list[Any]:
    """Return the fields of columns. Addresses and words are text, as in JSON; values without a type
    are text with JSON.
    """
    text, number, real = arrow.string(), arrow.int64(), arrow.float64()
    types = {
        "number": number,
        "pid": number,
        "cpu": number,
        "bool": arrow.bool_(),
        "share": real,
        "seconds": real,
    }
    types |= dict.fromkeys(("list", "addresses"), arrow.list_(text))
    fields = []
    for column in columns:
        if column.text_only:
            continue
        kind = types.get(column.kind.name, text)
        if column.items is not None:
            kind = arrow.list_(arrow.struct(_find_fields(arrow, column.items)))
        fields.append(arrow.field(column.key, kind))
    return fields


def _fit(arrow: Any, value: Any, kind: Any, path: str) -> tuple[Any, list[str]]:
    """Convert a value of JSON to a type of Arrow; return it, and the problems.

    A number that does not fit becomes None. Problems are also added to the ``errors`` of a row.
    """
    types = arrow.types
    if isinstance(value, dict) and types.is_struct(kind):
        fitted: dict[str, Any] = {}
        problems: list[str] = []
        for one in kind:
            name = one.name
            fitted[name], some = _fit(arrow, value.get(name), one.type, f"{path}.{name}")
            problems += some
        if "errors" in value:
            fitted["errors"] = [*fitted["errors"], *problems]
        return fitted, problems
    if isinstance(value, list) and types.is_list(kind):
        items = []
        problems = []
        for item in value:
            fitted_item, some = _fit(arrow, item, kind.value_type, f"{path}[]")
            items.append(fitted_item)
            problems += some
        return items, problems
    if types.is_int64(kind) and value is not None and abs(value) > _LARGEST:
        return None, [f"{path.lstrip('.')}: {value} does not fit a signed 64-bit number"]
    if types.is_string(kind) and value is not None and not isinstance(value, str):
        value = json.dumps(value)
    return value, []


def _open(job: BatchJob) -> tuple[Target | None, Outcome]:
    """Open a job's file, or an image for it; return the target and the outcome so far."""
    if job.files and job.lines[0] == SHOW_REPORT:
        target = open_target(TargetOptions(symbols=[path for _, path in job.symbols], image=True))
        return target, Outcome(job.path, build_id=target.build_id)
    # A command on a trace names it: {}.
    may_be_trace = not job.files and any("{}" in line for line in job.lines)
    if may_be_trace and not dumpfile.identify(job.path).is_dump:
        return _open_trace(job)
    return _open_dump(job)


def _open_dump(job: BatchJob) -> tuple[Target, Outcome]:
    """Open a dump with the debug info of its build only."""
    unpacked = dumpfile.unpack_dump(job.path)
    # Linux kernel commit 0935288c6e00 ("kdump: append kernel build-id string to VMCOREINFO") (in
    # v5.9).
    wanted = dumpfile.read_dump_vmcoreinfo(unpacked.path).get("BUILD-ID")
    paths = [path for build_id, path in job.symbols if wanted is None or build_id in (None, wanted)]
    if job.symbols and not paths:
        raise KcovdbgError(
            "; ".join((*unpacked.damage, f"no debug info given for build-id {wanted}"))
        )
    target = open_target(TargetOptions(core=job.path, symbols=paths, unpacked=unpacked))
    return target, Outcome(job.path, build_id=target.build_id, damage=tuple(target.damage))


def _open_trace(job: BatchJob) -> tuple[Target | None, Outcome]:
    """Open the image of a trace's build; if the trace does not name its build, the only image. The
    target is None without an image.

    :raises KcovdbgError: when the file is not a trace.
    """
    read_trace(job.path)
    header = read_header(Path(job.path))
    images = {known for known, _ in job.symbols if known is not None}
    build_id = None
    if header is not None and header.build_id is not None:
        build_id = header.build_id.lower()
    elif len(images) == 1:
        (build_id,) = images
    target = None
    if build_id in images:
        paths = [path for known, path in job.symbols if known in (None, build_id)]
        target = open_target(TargetOptions(symbols=paths, image=True))
    return target, Outcome(job.path, build_id=build_id)


def _run_commands(job: BatchJob) -> Iterator[Outcome]:
    """Run the commands one by one; yield the outcome so far after each."""
    if not job.files:
        import_arrow()
    target, outcome = _open(job)
    # If the first command kills the process, at least this is known.
    yield outcome
    options = KernelOptions(is_named=False)
    if target is not None:
        options = KernelOptions(lambda: target)
    workspace = Workspace(import_module(_COMMANDS).COMMANDS, UserInputs(Kernel(options)))
    crashed = CrashedTask(None)
    if job.files and job.lines[0] != SHOW_REPORT:
        context = make_context(
            workspace, *find_command(workspace, ["last"]), workspace.terminal(), Format.TEXT
        )
        crashed = find_crashed_task(read_crash_evidence(context.target, context.reader))
        outcome = replace(outcome, crash=_summarize(context, crashed))
    for index, line in enumerate(job.lines):
        try:
            if job.files:
                status, rows = _write_text(workspace, outcome, line, job.files[index], crashed), 0
            else:
                name = f"{job.key}-{index}"
                status, rows = _write_rows(workspace, outcome, line, Path(job.output), name)
            done = LineOutcome(line, status, rows)
        except Exception as error:  # noqa: BLE001 - continue with the other commands
            problem = explain(error)
            done = LineOutcome(line, problem.status, 0, str(problem))
        outcome = replace(outcome, lines=(*outcome.lines, done))
        yield outcome


def _summarize(context: Context, crashed: CrashedTask) -> CrashSummary:
    if crashed.task is None:
        return summarize_crash(crashed, TaskStack(), None)
    fields = crashed.task.fields
    stack = read_stack(context.target, fields.address)
    syscall = context.reader.read(Part.NOTHING, syscalls=(fields,)).syscalls[fields.address]
    return summarize_crash(crashed, stack, syscall)


def _write_rows(
    workspace: Workspace, opened: Outcome, line: str, output: Path, name: str
) -> tuple[int, int]:
    """Run a command and put its rows into the data set; return its status and number of rows."""
    parsed = parse_line(line.replace("{}", quote(f"file:{opened.path}")))
    command, args = find_command(workspace, parsed.texts)
    context = make_context(workspace, command, args, workspace.terminal(), Format.JSON)
    damage = "; ".join(opened.damage) or None
    constants = {
        "dump": opened.path,
        "dump_build_id": opened.build_id,
        "dump_damage": damage,
        "command_line": line,
    }
    tables = filter(None, map(find_data, answer(context, args)))
    rows = write_parquet(output / f"command={command.name}" / f"{name}.parquet", tables, constants)
    return context.status, rows


def _write_text(
    workspace: Workspace, opened: Outcome, line: str, path: str, crashed: CrashedTask
) -> int:
    """Run a command with its text in a file, and add the defects of the dump to the file; return
    the command's status.
    """
    task, missing, status = crashed.task, None, 0
    # Compare whole words, because a path may contain anything.
    words = parse_line(line).texts
    if task is None and (CRASHED in words or COVERED in words):
        missing = "no task crashed"
        if crashed.error:
            missing = f"crashed task unknown: {crashed.error}"
    elif task is not None and COVERED in words and not has_buffer(task):
        missing = f"{name_task(task.fields)} had no coverage"
    else:
        if task is not None:
            tid = str(task.fields.pid)
            words = [tid if word in (CRASHED, COVERED) else word for word in words]
        with contextlib.ExitStack() as stack:
            if line == SHOW_REPORT:
                sys.stdin = io.TextIOWrapper(stack.enter_context(dumpfile.open_file(opened.path)))
            command = " ".join(map(quote, words))
            status = run_line(workspace, f"{command} > {quote(path)}")
    with open_text(path, append=missing is None) as stream:
        if missing is not None:
            stream.write(f"{escape(missing)}\n")
        for note in opened.damage:
            stream.write(f"note: {escape(note)}\n")
    return status


def main() -> int:
    """Run the job on standard input.

    :return: the exit status: 2 if no command could be run, with the reason as the last line of
        standard error.
    """
    # JSON has made lists of the job's tuples, which are only iterated over here.
    job = BatchJob(**json.load(sys.stdin))
    try:
        with hold_memory(job.path):
            for outcome in _run_commands(job):
                sys.stdout.write(json.dumps(asdict(outcome)) + "\n")
                sys.stdout.flush()
    except Exception as error:  # noqa: BLE001 - any error means that this file failed
        problem = explain(error)
        text = str(problem)
        if problem.hint:
            text += f"; {problem.hint}"
        print(text, file=sys.stderr)  # noqa: T201 - the parent reads it
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
