# SPDX-License-Identifier: LGPL-2.1-or-later
"""The full-screen monitor."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from prompt_toolkit.application import Application
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import ConditionalContainer, Float, FloatContainer, HSplit, Layout, Window
from prompt_toolkit.layout.controls import FormattedTextControl
from prompt_toolkit.output import Output

from kcovdbg.console.full_screen import fit, make_style, redraw_when_continued, style_line
from kcovdbg.console.terminal import find_terminal, is_dumb
from kcovdbg.console.text import escape
from kcovdbg.monitor.monitor_source import MonitorSource, PlaybackSource
from kcovdbg.monitor.screen_state import MonitorState

_ESCAPE_WAIT: Final = 0.05
_SEEK: Final = 5.0
# Seconds between two looks at whether there is something to do again.
_IDLE: Final = 0.2
# Of a machine that is stopped for each look: seconds that it runs before keys are answered, and seconds for keys.
_STEP: Final = 0.15
_BREATH: Final = 0.01
# Seconds between two looks that are printed, as by top -b.
_PRINT_WAIT: Final = 3.0


class _Key(NamedTuple):
    """The keys of one action."""

    keys: tuple[str, ...]
    """As prompt_toolkit names them."""
    label: str
    """The keys' names in help."""
    help: str
    action: Callable[[MonitorScreen], object]
    footer: str = ""
    """The action in the footer; empty where it is not shown."""


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
        self._keys = (*KEYS[:-1], *(PLAYBACK_KEYS if state.playback is not None else ()), KEYS[-1])
        self.application: Application[str | None] = Application(
            layout=Layout(self._make_layout()),
            key_bindings=self._make_bindings(),
            style=make_style(),
            full_screen=True,
            input=terminal_input,
            output=terminal_output,
        )
        self.application.ttimeoutlen = _ESCAPE_WAIT
        self.application.after_render += self._start

    def run(self, *, handle_sigint: bool = True) -> str | None:
        """Show the monitor until the user leaves it.

        :param handle_sigint: False inside a debugger that handles SIGINT.
        :return: the name of the buffer to view, None to end.
        """
        return self.application.run(handle_sigint=handle_sigint)

    # The work in the background.

    def _start(self, _application: Application[str | None]) -> None:
        self.application.after_render -= self._start
        redraw_when_continued(self.application)
        self.application.create_background_task(self._advance())

    async def _advance(self) -> None:
        state = self.state
        try:
            while True:
                pause = state.source.pause if state.is_advancing else _IDLE
                # Keys typed meanwhile are answered at once.
                rest = _IDLE if pause is None else min(pause, _IDLE)
                if state.source.is_stepped:
                    # The machine runs on while the screen is frozen.
                    state.source.wait(min(rest, _STEP))
                    rest = _BREATH
                await asyncio.sleep(rest)
                if state.is_advancing and state.source.pause == 0:
                    # In this thread, to which the Program belongs.
                    state.advance()
                    self.application.invalidate()
                elif not state.is_frozen and state.activity is not state.source.activity:
                    # The machine ended while it ran.
                    state.refresh()
                    self.application.invalidate()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 (reported by who runs the application)
            if self.application.is_running:
                self.application.exit(exception=error)

    # The layout.

    def _make_layout(self) -> FloatContainer:
        state = self.state
        body = HSplit(
            [
                Window(FormattedTextControl(self._body, focusable=True, show_cursor=False)),
                Window(FormattedTextControl(self._footer), height=1),
            ]
        )
        help_window = Window(
            FormattedTextControl(self._help), style="class:help", dont_extend_width=True, dont_extend_height=True
        )
        return FloatContainer(body, [Float(ConditionalContainer(help_window, Condition(lambda: state.shows_help)))])

    def _body(self) -> StyleAndTextTuples:
        found: StyleAndTextTuples = []
        size = self.application.output.get_size()
        for line in self.state.lines(size.columns, size.rows):
            found += [("", "\n")] if found else []
            found += style_line(line.fragments, f"class:{line.style}" if line.style else "")
        return found

    def _footer(self) -> StyleAndTextTuples:
        state, width = self.state, self.application.output.get_size().columns
        if state.is_asking:
            line = fit((("key", "Filter: "), ("", escape(state.filter))), max(width - 1, 1), fill=False)
            return [*style_line(line), ("class:cursor", " ")]
        found: StyleAndTextTuples = []
        taken = 0
        for key in self._keys:
            label = key.label.split()[0]
            taken += len(label) + len(key.footer) + 1 if key.footer else 0
            if key.footer and taken <= width + 1:
                found += [("class:key", label), ("class:bar", key.footer), ("", " ")]
        return found

    def _help(self) -> StyleAndTextTuples:
        lines = [(key.label, key.help) for key in (*KEYS, *self._keys[len(KEYS) - 1 : -1]) if key.help]
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
        for key in self._keys:
            for name in key.keys:
                bindings.add(name, filter=~asking)(self._binding(partial(key.action, self)))
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

    def _binding(self, action: Callable[[], object]) -> Callable[[KeyPressEvent], None]:
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

    def toggle_help(self) -> None:
        """Show help, or hide it."""
        self.state.shows_help = not self.state.shows_help

    def ask(self) -> None:
        """Ask for the filter."""
        self.state.is_asking = True

    def suspend(self) -> None:
        """Stop the process, as a shell's job."""
        if self.state.source.is_stepped:
            self.state.message = "the machine would be stopped as well; q leaves"
        else:
            self.application.suspend_to_background()

    def view(self) -> None:
        """Leave the screen for the buffer of the row with the cursor."""
        row = self.state.selected
        if self.state.playback is not None:
            self.state.message = "a recording has no buffers to view"
        elif row is None or row.buffer is None:
            self.state.message = "no buffer to view in this row"
        else:
            self.application.exit(result=row.buffer)


_MOVING: Final = "↑ ↓ PgUp PgDn g G"
# Keys of htop do the same.
KEYS: Final[tuple[_Key, ...]] = (
    _Key(("f1", "?", "h"), "F1 ?", "show this help", lambda screen: screen.toggle_help(), "Help"),
    _Key(
        ("f4", "/", "\\"), "F4 / \\", "show only rows with a text; Esc shows all again", lambda screen: screen.ask(), "Filter"
    ),
    _Key(
        ("f6", ">", "."),
        "F6 > <",
        "sort by the next column or the one before",
        lambda screen: screen.state.turn_sort(1),
        "Sort",
    ),
    _Key(("<", ","), "<", "", lambda screen: screen.state.turn_sort(-1)),
    _Key(("I",), "I", "invert the order", lambda screen: screen.state.invert()),
    _Key(("tab",), "Tab S-Tab", "the next list or the one before", lambda screen: screen.state.turn_tab(1), "List"),
    _Key(("s-tab",), "S-Tab", "", lambda screen: screen.state.turn_tab(-1)),
    _Key(
        (" ", "z", "Z"),
        "Space z",
        "freeze the screen, or pause the playback; go on",
        lambda screen: screen.state.toggle_freeze(),
        "Freeze",
    ),
    _Key(("enter",), "Enter", "view the buffer of this row; q comes back", lambda screen: screen.view(), "View"),
    _Key(("up", "k"), _MOVING, "move", lambda screen: screen.state.move(-1)),
    _Key(("down", "j"), _MOVING, "", lambda screen: screen.state.move(1)),
    _Key(("pageup", "c-b"), _MOVING, "", lambda screen: screen.state.page(-1)),
    _Key(("pagedown", "c-f"), _MOVING, "", lambda screen: screen.state.page(1)),
    _Key(("home", "g"), _MOVING, "", lambda screen: screen.state.go_to(0)),
    _Key(("end", "G"), _MOVING, "", lambda screen: screen.state.go_to(len(screen.state.rows) - 1)),
    _Key(("c-l",), "C-l", "redraw the screen", lambda screen: screen.application.renderer.clear()),
    _Key(("c-z",), "C-z", "return to the shell, whose fg continues", lambda screen: screen.suspend()),
    _Key(("q", "f10", "c-c", "c-q"), "q F10", "leave", lambda screen: screen.application.exit(), "Quit"),
)


def _play_key(
    key: str, label: str, text: str, change: Callable[[PlaybackSource], object], footer: str = "", *, pauses: bool = False
) -> _Key:
    return _Key((key,), label, f"playback: {text}", lambda screen: screen.state.play(change, pauses=pauses), footer)


PLAYBACK_KEYS: Final[tuple[_Key, ...]] = (
    _play_key("left", "←", "5 s back", lambda source: source.seek(-_SEEK), "Back"),
    _play_key("right", "→", "5 s on", lambda source: source.seek(_SEEK), "On"),
    _play_key("[", "[", "one look back", lambda source: source.go_to(source.index - 1), pauses=True),
    _play_key("]", "]", "one look on", lambda source: source.go_to(source.index + 1), pauses=True),
    _play_key("0", "0", "the start", lambda source: source.go_to(0)),
    _play_key("$", "$", "the end", lambda source: source.go_to(len(source.samples) - 1)),
    _play_key("+", "+", "twice as fast", lambda source: source.change_speed(2.0)),
    _play_key("-", "-", "half as fast", lambda source: source.change_speed(0.5)),
)


def show_monitor(source: MonitorSource, view: Callable[[str], str | None]) -> None:
    """Show a monitor on the process's terminal until the user leaves it.

    :param source: of what it shows.
    :param view: views a buffer until the user leaves that, and returns why it could not.
    """
    state = MonitorState(source)
    if is_dumb(os.environ):
        _print_looks(state)
        return
    while (name := MonitorScreen(state).run()) is not None:
        state.message = view(name) or ""


def _print_looks(state: MonitorState) -> None:
    """Print what has changed in a look now and then, and in the last one, as text, until C-c or the end of the source."""
    source = state.source
    due = time.monotonic()
    before: list[str] = []
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            if source.pause is None or time.monotonic() >= due:
                due = time.monotonic() + _PRINT_WAIT
                terminal = find_terminal()
                size = shutil.get_terminal_size()
                shown = [terminal.painter.paint(line.fragments).rstrip() for line in state.lines(size.columns, size.lines)]
                terminal.stdout.write("".join(f"{line}\n" for line in shown if line and line not in before) + "\n")
                before = shown
                terminal.stdout.flush()
            if source.pause is None:
                return
            source.wait(source.pause)
            state.advance()
