# SPDX-License-Identifier: LGPL-2.1-or-later
"""Shows an answer through the user's pager if it is taller or wider than the terminal; else as if there were no pager."""

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

from kcovdbg.commands.terminal import Terminal
from kcovdbg.render.width import text_width

# -S: lines are chopped, as tables want it. -R: colours. -X: what was read stays on the screen. -F: not for what fits.
_LESS: Final = "-SRXF"
_SGR: Final = re.compile(r"\x1b\[[0-9;]*m")


def find_pager(environment: Mapping[str, str]) -> str | None:
    """Return the shell command of the pager, None where there is none or the terminal couldn't show one."""
    if environment.get("TERM", "dumb") in ("dumb", "unknown"):
        return None
    pager = environment.get("PAGER", "less")
    try:
        words = shlex.split(pager)
    except ValueError:
        return None
    return pager if words and shutil.which(words[0], path=environment.get("PATH")) else None


@contextlib.contextmanager
def paged(terminal: Terminal, pager: str | None, environment: Mapping[str, str]) -> Iterator[Terminal]:
    """Give a terminal whose large answers go through the pager."""
    if pager is None or not terminal.is_terminal:
        yield terminal
        return
    size = shutil.get_terminal_size()
    stream = PagedStream(terminal.stdout, size.columns, size.lines, lambda: _start(pager, terminal.stdout, environment))
    # Remarks would end up in the middle of the pager's screen: they follow when it is left.
    remarks = io.StringIO()
    try:
        yield replace(terminal, stdout=cast("TextIO", stream), stderr=remarks)
    finally:
        stream.finish()
        terminal.stderr.write(remarks.getvalue())
        terminal.stderr.flush()


def _start(pager: str, stdout: TextIO, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["sh", "-c", pager],
        stdin=subprocess.PIPE,
        stdout=stdout,
        env={"LESS": _LESS, **environment},
        encoding="utf-8",
        errors="backslashreplace",
    )


class PagedStream(io.TextIOBase):
    """Keeps what it is sent until it is known whether it fits on the screen.

    :param stdout: the terminal.
    :param columns: of it.
    :param rows: of it; one is the prompt's.
    :param start: starts the pager.
    """

    def __init__(self, stdout: TextIO, columns: int, rows: int, start: Callable[[], subprocess.Popen[str]]) -> None:
        super().__init__()
        self._stdout = stdout
        self._columns = columns
        self._rows = rows
        self._start = start
        self._pending: list[str] = []
        self._lines = 0
        self._tail = ""
        self._process: subprocess.Popen[str] | None = None

    def writable(self) -> bool:
        """Return that it is."""
        return True

    def isatty(self) -> bool:
        """Tell that what is written ends up on a terminal."""
        return True

    def fileno(self) -> int:
        """Return the terminal's own, for children that write there by themselves."""
        return self._stdout.fileno()

    def write(self, text: str) -> int:
        """Write to the pager once there is one, else keep it.

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
        """Do nothing: what is too large flows to the pager by itself, and the rest waits for the answer's end."""

    def _is_too_large(self, text: str) -> bool:
        *ended, self._tail = (self._tail + text).split("\n")
        self._lines += len(ended)
        if self._lines >= self._rows:
            return True
        return any(text_width(_SGR.sub("", line)) > self._columns for line in (*ended, self._tail))

    def finish(self) -> None:
        """Show what fits, or wait for the user to leave the pager."""
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
                # It goes to the pager too, which knows what to do.
                continue
            return
