# SPDX-License-Identifier: LGPL-2.1-or-later
"""``batch``: run commands on many dumps and traces, and write their rows to one data set."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.column import NUMBER, PATH, SECONDS, Column, RowType
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.command_line import parse_line
from kcovdbg.console.context import Context
from kcovdbg.console.renderable import Line, Lines, Table
from kcovdbg.console.runner import find_command
from kcovdbg.console.text import escape
from kcovdbg.errors import KcovdbgError, UsageError
from kcovdbg.farm.batch_run import (
    RUN_OPTIONS,
    BatchJob,
    Outcome,
    find_debug_info,
    find_digests,
    make_output,
    run_batch,
)
from kcovdbg.farm.batch_worker import import_arrow
from kcovdbg.model.kcov import amount_text
from kcovdbg.target import dump_file as dumpfile
from kcovdbg.user_folder import expand_user

# They need a screen, or write a file that the next dump would overwrite.
_REFUSED: Final = frozenset(("export", "jobs", "keep", "report", "slice", "view"))
_LONGEST_LIST: Final = 20
_IS_DUMP_NAME: Final = re.compile(r"(vm)?core|dump", re.IGNORECASE)

_COLUMNS: Final = (
    Column("dump", PATH, value="path", meaning="path of the dump"),
    Column(
        "dump_build_id",
        value="build_id",
        meaning="build ID of its kernel",
        null="it is unknown",
    ),
    Column(
        "rows",
        NUMBER,
        meaning="number of rows that the command wrote about it",
        null="the command failed",
        unit="rows",
    ),
    Column(
        "seconds",
        SECONDS,
        value=lambda outcome: round(outcome.seconds, 3),
        meaning="time that it took",
        unit="seconds",
    ),
    Column(
        "error",
        value="problem",
        meaning="what is wrong with the file, and why a command failed",
        null="nothing is",
    ),
)


def _check_lines(context: Context, lines: Sequence[str]) -> tuple[str, ...]:
    """Check the commands once, before they run on thousands of files.

    :raises UsageError: when one cannot run here.
    """
    for source in lines:
        line = parse_line(source)
        if (
            line.shell is not None
            or line.pipeline is not None
            or line.redirection is not None
            or not line.words
        ):
            raise UsageError(
                f"batch: cannot run '{source}'",
                hint="use one command without pipes and redirections",
            )
        command, _ = find_command(context.workspace, line.texts)
        if command.acts or command.endless or command.name in _REFUSED:
            raise UsageError(
                f"batch: cannot run {command.name}",
                hint="use tasks, objects, check, buffer {} and the like",
            )
    return tuple(dict.fromkeys(lines))


def _find_inputs(names: Sequence[str], *, traces: bool) -> tuple[Path, ...]:
    """Return the absolute paths of named files, and of the dumps in named directories.

    :param traces: instead of dumps, return files that are neither dumps nor programs nor JSON.
    """
    found: list[Path] = []
    for name in names:
        named = expand_user(name).absolute()
        if not named.is_dir():
            found.append(named)
            continue
        files = filter(Path.is_file, sorted(named.rglob("[!.]*")))
        found += [path for path in files if _is_input(path, traces=traces)]
    return tuple(dict.fromkeys(found))


def _is_input(path: Path, *, traces: bool) -> bool:
    try:
        kind = dumpfile.identify(path)
    except KcovdbgError:
        # Listed with its error.
        return True
    if traces:
        return path.suffix != ".json" and kind in (dumpfile.FileKind.EMPTY, dumpfile.FileKind.OTHER)
    if kind.is_dump:
        return True
    # The table also has files on which no command could be run.
    return kind is not dumpfile.FileKind.ELF and _IS_DUMP_NAME.search(path.name) is not None


def _run(context: Context, args: Namespace) -> Lines:
    import_arrow()
    lines = _check_lines(context, args.execute)
    symbols = find_debug_info(context, args)
    paths = _find_inputs(args.dumps, traces=any("{}" in line for line in lines))
    if not paths:
        raise UsageError(
            f"batch: no dump in {', '.join(args.dumps)}",
            hint="give dumps, or directories with dumps",
        )
    output = make_output("batch", args.output, [*paths, *map(Path, args.dumps)])
    digests = find_digests(symbols)
    jobs = [
        BatchJob(str(path), lines, str(output), symbols, args.timeout, digests=digests)
        for path in paths
    ]
    outcomes, earlier = run_batch(context, jobs, args)
    context.status = int(any(outcome.failed for outcome in outcomes))
    return Lines(tuple(_summary(outcomes, earlier, output)), data=Table(_COLUMNS, outcomes))


def _summary(outcomes: Sequence[Outcome], earlier: int, output: Path) -> Iterator[Line]:
    rows = sum(outcome.rows for outcome in outcomes)
    damaged = [outcome for outcome in outcomes if outcome.problem is not None]
    files = amount_text(len(outcomes), "file")
    if earlier:
        files += f", {earlier} of them earlier"
    yield (("", f"{files}: {rows} rows in {escape(str(output))}"),)
    for outcome in damaged[:_LONGEST_LIST]:
        problem = escape(outcome.problem or "")
        yield (("path", f"  {escape(outcome.path)}"), ("", ": "), ("error", problem))
    if len(damaged) > _LONGEST_LIST:
        yield (("", f"  and {len(damaged) - _LONGEST_LIST} more with errors; --json lists all"),)


COMMAND: Final = Command(
    name="batch",
    summary="run commands on many dumps and traces, and write one Parquet data set",
    topic=Topic.OUTPUT,
    run=_run,
    row_types=(RowType(_COLUMNS),),
    description=(
        "The rows of each command go to DIR/command=NAME/, with the columns dump, dump_build_id, "
        "dump_damage (what a truncated dump lacks) and command_line, then a column for each key "
        "of its JSON. Each file has its own process: one that is damaged or hangs does not stop "
        "the others, and is listed at the end. A directory stands for all dumps in it. Running "
        "the same batch again skips files that are done and have not changed.\n\n"
        "In a command for trace files, {} stands for the trace: buffer {}, top {}.\n\n"
        "DIR is a directory for the results alone, without links.\n\n"
        "The exit status is 1 if a file failed: it could not be read, or a command on it failed. "
        "A truncated dump is read up to where it ends, and does not fail.\n\n"
        "Numbers are signed and have 64 bits; a larger one is left out, and the row's errors say "
        "so."
    ),
    arguments=(
        Argument(
            "-e, --execute COMMAND…", Value.TEXT, "a command to run on each file", is_required=True
        ),
        Argument("dumps FILE…", Value.FILE, "dumps, slices or trace files, or directories of them"),
        Argument("-o, --output DIR", Value.FILE, "the directory of the data set", is_required=True),
        *RUN_OPTIONS,
    ),
    examples=(
        Example("batch -e objects -e check -s vmlinux dumps/*.zst -o state", "check many dumps"),
        Example(
            "batch -e 'top {}' -s vmlinux traces/*.kcov -o state",
            "rank the functions of many traces",
        ),
    ),
    needs=frozenset(),
    acts=True,
)
