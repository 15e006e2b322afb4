# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run collectors in the background, for lines that end with ``&``, and report how each ended."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import signal
import subprocess
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from kcovdbg.collect.requests import DEVICE
from kcovdbg.console.context import Context, Workspace
from kcovdbg.console.renderable import Line, Lines
from kcovdbg.errors import CapabilityError, CollectError, KcovdbgError, WordError
from kcovdbg.inputs.buffer_sources import read_trace_file
from kcovdbg.inputs.user_inputs import keep
from kcovdbg.model.kcov import amount_text

# Seconds that a collector has to end. It waits 3 s for its command, and then writes traces.
_PATIENCE: Final = 20.0
# At most so many lines of a failed collector's log are shown.
_SHOWN_LINES: Final = 3


class BackgroundJob:
    """One collector, started by :meth:`Jobs.start`.

    :param number: number by which the user refers to it.
    :param program: command line that runs kcovdbg.
    :param words: arguments of ``collect``, as the user typed them.
    :param output: path for its traces; None for temporary files.
    :param name: ``@name`` under which the trace is kept in memory; None if it is not kept.
    :param title: the line that the user typed.
    """

    def __init__(
        self,
        number: int,
        program: Sequence[str],
        words: Sequence[str],
        *,
        output: str | None,
        name: str | None,
        title: str,
    ) -> None:
        self.number = number
        self.name = name
        self.title = title
        self.kept: list[str] = []
        """Names under which its traces were kept after its end."""
        self.is_reported = False
        """Whether its end was reported."""
        self._folder = Path(tempfile.mkdtemp(prefix="kcovdbg-job-"))
        self._is_ending = False
        path = output or str(self._folder / "trace.kcov")
        try:
            with (self._folder / "answer").open("wb") as answer, self.log.open("wb") as log:
                # In a session of its own, the collector gets no C-c from the terminal.
                self._process = subprocess.Popen(
                    [*program, "collect", "--json", "-o", path, *words],
                    stdin=subprocess.DEVNULL,
                    stdout=answer,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise CollectError(
                f"collector: could not be started: {error.strerror or error}"
            ) from error

    @property
    def pid(self) -> int:
        """Process ID of the collector, which maps the buffers. The command is another process."""
        return self._process.pid

    @property
    def log(self) -> Path:
        """File with the output and errors of the command and the errors of the collector."""
        return self._folder / "output"

    @property
    def status(self) -> int | None:
        """Exit status of ``collect`` and of its command; None while it runs."""
        status = self._process.poll()
        # A negative status is the signal that ended it.
        if status is not None and status < 0:
            return 128 - status
        return status

    @property
    def buffers(self) -> list[str]:
        """Names of the buffers that are open now: ``fd:PID/FD``."""
        if self.status is not None:
            return []
        found = []
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{self.pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(entry.readlink()) == DEVICE:
                        found.append(int(entry.name))
        return [f"fd:{self.pid}/{fd}" for fd in sorted(found)]

    @property
    def files(self) -> list[Path]:
        """The traces that it wrote; none while it runs, and if it failed."""
        if self.status is None:
            return []
        try:
            rows = json.loads((self._folder / "answer").read_bytes())
            return [Path(row["file"]) for row in rows]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    @property
    def lines(self) -> list[str]:
        """Lines of the log so far."""
        try:
            return self.log.read_text(encoding="utf-8", errors="backslashreplace").splitlines()
        except OSError:
            return []

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the collector to exit; return whether it has."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self.status is not None

    def ask_to_end(self) -> None:
        """Ask the collector, once, to end its command: after a second signal it would kill the
        command.
        """
        if self.status is None and not self._is_ending:
            self._is_ending = True
            self._process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """End the command and keep its coverage.

        A collector that does not exit in time is killed; its coverage is lost.
        """
        if self.status is None:
            self.ask_to_end()
            if not self.wait(_PATIENCE):
                # The kernel kills all tasks that it traces (PTRACE_O_EXITKILL).
                self._process.kill()
                self._process.wait()

    def forget_files(self) -> None:
        """Remove the temporary traces, which are now kept in memory."""
        for path in self._folder.glob("trace*"):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove its temporary files; it must have ended."""
        shutil.rmtree(self._folder, ignore_errors=True)


class Jobs:
    """The collectors of one workspace, as its :class:`~kcovdbg.console.context.BackgroundWork`.

    :param workspace: keeps the collected traces.
    :param program: command line that runs kcovdbg on the workspace's target.
    """

    def __init__(self, workspace: Workspace, program: Sequence[str]) -> None:
        self._workspace = workspace
        self._program = tuple(program)
        self._jobs: dict[int, BackgroundJob] = {}

    def __iter__(self) -> Iterator[BackgroundJob]:
        return iter(list(self._jobs.values()))

    @property
    def running(self) -> list[BackgroundJob]:
        """The collectors that run."""
        return [job for job in self if job.status is None]

    def start(
        self, words: Sequence[str], *, output: str | None, name: str | None, title: str
    ) -> BackgroundJob:
        """Start a collector.

        :raises CollectError: when it cannot be started.
        """
        number = max(self._jobs, default=0) + 1
        if name is None and output is None:
            name = f"@collect{number}"
        self._jobs[number] = BackgroundJob(
            number, self._program, words, output=output, name=name, title=title
        )
        return self._jobs[number]

    def find(self, number: int) -> BackgroundJob:
        """Return the job with this number.

        :raises CollectError: when there is none.
        """
        if number not in self._jobs:
            raise CollectError(f"job {number}: no such job", hint="jobs lists them")
        return self._jobs[number]

    def announce(self) -> list[Line]:
        """Keep the traces of collectors that have ended since the last call, and return lines about
        them.
        """
        lines: list[Line] = []
        for job in self:
            if job.status is not None and not job.is_reported:
                lines += [(("", text),) for text in _report_end(self._workspace, job)]
        return lines

    def end(self) -> list[Line]:
        """End all collectors, because the program ends; return lines about them."""
        lines: list[Line] = []
        # All end at the same time.
        for job in self.running:
            lines.append((("", f"[{job.number}] ending: {job.title}"),))
            job.ask_to_end()
        for job in self:
            job.end()
        lines += self.announce()
        for job in self:
            job.close()
        self._jobs.clear()
        return lines


def find_jobs(workspace: Workspace) -> Jobs:
    """Return the collectors of a workspace.

    :raises CapabilityError: inside another debugger.
    """
    for work in workspace.background:
        if isinstance(work, Jobs):
            return work
    if workspace.frontend.find_program is None:
        raise CapabilityError(
            "cannot run commands in the background here",
            hint="use kcovdbg's own shell, or collect without &",
        )
    jobs = Jobs(workspace, workspace.frontend.find_program())
    workspace.background.append(jobs)
    return jobs


def start_collect(context: Context, args: Namespace, words: Sequence[str]) -> Lines:
    """Start ``collect`` in the background.

    :param words: the arguments of ``collect`` as typed.
    :raises CapabilityError: inside another debugger.
    :raises WordError: for options whose answer would come at the end.
    """
    jobs = find_jobs(context.workspace)
    if not args.command:
        raise WordError(
            "collect: missing command",
            None,
            hint="collect -- COMMAND ARG… &, for instance collect -- sleep 60 &",
        )
    for name in ("syscall", "repeat", "json", "jsonl", "csv"):
        if getattr(args, name):
            raise WordError(
                f"collect: --{name} cannot be combined with &", f"--{name}", hint="run it without &"
            )
    if args.format != "kcov" and args.output is None:
        raise WordError(
            f"collect: --format {args.format} needs an output file", "--format", hint="add -o FILE"
        )
    job = jobs.start(words, output=args.output, name=args.keep, title=shlex.join(args.command))
    return Lines(((("", f"[{job.number}] collector {job.pid}: {job.title}"),),))


def _report_end(workspace: Workspace, job: BackgroundJob) -> Iterator[str]:
    job.is_reported = True
    status = job.status or 0
    head = f"[{job.number}] "
    files = job.files
    if not files:
        errors = [line for line in job.lines if line.startswith(("kcovdbg:", "hint:", "  "))]
        ended = f"failed with status {status}"
        if status > 128:
            ended = f"ended by signal {status - 128}"
        yield f"{head}{ended}, nothing was collected: {job.title}"
        yield from (f"  {line}" for line in errors[:_SHOWN_LINES] or job.lines[-_SHOWN_LINES:])
        return
    parts = [f"{head}ended with status {status}: {job.title}"]
    if job.name is None:
        parts.append(f"written: {', '.join(map(str, files))}")
    else:
        parts += _keep(workspace, job, job.name)
    yield "; ".join(parts)
    number = len(job.lines)
    if number:
        yield f"  {amount_text(number, 'line')} of output: jobs --output {job.number}"


def _keep(workspace: Workspace, job: BackgroundJob, first_name: str) -> list[str]:
    """Keep a job's traces in memory; return a message for each.

    :param first_name: the first trace's name. The others' have a suffix: the part of the file's
        name that differs, or a number.
    """
    messages = []
    files = job.files
    stem = files[0].stem
    for index, path in enumerate(files):
        name = first_name
        if index:
            label = path.stem.removeprefix(stem).strip(".")
            name = f"{first_name}-{label or index}"
        try:
            buffer = read_trace_file(
                str(path),
                workspace.inputs.kernel.trace_kernel,
                confinement=workspace.inputs.confinement,
            )
        except KcovdbgError as error:
            messages.append(str(error))
            continue
        workspace.inputs.kept[name] = keep(buffer, name, f"collect -- {job.title}")
        job.kept.append(name)
        message = f"kept as {name}: {buffer.count} records"
        if buffer.full:
            message += ", FULL"
        messages.append(message)
    job.forget_files()
    return messages
