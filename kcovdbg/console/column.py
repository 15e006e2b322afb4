# SPDX-License-Identifier: LGPL-2.1-or-later
"""A column of a table, declared once for text, JSON and CSV."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from typing import Any, Final, NamedTuple

from kcovdbg.abi.handle import decode_handle
from kcovdbg.console.text import escape, escape_surrogates

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


def _string(value: object) -> str:
    if isinstance(value, Enum):
        value = value.value
    return escape_surrogates(str(value))


def _symbol_text(value: object) -> str:
    # Most tables have no symbols.
    from kcovdbg.elf.symbol_table import demangle

    return demangle(_string(value))


def _identity(value: object) -> object:
    return value


def to_json(value: object) -> object:
    """Return a value without a kind as JSON; numbers stay numbers."""
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        fields = getattr(value, "_fields", None)
        if fields is not None:
            return {name: to_json(item) for name, item in zip(fields, value, strict=True)}
        return [to_json(item) for item in value]
    return _string(value)


def _any_text(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(to_json(value))


_HEX: Final = {"type": "string", "pattern": "^0x[0-9a-f]+$"}
_INTEGER: Final = {"type": "integer"}
_NUMBER: Final = {"type": "number"}

ADDRESS: Final = ValueKind(
    "address", lambda value: hex(value) if value else "0", hex, "address", schema=_HEX
)
"""A pointer: NULL is ``0`` in text, which does not look like an address, and ``"0x0"`` in JSON."""
WORD: Final = ValueKind("word", hex, hex, "number", schema=_HEX)
"""A word whose bits matter: hexadecimal everywhere."""
NUMBER: Final = ValueKind("number", str, _identity, "number", align_right=True, schema=_INTEGER)
"""A count, size, sequence or line."""
PID: Final = ValueKind("pid", str, _identity, "pid", align_right=True, schema=_INTEGER)
CPU: Final = ValueKind("cpu", str, _identity, "number", align_right=True, schema=_INTEGER)
SECONDS: Final = ValueKind("seconds", str, _identity, "number", align_right=True, schema=_NUMBER)
SHARE: Final = ValueKind(
    "share", lambda value: f"{value:.1%}", _identity, "number", align_right=True, schema=_NUMBER
)
"""A share: 0 to 1 in JSON, a percentage in text."""
TEXT: Final = ValueKind("text", _string, _string, is_safe=False)
COMM: Final = ValueKind("comm", _string, _string, "comm", is_safe=False)
SYMBOL: Final = ValueKind("symbol", _symbol_text, _string, "symbol", is_safe=False)
"""A function: text demangles the names of Rust's symbols, JSON has them as in the image."""
PATH: Final = ValueKind("path", _string, _string, "path", is_safe=False)
MODE: Final = ValueKind("mode", _string, _string, "mode")
"""A mode's name in the kernel's enumeration, without prefix."""
HANDLE: Final = ValueKind(
    "handle", lambda value: str(decode_handle(value)) if value else "0", hex, "handle", schema=_HEX
)
"""A remote handle: decoded in text, the whole word in JSON."""
BOOL: Final = ValueKind(
    "bool", lambda value: "yes" if value else "no", bool, schema={"type": "boolean"}
)
LIST: Final = ValueKind(
    "list",
    lambda value: ", ".join(map(_string, value)),
    lambda value: [*map(to_json, value)],
    is_safe=False,
    schema={"type": "array", "items": {"type": ["string", "integer"]}},
)
"""Several texts or numbers."""
WORDS: Final = ValueKind(
    "words",
    lambda value: ", ".join("?" if word is None else hex(word) for word in value),
    lambda value: [None if word is None else hex(word) for word in value],
    schema={"type": "array", "items": {"anyOf": [_HEX, {"type": "null"}]}},
)
"""Several words; an unknown word is null."""
ADDRESSES: Final = ValueKind(
    "addresses",
    lambda value: ", ".join(map(hex, value)),
    lambda value: [*map(hex, value)],
    "address",
    schema={"type": "array", "items": _HEX},
)
SYSCALL: Final = ValueKind(
    "syscall",
    _any_text,
    lambda call: {
        "number": call.number,
        "name": call.name,
        "args": [hex(arg) for arg in call.args],
    },
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


UNREAD: Final = "this kernel has no such member, or it could not be read"
UNKNOWN_TASK: Final = "there is no such task, or it could not be read"

KEEP = 0
"""The priority of a column that is never dropped."""
DETAIL = 3
"""A column with this priority or a higher one is a detail: it is dropped before other columns are
shortened, and a table with a ``piped_width`` shows it on terminals only.
"""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: the source and the appearance of its values."""

    key: str
    """Its name in JSON and CSV: the name of the kernel's member, if there is one."""
    kind: ValueKind = TEXT
    title: str | None = None
    """The heading in text; by default the key in capitals."""
    value: str | Callable[[Any], Any] | None = None
    """The path of a row's attribute (``task.pid``), or a function that returns a row's value or
    None; by default the row's item or attribute with the name of the key.
    """
    text: Callable[[Any], str | None] | None = None
    """Returns the text of a row, or None; by default the kind formats the value."""
    wide_text: Callable[[Any], str | None] | None = None
    """Used instead of ``text`` in a table with all columns in full."""
    style: str | Callable[[Any], str] | None = None
    """A style class, or a function that returns the class for a row; by default the kind's class.
    """
    priority: int = KEEP
    """In a narrow terminal, columns with the highest priority are dropped first; see :data:`KEEP`
    and :data:`DETAIL`.
    """
    elastic: int | None = None
    """The least width to which the text is shortened in a narrow terminal; a path loses its start.
    None if it is never shortened.
    """
    wraps: bool = False
    """Whether the text of the last column is wrapped in a narrow terminal instead of shortened."""
    json_only: bool = False
    text_only: bool = False
    hide_empty: bool = False
    """Whether text leaves out the column if all its values are zeros. A column without any value is
    always left out.
    """
    is_chosen: bool = False
    """Whether the user chose it, so that it is shown even without values."""
    items: tuple[Column, ...] | None = None
    """The members of the structures in a list."""
    meaning: str = ""
    """The meaning of its key in JSON; by default the key's meaning in all commands."""
    null: str | None = None
    """The reason for which its value in JSON is null. With a meaning, None for never."""
    unit: str = ""
    members: tuple[Column, ...] | None = None
    """The members that a structure may have. JSON leaves out members that a value lacks."""

    @property
    def heading(self) -> str:
        """The heading of the column."""
        if self.title is not None:
            return self.title
        return self.key.upper()

    def reader(self) -> Callable[[Any], Any]:
        """Return a function that returns a row's value."""
        if isinstance(self.value, str):
            return attrgetter(self.value)
        if self.value is not None:
            return self.value
        key = self.key
        attribute = attrgetter(key)
        # Runs for each row, so check only for dict, which is fast.
        return lambda row: row[key] if isinstance(row, dict) else attribute(row)

    def formatter(self) -> Callable[[Any], str]:
        """Return a function that returns a row's text: printable, on one line."""
        if self.text is not None:
            text = self.text
            return lambda row: escape(ABSENT if (shown := text(row)) is None else shown)
        read, show = self.reader(), self.kind.text
        if self.kind.is_safe:
            return lambda row: ABSENT if (value := read(row)) is None else show(value)
        return lambda row: ABSENT if (value := read(row)) is None else escape(show(value))

    @property
    def cell_style(self) -> str | Callable[[Any], str]:
        """The style class of cells, or a function that returns the class for a row."""
        if self.style is not None:
            return self.style
        return self.kind.style

    def encoder(self) -> Callable[[Any], object]:
        """Return a function that returns a row's value in JSON."""
        read, encode = self.reader(), self._value_encoder()

        def encode_row(row: Any) -> object:
            value = read(row)
            if value is None:
                return None
            return encode(value)

        return encode_row

    def _value_encoder(self) -> Callable[[Any], object]:
        """Return a function that converts a value other than None to JSON."""
        if self.items is not None:
            encode_item = encoder_of(self.items)
            return lambda items: [encode_item(item) for item in items]
        if self.members is not None:
            encoders = {member.key: member.encoder() for member in self.members}
            return lambda members: {key: encoders[key](members) for key in members}
        return self.kind.json


def encoder_of(columns: Iterable[Column]) -> Callable[[Any], dict[str, object]]:
    """Return a function that returns the JSON object of a row."""
    encoders = [(column.key, column.encoder()) for column in columns if not column.text_only]
    return lambda row: {key: encode(row) for key, encode in encoders}


class Meaning(NamedTuple):
    """The meaning of a key."""

    text: str
    null: str | None = None
    """The reason for which its value is null; None for never."""
    unit: str = ""
    since: str = "0.1.0"
    """The version of kcovdbg that added it."""


class RowType(NamedTuple):
    """One kind of rows that a command writes."""

    columns: Sequence[Column]
    errors: bool = False
    """Whether rows have the key ``errors``."""
    when: str = ""
    """If the command has several kinds, the options that ask for these rows."""
    unread: bool = False
    """Whether one row of null values stands for rows that could not be read."""
