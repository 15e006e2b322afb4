# SPDX-License-Identifier: LGPL-2.1-or-later
"""The jobs of a batch: run on this machine or a Dask cluster, resumed, with a progress line."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import ET_REL, ElfError
from kcovdbg.engine.argument import Argument, Count, Value
from kcovdbg.engine.batch_job import BatchJob, Outcome, find_outcome, run_job
from kcovdbg.engine.context import Context
from kcovdbg.engine.terminal import write_remarks
from kcovdbg.errors import CapabilityError, KcovdbgError, UsageError
from kcovdbg.target import dump_file as dumpfile

TIMEOUT: Final = 600.0
"""The default time limit of a job, in seconds."""

RUN_OPTIONS: Final = (
    Argument(("-j", "--jobs"), Value.NUMBER, "run N files at a time; default: the number of CPUs", metavar="N"),
    Argument(("--scheduler",), Value.TEXT, "use a Dask scheduler: tcp://host:8786", metavar="ADDR"),
    Argument(("--timeout",), Value.SECONDS, "time limit per file; default 600", metavar="SECONDS"),
    Argument(("--retry",), Value.FLAG, "rerun files that failed earlier"),
    Argument(("--again",), Value.FLAG, "rerun all files"),
)
"""Options of commands that run jobs."""

SYMBOLS: Final = Argument(("-s", "--symbols"), Value.FILE, "a vmlinux, or a directory of them", metavar="PATH", count=Count.ANY)
"""The option for debug info."""


class BatchResult(NamedTuple):
    """The outcomes of jobs."""

    outcomes: Sequence[Outcome]
    """In the order of the jobs."""
    earlier: int
    """How many of them were there before."""


def run_batch(context: Context, jobs: Sequence[BatchJob], options: Namespace) -> BatchResult:
    """Run the jobs that have no outcome yet, and set the exit status to failure if all jobs failed.

    :param options: the values of :data:`RUN_OPTIONS`.
    :raises CapabilityError: when Dask is not installed, or there is no scheduler.
    """
    done = {} if options.again else {job.run_file: kept for job in jobs if (kept := find_outcome(job)) is not None}
    if options.retry:
        done = {file: outcome for file, outcome in done.items() if not outcome.failed}
    left = [job for job in jobs if job.run_file not in done]
    earlier = len(done)
    run: Callable[[], Iterator[tuple[BatchJob, Outcome]]] = (
        (lambda: _run_on_cluster(context.command.name, left, options.scheduler))
        if options.scheduler
        else (lambda: _run_here(left, options.jobs or len(os.sched_getaffinity(0))))
    )
    if left:
        try:
            with closing(_Progress(context, len(left))) as progress:
                for job, outcome in run():
                    done[job.run_file] = outcome
                    progress.step(outcome)
        except KeyboardInterrupt:
            again = "the same command without --again" if options.again else "the same command"
            write_remarks(context.terminal, (f"stopped: files that are done are kept; {again} does the others",))
            raise
    outcomes = [done[job.run_file] for job in jobs]
    if any(outcome.failed for outcome in outcomes):
        context.status = KcovdbgError.status if all(outcome.failed for outcome in outcomes) else 0
    return BatchResult(outcomes, earlier)


def error_text(outcome: Outcome) -> str:
    """Return what is missing of a file."""
    if outcome.error is not None:
        return outcome.error
    return "; ".join(f"{line.line}: {line.error}" for line in outcome.lines if line.error is not None)


def find_debug_info(command: str, places: Sequence[str], *, unpacked: bool) -> tuple[tuple[str | None, str], ...]:
    """Return the debug info files named or in the folders named, with the build-ids of kernels; modules have None.

    :param command: the name of the command that needs them.
    :param unpacked: return the paths of decompressed copies, which exist as long as this process does.
    :raises TargetError: when one cannot be read.
    """
    found: list[tuple[str | None, str]] = []
    for place in map(Path, places):
        if place.is_dir():
            paths = [path for path in sorted(place.rglob("*")) if path.is_file() and _is_debug_info(path)]
            if not paths:
                raise UsageError(f"{command}: no debug info in '{place}'", hint="-s takes a vmlinux or a folder of them")
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
            # A module may be of any of the kernels: it is matched with the loaded modules when a dump is opened.
            return None if file.header.type == ET_REL else file.build_id
    except ElfError:
        # Reported when a dump is opened with it.
        return None


def _run_here(jobs: Sequence[BatchJob], number: int) -> Iterator[tuple[BatchJob, Outcome]]:
    """Run jobs in processes on this machine, this many at a time."""
    # Imported here: it imports logging, which would slow down every other command.
    from concurrent.futures import ThreadPoolExecutor, as_completed

    pool = ThreadPoolExecutor(number)
    futures = {pool.submit(run_job, job): job for job in jobs}
    try:
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        # After C-c running jobs end by themselves, and no others start.
        pool.shutdown(wait=True, cancel_futures=True)


def _run_on_cluster(command: str, jobs: Sequence[BatchJob], address: str) -> Iterator[tuple[BatchJob, Outcome]]:
    """Run jobs on a Dask cluster, which schedules them and reruns the jobs of workers that die.

    :raises CapabilityError: when Dask is not installed, or there is no scheduler.
    """
    try:
        distributed: Any = import_module("distributed")
    except ImportError as error:
        raise CapabilityError(f"{command}: --scheduler needs Dask", hint="pip install 'kcovdbg[farm]'") from error
    try:
        client = distributed.Client(address, timeout=10)
    except (OSError, ValueError, TimeoutError) as error:
        raise CapabilityError(
            f"{command}: no Dask scheduler at '{address}': "
            f"{str(error).splitlines()[0] if str(error) else type(error).__name__}",
            hint="start one with dask scheduler, and workers with dask worker ADDR",
        ) from error
    with client:
        # A job's result is files, so it can safely run twice.
        futures = client.map(run_job, jobs, pure=False, retries=3)
        job_of = dict(zip((future.key for future in futures), jobs, strict=True))
        for future in distributed.as_completed(futures):
            job = job_of[future.key]
            try:
                yield job, future.result()
            except Exception as error:  # noqa: BLE001 - whatever the job did to its workers
                yield job, Outcome(job.path, None, (), 0.0, f"{type(error).__name__}: {str(error).splitlines()[0]}")


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

    def close(self) -> None:
        """Clear the line."""
        if self._shown and self._done:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
