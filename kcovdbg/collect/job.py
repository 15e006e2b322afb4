# SPDX-License-Identifier: LGPL-2.1-or-later
"""Collectors in the background, each a process of its own that runs ``kcovdbg collect -o FILE``."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from kcovdbg.collect.native import DEVICE
from kcovdbg.errors import CollectError

# The command gets 3 s from the collector to end by itself, then its traces are written.
_PATIENCE: Final = 20.0
_STEP: Final = 0.05


class Job:
    """One collector, started by :meth:`Jobs.start`.

    :param number: what the user calls it by.
    :param words: of ``collect``, as the user typed them.
    :param output: where its traces go; None: into ``folder``, to be kept in memory.
    :param name: ``@name`` that the trace is to be kept as; None: it isn't.
    """

    def __init__(
        self, number: int, program: Sequence[str], words: Sequence[str], *, output: str | None, name: str | None, title: str
    ) -> None:
        self.number = number
        self.name = name
        self.title = title
        self.kept: list[str] = []
        """Names that its traces were kept as, once it has ended."""
        self.is_told = False
        """Whether its end was announced."""
        self.started = time.monotonic()
        self.seconds: float | None = None
        """From start to end; None while it runs."""
        self._folder = Path(tempfile.mkdtemp(prefix="kcovdbg-job-"))
        self._is_own = output is None
        self._is_ending = False
        to = str(self._folder / "trace.kcov") if output is None else output
        root = str(Path(__file__).resolve().parents[2])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}
        try:
            with (self._folder / "answer").open("wb") as answer, self.log.open("wb") as log:
                # A session of its own: C-c at the terminal is for who sits there.
                self._process = subprocess.Popen(
                    [*program, "collect", "--json", "-o", to, *words],
                    stdin=subprocess.DEVNULL,
                    stdout=answer,
                    stderr=log,
                    start_new_session=True,
                    env=environment,
                )
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise CollectError(f"no collector can be started: {error.strerror or error}") from error

    @property
    def pid(self) -> int:
        """Process id of the collector, which has the buffers mapped; the command is another process."""
        return self._process.pid

    @property
    def log(self) -> Path:
        """What the command wrote to standard output and error, and the collector to standard error."""
        return self._folder / "output"

    @property
    def status(self) -> int | None:
        """The command's exit status, as ``collect`` passes it on; None while it runs."""
        status = self._process.poll()
        if status is not None and self.seconds is None:
            self.seconds = time.monotonic() - self.started
        return None if status is None else 128 - status if status < 0 else status

    @property
    def buffers(self) -> list[str]:
        """Names of the buffers that it has open now: ``fd:PID/FD``."""
        if self.status is not None:
            return []
        folder = Path(f"/proc/{self.pid}/fd")
        found = []
        with contextlib.suppress(OSError):
            for entry in folder.iterdir():
                with contextlib.suppress(OSError):
                    if str(entry.readlink()) == DEVICE:
                        found.append(int(entry.name))
        return [f"fd:{self.pid}/{fd}" for fd in sorted(found)]

    @property
    def files(self) -> list[Path]:
        """The traces that it has written; none while it runs, and none when it failed."""
        if self.status is None:
            return []
        try:
            rows = json.loads((self._folder / "answer").read_bytes())
            return [Path(row["file"]) for row in rows]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    @property
    def lines(self) -> list[str]:
        """What its command and it itself have said so far."""
        try:
            return self.log.read_text(encoding="utf-8", errors="backslashreplace").splitlines()
        except OSError:
            return []

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for its end; return whether it has ended."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while self.status is None:
            if deadline is not None and time.monotonic() > deadline:
                return False
            time.sleep(_STEP)
        return True

    def tell(self) -> None:
        """Tell it to end, and don't wait; once, as a collector that is told twice kills its command."""
        if self.status is None and not self._is_ending:
            self._is_ending = True
            self._process.send_signal(signal.SIGTERM)

    def end(self, patience: float = _PATIENCE) -> None:
        """End the command; what it has collected is kept. One that doesn't end in time is killed, and what it has is lost."""
        if self.status is None:
            self.tell()
            if not self.wait(patience):
                # All that it traces dies with it, by the kernel's hand.
                self._process.kill()
                self._process.wait()

    def forget_files(self) -> None:
        """Remove traces that nobody asked for by a name: they are kept in memory now."""
        if self._is_own:
            for path in self._folder.glob("trace*"):
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove what it left in the folder for temporary files; it must have ended."""
        shutil.rmtree(self._folder, ignore_errors=True)


class Jobs:
    """The collectors of one session.

    :param program: words that run kcovdbg on the kernel that the session looks at.
    """

    def __init__(self, program: Sequence[str]) -> None:
        self._program = tuple(program)
        self._jobs: dict[int, Job] = {}

    def __iter__(self) -> Iterator[Job]:
        return iter(list(self._jobs.values()))

    @property
    def running(self) -> list[Job]:
        """Those that run."""
        return [job for job in self if job.status is None]

    def start(self, words: Sequence[str], *, output: str | None, name: str | None, title: str) -> Job:
        """Start a collector.

        :raises CollectError: when no process can be started.
        """
        number = max(self._jobs, default=0) + 1
        if name is None and output is None:
            name = f"@collect{number}"
        job = self._jobs[number] = Job(number, self._program, words, output=output, name=name, title=title)
        return job

    def find(self, number: int) -> Job:
        """Return the job with this number.

        :raises CollectError: when there is none.
        """
        try:
            return self._jobs[number]
        except KeyError:
            raise CollectError(f"there is no job {number}", hint="jobs lists them") from None

    def close(self) -> None:
        """End all that run, all at once, and remove what they left."""
        for job in self.running:
            job.tell()
        for job in self:
            job.end()

    def remove(self) -> None:
        """Forget all of them; they must have ended."""
        for job in self:
            job.close()
        self._jobs.clear()
