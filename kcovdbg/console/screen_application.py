# SPDX-License-Identifier: LGPL-2.1-or-later
"""Full-screen applications: a table of keys with its help, a question in the last line, and
redrawing after a shell's fg.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import (
    AnyContainer,
    ConditionalContainer,
    Float,
    FloatContainer,
    HSplit,
    Layout,
    Window,
)
from prompt_toolkit.layout.controls import BufferControl, FormattedTextControl
from prompt_toolkit.layout.processors import BeforeInput
from prompt_toolkit.styles import Style

from kcovdbg.console.full_screen import fit
from kcovdbg.console.renderable import Line
from kcovdbg.console.terminal import THEME

# Terminals send an escape sequence at once: a key that follows Escape later is another key.
_ESCAPE_WAIT: Final = 0.05
_WIDEST_HELP: Final = 80
_SGR: Final = {
    "1": "bold",
    "2": "ansibrightblack",
    "31": "ansired",
    "32": "ansigreen",
    "34": "ansiblue",
    "35": "ansimagenta",
    "36": "ansicyan",
}


def _make_style() -> Style:
    """Return the theme as prompt_toolkit's style, with the classes of views."""
    # Reversed colors would be white on cyan or on green in a light terminal.
    reverse = "noinherit reverse"
    rules = {"cursor": reverse, "match": "underline", "bar": reverse, "help": reverse}
    for name, codes in THEME.items():
        rules[_class_of(name)] = " ".join(filter(None, map(_SGR.get, codes.split(";"))))
    return Style.from_dict(rules)


def _class_of(style: str) -> str:
    return style.replace(".", "-")


def style_line(line: Line, extra: str = "") -> StyleAndTextTuples:
    """Return a line with the classes of its styles, and one more for all of it."""
    styled: StyleAndTextTuples = []
    for style, text in line:
        classes = f"class:{_class_of(style)} {extra}" if style else extra
        styled.append((classes.strip(), text))
    return styled


class ScreenKey(NamedTuple):
    """The keys of one action."""

    keys: str
    """As prompt_toolkit names them, separated by blanks."""
    label: str
    """The keys' names in help."""
    help: str
    """Empty for a key that the help of another one names."""
    action: Callable[[Any], object]
    """Takes the screen."""
    footer: str = ""
    """The action in the footer; empty if it is not shown there."""


class _Question(NamedTuple):
    sign: str
    answer: Callable[[str], object]
    is_live: bool


class _ScreenState(Protocol):
    message: str


class ScreenApplication:
    """An application on a terminal.

    :param keys: the keys that it handles.
    :param help_key: the name of the key that lists the keys.
    :param body: the windows above the last line, which has the keys or a question.
    :param footer: returns the line of keys for a width.
    """

    state: _ScreenState

    def __init__(
        self,
        keys: Sequence[ScreenKey],
        help_key: str,
        body: Sequence[AnyContainer],
        footer: Callable[[int], StyleAndTextTuples],
    ) -> None:
        self.keys = keys
        self._help_key = help_key
        self.popup: Callable[[int], Iterable[str]] | None = None
        """Returns the lines for a width that are shown over the screen until the next key."""
        self._question: _Question | None = None
        self._prompt = Buffer(
            multiline=False, accept_handler=self._accept, on_text_changed=self._change
        )
        asking = Condition(lambda: self._question is not None)
        sign = BeforeInput(lambda: "" if self._question is None else self._question.sign)
        question = Window(BufferControl(self._prompt, input_processors=[sign]), height=1)
        popup = Window(
            FormattedTextControl(self._draw_popup),
            style="class:help",
            dont_extend_width=True,
            dont_extend_height=True,
        )
        bar = Window(FormattedTextControl(lambda: footer(self.width)), height=1)
        windows = [
            *body,
            ConditionalContainer(question, asking),
            ConditionalContainer(bar, ~asking),
        ]
        self.application: Application[str | None] = Application(
            layout=Layout(
                FloatContainer(
                    HSplit(windows),
                    [Float(ConditionalContainer(popup, Condition(lambda: self.popup is not None)))],
                )
            ),
            key_bindings=self._make_bindings(asking),
            style=_make_style(),
            full_screen=True,
        )
        self._rows = self.application.layout.current_control
        self.application.ttimeoutlen = _ESCAPE_WAIT
        self.application.after_render += self._start

    @property
    def width(self) -> int:
        """The columns of the screen."""
        return self.application.output.get_size().columns

    def run(self) -> str | None:
        """Show the application until the user leaves it; return the result of leaving it."""
        return self.application.run()

    def _start(self, application: Application[str | None]) -> None:
        application.after_render -= self._start
        # Outside of the main thread there are no handlers.
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            asyncio.get_running_loop().add_signal_handler(
                signal.SIGCONT, self._redraw_when_continued
            )
        application.create_background_task(self._work())

    async def _work(self) -> None:
        """Do the work in the background, in this thread, to which the Program belongs."""
        raise NotImplementedError

    def _redraw_when_continued(self) -> None:
        """Show the application again after a stop.

        SIGSTOP leaves a process no time to restore the terminal, whose mode the shell then sets.
        """
        application = self.application
        with contextlib.suppress(OSError):
            foreground = os.tcgetpgrp(application.input.fileno())
            if not application.is_running or foreground != os.getpgrp():
                # Continued in the background: the terminal is another process's. `fg` sends the
                # signal again.
                return
        # Set the mode now; the application restores the original one.
        application.input.raw_mode().__enter__()
        application.renderer.reset()
        application.invalidate()

    # Keys.

    def _make_bindings(self, asking: Condition) -> KeyBindings:
        bindings = KeyBindings()
        for key in self.keys:
            for name in key.keys.split():
                bindings.add(name, filter=~asking, eager=name == "escape")(self._bind(key.action))
        bindings.add(Keys.Any, filter=~asking)(
            self._bind(lambda screen: screen.say(f"{self._help_key} lists the keys"))
        )
        for name in ("escape", "c-c", "c-g"):
            bindings.add(name, filter=asking, eager=name == "escape")(self._cancel)
        bindings.add("backspace", filter=asking & Condition(lambda: not self._prompt.text))(
            self._cancel
        )
        return bindings

    def _bind(self, action: Callable[[Any], object]) -> Callable[[KeyPressEvent], None]:
        def run(_event: KeyPressEvent) -> None:
            if self.popup is not None:
                # Any key closes help and does nothing else.
                self.popup = None
                return
            self.say("")
            action(self)

        return run

    def say(self, message: str) -> None:
        """Show a message until the next key."""
        self.state.message = message

    # A question.

    def ask(
        self, sign: str, answer: Callable[[str], object], *, is_live: bool = False, text: str = ""
    ) -> None:
        """Ask for a text.

        :param sign: stands before the text.
        :param answer: takes the text.
        :param is_live: whether answer() also takes each change, and an empty text if the user
            cancels.
        :param text: the text to change.
        """
        self._prompt.reset(Document(text))
        self._question = _Question(sign, answer, is_live)
        self.application.layout.focus(self._prompt)

    def _change(self, buffer: Buffer) -> None:
        if self._question is not None and self._question.is_live:
            self._question.answer(buffer.text)

    def _accept(self, buffer: Buffer) -> bool:
        self._end_question(buffer.text)
        return False

    def _cancel(self, _event: KeyPressEvent) -> None:
        self._end_question("" if self._question is not None and self._question.is_live else None)

    def _end_question(self, text: str | None) -> None:
        question, self._question = self._question, None
        self.application.layout.focus(self._rows)
        if question is not None and text is not None:
            question.answer(text)

    # Help and other lines over the screen.

    def pop_up(self, lines: Callable[[int], Iterable[str]]) -> None:
        """Show lines for a width until the next key."""
        self.popup = lines

    def help_lines(self, width: int) -> Iterable[str]:
        """Yield a line for each action."""
        shown = [key for key in self.keys if key.help]
        widest = max(len(key.label) for key in shown)
        for key in shown:
            line = (("", f"{key.label:<{widest}}  {key.help}"),)
            yield "".join(text for _, text in fit(line, min(width, _WIDEST_HELP)))

    def _draw_popup(self) -> StyleAndTextTuples:
        size = self.application.output.get_size()
        lines = () if self.popup is None else self.popup(max(size.columns - 6, 10))
        return [("", "\n".join(f" {line} " for line in [*lines][: max(size.rows - 1, 1)]))]
