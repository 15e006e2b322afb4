# SPDX-License-Identifier: LGPL-2.1-or-later
"""``log``: the kernel's log, as dmesg shows it."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.column import NUMBER, SECONDS, Column, RowType
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.log_lines import log_lines
from kcovdbg.console.renderable import Lines, Table
from kcovdbg.errors import KcovdbgError
from kcovdbg.walk.printk_log import read_kernel_log

# KERN_EMERG to KERN_DEBUG of include/linux/kern_levels.h, by the names that dmesg has for them.
_LEVELS: Final = ("emerg", "alert", "crit", "err", "warn", "notice", "info", "debug")

_COLUMNS: Final = (
    Column("seq", NUMBER, meaning="number of the record since boot"),
    Column(
        "time",
        SECONDS,
        value=lambda record: record.time // 1000 / 1_000_000,
        meaning="time since boot",
        unit="seconds",
    ),
    Column(
        "level",
        value=lambda record: _LEVELS[record.level & 7],
        meaning="severity: emerg, alert, crit, err, warn, notice, info or debug",
    ),
    Column(
        "facility",
        NUMBER,
        meaning="0 for the kernel, other numbers for programs that write to /dev/kmsg",
    ),
    Column(
        "caller",
        meaning="who wrote it: T and a thread id, or C and a CPU in an interrupt",
        null="the kernel does not keep it",
    ),
    Column("text", meaning="text of the record, which may have several lines"),
)


def _run(context: Context, args: Namespace) -> Lines:
    limit = args.n
    if args.since is not None or args.level is not None:
        # The newest of the chosen records may be old.
        limit = None
    log = read_kernel_log(context.target, limit)
    if not log.records:
        raise KcovdbgError(next(iter(log.remarks), "the kernel's log is empty"))
    found = list(log.records)
    if args.since is not None:
        found = [record for record in found if record.time >= args.since * 1e9]
    if args.level is not None:
        worst = _LEVELS.index(args.level)
        found = [record for record in found if record.level <= worst]
    if args.n is not None:
        found = found[max(0, len(found) - args.n) :]
    return Lines(log_lines(found, context.width), data=Table(_COLUMNS, found), remarks=log.remarks)


COMMAND: Final = Command(
    name="log",
    summary="show the kernel's log, as dmesg does",
    topic=Topic.STATE,
    run=_run,
    row_types=(RowType(_COLUMNS),),
    description=(
        "Reads printk()'s ring buffer in the kernel's memory. A note counts the records that "
        "could not be read. Control characters are shown as escapes."
    ),
    arguments=(
        Argument("-n N", Value.NUMBER, "show the last N records"),
        Argument("--since SECONDS", Value.SECONDS, "show records from this time after boot on"),
        Argument(
            "--level", Value.CHOICE, "show records of this severity and worse", choices=_LEVELS
        ),
    ),
    examples=(
        Example("log -n 40", "what did the kernel print last?"),
        Example("log --level warn", "what did it complain about?"),
        Example("log --json", "records for a script"),
    ),
)
