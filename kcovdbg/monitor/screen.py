# SPDX-License-Identifier: LGPL-2.1-or-later
"""The full-screen monitor."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.layout import Window
from prompt_toolkit.layout.controls import FormattedTextControl

from kcovdbg.console.screen_application import ScreenApplication, ScreenKey, style_line
from kcovdbg.console.terminal import find_terminal, is_dumb
from kcovdbg.monitor.monitor_source import LiveSource
from kcovdbg.monitor.printed_looks import print_looks
from kcovdbg.monitor.screen_state import MonitorState

# Seconds between two looks at whether there is something to do again.
_IDLE: Final = 0.2
# If each look stops the machine: seconds for which it runs before keys are answered, and seconds
# for keys.
_STEP: Final = 0.15
_BREATH: Final = 0.01
# Seconds between two looks that are printed on a terminal without a screen, as by top -b.
_PRINT_WAIT: Final = 3.0


class MonitorScreen(ScreenApplication):
    """A monitor on a terminal, left with the name of a buffer to view or with None.

    :param state: the state of the screen; kept from one run to the next.
    """

    def __init__(self, state: MonitorState) -> None:
        self.state: MonitorState = state
        body = Window(FormattedTextControl(self._body, focusable=True, show_cursor=False))
        super().__init__(KEYS, "F1", [body], self._footer)

    async def _work(self) -> None:
        state = self.state
        try:
            while True:
                # Keys typed meanwhile are answered at once.
                rest = min(state.source.pause or 0.0, _IDLE) if state.is_advancing else _IDLE
                if state.source.is_stepped:
                    # The machine runs on while the screen is frozen.
                    state.source.wait(min(rest, _STEP))
                    rest = _BREATH
                await asyncio.sleep(rest)
                if state.is_advancing and state.source.pause == 0:
                    state.advance()
                    self.application.invalidate()
                elif not state.is_frozen and state.activity is not state.source.activity:
                    # The machine ended while it ran.
                    state.refresh()
                    self.application.invalidate()
        # Whoever runs the application reports it.
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001
            if self.application.is_running:
                self.application.exit(exception=error)

    def _body(self) -> StyleAndTextTuples:
        found: StyleAndTextTuples = []
        size = self.application.output.get_size()
        for line, style in self.state.lines(size.columns, size.rows):
            found += [("", "\n")] if found else []
            found += style_line(line, f"class:{style}" if style else "")
        return found

    def _footer(self, width: int) -> StyleAndTextTuples:
        found: StyleAndTextTuples = []
        taken = 0
        for key in self.keys:
            label = key.label.split()[0]
            taken += len(label) + len(key.footer) + 1 if key.footer else 0
            if key.footer and taken <= width + 1:
                found += [("class:key", label), ("class:bar", key.footer), ("", " ")]
        return found

    def suspend(self) -> None:
        """Stop the process, as a shell's job."""
        if self.state.source.is_stepped:
            self.state.message = "the machine would be stopped as well; q leaves"
        else:
            self.application.suspend_to_background()

    def view(self) -> None:
        """Leave the screen for the buffer of the row with the cursor."""
        buffer = self.state.selected
        if buffer is None:
            self.state.message = "no buffer to view in this row"
        else:
            self.application.exit(result=buffer)


_MOVING: Final = "↑ ↓ PgUp PgDn g G"
# Keys of htop do the same.
KEYS: Final[tuple[ScreenKey, ...]] = (
    ScreenKey(
        "f1 ? h", "F1 ?", "show this help", lambda screen: screen.pop_up(screen.help_lines), "Help"
    ),
    ScreenKey(
        "f4 / \\",
        "F4 / \\",
        "show only rows with a text; Esc shows all again",
        lambda screen: screen.ask(
            "Filter: ", screen.state.set_filter, is_live=True, text=screen.state.filter
        ),
        "Filter",
    ),
    ScreenKey(
        "f6 > .",
        "F6 > <",
        "sort by the next column or the one before",
        lambda screen: screen.state.turn_sort(1),
        "Sort",
    ),
    ScreenKey("< ,", "<", "", lambda screen: screen.state.turn_sort(-1)),
    ScreenKey("I", "I", "invert the order", lambda screen: screen.state.invert()),
    ScreenKey(
        "tab",
        "Tab S-Tab",
        "the next list or the one before",
        lambda screen: screen.state.turn_list(1),
        "List",
    ),
    ScreenKey("s-tab", "S-Tab", "", lambda screen: screen.state.turn_list(-1)),
    ScreenKey(
        "space z Z",
        "Space z",
        "freeze the screen, or go on",
        lambda screen: screen.state.toggle_freeze(),
        "Freeze",
    ),
    ScreenKey(
        "enter",
        "Enter",
        "view the buffer of this row; q comes back",
        lambda screen: screen.view(),
        "View",
    ),
    ScreenKey("up k", _MOVING, "move", lambda screen: screen.state.move(-1)),
    ScreenKey("down j", _MOVING, "", lambda screen: screen.state.move(1)),
    ScreenKey("pageup c-b", _MOVING, "", lambda screen: screen.state.page(-1)),
    ScreenKey("pagedown c-f", _MOVING, "", lambda screen: screen.state.page(1)),
    ScreenKey("home g", _MOVING, "", lambda screen: screen.state.go_to(0)),
    ScreenKey("end G", _MOVING, "", lambda screen: screen.state.go_to(len(screen.state.rows) - 1)),
    ScreenKey("escape", "Esc", "", lambda screen: screen.state.set_filter("")),
    ScreenKey(
        "c-l", "C-l", "redraw the screen", lambda screen: screen.application.renderer.clear()
    ),
    ScreenKey(
        "c-z", "C-z", "return to the shell, whose fg continues", lambda screen: screen.suspend()
    ),
    ScreenKey("q f10 c-c c-q", "q F10", "leave", lambda screen: screen.application.exit(), "Quit"),
)


def show_monitor(source: LiveSource, view: Callable[[str], str | None]) -> None:
    """Show a monitor on the process's terminal until the user leaves it.

    :param source: takes the looks that are shown.
    :param view: views a buffer until the user leaves that, and returns why it could not.
    """
    state = MonitorState(source)
    if is_dumb(os.environ):
        print_looks(source, find_terminal(), None, _PRINT_WAIT)
        return
    while (name := MonitorScreen(state).run()) is not None:
        state.message = view(name) or ""
