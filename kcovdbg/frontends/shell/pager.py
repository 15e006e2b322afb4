# SPDX-License-Identifier: LGPL-2.1-or-later
"""Show answers that are larger than the terminal in the user's pager."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final, TextIO, cast

from kcovdbg.child_process import child_environment
from kcovdbg.console.terminal import Terminal, is_dumb
from kcovdbg.console.text import text_width

# -S: chop long lines, which suits tables; prose is wrapped before it gets here.
# -R: pass colors. -X: leave the text on the screen. -F: quit if it fits.
_LESS: Final = "-SRXF"
SGR: Final = re.compile(r"\x1b\[[0-9;]*m")


def find_pager(environment: Mapping[str, str], configured: str | None = None) -> str | None:
    """Return the shell command of the pager; None without a pager, or on a dumb terminal.

    :param configured: the user's setting, which replaces ``PAGER``.
    """
    if is_dumb(environment):
        return None
    pager = environment.get("PAGER", "less") if configured is None else configured
    try:
        words = shlex.split(pager)
    except ValueError:
        return None
    return pager if words and shutil.which(words[0], path=environment.get("PATH")) else None


@contextlib.contextmanager
def paged(
    terminal: Terminal, pager: str | None, environment: Mapping[str, str]
) -> Iterator[Terminal]:
    """Yield a terminal whose large answers go through the pager."""
    if pager is None or not terminal.is_terminal:
        yield terminal
        return
    size = shutil.get_terminal_size()
    stream = PagedStream(
        terminal.stdout,
        size.columns,
        size.lines,
        lambda: _start(pager, terminal.stdout, environment),
    )
    # Write remarks after the pager has ended, not into its screen.
    remarks = io.StringIO()
    try:
        yield replace(terminal, stdout=cast("TextIO", stream), stderr=remarks)
    finally:
        stream.finish()
        terminal.stderr.write(remarks.getvalue())
        terminal.stderr.flush()


def _pager_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a pager."""
    found = child_environment(environment, LESS=_LESS)
    # less would pipe its input through this command, which is meant for files.
    found.pop("LESSOPEN", None)
    return found


def _start(pager: str, stdout: TextIO, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["sh", "-c", pager],
        stdin=subprocess.PIPE,
        stdout=stdout,
        env=_pager_environment(environment),
        encoding="utf-8",
        errors="backslashreplace",
    )


class PagedStream(io.TextIOBase):
    """A stream that buffers text until it is known whether the text fits on the screen.

    :param stdout: the terminal.
    :param columns: width of the terminal.
    :param rows: height of the terminal; one row is for the prompt.
    :param start: starts the pager.
    """

    def __init__(
        self, stdout: TextIO, columns: int, rows: int, start: Callable[[], subprocess.Popen[str]]
    ) -> None:
        super().__init__()
        self._stdout = stdout
        self._columns = columns
        self._rows = rows
        self._start = start
        self._pending: list[str] = []
        self._used_rows = 0
        self._long_lines = 0
        self._tail = ""
        self._process: subprocess.Popen[str] | None = None

    def isatty(self) -> bool:
        """Return True, because the text goes to a terminal in the end."""
        return True

    def fileno(self) -> int:
        """Write the buffered text, and return the terminal's descriptor for a child process."""
        self.finish()
        return self._stdout.fileno()

    def write(self, text: str) -> int:
        """Write to the pager if it runs, otherwise buffer the text.

        :raises BrokenPipeError: when the user has left the pager.
        """
        if self._process is not None:
            assert self._process.stdin is not None
            return self._process.stdin.write(text)
        self._pending.append(text)
        if self._is_too_large(text):
            self._process = self._start()
            assert self._process.stdin is not None
            self._process.stdin.write("".join(self._pending))
            self._pending.clear()
        return len(text)

    def flush(self) -> None:
        """Do nothing: the text is written when it is too large for the screen, or complete."""

    def _is_too_large(self, text: str) -> bool:
        *ended, self._tail = (self._tail + text).split("\n")
        for line in ended:
            width = text_width(SGR.sub("", line))
            self._used_rows += max(1, -(-width // self._columns))
            self._long_lines += width > self._columns
        # The terminal folds a single long line. Two long lines may be the heading and a row of a
        # table, which a pager shows better.
        return self._used_rows >= self._rows or self._long_lines > 1

    def finish(self) -> None:
        """Write buffered text, or wait for the user to leave the pager."""
        self._used_rows = self._long_lines = 0
        if self._process is None:
            self._stdout.write("".join(self._pending))
            self._pending.clear()
            self._stdout.flush()
            return
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        while True:
            try:
                self._process.wait()
            except KeyboardInterrupt:
                # The pager also gets C-c, and handles it.
                continue
            self._process = None
            return
