# SPDX-License-Identifier: LGPL-2.1-or-later
"""The full-screen view; a frame draws only the rows on the screen."""

from __future__ import annotations

import asyncio
import textwrap
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.data_structures import Point
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import ConditionalContainer, Float, FloatContainer, HSplit, Layout, Window
from prompt_toolkit.layout.controls import BufferControl, FormattedTextControl, UIContent, UIControl
from prompt_toolkit.layout.dimension import Dimension
from prompt_toolkit.layout.processors import BeforeInput
from prompt_toolkit.output import Output

from kcovdbg.buffers.trace_view import TraceView
from kcovdbg.buffers.view_state import ViewState
from kcovdbg.console.full_screen import fit, make_style, redraw_when_continued, style_line
from kcovdbg.console.text import highlight
from kcovdbg.model.location import Frame, Location
from kcovdbg.symbols.source_tree import NO_TREE, SourceText


class ViewKey(NamedTuple):
    """The keys of one action."""

    keys: tuple[str, ...]
    """As prompt_toolkit names them."""
    label: str
    """The keys' names in help."""
    action: str
    help: str
    footer: str = ""
    """The action in the footer; empty where it is not shown."""


KEYS: Final = (
    ViewKey(("down", "j", "enter"), "j ↓", "down", "one record down"),
    ViewKey(("up", "k"), "k ↑", "up", "one record up"),
    ViewKey(("pagedown", "c-f", " "), "PgDn C-f Space", "page-down", "one screen down"),
    ViewKey(("pageup", "c-b"), "PgUp C-b", "page-up", "one screen up"),
    ViewKey(("c-d",), "C-d", "half-down", "half a screen down"),
    ViewKey(("c-u",), "C-u", "half-up", "half a screen up"),
    ViewKey(("home", "g"), "g Home", "first", "the first record"),
    ViewKey(("end", "G"), "G End", "last", "the last record"),
    ViewKey((":",), ":", "go-to", "go to a record by its index, or to 50%"),
    ViewKey(("]", "tab"), "] Tab", "next-difference", "the next difference", "diff"),
    ViewKey(("[", "s-tab"), "[ S-Tab", "previous-difference", "the previous difference"),
    ViewKey(("/",), "/", "search", "search functions, files and addresses for a regular expression", "search"),
    ViewKey(("n",), "n", "search-next", "the next match", "next"),
    ViewKey(("N",), "N", "search-previous", "the previous match"),
    ViewKey(("&",), "&", "filter", "show only matches of a regular expression; an empty one shows all", "filter"),
    ViewKey(("f",), "f", "fold", "fold equal records of two traces, or runs of one function", "fold"),
    ViewKey(("s",), "s", "source", "show the source of the current record", "source"),
    ViewKey(("d",), "d", "detail", "show all frames and operands of the current record", "frames"),
    ViewKey(("i",), "i", "notes", "show all notes"),
    ViewKey(("c-l",), "C-l", "redraw", "redraw the screen"),
    ViewKey(("c-z",), "C-z", "suspend", "return to the shell, whose fg continues"),
    ViewKey(("?", "f1"), "? F1", "help", "show this help", "help"),
    ViewKey(("q", "escape", "c-c", "c-q"), "q Esc", "leave", "leave", "leave"),
)


def footer() -> str:
    """Return the footer of the view."""
    return "  ".join(f"{key.label.split()[0]} {key.footer}" for key in KEYS if key.footer)


def help_lines() -> list[tuple[str, str]]:
    """Return the names and actions of the keys."""
    return [(key.label, key.help) for key in KEYS]


# Terminals send an escape sequence at once: a key that follows Escape later is another key.
_ESCAPE_WAIT: Final = 0.05
# Seconds between two reads of a live buffer, and the least ratio of that pause to the time of a read.
_RENEW_WAIT: Final = 1.0
_RENEW_SHARE: Final = 4
_SOURCE_SHARE: Final = 0.4
_DETAIL_ROWS: Final = 6


class RowControl(UIControl):
    """Draws the rows on the screen, whatever the length of the trace.

    :param state: of the view.
    """

    def __init__(self, state: ViewState) -> None:
        self._state = state

    def preferred_height(self, width: int, max_available_height: int, wrap_lines: bool, get_line_prefix: object) -> int | None:  # noqa: ARG002
        """Return all the available height."""
        return max_available_height

    def is_focusable(self) -> bool:
        """Return True: keys go to the rows."""
        return True

    def create_content(self, width: int, height: int | None) -> UIContent:
        """Return the lines to draw."""
        state = self._state
        state.resize(height or 1)
        count = max(min(state.height, len(state.rows) - state.top), 0)

        def get_line(number: int) -> StyleAndTextTuples:
            row = state.top + number
            if number >= count:
                return []
            extra = "class:cursor" if row == state.row else "class:match" if state.is_highlighted(row) else ""
            return style_line(state.line(row, width), extra)

        cursor = Point(0, min(max(state.row - state.top, 0), max(count - 1, 0)))
        return UIContent(get_line, line_count=max(count, 1), cursor_position=cursor, show_cursor=False)


class SourceControl(UIControl):
    """Shows the source around the current record.

    :param state: of the view.
    """

    def __init__(self, state: ViewState) -> None:
        self._state = state

    def create_content(self, width: int, height: int | None) -> UIContent:
        """Return the lines to draw."""
        lines = self._lines(width, height or 1)
        return UIContent(lambda number: lines[number], line_count=max(len(lines), 1), show_cursor=False)

    def find_height(self, available: int) -> int:
        """Return the height that the source takes: all that is available, or that of a message."""
        location = self._location()
        if location is None or not location.frames:
            return 1
        text = self._text(location.frames[0])
        return available if text is not None and text.lines else 2

    def _location(self) -> Location | None:
        row = self._state.current()
        return None if row is None else self._state.view.location(row)

    def _text(self, frame: Frame) -> SourceText | None:
        row = self._state.current()
        tree = None if row is None else self._state.view.source(row)
        return None if tree is None else tree.read(frame.file)

    def _lines(self, width: int, height: int) -> list[StyleAndTextTuples]:
        location = self._location()
        if location is None or not location.frames or location.frames[0].file is None:
            why = "no source location" if location is None else location.remark or "no source line"
            return [style_line(fit((("remark", why),), width))]
        return self._around(location.frames[0], width, height)

    def _around(self, frame: Frame, width: int, height: int) -> list[StyleAndTextTuples]:
        heading = (("path", f"{frame.file}:{frame.line}"), ("", "  "), ("symbol", frame.function or ""))
        found = [style_line(fit(heading, width), "class:bar")]
        text = self._text(frame)
        if text is None or not text.lines:
            why = (None if text is None else text.remark) or NO_TREE
            return [*found, style_line(fit((("remark", why),), width))]
        middle = frame.line or 1
        room = max(height - 1, 1)
        first = max(min(middle - room // 2, len(text.lines) - room + 1), 1)
        shown = text.lines[first - 1 : first - 1 + room]
        digits = len(str(first + room))
        for number, line in enumerate(highlight(shown, frame.file or ""), first):
            gutter = ("gutter", f"{number:>{digits}} ")
            found.append(style_line(fit((gutter, *line), width), "class:cursor" if number == middle else ""))
        return found


class ViewScreen:
    """A view on a terminal.

    :param view: the view.
    :param terminal_input: by default the process's terminal.
    :param terminal_output: by default the process's terminal.
    """

    def __init__(self, view: TraceView, *, terminal_input: Input | None = None, terminal_output: Output | None = None) -> None:
        self.state = ViewState(view)
        self._prompt = Buffer(multiline=False, accept_handler=self._accept)
        self._asked: Callable[[str], None] | None = None
        self._asked_for = ""
        self._renews = view.renew is not None
        self._rows = RowControl(self.state)
        self._source = SourceControl(self.state)
        self.application: Application[None] = Application(
            layout=Layout(self._make_layout(), focused_element=self._rows),
            key_bindings=self._make_bindings(),
            style=make_style(),
            full_screen=True,
            input=terminal_input,
            output=terminal_output,
        )
        self.application.ttimeoutlen = _ESCAPE_WAIT
        self.application.after_render += self._start

    def run(self, *, handle_sigint: bool = True) -> None:
        """Show the view until the user leaves it.

        :param handle_sigint: False inside a debugger that handles SIGINT.
        """
        self.application.run(handle_sigint=handle_sigint)

    def _start(self, _application: Application[None]) -> None:
        self.application.after_render -= self._start
        redraw_when_continued(self.application)
        if self._renews:
            self.application.create_background_task(self._renew())

    async def _renew(self) -> None:
        pause = _RENEW_WAIT
        while not self.state.ending:
            await asyncio.sleep(pause)
            started = time.monotonic()
            # In this thread, to which the Program belongs. Keys wait for it, so it gets only a small share of the time.
            self.state.renew()
            pause = max(_RENEW_WAIT, _RENEW_SHARE * (time.monotonic() - started))
            self.application.invalidate()

    @property
    def _is_asking(self) -> bool:
        return self._asked is not None

    def _make_layout(self) -> FloatContainer:
        state = self.state
        asking = Condition(lambda: self._is_asking)
        prompt = BufferControl(self._prompt, input_processors=[BeforeInput(lambda: self._asked_for)])

        def width() -> int:
            return self.application.output.get_size().columns

        heading = FormattedTextControl(lambda: style_line(state.view.heading(width()), "class:bar"))
        status = FormattedTextControl(lambda: style_line(fit((("", self._status()),), width())))
        keys = FormattedTextControl(lambda: style_line(fit((("gutter", footer()),), width())))
        body = HSplit(
            [
                Window(heading, height=1),
                Window(self._rows, wrap_lines=False),
                ConditionalContainer(
                    Window(FormattedTextControl(self._detail), height=Dimension(max=_DETAIL_ROWS + 1), style="class:gutter"),
                    Condition(lambda: state.shows_detail),
                ),
                ConditionalContainer(
                    Window(self._source, height=self._source_height, wrap_lines=False),
                    Condition(lambda: state.shows_source),
                ),
                Window(status, height=1),
                ConditionalContainer(Window(prompt, height=1), asking),
                ConditionalContainer(Window(keys, height=1), ~asking),
            ]
        )
        help_window = Window(
            FormattedTextControl(self._help), style="class:help", dont_extend_width=True, dont_extend_height=True
        )
        return FloatContainer(
            body, [Float(ConditionalContainer(help_window, Condition(lambda: state.shows_help or state.shows_notes)))]
        )

    def _source_height(self) -> Dimension:
        available = max(int(self.application.output.get_size().rows * _SOURCE_SHARE), 3)
        return Dimension.exact(self._source.find_height(available))

    def _detail(self) -> StyleAndTextTuples:
        row = self.state.current()
        lines = [] if row is None else self.state.view.detail(row)
        width = self.application.output.get_size().columns
        found: StyleAndTextTuples = []
        for number, line in enumerate(lines[:_DETAIL_ROWS]):
            found += [("", "\n")] if number else []
            found += style_line(fit(line, width))
        return found

    def _help(self) -> StyleAndTextTuples:
        size = self.application.output.get_size()
        if self.state.shows_notes:
            notes = self.state.view.remarks or ("no notes",)
            wrapped = [line for note in notes for line in textwrap.wrap(note, max(min(size.columns, 100) - 4, 10))]
            return [("", "\n".join(f" {line} " for line in wrapped[: max(size.rows - 1, 1)]))]
        lines = help_lines()
        widest = max(len(label) for label, _ in lines)
        room = max(size.columns - 4, 10)
        texts = [fit((("", f" {label:<{widest}}  {text} "),), min(room, 80)) for label, text in lines[: max(size.rows - 1, 1)]]
        return [("", "\n".join("".join(text for _, text in line) for line in texts))]

    def _status(self) -> str:
        state = self.state
        if state.message:
            return f"{state.position()}  {state.message}"
        remarks = state.view.remarks
        return (
            f"{state.position()}  {remarks[0]}{f' (i: all {len(remarks)} notes)' if len(remarks) > 1 else ''}"
            if remarks
            else state.position()
        )

    # Keys.

    def _make_bindings(self) -> KeyBindings:
        bindings = KeyBindings()
        moving = Condition(lambda: not self._is_asking)
        actions = self._actions()
        for key in KEYS:
            for name in key.keys:
                bindings.add(name, filter=moving, eager=name == "escape")(self._binding(actions[key.action]))

        @bindings.add("escape", filter=~moving, eager=True)
        @bindings.add("c-c", filter=~moving)
        @bindings.add("c-g", filter=~moving)
        def _(_event: KeyPressEvent) -> None:
            self._stop_asking()

        @bindings.add("backspace", filter=~moving & Condition(lambda: not self._prompt.text))
        def _(_event: KeyPressEvent) -> None:
            self._stop_asking()

        def name_help() -> None:
            self.state.message = "? lists the keys"

        bindings.add(Keys.Any, filter=moving)(self._binding(name_help))

        return bindings

    def _binding(self, action: Callable[[], None]) -> Callable[[KeyPressEvent], None]:
        def run(_event: KeyPressEvent) -> None:
            if self.state.shows_help or self.state.shows_notes:
                # Any key closes help and notes, and does nothing else.
                self.state.shows_help = self.state.shows_notes = False
                return
            action()

        return run

    def _actions(self) -> dict[str, Callable[[], None]]:
        state = self.state
        return {
            "down": lambda: state.move(1),
            "up": lambda: state.move(-1),
            "page-down": lambda: state.page(1),
            "page-up": lambda: state.page(-1),
            "half-down": lambda: state.page(0.5),
            "half-up": lambda: state.page(-0.5),
            "first": lambda: state.go_to(0),
            "last": lambda: state.go_to(len(state.rows) - 1),
            "go-to": lambda: self._ask(":", state.go_to_record),
            "next-difference": state.next_difference,
            "previous-difference": lambda: state.next_difference(backwards=True),
            "search": lambda: self._ask("/", state.search),
            "search-next": state.search_on,
            "search-previous": lambda: state.search_on(backwards=True),
            "filter": lambda: self._ask("&", state.set_filter),
            "fold": state.toggle_fold,
            "source": self._toggle("shows_source"),
            "detail": self._toggle("shows_detail"),
            "redraw": lambda: self.application.renderer.clear(),
            "suspend": lambda: self.application.suspend_to_background(),
            "help": self._toggle("shows_help"),
            "notes": self._toggle("shows_notes"),
            "leave": lambda: self.application.exit(),
        }

    def _toggle(self, attribute: str) -> Callable[[], None]:
        def toggle() -> None:
            setattr(self.state, attribute, not getattr(self.state, attribute))

        return toggle

    def _ask(self, sign: str, answer: Callable[[str], None]) -> None:
        self._prompt.reset()
        self._asked, self._asked_for = answer, sign
        self.application.layout.focus(self._prompt)

    def _accept(self, buffer: Buffer) -> bool:
        answer, text = self._asked, buffer.text
        self._stop_asking()
        if answer is not None:
            answer(text)
        return False

    def _stop_asking(self) -> None:
        self._asked = None
        self.application.layout.focus(self._rows)


def show_view(view: TraceView) -> None:
    """Show a view on the process's terminal until the user leaves it."""
    ViewScreen(view).run()
