# SPDX-License-Identifier: LGPL-2.1-or-later
"""``why``: where the coverage of a task, a handle or an object is, and why it is missing."""

from __future__ import annotations

import re
from argparse import Namespace
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Any, Final, NamedTuple, get_args

from kcovdbg.abi.generations import Feature
from kcovdbg.abi.handle import COMMON, decode_handle, parse_handle
from kcovdbg.check.runner import check
from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.buffer_arguments import TRACE_OPTIONS
from kcovdbg.console.column import (
    ADDRESS,
    ADDRESSES,
    ANY,
    BOOL,
    HANDLE,
    LIST,
    MODE,
    NUMBER,
    PATH,
    PID,
    SYMBOL,
    TEXT,
    WORD,
    Column,
    Meaning,
    RowType,
)
from kcovdbg.console.command import Command, Example, Need, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.point_table import find_point_table
from kcovdbg.console.renderable import Drawing, Line, Lines, Table
from kcovdbg.console.text import escape
from kcovdbg.elf.file import ElfFile
from kcovdbg.errors import CapabilityError, WordError
from kcovdbg.inputs.buffer_sources import (
    find_tid,
    find_trace_buffers,
    is_address,
    read_trace_records,
    suggest_task,
)
from kcovdbg.model.finding import Cause, Certainty, Finding, Severity
from kcovdbg.model.kcov import name_kcov, name_task
from kcovdbg.model.state import Part, State
from kcovdbg.model.task import Role, Task, TaskFiles
from kcovdbg.records.joined_states import quality_text
from kcovdbg.records.source_coverage import merge_traces
from kcovdbg.target.pointer import is_kernel_pointer, strip_tag
from kcovdbg.why.background_work import explain_background, explain_function_work, is_background
from kcovdbg.why.code_answers import CodeQuestion
from kcovdbg.why.code_subject import is_line
from kcovdbg.why.function_answers import explain_elsewhere, explain_function, find_address
from kcovdbg.why.missing_coverage import (
    NEEDS,
    Answer,
    AnswerValue,
    Compared,
    Reason,
    Values,
    explain_handle,
    explain_kcov,
    explain_task,
)


def _explain_device_task(state: State, task: int) -> Iterator[Answer]:
    """Yield what devices record of a task.

    :param task: ``struct task_struct *``.
    """
    for session in (
        session for device in state.devices for session in device.sessions if session.task == task
    ):
        where = "inside a remote section" if session.role is Role.REMOTE_SECTION else "for itself"
        where += f" for {name_kcov(session.kcov, session.device)}" if session.kcov else ""
        code: Reason = "device-records"
        answer = f"{session.device} records it {where}"
        if session.enabled is False:
            code, answer = (
                "device-disabled",
                f"{session.device} does not record it now, {where}: it is not enabled",
            )
        elif session.full:
            code, answer = "device-full", f"{answer}, but no record fits into the buffer"
        values = {
            "area": session.area,
            "size": session.size,
            "count": session.count,
            "sequence": session.sequence,
        }
        yield Answer(code, answer, values, {"kcov": session.kcov, "device": session.device})


def _explain_device_object(state: State, address: int) -> Iterator[Answer]:
    """Yield what an object of a device collects."""
    for device in state.devices:
        kcov = device.objects.get(address)
        if kcov is None or kcov.fields is None:
            continue
        name, fields = name_kcov(address, device.name), kcov.fields
        values: Values = {"area": fields.area, "size": fields.size, "count": kcov.count}
        handle = device.published.get(address)
        named: Values = {"kcov": address, "device": device.name}
        if fields.task:
            owner = state.task_by_address.get(fields.task)
            said = state.say_absent(
                f"the task at {fields.task:#x}, which is on no list", Part.TASKS
            )
            whom = said if owner is None else name_task(owner)
            yield Answer(
                "device-records",
                f"{name} is enabled for {whom}",
                {**values, "t": fields.task},
                named,
            )
        if handle:
            answer = (
                f"{name} collects from sections under {decode_handle(handle)}, each when it ends"
            )
            yield Answer("device-records", answer, {**values, "handle": handle}, named)
        if not fields.task and not handle:
            step = "enabled" if fields.area else "initialized"
            yield Answer(
                "device-disabled", f"{name} records nothing: it is not {step}", values, named
            )
        if kcov.full:
            yield Answer("device-full", f"no record fits into the buffer of {name}", values, named)


def _explain_device_handle(state: State, handle: int) -> Iterator[Answer]:
    """Yield the devices that a handle is registered with."""
    for device in state.devices:
        for entry in device.handles:
            if entry.handle == handle and entry.kcov:
                answer = (
                    f"{decode_handle(handle)} is registered with {device.name}, for "
                    f"{name_kcov(entry.kcov, device.name)}"
                )
                named: Values = {"kcov": entry.kcov, "device": device.name}
                yield Answer(
                    "device-records", answer, {"handle": handle, "bucket": entry.bucket}, named
                )


# Names of buffers that are none of a task have a colon, or begin with @.
_TASK_NAME: Final = re.compile(r"[^@:]+")
# Limit for traces that are named.
_NAMED: Final = 3
# Limit for places in the text of --all.
_MOST_OBSTACLES: Final = 20
# Limit for the other buffers with a function that are named.
_ELSEWHERE: Final = 5
_FORMS: Final = (
    "a thread id or a name (see tasks -a), a handle such as usb:1 (see remote), the address of a "
    "struct kcov, or a function"
)
# The title is the name in the evidence.
_VALUES: Final = (
    Column("address", ADDRESS, meaning="address of the function"),
    Column("area", ADDRESS, meaning="address of the area or buffer"),
    Column("bucket", NUMBER),
    Column("buffer", TEXT, meaning="name of the other buffer, as commands take it"),
    Column("buffers", NUMBER, meaning="number of other buffers", unit="buffers"),
    Column(
        "branches",
        NUMBER,
        meaning="number of branches that lead there and never went there",
        unit="branches",
    ),
    Column(
        "callers",
        NUMBER,
        meaning="number of functions that lead there by direct calls",
        unit="functions",
    ),
    Column("capacity", NUMBER),
    Column("certainty", TEXT, meaning="how certain the finding of `check` is"),
    Column("count", NUMBER),
    Column(
        "covered",
        NUMBER,
        meaning="number of the function's points that are in the buffer",
        unit="points",
    ),
    Column("device", TEXT, meaning="device of a posted series"),
    Column(
        "finding",
        LIST,
        items=(
            Column("name", value=itemgetter(0), meaning="name of the value"),
            Column("value", value=itemgetter(1), meaning="the value as text"),
        ),
    ),
    Column("flags", WORD, meaning="`task_struct.flags`"),
    Column(
        "frames", LIST, title="frame", meaning="functions on the task's stack, the innermost first"
    ),
    Column("function", SYMBOL, meaning="name of the function that the answer is about"),
    Column(
        "functions",
        NUMBER,
        meaning="number of functions that did not run and have some of the lines",
        unit="functions",
    ),
    Column("generation", TEXT, meaning="generation of KCOV, as in docs/generations.md"),
    Column("handle", HANDLE),
    Column("handles", NUMBER, meaning="number of handles that lead to the object", unit="handles"),
    Column("instance", NUMBER),
    Column("kaslr_offset", WORD, title="KASLR offset"),
    Column("kcov", ADDRESS),
    Column(
        "kcovs", ADDRESSES, title="kcov", meaning="addresses of the objects that the answer names"
    ),
    Column("kcov_handle", HANDLE),
    Column("kcov_mode_raw", WORD, title="kcov_mode", meaning="`task_struct.kcov_mode` as stored"),
    Column("kcov_sequence", NUMBER, title="kcov sequence", meaning="`kcov.sequence`"),
    Column("kcov_softirq", NUMBER),
    Column(
        "lines",
        NUMBER,
        meaning="number of lines that did not run and cannot run unless this place does",
        unit="lines",
    ),
    Column("mode", MODE, meaning="mode of the task or the object, without prefix"),
    Column("object", TEXT, meaning="what the finding of `check` is about"),
    Column("objects", NUMBER, meaning="number of objects that were found", unit="objects"),
    Column("pcs", ADDRESSES, title="pc", meaning="PCs as recorded"),
    Column("pid", PID, meaning="thread id of the task that the answer names"),
    Column("pids", LIST, title="pid", meaning="thread ids of the tasks that the answer names"),
    Column(
        "places",
        LIST,
        title="at",
        meaning="source lines that announce a remote handle, as file and line",
    ),
    Column("pointers", LIST, title="pointer", meaning="places that have the function's address"),
    Column("points", NUMBER, meaning="number of the function's points", unit="points"),
    Column("registered", NUMBER, meaning="number of handles that are registered", unit="handles"),
    Column("remote", BOOL),
    Column("remote_size", NUMBER),
    Column("rule", TEXT, meaning="rule of `check`"),
    Column("rules", LIST, title="rule", meaning="rules of `check` that the bug violates here"),
    Column(
        "saved_area", ADDRESS, title="saved area", meaning="saved address of the area or buffer"
    ),
    Column(
        "section_sequence",
        NUMBER,
        title="section sequence",
        meaning="sequence number that the section began with",
    ),
    Column("sequence", NUMBER, meaning="sequence number of the session or object"),
    Column(
        "sites",
        NUMBER,
        meaning="number of places in this kernel that announce a remote handle",
        unit="sites",
    ),
    Column("size", NUMBER),
    Column("sk_buffs", ADDRESSES, title="sk_buff", meaning="addresses of the `struct sk_buff`"),
    Column("t", ADDRESS),
    Column("tail_calls", NUMBER, title="tail calls"),
    Column("tasks", ADDRESSES, title="task", meaning="addresses of the `task_struct`"),
    Column("vhost_workers", ADDRESSES, title="vhost"),
    Column("ways", NUMBER, meaning="number of ways that are not shown", unit="ways"),
)
_OPERANDS: Final = (
    Column("pc", WORD, meaning="PC of the comparison, as recorded"),
    Column(
        "size",
        NUMBER,
        value=lambda one: one.comparison.size,
        meaning="size of the operands",
        unit="bytes",
    ),
    Column(
        "const",
        BOOL,
        value=lambda one: one.comparison.const,
        meaning="whether `arg1` was a constant of the code",
    ),
    Column("arg1", WORD, value=lambda one: one.comparison.arg1, meaning="the first operand"),
    Column("arg2", WORD, value=lambda one: one.comparison.arg2, meaning="the second operand"),
)
_PLACE: Final = (
    Column("pc", WORD, meaning="address of its first instruction, as in the image"),
    Column("function", SYMBOL, meaning="function that it is in"),
    Column("file", PATH, meaning="source file, relative to the build root"),
    Column("line", NUMBER, meaning="line in the file"),
)
_COLUMNS: Final = (
    Column("question", meaning="what was asked"),
    Column(
        "code",
        meaning=f"reason code of the answer: "
        f"{', '.join(f'`{reason}`' for reason in get_args(Reason))}",
    ),
    Column("answer", meaning="one answer, a sentence"),
    Column("evidence", LIST, meaning="the facts that it rests on"),
    Column("values", ANY, members=_VALUES),
    Column(
        "guard",
        ANY,
        members=_PLACE,
        meaning="the first code that did not run and that is on every path to what was asked about",
        null="the answer names no branch, or a jump out of its function",
    ),
    Column(
        "path",
        LIST,
        meaning="functions that call each other, from a system call to what was asked about",
        null="the answer is not about code, or no direct calls lead there",
    ),
    Column(
        "operands",
        items=_OPERANDS,
        meaning="what was compared before the branch that never went there",
        null="the answer names no branch, or nothing was recorded there",
    ),
)
_TITLES: Final = {column.key: column.title or column.key for column in _VALUES}
_ENCODERS: Final = {column.key: column.kind.json for column in _VALUES}
_MEANINGS: Final = {
    "values": Meaning(
        "the values that it rests on and names: those that are known, under the names of the "
        "kernel's members"
    ),
    "values.finding": Meaning("the values of the finding of `check`"),
    "values.tail_calls": Meaning(
        "number of the function's tail calls that are in the buffer", unit="points"
    ),
    "values.vhost_workers": Meaning(
        "addresses of the `struct vhost_worker`, or of the `struct vhost_dev`"
    ),
}


class _Subject(NamedTuple):
    """What is asked about, and the answers from KCOV's state."""

    name: str
    answers: list[Answer]
    state: State
    """With the task's stack."""
    buffer: str | None = None
    """Name of the buffer in question."""
    kcovs: Collection[int] = ()
    """Objects that belong to it: findings about them are about it."""
    task: Task | None = None
    function: str | None = None


def _ask(context: Context, subject: str) -> _Subject:
    if subject.isdecimal():
        return _ask_of_task(context, int(subject))
    state = context.state(NEEDS)
    try:
        value = parse_handle(subject)
    except ValueError:
        if find_address(context, subject) is not None:
            return _Subject(
                f"{subject}()",
                list(explain_function(context, subject, None)),
                state,
                function=subject,
            )
        is_bare = is_address(subject) and subject[:2].lower() != "0x"
        hint = (
            f"write an address as 0x{subject}"
            if is_bare
            else suggest_task(context.inputs, subject, is_any=True) or _FORMS
        )
        raise WordError(
            f"'{subject}' is not a thread id, handle, address or function", subject, hint=hint
        ) from None
    address = strip_tag(context.target, value)
    if ":" not in subject and is_kernel_pointer(context.target, address):
        of_device = list(_explain_device_object(state, address))
        if of_device:
            return _Subject(name_kcov(address, str(of_device[0].named["device"])), of_device, state)
        return _Subject(
            name_kcov(address), list(explain_kcov(state, address)), state, f"kcov:{address:#x}"
        )
    if decode_handle(value).subsystem == COMMON:
        state = context.state(NEEDS | Part.CARRIERS)
    kcovs = [entry.kcov for entry in state.handles if entry.handle == value and entry.kcov]
    answers = [*explain_handle(state, value), *_explain_device_handle(state, value)]
    return _Subject(
        f"handle {decode_handle(value)}",
        answers,
        state,
        f"kcov:{kcovs[0]:#x}" if kcovs else None,
        kcovs,
    )


def _ask_of_task(context: Context, tid: int) -> _Subject:
    task = context.state(NEEDS | Part.ALL_TASKS).find_task(tid)
    address = task.fields.address
    state = context.reader.read(NEEDS | Part.ALL_TASKS, stacks=(address,))
    answers = [*explain_task(state, task), *_explain_device_task(state, address)]
    kcovs = {session.kcov for session in state.sessions if session.kcov and session.task == address}
    kcovs |= {kcov for kcov, fields in state.kcovs.items() if fields.task == address}
    return _Subject(name_task(task.fields), answers, state, _buffer_of(state, task), kcovs, task)


def _buffer_of(state: State, task: Task) -> str | None:
    """Return the name of the buffer with a task's own coverage, or of its process's only buffer
    where the task has none.

    What a softirq section on top of the task collects is not the task's own.
    """
    for session in state.sessions:
        if session.task == task.fields.address and session.is_local:
            return f"kcov:{session.kcov:#x}"
    if task.count is not None:
        return str(task.fields.pid)
    files = TaskFiles(state.task_fields, task.fields)
    opened = [
        address
        for address, kcov in state.objects.items()
        if kcov.count is not None and any(map(files.has, kcov.references))
    ]
    return f"kcov:{opened[0]:#x}" if len(opened) == 1 else None


def _explain_work(context: Context, subject: _Subject) -> Iterator[Answer]:
    """Yield which background work of a task or a function can be recorded."""
    state, task = subject.state, subject.task
    if not state.kernel.has(Feature.REMOTE):
        return
    if task is not None:
        if is_background(task, state.stacks[task.fields.address] or ()):
            yield from explain_background(
                state, task, context.kernel.points.find_remote_sites().sites
            )
    elif subject.function is not None:
        # Threads of a process that do background work have no mark that all kernels share: their
        # stacks decide.
        tasks = [task.fields for task in context.state(NEEDS | Part.ALL_TASKS).all_tasks]
        workers = [
            fields.address for fields in tasks if fields.is_kernel_thread or fields.is_worker
        ]
        state = context.reader.read(NEEDS | Part.ALL_TASKS, stacks=workers)
        yield from explain_function_work(
            state, subject.function, context.kernel.points.find_remote_sites().sites
        )


def _find_subject(context: Context, text: str) -> str:
    """Return the thread id of the task with this name; anything else is returned as it is.

    A name of a function is that of a task only where the task has KCOV state.
    """
    if text.isdecimal() or is_address(text) or ":" in text:
        return text
    tid = find_tid(context.inputs, text)
    if tid is None and find_address(context, text) is None:
        tid = find_tid(context.inputs, text, is_any=True)
    return text if tid is None else str(tid)


def _ask_image(context: Context, args: Namespace) -> Lines:
    """Return the answers about a function of a kernel without memory.

    :raises CapabilityError: when the question is about a kernel's state.
    """
    name = args.subject if args.function is None else args.function
    is_state = args.function is not None or name.isdecimal() or is_address(name) or ":" in name
    if is_state:
        context.require(Need.MEMORY)
    question = f"where is the coverage of {name}()?"
    rows = [_make_row(question, answer) for answer in explain_function(context, name, None)]
    return Lines(tuple(_lines(question, rows)), data=Table(_COLUMNS, rows), is_prose=True)


class _CodeQuestion(NamedTuple):
    """A question about code."""

    text: str
    pc: int | None
    """The value of the text, where it is an address."""
    buffers: Sequence[str]
    is_all: bool = False
    """Whether the text names files, of which all code that did not run is asked about."""


def _find_code_question(context: Context, args: Namespace) -> _CodeQuestion | None:
    """Return the question about code that the arguments ask; None where they ask about a kernel's
    state.
    """
    text: str = args.subject
    names = [args.function, *args.what] if args.function is not None else args.what
    if args.all:
        if not names:
            raise WordError("why --all: no trace", text, hint="why --all DIR file:TRACE")
        return _CodeQuestion(text, None, names, is_all=True)
    if is_line(text):
        return _CodeQuestion(text, None, names)
    if is_address(text):
        pc = _find_pc(context, int(text, 16))
        return None if pc is None else _CodeQuestion(text, pc, names)
    if names and not text.isdecimal() and ":" not in text:
        has_memory = context.target.memory_problem is None
        if not has_memory or _find_subject(context, text) == text:
            return _CodeQuestion(text, None, names)
    if args.what:
        raise WordError(
            f"why: unexpected argument '{args.what[0]}'",
            args.what[0],
            hint="traces follow the name of code",
        )
    return None


def _find_pc(context: Context, value: int) -> int | None:
    """Return a PC as recorded, where a value is one or is the address of code; None where it is
    not.
    """
    image = context.kernel.code.image
    if image is None:
        return None
    offset = context.target.kaslr_offset
    with ElfFile(image) as elf:
        ranges = [
            (section.address, section.address + section.size) for section in elf.text_sections()
        ]
    for pc in (value, value - offset):
        if any(start < pc <= end for start, end in ranges):
            return pc
    return None


def _find_task(context: Context, name: str) -> int | None:
    """Return the thread id that the name of a buffer is, None where it is another one's."""
    if context.target.memory_problem is not None or not _TASK_NAME.fullmatch(name):
        return None
    return int(name) if name.isdecimal() else find_tid(context.inputs, name)


def _answer_code(context: Context, question: _CodeQuestion) -> Lines:
    """Return why code did not run; first, where a task that is named stands."""
    answers: list[Answer] = []
    names: list[str] = []
    remarks: list[str] = [*context.kernel.names.remarks]
    for name in question.buffers:
        tid = _find_task(context, name)
        if tid is None:
            names.append(name)
            continue
        subject = _ask_of_task(context, tid)
        answers += [answer for answer in subject.answers if answer.code != "coverage"]
        if subject.buffer is not None:
            # By its task: an open trace has a place in the kernel.
            names.append(
                name
                if subject.task is not None and subject.task.count is not None
                else subject.buffer
            )
    found = find_trace_buffers(context.inputs, names)
    remarks += found.remarks
    traces = [buffer for buffer in found.buffers if not buffer.encoding.codec.has_operands]
    comparisons = [buffer for buffer in found.buffers if buffer.encoding.codec.has_operands]
    if comparisons and not traces:
        raise CapabilityError(
            f"why: {comparisons[0].name} has comparisons, which do not tell what ran",
            hint="name a trace of PCs of the same calls as well",
        )
    remarks += (f"{buffer.name}: {remark}" for buffer in traces for remark in buffer.remarks)
    records = [read_trace_records(context.inputs, buffer) for buffer in traces]
    notes = [
        f"{buffer.name}: {quality_text(buffer, one.quality)}"
        for buffer, one in zip(traces, records, strict=True)
    ]
    if len(notes) > _NAMED:
        notes[_NAMED:] = [f"{len(notes) - _NAMED} more traces"]
    name = question.text
    # Where a task that is named has no buffer, that is why.
    if records or not answers:
        merged = merge_traces(records) if records else None
        about = CodeQuestion(context, find_point_table(context), merged, notes, comparisons)
        if question.is_all:
            answers += about.explain_uncovered(question.text)
        else:
            code = about.find_subject(question.text, question.pc)
            answers += about.explain(code)
            name = code.name
    if question.is_all:
        asked = f"what stands before the lines of {name} that did not run?"
    elif question.buffers:
        asked = f"why did {name} not run?"
    else:
        asked = f"what leads to {name}?"
    if answers and all(answer.code == "unknown" for answer in answers):
        context.status = 2
    rows = [_make_row(asked, answer) for answer in answers]
    shown = rows[:_MOST_OBSTACLES] if question.is_all else rows
    if len(shown) < len(rows):
        left = rows[len(shown) :]
        lines = sum(row.values["lines"] for row in left)
        remarks.append(f"{len(left)} more places, with {lines} lines: --json shows all")
    drawing = Drawing(len(shown), lambda most: _lines(asked, shown[:most]))
    return Lines(
        drawing, data=Table(_COLUMNS, rows), remarks=tuple(dict.fromkeys(remarks)), is_prose=True
    )


def _run(context: Context, args: Namespace) -> Lines:
    code = _find_code_question(context, args)
    if code is not None:
        return _answer_code(context, code)
    if context.target.memory_problem is not None:
        return _ask_image(context, args)
    subject = _ask(context, _find_subject(context, args.subject))
    question, answers = f"where is the coverage of {subject.name}?", subject.answers
    if args.function is not None:
        explained = list(explain_function(context, args.function, subject.buffer))
        answers += explained
        if subject.buffer is not None and not any(
            answer.code == "function-covered" for answer in explained
        ):
            elsewhere = explain_elsewhere(
                context, subject.state, args.function, subject.task, subject.buffer
            )
            answers += islice(elsewhere, _ELSEWHERE)
    remarks: tuple[str, ...] = ()
    try:
        answers += _explain_work(context, subject)
    except CapabilityError as error:
        remarks = (f"places that announce remote handles are unknown: {error}",)
    # Violations explain more than legal state.
    report = check(context.reader, about={subject.name, *map(name_kcov, subject.kcovs)})
    unjudged = (f"rules of check: {report.unjudged_text}",) if report.unjudged else ()
    answers += map(_make_finding_answer, report.findings)
    answers += _name_bugs(report.findings)
    if answers and all(answer.code == "unknown" for answer in answers):
        context.status = 2
    rows = [_make_row(question, answer) for answer in answers]
    return Lines(
        Drawing(len(rows), lambda most: _lines(question, rows[:most])),
        data=Table(_COLUMNS, rows),
        remarks=(*context.notes, *remarks, *unjudged),
        is_prose=True,
    )


def _make_finding_answer(finding: Finding) -> Answer:
    values = tuple(f"{name}={value}" for name, value in finding.values)
    named: Values = {"rule": finding.rule, "object": finding.object, "finding": finding.values}
    if finding.severity is Severity.UNKNOWN:
        answer = (
            f"check: whether {finding.rule} is violated is unknown ({finding.reason}); in what "
            f"could be read, {finding.message}"
        )
        return Answer("unknown", answer, named=named, notes=(finding.rule, *values))
    doubt = (
        ""
        if finding.certainty is Certainty.CERTAIN
        else f" ({finding.certainty.value}: {finding.reason})"
    )
    named = {**named, "certainty": finding.certainty.value}
    return Answer(
        "finding", f"check: {finding.message}{doubt}", named=named, notes=(finding.rule, *values)
    )


def _name_bugs(findings: Sequence[Finding]) -> Iterator[Answer]:
    """Yield the known bugs that explain the findings, each once with the rules that it violates,
    the likeliest first.
    """
    causes: dict[str, list[tuple[Finding, Cause]]] = defaultdict(list)
    for finding in findings:
        for cause in finding.causes:
            causes[str(cause)].append((finding, cause))
    order = list(Certainty)
    for bug, found in sorted(
        causes.items(), key=lambda item: min(order.index(cause.certainty) for _, cause in item[1])
    ):
        _, best = min(found, key=lambda pair: order.index(pair[1].certainty))
        yield Answer(
            "known-bug",
            f"a known bug leaves such state, {best.certainty.value} ({best.reason}): {bug}",
            {"rules": list(dict.fromkeys(finding.rule for finding, _ in found))},
        )


@dataclass(frozen=True, slots=True)
class _Row:
    """An answer, by the keys of :data:`_COLUMNS`."""

    question: str
    code: str
    answer: str
    evidence: Sequence[str]
    values: Mapping[str, Any]
    guard: Mapping[str, object] | None
    path: Sequence[str] | None
    operands: Sequence[Compared] | None


def _make_row(question: str, answer: Answer) -> _Row:
    values = {
        key: value for key, value in {**answer.values, **answer.named}.items() if value is not None
    }
    shown = [text for key, value in answer.values.items() for text in _word_value(key, value)]
    guard = None if answer.guard is None else answer.guard._asdict()
    if guard is not None and guard["file"] is None:
        del guard["file"], guard["line"]
    return _Row(
        question,
        answer.code,
        answer.answer,
        (*shown, *answer.notes),
        values,
        guard,
        answer.path or None,
        answer.operands or None,
    )


def _word_value(key: str, value: AnswerValue) -> Iterator[str]:
    """Yield the texts of a value in the evidence, one for each item of a list."""
    encoded = "unknown" if value is None else _ENCODERS[key](value)
    for item in encoded if isinstance(encoded, list) else (encoded,):
        yield f"{_TITLES[key]}={item}"


def _lines(question: str, rows: Sequence[_Row]) -> Iterator[Line]:
    yield (("header", escape(question)),)
    for row in rows:
        yield (("", escape(f"- {row.answer}")),)
        if row.evidence:
            yield (("remark", escape(f"    {', '.join(_join_lists(row.evidence))}")),)
        if row.path:
            yield (("remark", escape(f"    path: {' > '.join(row.path)}")),)


def _join_lists(evidence: Iterable[str]) -> Iterator[str]:
    """Yield evidence with the name of a list before its first item only."""
    last = ""
    for text in evidence:
        name, equals, value = text.partition("=")
        yield value if equals and name == last else text
        last = name if equals else ""


COMMAND: Final = Command(
    name="why",
    summary="explain where coverage is, and why code did not run",
    topic=Topic.STATE,
    run=_run,
    row_types=(RowType(_COLUMNS, _MEANINGS),),
    description=(
        "Answers come from KCOV's state, each with its evidence: KCOV is not enabled, or was "
        "enabled by another thread; a "
        "buffer is full; a section is still open, or its coverage will be discarded; a handle "
        "is not registered, is held by "
        "another task, or is never looked up. With a function: whether it is instrumented, and "
        "covered.\n\n"
        "Of a kernel thread, a worker of io_uring or a function: whether it runs outside of "
        "the places that announce a remote "
        "handle (see sites), so that it is not recorded.\n\n"
        "A task's coverage does not include code in interrupts and softirqs.\n\n"
        "Of code that did not run in some traces: the nearest function that ran and the branch "
        "in it that never went there, or "
        "the system call that was not made, and a path of direct calls. Three ways are shown, "
        "the others counted. With a trace "
        "of comparisons of the same calls, what was compared at the branch. What is only "
        "called through pointers has "
        "candidates: the tables with its address.\n\n"
        "--all ranks branches, system calls and functions that only pointers lead to by the lines "
        "behind them: those that cannot run unless that place does."
    ),
    arguments=(
        Argument(
            "subject TID|HANDLE|KCOV|FUNCTION|FILE:LINE|PC",
            Value.SUBJECT,
            "a thread id, a handle, the address of a struct kcov, or code: a function, a line "
            "or a PC",
        ),
        Argument(
            "function [FUNCTION]",
            Value.FUNCTION,
            "a function that should be covered; of code, a trace of what ran",
        ),
        Argument(
            "what [WHAT…]",
            Value.BUFFER,
            "of code: traces of what ran, and of comparisons of the same calls",
        ),
        Argument(
            "--all",
            Value.FLAG,
            "of a file or directory: what stands before its lines that did not run, with most "
            "lines first",
        ),
        *TRACE_OPTIONS,
    ),
    examples=(
        Example("why 41", "why does task 41 have no coverage?"),
        Example("why vfs_read", "is this function instrumented? A vmlinux alone suffices"),
        Example("why io_wq_worker", "can io_uring's workers be recorded?"),
        Example("why usb:1", "where does the coverage of this bus go?"),
        Example("why 41 vfs_read", "why is this function not in its buffer?"),
        Example("why do_splice_direct file:trace.kcov", "why did this function not run?"),
        Example(
            "why fs/read_write.c:1388 file:trace.kcov file:compared.kcov",
            "and what was compared before it?",
        ),
        Example("why --all fs/ext4 file:trace.kcov", "which branches to aim at next?"),
    ),
    needs=frozenset({Need.KERNEL}),
)
