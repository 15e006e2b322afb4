# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where answers and errors go, and what can be shown there."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TextIO

from kcovdbg.render.paint import Painter
from kcovdbg.render.theme import Color, is_terminal, wants_color


@dataclass(frozen=True, slots=True)
class Terminal:
    """A pair of streams with what they can show. It needn't be a terminal."""

    stdout: TextIO
    stderr: TextIO
    width: int | None = None
    """Of the terminal that stdout is; None where it is none."""
    painter: Painter = Painter()  # noqa: RUF009 - painters don't change
    error_painter: Painter = Painter()  # noqa: RUF009
    color: Color = Color.AUTO

    @property
    def is_terminal(self) -> bool:
        """Whether answers go to a terminal."""
        return self.width is not None

    def with_stdout(self, stream: TextIO) -> Terminal:
        """Return the same with answers going to a file or a pipe."""
        painter = Painter.colored() if self.color is Color.ALWAYS else Painter()
        return replace(self, stdout=stream, width=None, painter=painter)


def find_terminal(
    color: Color = Color.AUTO,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    environment: Mapping[str, str] | None = None,
) -> Terminal:
    """Look at the streams that the process has now.

    Each command asks anew: streams get replaced, and windows change their size.
    """
    stdout = sys.stdout if stdout is None else stdout
    stderr = sys.stderr if stderr is None else stderr
    environment = os.environ if environment is None else environment

    def painter(stream: TextIO) -> Painter:
        colored = wants_color(color, terminal=is_terminal(stream), environment=environment)
        return Painter.colored() if colored else Painter()

    width = shutil.get_terminal_size().columns if is_terminal(stdout) else None
    return Terminal(stdout, stderr, width, painter(stdout), painter(stderr), color)
