# SPDX-License-Identifier: LGPL-2.1-or-later
"""Warnings of drgn while it opens a kernel, as notes for the user."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Final

_MAX_NOTES: Final = 4


class DrgnWarnings(logging.Handler):
    """drgn's warnings, each once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._lines: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the first line of a warning."""
        self._lines.setdefault(record.getMessage().splitlines()[0])

    @property
    def notes(self) -> Sequence[str]:
        """The first few warnings, a line each, and how many more there were."""
        lines = [*self._lines]
        more = len(lines) - _MAX_NOTES
        return lines if more <= 0 else [*lines[:_MAX_NOTES], f"{more} more warnings from drgn"]


@contextlib.contextmanager
def collect_warnings() -> Iterator[DrgnWarnings]:
    """Collect drgn's warnings in the block, which otherwise go to the terminal."""
    logger = logging.getLogger("drgn")
    warnings = DrgnWarnings()
    propagate = logger.propagate
    logger.addHandler(warnings)
    logger.propagate = False
    try:
        yield warnings
    finally:
        logger.removeHandler(warnings)
        logger.propagate = propagate
