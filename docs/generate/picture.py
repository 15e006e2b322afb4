# SPDX-License-Identifier: LGPL-2.1-or-later
"""The README's picture: two traces of the demo side by side.

``python -m docs.generate.picture`` runs the view in a pseudo-terminal and draws its screen as SVG.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

import pexpect
import pyte

PICTURE = Path(__file__).parents[1] / "view.svg"
SIDES = ("51", "61")
COLUMNS, ROWS = 118, 28
_PATIENCE = 60.0
_CELL, _LINE, _MARGIN = 7.8, 17, 12
_INK, _PAPER = "#d8dee9", "#1d2129"
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


def take_screen() -> Any:
    """Run the view on the demo until it has drawn both sides; return the screen."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    environment = {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8", "PROMPT_TOOLKIT_NO_CPR": "1"}
    command = ["-m", "kcovdbg", "--demo", "--color", "always", "view", *SIDES]
    process = pexpect.spawn(sys.executable, command, dimensions=(ROWS, COLUMNS), env=environment)
    end = time.monotonic() + _PATIENCE
    try:
        while not ("quit" in screen.display[-1] or "leave" in screen.display[-1]) or "│" not in screen.display[1]:
            if time.monotonic() > end:
                raise TimeoutError("the view was not drawn in time:\n" + "\n".join(screen.display))
            try:
                stream.feed(process.read_nonblocking(65536, 0.2))
            except pexpect.TIMEOUT:
                continue
    finally:
        process.close(force=True)
    return screen


def draw(screen: Any) -> str:
    """Return the screen as SVG, with searchable text in the terminal's colors."""
    return "\n".join(_lines(screen)) + "\n"


def _lines(screen: Any) -> Iterator[str]:
    width, height = COLUMNS * _CELL + 2 * _MARGIN, ROWS * _LINE + 2 * _MARGIN
    yield "<!-- SPDX-License-Identifier: LGPL-2.1-or-later -->"
    yield f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" viewBox="0 0 {width:.0f} {height}"'
    yield ' role="img" aria-label="Two traces side by side in a terminal">'
    yield f'<rect width="100%" height="100%" rx="8" fill="{_PAPER}"/>'
    yield '<g font-family="ui-monospace, SFMono-Regular, Menlo, DejaVu Sans Mono, monospace" font-size="13"'
    yield ' xml:space="preserve">'
    for number in range(ROWS):
        yield from _row([screen.buffer[number][column] for column in range(COLUMNS)], number)
    yield "</g>"
    yield "</svg>"


def _row(cells: list[Any], number: int) -> Iterator[str]:
    top = _MARGIN + number * _LINE
    column = 0
    for (ink, paper, bold), run in groupby(cells, _style):
        text = "".join(cell.data for cell in run)
        left, length = _MARGIN + column * _CELL, len(text) * _CELL
        column += len(text)
        if paper != _PAPER:
            yield f'<rect x="{left:.1f}" y="{top}" width="{length:.1f}" height="{_LINE}" fill="{paper}"/>'
        if text.strip():
            weight = ' font-weight="bold"' if bold else ""
            yield (
                f'<text x="{left:.1f}" y="{top + 13}" textLength="{length:.1f}" lengthAdjust="spacingAndGlyphs" '
                f'fill="{ink}"{weight}>{escape(text)}</text>'
            )


def _style(cell: Any) -> tuple[str, str, bool]:
    ink, paper = _color(cell.fg, _INK), _color(cell.bg, _PAPER)
    return (paper, ink, cell.bold) if cell.reverse else (ink, paper, cell.bold)


def _color(name: str, default: str) -> str:
    return default if name == "default" else _COLORS.get(name, f"#{name}")


def main() -> int:
    """Draw the picture."""
    PICTURE.write_text(draw(take_screen()), encoding="utf-8")
    print(f"docs/{PICTURE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
