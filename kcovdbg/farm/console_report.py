# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel's report of a crash as text on a console or in a file: the task, and the function where it began.

The text is hostile: whatever user space could make the kernel print.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from kcovdbg.crash.crash_point import find_origin
from kcovdbg.crash.crash_summary import CrashSummary
from kcovdbg.records.oops_words import find_code_words

# Of printk() with CONFIG_PRINTK_CALLER, and of a console that shows levels.
_PREFIX: Final = re.compile(r"(<\d+>)?\[ *\d+\.\d+\](\[ *[CT]\d+\])? ?")
# Around a place that printk's %pS printed; "?" marks what is only found on the stack. On arm, the function that it calls
# comes first (arch/arm/kernel/traps.c: dump_backtrace_entry()); on powerpc, the stack pointer (arch/powerpc/kernel/process.c).
_BEFORE: Final = re.compile(r"\s*((\[<[0-9a-f]+>\] )?\(?[\w.$]+\)? from )?(\[<?[0-9a-f]+>?\] ){0,2}\(?(?P<unsure>\? )?")
# Added by syzkaller and decode_stacktrace.sh; the innermost of several places.
_SOURCE: Final = r" \(?(?P<file>[\w./+-]+\.[chSrs]+):(?P<line>\d+)( [^)]*)?\)?"
_AFTER: Final = re.compile(rf"\)?( \([PTFU]+\))?( \[[\w -]+\])?({_SOURCE})?\s*( \(.*\))?\s*")
_INLINED: Final = re.compile(rf"\s*(?P<function>[\w.$]+){_SOURCE}( \[\w+\])?\s*")
# show_regs() of arch/*/kernel; the code segment of the kernel.
_COUNTER: Final = re.compile(
    r"\s*(RIP: 0010:(\[<[0-9a-f]+>\] +\[<[0-9a-f]+>\] )?|pc : |epc : |PC is at |NIP \[[0-9a-f]+\] |--- interrupt: \w+ at )"
    r"(?P<place>.*)"
)
# Lines that name an address before the stack, and remain where a log ends early: mm/kasan/report.c, arch/x86/mm/fault.c,
# kernel/panic.c, kernel/locking/lockdep.c.
_HEADLINE: Final = re.compile(
    r"\s*(BUG: K\w+: [\w-]+ in |(BUG: unable to handle .* )?IP: (\[<[0-9a-f]+>\] )?|WARNING: .* at \S+:\d+ "
    r"|.*stack is corrupted in: | ?\(.*\)(\{.*\})?, at: (\[<[0-9a-f]+>\] )?)(?P<place>.*)"
)
_TRACE: Final = re.compile(r"\s*(Call [Tt]race|[Bb]acktrace( \(crc \w+\))?):")
# Lines after a stack. Its lines may have others in between: registers of an interrupt, messages of other CPUs.
_END: Final = re.compile(
    r"\s*(---\[ end|RIP: 00[23]3:|Modules linked in|(BUG|INFO|WARNING|KASAN|UBSAN): |Kernel panic|Kernel Offset|Rebooting|rcu: "
    r"|(Allocated|Freed)(:| by )|The buggy address|Memory state|(Last|Second to last) potentially|Uninit was |Local variable"
    r"|Showing all locks|=====|-----|-> #\d|task:|NMI backtrace|Sending NMI|(CPU: \d+ )?PID: |==> )"
)
_MAX_BETWEEN: Final = 25
# Places that are not the crash's: of locks and memory that it is about.
_ASIDE: Final = re.compile(
    r"\s*(-> #\d|(Allocated|Freed)(:| by )|Preemption disabled at:|The buggy address|"
    r"(Last|Second to last) potentially|Uninit was |.* state was registered at)"
)
# Before stacks that are no crash's: of a task that waits and is not what stalls (kernel/rcu/tree_stall.h:
# rcu_check_gp_kthread_starvation()), of a fault that was injected (lib/fault-inject.c), of mm/page_alloc.c: warn_alloc().
_HARMLESS: Final = re.compile(
    r"(rcu: )?RCU grace-period kthread stack dump|FAULT_INJECTION: forcing a failure|.{1,16}: (page|vmalloc)[\w: ]* failure"
)
_TASK: Final = re.compile(r"PID: (?P<pid>\d+)(?: UID: \d+)? Comm: (?P<comm>.{1,15}?)(?= +(Not tainted|Tainted)|$| )")
# sched_show_task()
_HUNG: Final = re.compile(r"task:(?P<comm>.{1,15}?) +state:\w.* pid: *(?P<pid>\d+)")
_SYSCALL: Final = re.compile(r"__(?:x64|ia32|arm64|riscv|s390x?|se|do)_sys_(?P<name>\w+)")
_MAX_FRAMES: Final = 1000
# printk() cuts a line off much earlier.
_MAX_LINE: Final = 2048


class _Frame(NamedTuple):
    function: str
    file: str | None
    line: int | None


def summarize_report(text: str) -> CrashSummary:
    """Return what a report says: the task that it names first, and where the first stack that shows it began."""
    lines = [_PREFIX.sub("", line.rstrip("\r"), count=1) for line in text.split("\n") if len(line) <= _MAX_LINE]
    task = next(filter(None, map(_HUNG.match, lines)), None) or next(filter(None, map(_TASK.search, lines)), None)
    summary = CrashSummary(*(() if task is None else (int(task["pid"]), task["comm"].strip())))
    seen = False
    for stack in _find_stacks(lines):
        seen = True
        origin = find_origin([frame.function for frame in stack])
        if origin is None:
            continue
        calls = (match["name"] for frame in stack if (match := _SYSCALL.fullmatch(frame.function)) is not None)
        return CrashSummary(summary.pid, summary.comm, None, *stack[origin], next(calls, None))
    problem = "the report's stacks do not show where it began" if seen else "the report has no stack"
    places = (match["place"] for line in lines if (match := _COUNTER.match(line) or _HEADLINE.match(line)) is not None)
    named = (find_code_words(place)[:1] for place in places)
    names = [place.function for found in named for place in found if place.function is not None]
    name = next((name for name in names if find_origin([name]) is not None), None)
    return CrashSummary(summary.pid, summary.comm, None, name, errors=(problem,))


def _find_stacks(lines: Sequence[str]) -> Iterator[list[_Frame]]:
    """Iterate over the stacks in a report, each innermost frame first, with the function that was interrupted in front."""
    counter: list[_Frame] = []
    stack: list[_Frame] | None = None
    is_aside = is_harmless = False
    between = 0
    for line in (*lines, "-----"):
        found = _COUNTER.match(line)
        frames = _read_frame(line if found is None else found["place"])
        is_start = _TRACE.match(line) is not None
        if stack is not None and (
            is_start or _END.match(line) or _HARMLESS.match(line) or between > _MAX_BETWEEN or len(stack) > _MAX_FRAMES
        ):
            if stack and not is_harmless:
                yield stack
            stack, counter, is_harmless = None, [], False
        is_aside = (is_aside and not is_start) or _ASIDE.match(line) is not None
        is_harmless = is_harmless or _HARMLESS.match(line) is not None
        # Some reports, such as KMSAN's, have no line in front of their stack.
        if is_start or (stack is None and found is None and frames and not is_aside):
            stack, between = [*counter, *(frames or [])], 0
        elif stack is not None:
            between = between + 1 if frames is None else 0
            stack += frames or []
        elif found is not None:
            counter = frames or []


def _read_frame(line: str) -> list[_Frame] | None:
    """Return the frame in a line, none of one that is unsure; None where the line is not a frame."""
    if "+0x" not in line:
        inlined = _INLINED.fullmatch(line)
        return None if inlined is None else [_Frame(inlined["function"], inlined["file"], int(inlined["line"]))]
    place = next((place for place in find_code_words(line) if place.function is not None), None)
    if place is None:
        return None
    before, after = _BEFORE.fullmatch(line, 0, place.span[0]), _AFTER.fullmatch(line, place.span[1])
    if before is None or after is None:
        return None
    function = place.function or ""
    return [] if before["unsure"] else [_Frame(function, after["file"], None if after["line"] is None else int(after["line"]))]
