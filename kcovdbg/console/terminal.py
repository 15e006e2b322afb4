# SPDX-License-Identifier: LGPL-2.1-or-later
"""The terminal: streams for answers and errors, what they can show, and styles of text."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple, TextIO

from kcovdbg.console.grid import remark_line
from kcovdbg.console.renderable import Line
from kcovdbg.console.text import escape, spell_ascii

# The terminal's own sixteen colors, which suit its background. Not yellow, which is unreadable on
# white.
THEME: Final[Mapping[str, str]] = MappingProxyType(
    {
        "header": "1",
        "key": "1",
        "address": "36",
        "comm": "32",
        "symbol": "32",
        "path": "34",
        "mode": "35",
        "handle": "35",
        "idle": "2",
        "remark": "2",
        "warning": "1;35",
        "error": "1;31",
        "good": "32",
        "covered": "32",
        "uncovered": "31",
        "source.comment": "2",
        "source.keyword": "1",
        "source.macro": "35",
        "source.string": "32",
        "source.number": "36",
        "changed": "35",
        "gutter": "2",
        "left": "31",
        "right": "32",
        "hint": "2",
        "caret": "1;31",
        "command": "1",
    }
)
"""Style class -> SGR parameters; other classes are plain."""


class Color(str, Enum):
    """When to use color."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


def is_terminal(stream: TextIO) -> bool:
    """Return whether a stream is a terminal."""
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        # A replaced stream may lack isatty(), and a closed stream raises.
        return False


def wants_color(color: Color, *, terminal: bool, environment: Mapping[str, str]) -> bool:
    """Return whether to use color.

    A ``NO_COLOR`` that is not empty (https://no-color.org) and ``TERM=dumb`` turn automatic color
    off.
    """
    if color is not Color.AUTO:
        return color is Color.ALWAYS
    return terminal and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


_RESET: Final = "\x1b[0m"


class Painter:
    """Turn styled fragments into text.

    All data goes to a terminal through a painter. It escapes the data, so that the only escape
    sequences are its own.

    :param theme: style class -> SGR parameters; None for plain text.
    :param is_ascii: whether to write ASCII only.
    """

    def __init__(self, theme: Mapping[str, str] | None = None, *, is_ascii: bool = False) -> None:
        self.is_ascii = is_ascii
        self._starts = {name: f"\x1b[{code}m" for name, code in (theme or {}).items() if code}

    def paint(self, line: Line) -> str:
        """Return the text of a line, without trailing blanks and line end."""
        if self.is_ascii:
            line = [(style, spell_ascii(text)) for style, text in line]
        starts = self._starts
        if not starts:
            return escape("".join([text for _, text in line])).rstrip(" ")
        end = len(line)
        while end and not line[end - 1][1].strip(" "):
            end -= 1
        parts: list[str] = []
        for index in range(end):
            style, text = line[index]
            if index == end - 1:
                text = text.rstrip(" ")
            text = escape(text)
            if style in starts:
                text = f"{starts[style]}{text}{_RESET}"
            parts.append(text)
        return "".join(parts)


class Destination(NamedTuple):
    """The file or pipeline for the output of a line."""

    stream: TextIO
    find_status: Callable[[], int] = int
    """Returns the exit status of the pipeline after its end: 0, or the status of the part that
    failed.
    """


@dataclass(frozen=True, slots=True)
class Terminal:
    """A pair of streams with what they can show; not necessarily a terminal."""

    stdout: TextIO
    stderr: TextIO
    width: int | None = None
    """Width of the terminal; None if stdout is not a terminal."""
    painter: Painter = Painter()  # noqa: RUF009 - painters are immutable
    error_painter: Painter = Painter()  # noqa: RUF009
    color: Color = Color.AUTO
    error_width: int | None = None
    """Width of the terminal; None if stderr is not a terminal."""
    is_dumb: bool = False
    """Whether answers go to a terminal that cannot move its cursor."""
    open_pipeline: Callable[[str, TextIO], AbstractContextManager[Destination]] | None = None
    """Runs the programs of a pipe in another process that has the terminal; None if this process
    runs them.
    """
    spell: Callable[[str], str] | None = None
    """Rewrites the command lines in a remark as the user types them in this frontend; None for
    kcovdbg's own shell.
    """

    @property
    def is_terminal(self) -> bool:
        """Whether answers go to a terminal."""
        return self.width is not None

    def show(self, lines: Iterable[Line]) -> None:
        """Write the lines of an answer."""
        self.stdout.writelines(f"{self.painter.paint(line)}\n" for line in lines)
        self.stdout.flush()

    def with_stdout(self, stream: TextIO) -> Terminal:
        """Return this terminal with a file or a pipe for answers."""
        painter = Painter(
            THEME if self.color is Color.ALWAYS else None, is_ascii=self.painter.is_ascii
        )
        return replace(self, stdout=stream, width=None, painter=painter, is_dumb=False)


def write_remarks(terminal: Terminal, remarks: Iterable[str]) -> None:
    """Write remarks to standard error, for an answer that has no place for them."""
    for remark in remarks:
        terminal.stderr.write(f"kcovdbg: {terminal.error_painter.paint(remark_line(remark))}\n")


def is_ascii_locale(environment: Mapping[str, str]) -> bool:
    """Return whether the user has chosen the C locale, in which a terminal may show a character
    outside of ASCII as several.
    """
    chosen = next(filter(None, map(environment.get, ("LC_ALL", "LC_CTYPE", "LANG"))), "")
    return chosen in ("C", "POSIX")


def is_dumb(environment: Mapping[str, str]) -> bool:
    """Return whether the terminal cannot move its cursor, as in an editor's shell window."""
    return environment.get("TERM", "dumb") in ("dumb", "unknown")


def find_terminal(color: Color = Color.AUTO) -> Terminal:
    """Return the process's streams as they are now: streams are replaced, and windows change their
    size.
    """

    def painter(stream: TextIO) -> Painter:
        colored = wants_color(color, terminal=is_terminal(stream), environment=os.environ)
        return Painter(THEME if colored else None, is_ascii=is_ascii_locale(os.environ))

    def width(stream: TextIO) -> int | None:
        if not is_terminal(stream):
            return None
        import shutil

        return shutil.get_terminal_size().columns

    stdout, stderr = sys.stdout, sys.stderr
    return Terminal(
        stdout,
        stderr,
        width=width(stdout),
        painter=painter(stdout),
        error_painter=painter(stderr),
        color=color,
        error_width=width(stderr),
        is_dumb=is_terminal(stdout) and is_dumb(os.environ),
    )


def settle_streams() -> None:
    """Flush standard output and standard error, and keep Python from reporting at exit that their
    reader is gone.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            # That the reader is gone or the disk is full was reported before. Python flushes again
            # at exit, and some versions (3.11.2) keep data that could not be written.
            discard_output(stream)
        except ValueError:
            # The stream was closed.
            pass


def discard_output(stream: TextIO) -> None:
    """Discard what this process writes to a stream from now on."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
