# SPDX-License-Identifier: LGPL-2.1-or-later
"""Columns of tables of records; a row is a :class:`~kcovdbg.model.location.LocatedRecord`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kcovdbg.console.column import ADDRESS, BOOL, NUMBER, PATH, SYMBOL, WORD, WORDS, Column, RowType
from kcovdbg.console.wording import (
    format_operand,
    place_text,
    record_function,
    record_place,
    record_text,
)
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.location import LocatedRecord, Location

FRAME_COLUMNS: Final = (
    Column("function", SYMBOL),
    Column("file", PATH),
    Column("line", NUMBER),
    Column("column", NUMBER),
)
"""The members of ``frames[]``."""


def frames_column(read: str | Callable[[Any], Any] = "location.frames") -> Column:
    """Return the column ``frames`` of JSON.

    :param read: where a row has its frames; by default its location has them.
    """
    return Column(
        "frames",
        value=read,
        items=FRAME_COLUMNS,
        json_only=True,
        meaning=(
            "source locations of the PC, the innermost inlined function first; empty if unknown"
        ),
    )


def _location_place(row: Any) -> str | None:
    frames = row.location.frames
    return place_text(frames[0]) if frames else None


def where_column(
    text: Callable[[Any], str | None] = _location_place,
    *,
    priority: int = 0,
    elastic: int | None = 16,
) -> Column:
    """Return the column of the text view with file and line.

    :param text: returns a row's file and line; by default its innermost frame's.
    """
    return Column("where", PATH, text=text, text_only=True, elastic=elastic, priority=priority)


def record_columns(buffer: Buffer) -> tuple[Column, ...]:
    """Return the columns of a table of a buffer's records."""
    encoding = buffer.encoding
    return make_record_columns(
        is_comparison=encoding.record_words > 1,
        has_values=encoding.codec.is_variable,
        big_endian=encoding.big_endian,
        has_offset=bool(buffer.kaslr_offset),
        has_calls=encoding.codec.has_calls,
    )


def make_record_columns(
    *,
    is_comparison: bool,
    big_endian: bool = False,
    has_offset: bool = False,
    has_calls: bool = False,
    has_values: bool = False,
) -> tuple[Column, ...]:
    """Return the columns of a table of records.

    :param is_comparison: whether records are comparisons.
    :param has_offset: whether addresses differ from PCs, by the KASLR offset.
    :param has_calls: whether records are entries and exits of functions.
    :param has_values: whether records are arguments and returned values.
    """
    columns = [
        Column("index", NUMBER, value="record.number"),
        Column("pc", WORD, value="record.word", priority=3 if has_offset else 0),
        Column("address", ADDRESS, priority=2, json_only=not has_offset),
        Column(
            "kind",
            value="record.kind",
            json_only=not has_calls and not has_values,
            meaning="kind of the record: `pc`, `cmp`, `entry`, `exit` or `edge`",
        ),
    ]
    if is_comparison:
        columns += _list_operands(big_endian)
    if has_values:
        columns += _list_values(big_endian)
    return (
        *columns,
        Column("symbol", SYMBOL, title="FUNCTION", text=record_function, elastic=16),
        where_column(record_place, priority=1),
        frames_column(lambda row: () if row.location is None else row.location.frames),
    )


def _list_operands(big_endian: bool) -> tuple[Column, ...]:
    """Return the columns of comparisons."""
    return (
        Column(
            "type",
            WORD,
            value=_of_comparison("type"),
            json_only=True,
            meaning="type word of the comparison",
        ),
        Column(
            "size",
            NUMBER,
            value=_of_comparison("size"),
            meaning="size of the operands",
            unit="bytes",
        ),
        Column(
            "const",
            BOOL,
            value=_of_comparison("const"),
            meaning="whether the first operand is a constant",
        ),
        _operand_column("arg1", "first operand", big_endian),
        _operand_column("arg2", "second operand", big_endian),
    )


def _list_values(big_endian: bool) -> tuple[Column, ...]:
    """Return the columns of arguments and returned values."""
    return (
        Column(
            "argument",
            NUMBER,
            value=_of_values("argument"),
            json_only=True,
            meaning="number of the argument, from 0",
            null="it is a returned value or a comparison",
        ),
        Column(
            "size",
            NUMBER,
            value=_value_size,
            priority=3,
            meaning="size of the argument, the returned value or the operands",
            unit="bytes",
        ),
        Column(
            "pointer",
            WORD,
            value=_of_values("pointer"),
            priority=4,
            meaning="address that the values were read from",
            null="it is a comparison",
        ),
        Column(
            "values",
            WORDS,
            value=_value_words,
            text=lambda row: record_text(row, big_endian=big_endian).operands,
            meaning=(
                "the value, the members of a structure, or the operands; null is memory that "
                "the kernel could not read"
            ),
        ),
    )


def _operand_column(name: str, meaning: str, big_endian: bool) -> Column:
    def text(row: LocatedRecord) -> str | None:
        comparison = row.record.comparison
        if comparison is None:
            return None
        return format_operand(getattr(comparison, name), comparison, big_endian)

    return Column(name, WORD, value=_of_comparison(name), text=text, meaning=meaning)


def _of_comparison(name: str) -> Callable[[LocatedRecord], Any]:
    """Return the reader of a comparison's member, None for another record."""
    return lambda row: getattr(row.record.comparison, name, None)


def _of_values(name: str) -> Callable[[LocatedRecord], Any]:
    """Return the reader of a member of a record with values, None for another record."""
    return lambda row: getattr(row.record.values, name, None)


def _value_size(row: LocatedRecord) -> int | None:
    return getattr(row.record.values or row.record.comparison, "size", None)


def _value_words(row: LocatedRecord) -> tuple[int | None, ...]:
    values, comparison = row.record.values, row.record.comparison
    if values is not None:
        return values.values
    if comparison is not None:
        return comparison.arg1, comparison.arg2
    return ()


RECORD_ROWS: Final = (
    RowType(make_record_columns(is_comparison=False), errors=True, when="of a buffer of PCs"),
    RowType(
        make_record_columns(is_comparison=True), errors=True, when="of a buffer of comparisons"
    ),
    RowType(
        make_record_columns(is_comparison=False, has_values=True),
        errors=True,
        when="of a buffer of arguments and returned values",
    ),
)
"""The rows of JSON about records."""


def approximate_errors(row: Any) -> tuple[str, ...]:
    """Return the remark on an approximate location, for the key ``errors``."""
    location: Location | None = row.location
    if location is None or not location.approximate or not location.remark:
        return ()
    return (location.remark,)


def record_errors(row: LocatedRecord) -> tuple[str, ...]:
    """Return what a record lacks, for the key ``errors``."""
    problem = None
    if row.record.partial is not None:
        problem = row.record.partial.problem
    elif row.location is None:
        problem = "no address"
    elif row.location.remark is not None:
        problem = row.location.remark
    elif not row.location.frames:
        problem = "no kernel to look the address up in"
    if problem is None:
        return ()
    return (problem,)
