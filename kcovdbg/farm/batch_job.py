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
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from kcovdbg import __version__
from kcovdbg.child_process import python_command
from kcovdbg.console.output_files import open_text
from kcovdbg.crash.crash_summary import CrashSummary
from kcovdbg.errors import LimitError
from kcovdbg.input_file import parse_json, read_input

WORKER: Final = "kcovdbg.farm.batch_worker"
_MAX_ERROR: Final = 400
"""Limit for the length of an error message."""

DebugInfo: TypeAlias = tuple[tuple[str | None, str], ...]
"""Files with debug info: the build ID of a kernel, None of a module; and the path."""


@dataclass(frozen=True, slots=True)
class BatchJob:
    """A file and the commands to run on it."""

    path: str
    """Absolute, so that it means the same on every machine that sees the file."""
    lines: tuple[str, ...]
    output: str
    """The user's directory, never in or above the file's."""
    symbols: DebugInfo
    timeout: float
    files: tuple[str, ...] = ()
    """The file of each command's text, in the order of the commands; without them, rows go to the data set."""
    worker: str = WORKER
    """The module that runs it."""
    table: str = "kcovdbg.commands"
    """The module with the table of commands."""

    @property
    def key(self) -> str:
        """The name of the job's files, which depends on the path alone."""
        return hashlib.sha256(self.path.encode("utf-8", "surrogateescape")).hexdigest()[:20]

    @property
    def run_file(self) -> Path:
        """The file with the outcome. Readers of data sets ignore names that begin with an underscore."""
        return Path(self.output, "_runs", f"{self.key}.json")

    def identity(self) -> dict[str, object]:
        """Return what an outcome depends on: the state of the file, the commands, the debug info and this program."""
        state = None
        with contextlib.suppress(OSError):
            found = Path(self.path).stat()
            state = [found.st_size, found.st_mtime_ns]
        symbols = sorted(build_id or Path(path).name for build_id, path in self.symbols)
        kept = {"path": self.path, "lines": [*self.lines], "files": [*self.files], "symbols": symbols}
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
    """Defects of the dump, which was answered as far as it goes."""
    lines: tuple[LineOutcome, ...] = ()
    crash: CrashSummary | None = None
    """The kernel's crash, for a job with files."""

    @property
    def failed(self) -> bool:
        """Whether a command has no answer; violations found by check are an answer, and so is what a damaged dump still has."""
        return self.error is not None or any(line.error is not None for line in self.lines)

    @property
    def rows(self) -> int:
        """How many rows it has in the data set."""
        return sum(line.rows for line in self.lines)

    @property
    def problem(self) -> str | None:
        """Defects of the file and errors of commands, without its path; None where there are none."""
        lines = (f"{line.line}: {line.error}" for line in self.lines if line.error is not None)
        found = (*self.damage, *([self.error] if self.error is not None else lines))
        return "; ".join(text.removeprefix(f"{self.path} ") for text in found) or None


def find_outcome(job: BatchJob) -> Outcome | None:
    """Return the outcome of an earlier run with the same file and commands; None where there is none, or an answer is gone."""
    try:
        kept = parse_json(read_input(job.run_file, owned=True))
        outcome = _decode(kept["outcome"])
        if kept["identity"] != job.identity() or outcome.path != job.path:
            return None
    except (OSError, LimitError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return outcome if outcome.failed or all(Path(name).is_file() for name in job.files) else None


def run_job(job: BatchJob) -> Outcome:
    """Run a job in a process of its own and keep its outcome; errors that the file causes are part of that."""
    identity = job.identity()
    start = time.monotonic()
    error = None
    try:
        done = subprocess.run(
            python_command(job.worker),
            cwd="/",
            input=json.dumps(dataclasses.asdict(job)).encode(),
            capture_output=True,
            timeout=job.timeout,
            # C-c goes to the parent, which ends this process.
            start_new_session=True,
        )
        output = done.stdout
        if done.returncode < 0:
            error = f"ended by signal {-done.returncode}"
        elif done.returncode > 0:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()
            error = said[-1][:_MAX_ERROR] if said else f"ended with status {done.returncode}"
    except subprocess.TimeoutExpired as expired:
        output, error = expired.stdout or b"", f"timed out after {job.timeout:g} s"
    outcome = Outcome(job.path)
    # A dump can make its reader do anything at all.
    with contextlib.suppress(LookupError, ValueError, TypeError, AttributeError):
        # The last complete line has all that was done.
        outcome = _decode(parse_json(output.split(b"\n")[-2]))
    if error is None and len(outcome.lines) != len(job.lines):
        error = "ended early"
    outcome = dataclasses.replace(outcome, path=job.path, seconds=time.monotonic() - start, error=error)
    job.run_file.parent.mkdir(parents=True, exist_ok=True)
    # The file gets its name when it is complete.
    with open_text(str(job.run_file)) as stream:
        json.dump({"identity": identity, "outcome": dataclasses.asdict(outcome)}, stream)
    return outcome


def _decode(kept: Mapping[str, Any]) -> Outcome:
    lines = tuple(LineOutcome(**line) for line in kept["lines"])
    if not all(isinstance(line.line, str) and isinstance(line.status, int) and isinstance(line.rows, int) for line in lines):
        raise TypeError("values of other types")
    crash = None if kept["crash"] is None else CrashSummary(**kept["crash"])
    return Outcome(**{**kept, "damage": tuple(map(str, kept["damage"])), "lines": lines, "crash": crash})
