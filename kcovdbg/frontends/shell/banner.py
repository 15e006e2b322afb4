# SPDX-License-Identifier: LGPL-2.1-or-later
"""The banner and the status line of the shell."""

from __future__ import annotations

from collections.abc import Iterator

from kcovdbg import __version__
from kcovdbg.console.workspace import Workspace
from kcovdbg.console.escape import escape
from kcovdbg.console.grid import remark_line
from kcovdbg.console.paragraph import wrap_line
from kcovdbg.console.renderable import Line


def banner_lines(workspace: Workspace) -> Iterator[Line]:
    """Yield the lines of the banner."""
    target = workspace.target
    text = f": {target.memory_problem or target.name}, Linux {target.release} {target.machine}"
    if target.memory_problem is None:
        text += f", {'live' if target.live else 'not running'}, KCOV {workspace.layout.generation.era}"
    yield (("header", f"kcovdbg {__version__}"), ("", text))
    stop_note = target.stop_note()
    for note in [*target.notes, *([stop_note] if stop_note is not None else [])]:
        yield from wrap_line(remark_line(note), workspace.terminal().width)
    yield (("hint", "help lists the commands, COMMAND? shows help for one; C-d leaves"),)


def status_words(workspace: Workspace) -> tuple[str, ...]:
    """Return the words of the status line, the most important first."""
    target = workspace.target
    if target.memory_problem is not None:
        words: tuple[str, ...] = (target.name, target.release, "no memory")
    else:
        words = (
            target.name,
            target.release,
            "gone" if target.is_gone() else "live" if target.live else "dump" if target.state() is None else "stopped",
            workspace.layout.generation.era,
        )
    # The painter, which escapes text, is not used for the status line.
    return tuple(escape(word) for word in words)
