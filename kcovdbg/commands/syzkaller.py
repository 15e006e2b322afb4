# SPDX-License-Identifier: LGPL-2.1-or-later
"""``syzkaller``: the dumps in a manager's working directory, each with answers beside it, and a table of all crashes."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from kcovdbg.engine.argument import Argument, Count, Value
from kcovdbg.engine.batch_job import COVERED, CRASHED, BatchJob, Outcome
from kcovdbg.engine.batch_run import RUN_OPTIONS, SYMBOLS, TIMEOUT, error_text, find_debug_info, run_batch
from kcovdbg.engine.command import Command, Example, Topic
from kcovdbg.engine.completion.cursor import quote
from kcovdbg.engine.context import Context
from kcovdbg.engine.manager_workdir import Crash, Dump, Manager, find_manager, find_program, names_another_task, read_log
from kcovdbg.engine.output_files import open_text
from kcovdbg.errors import KcovdbgError
from kcovdbg.render.column import Column
from kcovdbg.render.json_schema import RowType
from kcovdbg.render.key_meanings import Meaning
from kcovdbg.render.renderable import Table
from kcovdbg.render.value_kinds import BOOL, COMM, NUMBER, PATH, PID, SECONDS, SYMBOL, TEXT

_SLICE: Final = "kcov.slice.zst"
_PROGRAM: Final = "program.txt"
# A command, and the file of its text.
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
    outcome: Outcome | None
    program: Path | None
    errors: tuple[str, ...]


def _of_crash(name: str) -> Callable[[_Row], Any]:
    def value(row: _Row) -> object:
        crash = None if row.outcome is None else row.outcome.crash
        return None if crash is None else getattr(crash, name)

    return value


def _violations(row: _Row) -> bool | None:
    """Return whether check found violations, None where it was not run."""
    lines = () if row.outcome is None else row.outcome.lines
    return next((line.status == 1 for line in lines if line.line == "check" and line.error is None), None)


def _slice(row: _Row) -> Path | None:
    lines = () if row.outcome is None else row.outcome.lines
    if row.answers is None or not any(line.line.startswith("slice ") and line.error is None for line in lines):
        return None
    return row.answers / _SLICE


def _path(find: Callable[[_Row], Path | None]) -> Callable[[_Row], str | None]:
    return lambda row: None if (path := find(row)) is None else str(path)


_COLUMNS: Final = (
    Column("title", TEXT, value=lambda row: row.crash.title, elastic=16),
    Column("function", SYMBOL, value=_of_crash("function"), elastic=12),
    Column("syscall", SYMBOL, value=_of_crash("syscall"), elastic=8),
    Column("comm", COMM, value=_of_crash("comm"), priority=1),
    Column("pid", PID, value=_of_crash("pid"), priority=2),
    Column("violations", BOOL, value=_violations, priority=1),
    Column("error", TEXT, value=lambda row: _error(row), elastic=12, priority=1),
    Column("call", SYMBOL, value=_of_crash("call")),
    Column("file", PATH, value=_of_crash("file")),
    Column("line", NUMBER, value=_of_crash("line")),
    Column("role", TEXT, value=_of_crash("role")),
    Column("crash", PATH, value=lambda row: str(row.crash.path)),
    Column("dump", PATH, value=_path(lambda row: None if row.dump is None else row.dump.path)),
    Column("build_id", TEXT, value=lambda row: None if row.outcome is None else row.outcome.build_id),
    Column("answers", PATH, value=_path(lambda row: row.answers)),
    Column("slice", PATH, value=_path(_slice)),
    Column("log", PATH, value=_path(lambda row: None if row.dump is None else row.dump.log)),
    Column("program", PATH, value=_path(lambda row: row.program)),
    Column("logs", NUMBER, value=lambda row: row.crash.logs),
    Column("reports", NUMBER, value=lambda row: row.crash.reports),
    Column("reproduced", BOOL, value=lambda row: row.crash.has_program),
    Column("seconds", SECONDS, value=lambda row: None if row.outcome is None else round(row.outcome.seconds, 3)),
)


# All others are in JSON, and in text with --columns and --wide.
_SHOWN: Final = ("title", "function", "syscall", "comm", "pid", "violations", "error")


def _error(row: _Row) -> str | None:
    return error_text(row.outcome) if row.outcome is not None and row.outcome.failed else None


def _make_job(dump: Dump, answers: Path, symbols: tuple[tuple[str | None, str], ...], timeout: float) -> BatchJob:
    lines = [*_ANSWERS, (f"slice -o {quote(str(answers / _SLICE))}", "slice.txt")]
    return BatchJob(
        str(dump.path),
        tuple(line for line, _ in lines),
        str(answers),
        symbols,
        timeout,
        tuple(str(answers / name) for _, name in lines),
    )


def _find_answers(crash: Crash, dump: Dump, output: str | None) -> Path:
    folder = crash.path if output is None else Path(output).expanduser().absolute() / crash.path.name
    return folder / dump.answers


def _make_folder(path: Path) -> None:
    """Make the directory for answers.

    :raises KcovdbgError: when it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KcovdbgError(
            f"could not write '{path}': {error.strerror or error}", hint="-o DIR writes the answers somewhere else"
        ) from None


def _find_symbols(manager: Manager, args: Namespace) -> tuple[tuple[str | None, str], ...]:
    places = [*(args.symbols or []), *map(str, manager.images)]
    return find_debug_info("syzkaller", places, unpacked=args.scheduler is None)


def _write_program(log: bytes, answers: Path, comm: str) -> Path | None:
    """Write the program that the crashed task ran, and return the file; None where it is unknown."""
    program = find_program(log, comm)
    if program is None:
        return None
    path = answers / _PROGRAM
    with open_text(str(path)) as stream:
        stream.write(f"{program}\n")
    return path


def _make_row(crash: Crash, dump: Dump, answers: Path, outcome: Outcome) -> _Row:
    crashed = outcome.crash
    errors = () if crashed is None else tuple(crashed.errors)
    if dump.log is None or crashed is None or crashed.comm is None or crashed.pid is None:
        return _Row(crash, dump, answers, outcome, None, errors)
    try:
        log = read_log(dump.log)
        if names_another_task(log, crashed.pid, crashed.comm):
            return _Row(crash, dump._replace(log=None), answers, outcome, None, errors)
        program = _write_program(log, answers, crashed.comm)
    except OSError as error:
        return _Row(crash, dump, answers, outcome, None, (*errors, f"log: {error.strerror or error}"))
    return _Row(crash, dump, answers, outcome, program, errors)


def _run(context: Context, args: Namespace) -> Table:
    manager = find_manager(args.workdir)
    crashes = list(manager.crashes())
    found = [(crash, dump, _find_answers(crash, dump, args.output)) for crash in crashes for dump in crash.dumps]
    symbols = _find_symbols(manager, args) if found else ()
    for _, _, answers in found:
        _make_folder(answers)
    jobs = [_make_job(dump, answers, symbols, args.timeout or TIMEOUT) for _, dump, answers in found]
    outcomes, earlier = run_batch(context, jobs, args)
    rows = [_make_row(*one, outcome) for one, outcome in zip(found, outcomes, strict=True)]
    rows += [_Row(crash, None, None, None, None, ()) for crash in crashes if not crash.dumps]
    return Table(
        _COLUMNS,
        rows,
        remarks=tuple(_remarks(manager, rows, earlier, args)),
        errors=lambda row: row.errors,
        label=lambda row: row.crash.path.name,
        empty="no crashes",
        show=_SHOWN,
    )


def _remarks(manager: Manager, rows: Sequence[_Row], earlier: int, args: Namespace) -> Iterator[str]:
    dumps = sum(row.dump is not None for row in rows)
    before = f", {earlier} of them read earlier" if earlier else ""
    yield f"{len(rows)} crash{'es' if len(rows) != 1 else ''}, {dumps} dump{'s' if dumps != 1 else ''}{before}"
    if dumps:
        place = f"{args.output}/CRASH" if args.output else f"{manager.workdir}/crashes/CRASH"
        yield f"answers: {place}/vmcore.kcovdbg/"
    if dumps and not manager.images and not args.symbols:
        yield "no vmlinux: give the manager's configuration, or -s VMLINUX"


COMMAND: Final = Command(
    name="syzkaller",
    summary="read a syzkaller manager's dumps, list where each crash ended",
    topic=Topic.OUTPUT,
    run=_run,
    row_types=(
        RowType(
            _COLUMNS,
            {
                "title": Meaning("title of the crash, as in its description", "the description could not be read"),
                "function": Meaning("function in which the crash began", "it is unknown"),
                "syscall": Meaning("name of the system call that the crashed task was in", "it was in none, or it is unknown"),
                "call": Meaning("the system call with its arguments", "the task was in none, or it is unknown"),
                "comm": Meaning("name of the crashed task", "it is unknown"),
                "pid": Meaning("thread id of the crashed task", "it is unknown"),
                "file": Meaning("source file in which the crash began, relative to the build root", "it is unknown"),
                "line": Meaning("line in the file", "it is unknown"),
                "role": Meaning("what collected into the crashed task", "it is unknown"),
                "violations": Meaning("whether `check` found violations", "`check` was not run, or failed"),
                "error": Meaning("which answers are missing, and why", "all were written"),
                "crash": Meaning("directory of the crash"),
                "dump": Meaning("path of the dump", "there is none"),
                "build_id": Meaning("build ID of the dump's kernel", "it is unknown"),
                "answers": Meaning("directory with the answers", "there is no dump"),
                "slice": Meaning("path of the slice", "it was not written"),
                "log": Meaning("log of the crash that was dumped", "there is none, or the manager overwrote it"),
                "program": Meaning("file with the program that the crashed task ran", "the log does not have it"),
                "logs": Meaning("number of logs of the crash", unit="logs"),
                "reports": Meaning("number of reports of the crash", unit="reports"),
                "reproduced": Meaning("whether the crash has a reproducer"),
                "seconds": Meaning("time that its answers took", "there is no dump", "seconds"),
            },
            errors=True,
        ),
    ),
    description=(
        "For each crashes/CRASH/vmcore the directory vmcore.kcovdbg beside it gets last.txt (last --all), why.txt (why, of the "
        "crashed task), check.txt, trace.txt (trace, of the crashed task), a slice, and program.txt: the program that the "
        "crashed task ran, from the log of that crash. Files of the manager are not changed.\n\n"
        "The vmlinux and modules are taken from kernel_obj and module_obj of the manager's configuration, which is found in or "
        "beside the working directory, or given in its place; with -s, from other files and directories. A dump is opened with "
        "the vmlinux that has its build ID.\n\n"
        "It is a form of batch: each dump has a process of its own, dumps that are done are skipped when it runs again, and "
        "--scheduler uses a Dask cluster."
    ),
    arguments=(
        Argument(("workdir",), Value.FILE, "the manager's working directory or configuration", metavar="WORKDIR"),
        Argument(
            ("-o", "--output"), Value.FILE, "write to DIR/CRASH, not beside the dump", metavar="DIR", count=Count.OPTIONAL
        ),
        SYMBOLS,
        *RUN_OPTIONS,
    ),
    examples=(
        Example("syzkaller /syz/workdir -s /syz/linux/vmlinux", "where did each crash end?"),
        Example("syzkaller /syz/manager.cfg --json", "the same for a script, with the image of the configuration"),
    ),
    needs=frozenset(),
)
