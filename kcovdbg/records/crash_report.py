# SPDX-License-Identifier: LGPL-2.1-or-later
"""A crash in the kernel's log or a report: its title, the panic's reason, its stacks, where it
began, and its task.

The lines of several CPUs are told apart before anything is decided. Patterns are in
:mod:`.report_table`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kcovdbg.model.log_record import LogRecord
from kcovdbg.records.crash_origin import find_allocation, find_origin
from kcovdbg.records.log_text import LogLine, record_lines, split_log, untangle
from kcovdbg.records.oops_words import CodeWord, find_code_words
from kcovdbg.records.report_table import (
    ASIDE,
    COUNTER,
    DOUBTFUL,
    END,
    HARMLESS,
    HEADLINE,
    TITLE,
    TRACE,
)

# kernel/panic.c
_PANIC: Final = re.compile(r"Kernel panic - not syncing: (.*)")
# Reasons of panic() after another report.
_CONSEQUENCE: Final = re.compile(
    r"Fatal exception|.{0,200}\bset\b ?\.\.\.|hung_task: |softlockup: |Hard LOCKUP|RCU Stall"
    r"|sysrq triggered|Oops|Aiee"
    r"|.{0,200}: Fatal|.{0,200}NMI|Fatal machine check|.{0,200}hardware error|Out of memory"
)
# arch/*/kernel/dumpstack.c, traps.c: __die().
_DIE: Final = re.compile(r"(?:Oops|Internal error|[\w ]{1,80}): .{0,200}\[#\d{1,9}\]")
# kernel/hung_task.c: check_hung_task()
_HUNG: Final = re.compile(
    r"INFO: task (?P<comm>.{1,40}):(?P<pid>\d{1,10}) blocked (?:in I/O wait )?for more than "
)
# kernel/watchdog.c: watchdog_hardlockup_check()
_HARD_LOCKUP: Final = re.compile(r".{0,80}hard LOCKUP on cpu (\d{1,6})")
# kernel/rcu/tree_stall.h: print_other_cpu_stall(), print_cpu_stall_info(), rcu_print_task_stall()
_STALL: Final = re.compile(r"(?:rcu: )?INFO: \w{1,40} detected (?:expedited )?stalls on CPUs/tasks")
_STALLED_CPU: Final = re.compile(r"(?:rcu: )?\s{0,8}(\d{1,6})-[^\s:]{1,20}: \(")
_STALLED_TASK: Final = re.compile(r"(?:rcu: )?\s{0,8}Tasks blocked on .{0,80}?: P(\d{1,10})")
# The line of BUG() or WARN(). The message that belongs to it may be so many lines before.
_TRAP: Final = re.compile(r"kernel BUG at |WARNING: ")
_ADJACENT: Final = 3
# Seconds between two tasks that are found hung in one round.
_ROUND: Final = 5.0
# Around a place that printk's %pS printed; "?" marks what is only found on the stack. On arm, the
# function that it calls comes first (arch/arm/kernel/traps.c: dump_backtrace_entry()); on powerpc,
# the stack pointer (arch/powerpc/kernel/process.c); on s390 an unsure place is in brackets
# (arch/s390/kernel/dumpstack.c).
_BEFORE: Final = re.compile(
    r"\s{0,40}(?:(?:\[<[0-9a-f]{1,16}>\] )?\(?[\w.$]{1,512}\)? from )?"
    r"(?:\[<?[0-9a-f]{1,16}>?\]\s{1,2}){0,2}[(<]?(?P<unsure>\? )?"
)
# Added by syzkaller, decode_stacktrace.sh or the kernel itself; the innermost of several places.
_SOURCE: Final = (
    r" \(?(?P<file>[\w./+-]{1,400}\.[chSrs]{1,2}):(?P<line>\d{1,7})(?: [^)]{0,800})?\)?"
)
_MODULE: Final = r"(?: \[[\w .@+-]{1,120}\])?"
_AFTER: Final = re.compile(
    rf"[)>]?(?: \([PTFUCK]{{1,4}}\))?{_MODULE}(?:{_SOURCE})?\s{{0,8}}(?: \(.{{0,200}}\))?"
    rf"(?:, CPU#.{{0,60}})?\s{{0,8}}"
)
_INLINED: Final = re.compile(
    rf"\s{{0,40}}(?:\[<[0-9a-f]{{1,16}}>\] )?(?P<function>[\w.$]{{1,512}}){_SOURCE}"
    rf"(?: \[\w{{1,64}}\])?\s{{0,8}}"
)
_MAX_BETWEEN: Final = 25
# The task of a report: dump_stack_print_info().
_TASK: Final = re.compile(
    r"PID: (?P<pid>\d{1,10})(?: UID: \d{1,10})? Comm: "
    r"(?:(?P<comm>.{1,15}?)(?= {1,4}(?:Not tainted|Tainted:|Kdump:)| {0,4}$)|(?P<word>\S{1,15}))"
)
# sched_show_task()
_TASK_STATE: Final = re.compile(
    r"\s{0,16}task:(?P<comm>.{1,15}?) {1,16}state:\w.{0,80}? pid: {0,8}(?P<pid>\d{1,10})"
)
# mm/kmemleak.c: print_unreferenced()
_TASK_OF_LEAK: Final = re.compile(r"\s{0,16}comm \"(?P<comm>.{1,15})\", pid (?P<pid>\d{1,10})[, (]")
# __warn() since v6.19
_TASK_OF_WARNING: Final = re.compile(
    r"\s{0,16}WARNING: .{0,600}CPU#\d{1,6}: (?P<comm>.{1,15})/(?P<pid>\d{1,10})$"
)
# kernel/kcsan/report.c: print_report()
_ACCESS: Final = re.compile(r".{1,120} bytes by (?:task (?P<pid>\d{1,10})|interrupt) on cpu \d")
_SYSCALL: Final = re.compile(r"__(?:x64|ia32|arm64|riscv|s390x?|loongarch|se|do)_sys_(?P<name>\w+)")
_LEAK: Final = re.compile(r"\s{0,8}unreferenced object 0x")
_MAX_FRAMES: Final = 1000
# printk() cuts a line off much earlier.
_MAX_LINE: Final = 2048


class CrashReport(NamedTuple):
    """The log's account of a crash."""

    title: str | None = None
    """The first line of the report that led to it."""
    panic: str | None = None
    """The message of panic(); None where the kernel has not panicked, or has started its crash
    kernel before.
    """
    pid: int | None = None
    """The task that the report is about, where one task reports others."""
    cpu: int | None = None
    """The CPU that the report is about, where one CPU reports others."""


class ReportedTask(NamedTuple):
    """A task that a log names."""

    pid: int
    comm: str


class ReportedFrame(NamedTuple):
    """A function of a stack in a log."""

    function: str
    file: str | None
    line: int | None


class ReportedStack(NamedTuple):
    """A stack in a log, innermost function first; before it the function that was interrupted."""

    start: int
    """Index of its first line."""
    frames: Sequence[ReportedFrame]
    task: ReportedTask | None
    """The task whose stack it is, by the lines before it."""
    is_allocation: bool = False
    """Whether kmemleak reports it, as the stack of an allocation."""
    is_doubtful: bool = False
    """Whether another stack is more likely the crash's."""
    caller: str | None = None
    """The thread or CPU that printed it, as in :attr:`.LogLine.caller`."""
    racing: int | None = None
    """The thread whose access KCSAN reports by it, 0 for an interrupt; None in other reports."""


class ReportSummary(NamedTuple):
    """What a report says about a crash."""

    task: ReportedTask | None
    origin: ReportedFrame | None
    """Where it began; None where the report does not show that."""
    syscall: str | None = None
    """The name of the system call that the task was in."""
    problem: str | None = None
    """What the report lacks."""


def find_report(records: Sequence[LogRecord]) -> CrashReport:
    """Return what the kernel's log says about a crash; an empty report if there was none."""
    return find_crash([*record_lines(record for record in records if record.facility == 0)])


def find_crash(lines: Sequence[LogLine]) -> CrashReport:
    """Return what a log says about the crash that ended the kernel; an empty report if none did."""
    texts = [line.message[:_MAX_LINE] for line in lines]
    # Without a panic, the report ends with the log.
    end, panic = _find_first(_PANIC, texts)
    died = end
    reason = None
    if panic is None:
        died, oops = _find_first(_DIE, texts)
        if oops is None:
            return CrashReport()
    else:
        reason = panic[1]
        if not _CONSEQUENCE.match(reason):
            return CrashReport(None, reason)
    # Where several CPUs report something, the one that died reports the crash.
    every = [index for index in range(end) if TITLE.match(texts[index])]
    titles = [index for index in every if lines[index].caller == lines[died].caller] or every
    if not titles:
        return CrashReport(None, reason)
    first = titles[-1]
    caller = lines[first].caller
    if _HUNG.match(texts[first]):
        first = min(_latest_round(lines, [index for index in titles if _HUNG.match(texts[index])]))
    elif _TRAP.match(texts[first]) and len(titles) > 1:
        before = titles[-2]
        between = sum(line.caller == caller for line in lines[before:first])
        if between <= _ADJACENT:
            first = before
    own = [texts[index] for index in range(first, end) if lines[index].caller == caller]
    return CrashReport(texts[first], reason, *_find_subject(own))


def _find_first(pattern: re.Pattern[str], texts: Sequence[str]) -> tuple[int, re.Match[str] | None]:
    """Return the index and the match of the first text that matches; the number of texts and None
    where none does.
    """
    for index, text in enumerate(texts):
        match = pattern.match(text)
        if match is not None:
            return index, match
    return len(texts), None


def _latest_round(lines: Sequence[LogLine], hung: Sequence[int]) -> Sequence[int]:
    """Return the reports of the last round: each follows soon after the one before."""
    first = len(hung) - 1
    while first and (lines[hung[first]].time or 0) - (lines[hung[first - 1]].time or 0) < _ROUND:
        first -= 1
    return hung[first:]


def _find_subject(report: Sequence[str]) -> tuple[int | None, int | None]:
    """Return the task and the CPU that a report is about; None for the reporting task and CPU."""
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
                return None, int(cpu[1])
            if task is not None:
                return int(task[1]), None
    return None, None


def find_tasks(text: str) -> list[ReportedTask]:
    """Return the tasks that the reports in a log name, in order."""
    return list(filter(None, map(_find_task, _read_messages(text))))


def _read_messages(text: str) -> list[str]:
    return [line.message[:_MAX_LINE] for line in split_log(text)]


# syzkaller's tools print this in front of a report's title.
_NAMED_TITLE: Final = "TITLE: "


def find_title(text: str) -> str | None:
    """Return the first line of the first report in a log, None where there is none."""
    for message in _read_messages(text):
        title = message.removeprefix(_NAMED_TITLE)
        if TITLE.match(title) or _PANIC.match(title):
            return title.strip()
    return None


def _find_task(message: str) -> ReportedTask | None:
    match = _TASK.search(message)
    if match is not None:
        return ReportedTask(int(match["pid"]), (match["comm"] or match["word"]).strip())
    match = (
        _TASK_STATE.match(message)
        or _TASK_OF_LEAK.match(message)
        or _TASK_OF_WARNING.match(message)
    )
    if match is None:
        return None
    return ReportedTask(int(match["pid"]), match["comm"].strip())


def summarize_report(text: str) -> ReportSummary:
    """Return the task and the function in which a crash began, by the first stack of a report that
    shows the function.
    """
    lines = [line for line in split_log(text) if len(line.text) <= _MAX_LINE]
    stacks = find_stacks(lines)
    first = next(_first_tasks(lines), None)
    callers = [line.caller for line in lines if TITLE.match(line.message)]
    own = None if first is None else first.pid
    # Where two reports are printed at the same time, the first one's stacks come first. Of two
    # tasks in a race, the one that reports it is named.
    for stack in sorted(
        stacks,
        key=lambda stack: (
            stack.is_doubtful,
            stack.caller not in callers[:1],
            stack.racing not in (None, own),
            stack.start,
        ),
    ):
        names = [frame.function for frame in stack.frames]
        origin = find_allocation(names) if stack.is_allocation else find_origin(names)
        if origin is not None:
            call = next(filter(None, map(_SYSCALL.fullmatch, names)), None)
            syscall = None if call is None else call["name"]
            return ReportSummary(stack.task or first, stack.frames[origin], syscall)
    problem = "the report has no stack"
    if stacks:
        problem = "the report's stacks do not show where it began"
    name = _find_headline_function(lines)
    place = None if name is None else ReportedFrame(name, None, None)
    return ReportSummary(first, place, problem=problem)


def _first_tasks(lines: Sequence[LogLine]) -> Iterator[ReportedTask]:
    """Yield the tasks that reports name, without tasks of harmless stacks."""
    for _, own in untangle(lines):
        is_harmless = False
        for line in own:
            if HARMLESS.match(line.message):
                is_harmless = True
            elif TRACE.match(line.message):
                is_harmless = False
            task = _find_task(line.message)
            if task is not None and not is_harmless:
                yield task


def _find_headline_function(lines: Iterable[LogLine]) -> str | None:
    """Return the function in the headline of a report whose stack is missing, as in a log that ends
    early.
    """
    for line in lines:
        at = 0
        if not COUNTER.match(line.message):
            headline = HEADLINE.match(line.message)
            if headline is None:
                continue
            at = headline.start("place")
        word = _find_function(line.message, at)
        if word is not None and find_origin([word.function]) is not None:
            return word.function
    return None


def _find_function(text: str, start: int) -> CodeWord | None:
    """Return the first function with an offset in a line, from an index on."""
    for word in find_code_words(text):
        if word.function is not None and word.span[0] >= start:
            return word
    return None


def find_stacks(lines: Sequence[LogLine]) -> list[ReportedStack]:
    """Return the stacks in a log by their first lines, without harmless stacks."""
    numbers = {id(line): index for index, line in enumerate(lines)}
    found = [stack for _, own in untangle(lines) for stack in _find_own_stacks(own, numbers)]
    return sorted(found, key=lambda stack: stack.start)


@dataclass(slots=True, eq=False)
class _Section:
    """A part of a log up to the end of a stack: the lines before the stack say what it is."""

    interrupted: Sequence[ReportedFrame] = ()
    """The function that the registers before the stack name."""
    start: int | None = None
    """Index of the first line of the stack; None before it."""
    frames: list[ReportedFrame] = field(default_factory=list)
    between: int = 0
    """Number of lines since the last frame."""
    task: ReportedTask | None = None
    is_harmless: bool = False
    is_doubtful: bool = False
    is_leak: bool = False
    racing: int | None = None

    def list_stacks(self, caller: str | None) -> Iterator[ReportedStack]:
        """Yield the stack, if there is one that matters.

        :param caller: who printed it.
        """
        if self.start is not None and self.frames and not self.is_harmless:
            yield ReportedStack(
                self.start,
                self.frames,
                self.task,
                self.is_leak,
                self.is_doubtful,
                caller,
                self.racing,
            )


def _find_own_stacks(lines: Sequence[LogLine], numbers: dict[int, int]) -> Iterator[ReportedStack]:
    """Yield the stacks that one thread or CPU printed.

    :param numbers: for each line, its index in the whole log.
    """
    section = _Section()
    is_aside = False
    for line in lines:
        text = line.message
        found = COUNTER.match(text)
        frames = _read_frame(text, 0 if found is None else found.end())
        is_start = TRACE.match(text) is not None
        says_harmless = HARMLESS.match(text) is not None
        says_doubtful = DOUBTFUL.match(text) is not None
        ends = is_start or END.match(text) or says_harmless or says_doubtful
        is_lost = section.between > _MAX_BETWEEN or len(section.frames) > _MAX_FRAMES
        if section.start is not None and (ends or is_lost):
            yield from section.list_stacks(line.caller)
            section = _Section()
        section.task = _find_task(text) or section.task
        section.is_harmless |= says_harmless
        section.is_doubtful |= says_doubtful
        section.is_leak |= _LEAK.match(text) is not None
        access = _ACCESS.match(text)
        if access is not None:
            section.racing = int(access["pid"] or 0)
        is_aside = (is_aside and not is_start) or ASIDE.match(text) is not None
        # Some reports, such as KMSAN's, have no line in front of their stack.
        begins = section.start is None and found is None and frames and not is_aside
        if is_start or begins:
            section.start = numbers[id(line)]
            section.frames = [*section.interrupted, *(frames or ())]
        elif section.start is not None:
            section.between = section.between + 1 if frames is None else 0
            section.frames += frames or ()
        elif found is not None:
            section.interrupted = frames or ()
    if lines:
        yield from section.list_stacks(lines[-1].caller)


def _read_frame(text: str, start: int) -> list[ReportedFrame] | None:
    """Return the frame in a line, none if it is unsure; None if the line has no frame.

    :param start: the index behind the name of a register, if the line begins with one.
    """
    if "+0x" not in text:
        inlined = _INLINED.fullmatch(text, start)
        if inlined is None:
            return None
        return [ReportedFrame(inlined["function"], inlined["file"], int(inlined["line"]))]
    place = _find_function(text, start)
    if place is None or place.function is None or place.is_torn:
        return None
    before = _BEFORE.fullmatch(text, start, place.span[0])
    after = _AFTER.fullmatch(text, place.span[1])
    if before is None or after is None:
        return None
    if before["unsure"]:
        return []
    line = None if after["line"] is None else int(after["line"])
    return [ReportedFrame(place.function, after["file"], line)]
