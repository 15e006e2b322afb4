# SPDX-License-Identifier: LGPL-2.1-or-later
"""``syzkaller``: list the crashes in a manager's working directory, and answer about each dump."""

from __future__ import annotations

import contextlib
import hashlib
import os
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.column import (
    BOOL,
    COMM,
    NUMBER,
    PATH,
    PID,
    SECONDS,
    SYMBOL,
    TEXT,
    Column,
    RowType,
)
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.output_files import open_text
from kcovdbg.console.renderable import Table
from kcovdbg.console.text import escape
from kcovdbg.errors import KcovdbgError
from kcovdbg.farm.batch_run import (
    COVERED,
    CRASHED,
    RUN_OPTIONS,
    SHOW_REPORT,
    BatchJob,
    DebugInfo,
    Outcome,
    find_debug_info,
    find_digests,
    make_output,
    run_batch,
)
from kcovdbg.farm.syzkaller_workdir import Crash, Dump, Manager
from kcovdbg.farm.workdir_reader import WorkdirReader
from kcovdbg.inputs.input_commands import quote
from kcovdbg.model.kcov import amount_text
from kcovdbg.user_folder import expand_user, find_user_folder, make_folder

_SLICE: Final = "kcov.slice.zst"
_REPORT: Final = "report.txt"
_PROGRAM: Final = "program.txt"
_ANSWERS: Final = (
    ("last --all", "last.txt"),
    (f"why {CRASHED}", "why.txt"),
    ("check", "check.txt"),
    (f"trace {COVERED}", "trace.txt"),
)


class _Row(NamedTuple):
    """A dump; or a crash without one."""

    crash: Crash
    dump: Dump | None
    answers: Path | None
    outcome: Outcome
    log: Path | None = None
    program: Path | None = None
    errors: tuple[str, ...] = ()


def _of_crash(name: str) -> Callable[[_Row], Any]:
    def value(row: _Row) -> object:
        if row.outcome.crash is None:
            return None
        return getattr(row.outcome.crash, name)

    return value


def _violations(row: _Row) -> bool | None:
    """Return whether check found violations; None if it did not run, or found none and could not
    judge every rule.
    """
    status = _find_status(row, "check")
    if status not in (0, 1):
        return None
    return status == 1


def _slice(row: _Row) -> Path | None:
    if row.answers is None or _find_status(row, "slice") is None:
        return None
    return row.answers / _SLICE


def _find_status(row: _Row, command: str) -> int | None:
    """Return the exit status of a command; None if it did not run, or failed."""
    for line in row.outcome.lines:
        if line.line.partition(" ")[0] == command and line.error is None:
            return line.status
    return None


_COLUMNS: Final = (
    Column(
        "title",
        TEXT,
        value="crash.title",
        elastic=16,
        meaning="title of the crash, as in its description",
        null="the description could not be read",
    ),
    Column(
        "function",
        SYMBOL,
        value=_of_crash("function"),
        elastic=12,
        meaning="function in which the crash began",
        null="it is unknown",
    ),
    Column(
        "syscall",
        SYMBOL,
        value=_of_crash("syscall"),
        elastic=8,
        meaning="name of the system call that the crashed task was in",
        null="it was in none, or it is unknown",
    ),
    Column(
        "comm",
        COMM,
        value=_of_crash("comm"),
        priority=1,
        meaning="name of the crashed task",
        null="it is unknown",
    ),
    Column(
        "pid",
        PID,
        value=_of_crash("pid"),
        priority=2,
        meaning="thread id of the crashed task",
        null="it is unknown",
    ),
    Column(
        "violations",
        BOOL,
        value=_violations,
        priority=1,
        meaning="whether `check` found violations",
        null="`check` was not run, or failed, or could not judge every rule and found none",
    ),
    Column(
        "error",
        TEXT,
        value="outcome.problem",
        elastic=12,
        priority=1,
        meaning="what is wrong with the dump, and which answers are missing",
        null="nothing is",
    ),
    Column(
        "call",
        SYMBOL,
        value=_of_crash("call"),
        meaning="the system call with its arguments",
        null="the task was in none, or it is unknown",
    ),
    Column(
        "file",
        PATH,
        value=_of_crash("file"),
        meaning="source file in which the crash began, relative to the build root",
        null="it is unknown",
    ),
    Column(
        "line", NUMBER, value=_of_crash("line"), meaning="line in the file", null="it is unknown"
    ),
    Column(
        "role",
        TEXT,
        value=_of_crash("role"),
        meaning="what collected into the crashed task",
        null="it is unknown",
    ),
    Column(
        "crash",
        PATH,
        value=lambda row: str(row.crash.path),
        meaning="directory of the crash, or its one file",
    ),
    Column(
        "dump",
        PATH,
        value=lambda row: row.dump and row.dump.path,
        meaning="path of the dump",
        null="there is none",
    ),
    Column(
        "build_id",
        TEXT,
        value="outcome.build_id",
        meaning="build ID of the dump's kernel, or of the image for a report",
        null="it is unknown",
    ),
    Column("answers", PATH, meaning="directory with the answers", null="there is none"),
    Column("slice", PATH, value=_slice, meaning="path of the slice", null="it was not written"),
    Column(
        "log",
        PATH,
        meaning="log of the crash that was dumped, or of the newest",
        null="there is none, or the manager overwrote it",
    ),
    Column(
        "report",
        PATH,
        value=lambda row: next(iter(row.crash.reports), None),
        meaning="the newest report",
        null="there is none",
    ),
    Column(
        "program",
        PATH,
        meaning="file with the program that the crashed task ran",
        null="the log does not have it",
    ),
    Column(
        "reproducer",
        PATH,
        value="crash.reproducer",
        meaning="program that reproduces the crash",
        null="there is none",
    ),
    Column(
        "c_reproducer",
        PATH,
        value="crash.c_reproducer",
        meaning="C program that reproduces the crash",
        null="there is none",
    ),
    Column(
        "machine",
        PATH,
        value="crash.machine",
        meaning="file with the manager's description of the machine",
        null="there is none",
    ),
    Column(
        "logs",
        NUMBER,
        value=lambda row: len(row.crash.logs),
        meaning="number of logs of the crash",
        unit="logs",
    ),
    Column(
        "reports",
        NUMBER,
        value=lambda row: len(row.crash.reports),
        meaning="number of reports of the crash",
        unit="reports",
    ),
    Column(
        "seconds",
        SECONDS,
        value=lambda row: row.dump and round(row.outcome.seconds, 3),
        meaning="time that its answers took",
        null="there is no dump",
        unit="seconds",
    ),
)


# All others are in JSON, and in text with --columns and --wide.
_SHOWN: Final = ("title", "function", "syscall", "comm", "pid", "violations", "error")


def _find_output(manager: Manager, name: str | None) -> Path:
    """Return the directory for answers: the one named by ``-o``, or a directory for the manager's
    work directory in the user's state directory.

    :raises KcovdbgError: when there is no state directory.
    """
    if name is not None:
        return expand_user(name)
    state = find_user_folder("state").path
    if state is None:
        raise KcovdbgError("syzkaller: there is no directory for answers", hint="-o DIR names one")
    digest = hashlib.sha256(os.fsencode(manager.workdir)).hexdigest()
    # Reported where the answers' own directory is made.
    with contextlib.suppress(OSError):
        make_folder(state / "syzkaller")
    return state / "syzkaller" / f"{manager.workdir.name}-{digest[:8]}"


def _make_job(
    source: Path,
    answers: Path,
    output: Path,
    symbols: DebugInfo,
    digests: tuple[str, ...],
    timeout: float,
    *,
    is_dump: bool,
) -> BatchJob:
    """Return the job that answers about a dump or a report.

    :param answers: the directory of its answers, made if it does not exist.
    """
    answers.mkdir(parents=True, exist_ok=True)
    wanted: Sequence[tuple[str, str]] = ((SHOW_REPORT, _REPORT),)
    if is_dump:
        slice_line = f"slice -o {quote(str(answers / _SLICE))}"
        wanted = (*_ANSWERS, (slice_line, "slice.txt"))
    lines, names = zip(*wanted, strict=True)
    files = tuple(str(answers / name) for name in names)
    return BatchJob(str(source), lines, str(output), symbols, timeout, files, digests)


def _write_text(path: Path, text: str) -> Path:
    """Write hostile text of several lines, each escaped."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_text(str(path)) as stream:
        stream.writelines(f"{escape(line)}\n" for line in text.split("\n"))
    return path


def _make_dump_row(
    reader: WorkdirReader, crash: Crash, dump: Dump, answers: Path, outcome: Outcome
) -> _Row:
    crashed = outcome.crash
    errors = crash.remarks
    if crashed is not None:
        errors = (*crashed.errors, *errors)
    row = _Row(crash, dump, answers, outcome, dump.log, None, errors)
    if dump.log is None or crashed is None or crashed.comm is None or crashed.pid is None:
        return row
    try:
        found = reader.read_dump_log(dump.log, crashed.pid, crashed.comm)
        if found.is_other:
            return row._replace(log=None)
        if found.program is None:
            return row
        return row._replace(program=_write_text(answers / _PROGRAM, found.program))
    except (KcovdbgError, OSError) as error:
        problem = getattr(error, "strerror", None) or error
        return row._replace(errors=(*row.errors, f"log: {problem}"))


def _make_row(reader: WorkdirReader, crash: Crash, answers: Path, outcome: Outcome | None) -> _Row:
    """Return the row of a crash without a dump, from its report and log.

    :param outcome: outcome of the job that wrote the report with source lines; None without an
        image.
    """
    found = outcome or Outcome(str(crash.path))
    located = None
    if outcome is not None and not outcome.failed:
        located = answers / _REPORT
    try:
        texts = reader.read_crash(crash, located)
    except KcovdbgError as error:
        found = replace(found, error=f"log: {error}")
        return _Row(crash, None, None, found, errors=crash.remarks)
    problems = [*texts.summary.errors, *crash.remarks]
    if crash.report is None:
        problems.insert(0, "no log")
    found = replace(found, crash=texts.summary)
    row = _Row(crash, None, None, found, crash.log)
    if outcome is not None:
        row = row._replace(answers=answers)
    if texts.program is not None:
        if texts.is_last:
            problems.append(f"{_PROGRAM} has the program that was started last")
        row = row._replace(answers=answers, program=_write_text(answers / _PROGRAM, texts.program))
    elif crash.reproducer is not None:
        row = row._replace(program=crash.reproducer)
        problems.append("the program is the reproducer")
    return row._replace(errors=tuple(problems))


def _run(context: Context, args: Namespace) -> Table:
    with contextlib.closing(WorkdirReader(args.timeout)) as reader:
        return _answer(context, args, reader)


def _answer(context: Context, args: Namespace, reader: WorkdirReader) -> Table:
    manager, crashes = reader.find(
        args.workdir, [*(args.symbols or ()), *context.workspace.inputs.named_files]
    )
    # A link may lead elsewhere, where answers do not belong either.
    output = make_output(
        "syzkaller",
        _find_output(manager, args.output),
        [manager.workdir, *(crash.path for crash in crashes)],
    )
    found: list[tuple[Crash, Dump | None, Path]] = []
    for crash in crashes:
        answers = output / "crashes" / crash.path.name
        found += [(crash, dump, answers / dump.path.name) for dump in crash.dumps]
        if not crash.dumps:
            found.append((crash, None, answers))
    # Crashes with a dump come first.
    found.sort(key=lambda item: item[1] is None)
    symbols = find_debug_info(context, args, [*map(str, manager.images)])
    shared = (output, symbols, find_digests(symbols), args.timeout)
    # A report does not say which kernel it is of.
    has_one_kernel = len({build_id for build_id, _ in symbols if build_id is not None}) == 1
    jobs = []
    for crash, one, answers in found:
        if one is not None:
            jobs.append(_make_job(one.path, answers, *shared, is_dump=True))
        elif crash.report is not None and has_one_kernel:
            jobs.append(_make_job(crash.report, answers, *shared, is_dump=False))
    outcomes, earlier = run_batch(context, jobs, args)
    by_path = {outcome.path: outcome for outcome in outcomes}
    rows = []
    for crash, one, answers in found:
        if one is not None:
            rows.append(_make_dump_row(reader, crash, one, answers, by_path[str(one.path)]))
        else:
            rows.append(_make_row(reader, crash, answers, by_path.get(str(crash.report))))
    if any(row.outcome.failed for row in rows):
        context.status = 1
    return Table(
        _COLUMNS,
        rows,
        remarks=(*_remarks(rows, earlier, output, has_image=bool(symbols)), *manager.remarks),
        errors=lambda row: row.errors,
        label=lambda row: row.crash.path.name,
        empty="no crashes",
        show=_SHOWN,
    )


def _remarks(rows: Sequence[_Row], earlier: int, output: Path, *, has_image: bool) -> Iterator[str]:
    dumps = sum(row.dump is not None for row in rows)
    text = f"{amount_text(len(rows), 'crash', 'crashes')}, {amount_text(dumps, 'dump')}"
    if earlier:
        text += f"; {earlier} were read earlier"
    yield text
    if any(row.answers is not None for row in rows):
        yield f"answers: {output}/crashes/CRASH/"
    if dumps and not has_image:
        yield "no vmlinux: give the manager's configuration, or -s VMLINUX"


COMMAND: Final = Command(
    name="syzkaller",
    summary="list where each of a syzkaller manager's crashes ended",
    topic=Topic.OUTPUT,
    run=_run,
    row_types=(RowType(_COLUMNS, errors=True),),
    description=(
        "Answers go to the directory of -o, or to $XDG_STATE_HOME/kcovdbg/syzkaller/WORKDIR-HASH, "
        "by default below ~/.local/state; nothing is written to the working directory. For each "
        "dump, crashes/CRASH/vmcore/ there gets last.txt (last --all), why.txt and trace.txt (why "
        "and trace of the crashed task), check.txt, a slice, and program.txt: the program that "
        "the crashed task ran, from the log of that crash.\n\n"
        "For a crash without a dump, the newest report and its log name the task, the function in "
        "which the crash began and the system call. report.txt has the report with source lines, "
        "if there is one vmlinux, and program.txt the program that the task ran, or else the one "
        "that was started last.\n\n"
        "For one crash directory that came by mail, or for a report or a log alone, the answer is "
        "one row.\n\n"
        "The manager's configuration, in or beside the working directory or given in its place, "
        "names the directories of the vmlinux (kernel_obj) and modules (module_obj). They are "
        "searched if they are in the working directory, beside the configuration, or named by -s. "
        "A dump is opened with the vmlinux that has its build ID. Links out of the working "
        "directory are not followed.\n\n"
        "The exit status is 1 if a dump failed: it could not be opened, or an answer about it is "
        "missing. A truncated dump is read up to where it ends, and does not fail; the column "
        "error and each answer say what is missing.\n\n"
        "Each dump has its own process. The command skips dumps that are done when it runs again."
    ),
    arguments=(
        Argument(
            "workdir WORKDIR",
            Value.FILE,
            "the manager's working directory or configuration, one crash directory, or a report",
        ),
        Argument(
            "-o, --output DIR", Value.FILE, "write to DIR/crashes/CRASH; DIR is not in WORKDIR"
        ),
        *RUN_OPTIONS,
    ),
    examples=(
        Example("syzkaller /syz/workdir -s /syz/linux/vmlinux", "where did each crash end?"),
        Example("syzkaller crash/ -s vmlinux", "where did this one crash end, which came by mail?"),
        Example(
            "syzkaller /syz/manager.cfg --json",
            "the same for a script, with the image of the configuration",
        ),
    ),
    needs=frozenset(),
    acts=True,
)
