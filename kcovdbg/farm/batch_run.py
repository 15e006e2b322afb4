# SPDX-License-Identifier: LGPL-2.1-or-later
"""The run of jobs on this machine or a Dask cluster: their options, the debug info and the directory that they share."""

from __future__ import annotations

import contextlib
import errno
import os
from argparse import Namespace
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kcovdbg.child_process import find_install_command
from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.context import Context
from kcovdbg.console.terminal import write_remarks
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import ElfError
from kcovdbg.errors import CapabilityError, KcovdbgError, UsageError
from kcovdbg.farm.batch_job import BatchJob, DebugInfo, Outcome, find_outcome, run_job
from kcovdbg.target import dump_file as dumpfile
from kcovdbg.target.debug_files import list_debug_files

if TYPE_CHECKING:
    from concurrent.futures import Executor

# As many as the kernel follows.
_MAX_LINKS: Final = 40
TIMEOUT: Final = 600.0
"""The default time limit of a job, in seconds."""

RUN_OPTIONS: Final = (
    Argument("-s, --symbols PATH…", Value.FILE, "a vmlinux, or a directory of them; default: those kcovdbg was started with"),
    Argument("-j, --jobs N", Value.NUMBER, "run N files at a time; default: the number of CPUs"),
    Argument("--scheduler ADDR", Value.TEXT, "use a Dask scheduler: tcp://host:8786"),
    Argument("--timeout SECONDS", Value.SECONDS, "time limit per file; default 600"),
    Argument("--retry", Value.FLAG, "rerun files that failed earlier"),
    Argument("--again", Value.FLAG, "rerun all files"),
)
"""Options of commands that run jobs."""


def run_batch(context: Context, jobs: Sequence[BatchJob], args: Namespace) -> tuple[Sequence[Outcome], int]:
    """Run the jobs that have no outcome yet; return the outcomes in the order of the jobs, and how many were there before.

    :param args: the values of :data:`RUN_OPTIONS`.
    :raises CapabilityError: when Dask is not installed, or there is no scheduler.
    """
    kept = {} if args.again else {job: found for job in jobs if (found := find_outcome(job)) is not None}
    done = {job: found for job, found in kept.items() if not (args.retry and found.failed)}
    left = [job for job in jobs if job not in done]
    outcomes = {**done, **(_run_jobs(context, left, args) if left else {})}
    return [outcomes[job] for job in jobs], len(done)


def _run_jobs(context: Context, jobs: Sequence[BatchJob], args: Namespace) -> dict[BatchJob, Outcome]:
    # Imported here: it imports logging, which would slow down every other command.
    from concurrent.futures import as_completed

    stream = context.terminal.stderr
    outcomes = {}
    with _make_executor(context.command.name, args) as executor:
        futures = {executor.submit(run_job, job): job for job in jobs}
        try:
            for number, future in enumerate(as_completed(futures), 1):
                job = futures[future]
                try:
                    outcomes[job] = future.result()
                except Exception as error:  # whatever the job did to a cluster's workers
                    if not args.scheduler:
                        raise
                    said = (str(error).splitlines() or [""])[0]
                    outcomes[job] = Outcome(job.path, error=f"{type(error).__name__}: {said}")
                if stream.isatty():
                    stream.write(f"\r{number} of {len(jobs)} \x1b[K" if number < len(jobs) else "\r\x1b[K")
                    stream.flush()
        except KeyboardInterrupt:
            stream.write("\r\x1b[K" if stream.isatty() else "")
            again = "the same command without --again" if args.again else "the same command"
            write_remarks(context.terminal, (f"stopped: files that are done are kept; {again} does the others",))
            raise
        finally:
            # After C-c running jobs end by themselves.
            for future in futures:
                future.cancel()
    return outcomes


def _make_executor(command: str, args: Namespace) -> Executor:
    """Return threads of this machine, each of which waits for a job's process, or a Dask cluster.

    The cluster reruns the jobs of workers that die: a job's result is files, so it can safely run twice.

    :raises CapabilityError: when Dask is not installed, or there is no scheduler.
    """
    if not args.scheduler:
        from concurrent.futures import ThreadPoolExecutor

        return ThreadPoolExecutor(args.jobs or len(os.sched_getaffinity(0)))
    try:
        client = import_module("distributed").Client(args.scheduler, timeout=10)
    except ImportError as error:
        raise CapabilityError(f"{command}: --scheduler needs Dask", hint=find_install_command("farm")) from error
    except (OSError, ValueError, TimeoutError) as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CapabilityError(
            f"{command}: no Dask scheduler at '{args.scheduler}': {said}",
            hint="start one with dask scheduler, and workers with dask worker ADDR",
        ) from error
    executor: Executor = client.get_executor(pure=False, retries=3)
    return executor


def find_debug_info(context: Context, args: Namespace, more: Sequence[str] = ()) -> DebugInfo:
    """Return the debug info that the command names, or else that kcovdbg was started with.

    For this machine these are the paths of decompressed copies, which exist as long as this process does.

    :param args: the values of :data:`RUN_OPTIONS`.
    :param more: further files.
    :raises TargetError: when one cannot be read.
    """
    named = [
        name
        for name in context.workspace.named_files
        if Path(name).is_dir() or (Path(name).is_file() and dumpfile.identify(name) is dumpfile.FileKind.ELF)
    ]
    found: list[tuple[str | None, str]] = []
    for name in [*(args.symbols or named), *more]:
        for file in list_debug_files(name):
            plain = dumpfile.unpack(file).path
            build_id = None
            # Reported when a dump is opened with it.
            with contextlib.suppress(ElfError), ElfFile(plain) as elf:
                # A module may be of any of the kernels: it is matched with the loaded modules when a dump is opened.
                build_id = None if elf.is_relocatable else elf.build_id
            found.append((build_id, str(plain.absolute() if args.scheduler is None else Path(file).resolve())))
    return tuple(found)


def make_output(command: str, name: str | os.PathLike[str], inputs: Sequence[Path]) -> Path:
    """Return the user's directory for results, made if it does not exist: in no directory of inputs, through no link of theirs.

    :param inputs: files and directories of somebody else, who may have put links and results there.
    :raises KcovdbgError: when it cannot be made, is in an input directory or reached through one, or has links or an input.
    """
    path = Path(os.path.abspath(Path(name).expanduser()))  # noqa: PTH100 - links are looked at one by one
    folder = Path(os.path.realpath(path))
    passed, links = _pass(path)
    for given in inputs:
        real = Path(os.path.realpath(given))
        home = real if real.is_dir() else Path(os.path.realpath(given.parent))
        holds = folder in (*real.parents, *home.parents) or folder == home != real
        if holds or real in passed or home in links:
            relation = "holds" if holds else "is reached through"
            raise UsageError(
                f"{command}: '{name}' {relation} the input '{given}'", hint="-o takes a directory for the results alone: -o DIR"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        link = next((path for path in folder.rglob("*") if path.is_symlink()), None)
    except OSError as error:
        problem = os.strerror(errno.ENOTDIR) if isinstance(error, FileExistsError) else error.strerror
        raise KcovdbgError(f"could not write '{name}': {problem}", hint="-o takes a directory: -o DIR") from None
    if link is not None:
        raise KcovdbgError(f"cannot write to '{name}': '{link}' is a link", hint="choose another directory: -o DIR")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise KcovdbgError(f"could not write '{name}': {os.strerror(errno.EACCES)}", hint="choose another directory: -o DIR")
    return folder


def _pass(path: Path) -> tuple[set[Path], set[Path]]:
    """Return the directories on the way to a path, which is among them, and those in which the way follows a link."""
    passed: set[Path] = set()
    links: list[Path] = []
    place = Path("/")
    left = [*reversed(path.parts)]
    while left:
        step = left.pop()
        following = place.parent if step == ".." else place / step
        if len(links) < _MAX_LINKS and following.is_symlink():
            links.append(place)
            # An absolute target begins with the root, from where the way goes on.
            left += reversed(following.readlink().parts)
        else:
            place = following
            passed.add(place)
    return passed, {*links}
