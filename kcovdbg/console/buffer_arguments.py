# SPDX-License-Identifier: LGPL-2.1-or-later
"""Arguments that several commands on buffers take, and a check of the names of functions and source
files in them.
"""

from __future__ import annotations

import posixpath
from argparse import Namespace
from collections.abc import Iterable, Sequence
from typing import Final

from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.command import BUFFERS_TOPIC
from kcovdbg.console.renderable import suggest
from kcovdbg.elf.symbol_table import demangle, strip_clone_suffix
from kcovdbg.errors import KcovdbgError
from kcovdbg.records.located_records import PcFilter, matches_path
from kcovdbg.records.pc_convention import Convention
from kcovdbg.records.pc_file import PcFormat
from kcovdbg.records.pc_list import AUTO, ReadingOptions
from kcovdbg.records.pc_names import LocationCache, OtherCode, is_pattern
from kcovdbg.symbols.location_table import LocationTable

_OF_MODULE: Final = "one of a module is known by its debug info: -s MODULE.ko"


def _knows_function(table: LocationTable, other: OtherCode | None, name: str) -> bool:
    """Return whether a kernel has a function or symbol with a name, or one that matches a
    pattern.
    """
    if is_pattern(name):
        # The functions of modules cannot be listed.
        return True
    return bool(
        table.find_frames("frame_function", {demangle(name)}) or table.functions_named(name)
    ) or (other is not None and (other.has_function(name) or other.find_code(name) is not None))


def unknown_function(
    tables: Sequence[LocationTable], name: str, noun: str = "function"
) -> KcovdbgError:
    """Return the error for a name of a function that a kernel does not have."""
    known = {known for table in tables for known in table.function_names()}
    source_name = strip_clone_suffix(name)
    hint = f"did you mean {source_name}?" if source_name in known else suggest(name, sorted(known))
    return KcovdbgError(f"no {noun} '{name}' in this kernel", hint=hint or _OF_MODULE)


def _knows_file(table: LocationTable, other: OtherCode | None, name: str) -> bool:
    files = (*table.files(), *table.units())
    return any(matches_path(name, file) for file in files) or (
        other is not None and other.has_file(name)
    )


def unknown_file(tables: Sequence[LocationTable], name: str) -> KcovdbgError:
    """Return the error for a path of source code that a kernel does not have."""
    base_names = sorted({posixpath.basename(file) for table in tables for file in table.files()})
    hint = (
        suggest(posixpath.basename(name), base_names)
        or "paths are relative to the build root, as in fs/open.c or fs"
    )
    return KcovdbgError(f"no code of a file or directory '{name}' in this kernel", hint=hint)


def check_code(
    names: Sequence[LocationCache], wanted: Iterable[str], *, are_files: bool = False
) -> None:
    """Make sure that one of some kernels has each of some functions; or code of each of some files,
    directories or patterns.

    :raises KcovdbgError: when none has one.
    """
    knows, find_error = (
        (_knows_file, unknown_file) if are_files else (_knows_function, unknown_function)
    )
    for name in wanted:
        tables = [table for one in names if (table := one.table) is not None]
        # Without a table of each, what is inlined is unknown.
        if len(tables) == len(names) and not any(
            knows(table, one.other, name) for table, one in zip(tables, names, strict=True)
        ):
            raise find_error(tables, name)


TAIL: Final = 20
"""Records that ``--tail`` shows without ``-n``."""

NOT_FUNCTION: Final = Argument(
    "--not-function F…",
    Value.FUNCTION,
    "leave out records in this function, inlined or not; may be a pattern: 'rcu_*'",
)
FILTERS: Final = (
    Argument(
        "--function F…",
        Value.FUNCTION,
        "only records in this function, inlined or not; may be a pattern: 'tcp_*'",
    ),
    Argument(
        "--file P…",
        Value.FUNCTION,
        "only records in this file or directory; may be a pattern: 'net/*'",
    ),
    NOT_FUNCTION,
)
PC_CONVENTION: Final = Argument(
    "--pc CONVENTION",
    Value.CHOICE,
    "what PCs of a list are: raw (as recorded, kcovtrace), call (syzkaller's rawcover), minus1 "
    "(return address - 1) or twice "
    "(the call subtracted twice); default is to find out",
    choices=(AUTO, *(known.value for known in Convention)),
    default=AUTO,
    topic=BUFFERS_TOPIC,
)
TRACE_OPTIONS: Final = (
    Argument(
        "--format LIST",
        Value.CHOICE,
        "what a trace file without a side file is; default is to find out",
        choices=(AUTO, *(known.value for known in PcFormat)),
        default=AUTO,
        key="file_format",
        topic=BUFFERS_TOPIC,
    ),
    PC_CONVENTION,
    Argument(
        "--kaslr-offset OFFSET",
        Value.ADDRESS,
        "the KASLR offset that its PCs include; 0 for none; default is to find out",
        topic=BUFFERS_TOPIC,
    ),
)
"""Options of every command that reads trace files."""
FORCE: Final = Argument("--force", Value.FLAG, "also write PCs that hardly fit this kernel")
LISTING: Final = (
    Argument("--raw", Value.FLAG, "show one line per record"),
    Argument("-n N", Value.NUMBER, "show at most N lines; with --json, N records"),
    Argument("--tail", Value.FLAG, f"show the last lines: {TAIL}, or N with -n"),
)


def find_reading(args: Namespace) -> ReadingOptions:
    """Return what :data:`TRACE_OPTIONS` ask for; the defaults of a command without them."""
    return ReadingOptions(
        getattr(args, "file_format", None) or AUTO,
        getattr(args, "pc", None) or AUTO,
        getattr(args, "kaslr_offset", None),
    )


def make_filters(args: Namespace, *names: LocationCache) -> list[PcFilter]:
    """Return the filters that :data:`FILTERS` ask for.

    :param names: of recorded PCs, for each filter.
    :raises KcovdbgError: when no kernel has a function or file that the arguments name.
    """
    check_code(names, (*(args.function or ()), *(args.not_function or ())))
    check_code(names, args.file or (), are_files=True)
    return [PcFilter(of_kernel, args.function, args.file, args.not_function) for of_kernel in names]
