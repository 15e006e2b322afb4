# SPDX-License-Identifier: LGPL-2.1-or-later
"""drgn's warnings and errors, as notes and errors for the user."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Final

import drgn
from drgn.helpers import ValidationError

from kcovdbg.errors import ReadError, TargetError

_MAX_NOTES: Final = 4

WALK_ERRORS: Final = (
    drgn.FaultError,
    drgn.ObjectAbsentError,
    drgn.OutOfBoundsError,
    ValidationError,
    AttributeError,
    LookupError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
)
"""The errors of drgn's helpers that walk damaged or missing memory."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


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


@contextlib.contextmanager
def reading_debug_info() -> Iterator[None]:
    """Turn drgn's errors about damaged debug info into one for the user.

    :raises TargetError: in place of them.
    """
    try:
        yield
    except Exception as error:
        # libdw's errors are bare exceptions. drgn's own name the file and the section.
        if type(error) is not Exception and not isinstance(error, drgn.BadDataError):
            raise
        message = f"could not read debug info: {first_line(error)}"
        raise TargetError(message, hint="the file is damaged: copy or build it again") from error


@contextlib.contextmanager
def walking(what: str) -> Iterator[None]:
    """Raise :class:`ReadError` for the exceptions of drgn's helpers in the block."""
    try:
        yield
    except Exception as error:
        # drgn raises bare Exceptions, for debug info without the variables of the direct map for
        # instance.
        if isinstance(error, ReadError) or not (
            type(error) is Exception or isinstance(error, WALK_ERRORS)
        ):
            raise
        address = error.address if isinstance(error, drgn.FaultError) else 0
        raise ReadError(f"could not read {what}: {first_line(error)}", address) from None
