# SPDX-License-Identifier: LGPL-2.1-or-later
"""Parquet files with the keys of JSON and column types that do not depend on the rows.

Types come from the columns, not from the values: the files of many dumps form one data set only if a column without values
has its type as well.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kcovdbg.child_process import find_install_command
from kcovdbg.console.column import Column
from kcovdbg.console.renderable import Fields, Table
from kcovdbg.console.writer import encode_rows
from kcovdbg.errors import CapabilityError
from kcovdbg.output_file import open_output

if TYPE_CHECKING:
    import pyarrow as pa

_LARGEST: Final = (1 << 63) - 1
_NUMBERS: Final = frozenset({"number", "pid", "cpu"})
_FRACTIONS: Final = frozenset({"share", "seconds"})
_LISTS: Final = frozenset({"list", "addresses"})
_BATCH: Final = 65536


def import_arrow() -> Any:
    """Return pyarrow.

    :raises CapabilityError: when it is not installed.
    """
    try:
        arrow = import_module("pyarrow")
        import_module("pyarrow.parquet")
    except ImportError as error:
        raise CapabilityError(
            "Parquet files need pyarrow, which is not installed", hint=find_install_command("farm")
        ) from error
    return arrow


def _make_schema(table: Table | Fields, constants: Iterable[str]) -> pa.Schema:
    """Return the schema of a table: addresses and words are text, as in JSON; values without a type are JSON in text.

    :param constants: text columns in front.
    """
    arrow = import_arrow()
    fields = [arrow.field(name, arrow.string()) for name in constants]
    fields += [arrow.field(column.key, _find_type(arrow, column)) for column in table.columns if not column.text_only]
    if table.errors is not None:
        fields.append(arrow.field("errors", arrow.list_(arrow.string())))
    return arrow.schema(fields)


def _find_type(arrow: Any, column: Column) -> Any:
    if column.items is not None:
        members = [arrow.field(item.key, _find_type(arrow, item)) for item in column.items if not item.text_only]
        return arrow.list_(arrow.struct(members))
    if column.kind.name in _NUMBERS:
        return arrow.int64()
    if column.kind.name in _FRACTIONS:
        return arrow.float64()
    if column.kind.name == "bool":
        return arrow.bool_()
    return arrow.list_(arrow.string()) if column.kind.name in _LISTS else arrow.string()


def write_parquet(path: Path, tables: Iterable[Table | Fields], constants: Mapping[str, str | None]) -> int:
    """Write the tables of one command to a file, which gets its name when it is complete.

    :param constants: values of every row, in front of its own columns.
    :return: the number of rows; without a table no file is written.
    :raises CapabilityError: when pyarrow is not installed.
    :raises OSError: when the file cannot be written.
    """
    arrow = import_arrow()
    writer = None
    number = 0
    with contextlib.ExitStack() as stack:
        for table in tables:
            schema = _make_schema(table, constants)
            if writer is None:
                path.parent.mkdir(parents=True, exist_ok=True)
                stream = stack.enter_context(open_output(path))
                writer = stack.enter_context(arrow.parquet.ParquetWriter(stream, schema, compression="zstd"))
            rows = ({**constants, **_fit(row, schema)} for row in encode_rows(table))
            while some := list(islice(rows, _BATCH)):
                writer.write_table(arrow.Table.from_pylist(some, schema=schema))
                number += len(some)
    return number


def _fit(row: Mapping[str, object], schema: pa.Schema) -> dict[str, Any]:
    """Return a row with the types of the schema; a number that is too large is left out, and noted in the row's errors."""
    arrow = import_arrow()
    found = {key: _convert(arrow, value, schema.field(key).type, key) for key, value in row.items()}
    fitted = {key: value for key, (value, _) in found.items()}
    unfit = [problem for _, problems in found.values() for problem in problems]
    if unfit and "errors" in fitted:
        fitted["errors"] = [*(fitted["errors"] or ()), *unfit]
    return fitted


def _convert(arrow: Any, value: Any, kind: Any, path: str) -> tuple[Any, Sequence[str]]:
    """Return a value with a type of Arrow's, None for a number that does not fit, and what does not fit in it."""
    if value is None:
        return None, ()
    if isinstance(value, int) and not isinstance(value, bool) and arrow.types.is_int64(kind) and abs(value) > _LARGEST:
        return None, (f"{path}: {value} does not fit a signed 64-bit number",)
    if arrow.types.is_string(kind):
        return value if isinstance(value, str) else json.dumps(value), ()
    if arrow.types.is_list(kind) and isinstance(value, list):
        items = [_convert(arrow, item, kind.value_type, f"{path}[]") for item in value]
        return [item for item, _ in items], [problem for _, problems in items for problem in problems]
    if arrow.types.is_struct(kind) and isinstance(value, dict):
        members = {one.name: _convert(arrow, value.get(one.name), one.type, f"{path}.{one.name}") for one in kind}
        return {key: member for key, (member, _) in members.items()}, [one for _, some in members.values() for one in some]
    return value, ()
