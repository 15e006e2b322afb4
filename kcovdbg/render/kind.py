# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the values of a column are: how each kind reads in text and in JSON, once for all commands.

Addresses and 64-bit words are hexadecimal strings in JSON, since most readers of JSON keep numbers as doubles; counts, sizes,
pids, sequences and line numbers are numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from kcovdbg.abi.handle import decode_handle
from kcovdbg.render.escape import escape_surrogates

ABSENT: Final = "-"
"""How a value that this kernel doesn't have, or that couldn't be read, is shown in text."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How values are shown; None never reaches these functions."""

    name: str
    text: Callable[[Any], str]
    json: Callable[[Any], object]
    style: str = ""
    align_right: bool = False
    is_safe: bool = True
    """Whether the text is made of digits and names of ours, so that it needs no escaping."""


def _hex(value: int) -> str:
    return hex(value)


def _address_text(value: int) -> str:
    # NULL isn't an address: it must not look like one at a glance.
    return hex(value) if value else "0"


def _string(value: object) -> str:
    return escape_surrogates(value.value if isinstance(value, Enum) else str(value))


def _identity(value: object) -> object:
    return value


def _items_text(value: Any) -> str:
    return ", ".join(_string(item) for item in value)


def _items_json(value: Any) -> object:
    return [to_json(item) for item in value]


def to_json(value: object) -> object:
    """Make what JSON can hold of a value without a kind of its own; numbers stay numbers."""
    if value is None or isinstance(value, (bool, int, float)):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        fields = getattr(value, "_fields", None)
        if fields is not None:
            return {name: to_json(item) for name, item in zip(fields, value, strict=True)}
        return [to_json(item) for item in value]
    return _string(value)


def _any_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(to_json(value))


ADDRESS: Final = Kind("address", _address_text, _hex, "address")
"""A pointer: NULL is ``0`` in text and ``"0x0"`` in JSON."""
WORD: Final = Kind("word", _hex, _hex, "number")
"""Any word whose bits matter: hexadecimal everywhere."""
NUMBER: Final = Kind("number", str, _identity, "number", align_right=True)
"""A count, size, sequence or line."""
PID: Final = Kind("pid", str, _identity, "pid", align_right=True)
CPU: Final = Kind("cpu", str, _identity, "number", align_right=True)
SHARE: Final = Kind("share", lambda value: f"{value:.1%}", _identity, "number", align_right=True)
"""A part of a whole: 0 to 1 in JSON, per cent in text."""
TEXT: Final = Kind("text", _string, _string, is_safe=False)
COMM: Final = Kind("comm", _string, _string, "comm", is_safe=False)
SYMBOL: Final = Kind("symbol", _string, _string, "symbol", is_safe=False)
PATH: Final = Kind("path", _string, _string, "path", is_safe=False)
MODE: Final = Kind("mode", _string, _string, "mode")
"""A mode's name, as the kernel's own enumeration has it, without prefix."""
HANDLE: Final = Kind("handle", lambda value: str(decode_handle(value)) if value else "0", _hex, "handle")
"""A remote handle: decoded in text, the whole word in JSON."""
BOOL: Final = Kind("bool", lambda value: "yes" if value else "no", bool)
LIST: Final = Kind("list", _items_text, _items_json, is_safe=False)
"""Several texts or numbers."""
ANY: Final = Kind("any", _any_text, to_json, is_safe=False)
"""What no other kind says: as JSON has it."""
