# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run the jobs of ``batch`` and ``syzkaller``, and keep their outcomes: a job is a file and the
commands on it.

Each file has a process of its own, so that a damaged one does not affect the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import subprocess
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from kcovdbg import __version__
from kcovdbg.child_process import child_environment, python_command
from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.context import Context
from kcovdbg.console.output_files import open_text
from kcovdbg.console.terminal import write_remarks
from kcovdbg.crash.crash_summary import CrashSummary
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import ElfError
from kcovdbg.elf.shared_debug_info import list_contents
from kcovdbg.errors import KcovdbgError, LimitError, UsageError
from kcovdbg.file_digest import find_digest
from kcovdbg.input_file import parse_json, read_input
from kcovdbg.target import dump_file as dumpfile
from kcovdbg.target.debug_files import list_debug_files
from kcovdbg.user_folder import expand_user

WORKER: Final = "kcovdbg.farm.batch_worker"
CRASHED: Final = "{crashed}"
"""Stands for the crashed task's thread id, in commands whose text goes to files."""
COVERED: Final = "{covered}"
"""Stands for the same id, in a command that needs the task's buffer."""
SHOW_REPORT: Final = "sym -"
"""The command on a kernel's report, which is its standard input."""
_MAX_ERROR: Final = 400
"""Limit for the length of an error message."""

DebugInfo: TypeAlias = tuple[tuple[str | None, str], ...]
"""Build ID and path of each file with debug info; the build ID of a module is None."""


@dataclass(frozen=True, slots=True)
class BatchJob:
    """A file and the commands to run on it."""

    path: str
    """Absolute: the job's process runs in another directory."""
    lines: tuple[str, ...]
    output: str
    """The user's directory, never in or above the file's."""
    symbols: DebugInfo
    timeout: float
    files: tuple[str, ...] = ()
    """The file of each command's text, in the order of the commands; without them, rows go to the
    data set.
    """
    digests: tuple[str, ...] = ()
    """Digests of the files with debug info: a build ID is only what a file claims."""

    @property
    def key(self) -> str:
        """The name of the job's files, made from the path."""
        return hashlib.sha256(self.path.encode("utf-8", "surrogateescape")).hexdigest()[:20]

    @property
    def run_file(self) -> Path:
        """The file with the outcome.

        Readers of data sets ignore names that begin with an underscore.
        """
        return Path(self.output, "_runs", f"{self.key}.json")

    def identity(self) -> dict[str, object]:
        """Return all that decides an outcome: the state of the file, the commands, the debug info
        and this program's version.
        """
        state = None
        with contextlib.suppress(OSError):
            found = Path(self.path).stat()
            # The owner of a file can set the time of its last write (mtime), but not of its last
            # change (ctime).
            state = [found.st_size, found.st_mtime_ns, found.st_ctime_ns]
        kept = {
            "path": self.path,
            "lines": [*self.lines],
            "files": [*self.files],
            "symbols": sorted(self.digests),
        }
        return {"kcovdbg": __version__, "state": state, **kept}


@dataclass(frozen=True, slots=True)
class LineOutcome:
    """The outcome of one command."""

    line: str
    status: int
    """Its exit status."""
    rows: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one file."""

    path: str
    seconds: float = 0.0
    error: str | None = None
    """Why no command, or not all of them, could be run."""
    build_id: str | None = None
    damage: tuple[str, ...] = ()
    """Defects of the dump; the answers are about the part that could be read."""
    lines: tuple[LineOutcome, ...] = ()
    crash: CrashSummary | None = None
    """The kernel's crash, for a job with files."""

    @property
    def failed(self) -> bool:
        """Whether a command has no answer. Violations found by check are an answer, and so is a
        part of a damaged dump.
        """
        return self.error is not None or any(line.error is not None for line in self.lines)

    @property
    def rows(self) -> int:
        """Number of its rows in the data set."""
        return sum(line.rows for line in self.lines)

    @property
    def problem(self) -> str | None:
        """Defects of the file and errors of commands, without the file's path; None without any."""
        found = [*self.damage]
        if self.error is not None:
            found.append(self.error)
        else:
            found += [f"{line.line}: {line.error}" for line in self.lines if line.error is not None]
        return "; ".join(text.removeprefix(f"{self.path} ") for text in found) or None


def find_outcome(job: BatchJob) -> Outcome | None:
    """Return the outcome of an earlier run with the same file and commands; None if there is none,
    or an answer is gone.
    """
    try:
        kept = parse_json(read_input(job.run_file, owned=True))
        outcome = _decode(kept["outcome"])
        if kept["identity"] != job.identity() or outcome.path != job.path:
            return None
    except (OSError, LimitError, ValueError, LookupError, TypeError, AttributeError):
        return None
    if not outcome.failed and not all(Path(name).is_file() for name in job.files):
        return None
    return outcome


def run_job(job: BatchJob) -> Outcome:
    """Run a job in a process of its own and keep its outcome, errors included."""
    identity = job.identity()
    start = time.monotonic()
    error = None
    try:
        done = subprocess.run(
            python_command(WORKER),
            cwd="/",
            input=json.dumps(dataclasses.asdict(job)).encode(),
            capture_output=True,
            timeout=job.timeout,
            # C-c goes to the parent, which ends this process.
            start_new_session=True,
            env=child_environment(),
        )
        output = done.stdout
        if done.returncode < 0:
            error = f"ended by signal {-done.returncode}"
        elif done.returncode > 0:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()
            error = f"ended with status {done.returncode}"
            if said:
                error = said[-1][:_MAX_ERROR]
    except subprocess.TimeoutExpired as expired:
        output, error = expired.stdout or b"", f"timed out after {job.timeout:g} s"
    outcome = Outcome(job.path)
    # A dump can make its reader do anything at all.
    with contextlib.suppress(LookupError, ValueError, TypeError, AttributeError):
        # The last complete line has all that was done.
        outcome = _decode(parse_json(output.split(b"\n")[-2]))
    if error is None and len(outcome.lines) != len(job.lines):
        error = "ended early"
    outcome = dataclasses.replace(
        outcome, path=job.path, seconds=time.monotonic() - start, error=error
    )
    job.run_file.parent.mkdir(parents=True, exist_ok=True)
    # The file gets its name when it is complete.
    with open_text(str(job.run_file)) as stream:
        json.dump({"identity": identity, "outcome": dataclasses.asdict(outcome)}, stream)
    return outcome


def _decode(kept: Mapping[str, Any]) -> Outcome:
    lines = tuple(LineOutcome(**line) for line in kept["lines"])
    for line in lines:
        if not isinstance(line.line, str):
            raise TypeError("a command that is not text")
        if not isinstance(line.status, int) or not isinstance(line.rows, int):
            raise TypeError("a status or a count that is not a number")
    crash = None
    if kept["crash"] is not None:
        crash = CrashSummary(**kept["crash"])
    damage = tuple(map(str, kept["damage"]))
    return Outcome(**{**kept, "damage": damage, "lines": lines, "crash": crash})


RUN_OPTIONS: Final = (
    Argument(
        "-s, --symbols PATH…",
        Value.FILE,
        "a vmlinux, or a directory of them; default: the ones kcovdbg was started with",
    ),
    Argument(
        "-j, --jobs N", Value.NUMBER, "work on N files at a time; default: the number of CPUs"
    ),
    Argument("--timeout SECONDS", Value.SECONDS, "time limit per file; default 600", default=600.0),
    Argument("--retry", Value.FLAG, "rerun files that failed earlier"),
    Argument("--again", Value.FLAG, "rerun all files"),
)
"""Options of commands that run jobs."""


def run_batch(
    context: Context, jobs: Sequence[BatchJob], args: Namespace
) -> tuple[Sequence[Outcome], int]:
    """Run the jobs that have no outcome yet; return the outcomes in the order of the jobs, and how
    many were there before.

    :param args: the values of :data:`RUN_OPTIONS`.
    """
    outcomes: dict[BatchJob, Outcome] = {}
    if not args.again:
        for job in jobs:
            found = find_outcome(job)
            if found is not None and not (args.retry and found.failed):
                outcomes[job] = found
    earlier = len(outcomes)
    left = [job for job in jobs if job not in outcomes]
    if left:
        outcomes |= _run_jobs(context, left, args)
    return [outcomes[job] for job in jobs], earlier


def _run_jobs(
    context: Context, jobs: Sequence[BatchJob], args: Namespace
) -> dict[BatchJob, Outcome]:
    """Run the jobs, as many at a time as the user wants, and show how many are done."""
    # Imported here: it imports logging, which would slow down every other command.
    from concurrent.futures import ThreadPoolExecutor, as_completed

    stream = context.terminal.stderr

    def show(progress: str) -> None:
        if stream.isatty():
            stream.write(f"\r{progress}\x1b[K")
            stream.flush()

    outcomes = {}
    # Each thread waits for the process of a job.
    with ThreadPoolExecutor(args.jobs or len(os.sched_getaffinity(0))) as executor:
        futures = {executor.submit(run_job, job): job for job in jobs}
        try:
            for number, future in enumerate(as_completed(futures), 1):
                outcomes[futures[future]] = future.result()
                if number < len(jobs):
                    show(f"{number} of {len(jobs)} ")
                else:
                    show("")
        except KeyboardInterrupt:
            show("")
            again = "the same command"
            if args.again:
                again += " without --again"
            remark = f"stopped: files that are done are kept; {again} does the others"
            write_remarks(context.terminal, (remark,))
            raise
        finally:
            # After C-c running jobs end by themselves.
            executor.shutdown(wait=False, cancel_futures=True)
    return outcomes


def find_debug_info(context: Context, args: Namespace, more: Sequence[str] = ()) -> DebugInfo:
    """Return the debug info that the command names, or else the debug info that kcovdbg was started
    with.

    The paths may lead to decompressed copies, which exist as long as this process.

    :param args: the values of :data:`RUN_OPTIONS`.
    :param more: further files.
    :raises TargetError: when a file cannot be read.
    """

    def may_have_images(name: str) -> bool:
        path = Path(name)
        if path.is_file():
            return dumpfile.identify(name) is dumpfile.FileKind.ELF
        return path.is_dir()

    named = args.symbols or filter(may_have_images, context.workspace.inputs.named_files)
    found: list[tuple[str | None, str]] = []
    for name in (*named, *more):
        for file in list_debug_files(name):
            plain = dumpfile.unpack(file).path
            build_id = None
            # A damaged file is reported when a dump is opened with it.
            with contextlib.suppress(ElfError), ElfFile(plain) as elf:
                # A module may belong to any kernel: it is compared with the loaded modules when a
                # dump is opened.
                if not elf.is_relocatable:
                    build_id = elf.build_id
            found.append((build_id, str(plain.absolute())))
    return tuple(found)


def find_digests(symbols: DebugInfo) -> tuple[str, ...]:
    """Return the digests of files with debug info, and of files that share it with them (dwz).

    :raises KcovdbgError: when a file cannot be read.
    """
    try:
        return tuple(find_digest(file) for _, path in symbols for file in list_contents(path))
    except OSError as error:
        raise KcovdbgError(
            f"could not read '{error.filename}': {error.strerror or error}"
        ) from None


def make_output(command: str, name: str | os.PathLike[str], inputs: Sequence[Path]) -> Path:
    """Make the user's directory for results, and return its path.

    :param inputs: files and directories of somebody else, who may have put links and results there.
    :raises KcovdbgError: when it cannot be made, is in a directory of inputs or reached through
        one, or contains links or an input.
    """
    path = Path(os.path.abspath(expand_user(name)))  # noqa: PTH100 - links are looked at one by one
    folder = Path(os.path.realpath(path))
    passed, links = _pass(path)
    for given in inputs:
        real = Path(os.path.realpath(given))
        home = real
        if not real.is_dir():
            home = Path(os.path.realpath(given.parent))
        relation = None
        if folder in (*real.parents, *home.parents) or folder == home != real:
            relation = "holds"
        elif real in passed or home in links:
            relation = "is reached through"
        if relation is not None:
            raise UsageError(
                f"{command}: '{name}' {relation} the input '{given}'",
                hint="-o takes a directory for the results alone: -o DIR",
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        link = next((path for path in folder.rglob("*") if path.is_symlink()), None)
    except OSError as error:
        problem = error.strerror
        if isinstance(error, FileExistsError):
            problem = os.strerror(errno.ENOTDIR)
        raise KcovdbgError(
            f"could not write '{name}': {problem}", hint="-o takes a directory: -o DIR"
        ) from None
    if link is not None:
        raise KcovdbgError(
            f"cannot write to '{name}': '{link}' is a link", hint="choose another directory: -o DIR"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise KcovdbgError(
            f"could not write '{name}': {os.strerror(errno.EACCES)}",
            hint="choose another directory: -o DIR",
        )
    return folder


def _pass(path: Path) -> tuple[set[Path], set[Path]]:
    """Return the directories on the way to a path, with the path itself, and the directories that
    have a link on the way.
    """
    passed: set[Path] = set()
    links: set[Path] = set()
    # As many links as the kernel follows.
    for _ in range(40):
        way = (*reversed(path.parents), path)
        passed |= {*way}
        link = next((step for step in way if step.is_symlink()), None)
        if link is None:
            break
        links.add(link.parent)
        followed = link.parent / link.readlink() / path.relative_to(link)
        # Follow one link at a time, because each has to be checked: Path.resolve() follows all.
        path = Path(os.path.abspath(followed))  # noqa: PTH100
    return passed, links
