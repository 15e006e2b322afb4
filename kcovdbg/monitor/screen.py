# SPDX-License-Identifier: LGPL-2.1-or-later
"""The full-screen monitor."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import Callable
from typing import Final

from prompt_toolkit.application import Application
from prompt_toolkit.data_structures import Point
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import ConditionalContainer, Float, FloatContainer, HSplit, Layout, Window
from prompt_toolkit.layout.controls import FormattedTextControl, UIContent, UIControl
from prompt_toolkit.mouse_events import MouseEvent, MouseEventType
from prompt_toolkit.output import Output

from kcovdbg.console.full_screen import make_style, redraw_when_continued, style_line
from kcovdbg.console.side_by_side import fit
from kcovdbg.console.terminal import find_terminal, is_dumb
from kcovdbg.console.text import escape
from kcovdbg.monitor.monitor_source import LiveSource, MonitorSource
from kcovdbg.monitor.screen_state import KEYS, PLAYBACK_KEYS, MonitorState, Region, ScreenLine, help_lines

_ESCAPE_WAIT: Final = 0.05
_WHEEL: Final = 3
_SEEK: Final = 5.0
# Seconds between two looks at whether there is something to do again.
_IDLE: Final = 0.2
# Of a machine that is stopped for each look: seconds that it runs before keys are answered, and seconds for keys.
_STEP: Final = 0.15
_BREATH: Final = 0.01


class MonitorControl(UIControl):
    """Draws the screen but for its last line.

    :param screen: whose state is drawn.
    """

    def __init__(self, screen: MonitorScreen) -> None:
        self._screen = screen
        self._lines: list[ScreenLine] = []

    def preferred_height(self, width: int, max_available_height: int, wrap_lines: bool, get_line_prefix: object) -> int | None:  # noqa: ARG002
        """Return all the available height."""
        return max_available_height

    def is_focusable(self) -> bool:
        """Return True: keys go here."""
        return True

    def create_content(self, width: int, height: int | None) -> UIContent:
        """Return the lines to draw."""
        self._lines = self._screen.state.lines(width, (height or 1) + 1)

        def get_line(number: int) -> StyleAndTextTuples:
            if number >= len(self._lines):
                return []
            line = self._lines[number]
            return style_line(line.fragments, f"class:{line.style}" if line.style else "")

        return UIContent(get_line, line_count=max(len(self._lines), 1), cursor_position=Point(0, 0), show_cursor=False)

    def mouse_handler(self, mouse_event: MouseEvent) -> object:
        """Scroll with the wheel; a click sorts, chooses a list, or puts the cursor into a row."""
        state = self._screen.state
        position = mouse_event.position
        if mouse_event.event_type is MouseEventType.SCROLL_DOWN:
            state.scroll(_WHEEL)
        elif mouse_event.event_type is MouseEventType.SCROLL_UP:
            state.scroll(-_WHEEL)
        elif mouse_event.event_type is MouseEventType.MOUSE_UP and position.y < len(self._lines):
            self._click(self._lines[position.y], position.x)
        else:
            return NotImplemented
        return None

    def _click(self, line: ScreenLine, x: int) -> None:
        state = self._screen.state
        state.shows_help = False
        if line.region is Region.HEADING:
            for span in state.headings:
                if span.start <= x < span.end:
                    state.sort_by(span.key)
                    return
        elif line.region is Region.TABS:
            start = 0
            for tab, label in state.tab_labels().items():
                if start <= x < start + len(label):
                    state.show_tab(tab)
                    return
                start += len(label) + 1
        elif line.row is not None:
            state.go_to(line.row)


class MonitorScreen:
    """A monitor on a terminal.

    :param state: of the screen; kept from one run to the next.
    :param terminal_input: by default the process's terminal.
    :param terminal_output: by default the process's terminal.
    """

    def __init__(
        self, state: MonitorState, *, terminal_input: Input | None = None, terminal_output: Output | None = None
    ) -> None:
        self.state = state
        self._control = MonitorControl(self)
        self._actions = self._make_actions()
        self.application: Application[str | None] = Application(
            layout=Layout(self._make_layout(), focused_element=self._control),
            key_bindings=self._make_bindings(),
            style=make_style(),
            full_screen=True,
            mouse_support=True,
            input=terminal_input,
            output=terminal_output,
        )
        self.application.ttimeoutlen = _ESCAPE_WAIT
        self.application.before_render += self._begin_frame
        self.application.after_render += self._start
        self.application.after_render += self._end_frame
        self._frame_started = 0.0

    def run(self, *, handle_sigint: bool = True) -> str | None:
        """Show the monitor until the user leaves it.

        :param handle_sigint: False inside a debugger that handles SIGINT.
        :return: the name of the buffer to view, None to end.
        """
        return self.application.run(handle_sigint=handle_sigint)

    # The work in the background.

    def _begin_frame(self, _application: Application[str | None]) -> None:
        self._frame_started = time.process_time()

    def _end_frame(self, _application: Application[str | None]) -> None:
        if isinstance(self.state.source, LiveSource):
            self.state.source.note_frame(time.process_time() - self._frame_started)

    def _start(self, _application: Application[str | None]) -> None:
        self.application.after_render -= self._start
        redraw_when_continued(self.application)
        self.application.create_background_task(self._advance())

    async def _advance(self) -> None:
        state = self.state
        try:
            while True:
                pause = state.source.pause if state.is_advancing else _IDLE
                # What is typed meanwhile is answered at once.
                rest = _IDLE if pause is None else min(pause, _IDLE)
                if isinstance(state.source, LiveSource) and state.source.is_stepped:
                    # The machine runs on while the screen is frozen.
                    state.source.wait(min(rest, _STEP))
                    rest = _BREATH
                await asyncio.sleep(rest)
                if state.is_advancing and state.source.pause == 0:
                    # In this thread, to which the Program belongs.
                    state.advance()
                    self.application.invalidate()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 (reported by who runs the application)
            if self.application.is_running:
                self.application.exit(exception=error)

    # The layout.

    def _make_layout(self) -> FloatContainer:
        state = self.state
        footer = FormattedTextControl(self._footer)
        body = HSplit([Window(self._control, wrap_lines=False), Window(footer, height=1, wrap_lines=False)])
        help_window = Window(
            FormattedTextControl(self._help), style="class:help", dont_extend_width=True, dont_extend_height=True
        )
        return FloatContainer(body, [Float(ConditionalContainer(help_window, Condition(lambda: state.shows_help)))])

    def _footer(self) -> StyleAndTextTuples:
        state, width = self.state, self.application.output.get_size().columns
        if state.is_asking:
            text = fit((("key", "Filter: "), ("", escape(state.filter))), max(width - 1, 1), fill=False)
            return [*style_line(text), ("class:cursor", " ")]
        found: StyleAndTextTuples = []
        for label, word, action in state.footer(width):
            handler = self._footer_handler(self._actions[action])
            found += [("class:key", label, handler), ("class:bar", word, handler), ("", " ")]
        return found

    def _footer_handler(self, action: Callable[[], None]) -> Callable[[MouseEvent], object]:
        def handle(mouse_event: MouseEvent) -> object:
            if mouse_event.event_type is not MouseEventType.MOUSE_UP:
                return NotImplemented
            action()
            return None

        return handle

    def _help(self) -> StyleAndTextTuples:
        lines = help_lines(is_playback=self.state.playback is not None)
        size = self.application.output.get_size()
        widest = max(len(label) for label, _ in lines)
        room = min(max(size.columns - 4, 10), 76)
        shown = lines[: max(size.rows - 1, 1)]
        texts = [fit((("", f" {label:<{widest}}  {text} "),), room) for label, text in shown]
        return [("", "\n".join("".join(text for _, text in line) for line in texts))]

    # Keys.

    def _make_bindings(self) -> KeyBindings:
        bindings = KeyBindings()
        asking = Condition(lambda: self.state.is_asking)
        keys = (*KEYS, *(PLAYBACK_KEYS if self.state.playback is not None else ()))
        for key in keys:
            for name in key.keys:
                bindings.add(name, filter=~asking)(self._binding(self._actions[key.action]))
        for name in ("enter", "c-c", "c-g", "escape"):
            bindings.add(name, filter=asking, eager=name == "escape")(self._end_asking(keeps=name == "enter"))

        @bindings.add("escape", filter=~asking, eager=True)
        def _(_event: KeyPressEvent) -> None:
            self.state.shows_help = False
            self.state.message = ""
            self.state.set_filter("")

        @bindings.add("backspace", filter=asking)
        def _(_event: KeyPressEvent) -> None:
            if not self.state.filter:
                self.state.is_asking = False
            self.state.set_filter(self.state.filter[:-1])

        @bindings.add("c-u", filter=asking)
        def _(_event: KeyPressEvent) -> None:
            self.state.set_filter("")

        @bindings.add(Keys.BracketedPaste, filter=asking)
        @bindings.add(Keys.Any, filter=asking)
        def _(event: KeyPressEvent) -> None:
            self.state.set_filter(self.state.filter + "".join(filter(str.isprintable, event.data)))

        @bindings.add(Keys.Any, filter=~asking)
        def _(_event: KeyPressEvent) -> None:
            self.state.shows_help = False
            self.state.message = "F1 lists the keys"

        return bindings

    def _binding(self, action: Callable[[], None]) -> Callable[[KeyPressEvent], None]:
        def run(_event: KeyPressEvent) -> None:
            if self.state.shows_help:
                # Any key closes help and does nothing else.
                self.state.shows_help = False
                return
            self.state.message = ""
            action()

        return run

    def _end_asking(self, *, keeps: bool) -> Callable[[KeyPressEvent], None]:
        def run(_event: KeyPressEvent) -> None:
            self.state.is_asking = False
            if not keeps:
                self.state.set_filter("")

        return run

    def _make_actions(self) -> dict[str, Callable[[], None]]:
        state = self.state
        return {
            "down": lambda: state.move(1),
            "up": lambda: state.move(-1),
            "page-down": lambda: state.page(1),
            "page-up": lambda: state.page(-1),
            "first": lambda: state.go_to(0),
            "last": lambda: state.go_to(len(state.rows) - 1),
            "next-tab": lambda: state.turn_tab(1),
            "previous-tab": lambda: state.turn_tab(-1),
            "sort-next": lambda: state.turn_sort(1),
            "sort-previous": lambda: state.turn_sort(-1),
            "sort-rate": lambda: state.sort_tasks("rate"),
            "sort-fill": lambda: state.sort_tasks("fill"),
            "sort-pid": lambda: state.sort_tasks("pid"),
            "invert": state.invert,
            "filter": self._ask,
            "freeze": state.toggle_freeze,
            "view": self._view,
            "redraw": lambda: self.application.renderer.clear(),
            "help": self._toggle_help,
            "leave": lambda: self.application.exit(),
            "back": lambda: state.seek(-_SEEK),
            "forward": lambda: state.seek(_SEEK),
            "look-back": lambda: state.step(-1),
            "look-forward": lambda: state.step(1),
            "start": lambda: state.go_to_end(last=False),
            "end": lambda: state.go_to_end(last=True),
            "faster": lambda: state.change_speed(2.0),
            "slower": lambda: state.change_speed(0.5),
        }

    def _toggle_help(self) -> None:
        self.state.shows_help = not self.state.shows_help

    def _ask(self) -> None:
        self.state.is_asking = True

    def _view(self) -> None:
        row = self.state.selected
        if self.state.playback is not None:
            self.state.message = "a recording has no buffers to view"
        elif row is None or row.buffer is None:
            self.state.message = "no buffer to view in this row"
        else:
            self.application.exit(result=row.buffer)


def show_monitor(source: MonitorSource, share: float | None, view: Callable[[str], str | None]) -> None:
    """Show a monitor on the process's terminal until the user leaves it.

    :param source: of what it shows.
    :param share: of a core that looking and drawing may take; None for a recording.
    :param view: views a buffer until the user leaves that, and returns why it could not.
    """
    state = MonitorState(source, share)
    if is_dumb(os.environ):
        _print_looks(state)
        return
    while (name := MonitorScreen(state).run()) is not None:
        state.message = view(name) or ""


def _print_looks(state: MonitorState) -> None:
    """Print each look as text, until C-c or the end of the source."""
    source = state.source
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            terminal = find_terminal()
            size = shutil.get_terminal_size()
            shown = [terminal.painter.paint(line.fragments).rstrip() for line in state.lines(size.columns, size.lines)]
            terminal.stdout.write("".join(f"{line}\n" for line in shown if line) + "\n")
            terminal.stdout.flush()
            if source.pause is None:
                return
            wait = source.wait if isinstance(source, LiveSource) else time.sleep
            wait(source.pause)
            state.advance()
