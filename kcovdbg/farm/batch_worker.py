# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs a batch's commands on one file: ``python -m kcovdbg.farm.batch_worker``, with the job on standard input.

Writes the outcome so far as a line of JSON, again after each command when its rows are in the data set. Types of Parquet's
columns come from those of JSON, not from the values: the files of many dumps form one data set only if a column without values
has its type as well.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, Final

from kcovdbg.child_process import find_install_command
from kcovdbg.console.column import Column
from kcovdbg.console.command_line import parse_line, quote
from kcovdbg.console.context import Workspace
from kcovdbg.console.kernel import Kernel
from kcovdbg.console.renderable import Fields, Table, find_data
from kcovdbg.console.runner import answer, explain, find_command, make_context
from kcovdbg.console.writer import Format, encode_rows
from kcovdbg.errors import CapabilityError, KcovdbgError
from kcovdbg.farm.batch_job import BatchJob, LineOutcome, Outcome
from kcovdbg.output_file import open_output
from kcovdbg.records.trace_file import read_header, read_trace
from kcovdbg.target import dump_file as dumpfile
from kcovdbg.target.opener import TargetOptions, open_target
from kcovdbg.target.protocol import Target

_LARGEST: Final = (1 << 63) - 1
_ROWS: Final = 65536
"""How many rows are written at once."""


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


def write_parquet(path: Path, tables: Iterable[Table | Fields], constants: Mapping[str, str | None]) -> int:
    """Write the tables of one command to a file, which gets its name when it is complete.

    :param constants: values of every row, in front of its own columns.
    :return: the number of rows; without a table no file is written.
    :raises CapabilityError: when pyarrow is not installed.
    :raises OSError: when the file cannot be written.
    """
    arrow = import_arrow()
    writer = None
    number = 0
    with contextlib.ExitStack() as stack:
        for table in tables:
            fields = [arrow.field(name, arrow.string()) for name in constants] + _find_fields(arrow, table.columns)
            fields += [arrow.field("errors", arrow.list_(arrow.string()))] if table.errors is not None else []
            schema = arrow.schema(fields)
            if writer is None:
                path.parent.mkdir(parents=True, exist_ok=True)
                stream = stack.enter_context(open_output(path))
                writer = stack.enter_context(arrow.parquet.ParquetWriter(stream, schema, compression="zstd"))
            rows = ({**_fit(arrow, row, arrow.struct(schema), "")[0], **constants} for row in encode_rows(table))
            while some := list(islice(rows, _ROWS)):
                writer.write_table(arrow.Table.from_pylist(some, schema=schema))
                number += len(some)
    return number


def _find_fields(arrow: Any, columns: Sequence[Column]) -> list[Any]:
    """Return the columns with types: addresses and words are text, as in JSON; values without a type are JSON in text."""
    text, number, real = arrow.string(), arrow.int64(), arrow.float64()
    types = {"number": number, "pid": number, "cpu": number, "bool": arrow.bool_(), "share": real, "seconds": real}
    types |= dict.fromkeys(("list", "addresses"), arrow.list_(text))
    fields = []
    for column in columns:
        kind = types.get(column.kind.name, text)
        if column.items is not None:
            kind = arrow.list_(arrow.struct(_find_fields(arrow, column.items)))
        fields += [] if column.text_only else [arrow.field(column.key, kind)]
    return fields


def _fit(arrow: Any, value: Any, kind: Any, path: str) -> tuple[Any, list[str]]:
    """Return a value of JSON with a type of Arrow's, None for a number that does not fit, and what does not fit in it.

    In a row that is noted among its errors.
    """
    types = arrow.types
    if isinstance(value, dict) and types.is_struct(kind):
        members = {one.name: _fit(arrow, value.get(one.name), one.type, f"{path}.{one.name}") for one in kind}
        fitted = {key: member for key, (member, _) in members.items()}
        problems = [one for _, some in members.values() for one in some]
        return (fitted if "errors" not in value else {**fitted, "errors": [*fitted["errors"], *problems]}), problems
    if isinstance(value, list) and types.is_list(kind):
        items = [_fit(arrow, item, kind.value_type, f"{path}[]") for item in value]
        return [item for item, _ in items], [one for _, some in items for one in some]
    if types.is_int64(kind) and value is not None and abs(value) > _LARGEST:
        return None, [f"{path.lstrip('.')}: {value} does not fit a signed 64-bit number"]
    is_text = value is None or isinstance(value, str) or not types.is_string(kind)
    return value if is_text else json.dumps(value), []


def make_workspace(job: BatchJob, target: Target | None) -> Workspace:
    """Return the environment of a job's commands."""
    kernel = Kernel(is_named=False) if target is None else Kernel(lambda: target)
    return Workspace(import_module(job.table).COMMANDS, kernel)


def open_dump(job: BatchJob) -> tuple[Target, Outcome]:
    """Open a dump with the debug info of its build alone; return it, and what is known of it before any command."""
    unpacked = dumpfile.unpack_dump(job.path)
    # Linux kernel commit 0935288c6e00 ("kdump: append kernel build-id string to VMCOREINFO") (in v5.9).
    wanted = dumpfile.read_vmcoreinfo(unpacked.path).get("BUILD-ID")
    paths = [path for build_id, path in job.symbols if build_id is None or wanted is None or build_id == wanted]
    if job.symbols and not paths:
        raise KcovdbgError("; ".join((*unpacked.damage, f"no debug info given for build-id {wanted}")))
    target = open_target(TargetOptions(core=job.path, symbols=paths, unpacked=unpacked))
    return target, Outcome(job.path, build_id=target.build_id, damage=tuple(target.damage))


def _open_trace(job: BatchJob) -> tuple[Target | None, Outcome]:
    """Open the image of a trace's build, or the only one, where one is given.

    :raises KcovdbgError: when the file is not a trace either.
    """
    read_trace(job.path)
    header = read_header(Path(job.path))
    build_id = None if header is None or header.build_id is None else header.build_id.lower()
    images = {known for known, _ in job.symbols if known is not None}
    if build_id is None and len(images) == 1:
        (build_id,) = images
    paths = [path for known, path in job.symbols if known in (None, build_id)]
    target = open_target(TargetOptions(symbols=paths, image=True)) if build_id in images else None
    return target, Outcome(job.path, build_id=build_id)


def _run_commands(job: BatchJob) -> Iterator[Outcome]:
    """Run the commands one by one; yield the outcome so far."""
    import_arrow()
    # A command on a trace names it.
    is_trace = any("{}" in line for line in job.lines) and not dumpfile.identify(job.path).is_dump
    target, outcome = _open_trace(job) if is_trace else open_dump(job)
    # Known even if the process dies of the first command.
    yield outcome
    workspace = make_workspace(job, target)
    for line in job.lines:
        outcome = replace(outcome, lines=(*outcome.lines, _run_command(workspace, job, line, outcome)))
        yield outcome


def _run_command(workspace: Workspace, job: BatchJob, line: str, opened: Outcome) -> LineOutcome:
    """Run a command and put its rows into the data set."""
    try:
        words = [word.text for word in parse_line(line.replace("{}", quote(f"file:{job.path}"))).words]
        command, args = find_command(workspace, words)
        context = make_context(workspace, command, args, workspace.terminal(), Format.JSON)
        path = Path(job.output, f"command={command.name}", f"{job.key}-{job.lines.index(line)}.parquet")
        damage = "; ".join(opened.damage) or None
        constants = {"dump": job.path, "dump_build_id": opened.build_id, "dump_damage": damage, "command_line": line}
        rows = write_parquet(path, filter(None, map(find_data, answer(context, args))), constants)
    except Exception as error:  # noqa: BLE001 - continue with the other commands
        return failure(line, error)
    return LineOutcome(line, context.status, rows)


def failure(line: str, error: Exception) -> LineOutcome:
    """Return the outcome of a command that failed."""
    problem = explain(error)
    return LineOutcome(line, problem.status, 0, str(problem))


def main(run: Callable[[BatchJob], Iterator[Outcome]]) -> int:
    """Run the job on standard input.

    :param run: runs its commands one by one, and yields the outcome so far.
    :return: the exit status: 2 if no command could be run, with the reason as the last line of standard error.
    """
    # Lists in place of tuples.
    job = BatchJob(**json.load(sys.stdin))
    try:
        for outcome in run(job):
            sys.stdout.write(json.dumps(asdict(outcome)) + "\n")
            sys.stdout.flush()
    except Exception as error:  # noqa: BLE001 - any error means that this file failed
        problem = explain(error)
        hint = f"; {problem.hint}" if problem.hint else ""
        print(f"{problem}{hint}", file=sys.stderr)  # noqa: T201 - the parent reads it
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(_run_commands))
