# SPDX-License-Identifier: LGPL-2.1-or-later
"""The shell: a prompt with history, completion and a status line, or a plain prompt on dumb
terminals.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, TextIO

from kcovdbg import __version__
from kcovdbg.console.completion_index import Harvest
from kcovdbg.console.context import Workspace
from kcovdbg.console.grid import remark_line
from kcovdbg.console.renderable import Line, wrap_line
from kcovdbg.console.terminal import is_dumb, is_terminal
from kcovdbg.frontends.shell.loop import (
    LEAVE,
    Transcript,
    make_pager_command,
    read_plain_line,
    run_lines,
)

if TYPE_CHECKING:
    from prompt_toolkit.input import Input
    from prompt_toolkit.output import Output


# Seconds before a progress message is shown.
_PATIENCE: Final = 1.0


def run_interactively(
    workspace: Workspace,
    *,
    quiet: bool,
    input: Input | None = None,  # noqa: A002 - as prompt_toolkit calls it
    output: Output | None = None,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Run the shell until the user leaves it.

    :param workspace: the workspace, which gets the shell's own commands. Its target is opened at
        once, so that errors come before the prompt.
    :param quiet: whether to leave out the banner.
    :param input: where keys come from; by default the terminal.
    :param output: where the prompt goes; by default the terminal.
    :param environment: variables of the environment; by default the process's.
    :return: the exit status.
    :raises KcovdbgError: when the target cannot be opened, or has no KCOV.
    """
    environment = os.environ if environment is None else environment
    transcript = Transcript()
    workspace.commands = workspace.commands.with_commands(
        LEAVE, make_pager_command(workspace), transcript.make_command()
    )
    with progress_word(workspace.terminal().stderr, "reading debug info …", _PATIENCE):
        if workspace.inputs.kernel.target.memory_problem is None:
            _ = workspace.inputs.kernel.memory.layout
    if not quiet:
        workspace.terminal().show(banner_lines(workspace))
    harvest = Harvest(workspace)
    has_terminal = is_terminal(sys.stdout) or is_terminal(sys.stderr)
    has_screen = output is not None or (has_terminal and not is_dumb(environment))
    read: Callable[[], str] = read_plain_line
    if has_screen and (input is not None or is_terminal(sys.stdin)):
        # Imported here, so that scripts and single commands need not wait a tenth of a second.
        from kcovdbg.frontends.shell.prompt import make_reader

        read = make_reader(workspace, harvest, environment, transcript, input, output)
    try:
        return run_lines(workspace, read, harvest, environment, transcript)
    finally:
        transcript.close()


def banner_lines(workspace: Workspace) -> Iterator[Line]:
    """Yield the lines of the banner."""
    target = workspace.inputs.kernel.target
    text = f": {target.memory_problem or target.name}, Linux {target.release} {target.machine}"
    if target.memory_problem is None:
        text += ", live" if target.live else ", not running"
    yield (("header", f"kcovdbg {__version__}"), ("", text))
    for note in (*target.notes, target.connection.stop_note()):
        if note is not None:
            yield from wrap_line(remark_line(note), workspace.terminal().width)
    yield (("hint", "help lists the commands, COMMAND? shows help for one; C-d leaves"),)


@contextlib.contextmanager
def progress_word(stream: TextIO, word: str, patience: float) -> Iterator[None]:
    """Show a message on a terminal while a block takes longer than expected, then clear it."""
    if not is_terminal(stream):
        yield
        return
    shown = threading.Event()

    def show() -> None:
        shown.set()
        stream.write(word)
        stream.flush()

    # The timer's thread only writes, because drgn's Program belongs to this thread. It can run
    # meanwhile: drgn releases the GIL while it reads debug info.
    timer = threading.Timer(patience, show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        if shown.is_set():
            # Blanks work on every terminal, unlike escape sequences.
            stream.write(f"\r{' ' * len(word)}\r")
            stream.flush()
