# SPDX-License-Identifier: LGPL-2.1-or-later
"""The README's pictures: two traces of the demo side by side, and the first minute in the shell.

``python -m docs.generate.picture`` runs both in a pseudo-terminal and draws what is on the screen
as SVG. Run it again when the demo or the look of the shell changes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from docs.generate.terminal_picture import (
    CELL,
    INK,
    LINE,
    MARGIN,
    Terminal,
    cells_of,
    draw_frame,
    draw_row,
    run_terminal,
)

DOCS = Path(__file__).parents[1]
SIDES = ("41", "34")
VIEW_SIZE = (118, 28)
RECORDING = DOCS.parent / "examples/fuzz.jsonl"
MONITOR_SIZE = (100, 24)
# At the last of so many looks, a buffer is full and a section runs.
LOOKS = 31
SHELL_SIZE = (106, 36)
# What one types first, and for how many seconds one looks at the answer.
LINES = (
    ("tasks kc-usb kc-traffic --columns pid,comm,mode,count,role", 5.0),
    ("saved", 4.0),
    ("buffer 82", 5.0),
    ("why usb:1", 6.0),
    ("check K10", 8.0),
)
# Seconds for a key, and characters that one picture adds.
_KEY, _KEYS = 0.07, 4
_PROMPT = "kcovdbg> "


class Moment(NamedTuple):
    """What is on the screen from a time on."""

    start: float
    rows: tuple[str, ...]
    """Each row as SVG, at the top of the picture."""
    cursor: tuple[int, int]


def draw_view() -> str:
    """Return the view of two traces as SVG."""
    columns, rows = VIEW_SIZE
    with run_terminal(["--demo", "--color", "always", "view", *SIDES], columns, rows) as terminal:
        display = terminal.screen
        terminal.wait(lambda: "leave" in display.display[-1] and "│" in display.display[1])
        body = (
            part
            for row in range(rows)
            for part in draw_row(cells_of(display, row), MARGIN + row * LINE)
        )
        return (
            "\n".join(draw_frame(columns, rows, "Two traces side by side in a terminal", body))
            + "\n"
        )


def draw_monitor() -> str:
    """Return the monitor, which looks at what a recording has, as SVG."""
    columns, rows = MONITOR_SIZE
    # There is no other look while the picture is taken.
    words = [str(RECORDING), str(LOOKS), "--interval", "3600"]
    with run_terminal(words, columns, rows, "tests.support.monitor_process") as terminal:
        display = terminal.screen
        terminal.wait(lambda: "Quit" in display.display[-1])
        body = (
            part
            for row in range(rows)
            for part in draw_row(cells_of(display, row), MARGIN + row * LINE)
        )
        return "\n".join(draw_frame(columns, rows, "The monitor in a terminal", body)) + "\n"


def record_shell() -> tuple[list[Moment], float]:
    """Type the lines in the shell; return what one sees, with when it ends."""
    moments: list[Moment] = []
    time = 0.0

    def take(seconds: float) -> None:
        nonlocal time
        moments.append(_take(terminal, time))
        time += seconds

    def is_at_prompt() -> bool:
        screen = terminal.screen
        return screen.display[screen.cursor.y].rstrip() == _PROMPT.rstrip()

    def is_typed(text: str) -> bool:
        screen = terminal.screen
        return text in screen.display[screen.cursor.y]

    with run_terminal(["--demo", "--color", "always"], *SHELL_SIZE) as terminal:
        terminal.wait(is_at_prompt)
        take(2.0)
        for line, seconds in LINES:
            for end in range(_KEYS, len(line) + _KEYS, _KEYS):
                terminal.type(line[end - _KEYS : end])
                terminal.wait(partial(is_typed, line[:end]))
                take(_KEY * _KEYS)
            terminal.type("\r")
            terminal.wait(is_at_prompt)
            take(seconds)
    return moments, time


def _take(terminal: Terminal, start: float) -> Moment:
    screen = terminal.screen
    rows = tuple("".join(draw_row(cells_of(screen, row), 0)) for row in range(screen.lines))
    return Moment(start, rows, (screen.cursor.x, screen.cursor.y))


def draw_recording(moments: list[Moment], end: float) -> str:
    """Return moments as an SVG that shows one after another; where nothing moves, the last one."""
    columns, rows = SHELL_SIZE
    label = "A first minute in the shell of the demo"
    return (
        "\n".join(
            draw_frame(columns, rows, label, _film(moments, end, columns * CELL + 2 * MARGIN))
        )
        + "\n"
    )


def _film(moments: list[Moment], end: float, width: float) -> Iterator[str]:
    # One picture beside another, of which one is seen at a time; a row that many of them have is
    # written once.
    names: dict[str, str] = {}
    for moment in moments:
        for row in moment.rows:
            if row:
                names.setdefault(row, f"r{len(names)}")
    yield "<defs>"
    yield from (f'<g id="{name}">{row}</g>' for row, name in names.items())
    yield "</defs>"
    stops = "".join(
        f"{m.start / end:.2%}{{transform:translateX({-number * width:.0f}px)}}"
        for number, m in enumerate(moments)
    )
    yield f"<style>@keyframes f{{{stops}}}"
    yield f".f{{animation:f {end:.1f}s steps(1,end) infinite}}"
    yield "@media (prefers-reduced-motion:reduce){.f{animation:none}}</style>"
    yield f'<g class="f" transform="translate({-(len(moments) - 1) * width:.0f} 0)">'
    for number, moment in enumerate(moments):
        yield f'<g transform="translate({number * width:.0f} {MARGIN})">'
        for place, row in enumerate(moment.rows):
            if row:
                yield f'<use href="#{names[row]}" y="{place * LINE}"/>'
        x, y = moment.cursor
        yield (
            f'<rect x="{MARGIN + x * CELL:.1f}" y="{y * LINE}" width="{CELL}" height="{LINE}" '
            f'fill="{INK}" opacity="0.6"/>'
        )
        yield "</g>"
    yield "</g>"


def main() -> int:
    """Draw the pictures."""
    pictures: dict[str, Any] = {
        "view.svg": draw_view,
        "monitor.svg": draw_monitor,
        "first-minute.svg": lambda: draw_recording(*record_shell()),
    }
    for name in sys.argv[1:] or pictures:
        (DOCS / name).write_text(pictures[name](), encoding="utf-8")
        print(f"docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
