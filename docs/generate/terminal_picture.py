# SPDX-License-Identifier: LGPL-2.1-or-later
"""A program in a pseudo-terminal, and its screen as SVG with searchable text."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

import pexpect
import pyte

CELL, LINE, MARGIN = 7.8, 17, 12
INK, PAPER = "#d8dee9", "#1d2129"
_PATIENCE = 60.0
# A terminal's sixteen colors. Colors given as red, green and blue are used unchanged.
_COLORS = {
    "black": "#3b4252",
    "red": "#e06c75",
    "green": "#98c379",
    "brown": "#e5c07b",
    "blue": "#61afef",
    "magenta": "#c678dd",
    "cyan": "#56b6c2",
    "white": "#d8dee9",
    "brightblack": "#7f8899",
    "brightred": "#ff8b92",
    "brightgreen": "#b5e890",
    "brightbrown": "#ffe1a1",
    "brightblue": "#8cc8ff",
    "brightmagenta": "#e0a0f0",
    "brightcyan": "#7fd6e0",
    "brightwhite": "#ffffff",
}


class Terminal:
    """A module, by default kcovdbg, in a terminal of this many columns and rows."""

    def __init__(
        self, arguments: Sequence[str], columns: int, rows: int, module: str = "kcovdbg"
    ) -> None:
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        environment = {
            **os.environ,
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            "PROMPT_TOOLKIT_NO_CPR": "1",
        }
        for name in ("NO_COLOR", "COLUMNS", "LINES"):
            environment.pop(name, None)
        # The user's history would be suggested, and the user's settings be seen.
        self._home = tempfile.TemporaryDirectory(prefix="kcovdbg-picture-")
        environment |= dict.fromkeys(
            ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"), self._home.name
        )
        environment.setdefault("XDG_CACHE_HOME", str(Path("~/.cache").expanduser()))
        command = ["-m", module, *arguments]
        self._process = pexpect.spawn(
            sys.executable, command, dimensions=(rows, columns), env=environment
        )

    def type(self, text: str) -> None:
        """Type characters."""
        self._process.send(text)

    def wait(self, is_drawn: Callable[[], bool]) -> None:
        """Read what the program writes until the screen is as wanted, and nothing more comes."""
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                self._stream.feed(self._process.read_nonblocking(65536, 0.3))
            except pexpect.TIMEOUT:
                if is_drawn():
                    return
            if time.monotonic() > end:
                raise TimeoutError(
                    "the screen was not drawn in time:\n" + "\n".join(self.screen.display)
                )

    def close(self) -> None:
        """End the program."""
        self._process.close(force=True)
        self._home.cleanup()


@contextlib.contextmanager
def run_terminal(
    arguments: Sequence[str], columns: int, rows: int, module: str = "kcovdbg"
) -> Iterator[Terminal]:
    """Yield a module, by default kcovdbg, in a terminal, and end it."""
    terminal = Terminal(arguments, columns, rows, module)
    try:
        yield terminal
    finally:
        terminal.close()


def draw_frame(columns: int, rows: int, label: str, body: Iterator[str]) -> Iterator[str]:
    """Yield an SVG with a terminal's background around its content."""
    width, height = columns * CELL + 2 * MARGIN, rows * LINE + 2 * MARGIN
    yield "<!-- SPDX-License-Identifier: LGPL-2.1-or-later -->"
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" viewBox="0 '
        f'0 {width:.0f} {height}"'
    )
    yield f' role="img" aria-label="{escape(label)}">'
    yield f'<rect width="100%" height="100%" rx="8" fill="{PAPER}"/>'
    yield (
        '<g font-family="ui-monospace, SFMono-Regular, Menlo, DejaVu Sans Mono, monospace" '
        'font-size="13"'
    )
    # Browsers have dropped the attribute, and other programs do not know the property.
    yield ' xml:space="preserve"><style>text{white-space:pre}</style>'
    yield from body
    yield "</g>"
    yield "</svg>"


def draw_row(cells: Sequence[Any], top: int) -> Iterator[str]:
    """Yield a row of cells: a rectangle for each colored background, a text for each run of one
    style.
    """
    column = 0
    for (ink, paper, bold), run in groupby(cells, _style):
        text = "".join(cell.data for cell in run)
        left, length = MARGIN + column * CELL, len(text) * CELL
        column += len(text)
        if paper != PAPER:
            yield (
                f'<rect x="{left:.1f}" y="{top}" width="{length:.1f}" height="{LINE}" '
                f'fill="{paper}"/>'
            )
        if shown := text.strip():
            left += (len(text) - len(text.lstrip())) * CELL
            length = len(shown) * CELL
            weight = ' font-weight="bold"' if bold else ""
            yield (
                f'<text x="{left:.1f}" y="{top + 13}" textLength="{length:.1f}" '
                f'lengthAdjust="spacingAndGlyphs" '
                f'fill="{ink}"{weight}>{escape(shown)}</text>'
            )


def cells_of(screen: Any, row: int) -> list[Any]:
    """Return the cells of a row of the screen."""
    return [screen.buffer[row][column] for column in range(screen.columns)]


def _style(cell: Any) -> tuple[str, str, bool]:
    ink, paper = _color(cell.fg, INK), _color(cell.bg, PAPER)
    return (paper, ink, cell.bold) if cell.reverse else (ink, paper, cell.bold)


def _color(name: str, default: str) -> str:
    return default if name == "default" else _COLORS.get(name, f"#{name}")
