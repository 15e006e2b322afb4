# SPDX-License-Identifier: LGPL-2.1-or-later
"""A crash in the kernel's log: its lines, the report, the panic's reason, and the task or CPU that it is about."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Final, NamedTuple

from kcovdbg.console.renderable import Line, wrap_line
from kcovdbg.console.text import escape
from kcovdbg.model.log_record import LogRecord

LOG_RECORDS: Final = 4000
"""How many of the newest records of the kernel's log are searched for a crash."""
# The first lines of reports, by what prints them.
_TITLE: Final = re.compile(
    # arch/x86/mm/fault.c, mm/kasan, mm/kmsan, kernel/kcsan, kernel/locking; kernel/watchdog.c; kernel/rcu/tree_stall.h
    r"(watchdog: |NMI watchdog: |rcu: )?(BUG: |INFO: (task|rcu|\w+ (self-)?detected|trying to register)"
    r"|(CPU\d+: )?Watchdog detected hard)"
    # lib/bug.c; arch/x86/kernel/traps.c; arch/arm64/mm/fault.c; arch/riscv/mm/fault.c; arch/s390/mm/fault.c
    r"|kernel BUG at |WARNING: |general protection fault|(divide|bounds|alignment) error|stack segment: |(traps: )?PANIC: "
    r"|Unable to handle kernel "
    # lib/ubsan.c, list_debug.c, refcount.c, string_helpers.c, debugobjects.c; mm/usercopy.c
    r"|UBSAN: |list_(add|del) (corruption|double)|refcount_t: |detected buffer overflow|usercopy: |ODEBUG: |CFI failure"
    # drivers/tty/sysrq.c; mm/oom_kill.c; arch/x86/kernel/cpu/mce/core.c; arch/x86/kernel/nmi.c
    r"|(sysrq|SysRq ?): Trigger a crash|Out of memory: |mce: \[Hardware Error\]|NMI: "
)
# kernel/panic.c
_PANIC: Final = re.compile(r"Kernel panic - not syncing: (.*)")
# Reasons of panic() after another report.
_CONSEQUENCE: Final = re.compile(
    r"Fatal exception|.*\bset\b ?\.\.\.|hung_task: |softlockup: |Hard LOCKUP|RCU Stall|sysrq triggered|Oops|Aiee|.*: Fatal"
    r"|.*NMI|Fatal machine check|.*hardware error|Out of memory"
)
# arch/*/kernel/dumpstack.c, traps.c: __die().
_DIE: Final = re.compile(r"(Oops|Internal error|[\w ]+): .*\[#\d+\]")
# kernel/hung_task.c: check_hung_task()
_HUNG: Final = re.compile(r"INFO: task (?P<comm>.*):(?P<pid>\d+) blocked (in I/O wait )?for more than ")
# kernel/watchdog.c: watchdog_hardlockup_check()
_HARD_LOCKUP: Final = re.compile(r".*hard LOCKUP on cpu (\d+)")
# kernel/rcu/tree_stall.h: print_other_cpu_stall(), print_cpu_stall_info(), rcu_print_task_stall()
_STALL: Final = re.compile(r"(rcu: )?INFO: \w+ detected (expedited )?stalls on CPUs/tasks")
_STALLED_CPU: Final = re.compile(r"(rcu: )?\s*(\d+)-[^\s:]+: \(")
_STALLED_TASK: Final = re.compile(r"(rcu: )?\s*Tasks blocked on .*?: P(\d+)")
# The line of BUG() or WARN(), which the message that belongs to it may precede by so many lines.
_TRAP: Final = re.compile(r"kernel BUG at |WARNING: ")
_ADJACENT: Final = 3
# Nanoseconds between two tasks that are found hung in one round.
_ROUND: Final = 5_000_000_000


class CrashReport(NamedTuple):
    """The log's account of a crash."""

    title: str | None = None
    """The first line of the report that led to it."""
    panic: str | None = None
    """The message of panic(); None where the kernel has not panicked, or has started its crash kernel before."""
    pid: int | None = None
    """The task that the report is about, where one task reports others."""
    cpu: int | None = None
    """The CPU that the report is about, where one CPU reports others."""


def find_report(records: Sequence[LogRecord]) -> CrashReport:
    """Return what the log says about a crash; nothing where the kernel did not crash."""
    own = [record for record in records if record.facility == 0]
    texts = [record.text for record in own]
    panic = next(((index, match[1]) for index, match in enumerate(map(_PANIC.match, texts)) if match is not None), None)
    end, reason = panic or (len(texts), None)
    if reason is not None and not _CONSEQUENCE.match(reason):
        return CrashReport(None, reason)
    if reason is None and not any(map(_DIE.match, texts)):
        return CrashReport()
    titles = [index for index in range(end) if _TITLE.match(texts[index])]
    if not titles:
        return CrashReport(None, reason)
    first = titles[-1]
    if _HUNG.match(texts[first]):
        first = min(_latest_round(own, [index for index in titles if _HUNG.match(texts[index])]))
    elif _TRAP.match(texts[first]) and len(titles) > 1 and first - titles[-2] <= _ADJACENT:
        first = titles[-2]
    return CrashReport(texts[first], reason, *_find_subject(texts[first:end]))


def _latest_round(records: Sequence[LogRecord], hung: Sequence[int]) -> Sequence[int]:
    """Return the last of these reports that follow one another."""
    pairs = list(pairwise(hung))[::-1]
    close = takewhile(lambda pair: records[pair[1]].time - records[pair[0]].time < _ROUND, pairs)
    return [hung[-1], *(before for before, _ in close)]


def _find_subject(report: Sequence[str]) -> tuple[int | None, int | None]:
    """Return the task and the CPU that a report is about, None where it is about who reports."""
    title = report[0]
    hung = _HUNG.match(title)
    if hung is not None:
        return int(hung["pid"]), None
    lockup = _HARD_LOCKUP.match(title)
    if lockup is not None:
        return None, int(lockup[1])
    if _STALL.match(title):
        for line in report[1:]:
            cpu, task = _STALLED_CPU.match(line), _STALLED_TASK.match(line)
            if cpu is not None:
                return None, int(cpu[2])
            if task is not None:
                return int(task[2]), None
    return None, None


# KERN_EMERG to KERN_ERR, and KERN_WARNING, of include/linux/kern_levels.h.
_STYLES: Final[Mapping[int, str]] = {0: "error", 1: "error", 2: "error", 3: "error", 4: "warning"}
_STAMP: Final = len("[12345.123456] ")


def log_lines(records: Sequence[LogRecord], width: int | None, indent: str = "") -> Iterator[Line]:
    """Yield records as dmesg shows them, each line with its time."""
    for record in records:
        style = _STYLES.get(record.level, "")
        for text in record.text.split("\n"):
            line = (("", indent), ("remark", f"[{record.stamp}] "), (style, escape(text)))
            yield from wrap_line(line, width, len(indent) + _STAMP)


def end_lines(records: Sequence[LogRecord], width: int | None) -> Iterator[Line]:
    """Yield the last records under a heading; nothing for an empty log."""
    if records:
        yield (("key", "  end of the kernel's log"),)
        yield from log_lines(records, width, "    ")
