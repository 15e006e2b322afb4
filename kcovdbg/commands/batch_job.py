# SPDX-License-Identifier: LGPL-2.1-or-later
"""One dump or trace of a batch: what to ask it, and what came of that.

Each is looked at in a process of its own: whatever a damaged file does to that, the others don't notice.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kcovdbg.commands.destination import open_file

WORKER: Final = "kcovdbg.frontends.batch_worker"
RUNS: Final = "_runs"
"""The folder that says what was done already. Readers of data sets leave out what begins with an underscore."""

_TOLD: Final = 400


@dataclass(frozen=True, slots=True)
class Job:
    """A file, and the commands to run on it."""

    path: str
    """Absolute, so that it means the same on every machine that sees the file."""
    lines: tuple[str, ...]
    output: str
    symbols: tuple[tuple[str | None, str], ...]
    """Debug info: build-id and path."""
    timeout: float

    @property
    def key(self) -> str:
        """Names the job's files: the same each time that the file is asked."""
        return hashlib.sha256(self.path.encode("utf-8", "surrogateescape")).hexdigest()[:20]

    @property
    def run_file(self) -> Path:
        """Where the outcome is kept."""
        return Path(self.output, RUNS, f"{self.key}.json")

    def identity(self) -> dict[str, object]:
        """Return what must be the same for an earlier outcome to hold: the file as it is, and the commands."""
        try:
            stat = Path(self.path).stat()
        except OSError:
            return {"path": self.path, "size": None, "mtime_ns": None, "lines": list(self.lines)}
        return {"path": self.path, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "lines": list(self.lines)}


@dataclass(frozen=True, slots=True)
class LineOutcome:
    """What came of one command."""

    line: str
    status: int
    """Its exit status."""
    rows: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one file."""

    path: str
    build_id: str | None
    lines: tuple[LineOutcome, ...]
    seconds: float
    error: str | None = None
    """Why no command could be run at all, or the last ones couldn't."""

    @property
    def failed(self) -> bool:
        """Whether anything is missing. Violations that check finds are an answer."""
        return self.error is not None or any(line.error is not None for line in self.lines)

    @property
    def rows(self) -> int:
        """How many there are in the data set."""
        return sum(line.rows for line in self.lines)


def find_outcome(job: Job) -> Outcome | None:
    """Return what an earlier run made of this very file with these commands; None where it is to be done."""
    try:
        kept = json.loads(job.run_file.read_text("utf-8"))
        if kept["identity"] != job.identity():
            return None
        return _decode(kept["outcome"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def run_job(job: Job) -> Outcome:
    """Ask one file, in a process of its own, and keep what came of it. Raises nothing that the file could cause."""
    identity = job.identity()
    start = time.monotonic()
    # The same kcovdbg as this one, whatever lies where it was started.
    package = str(Path(__file__).resolve().parents[2])
    search = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    try:
        done = subprocess.run(
            [sys.executable, "-m", WORKER],
            cwd="/",
            env={**os.environ, "PYTHONPATH": search},
            input=json.dumps(dataclasses.asdict(job)).encode(),
            capture_output=True,
            timeout=job.timeout,
            # C-c at the terminal is told to the one that started this, which then ends it.
            start_new_session=True,
        )
        outcome = _read_outcome(job, done, time.monotonic() - start)
    except subprocess.TimeoutExpired as error:
        lines, build_id = _read_lines(error.stdout or b"")
        outcome = Outcome(job.path, build_id, lines, time.monotonic() - start, f"no answer within {job.timeout:g} s")
    _keep(job, identity, outcome)
    return outcome


def _read_outcome(job: Job, done: subprocess.CompletedProcess[bytes], seconds: float) -> Outcome:
    lines, build_id = _read_lines(done.stdout)
    if done.returncode < 0:
        error: str | None = f"ended by signal {-done.returncode}"
    elif done.returncode > 0:
        told = done.stderr.decode("utf-8", "replace").strip().splitlines()
        error = told[-1][:_TOLD] if told else f"ended with status {done.returncode}"
    else:
        error = None if len(lines) == len(job.lines) else "ended too early"
    return Outcome(job.path, build_id, lines, seconds, error)


def _read_lines(text: bytes) -> tuple[tuple[LineOutcome, ...], str | None]:
    """Read what the process said until it ended; an unfinished line is none."""
    lines: list[LineOutcome] = []
    build_id: str | None = None
    for told in text.split(b"\n")[:-1]:
        said: dict[str, Any] = json.loads(told)
        if "build_id" in said:
            build_id = said["build_id"]
        else:
            lines.append(LineOutcome(**said))
    return tuple(lines), build_id


def _keep(job: Job, identity: dict[str, object], outcome: Outcome) -> None:
    """Write the outcome; it gets its name when it is whole."""
    job.run_file.parent.mkdir(parents=True, exist_ok=True)
    with open_file(str(job.run_file)) as stream:
        json.dump({"identity": identity, "outcome": dataclasses.asdict(outcome)}, stream)


def _decode(kept: dict[str, Any]) -> Outcome:
    return Outcome(**{**kept, "lines": tuple(LineOutcome(**line) for line in kept["lines"])})
