# SPDX-License-Identifier: LGPL-2.1-or-later
"""``batch``: commands on many dumps and traces, with one data set as the result."""

from __future__ import annotations

import errno
import os
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import ElfError
from kcovdbg.engine.argument import Argument, Count, Value
from kcovdbg.engine.batch_job import BatchJob, Outcome, find_outcome, run_job
from kcovdbg.engine.command import Command, Example, Topic
from kcovdbg.engine.command_line import parse_line
from kcovdbg.engine.context import Context
from kcovdbg.engine.runner import find_command
from kcovdbg.errors import CapabilityError, KcovdbgError, UsageError
from kcovdbg.render.column import Column
from kcovdbg.render.escape import escape
from kcovdbg.render.json_schema import RowType
from kcovdbg.render.key_meanings import Meaning
from kcovdbg.render.parquet import import_arrow
from kcovdbg.render.renderable import Line, Lines, Table
from kcovdbg.render.value_kinds import NUMBER, PATH, SECONDS
from kcovdbg.target import dump_file as dumpfile

_TIMEOUT: Final = 600.0
# These act on the machine, or write a file that the next dump would overwrite.
_REFUSED: Final = frozenset(
    {"batch", "watch", "view", "collect", "jobs", "gdb", "slice", "keep", "export", "report", "resume", "demo"}
)
_LONGEST_LIST: Final = 20

_COLUMNS: Final = (
    Column("dump", PATH, value=lambda outcome: outcome.path),
    Column("dump_build_id", value=lambda outcome: outcome.build_id),
    Column("rows", NUMBER),
    Column("seconds", SECONDS, value=lambda outcome: round(outcome.seconds, 3)),
    Column("error", value=lambda outcome: _error_text(outcome) if outcome.failed else None),
)


def _error_text(outcome: Outcome) -> str:
    """Return what is missing of a file."""
    if outcome.error is not None:
        return outcome.error
    return "; ".join(f"{line.line}: {line.error}" for line in outcome.lines if line.error is not None)


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


def find_debug_info(places: Sequence[str], *, unpacked: bool) -> tuple[tuple[str | None, str], ...]:
    """Return the debug info files named or in the folders named, with their build-ids.

    :param unpacked: return the paths of decompressed copies, which exist as long as this process does.
    :raises TargetError: when one cannot be read.
    """
    found: list[tuple[str | None, str]] = []
    for place in map(Path, places):
        if place.is_dir():
            paths = [path for path in sorted(place.rglob("*")) if path.is_file() and _is_debug_info(path)]
            if not paths:
                raise UsageError(f"batch: no debug info in '{place}'", hint="-s takes a vmlinux or a folder of them")
        else:
            paths = [place]
        for path in paths:
            plain = dumpfile.unpack(path).path
            found.append((_read_build_id(plain), str((plain if unpacked else path).resolve())))
    return tuple(found)


def _is_debug_info(path: Path) -> bool:
    return dumpfile.identify(path) is dumpfile.FileKind.ELF


def _read_build_id(path: Path) -> str | None:
    try:
        with ElfFile(path) as file:
            return file.build_id
    except ElfError:
        # Reported when a dump is opened with it.
        return None


def _run_here(jobs: Sequence[BatchJob], number: int) -> Iterator[Outcome]:
    """Run jobs in processes on this machine, this many at a time."""
    # Imported here: it imports logging, which would slow down every other command.
    from concurrent.futures import ThreadPoolExecutor, as_completed

    pool = ThreadPoolExecutor(number)
    futures = [pool.submit(run_job, job) for job in jobs]
    try:
        for future in as_completed(futures):
            yield future.result()
    finally:
        # After C-c running jobs end by themselves, and no others start.
        pool.shutdown(wait=True, cancel_futures=True)


def _run_on_cluster(jobs: Sequence[BatchJob], address: str) -> Iterator[Outcome]:
    """Run jobs on a Dask cluster, which schedules them and reruns the jobs of workers that die.

    :raises CapabilityError: when Dask is not installed, or there is no scheduler.
    """
    try:
        distributed: Any = import_module("distributed")
    except ImportError as error:
        raise CapabilityError("batch: --scheduler needs Dask", hint="pip install 'kcovdbg[farm]'") from error
    try:
        client = distributed.Client(address, timeout=10)
    except (OSError, ValueError, TimeoutError) as error:
        raise CapabilityError(
            f"batch: no Dask scheduler at '{address}': {str(error).splitlines()[0] if str(error) else type(error).__name__}",
            hint="start one with dask scheduler, and workers with dask worker ADDR",
        ) from error
    with client:
        # A job's result is files, so it can safely run twice.
        futures = client.map(run_job, jobs, pure=False, retries=3)
        for future in distributed.as_completed(futures):
            try:
                yield future.result()
            except Exception as error:  # noqa: BLE001 - whatever the job did to its workers
                job = jobs[futures.index(future)]
                yield Outcome(job.path, None, (), 0.0, f"{type(error).__name__}: {str(error).splitlines()[0]}")


def _run(context: Context, args: Namespace) -> Lines:
    import_arrow()
    lines = _check_lines(context, args.execute or [])
    symbols = find_debug_info(args.symbols or [], unpacked=args.scheduler is None)
    output = _make_folder(args.output, args.dumps)
    paths = dict.fromkeys(str(Path(name).expanduser().absolute()) for name in args.dumps)
    jobs = [BatchJob(path, lines, str(output), symbols, args.timeout or _TIMEOUT) for path in paths]
    done = {} if args.again else {job.path: kept for job in jobs if (kept := find_outcome(job)) is not None}
    if args.retry:
        done = {path: outcome for path, outcome in done.items() if not outcome.failed}
    left = [job for job in jobs if job.path not in done]
    earlier = len(done)
    run: Callable[[], Iterator[Outcome]] = (
        (lambda: _run_on_cluster(left, args.scheduler)) if args.scheduler else (lambda: _run_here(left, _jobs(args.jobs)))
    )
    show = _Progress(context, len(left))
    if left:
        for outcome in run():
            done[outcome.path] = outcome
            show.step(outcome)
        show.end()
    outcomes = [done[job.path] for job in jobs]
    if any(outcome.failed for outcome in outcomes):
        context.status = KcovdbgError.status if all(outcome.failed for outcome in outcomes) else 0
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


def _jobs(asked: int | None) -> int:
    return asked or len(os.sched_getaffinity(0))


class _Progress:
    """A line on a terminal that shows how far a batch is."""

    def __init__(self, context: Context, total: int) -> None:
        self._stream = context.terminal.stderr
        self._shown = bool(getattr(self._stream, "isatty", lambda: False)())
        self._total = total
        self._done = 0
        self._failed = 0
        self._start = time.monotonic()

    def step(self, outcome: Outcome) -> None:
        """Count one more."""
        self._done += 1
        self._failed += outcome.failed
        if self._shown:
            seconds = time.monotonic() - self._start
            left = (self._total - self._done) * seconds / self._done
            failed = f", {self._failed} failed" if self._failed else ""
            self._stream.write(f"\r{self._done} of {self._total}{failed}, {left:.0f} s left \x1b[K")
            self._stream.flush()

    def end(self) -> None:
        """Clear the line."""
        if self._shown and self._done:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def _summary(outcomes: Sequence[Outcome], earlier: int, output: Path) -> Iterator[Line]:
    rows = sum(outcome.rows for outcome in outcomes)
    failed = [outcome for outcome in outcomes if outcome.failed]
    before = f", {earlier} of them earlier" if earlier else ""
    yield (("", f"{len(outcomes)} file{'s' if len(outcomes) != 1 else ''}{before}: {rows} rows in {escape(str(output))}"),)
    for outcome in failed[:_LONGEST_LIST]:
        yield (("path", f"  {escape(outcome.path)}"), ("", ": "), ("error", escape(_error_text(outcome))))
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
        Argument(("-s", "--symbols"), Value.FILE, "a vmlinux, or a directory of them", metavar="PATH", count=Count.ANY),
        Argument(("-j", "--jobs"), Value.NUMBER, "run N files at a time; default: the number of CPUs", metavar="N"),
        Argument(("--scheduler",), Value.TEXT, "use a Dask scheduler: tcp://host:8786", metavar="ADDR"),
        Argument(("--timeout",), Value.SECONDS, "time limit per file; default 600", metavar="SECONDS"),
        Argument(("--retry",), Value.FLAG, "rerun files that failed earlier"),
        Argument(("--again",), Value.FLAG, "rerun all files"),
    ),
    examples=(
        Example("batch -e objects -e check -s vmlinux dumps/*.zst -o state", "check many dumps"),
        Example("batch -e 'top {}' -s vmlinux traces/*.kcov -o traces.parquet", "rank the functions of many traces"),
    ),
    needs=frozenset(),
)
