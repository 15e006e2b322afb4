# SPDX-License-Identifier: LGPL-2.1-or-later
"""Arguments that several commands on buffers take, and a check of the names of functions and source
files in them.
"""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Final

from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.command import BUFFERS_TOPIC
from kcovdbg.records.pc_options import AUTO, Convention, PcFormat, ReadingOptions

if TYPE_CHECKING:
    from kcovdbg.records.located_records import PcFilter
    from kcovdbg.records.pc_locations import LocationCache

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
    "what the PCs of a list are: raw (as recorded, kcovtrace), call (syzkaller's rawcover), minus1 "
    "(return address - 1), twice (the call subtracted twice) or exact (executed code)",
    choices=(AUTO, *(known.value for known in Convention)),
    default=AUTO,
    topic=BUFFERS_TOPIC,
)
TRACE_OPTIONS: Final = (
    Argument(
        "--format LIST",
        Value.CHOICE,
        "the format of a trace file without a side file",
        choices=(AUTO, *(known.value for known in PcFormat)),
        default=AUTO,
        key="file_format",
        topic=BUFFERS_TOPIC,
    ),
    PC_CONVENTION,
    Argument(
        "--kaslr-offset OFFSET",
        Value.ADDRESS,
        "the KASLR offset that the PCs include; 0 for none",
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

    :param names: locations of recorded PCs, for each filter.
    :raises KcovdbgError: when no kernel has a function or file that the arguments name.
    """
    # Commands that have other arguments load none of this.
    from kcovdbg.inputs.code_names import check_code
    from kcovdbg.records.located_records import PcFilter

    check_code(names, (*(args.function or ()), *(args.not_function or ())))
    check_code(names, args.file or (), are_files=True)
    return [PcFilter(of_kernel, args.function, args.file, args.not_function) for of_kernel in names]
