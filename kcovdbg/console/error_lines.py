# SPDX-License-Identifier: LGPL-2.1-or-later
"""The lines of an error: message, place in the line, hint."""

from __future__ import annotations

from collections.abc import Iterator

from kcovdbg.errors import KcovdbgError, LineError
from kcovdbg.console.escape import escape
from kcovdbg.console.paragraph import wrap_line
from kcovdbg.console.renderable import Line
from kcovdbg.console.width import text_width


def error_lines(error: KcovdbgError, where: str | None = None, width: int | None = None) -> Iterator[Line]:
    """Yield the lines of an error.

    :param where: its file and line, if any.
    :param width: of the terminal; None for other output.
    """
    yield from wrap_line((("error", "kcovdbg: "), ("", f"{where}: {error}" if where is not None else str(error))), width)
    if isinstance(error, LineError):
        yield (("", f"  {error.line}"),)
        yield (("", " " * (2 + text_width(escape(error.line[: error.column])))), ("caret", "^"))
    if error.hint is not None:
        yield from wrap_line((("hint", f"  {error.hint}"),), width, 2)
