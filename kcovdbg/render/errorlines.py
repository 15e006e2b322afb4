# SPDX-License-Identifier: LGPL-2.1-or-later
"""An error as the user sees it: what went wrong, where in the line, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator

from kcovdbg.errors import KcovdbgError, LineError
from kcovdbg.render.escape import escape
from kcovdbg.render.renderable import Line
from kcovdbg.render.width import text_width


def error_lines(error: KcovdbgError, where: str | None = None) -> Iterator[Line]:
    """Yield the lines of an error.

    :param where: the file and line that it came from, if it came from one.
    """
    yield (("error", "kcovdbg: "), ("", f"{where}: {error}" if where is not None else str(error)))
    if isinstance(error, LineError):
        yield (("", f"  {error.line}"),)
        yield (("", " " * (2 + text_width(escape(error.line[: error.column])))), ("caret", "^"))
    if error.hint is not None:
        yield (("hint", f"  {error.hint}"),)
