# SPDX-License-Identifier: LGPL-2.1-or-later
"""The options that choose columns and fields, applied to answers."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kcovdbg.engine.suggestions import suggest
from kcovdbg.errors import UsageError
from kcovdbg.render.column import KEEP, Column
from kcovdbg.render.renderable import Fields, Lines, Renderable, Table
from kcovdbg.render.writer import Format

_ERRORS: Final = "errors"


@dataclass(frozen=True, slots=True)
class ColumnChoice:
    """What the user wants to see of an answer."""

    columns: tuple[str, ...] = ()
    """Keys or headings of the columns in text, in order; empty for the command's own choice."""
    fields: tuple[str, ...] = ()
    """Keys in JSON and CSV, in order; empty for all."""
    is_wide: bool = False
    is_vertical: bool = False
    origin: str | None = None
    """Where the columns are from, when they are not the line's."""

    def apply(self, answer: Renderable) -> Renderable:
        """Return an answer with the chosen columns or fields; lines that are drawn are replaced by their data.

        :raises UsageError: when it lacks one of them.
        """
        if self.fields:
            if isinstance(answer, (Table, Fields)):
                return self._select(answer)
            if isinstance(answer, Lines) and answer.data is not None:
                return replace(answer, data=self._select(answer.data))
            return answer
        if self.columns or self.is_wide or self.is_vertical:
            data = answer.data if isinstance(answer, Lines) else answer
            if isinstance(data, (Table, Fields)):
                remarks = (*data.remarks, *answer.remarks) if isinstance(answer, Lines) else data.remarks
                return self._arrange(replace(data, remarks=remarks))
        return answer

    def _arrange(self, data: Table | Fields) -> Table | Fields:
        if self.columns:
            by_name = {column.heading.lower(): column for column in data.columns}
            by_name |= {column.key.lower(): column for column in data.columns}
            chosen = [
                # Requested columns are shown even if they are empty.
                replace(column, json_only=False, hide_empty=False, is_chosen=True, priority=KEEP)
                for column in _pick(by_name, [name.lower() for name in self.columns], "column", self.origin)
            ]
            data = (
                replace(data, columns=chosen)
                if isinstance(data, Fields)
                else replace(data, columns=chosen, show=None, piped_width=None)
            )
        if isinstance(data, Fields):
            return data
        return replace(data, is_wide=self.is_wide, is_vertical=self.is_vertical)

    def _select(self, data: Table | Fields) -> Table | Fields:
        by_key: dict[str, Column | None] = {column.key: column for column in data.columns if not column.text_only}
        if data.errors is not None:
            by_key[_ERRORS] = None
        chosen = [column for column in _pick(by_key, self.fields, "field") if column is not None]
        return replace(data, columns=chosen, errors=data.errors if _ERRORS in self.fields else None)


def _pick(known: Mapping[str, Column | None], names: Iterable[str], noun: str, origin: str | None = None) -> list[Column]:
    picked: list[Column] = []
    for name in names:
        if name not in known:
            hint = suggest(name, known) or f"{noun}s: {', '.join(known)}"
            raise UsageError(f"{'' if origin is None else f'{origin}: '}unknown {noun} '{name}'", hint=hint)
        column = known[name]
        if column is not None:
            picked.append(column)
    return picked


def read_choice(args: Namespace, its_format: Format, default: Sequence[str] = (), origin: str | None = None) -> ColumnChoice:
    """Return what the arguments choose.

    :param default: the columns in text when the arguments choose none.
    :param origin: where these are from, for errors.
    :raises UsageError: when they do not suit the format.
    """
    columns, fields = _split(args.columns, "--columns"), _split(args.fields, "--fields")
    if its_format is Format.TEXT:
        if fields:
            raise UsageError("--fields applies to JSON and CSV", hint="add --json, --jsonl or --csv; --columns is for text")
        if default and not (columns or args.wide or args.vertical):
            return ColumnChoice(tuple(default), origin=origin)
        return ColumnChoice(columns, is_wide=args.wide, is_vertical=args.vertical)
    for name, given in (("--columns", columns), ("--wide", args.wide), ("--vertical", args.vertical)):
        if given:
            raise UsageError(f"{name} applies to text", hint="--fields selects what JSON and CSV contain")
    return ColumnChoice(fields=fields)


def _split(text: str | None, option: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(filter(None, (name.strip() for name in (text or "").split(",")))))
    if text is not None and not names:
        raise UsageError(f"{option}: expected names separated by commas, not '{text}'")
    return names
