# SPDX-License-Identifier: LGPL-2.1-or-later
"""A window of the TUI with the records of a buffer, beside the source."""

from __future__ import annotations

import contextlib
from typing import Any, List, Optional

import gdb

from .child import Fields
from .lender import Lender
from .output import to_host
from .source_window import SourceWindow

NAME = "kcov"
_LAYOUT = "{-horizontal src 1 kcov 1} 2 status 0 cmd 1"
_REVERSE = "\x1b[7m"
_PLAIN = "\x1b[m"
_NOTHING = ["kcov-window WHAT shows a buffer here;", "see help kcov-show buffer for WHAT"]


class WindowContents:
    """The contents of the window: GDB makes another window for each layout."""

    def __init__(self, lender: Lender) -> None:
        self._lender = lender
        self.window: Optional[BufferWindow] = None
        self.what: Optional[str] = None
        self.drawn: Fields = {
            "title": NAME,
            "count": 0,
            "selected": 0,
            "top": 0,
            "lines": _NOTHING,
            "address": None,
        }
        self.source = SourceWindow()
        self._is_shown = True

    def read(self) -> None:
        """Read the buffer again, and draw it."""
        if self.what is not None:
            self._draw(self.drawn["selected"], reads=True)
        if self.window is not None:
            self.window.render()

    def begin(self, what: str) -> None:
        """Show another buffer, from its start."""
        self.what = what
        self.drawn = dict(self.drawn, selected=0, top=0)

    def _draw(self, selected: int, *, reads: bool = False) -> None:
        height, width, shift = 24, 80, 0
        if self.window is not None:
            height, width, shift = self.window.size
        place = {
            "selected": selected,
            "top": self.drawn["top"],
            "height": height,
            "width": width,
            "shift": shift,
        }
        try:
            self.drawn = self._lender.ask("rows", what=self.what, reads=reads, **place)
        except gdb.GdbError as error:
            lines = [line[shift : shift + width] for line in str(error).splitlines()][:height]
            self.drawn = dict(self.drawn, title=NAME, count=0, lines=lines, address=None)

    def redraw(self) -> None:
        """Draw again after the window changed its size or was scrolled."""
        if self.drawn["count"]:
            self._draw(self.drawn["selected"])

    def select(self, index: int) -> None:
        """Select a record, and show its line in the source window."""
        if not self.drawn["count"]:
            return
        self._draw(index)
        if self.window is None:
            return
        self.window.render(draws=False)
        if self._is_shown:
            # Not now: GDB is inside the TUI, and before the prompt it moves the source window to
            # where the target stopped.
            self._is_shown = False
            gdb.post_event(self._show_source)

    def _show_source(self) -> None:
        self._is_shown = True
        if self.drawn["address"] is not None and self.window is not None and self.window.size[0]:
            self.source.show(self.drawn["address"], self.window.size[0])


class BufferWindow:
    """The window object that GDB calls.

    :param tui_window: GDB's window.
    """

    def __init__(self, contents: WindowContents, tui_window: Any) -> None:
        self._contents = contents
        self._window = tui_window
        self._shift = 0
        contents.window = self

    @property
    def size(self) -> Any:
        """Height, width, and the columns that the user scrolled to the right; the height is 0 after
        ``tui disable``.
        """
        if not self._window.is_valid():
            return 0, 0, 0
        # One column stays free: GDB writes an empty line after one that fills the window.
        return self._window.height, self._window.width - 1, self._shift

    def render(self, *, draws: bool = True) -> None:
        """Write the lines into the window.

        :param draws: whether to draw the lines again, because the window's size may have changed.
        """
        height, width, _ = self.size
        if height <= 0 or width <= 0:
            return
        if draws:
            self._contents.redraw()
        drawn = self._contents.drawn
        self._window.title = to_host(drawn["title"][: max(1, width - 4)], narrow=True)
        lines = [to_host(line, narrow=True) for line in drawn["lines"][:height]]
        number = drawn["selected"] - drawn["top"]
        if drawn["count"] and 0 <= number < len(lines):
            lines[number] = _REVERSE + lines[number] + _PLAIN
        self._window.write("\n".join(lines), True)

    def close(self) -> None:
        """Forget GDB's window, which the layout no longer has."""
        if self._contents.window is self:
            self._contents.window = None

    def vscroll(self, lines: int) -> None:
        """Select another record: the arrow keys, Page Up and Page Down, while the window has the
        focus.
        """
        self._contents.select(self._contents.drawn["selected"] + lines)

    def hscroll(self, columns: int) -> None:
        """Scroll to the right."""
        self._shift = max(0, self._shift + columns)
        self.render()

    def click(self, column: int, line: int, button: int) -> None:
        """Select the record that was clicked on."""
        self._contents.select(self._contents.drawn["top"] + line)


class _WindowCommand(gdb.Command):
    """Show a KCOV buffer in a window of the TUI, beside the source.

    Usage: kcov-window [WHAT | next | previous | first | last | record N]

    WHAT is a buffer name as for kcov-show buffer. The buffer is read again whenever the target
    stops. With the focus (focus kcov) the arrow keys, Page Up and Page Down select a record, as
    does a click. The source window shows the line of the selected record, or of its caller if the
    function is in a header.

    Without an argument, or if the layout has no such window, a layout named kcov is made and used:
        tui new-layout kcov {-horizontal src 1 kcov 1} 2 status 0 cmd 1

    Examples:
        kcov-window 41
            what did task 41 execute?
        kcov-window next
            the record after the selected one, and its source line
        kcov-window record 1200
    """

    def __init__(self, contents: WindowContents) -> None:
        self._contents = contents
        super().__init__("kcov-window", getattr(gdb, "COMMAND_TUI", gdb.COMMAND_DATA))

    def invoke(self, argument: str, from_tty: bool) -> None:
        """Run the command."""
        words = gdb.string_to_argv(argument)
        contents = self._contents
        selected = contents.drawn["selected"]
        steps = {
            "next": selected + 1,
            "previous": selected - 1,
            "first": 0,
            "last": contents.drawn["count"] - 1,
        }
        if len(words) == 1 and words[0] in steps:
            contents.select(steps[words[0]])
        elif len(words) == 2 and words[0] == "record" and words[1].isdecimal():
            contents.select(int(words[1]))
        elif len(words) <= 1:
            self.dont_repeat()
            self._open(words)
        else:
            raise gdb.GdbError(
                "kcovdbg: kcov-window: unexpected argument '%s'\n  help kcov-window" % words[1]
            )

    def complete(self, text: str, word: Optional[str]) -> List[str]:
        """Complete the words that are not buffer names."""
        return [
            name
            for name in ("first", "last", "next", "previous", "record")
            if word is not None and name.startswith(text)
        ]

    def _open(self, words: List[str]) -> None:
        contents = self._contents
        if words:
            contents.begin(words[0])
        if contents.window is None:
            with contextlib.suppress(gdb.error):
                # An error says that the layout exists, perhaps with other windows of the user's.
                gdb.execute("tui new-layout %s %s" % (NAME, _LAYOUT))
            try:
                gdb.execute("layout " + NAME)
            except gdb.error as error:
                hint = "without a terminal: kcov-show buffer " + (contents.what or "WHAT")
                raise gdb.GdbError("kcovdbg: %s\n  %s" % (error, hint)) from None
        contents.read()
        contents.select(contents.drawn["selected"])


def define(lender: Lender) -> None:
    """Define the window and its command in GDB."""
    if not hasattr(gdb, "register_window_type"):
        # A GDB without the TUI.
        return
    contents = WindowContents(lender)
    gdb.register_window_type(NAME, lambda window: BufferWindow(contents, window))
    _WindowCommand(contents)

    def refresh() -> None:
        if contents.window is not None:
            contents.read()

    def note(_event: object) -> None:
        if contents.window is not None:
            gdb.post_event(refresh)

    gdb.events.stop.connect(note)
    # Any command may have moved the source window.
    gdb.events.before_prompt.connect(lambda *_: contents.source.forget())
