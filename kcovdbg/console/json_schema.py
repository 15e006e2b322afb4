# SPDX-License-Identifier: LGPL-2.1-or-later
"""The meanings of JSON keys that several commands share, and the schemas of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from kcovdbg.console.column import UNKNOWN_TASK, UNREAD, Column, Meaning, RowType

_NO_DEBUG_INFO: Final = "the debug info does not say"
_UNKNOWN: Final = "it is unknown"

MEANINGS: Final[Mapping[str, Meaning]] = {
    "address": Meaning(
        "`pc` plus the KASLR offset: the address in the kernel's memory",
        "the record holds no address",
    ),
    "bucket": Meaning("index of the handle's bucket in `kcov_remote_map`"),
    "build_id": Meaning("build ID of the kernel, in hexadecimal digits", _UNKNOWN),
    "bytes": Meaning("size", unit="bytes"),
    "capacity": Meaning(
        "number of records that fit the buffer",
        "there is no buffer, or its size could not be read",
        "records",
    ),
    "class": Meaning("class of infrastructure functions that the function is in", "it is in none"),
    "comm": Meaning("name of the task", UNKNOWN_TASK),
    "count": Meaning("number of records", "there is no buffer, or it could not be read", "records"),
    "cpu": Meaning("number of the CPU", UNREAD),
    "depth": Meaning("levels of calls above it, 0 for the outermost", unit="levels"),
    "distinct": Meaning("number of different PCs", unit="points"),
    "errors": Meaning("what is missing of this row or uncertain about it, one sentence each"),
    "file": Meaning("source file, relative to the build root", _NO_DEBUG_INFO),
    "frames[].function": Meaning("name of the function, as in the debug info", _NO_DEBUG_INFO),
    "frames[].file": Meaning("source file, relative to the build root", _NO_DEBUG_INFO),
    "frames[].line": Meaning("line in the file", _NO_DEBUG_INFO),
    "frames[].column": Meaning("column in the line", _NO_DEBUG_INFO),
    "full": Meaning(
        "whether the buffer is full, so that later records were dropped",
        "there is no buffer, or it could not be read",
    ),
    "function": Meaning("name of the function", _NO_DEBUG_INFO),
    "generation": Meaning(
        "generation of KCOV, as in docs/generations.md",
        "the kernel has no KCOV, or one that is unknown",
    ),
    "handle": Meaning("handle, the whole word", UNREAD),
    "index": Meaning("index of the record in its buffer, from 0"),
    "instance": Meaning("instance in the handle, such as the number of a USB bus", UNREAD),
    "kaslr_offset": Meaning("offset that KASLR added to the kernel's addresses", _UNKNOWN, "bytes"),
    "kcov": Meaning("address of the `struct kcov`", UNREAD),
    "kcov_handle": Meaning("`task_struct.kcov_handle`", UNREAD),
    "kcov_softirq": Meaning("`task_struct.kcov_softirq`", UNREAD),
    "line": Meaning("line in the file", _NO_DEBUG_INFO),
    "machine": Meaning("architecture, as `uname -m` prints it", _UNKNOWN),
    "mode": Meaning("mode, without prefix, such as `TRACE_PC`", UNREAD),
    "pc": Meaning("PC as recorded: a return address without the KASLR offset"),
    "pid": Meaning("thread id of the task", UNKNOWN_TASK),
    "points": Meaning("number of different PCs", unit="points"),
    "records": Meaning("number of records", unit="records"),
    "release": Meaning("kernel release, as `uname -r` prints it", _UNKNOWN),
    "remote": Meaning("whether it has remote handles", UNREAD),
    "remote_size": Meaning("size of the areas for its sections", UNREAD, "words"),
    "role": Meaning(
        "what collects into the task: `local`, `remote-section`, `softirq-section` or `none`; the "
        "owner of a KCOV_REMOTE_ENABLE, whose sections run elsewhere, is marked by `owns_remote`",
        "it is unclear",
    ),
    "size": Meaning("size of the buffer or area", UNREAD, "words"),
    "subsystem": Meaning("subsystem in the handle, such as `usb`", UNREAD),
    "symbol": Meaning(
        "function that the code was compiled into; the name of a Rust function is mangled here, "
        "and readable in `frames`",
        "the address is in no known function",
    ),
    "syscall": Meaning(
        "system call that the task is in: its `number`, `name` (null for a 32-bit call) and `args`",
        "the task is in none, or its stack could not be read",
    ),
    "t": Meaning("`kcov.t`: address of the task that the object is enabled for", UNREAD),
    "target": Meaning("name of the target"),
    "text": Meaning("text of the source line", "the source file is missing"),
    "where": Meaning("what keeps the state: `cpu` or `task`"),
}


DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


class JsonKey(NamedTuple):
    """A key of a row."""

    name: str
    path: str
    """The name with the keys above it, as in ``references[].kind``."""
    meaning: Meaning
    schema: Mapping[str, object]
    """The schema of values that are not null."""
    members: tuple[JsonKey, ...]
    """The keys of the objects in the value, if it is an array; if it is an object, the keys that it
    may have.
    """


_ERRORS_SCHEMA: Final = {"type": "array", "items": {"type": "string"}}


def keys_of(row_type: RowType) -> tuple[JsonKey, ...]:
    """Return the keys of a row, in order."""
    keys = _keys_of_columns(row_type.columns, "")
    if not row_type.errors:
        return keys
    return (*keys, JsonKey("errors", "errors", MEANINGS["errors"], _ERRORS_SCHEMA, ()))


def _keys_of_columns(columns: Sequence[Column], prefix: str) -> tuple[JsonKey, ...]:
    keys: list[JsonKey] = []
    for column in columns:
        if column.text_only:
            continue
        path, schema = prefix + column.key, column.kind.schema
        members: tuple[JsonKey, ...] = ()
        if column.items is not None:
            schema = {"type": "array"}
            members = _keys_of_columns(column.items, f"{path}[].")
        elif column.members is not None:
            schema = {"type": "object"}
            known = _keys_of_columns(column.members, f"{path}.")
            # An unknown member is left out, not null.
            members = tuple(key._replace(meaning=key.meaning._replace(null=None)) for key in known)
        keys.append(JsonKey(column.key, path, _find_meaning(column, path), schema, members))
    return tuple(keys)


def _find_meaning(column: Column, path: str) -> Meaning:
    """Return the meaning of a key: from the column, or else from the table of all commands."""
    if column.meaning:
        return Meaning(column.meaning, column.null, column.unit)
    return MEANINGS.get(path) or MEANINGS[column.key]


def schema_of(
    name: str, row_types: Sequence[RowType], *, partial: bool = False
) -> dict[str, object]:
    """Return the JSON Schema of the array that a command writes.

    Rows may have more keys, because later versions add some.

    :param partial: whether rows may also lack keys.
    """
    rows: list[dict[str, object]] = []
    for row_type in row_types:
        row = _object_schema(keys_of(row_type))
        if row_type.when:
            row["description"] = row_type.when
        rows.append(row)
    rows += [_unread_schema(keys_of(row_type)) for row_type in row_types if row_type.unread]
    if partial:
        for row in rows:
            del row["required"]
    items = rows[0]
    if len(rows) > 1:
        items = {"anyOf": rows}
    return {
        "$schema": DIALECT,
        "title": f"kcovdbg {name} --json",
        "type": "array",
        "items": items,
    }


def _unread_schema(keys: Sequence[JsonKey]) -> dict[str, object]:
    """Return the schema of the row that a command writes in place of unreadable rows."""
    errors = {
        **_ERRORS_SCHEMA,
        "minItems": 1,
        "description": "what could not be read, one sentence each",
    }
    properties: dict[str, object] = {key.name: {"type": "null"} for key in keys}
    schema = _make_object(properties | {"errors": errors})
    description = "instead of rows that could not be read"
    return {"type": "object", "description": description, **schema}


def _object_schema(keys: Sequence[JsonKey]) -> dict[str, object]:
    return _make_object({key.name: _value_schema(key) for key in keys})


def _make_object(properties: Mapping[str, object]) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": True,
    }


def _value_schema(key: JsonKey) -> dict[str, object]:
    schema = dict(key.schema)
    if key.members and schema["type"] == "object":
        schema |= _object_schema(key.members) | {"required": []}
    elif key.members:
        schema["items"] = _object_schema(key.members)
    if key.meaning.null is not None:
        schema["type"] = [schema["type"], "null"]
    return {**schema, "description": key.meaning.text}
