# SPDX-License-Identifier: LGPL-2.1-or-later
"""Limits of memory, disk and time for one input, by names with which the user can raise them.

``--limit NAME=VALUE`` and ``[limits]`` of config.toml set a limit in the environment, from where the processes that kcovdbg
starts take it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from kcovdbg.errors import KcovdbgError, LimitError

VARIABLE: Final = "KCOVDBG_LIMITS"
"""The environment variable: ``NAME=VALUE`` pairs with blanks between them."""
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_VALUE: Final = re.compile(r"(\d{1,15})([KMGT]?)", re.ASCII)


class Limit(NamedTuple):
    """One limit."""

    default: int
    """In bytes or seconds."""
    meaning: str
    is_time: bool = False

    def format(self, value: int) -> str:
        """Return a value as the user would type it."""
        if self.is_time:
            return str(value)
        unit = next(unit for unit, size in reversed(_UNITS.items()) if value % size == 0 and (value or not unit))
        return f"{value // _UNITS[unit]}{unit}"


UNPACKED_SIZE: Final = "unpacked-size"
TRACE_SIZE: Final = "trace-size"
TEXT_SIZE: Final = "text-size"
REPLY_SIZE: Final = "reply-size"
REPLY_TIME: Final = "reply-time"
LIMITS: Final[Mapping[str, Limit]] = {
    UNPACKED_SIZE: Limit(2 << 30, "contents of a compressed file, or of its sections; 100 times its size are allowed"),
    TRACE_SIZE: Limit(1 << 28, "a trace file"),
    TEXT_SIZE: Limit(64 << 20, "a source file, a side file, a row of a recording"),
    REPLY_SIZE: Limit(16 << 20, "one reply of QEMU or a GDB stub"),
    REPLY_TIME: Limit(30, "seconds until a reply of QEMU or a GDB stub is complete", is_time=True),
}


def parse_limit(name: str, text: str) -> int:
    """Return the value of a limit from text such as ``8G``, in bytes or seconds.

    :raises KcovdbgError: when there is no such limit, or it is not a value.
    """
    if name not in LIMITS:
        raise KcovdbgError(f"unknown limit '{name}'", hint=f"one of {', '.join(LIMITS)}")
    match = _VALUE.fullmatch(text)
    if match is None or (LIMITS[name].is_time and match[2]):
        example = "a number of seconds, such as 60" if LIMITS[name].is_time else "a size, such as 512M or 8G"
        raise KcovdbgError(f"limit {name}: '{text}' is not a value", hint=f"give {example}")
    return int(match[1]) * _UNITS[match[2]]


def set_limits(values: Mapping[str, int]) -> None:
    """Set limits for this process and those that it starts; others keep their values."""
    if values:
        os.environ[VARIABLE] = " ".join(f"{name}={value}" for name, value in {**_read_environment(), **values}.items())


def find_limit(name: str) -> int:
    """Return the value of a limit that is in force, in bytes or seconds.

    :raises KcovdbgError: when the environment variable is malformed.
    """
    return _read_environment().get(name, LIMITS[name].default)


def _read_environment() -> dict[str, int]:
    pairs = (word.partition("=") for word in os.environ.get(VARIABLE, "").split())
    return {name: parse_limit(name, text) for name, _, text in pairs}


def over_limit(name: str, subject: str, value: int | None = None) -> LimitError:
    """Return the error of an input that exceeds a limit.

    :param subject: what exceeds it.
    :param value: of the limit for this input; None for the value in force.
    """
    limit = LIMITS[name]
    value = find_limit(name) if value is None else value
    shown = f"{value} s" if limit.is_time else f"{limit.format(value)} bytes"
    more = limit.format(max(2 * value, 1))
    return LimitError(
        f"{subject}: more than {shown}, the limit {name}",
        hint=f"if you trust it: kcovdbg --limit {name}={more}, or {name} in [limits] of config.toml",
    )
