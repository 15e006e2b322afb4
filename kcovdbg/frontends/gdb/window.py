# SPDX-License-Identifier: LGPL-2.1-or-later
"""A window of the TUI with the records of a buffer, beside the source."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import gdb
from kcovdbg.abi import record
from kcovdbg.analysis.located_records import locate_records
from kcovdbg.engine.buffer_sources import find_buffer
from kcovdbg.engine.context import Context
from kcovdbg.engine.workspace import Workspace
from kcovdbg.errors import KcovdbgError, UsageError
from kcovdbg.frontends.gdb.charset import to_host
from kcovdbg.frontends.gdb.kcov_show import Show, error_text
from kcovdbg.frontends.gdb.source_window import SourceWindow
from kcovdbg.render.escape import escape
from kcovdbg.render.width import elide, elide_start, pad
from kcovdbg.render.wording import buffer_title, record_text
from kcovdbg.target.gdb.target import GdbTarget

if TYPE_CHECKING:
    from kcovdbg.model.buffer import Buffer

NAME: Final = "kcov"
_LAYOUT: Final = "{-horizontal src 1 kcov 1} 2 status 0 cmd 1"
_REVERSE: Final = "\x1b[7m"
_PLAIN: Final = "\x1b[m"
_NOTHING: Final = ("kcov-window WHAT shows a buffer here;", "see help kcov-show buffer for WHAT")


class WindowContents:
    """The contents of the window, which outlive GDB's windows: they come and go with layouts."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self._workspace: Workspace | None = None
        self._buffer: Buffer | None = None
        self._problem: tuple[str, ...] = _NOTHING
        self.window: BufferWindow | None = None
        self.what: str | None = None
        self.selected = 0
        self.top = 0
        self.source = SourceWindow()
        self._is_shown = True

    def read(self) -> None:
        """Read the buffer again."""
        if self.what is None:
            return
        workspace = self._show.workspace()
        context = Context(workspace, workspace.commands.find("buffer"), workspace.terminal())
        try:
            self._buffer = find_buffer(context, self.what)
            self._problem = () if self._buffer.count else ("no records",)
        except (KcovdbgError, gdb.error) as error:
            self._buffer = None
            self._problem = tuple(error_text(error).splitlines())
        self._workspace = workspace
        self.selected = max(0, min(self.selected, self.count - 1))

    @property
    def count(self) -> int:
        """How many records there are."""
        return 0 if self._buffer is None else self._buffer.count

    @property
    def title(self) -> str:
        """The title in the window's frame."""
        return NAME if self._buffer is None else escape(buffer_title(self._buffer))

    def select(self, index: int) -> None:
        """Select a record, and show its line in the source window."""
        if not self.count:
            return
        self.selected = max(0, min(index, self.count - 1))
        if self.window is None:
            return
        self.window.render()
        if self._is_shown:
            # Not inside a call of the TUI, and after the prompt, which shows where the target stopped.
            self._is_shown = False
            gdb.post_event(self._show_source)

    def _show_source(self) -> None:
        self._is_shown = True
        address = self._address()
        if address is not None and self.window is not None and self.window.height:
            self.source.show(address, self.window.height)

    def _address(self) -> int | None:
        """Return the address of the selected record's call in GDB's symbols."""
        if self._buffer is None or self._workspace is None or not isinstance(self._workspace.optional_target, GdbTarget):
            return None
        found = record.decode_record(self._buffer.words, self.selected, self._buffer.encoding)
        if found.pc is None:
            return None
        return self._workspace.optional_target.address_in_gdb(found.pc + self._buffer.kaslr_offset - 1)

    def lines(self, height: int, width: int, shift: int) -> list[str]:
        """Return the lines of the window, which include the selected record.

        :param shift: columns that the user scrolled to the right.
        """
        if self._problem:
            return [elide(line[shift:], width) for line in self._problem][:height]
        if self.selected < self.top:
            self.top = self.selected
        elif self.selected >= self.top + height:
            self.top = self.selected - height + 1
        self.top = max(0, min(self.top, self.count - height))
        assert self._buffer is not None
        assert self._workspace is not None
        indices = range(self.top, min(self.top + height, self.count))
        digits = len(str(self.count - 1))
        lines: list[str] = []
        for row in locate_records(self._buffer, self._workspace.names, indices):
            index, text = row.record.number, record_text(row)
            function = f"{text.sign} {text.function}" if text.sign else text.function
            line = self._line(f"{index:>{digits}} ", escape(function), escape(text.place), width, shift)
            lines.append(f"{_REVERSE}{line}{_PLAIN}" if index == self.selected else line)
        return lines

    @staticmethod
    def _line(number: str, what: str, where: str, width: int, shift: int) -> str:
        if shift:
            return pad(elide(f"{number}{what}  {where}"[shift:], width), width)
        room = width - len(number)
        # The function first; of the place, its end.
        left = min(len(what), max(room - 1 - len(where), room // 2))
        right = elide_start(where, max(0, room - left - 1))
        return number + pad(elide(what, left), room - len(right)) + right


class BufferWindow:
    """The window object that GDB calls.

    :param tui_window: GDB's window.
    """

    def __init__(self, view: WindowContents, tui_window: gdb.TuiWindow) -> None:
        self._view = view
        self._window = tui_window
        self._shift = 0
        view.window = self

    def render(self) -> None:
        """Draw everything."""
        # False after `tui disable`.
        if not self._window.is_valid():
            return
        # A line as wide as the window would be followed by an empty one.
        height, width = self._window.height, self._window.width - 1
        if height <= 0 or width <= 0:
            return
        self._window.title = to_host(elide(self._view.title, max(1, width - 4)), narrow=True)
        self._window.write(to_host("\n".join(self._view.lines(height, width, self._shift)), narrow=True), True)

    @property
    def height(self) -> int:
        """The height in lines."""
        return self._window.height if self._window.is_valid() else 0

    def close(self) -> None:
        """Forget GDB's window, which the layout no longer has."""
        if self._view.window is self:
            self._view.window = None

    def vscroll(self, lines: int) -> None:
        """Select another record: the arrow keys, Page Up and Page Down, while the window has the focus."""
        self._view.select(self._view.selected + lines)

    def hscroll(self, columns: int) -> None:
        """Scroll to the right."""
        self._shift = max(0, self._shift + columns)
        self.render()

    def click(self, column: int, line: int, button: int) -> None:  # noqa: ARG002 - GDB's signature
        """Select the record that was clicked on."""
        self._view.select(self._view.top + line)


class WindowCommand(gdb.Command):
    """Show a KCOV buffer in a window of the TUI, beside the source.

    Usage: kcov-window [WHAT | next | previous | first | last | record N]

    WHAT is a buffer name as for kcov-show buffer. The buffer is read again whenever the target stops. With the focus (focus
    kcov) the arrow keys, Page Up and Page Down select a record, as does a click. The source window shows the line of the
    selected record, or of its caller if the function is in a header.

    Without an argument, or if the layout has no such window, a layout named kcov is made and used:
        tui new-layout kcov {-horizontal src 1 kcov 1} 2 status 0 cmd 1

    Examples:
        kcov-window 41
            what did task 41 execute?
        kcov-window next
            the record after the selected one, and its source line
        kcov-window record 1200
    """

    def __init__(self, view: WindowContents) -> None:
        self._view = view
        super().__init__("kcov-window", gdb.COMMAND_TUI if hasattr(gdb, "COMMAND_TUI") else gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:  # noqa: ARG002 - GDB's signature
        """Run the command."""
        words = gdb.string_to_argv(argument)
        view = self._view
        steps = {"next": view.selected + 1, "previous": view.selected - 1, "first": 0, "last": view.count - 1}
        try:
            if len(words) == 1 and words[0] in steps:
                view.select(steps[words[0]])
            elif len(words) == 2 and words[0] == "record" and words[1].isdecimal():
                view.select(int(words[1]))
            elif len(words) <= 1:
                self.dont_repeat()
                self._open(words)
            else:
                raise UsageError(f"kcov-window: unexpected argument '{words[1]}'", hint="help kcov-window")
        except KcovdbgError as error:
            raise gdb.GdbError(error_text(error)) from None

    def complete(self, text: str, word: str | None) -> list[str]:
        """Complete the words that are not buffer names."""
        return [name for name in ("first", "last", "next", "previous", "record") if word is not None and name.startswith(text)]

    def _open(self, words: list[str]) -> None:
        view = self._view
        if words:
            view.what, view.selected, view.top = words[0], 0, 0
        view.read()
        if view.window is None:
            with contextlib.suppress(gdb.error):
                # The layout exists, perhaps in a shape of the user's.
                gdb.execute(f"tui new-layout {NAME} {_LAYOUT}")
            try:
                gdb.execute(f"layout {NAME}")
            except gdb.error as error:
                raise KcovdbgError(str(error), hint=f"without a terminal: kcov-show buffer {view.what or 'WHAT'}") from None
        view.select(view.selected)
        if view.window is not None:
            view.window.render()


def define_window(show: Show) -> None:
    """Define the window and its command in GDB."""
    if not hasattr(gdb, "register_window_type") or "buffer" not in show.table:
        # A GDB without the TUI.
        return
    view = WindowContents(show)
    gdb.register_window_type(NAME, lambda window: BufferWindow(view, window))
    WindowCommand(view)

    def refresh(event: object) -> None:  # noqa: ARG001 - GDB's signature
        if view.window is not None:
            gdb.post_event(lambda: _refresh(view))

    gdb.events.stop.connect(refresh)
    # Any command may have moved the source window.
    gdb.events.before_prompt.connect(lambda *_: view.source.forget())


def _refresh(view: WindowContents) -> None:
    if view.window is not None:
        view.read()
        view.window.render()
