# SPDX-License-Identifier: LGPL-2.1-or-later
"""JSON Schema of what commands write with ``--json``, from the columns of their tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kcovdbg.console.column import Column
from kcovdbg.console.key_meanings import MEANINGS, Meaning

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True, slots=True)
class RowType:
    """One kind of rows that a command writes."""

    columns: Sequence[Column]
    meanings: Mapping[str, Meaning] = field(default_factory=dict)
    """Of keys that mean something else here than in ``MEANINGS``, by path, as in ``references[].kind``."""
    errors: bool = False
    """Whether rows have the key ``errors``."""
    when: str = ""
    """The options that ask for these rows, where the command has several kinds."""

    @property
    def keys(self) -> tuple[JsonKey, ...]:
        """The keys of a row, in order."""
        keys = self._make_keys(self.columns, "")
        return (*keys, JsonKey("errors", "errors", MEANINGS["errors"], _ERRORS_SCHEMA, ())) if self.errors else keys

    def _make_keys(self, columns: Sequence[Column], prefix: str) -> tuple[JsonKey, ...]:
        return tuple(self._make_key(column, prefix + column.key) for column in columns if not column.text_only)

    def _make_key(self, column: Column, path: str) -> JsonKey:
        meaning = self.meanings.get(path) or MEANINGS.get(path) or MEANINGS[column.key]
        if column.members is not None:
            members = self._make_keys(column.members, f"{path}.")
            # A member that is unknown is left out instead of being null.
            known = tuple(member._replace(meaning=member.meaning._replace(null=None)) for member in members)
            return JsonKey(column.key, path, meaning, {"type": "object"}, known)
        if column.items is None:
            return JsonKey(column.key, path, meaning, column.kind.schema, ())
        return JsonKey(column.key, path, meaning, {"type": "array"}, self._make_keys(column.items, f"{path}[]."))


class JsonKey(NamedTuple):
    """A key of a row."""

    name: str
    path: str
    """With the keys above it, as in ``references[].kind``."""
    meaning: Meaning
    schema: Mapping[str, object]
    """Of values that are not null."""
    members: tuple[JsonKey, ...]
    """The keys of the objects in its array; of an object, those that it may have."""


_ERRORS_SCHEMA: Final = {"type": "array", "items": {"type": "string"}}


def schema_of(name: str, row_types: Sequence[RowType], *, closed: bool = False) -> dict[str, object]:
    """Return the JSON Schema of the array that a command writes.

    :param closed: refuse keys that are not declared; by default they are accepted, because later versions add keys.
    """
    rows = [_object_schema(row_type.keys, closed=closed) for row_type in row_types]
    for row, row_type in zip(rows, row_types, strict=True):
        if row_type.when:
            row["description"] = row_type.when
    return {
        "$schema": DIALECT,
        "title": f"kcovdbg {name} --json",
        "type": "array",
        "items": rows[0] if len(rows) == 1 else {"anyOf": rows},
    }


def _object_schema(keys: Sequence[JsonKey], *, closed: bool) -> dict[str, object]:
    return {
        "type": "object",
        "properties": {key.name: _value_schema(key, closed=closed) for key in keys},
        "required": [key.name for key in keys],
        "additionalProperties": not closed,
    }


def _value_schema(key: JsonKey, *, closed: bool) -> dict[str, object]:
    schema = dict(key.schema)
    if key.members and schema["type"] == "object":
        schema |= _object_schema(key.members, closed=closed) | {"required": []}
    elif key.members:
        schema["items"] = _object_schema(key.members, closed=closed)
    if key.meaning.null is not None:
        schema["type"] = [schema["type"], "null"]
    return {**schema, "description": key.meaning.text}
