# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kinds of values: how each is written in text and in JSON, for all commands.

Addresses and 64-bit words are hexadecimal strings in JSON, since most readers of JSON keep numbers as doubles; counts, sizes,
pids, sequences and line numbers are numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from kcovdbg.abi.handle import decode_handle
from kcovdbg.console.escape import escape_surrogates

ABSENT: Final = "-"
"""The text of a value that this kernel lacks or that could not be read."""


@dataclass(frozen=True, slots=True)
class ValueKind:
    """How values are written; None is never passed to these functions."""

    name: str
    text: Callable[[Any], str]
    json: Callable[[Any], object]
    style: str = ""
    align_right: bool = False
    is_safe: bool = True
    """Whether the text consists of digits and our own names, and needs no escaping."""
    schema: Mapping[str, object] = field(default_factory=lambda: {"type": "string"})
    """The JSON Schema of the values."""


def _hex(value: int) -> str:
    return hex(value)


def _address_text(value: int) -> str:
    # NULL must not look like an address.
    return hex(value) if value else "0"


def _string(value: object) -> str:
    return escape_surrogates(value.value if isinstance(value, Enum) else str(value))


def _identity(value: object) -> object:
    return value


def _items_text(value: Any) -> str:
    return ", ".join(_string(item) for item in value)


def _items_json(value: Any) -> object:
    return [to_json(item) for item in value]


def _hex_items(value: Any) -> object:
    return [hex(item) for item in value]


def to_json(value: object) -> object:
    """Return a value without a kind as JSON; numbers stay numbers."""
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


_HEX: Final = {"type": "string", "pattern": "^0x[0-9a-f]+$"}
_INTEGER: Final = {"type": "integer"}
_NUMBER: Final = {"type": "number"}

ADDRESS: Final = ValueKind("address", _address_text, _hex, "address", schema=_HEX)
"""A pointer: NULL is ``0`` in text and ``"0x0"`` in JSON."""
WORD: Final = ValueKind("word", _hex, _hex, "number", schema=_HEX)
"""A word whose bits matter: hexadecimal everywhere."""
NUMBER: Final = ValueKind("number", str, _identity, "number", align_right=True, schema=_INTEGER)
"""A count, size, sequence or line."""
PID: Final = ValueKind("pid", str, _identity, "pid", align_right=True, schema=_INTEGER)
CPU: Final = ValueKind("cpu", str, _identity, "number", align_right=True, schema=_INTEGER)
SECONDS: Final = ValueKind("seconds", str, _identity, "number", align_right=True, schema=_NUMBER)
SHARE: Final = ValueKind("share", lambda value: f"{value:.1%}", _identity, "number", align_right=True, schema=_NUMBER)
"""A share: 0 to 1 in JSON, a percentage in text."""
TEXT: Final = ValueKind("text", _string, _string, is_safe=False)
COMM: Final = ValueKind("comm", _string, _string, "comm", is_safe=False)
SYMBOL: Final = ValueKind("symbol", _string, _string, "symbol", is_safe=False)
PATH: Final = ValueKind("path", _string, _string, "path", is_safe=False)
MODE: Final = ValueKind("mode", _string, _string, "mode")
"""A mode's name in the kernel's enumeration, without prefix."""
HANDLE: Final = ValueKind("handle", lambda value: str(decode_handle(value)) if value else "0", _hex, "handle", schema=_HEX)
"""A remote handle: decoded in text, the whole word in JSON."""
BOOL: Final = ValueKind("bool", lambda value: "yes" if value else "no", bool, schema={"type": "boolean"})
LIST: Final = ValueKind(
    "list", _items_text, _items_json, is_safe=False, schema={"type": "array", "items": {"type": ["string", "integer"]}}
)
"""Several texts or numbers."""
WORDS: Final = ValueKind(
    "words",
    lambda value: ", ".join("?" if word is None else hex(word) for word in value),
    lambda value: [None if word is None else hex(word) for word in value],
    schema={"type": "array", "items": {"anyOf": [_HEX, {"type": "null"}]}},
)
"""Several words, null for those that are unknown."""
ADDRESSES: Final = ValueKind(
    "addresses", lambda value: ", ".join(map(hex, value)), _hex_items, "address", schema={"type": "array", "items": _HEX}
)
SYSCALL: Final = ValueKind(
    "syscall",
    _any_text,
    lambda call: {"number": call.number, "name": call.name, "args": [hex(arg) for arg in call.args]},
    "symbol",
    is_safe=False,
    schema={
        "type": "object",
        "properties": {
            "number": _INTEGER,
            "name": {"type": ["string", "null"]},
            "args": {"type": "array", "items": _HEX},
        },
        "required": ["number", "name", "args"],
    },
)
"""A system call that a task is in."""
ANY: Final = ValueKind("any", _any_text, to_json, is_safe=False, schema={})
"""Other values: as in JSON."""
