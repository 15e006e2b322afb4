# SPDX-License-Identifier: LGPL-2.1-or-later
"""Read a work directory in another process, so that no work directory can stop this one."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from kcovdbg.child_process import child_environment, python_command
from kcovdbg.crash.crash_summary import CrashSummary
from kcovdbg.errors import KcovdbgError, UsageError
from kcovdbg.farm.syzkaller_workdir import Crash, Dump, Manager

_WORKER: Final = "kcovdbg.farm.workdir_worker"
_MAX_ERROR: Final = 400
"""Limit for the length of an error message."""


class CrashTexts(NamedTuple):
    """Facts from the report and the log of a crash."""

    summary: CrashSummary
    """What the report says."""
    is_other: bool
    """Whether the log is of another crash."""
    program: str | None
    """The program that the task ran last."""
    is_last: bool
    """Whether the crashed task's program is unknown, so that this is the program started last."""


class WorkdirReader:
    """A process that reads a work directory; each call has a time limit of its own.

    :param timeout: in seconds.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None

    def find(self, name: str, named: Sequence[str]) -> tuple[Manager, list[Crash]]:
        """Return a manager's files and its crashes.

        :param name: the working directory or the configuration, as for find_manager().
        :param named: files and directories of images that the user named.
        :raises KcovdbgError: when it cannot be read, or not in time.
        """
        found = self._call("find", name, list(named))
        workdir, images, remarks, _ = found["manager"]
        manager = Manager(Path(workdir), tuple(map(Path, images)), tuple(remarks))
        return manager, list(map(_decode_crash, found["crashes"]))

    def read_dump_log(self, log: Path, pid: int, comm: str) -> CrashTexts:
        """Return the texts of a log about a dump's crashed task.

        :raises KcovdbgError: when the log cannot be read, or not in time.
        """
        return self._read_texts(None, log, None, pid, comm)

    def read_crash(self, crash: Crash, located: Path | None) -> CrashTexts:
        """Return the texts of a crash's report and log.

        :param located: the report with source lines, which kcovdbg wrote.
        :raises KcovdbgError: when a file cannot be read, or not in time.
        """
        return self._read_texts(crash.report, crash.log, located, None, None)

    def _read_texts(self, *arguments: object) -> CrashTexts:
        found = self._call("read_texts", *arguments)
        summary = found["summary"]
        errors = tuple(summary["errors"])
        return CrashTexts(**{**found, "summary": CrashSummary(**{**summary, "errors": errors})})

    def _call(self, name: str, *arguments: object) -> dict[str, Any]:
        process = self._start()
        assert process.stdin is not None
        try:
            request = json.dumps([name, *arguments], default=os.fspath)
            process.stdin.write(request.encode() + b"\n")
            process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._receive(process))
        except (TimeoutError, EOFError, BrokenPipeError) as error:
            self.close()
            hint = None
            if isinstance(error, TimeoutError):
                hint = "--timeout SECONDS gives it more time"
            raise KcovdbgError(f"could not read the work directory: {error}", hint=hint) from None
        except BaseException:
            # Otherwise the next call would receive the answer to this one.
            self.close()
            raise
        if "error" in answer:
            kind = KcovdbgError
            if answer["is_usage"]:
                kind = UsageError
            said = answer["error"][:_MAX_ERROR]
            raise kind(said, hint=answer["hint"], wrong_file=answer["wrong_file"])
        result: dict[str, Any] = answer["result"]
        return result

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                python_command(_WORKER),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                # C-c goes to this process, which ends the other one.
                start_new_session=True,
                env=child_environment(),
            )
        return self._process

    def _receive(self, process: subprocess.Popen[bytes]) -> bytes:
        """Return the next line of the process.

        :raises TimeoutError: when there is none in time.
        :raises EOFError: when the process has ended.
        """
        assert process.stdout is not None
        end = time.monotonic() + self._timeout
        line = bytearray()
        while not line.endswith(b"\n"):
            left = max(0.0, end - time.monotonic())
            if not select.select([process.stdout], [], [], left)[0]:
                raise TimeoutError(f"timed out after {self._timeout:g} s")
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                raise EOFError("its reader ended early")
            line += data
        return bytes(line)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _decode_crash(row: Sequence[Any]) -> Crash:
    """Return the crash that JSON has as the array of its members."""
    path, title, dumps, logs, reports, reproducer, c_reproducer, machine, remarks = row
    return Crash(
        Path(path),
        title,
        tuple(Dump(Path(dump), _decode_path(log)) for dump, log in dumps),
        tuple(map(Path, logs)),
        tuple(map(Path, reports)),
        _decode_path(reproducer),
        _decode_path(c_reproducer),
        _decode_path(machine),
        tuple(remarks),
    )


def _decode_path(name: str | None) -> Path | None:
    if name is None:
        return None
    return Path(name)
