# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which style class looks how, and whether a stream gets colours at all."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, TextIO

# Only the sixteen colours that a terminal's own theme defines, none of which is unreadable on a light or a dark background.
THEME: Final[Mapping[str, str]] = MappingProxyType(
    {
        "header": "1",
        "key": "1",
        "address": "36",
        "number": "",
        "pid": "",
        "comm": "32",
        "symbol": "32",
        "path": "34",
        "mode": "35",
        "handle": "33",
        "idle": "2",
        "remark": "2",
        "warning": "33",
        "error": "1;31",
        "good": "32",
        "covered": "32",
        "uncovered": "31",
        "source.comment": "2",
        "source.keyword": "1",
        "source.macro": "35",
        "source.string": "33",
        "source.number": "36",
        "changed": "33",
        "gutter": "2",
        "left": "31",
        "right": "32",
        "hint": "2",
        "caret": "1;31",
        "command": "1",
    }
)
"""Style class -> parameters of SGR. A class that isn't here is plain."""


class Color(str, Enum):
    """What the user said about colours."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


def is_terminal(stream: TextIO) -> bool:
    """Tell whether what is written goes to a terminal."""
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        # Replaced streams may lack it, closed ones refuse it.
        return False


def wants_color(color: Color, *, terminal: bool, environment: Mapping[str, str]) -> bool:
    """Decide whether to colour.

    :param environment: ``NO_COLOR``, set and not empty, and ``TERM=dumb`` say no; see https://no-color.org.
    """
    if color is not Color.AUTO:
        return color is Color.ALWAYS
    return terminal and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
