# SPDX-License-Identifier: LGPL-2.1-or-later
"""One dump or trace of a batch: the commands to run on it, and their outcome.

Each file has a process of its own, so that a damaged one does not affect the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from kcovdbg.child_process import python_command
from kcovdbg.engine.crash_summary import CrashSummary
from kcovdbg.engine.output_files import open_text

WORKER: Final = "kcovdbg.frontends.batch_worker"
RUNS: Final = "_runs"
"""The directory with the outcomes. Readers of data sets ignore names that begin with an underscore."""

CRASHED: Final = "{crashed}"
"""Stands for the crashed task's thread id, in commands with a file."""
COVERED: Final = "{covered}"
"""The same, for a command that needs the task's buffer."""

_MAX_ERROR: Final = 400
"""Limit for the length of an error message."""


@dataclass(frozen=True, slots=True)
class BatchJob:
    """A file and the commands to run on it."""

    path: str
    """Absolute, so that it means the same on every machine that sees the file."""
    lines: tuple[str, ...]
    output: str
    symbols: tuple[tuple[str | None, str], ...]
    """Debug info: build-id and path."""
    timeout: float
    files: tuple[str, ...] = ()
    """The file of each command's text, in the order of the commands; without them, rows go to the data set."""

    @property
    def key(self) -> str:
        """The name of the job's files, which depends on the path alone."""
        return hashlib.sha256(self.path.encode("utf-8", "surrogateescape")).hexdigest()[:20]

    @property
    def run_file(self) -> Path:
        """The file with the outcome."""
        return Path(self.output, RUNS, f"{self.key}.json")

    def identity(self) -> dict[str, object]:
        """Return what an outcome depends on: the state of the file, and the commands."""
        depends: dict[str, object] = {"path": self.path, "size": None, "mtime_ns": None, "lines": list(self.lines)}
        with contextlib.suppress(OSError):
            stat = Path(self.path).stat()
            depends |= {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
        if self.files:
            depends["files"] = list(self.files)
        return depends


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
    build_id: str | None
    lines: tuple[LineOutcome, ...]
    seconds: float
    error: str | None = None
    """Why no command, or not all of them, could be run."""
    crash: CrashSummary | None = None
    """Where the kernel crashed, for a job with files."""

    @property
    def failed(self) -> bool:
        """Whether anything is missing; violations found by check are an answer."""
        return self.error is not None or any(line.error is not None for line in self.lines)

    @property
    def rows(self) -> int:
        """How many rows it has in the data set."""
        return sum(line.rows for line in self.lines)


def find_outcome(job: BatchJob) -> Outcome | None:
    """Return the outcome of an earlier run with the same file and commands, None where there is none."""
    try:
        kept = json.loads(job.run_file.read_text("utf-8"))
        if kept["identity"] != job.identity():
            return None
        return _decode(kept["outcome"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def run_job(job: BatchJob) -> Outcome:
    """Run a job in a process of its own and keep its outcome; errors that the file causes are part of that."""
    identity = job.identity()
    start = time.monotonic()
    try:
        # A process that takes too long is killed, and cannot remove what it has unpacked. Not by TMPDIR: there may be tables
        # of symbols, for all jobs.
        with tempfile.TemporaryDirectory(prefix="kcovdbg-batch-") as folder:
            done = subprocess.run(
                python_command(WORKER, folder),
                cwd="/",
                input=json.dumps(dataclasses.asdict(job)).encode(),
                capture_output=True,
                timeout=job.timeout,
                # C-c goes to the parent, which ends this process.
                start_new_session=True,
            )
        outcome = _read_outcome(job, done, time.monotonic() - start)
    except subprocess.TimeoutExpired as error:
        told = _read_told(error.stdout or b"")
        problem = f"timed out after {job.timeout:g} s"
        outcome = Outcome(job.path, told.build_id, told.lines, time.monotonic() - start, problem, told.crash)
    _keep(job, identity, outcome)
    return outcome


class _Told(NamedTuple):
    """What the process of a job said before it ended."""

    lines: tuple[LineOutcome, ...]
    build_id: str | None
    crash: CrashSummary | None


def _read_outcome(job: BatchJob, done: subprocess.CompletedProcess[bytes], seconds: float) -> Outcome:
    told = _read_told(done.stdout)
    if done.returncode < 0:
        error: str | None = f"ended by signal {-done.returncode}"
    elif done.returncode > 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        error = said[-1][:_MAX_ERROR] if said else f"ended with status {done.returncode}"
    else:
        error = None if len(told.lines) == len(job.lines) else "ended early"
    return Outcome(job.path, told.build_id, told.lines, seconds, error, told.crash)


def _read_told(text: bytes) -> _Told:
    """Parse the output of the process; an incomplete last line is ignored."""
    lines: list[LineOutcome] = []
    build_id: str | None = None
    crash: CrashSummary | None = None
    for line in text.split(b"\n")[:-1]:
        said: dict[str, Any] = json.loads(line)
        if "build_id" in said:
            build_id = said["build_id"]
        elif "crash" in said:
            crash = CrashSummary(**said["crash"])
        else:
            lines.append(LineOutcome(**said))
    return _Told(tuple(lines), build_id, crash)


def _keep(job: BatchJob, identity: dict[str, object], outcome: Outcome) -> None:
    """Write the outcome; the file gets its name when it is complete."""
    job.run_file.parent.mkdir(parents=True, exist_ok=True)
    with open_text(str(job.run_file)) as stream:
        json.dump({"identity": identity, "outcome": dataclasses.asdict(outcome)}, stream)


def _decode(kept: dict[str, Any]) -> Outcome:
    crash = kept.get("crash")
    return Outcome(
        **{
            **kept,
            "lines": tuple(LineOutcome(**line) for line in kept["lines"]),
            "crash": None if crash is None else CrashSummary(**crash),
        }
    )
