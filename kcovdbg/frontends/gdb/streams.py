# SPDX-License-Identifier: LGPL-2.1-or-later
"""GDB's output as Python streams."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Final, TextIO, cast

import gdb
from kcovdbg.engine.terminal import Terminal
from kcovdbg.frontends.gdb.charset import to_host
from kcovdbg.render.paint import Painter
from kcovdbg.render.theme import Color, wants_color

_O_ACCMODE: Final = 3
_O_WRONLY: Final = 1


class GdbStream(io.TextIOBase):
    """Writes through GDB, for its pager, log and redirection."""

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str) -> int:
        """Write a text.

        :raises KeyboardInterrupt: when the user answered q to GDB's pager.
        """
        gdb.write(to_host(text, narrow=True))
        return len(text)

    def flush(self) -> None:
        """Flush GDB's output."""
        gdb.flush()


class _RemarkStream(io.TextIOBase):
    """Standard error of the process, for remarks on an answer that a program reads.

    GDB redirects its own standard error with its standard output: into the pipe of ``| kcov-show tasks --json | jq .``, and
    into the string that gdb.execute() returns.
    """

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str) -> int:
        """Write a text."""
        gdb.flush()
        if sys.__stderr__ is None or _is_full_screen():
            gdb.write(to_host(text), gdb.STDERR)
        else:
            sys.__stderr__.write(to_host(text))
            sys.__stderr__.flush()
        return len(text)


def _is_full_screen() -> bool:
    """Return whether GDB's TUI has the screen."""
    try:
        return "not active" not in gdb.execute("info win", to_string=True)
    except gdb.error:
        # A GDB without the TUI.
        return False


def find_terminal(color: Color) -> Terminal:
    """Return GDB's current output."""
    is_terminal = os.isatty(1) and not is_piped()
    # Unlimited is None, and 0 in some versions.
    width = gdb.parameter("width") if is_terminal else None
    styled = bool(gdb.parameter("style enabled"))
    colored = wants_color(color, terminal=is_terminal and styled, environment=os.environ)
    painter = Painter.colored() if colored else Painter()
    stdout = cast("TextIO", GdbStream())
    return Terminal(stdout, cast("TextIO", _RemarkStream()), cast("int | None", width or None), painter, Painter(), color)


def is_piped() -> bool:
    """Return whether GDB's ``pipe`` runs this command: whether a child of GDB reads from a pipe that GDB writes to.

    GDB does not tell Python where its output goes, and does not strip colors from it.
    """
    try:
        return bool(_pipes_written() & _pipes_read_by_children())
    except OSError:
        # Without /proc.
        return False


def _pipes_written() -> set[str]:
    found: set[str] = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            name = str(entry.readlink())
            if not name.startswith("pipe:"):
                continue
            information = Path("/proc/self/fdinfo", entry.name).read_text()
        except OSError:
            continue
        flags = next((line.split()[1] for line in information.splitlines() if line.startswith("flags:")), "0")
        if int(flags, 8) & _O_ACCMODE == _O_WRONLY:
            found.add(name)
    return found


def _pipes_read_by_children() -> set[str]:
    found: set[str] = set()
    for children in Path("/proc/self/task").glob("*/children"):
        for child in children.read_text().split():
            try:
                found.add(str(Path("/proc", child, "fd/0").readlink()))
            except OSError:
                continue
    return found
