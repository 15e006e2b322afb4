# SPDX-License-Identifier: LGPL-2.1-or-later
"""The commands that only the shell has: ``exit``, ``pager`` and ``transcript``."""

from __future__ import annotations

import contextlib
import io
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final, TextIO, cast

from kcovdbg.console.argument import Argument, Count, Value
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.output_files import open_text
from kcovdbg.console.renderable import Lines, text_lines
from kcovdbg.console.terminal import Terminal
from kcovdbg.console.workspace import Workspace
from kcovdbg.frontends.shell.pager import SGR

_OFF: Final = "off"

PROMPT: Final = "kcovdbg> "


class LeaveShell(BaseException):
    """Raised when the user leaves the shell; not an Exception, because nothing went wrong."""


def _leave(context: Context, args: Namespace) -> None:  # noqa: ARG001
    raise LeaveShell


LEAVE: Final = Command(
    name="exit",
    summary="leave the shell, as C-d does",
    topic=Topic.OTHER,
    run=_leave,
    examples=(Example("exit", "leave the shell"),),
    needs=frozenset(),
    aliases=("quit", "q"),
)


def make_pager_command(workspace: Workspace) -> Command:
    """Return the command that switches the pager of a shell off and on."""
    configured = workspace.settings.pager

    def run(context: Context, args: Namespace) -> Lines | None:
        settings = context.workspace.settings
        if args.switch is None:
            return text_lines(_OFF if settings.pager == "" else "on")
        context.workspace.settings = replace(settings, pager="" if args.switch == _OFF else configured)
        return None

    return Command(
        name="pager",
        summary="show answers in the pager, or not",
        topic=Topic.OTHER,
        run=run,
        description="Without an argument, show which. The setting pager in config.toml, or $PAGER, is the program.",
        arguments=(Argument(("switch",), Value.TEXT, "on or off", count=Count.OPTIONAL, choices=("on", _OFF)),),
        examples=(Example("pager off", "let long answers scroll by"), Example("pager", "is it on?")),
        needs=frozenset(),
    )


class Transcript:
    """A file into which everything that is typed and shown in a shell is written, while there is one."""

    def __init__(self) -> None:
        self._path: str | None = None
        self._file: TextIO | None = None
        self._open = contextlib.ExitStack()

    @contextlib.contextmanager
    def recording(self, terminal: Terminal, typed: str = "") -> Iterator[Terminal]:
        """Yield the terminal, written to the file as well.

        :param typed: the line whose answer follows.
        """
        if self._file is None:
            yield terminal
            return
        file = self._file
        if typed:
            file.write(f"{PROMPT}{typed}\n")
        try:
            stdout, stderr = (
                _CopiedStream(stream, partial(self._write, file)) for stream in (terminal.stdout, terminal.stderr)
            )
            yield replace(terminal, stdout=cast("TextIO", stdout), stderr=cast("TextIO", stderr))
        finally:
            if self._file is file:
                file.flush()

    def _write(self, file: TextIO, text: str) -> None:
        # The line that is run may have ended it.
        if self._file is file:
            file.write(text)

    def close(self) -> None:
        """End the file, if there is one."""
        self._open.close()
        self._path = self._file = None

    def make_command(self) -> Command:
        """Return the command that begins and ends the transcript."""

        def run(context: Context, args: Namespace) -> Lines | None:
            if args.file is None:
                return text_lines(self._path or _OFF)
            self.close()
            if args.file != _OFF:
                self._file = self._open.enter_context(open_text(args.file, context.inputs, append=True))
                self._path = args.file
            return None

        return Command(
            name="transcript",
            summary="write what is typed and shown to a file as well",
            topic=Topic.OTHER,
            run=run,
            description=(
                "A file that exists is continued. Without an argument, show which. Full-screen views are not written. "
                "Meanwhile shell commands do not have the terminal for their output."
            ),
            arguments=(
                Argument(("file",), Value.FILE, "the file, or off", count=Count.OPTIONAL, metavar="FILE", is_output=True),
            ),
            examples=(
                Example("transcript session.txt", "keep what follows, for a report"),
                Example("transcript off", "no more"),
            ),
            needs=frozenset(),
        )


class _CopiedStream(io.TextIOBase):
    """A stream whose text also goes to a file, without colors. It has no descriptor, so that children's output goes there.

    :param stream: the stream.
    :param copy: writes to the file.
    """

    def __init__(self, stream: TextIO, copy: Callable[[str], None]) -> None:
        super().__init__()
        self._stream = stream
        self._copy = copy

    def writable(self) -> bool:
        """Return True."""
        return True

    def isatty(self) -> bool:
        """Return whether the stream is a terminal."""
        return self._stream.isatty()

    def write(self, text: str) -> int:
        """Write to both."""
        self._copy(SGR.sub("", text))
        return self._stream.write(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()
