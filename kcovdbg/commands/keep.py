# SPDX-License-Identifier: LGPL-2.1-or-later
"""``keep``: buffers kept in memory, to be compared later."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Final

from kcovdbg.analysis.keeping import Kept, keep
from kcovdbg.commands.argument import Argument, Count, Value, WordError
from kcovdbg.commands.buffer import TEXT_PCS
from kcovdbg.commands.command import Command, Example
from kcovdbg.commands.session import Context
from kcovdbg.commands.what import find_buffer, find_kept
from kcovdbg.render.column import Column
from kcovdbg.render.kind import NUMBER, TEXT
from kcovdbg.render.renderable import Table

_COLUMNS: Final = (
    Column("name", TEXT, value=lambda row: row[0]),
    Column("what", TEXT, value=lambda row: row[1].source),
    Column("count", NUMBER, title="RECORDS", value=lambda row: row[1].shell.count),
    Column("distinct", NUMBER, value=lambda row: row[1].distinct),
    Column("bytes", NUMBER, value=lambda row: row[1].size),
)


def _run(context: Context, args: Namespace) -> Table:
    kept: dict[str, Kept] = context.session.kept
    if args.delete:
        if args.name is None:
            raise WordError("keep --delete needs the name of a kept buffer", None)
        find_kept(context, args.name)
        del kept[args.name]
        return _table(kept)
    if args.name is None:
        return _table(kept)
    if args.what is None:
        raise WordError(f"keep {args.name} what?", None, hint="keep @NAME WHAT, for instance keep @before 41")
    buffer = find_buffer(context, args.what)
    kept[args.name] = keep(buffer, args.name, args.what)
    return _table({args.name: kept[args.name]}, buffer.remarks)


def _table(kept: Mapping[str, Kept], remarks: tuple[str, ...] = ()) -> Table:
    return Table(_COLUMNS, tuple(kept.items()), remarks=remarks, empty="nothing is kept")


KEEP = Command(
    name="keep",
    summary="keep a buffer in memory, or list those that are kept",
    run=_run,
    description=(
        "What is kept stays as it was, whatever the kernel does then, and takes some KiB. @NAME stands for it wherever a "
        "buffer is asked for; sets of PCs can be put together: '@a & @b', '@a - @b', '(@a | @b) ^ 41'."
    ),
    arguments=(
        Argument(("name",), Value.BUFFER_NAME, "what to call it", count=Count.OPTIONAL, metavar="@NAME"),
        Argument(("what",), Value.BUFFER, "which buffer", count=Count.OPTIONAL, metavar="WHAT"),
        Argument(("--delete",), Value.FLAG, "forget it"),
        TEXT_PCS,
    ),
    examples=(
        Example("keep @before 41", "what is in the buffer now"),
        Example("keep", "what is kept? diff @before 41 tells what was added since"),
    ),
    needs=frozenset(),
)
