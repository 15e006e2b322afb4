# SPDX-License-Identifier: LGPL-2.1-or-later
"""``points``: whether code is instrumented, and where; and which of its points a buffer covers."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Mapping
from typing import Final, NamedTuple

from kcovdbg.commands.argument import Argument, Count, Value
from kcovdbg.commands.buffer import FRAME_COLUMNS
from kcovdbg.commands.command import Command, Example
from kcovdbg.commands.session import Context
from kcovdbg.commands.suggest import suggest
from kcovdbg.commands.what import find_counts
from kcovdbg.errors import CapabilityError, KcovdbgError
from kcovdbg.model.location import Frame
from kcovdbg.render.column import Column
from kcovdbg.render.kind import ADDRESS, NUMBER, PATH, SYMBOL, WORD
from kcovdbg.render.renderable import Table
from kcovdbg.render.wording import frame_text
from kcovdbg.symbols.table import Table as PointTable

# Building a table takes some seconds with llvm-symbolizer, and a minute with drgn alone.
_PATIENCE: Final = 180.0
_STEP: Final = 0.5
_MASK: Final = (1 << 64) - 1


class _Row(NamedTuple):
    pc: int
    address: int
    frames: tuple[Frame, ...]
    hits: int | None


def _function_text(row: _Row) -> str | None:
    if not row.frames:
        return None
    inner, outer = row.frames[0].function or "?", row.frames[-1].function or "?"
    return inner if inner == outer else f"{inner} ← {outer}"


def find_point_table(context: Context) -> PointTable:
    """Return the table of the kernel's coverage points; waits while it is being built.

    :raises CapabilityError: when there is none and none can be built.
    """
    symbolizer = context.session.symbolizer
    if symbolizer is None:
        raise CapabilityError(f"coverage points are found in a kernel's image: {context.session.target_problem}")
    table = symbolizer.table
    if table is None and symbolizer.waits_for_table:
        context.terminal.stderr.write("kcovdbg: finding the coverage points of this build, once\n")
        context.terminal.stderr.flush()
        end = time.monotonic() + _PATIENCE
        while table is None and time.monotonic() < end:
            time.sleep(_STEP)
            table = symbolizer.table
    if table is None and symbolizer.waits_for_table:
        raise CapabilityError(
            "the coverage points of this build are still being found, in the background",
            hint="ask again in some minutes; with llvm-symbolizer installed it takes a fraction of the time",
        )
    if table is None:
        raise CapabilityError(
            "this kernel's coverage points aren't known: they are found in its vmlinux",
            hint="give the vmlinux with debug info by -s VMLINUX",
        )
    return table


def is_file(text: str) -> bool:
    """Tell whether this names a file rather than a function."""
    return "/" in text or text.endswith((".c", ".h", ".S", ".rs"))


def match_files(table: PointTable, text: str) -> list[str]:
    """Return the files that this is the path of, or the end of the path of."""
    text = text.removeprefix("./")
    return [file for file in table.files() if file.removeprefix("./") == text or file.endswith("/" + text)]


def _find(table: PointTable, wanted: str) -> list[int]:
    if is_file(wanted):
        files = match_files(table, wanted)
        if not files:
            names = {file.rpartition("/")[2] for file in table.files()}
            hint = suggest(wanted.rpartition("/")[2], names) or "paths are relative to the build's root, as in fs/open.c"
            raise KcovdbgError(f"no instrumented code is in a file {wanted}", hint=hint)
        return sorted({pc for file in files for pc in table.find(file=file)})
    found = table.find(function=wanted)
    if not found:
        # A clone's symbol has a suffix.
        if any(symbol.name.split(".")[0] == wanted for symbol in table.functions()):
            return []
        names = {symbol.name for symbol in table.functions()}
        raise KcovdbgError(f"this kernel has no function {wanted}", hint=suggest(wanted, names) or "it may be in a module")
    return list(found)


def _run(context: Context, args: Namespace) -> Table:
    table = find_point_table(context)
    pcs = _find(table, args.place)
    remarks: list[str] = []
    counts: Mapping[int, int] | None = None
    if args.what is not None:
        counts = find_counts(context, args.what, remarks)
    offset = context.target.kaslr_offset
    rows = [
        _Row(pc, pc + offset & _MASK, row[1] if row else (), None if counts is None else counts.get(pc, 0))
        for pc, row in zip(pcs, table.get_rows(pcs), strict=True)
    ]
    if counts is not None and rows:
        covered = sum(bool(row.hits) for row in rows)
        remarks.append(f"{covered} of {len(rows)} points are covered ({covered / len(rows):.0%})")
    columns = [
        Column("pc", WORD),
        Column("address", ADDRESS, json_only=not offset),
        Column(
            "symbol",
            SYMBOL,
            title="FUNCTION",
            value=lambda row: row.frames[-1].function if row.frames else None,
            text=_function_text,
            elastic=16,
        ),
        Column(
            "where",
            PATH,
            text=lambda row: frame_text(row.frames[0]) if row.frames else None,
            text_only=True,
            elastic=16,
            elide_start=True,
        ),
        Column("hits", NUMBER, json_only=counts is None, style=lambda row: "covered" if row.hits else "uncovered"),
        Column("frames", items=FRAME_COLUMNS, json_only=True),
    ]
    if not rows:
        context.status = 2
    return Table(
        columns,
        rows,
        remarks=remarks,
        empty=f"{args.place} is not instrumented: it has no coverage point that KCOV could record",
    )


POINTS = Command(
    name="points",
    summary="is a function or a file instrumented, and where",
    run=_run,
    description=(
        "A point is where the compiler put a call that KCOV records: code without any is never seen by KCOV, whatever runs it. "
        "Functions that were inlined elsewhere have their points there. With WHAT, how often each was recorded."
    ),
    arguments=(
        Argument(("place",), Value.FUNCTION, "a function, or a file such as fs/open.c", metavar="FUNCTION|FILE"),
        Argument(("what",), Value.BUFFER, "which points does this buffer cover?", count=Count.OPTIONAL, metavar="WHAT"),
    ),
    examples=(
        Example("points vfs_read", "can KCOV see it at all?"),
        Example("points net/ipv4/tcp.c 41", "how much of it did task 41 execute?"),
    ),
)
