# SPDX-License-Identifier: LGPL-2.1-or-later
"""``symbols``: build location tables of kernels in advance, list them, and write them to files for
other machines.
"""

from __future__ import annotations

import contextlib
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.column import NUMBER, PATH, Column, RowType
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.renderable import Lines, Table, text_lines
from kcovdbg.console.table_progress import build_table
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import NotElfError
from kcovdbg.errors import CapabilityError, KcovdbgError, UsageError, WordError
from kcovdbg.input_file import open_input
from kcovdbg.output_file import open_output
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.location_table import FORMAT, LocationTable, TableError
from kcovdbg.symbols.table_cache import (
    find_table_files,
    find_table_key,
    link_table,
    make_build_key,
    open_table,
    open_table_file,
)

# Seconds that building may take: a day. drgn alone needs an hour for a large kernel on a small
# machine.
_PATIENCE: Final = 86400.0


_COLUMNS: Final = (
    Column("build_id", meaning="build ID of the kernel, in hexadecimal digits"),
    Column("points", NUMBER, meaning="coverage points that record a PC", unit="points"),
    Column(
        "comparisons", NUMBER, meaning="coverage points that record a comparison", unit="points"
    ),
    Column("functions", NUMBER, meaning="functions of the kernel image", unit="functions"),
    Column("bytes", NUMBER),
    Column(
        "format",
        NUMBER,
        json_only=True,
        meaning="version of the file's format; a kcovdbg reads one version",
    ),
    Column("file", PATH, meaning="path of the table"),
)


@dataclass(frozen=True, slots=True)
class _TableRow:
    """A location table, by the keys of :data:`_COLUMNS`."""

    build_id: str | None
    points: int
    comparisons: int
    functions: int
    bytes: int
    file: str
    format: int = FORMAT


def _describe(table: LocationTable, file: Path) -> _TableRow:
    return _TableRow(
        build_id=table.build_id,
        points=len(table.pcs(PointKind.PC, PointKind.ENTRY, PointKind.EXIT)),
        comparisons=len(table.pcs(PointKind.CMP)),
        functions=sum(1 for _ in table.functions()),
        bytes=file.stat().st_size,
        file=str(file),
    )


def _find_images(files: Sequence[str]) -> tuple[str, str | None, str]:
    """Return the file with debug info, the file with code if it is another one, and the build ID.

    :raises KcovdbgError: when the files do not have both, or are of different builds.
    """
    if not 1 <= len(files) <= 2:
        raise UsageError("symbols build: expected a vmlinux", hint="symbols build VMLINUX -o FILE")
    debug: str | None = None
    code: str | None = None
    ids = set()
    for name in files:
        with ElfFile(name) as elf:
            if elf.build_id is None:
                raise CapabilityError(
                    f"{name} has no build ID", hint="link the kernel with --build-id, the default"
                )
            ids.add(elf.build_id)
            if elf.has_lines and debug is None:
                debug = name
            if elf.text_sections() and (code is None or not elf.has_lines):
                code = name
    if len(ids) > 1:
        raise CapabilityError(f"{files[0]} and {files[1]} are of different builds")
    if debug is None:
        raise CapabilityError(
            f"{files[0]} has no debug info with source lines",
            hint="name the file of debug info as well",
        )
    if code is None:
        raise CapabilityError(
            f"{files[0]} is debug info alone",
            hint=f"name the image as well: symbols build {files[0]} IMAGE",
        )
    if code == debug:
        return debug, None, ids.pop()
    return debug, code, ids.pop()


def _build(context: Context, files: Sequence[str], output: str | None) -> _TableRow:
    debug, code, build_id = _find_images(files)
    key = find_table_key(debug, code)
    assert key is not None
    table = open_table(key)
    if table is None:
        table = build_table(context.terminal, debug, key, _PATIENCE, code)
    # From now on the table is also found by the build ID alone, and by each of the files alone.
    file_keys = {find_table_key(name) for name in files}
    link_table(table, (make_build_key(build_id), *filter(None, file_keys)))
    file = table.path
    if output is not None:
        with open_input(table.path) as source, open_output(output) as target:
            target.write(source.read())
        file = Path(output)
    return _describe(table, file)


def _find_files(files: Sequence[str]) -> Iterator[LocationTable]:
    """Yield the tables of files, which are tables or images; without files, all tables of the
    cache.
    """
    if not files:
        for path in find_table_files():
            with contextlib.suppress(OSError, TableError):
                yield LocationTable(path)
    for name in files:
        key = None
        try:
            with ElfFile(name) as elf:
                if elf.build_id is not None:
                    key = find_table_key(name)
        except NotElfError:
            yield open_table_file(name, None)
            continue
        table = None if key is None else open_table(key)
        if table is None:
            raise KcovdbgError(f"no table of {name} has been built", hint=f"symbols build {name}")
        yield table


def _run(context: Context, args: Namespace) -> Table | Lines:
    if args.apply:
        if context.workspace.frontend.move_symbols is None:
            raise CapabilityError(
                "symbols --apply moves GDB's symbols", hint="in GDB: kcov-show symbols --apply"
            )
        return text_lines(context.workspace.frontend.move_symbols())
    if args.action is None:
        raise UsageError("symbols: expected build or info", hint="symbols build VMLINUX -o FILE")
    if args.action == "build":
        rows = [_build(context, args.file, args.output)]
    elif args.output is not None:
        raise WordError("symbols info writes no file", args.output)
    else:
        rows = [_describe(table, table.path) for table in _find_files(args.file)]
    return Table(_COLUMNS, rows, empty="no table has been built")


COMMAND: Final = Command(
    name="symbols",
    summary="build or show the location tables of kernels",
    topic=Topic.MAINTENANCE,
    run=_run,
    row_types=(RowType(_COLUMNS),),
    description=(
        "A table has the functions and source lines of a kernel's coverage points. kcovdbg builds "
        "it on all cores when an image is first used, keeps it in the user's cache, and finds it "
        "again by the image's contents. symbols build makes it in advance; -o also writes it to a "
        "file for other machines, which name it with --symbol-table. If debug info is in a "
        "separate file, name both files, in either order. A trace without an image uses the last "
        "table that symbols build made for its build ID.\n\n"
        "symbols info shows tables: FILE is a table or an image; without it, all tables of the "
        "cache.\n\n"
        "In GDB, kcov-show symbols --apply moves GDB's symbols to where KASLR has moved the "
        "kernel: it runs symbol-file with the offset."
    ),
    arguments=(
        Argument("action [build|info]", Value.CHOICE, "what to do", choices=("build", "info")),
        Argument("file [FILE…]", Value.FILE, "a vmlinux, its debug info, or a table"),
        Argument("-o, --output FILE", Value.FILE, "also write the table to a file", is_output=True),
        Argument(
            "--apply", Value.FLAG, "in GDB: move GDB's symbols to where the kernel is (KASLR)"
        ),
    ),
    examples=(
        Example(
            "symbols build vmlinux -o vmlinux.kcovsym", "build once for all machines of a farm"
        ),
        Example("symbols build vmlinux.debug vmlinux", "debug info is in a file of its own"),
        Example("symbols info", "which builds' tables are there?"),
    ),
    needs=frozenset(),
)
