# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the shell says about its target: at the start, and in the status line."""

from __future__ import annotations

from collections.abc import Iterator

from kcovdbg import __version__
from kcovdbg.commands.session import Session
from kcovdbg.render.escape import escape
from kcovdbg.render.grid import remark_line
from kcovdbg.render.renderable import Line


def banner_lines(session: Session) -> Iterator[Line]:
    """Yield the lines of the banner."""
    target = session.target
    state = "live" if target.live else "not running"
    yield (
        ("header", f"kcovdbg {__version__}"),
        ("", f": {target.name}, Linux {target.release} {target.machine}, {state}, KCOV {session.layout.generation.era}"),
    )
    for note in target.notes:
        yield remark_line(note)
    yield (("hint", "help lists the commands, COMMAND? tells about one; C-d leaves"),)


def status_words(session: Session) -> tuple[str, ...]:
    """Return what the status line says about the target, the most important first."""
    target = session.target
    # This goes to the terminal by another way than the painter, which would escape it.
    words = (target.name, target.release, "live" if target.live else "dump", session.layout.generation.era)
    return tuple(escape(word) for word in words)
