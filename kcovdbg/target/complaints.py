# SPDX-License-Identifier: LGPL-2.1-or-later
"""What drgn warns of while it opens a kernel, as notes for the user."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Final

_MAX_LOG_NOTES: Final = 4


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage().splitlines()[0]
        if line not in self.lines:
            self.lines.append(line)


@contextlib.contextmanager
def collect_warnings(notes: list[str]) -> Iterator[None]:
    """Collect what drgn warns of inside the block, rather than have it on the terminal.

    :param notes: gets a line for each of the first few warnings.
    """
    logger = logging.getLogger("drgn")
    collector = _Collector()
    propagate = logger.propagate
    logger.addHandler(collector)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(collector)
        logger.propagate = propagate
        notes += collector.lines[:_MAX_LOG_NOTES]
        if len(collector.lines) > _MAX_LOG_NOTES:
            notes.append(f"drgn warned of {len(collector.lines) - _MAX_LOG_NOTES} more things")
