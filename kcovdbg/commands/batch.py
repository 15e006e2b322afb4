# SPDX-License-Identifier: LGPL-2.1-or-later
"""``batch``: commands on many dumps and traces, with one data set as the result."""

from __future__ import annotations

import errno
import os
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from kcovdbg.engine.argument import Argument, Count, Value
from kcovdbg.engine.batch_job import BatchJob, Outcome
from kcovdbg.engine.batch_run import RUN_OPTIONS, SYMBOLS, TIMEOUT, error_text, find_debug_info, run_batch
from kcovdbg.engine.command import Command, Example, Topic
from kcovdbg.engine.command_line import parse_line
from kcovdbg.engine.context import Context
from kcovdbg.engine.runner import find_command
from kcovdbg.errors import KcovdbgError, UsageError
from kcovdbg.render.column import Column
from kcovdbg.render.escape import escape
from kcovdbg.render.json_schema import RowType
from kcovdbg.render.key_meanings import Meaning
from kcovdbg.render.parquet import import_arrow
from kcovdbg.render.renderable import Line, Lines, Table
from kcovdbg.render.value_kinds import NUMBER, PATH, SECONDS

# These act on the machine, or write a file that the next dump would overwrite.
_REFUSED: Final = frozenset(
    {"batch", "watch", "view", "collect", "jobs", "gdb", "slice", "keep", "export", "report", "resume", "demo", "syzkaller"}
)
_LONGEST_LIST: Final = 20

_COLUMNS: Final = (
    Column("dump", PATH, value=lambda outcome: outcome.path),
    Column("dump_build_id", value=lambda outcome: outcome.build_id),
    Column("rows", NUMBER),
    Column("seconds", SECONDS, value=lambda outcome: round(outcome.seconds, 3)),
    Column("error", value=lambda outcome: error_text(outcome) if outcome.failed else None),
)


def _check_lines(context: Context, lines: Sequence[str]) -> tuple[str, ...]:
    """Check the commands once, before they run on thousands of files.

    :raises UsageError: when one cannot run here.
    """
    if not lines:
        raise UsageError("batch: missing command", hint="batch -e objects -e check *.zst -o DIR")
    for source in lines:
        line = parse_line(source)
        if line.shell is not None or line.pipeline is not None or line.redirection is not None or not line.words:
            raise UsageError(f"batch: cannot run '{source}'", hint="use one command without pipes and redirections")
        command, _ = find_command(context.workspace, [word.text for word in line.words])
        if command.name in _REFUSED:
            raise UsageError(f"batch: cannot run {command.name}", hint="use tasks, objects, check, buffer {} and the like")
    return tuple(dict.fromkeys(lines))


def _run(context: Context, args: Namespace) -> Lines:
    import_arrow()
    lines = _check_lines(context, args.execute or [])
    symbols = find_debug_info("batch", args.symbols or [], unpacked=args.scheduler is None)
    output = _make_folder(args.output, args.dumps)
    paths = dict.fromkeys(str(Path(name).expanduser().absolute()) for name in args.dumps)
    jobs = [BatchJob(path, lines, str(output), symbols, args.timeout or TIMEOUT) for path in paths]
    outcomes, earlier = run_batch(context, jobs, args)
    return Lines(tuple(_summary(outcomes, earlier, output)), data=Table(_COLUMNS, outcomes))


def _make_folder(name: str, dumps: Sequence[str]) -> Path:
    """Return the directory of the data set, made if it does not exist.

    :raises KcovdbgError: when it cannot be made, or holds an input.
    """
    folder = Path(os.path.realpath(Path(name).expanduser()))
    for dump in dumps:
        if folder in Path(os.path.realpath(Path(dump).expanduser())).parents:
            raise UsageError(
                f"batch: '{name}' holds the input '{dump}'", hint="-o takes a directory for the data set alone: -o DIR"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = os.strerror(errno.ENOTDIR) if isinstance(error, FileExistsError) else error.strerror
        raise KcovdbgError(f"could not write '{name}': {problem}", hint="-o takes a directory") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise KcovdbgError(f"could not write '{name}': {os.strerror(errno.EACCES)}", hint="choose another directory")
    return folder


def _summary(outcomes: Sequence[Outcome], earlier: int, output: Path) -> Iterator[Line]:
    rows = sum(outcome.rows for outcome in outcomes)
    failed = [outcome for outcome in outcomes if outcome.failed]
    before = f", {earlier} of them earlier" if earlier else ""
    yield (("", f"{len(outcomes)} file{'s' if len(outcomes) != 1 else ''}{before}: {rows} rows in {escape(str(output))}"),)
    for outcome in failed[:_LONGEST_LIST]:
        yield (("path", f"  {escape(outcome.path)}"), ("", ": "), ("error", escape(error_text(outcome))))
    if len(failed) > _LONGEST_LIST:
        yield (("", f"  and {len(failed) - _LONGEST_LIST} more with errors; --json lists all"),)


COMMAND: Final = Command(
    name="batch",
    summary="run commands on many dumps and traces, and write one Parquet data set",
    topic=Topic.OUTPUT,
    run=_run,
    row_types=(
        RowType(
            _COLUMNS,
            {
                "dump": Meaning("path of the dump"),
                "dump_build_id": Meaning("build ID of its kernel", "it is unknown"),
                "rows": Meaning("number of rows that the command wrote about it", "the command failed", "rows"),
                "seconds": Meaning("time that it took", unit="seconds"),
                "error": Meaning("why the command failed", "it did not"),
            },
        ),
    ),
    description=(
        "The rows of each command go to DIR/command=NAME/, with the columns dump, dump_build_id and line, then a column for "
        "each key of its JSON. Each file has a process of its own: one that is damaged or hangs does not stop the others, and "
        "is listed at the end. Running the same batch again skips files that are done, unless they have changed.\n\n"
        "In a command for trace files, {} stands for the trace: buffer {}, top {}. Files are processed on this machine, or by "
        "the workers of a Dask cluster that sees the same paths.\n\n"
        "Numbers are signed and have 64 bits; a larger one is left out, and the row's errors say so."
    ),
    arguments=(
        Argument(("-e", "--execute"), Value.TEXT, "a command to run on each file", metavar="COMMAND", count=Count.SOME),
        Argument(("dumps",), Value.FILE, "dumps, slices or trace files", count=Count.SOME, metavar="FILE"),
        Argument(("-o", "--output"), Value.FILE, "the directory of the data set", metavar="DIR", count=Count.ONE),
        SYMBOLS,
        *RUN_OPTIONS,
    ),
    examples=(
        Example("batch -e objects -e check -s vmlinux dumps/*.zst -o state", "check many dumps"),
        Example("batch -e 'top {}' -s vmlinux traces/*.kcov -o traces.parquet", "rank the functions of many traces"),
    ),
    needs=frozenset(),
)
