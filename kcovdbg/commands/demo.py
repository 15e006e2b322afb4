# SPDX-License-Identifier: LGPL-2.1-or-later
"""``demo``: the bundled demo as files."""

from __future__ import annotations

import os
import shlex
from argparse import Namespace
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.column import NUMBER, PATH, Column, RowType
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.renderable import Lines, Table
from kcovdbg.errors import KcovdbgError, write_error
from kcovdbg.input_file import open_input
from kcovdbg.output_file import open_output
from kcovdbg.target.demo_files import DemoFile, list_demo_files
from kcovdbg.target.dump_file import unpack
from kcovdbg.user_folder import expand_user

_COLUMNS: Final = (
    Column("file", PATH, meaning="path of the file that was written"),
    Column("bytes", NUMBER, meaning="size of the file", unit="bytes"),
    Column("what", meaning="what it is"),
)


def _run(context: Context, args: Namespace) -> tuple[Table, Lines]:  # noqa: ARG001
    folder = expand_user(args.directory)
    files = list_demo_files()
    for file in files:
        _refuse_existing(folder / file.name)
    try:
        made = tuple(_write(file, folder / file.name) for file in files)
    except OSError as error:
        raise write_error(error.filename or folder, error) from error
    return Table(_COLUMNS, made), Lines(((), *((("hint", line),) for line in _uses(folder, files))))


def _refuse_existing(path: Path) -> None:
    """Raise if a file is there already, be it a link to nothing.

    :raises KcovdbgError: when it is.
    """
    if os.path.lexists(path):
        raise KcovdbgError(
            f"demo: '{path}' exists", hint="give a directory without it: demo DIRECTORY"
        )


class _WrittenFile(NamedTuple):
    file: str
    bytes: int
    what: str


def _write(file: DemoFile, path: Path) -> _WrittenFile:
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        open_input(unpack(file.path).path) as packed,
        open_output(path, check=partial(_refuse_existing, path)) as target,
    ):
        while data := packed.read(1 << 20):
            target.write(data)
        size = target.tell()
    return _WrittenFile(str(path), size, file.what)


def _uses(folder: Path, files: Sequence[DemoFile]) -> Iterator[str]:
    """Yield lines to type in a shell, for the files that there are."""
    names = {file.name for file in files}
    at = shlex.quote(str(folder))
    yield f"kcovdbg {at}/vmlinux {at}/vmcore {at}/*.ko --source-dir {at}"
    yield f"kcovdbg gdb {at}/vmlinux {at}/vmcore"
    yield f"drgn -c {at}/vmcore -s {at}/vmlinux"
    if "calls/vmcore" in names:
        yield f"kcovdbg {at}/calls/vmlinux {at}/calls/vmcore"


COMMAND: Final = Command(
    name="demo",
    summary="unpack the bundled demo, for kcovdbg, GDB and drgn",
    topic=Topic.OUTPUT,
    run=_run,
    row_types=(RowType(_COLUMNS),),
    description=(
        "Writes the core and the kernel image that kcovdbg --demo opens, its modules, and the "
        "source of one module. The directory calls has a second guest, whose kernel records "
        "entries and exits of functions: its task kc-ext is an example for trace. No file is "
        "overwritten."
    ),
    arguments=(
        Argument("directory DIRECTORY", Value.FILE, "where to write, made if it does not exist"),
    ),
    examples=(
        Example("demo try", "then: drgn -c try/vmcore -s try/vmlinux"),
        Example("demo /tmp/kcov", "then: kcovdbg gdb /tmp/kcov/vmlinux /tmp/kcov/vmcore"),
    ),
    needs=frozenset(),
    acts=True,
)
