# SPDX-License-Identifier: LGPL-2.1-or-later
"""The full-screen view; a frame draws only the rows on the screen."""

from __future__ import annotations

import asyncio
import textwrap
import time
from collections.abc import Iterable
from typing import Final

from prompt_toolkit.data_structures import Point
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.layout import ConditionalContainer, Window
from prompt_toolkit.layout.controls import FormattedTextControl, UIContent, UIControl
from prompt_toolkit.layout.dimension import Dimension

from kcovdbg.buffers.trace_coverage import LINE_MARKS, NO_MARK
from kcovdbg.buffers.trace_view import TraceView
from kcovdbg.buffers.view_state import ViewState
from kcovdbg.console.full_screen import fit
from kcovdbg.console.screen_application import ScreenApplication, ScreenKey, style_line
from kcovdbg.console.text import highlight
from kcovdbg.symbols.source_tree import NO_TREE, SourceText

# Least pause between two reads of a live buffer, in seconds, and as a multiple of the time that a
# read takes.
_RENEW_WAIT: Final = 1.0
_RENEW_SHARE: Final = 4
_SOURCE_SHARE: Final = 0.4
_DETAIL_ROWS: Final = 6
_WIDEST_NOTE: Final = 96


class RowControl(UIControl):
    """Draws the rows on the screen, whatever the length of the trace.

    :param state: the state of the view.
    """

    def __init__(self, state: ViewState) -> None:
        self._state = state

    def preferred_height(
        self,
        width: int,  # noqa: ARG002
        max_available_height: int,
        wrap_lines: bool,  # noqa: ARG002
        get_line_prefix: object,  # noqa: ARG002
    ) -> int | None:
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
            extra = ""
            if row == state.row:
                extra = "class:cursor"
            elif state.is_highlighted(row):
                extra = "class:match"
            return style_line(state.line(row, width), extra)

        cursor = Point(0, min(max(state.row - state.top, 0), max(count - 1, 0)))
        return UIContent(
            get_line, line_count=max(count, 1), cursor_position=cursor, show_cursor=False
        )


def _stack(lines: Iterable[StyleAndTextTuples]) -> StyleAndTextTuples:
    """Return lines as one text."""
    return [fragment for line in lines for fragment in (*line, ("", "\n"))][:-1]


class ViewScreen(ScreenApplication):
    """A view on a terminal.

    :param view: the view.
    """

    def __init__(self, view: TraceView) -> None:
        self.state: ViewState = ViewState(view)
        state = self.state
        body = [
            Window(FormattedTextControl(self._heading), height=1),
            Window(RowControl(state), wrap_lines=False),
            ConditionalContainer(
                Window(
                    FormattedTextControl(self._detail),
                    height=Dimension(max=_DETAIL_ROWS + 1),
                    style="class:gutter",
                ),
                Condition(lambda: state.shows_detail),
            ),
            ConditionalContainer(
                Window(FormattedTextControl(self._source), dont_extend_height=True),
                Condition(lambda: state.shows_source),
            ),
            Window(FormattedTextControl(self._status), height=1),
        ]
        super().__init__(
            KEYS, "?", body, lambda width: style_line(fit((("gutter", footer()),), width))
        )

    def _heading(self) -> StyleAndTextTuples:
        return style_line(self.state.view.heading(self.width), "class:bar")

    async def _work(self) -> None:
        pause = _RENEW_WAIT
        while self.state.view.renew is not None and not self.state.ending:
            await asyncio.sleep(pause)
            started = time.monotonic()
            # Keys wait for it, so it gets only a small share of the time.
            self.state.renew()
            pause = max(_RENEW_WAIT, _RENEW_SHARE * (time.monotonic() - started))
            self.application.invalidate()

    def _source(self) -> StyleAndTextTuples:
        """Return the source around the current record, or why there is none."""
        view, row = self.state.view, self.state.current()
        location = None if row is None else view.location(row)
        if row is None or location is None:
            return self._remark("no source location")
        frame = location.innermost
        if frame.file is None:
            return self._remark(location.remark or "no source line")
        heading = (
            ("path", f"{frame.file}:{frame.line}"),
            ("", "  "),
            ("symbol", frame.function or ""),
        )
        lines = [style_line(fit(heading, self.width), "class:bar")]
        tree = view.source(row)
        text = SourceText(None, ()) if tree is None else tree.read(frame.file)
        if not text.lines:
            return _stack([*lines, self._remark(text.remark or NO_TREE)])
        middle = frame.line or 1
        room = max(int(self.application.output.get_size().rows * _SOURCE_SHARE) - 1, 2)
        first = max(min(middle - room // 2, len(text.lines) - room + 1), 1)
        digits = len(str(first + room))
        states = view.find_states(row, frame.file)
        shown = highlight(text.lines[first - 1 : first - 1 + room], frame.file)
        for number, line in enumerate(shown, first):
            gutter = []
            for of_trace in states:
                found = of_trace.get(number)
                mark = NO_MARK if found is None else LINE_MARKS[found.state]
                gutter.append((mark.style, mark.sign))
            gutter.append(("gutter", f" {number:>{digits}} "))
            style = "class:cursor" if number == middle else ""
            lines.append(style_line(fit((*gutter, *line), self.width), style))
        return _stack(lines)

    def _remark(self, remark: str) -> StyleAndTextTuples:
        return style_line(fit((("remark", remark),), self.width))

    def _detail(self) -> StyleAndTextTuples:
        row = self.state.current()
        lines = [] if row is None else self.state.view.detail(row)
        return _stack(style_line(fit(line, self.width)) for line in lines[:_DETAIL_ROWS])

    def notes(self, width: int) -> Iterable[str]:
        """Yield all notes."""
        for note in self.state.view.remarks or ("no notes",):
            yield from textwrap.wrap(note, min(width, _WIDEST_NOTE))

    def _status(self) -> StyleAndTextTuples:
        message, remarks = self.state.message, self.state.view.remarks
        if not message and remarks:
            message = remarks[0]
            if len(remarks) > 1:
                message += f" (i: all {len(remarks)} notes)"
        return style_line(fit((("", f"{self.state.position()}  {message}".rstrip()),), self.width))


KEYS: Final = (
    ScreenKey("down j enter", "j ↓", "one record down", lambda screen: screen.state.move(1)),
    ScreenKey("up k", "k ↑", "one record up", lambda screen: screen.state.move(-1)),
    ScreenKey(
        "pagedown c-f space",
        "PgDn C-f Space",
        "one screen down",
        lambda screen: screen.state.page(1),
    ),
    ScreenKey("pageup c-b", "PgUp C-b", "one screen up", lambda screen: screen.state.page(-1)),
    ScreenKey("c-d", "C-d", "half a screen down", lambda screen: screen.state.page(0.5)),
    ScreenKey("c-u", "C-u", "half a screen up", lambda screen: screen.state.page(-0.5)),
    ScreenKey("home g", "g Home", "the first record", lambda screen: screen.state.go_to(0)),
    ScreenKey(
        "end G",
        "G End",
        "the last record",
        lambda screen: screen.state.go_to(len(screen.state.rows) - 1),
    ),
    ScreenKey(
        ":",
        ":",
        "go to a record by its index, or to 50%",
        lambda screen: screen.ask(":", screen.state.go_to_record),
    ),
    ScreenKey(
        "] tab",
        "] Tab",
        "the next difference",
        lambda screen: screen.state.next_difference(),
        "diff",
    ),
    ScreenKey(
        "[ s-tab",
        "[ S-Tab",
        "the previous difference",
        lambda screen: screen.state.next_difference(backwards=True),
    ),
    ScreenKey(
        "/",
        "/",
        "search functions, files and addresses for a regular expression",
        lambda screen: screen.ask("/", screen.state.search),
        "search",
    ),
    ScreenKey("n", "n", "the next match", lambda screen: screen.state.search_on(), "next"),
    ScreenKey(
        "N", "N", "the previous match", lambda screen: screen.state.search_on(backwards=True)
    ),
    ScreenKey(
        "&",
        "&",
        "show only matches of a regular expression; an empty one shows all",
        lambda screen: screen.ask("&", screen.state.set_filter),
        "filter",
    ),
    ScreenKey(
        "f",
        "f",
        "fold equal records of two traces, or runs of one function",
        lambda screen: screen.state.toggle_fold(),
        "fold",
    ),
    ScreenKey(
        "s",
        "s",
        "show the source of the current record: + executed, ~ in part, ! not, ? unknown",
        lambda screen: screen.state.toggle_source(),
        "source",
    ),
    ScreenKey(
        "d",
        "d",
        "show all frames and operands of the current record",
        lambda screen: screen.state.toggle_detail(),
        "frames",
    ),
    ScreenKey("i", "i", "show all notes", lambda screen: screen.pop_up(screen.notes)),
    ScreenKey(
        "c-l", "C-l", "redraw the screen", lambda screen: screen.application.renderer.clear()
    ),
    ScreenKey(
        "c-z",
        "C-z",
        "return to the shell, whose fg continues",
        lambda screen: screen.application.suspend_to_background(),
    ),
    ScreenKey(
        "? f1", "? F1", "show this help", lambda screen: screen.pop_up(screen.help_lines), "help"
    ),
    ScreenKey(
        "q escape c-c c-q", "q Esc", "leave", lambda screen: screen.application.exit(), "leave"
    ),
)


def footer() -> str:
    """Return the footer of the view."""
    return "  ".join(f"{key.label.split()[0]} {key.footer}" for key in KEYS if key.footer)


def show_view(view: TraceView) -> None:
    """Show a view on the process's terminal until the user leaves it."""
    ViewScreen(view).run()
