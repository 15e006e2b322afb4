# SPDX-License-Identifier: LGPL-2.1-or-later
"""Arguments that several commands on buffers take."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from kcovdbg.analysis.located_records import PcFilter
from kcovdbg.analysis.pc_names import Names
from kcovdbg.engine.argument import Argument, Count, Value
from kcovdbg.engine.code_names import check_files, check_functions

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
TEXT_PCS: Final = Argument(
    ("--pc",),
    Value.CHOICE,
    "PCs in a text file: raw (as recorded, kcovtrace) or call (the call before, syzkaller's rawcover)",
    choices=("auto", "raw", "call"),
    default="auto",
)
LISTING: Final = (
    Argument(("--raw",), Value.FLAG, "show one line per record"),
    Argument(("-n",), Value.NUMBER, "show at most N lines; with --json, N records", metavar="N"),
    Argument(("--tail",), Value.FLAG, f"show the last lines: {TAIL}, or N with -n"),
)


def make_filters(args: Namespace, *names: Names) -> list[PcFilter]:
    """Return the filters that :data:`FILTERS` ask for.

    :param names: of recorded PCs, for each filter.
    :raises KcovdbgError: when no kernel has a function or file that the arguments name.
    """
    check_functions(names, (*(args.function or ()), *(args.not_function or ())))
    check_files(names, args.file or ())
    return [PcFilter(of_kernel, args.function, args.file, args.not_function) for of_kernel in names]
