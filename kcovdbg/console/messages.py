# SPDX-License-Identifier: LGPL-2.1-or-later
"""Errors as lines, and suggestions for a wrong word."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kcovdbg.console.paragraph import wrap_line
from kcovdbg.console.renderable import Line
from kcovdbg.console.text import escape, text_width
from kcovdbg.errors import KcovdbgError, LineError


def suggest(word: str, known: Iterable[str]) -> str | None:
    """Return a hint with the known words that are similar to this one, None where there are none."""
    import difflib

    known = tuple(known)
    near = [name for name in known if len(word) >= 2 and name.startswith(word)]
    near += [name for name in difflib.get_close_matches(word, known, n=3, cutoff=0.65) if name not in near]
    return f"did you mean {' or '.join(near[:3])}?" if near else None


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
