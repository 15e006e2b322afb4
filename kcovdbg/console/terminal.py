# SPDX-License-Identifier: LGPL-2.1-or-later
"""The streams that answers and errors go to, and what they can show."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TextIO

from kcovdbg.console.grid import remark_line
from kcovdbg.console.theme import Color, Painter, is_terminal, wants_color


@dataclass(frozen=True, slots=True)
class Terminal:
    """A pair of streams with what they can show; not necessarily a terminal."""

    stdout: TextIO
    stderr: TextIO
    width: int | None = None
    """Width of the terminal; None where stdout is not a terminal."""
    painter: Painter = Painter()  # noqa: RUF009 - painters are immutable
    error_painter: Painter = Painter()  # noqa: RUF009
    color: Color = Color.AUTO
    error_width: int | None = None
    """Width of the terminal that errors go to; None where stderr is not a terminal."""
    is_dumb: bool = False
    """Whether answers go to a terminal that has no cursor to move."""

    @property
    def is_terminal(self) -> bool:
        """Whether answers go to a terminal."""
        return self.width is not None

    def with_stdout(self, stream: TextIO) -> Terminal:
        """Return this terminal with answers going to a file or a pipe."""
        painter = Painter.colored() if self.color is Color.ALWAYS else Painter()
        return replace(self, stdout=stream, width=None, painter=painter, is_dumb=False)


def write_remarks(terminal: Terminal, remarks: Iterable[str]) -> None:
    """Write remarks to standard error, for an answer that has no place for them."""
    for remark in remarks:
        terminal.stderr.write(f"kcovdbg: {terminal.error_painter.paint(remark_line(remark))}\n")


def is_dumb(environment: Mapping[str, str]) -> bool:
    """Return whether the terminal has no cursor to move, as in an editor's shell window."""
    return environment.get("TERM", "dumb") in ("dumb", "unknown")


def find_terminal(
    color: Color = Color.AUTO,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    environment: Mapping[str, str] | None = None,
) -> Terminal:
    """Return the process's current streams.

    Each command asks again: streams are replaced, and windows change their size.
    """
    stdout = sys.stdout if stdout is None else stdout
    stderr = sys.stderr if stderr is None else stderr
    environment = os.environ if environment is None else environment

    def painter(stream: TextIO) -> Painter:
        colored = wants_color(color, terminal=is_terminal(stream), environment=environment)
        return Painter.colored() if colored else Painter()

    def width(stream: TextIO) -> int | None:
        return shutil.get_terminal_size().columns if is_terminal(stream) else None

    painters = painter(stdout), painter(stderr)
    return Terminal(
        stdout, stderr, width(stdout), *painters, color, width(stderr), is_terminal(stdout) and is_dumb(environment)
    )
