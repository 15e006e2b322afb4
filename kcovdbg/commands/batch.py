# SPDX-License-Identifier: LGPL-2.1-or-later
"""``batch``: the same commands on many dumps and traces, into one data set."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from kcovdbg.commands.argument import Argument, Count, Value
from kcovdbg.commands.batch_job import Job, Outcome, find_outcome, run_job
from kcovdbg.commands.command import Command, Example
from kcovdbg.commands.line import parse_line
from kcovdbg.commands.run import find_command
from kcovdbg.commands.session import Context
from kcovdbg.errors import CapabilityError, KcovdbgError, UsageError
from kcovdbg.render.column import Column
from kcovdbg.render.escape import escape
from kcovdbg.render.kind import NUMBER, PATH
from kcovdbg.render.parquet import import_arrow
from kcovdbg.render.renderable import Line, Lines, Table
from kcovdbg.target import dumpfile, elf

_TIMEOUT: Final = 600.0
# They act, or write a file: the next dump would take its name.
_REFUSED: Final = frozenset({"batch", "watch", "view", "collect", "jobs", "gdb", "slice", "keep", "export", "report"})
_LONGEST_LIST: Final = 20

_COLUMNS: Final = (
    Column("dump", PATH, value=lambda outcome: outcome.path),
    Column("dump_build_id", value=lambda outcome: outcome.build_id),
    Column("rows", NUMBER),
    Column("seconds", NUMBER, value=lambda outcome: round(outcome.seconds, 3)),
    Column("error", value=lambda outcome: _tell(outcome) if outcome.failed else None),
)


def _tell(outcome: Outcome) -> str:
    """Say what is missing of a file."""
    if outcome.error is not None:
        return outcome.error
    return "; ".join(f"{line.line}: {line.error}" for line in outcome.lines if line.error is not None)


def _check_lines(context: Context, lines: Sequence[str]) -> tuple[str, ...]:
    """Understand the commands once, before thousands of files are asked.

    :raises UsageError: where one can't be run here.
    """
    if not lines:
        raise UsageError("batch needs a command to run", hint="batch -e objects -e check *.zst -o DIR")
    for source in lines:
        line = parse_line(source)
        if line.shell is not None or line.pipeline is not None or line.redirection is not None or not line.words:
            raise UsageError(f"batch runs commands whose rows it keeps, not {source}", hint="without pipes and redirections")
        command, _ = find_command(context.session, [word.text for word in line.words])
        if command.name in _REFUSED:
            raise UsageError(
                f"{command.name} has no rows for a data set", hint="tasks, objects, check, buffer {} and others have"
            )
    return tuple(dict.fromkeys(lines))


def find_debug_info(places: Sequence[str], *, unpacked: bool) -> tuple[tuple[str | None, str], ...]:
    """Return the debug info that was named, or lies in the folders that were named, by build-id.

    :param unpacked: return where it lies decompressed for as long as this process lives, so that it is done once.
    :raises TargetError: when it can't be read.
    """
    found: list[tuple[str | None, str]] = []
    for place in map(Path, places):
        if place.is_dir():
            paths = [path for path in sorted(place.rglob("*")) if path.is_file() and _is_debug_info(path)]
            if not paths:
                raise UsageError(f"{place} holds no debug info", hint="-s takes a vmlinux, or a folder of them")
        else:
            paths = [place]
        for path in paths:
            plain = dumpfile.unpack(path).path
            found.append((_read_build_id(plain), str((plain if unpacked else path).resolve())))
    return tuple(found)


def _is_debug_info(path: Path) -> bool:
    return dumpfile.identify(path) is dumpfile.FileKind.ELF


def _read_build_id(path: Path) -> str | None:
    with dumpfile.open_file(path) as file:
        try:
            return elf.read_build_id(file, elf.read_header(file))
        except elf.ElfError:
            # Whoever opens it says what is wrong with it.
            return None


def _run_here(jobs: Sequence[Job], number: int) -> Iterator[Outcome]:
    """Run jobs in processes of this machine, so many at once."""
    # Here: it brings logging along, which every other command would wait for.
    from concurrent.futures import ThreadPoolExecutor, as_completed

    pool = ThreadPoolExecutor(number)
    futures = [pool.submit(run_job, job) for job in jobs]
    try:
        for future in as_completed(futures):
            yield future.result()
    finally:
        # At C-c those that run end by themselves, and the others don't begin.
        pool.shutdown(wait=True, cancel_futures=True)


def _run_on_cluster(jobs: Sequence[Job], address: str) -> Iterator[Outcome]:
    """Run jobs on a Dask cluster, which does all the scheduling; of a worker that dies, others take over its jobs.

    :raises CapabilityError: where Dask isn't installed, or there is no scheduler.
    """
    try:
        distributed: Any = import_module("distributed")
    except ImportError as error:
        raise CapabilityError("--scheduler needs Dask, which isn't installed", hint="pip install 'kcovdbg[farm]'") from error
    try:
        client = distributed.Client(address, timeout=10)
    except (OSError, ValueError, TimeoutError) as error:
        raise CapabilityError(
            f"there is no Dask scheduler at {address}: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
            hint="dask scheduler starts one, dask worker ADDR gives it work to do",
        ) from error
    with client:
        # A job has nothing but files as its result, so that it may be run twice.
        futures = client.map(run_job, jobs, pure=False, retries=3)
        for future in distributed.as_completed(futures):
            try:
                yield future.result()
            except Exception as error:  # noqa: BLE001 - one that no worker survives
                job = jobs[futures.index(future)]
                yield Outcome(job.path, None, (), 0.0, f"{type(error).__name__}: {str(error).splitlines()[0]}")


def _run(context: Context, args: Namespace) -> Lines:
    import_arrow()
    lines = _check_lines(context, args.execute or [])
    symbols = find_debug_info(args.symbols or [], unpacked=args.scheduler is None)
    output = Path(args.output).expanduser().resolve()
    output.mkdir(parents=True, exist_ok=True)
    paths = dict.fromkeys(str(Path(name).expanduser().absolute()) for name in args.dumps)
    jobs = [Job(path, lines, str(output), symbols, args.timeout or _TIMEOUT) for path in paths]
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


def _jobs(asked: int | None) -> int:
    return asked or len(os.sched_getaffinity(0))


class _Progress:
    """Says on a terminal how far a batch is, on one line."""

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
        """Leave the line as it was."""
        if self._shown and self._done:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def _summary(outcomes: Sequence[Outcome], earlier: int, output: Path) -> Iterator[Line]:
    rows = sum(outcome.rows for outcome in outcomes)
    failed = [outcome for outcome in outcomes if outcome.failed]
    before = f", {earlier} of them earlier" if earlier else ""
    yield (("", f"{len(outcomes)} file{'s' if len(outcomes) != 1 else ''}{before}: {rows} rows in {escape(str(output))}"),)
    for outcome in failed[:_LONGEST_LIST]:
        yield (("path", f"  {escape(outcome.path)}"), ("", ": "), ("error", escape(_tell(outcome))))
    if len(failed) > _LONGEST_LIST:
        yield (("", f"  and {len(failed) - _LONGEST_LIST} more that couldn't be asked everything: --json has them all"),)


BATCH: Final = Command(
    name="batch",
    summary="the same commands on many dumps and traces, into one Parquet data set",
    run=_run,
    description=(
        "Each command's rows go to DIR/command=NAME/, a column for each key of its JSON, with dump, dump_build_id and line in "
        "front. Every file is asked in a process of its own: one that is damaged, or hangs, doesn't stop the others, and is "
        "listed at the end. What was done already is not done again when the same batch is started once more, unless the file "
        "has changed.\n\n"
        "For trace files, {} in a command stands for the trace: buffer {}, top {}. Files are asked on this machine, or by "
        "the workers of a Dask cluster that see the same paths.\n\n"
        "Numbers are 64 bits with a sign; what is larger is left out, and the row's errors say so."
    ),
    arguments=(
        Argument(("-e", "--execute"), Value.TEXT, "a command to run on each", metavar="COMMAND", count=Count.ANY),
        Argument(("dumps",), Value.FILE, "dumps, slices or trace files", count=Count.SOME, metavar="FILE"),
        Argument(("-o", "--output"), Value.FILE, "the folder of the data set", metavar="DIR", count=Count.ONE),
        Argument(("-s", "--symbols"), Value.FILE, "vmlinux, or a folder of them", metavar="PATH", count=Count.ANY),
        Argument(("-j", "--jobs"), Value.NUMBER, "how many at once; by default one for each CPU", metavar="N"),
        Argument(("--scheduler",), Value.TEXT, "a Dask scheduler: tcp://host:8786", metavar="ADDR"),
        Argument(("--timeout",), Value.SECONDS, "how long one file may take, 600 by default", metavar="SECONDS"),
        Argument(("--retry",), Value.FLAG, "ask those that failed earlier once more"),
        Argument(("--again",), Value.FLAG, "ask all of them once more"),
    ),
    examples=(
        Example("batch -e objects -e check -s vmlinux dumps/*.zst -o state", "which of many dumps have something wrong?"),
        Example("batch -e 'top {}' -s vmlinux traces/*.kcov -o traces.parquet", "what do traces hit?"),
    ),
    needs=frozenset(),
)
"""The command."""
