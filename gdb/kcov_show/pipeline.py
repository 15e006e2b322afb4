# SPDX-License-Identifier: LGPL-2.1-or-later
"""The programs that read an answer: ``kcov-show tasks | less``.

They run in GDB's session, so that a pager has the terminal and C-c reaches them, and end with GDB.
"""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import signal
import subprocess
import tempfile
from typing import Tuple

_PR_SET_PDEATHSIG = 1
# Seconds that a program has to end after C-c or after its input's end.
_PATIENCE = 2.0


class Pipeline:
    """A running pipeline.

    :param line: for the shell.
    :param is_interactive: whether the programs get the terminal; otherwise their output goes
        through GDB.
    :raises OSError: when there is no shell.
    """

    def __init__(self, line: str, *, is_interactive: bool) -> None:
        self.is_interactive = is_interactive
        # Not every sh has pipefail; without it, the last program's status is the pipeline's.
        shell = ["sh", "-c"]
        if shutil.which("bash"):
            shell = ["bash", "--posix", "-o", "pipefail", "-c"]
        # The file stays open while the programs run.
        self._output = None if is_interactive else tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [*shell, line], stdin=subprocess.PIPE, stdout=self._output, preexec_fn=_end_with_parent
        )

    def write(self, text: str) -> bool:
        """Write a part of the answer; return whether the programs read on."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(text.encode("utf-8", "backslashreplace"))
            self._process.stdin.flush()
        except BrokenPipeError:
            return False
        return True

    def finish(self) -> Tuple[int, str]:
        """Wait until the programs have ended; return their exit status, negative for a signal, and
        their output, which is empty if they write to the terminal.

        :raises KeyboardInterrupt: after C-c, unless the programs have the terminal: they get C-c
            themselves.
        """
        self._close_input()
        while True:
            try:
                status = self._process.wait()
                break
            except KeyboardInterrupt:
                if not self.is_interactive:
                    raise
        if self._output is None:
            return status, ""
        with self._output as file:
            file.seek(0)
            return status, file.read().decode("utf-8", "backslashreplace")

    def end(self) -> None:
        """End the programs; first they get some time, as a pager has to restore the terminal."""
        self._close_input()
        for stop in (self._process.terminate, self._process.kill):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_PATIENCE)
                return
            stop()
        self._process.wait()

    def _close_input(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()


def _end_with_parent() -> None:
    # GDB may be killed.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
