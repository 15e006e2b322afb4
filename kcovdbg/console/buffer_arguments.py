# SPDX-License-Identifier: LGPL-2.1-or-later
"""Arguments that several commands on buffers take."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from kcovdbg.console.argument import Argument, Count, Value
from kcovdbg.console.code_names import check_files, check_functions
from kcovdbg.records.located_records import PcFilter
from kcovdbg.records.pc_convention import Convention
from kcovdbg.records.pc_file import PcFormat
from kcovdbg.records.pc_list import AUTO, ReadingOptions
from kcovdbg.records.pc_names import LocationCache

TAIL: Final = 20
"""Records that ``--tail`` shows without ``-n``."""

NOT_FUNCTION: Final = Argument(
    ("--not-function",),
    Value.FUNCTION,
    "leave out records in this function, inlined or not; may be a pattern: 'rcu_*'",
    count=Count.ANY,
    metavar="F",
)
FILTERS: Final = (
    Argument(
        ("--function",),
        Value.FUNCTION,
        "only records in this function, inlined or not; may be a pattern: 'tcp_*'",
        count=Count.ANY,
        metavar="F",
    ),
    Argument(
        ("--file",),
        Value.FUNCTION,
        "only records in this file or directory; may be a pattern: 'net/*'",
        count=Count.ANY,
        metavar="P",
    ),
    NOT_FUNCTION,
)
TRACE_OPTIONS: Final = (
    Argument(
        ("--format",),
        Value.CHOICE,
        "what a trace file without a side file is; default is to find out",
        choices=(AUTO, *(known.value for known in PcFormat)),
        metavar="FORMAT",
        default=AUTO,
        key="file_format",
    ),
    Argument(
        ("--pc",),
        Value.CHOICE,
        "what its PCs are: raw (as recorded, kcovtrace), call (syzkaller's rawcover), minus1 (return address - 1) or twice "
        "(the call subtracted twice); default is to find out",
        choices=(AUTO, *(known.value for known in Convention)),
        metavar="CONVENTION",
        default=AUTO,
    ),
    Argument(
        ("--kaslr-offset",),
        Value.ADDRESS,
        "the KASLR offset that its PCs include; 0 for none; default is to find out",
        metavar="OFFSET",
    ),
)
"""Options of every command that reads trace files."""
LISTING: Final = (
    Argument(("--raw",), Value.FLAG, "show one line per record"),
    Argument(("-n",), Value.NUMBER, "show at most N lines; with --json, N records", metavar="N"),
    Argument(("--tail",), Value.FLAG, f"show the last lines: {TAIL}, or N with -n"),
)


def find_reading(args: Namespace) -> ReadingOptions:
    """Return what :data:`TRACE_OPTIONS` ask for; the defaults of a command without them."""
    return ReadingOptions(
        getattr(args, "file_format", None) or AUTO, getattr(args, "pc", None) or AUTO, getattr(args, "kaslr_offset", None)
    )


def make_filters(args: Namespace, *names: LocationCache) -> list[PcFilter]:
    """Return the filters that :data:`FILTERS` ask for.

    :param names: of recorded PCs, for each filter.
    :raises KcovdbgError: when no kernel has a function or file that the arguments name.
    """
    check_functions(names, (*(args.function or ()), *(args.not_function or ())))
    check_files(names, args.file or ())
    return [PcFilter(of_kernel, args.function, args.file, args.not_function) for of_kernel in names]
