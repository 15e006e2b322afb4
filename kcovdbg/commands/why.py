# SPDX-License-Identifier: LGPL-2.1-or-later
"""``why``: where is my coverage?"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from kcovdbg.abi.handle import decode_handle, parse_handle
from kcovdbg.analysis.check.evidence import Evidence, name_kcov, name_task
from kcovdbg.analysis.check.looking import check
from kcovdbg.analysis.why import Answer, explain_handle, explain_kcov, explain_task, find_interrupt, find_task
from kcovdbg.commands.argument import Argument, Count, Value, WordError
from kcovdbg.commands.command import Command, Example
from kcovdbg.commands.points import find_point_table
from kcovdbg.commands.session import Context
from kcovdbg.commands.what import Filter, find_counts, find_named, is_address
from kcovdbg.errors import KcovdbgError
from kcovdbg.model.task import Task
from kcovdbg.render.column import Column
from kcovdbg.render.escape import escape
from kcovdbg.render.kind import LIST
from kcovdbg.render.renderable import Line, Lines, Table
from kcovdbg.walk.pointer import is_kernel_pointer


@dataclass(frozen=True, slots=True)
class _Row:
    question: str
    answer: str
    evidence: tuple[str, ...]


# Of the other buffers that have a function so many are named.
_ELSEWHERE: Final = 5
# Reading them all may take long, and of a machine that fuzzes there are hundreds.
_LOOKED_AT: Final = 64
_FORMS: Final = (
    "a task's id, which tasks shows; usb:1, which remote shows; or the address of a struct kcov, which objects shows"
)
_QUESTION: Final = "where is the coverage of "
_COLUMNS: Final = (Column("question"), Column("answer"), Column("evidence", LIST))


def _ask(context: Context, evidence: Evidence, subject: str) -> tuple[str, list[Answer], str | None]:
    """Return the question in words, its answers, and the name of the buffer that it is about."""
    if subject.isdecimal():
        task = find_task(evidence.tasks, int(subject))
        if task is None:
            raise KcovdbgError(f"there is no task {subject}", hint="see: tasks -a")
        question = f"{_QUESTION}{name_task(task.fields)}?"
        return question, list(explain_task(evidence, task)), _buffer_of(evidence, task)
    try:
        value = parse_handle(subject)
    except ValueError:
        hint = find_named(context, subject) or (f"an address is 0x{subject}" if is_address(subject) else _FORMS)
        raise WordError(f"{subject} is no task, handle or address", subject, hint=hint) from None
    if ":" not in subject and is_kernel_pointer(context.target, value):
        return f"{_QUESTION}{name_kcov(value)}?", list(explain_kcov(evidence, value)), f"kcov:{value:#x}"
    owners = [entry.kcov for entry in evidence.entries if entry.handle == value and entry.kcov]
    question = f"{_QUESTION}handle {decode_handle(value)}?"
    return question, list(explain_handle(evidence, value)), f"kcov:{owners[0]:#x}" if owners else None


def _buffer_of(evidence: Evidence, task: Task) -> str | None:
    """Name the buffer of a task's own coverage: not of the softirq on top of it; of its process where it has none itself."""
    for session in evidence.sessions:
        if session.task.fields.address == task.fields.address and evidence.is_local(session):
            return f"kcov:{session.kcov:#x}"
    if task.count is not None:
        return str(task.fields.pid)
    opened = [
        address
        for address, kcov in evidence.objects.items()
        if kcov.count is not None
        and any(reference.kind in ("fd", "vma") and reference.pid == task.fields.tgid for reference in kcov.references)
    ]
    return f"kcov:{opened[0]:#x}" if len(opened) == 1 else None


def _related(evidence: Evidence, subject: str, question: str) -> set[str]:
    """Name the subject and its objects as findings do."""
    found = {question.removeprefix(_QUESTION).removesuffix("?")}
    if subject.isdecimal():
        task = find_task(evidence.tasks, int(subject))
        address = None if task is None else task.fields.address
        found |= {name_kcov(session.kcov) for session in evidence.sessions if session.task.fields.address == address}
        found |= {
            name_kcov(kcov.fields.address) for kcov in evidence.objects.values() if kcov.fields and kcov.fields.task == address
        }
    elif " handle " in question:
        value = parse_handle(subject)
        found |= {name_kcov(entry.kcov) for entry in evidence.entries if entry.handle == value and entry.kcov}
    return found


def _explain_function(context: Context, function: str, what: str | None) -> Iterator[Answer]:
    """Say whether a function can be covered, and whether it is."""
    table = find_point_table(context)
    points = table.find(function=function)
    counts = find_counts(context, what, []) if what is not None else {}
    if not points:
        wanted = Filter(context.session.names, (function,), ())
        hits = sum(wanted(pc) for pc in counts)
        if hits:
            yield Answer(f"{function}() is covered; it is in a module", (f"covered={hits}",))
        elif any(symbol.name.split(".")[0] == function for symbol in table.functions()):
            yield Answer(
                f"{function}() isn't instrumented: it can't be covered (KCOV_INSTRUMENT, noinstr, assembler)", ("points=0",)
            )
        elif _find_symbol(context, function) is not None:
            yield Answer(
                f"{function}() is in a module, and nothing of it is in the buffer",
                ("covered=0", f"address={_find_symbol(context, function):#x}"),
            )
        else:
            yield Answer(
                f"this kernel's image has no function {function}: it may be in a module, or be inlined everywhere",
                ("points=0",),
            )
        return
    shown = [f"points={len(points)}"]
    if what is None:
        yield Answer(f"{function}() is instrumented", tuple(shown))
        return
    covered = sum(pc in counts for pc in points)
    if covered:
        yield Answer(f"{function}() is covered", (*shown, f"covered={covered}"))
        return
    answer = f"{function}() is instrumented, and none of its points is in the buffer"
    offset = context.target.kaslr_offset
    wanted = Filter(context.session.names, (function,), ())
    if offset and any(pc + offset in counts or pc - offset in counts for pc in points):
        answer += ": its addresses are there shifted by the KASLR offset, which user space must have added"
    elif any(wanted(pc) for pc in counts):
        answer += ", though other addresses in it are: the image isn't the one that runs?"
    yield Answer(answer, (*shown, "covered=0", f"KASLR offset={offset:#x}"))


def _find_symbol(context: Context, function: str) -> int | None:
    try:
        return context.target.symbol(function).address
    except KcovdbgError:
        return None


def _explain_context(context: Context, evidence: Evidence, function: str, subject: str, what: str | None) -> Iterator[Answer]:
    """Say who else executed a function that a task's coverage lacks: an interrupt, a section, another task."""
    task = find_task(evidence.tasks, int(subject)) if subject.isdecimal() else None
    if task is not None:
        frames = find_interrupt(evidence, task.fields.address)
        if any(frame.function == function for frame in frames):
            yield Answer(
                f"{function}() runs in an interrupt on top of the task now: KCOV leaves that out",
                tuple(f"#{number} {frame.function}" for number, frame in enumerate(frames) if frame.function == function),
            )
    points = frozenset(find_point_table(context).find(function=function))
    others = [other for other in _other_buffers(evidence) if other[0] != what] if points else []
    for name, whose in others[:_LOOKED_AT]:
        try:
            covered = sum(pc in points for pc in find_counts(context, name, []))
        except KcovdbgError:
            continue
        if covered:
            yield Answer(f"{function}() is covered {whose}: it ran there", (f"buffer={name}", f"covered={covered}"))
    if len(others) > _LOOKED_AT:
        yield Answer(f"only the first {_LOOKED_AT} other buffers were looked at for {function}()", (f"buffers={len(others)}",))


def _other_buffers(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Yield the name of each buffer that holds records, and whose coverage is in it."""
    for session in evidence.sessions:
        if evidence.is_section(session) and not session.is_saved and session.area:
            kind = "a softirq section" if evidence.in_softirq(session.task) else "a remote section"
            yield f"area:{session.area:#x}", f"in {kind} on {name_task(session.task.fields)}"
    for address, kcov in sorted(evidence.objects.items()):
        if kcov.fields is None or not kcov.fields.area or not kcov.count:
            continue
        owner = evidence.task_by_address.get(kcov.fields.task or 0)
        named = f" of {name_task(owner.fields)}" if owner is not None else ""
        kind = "the background coverage" if kcov.fields.remote else "the coverage"
        yield f"kcov:{address:#x}", f"in {kind}{named or f' in {name_kcov(address)}'}"


def _run(context: Context, args: Namespace) -> Lines:
    evidence = Evidence(context.target, context.layout, context.census)
    question, answers, what = _ask(context, evidence, args.subject)
    if args.function is not None:
        explained = list(_explain_function(context, args.function, what))
        answers += explained
        if what is not None and not any("is covered" in answer.answer for answer in explained):
            answers += islice(_explain_context(context, evidence, args.function, args.subject, what), _ELSEWHERE)
    # What is broken explains more than what is legal.
    related = _related(evidence, args.subject, question)
    report = check(context.target, context.layout, context.census, about=related)
    answers += [
        Answer(f"check: {finding.message}", (finding.rule, *(f"{name}={value}" for name, value in finding.values)))
        for finding in report.findings
    ]
    rows = [_Row(question, answer.answer, answer.evidence) for answer in answers]
    return Lines(_lines(question, answers), data=Table(_COLUMNS, rows), remarks=context.census.remarks())


def _lines(question: str, answers: list[Answer]) -> Iterator[Line]:
    yield (("header", escape(question)),)
    for answer in answers:
        yield (("", escape(f"- {answer.answer}")),)
        if answer.evidence:
            yield (("remark", escape(f"    {', '.join(answer.evidence)}")),)


WHY: Final = Command(
    name="why",
    summary="where the coverage of a task, a handle or an object is",
    run=_run,
    description=(
        "Answers from KCOV's state alone, each with what it rests on: not enabled, or by another thread; a full buffer; a "
        "section that is still open, or whose coverage will be discarded; a handle that nobody registered, that another task "
        "has, or that nobody looks up. With a function: whether it is instrumented, and covered.\n\n"
        "Code in interrupts and softirqs isn't part of a task's coverage."
    ),
    arguments=(
        Argument(
            ("subject",), Value.SUBJECT, "a thread id, a handle, or the address of a struct kcov", metavar="TID|HANDLE|KCOV"
        ),
        Argument(("function",), Value.FUNCTION, "that should be covered", count=Count.OPTIONAL, metavar="FUNCTION"),
    ),
    examples=(
        Example("why 41", "task 41 should be covered, but isn't"),
        Example("why usb:1", "who gets the coverage of that bus, and when?"),
        Example("why 41 vfs_read", "why isn't that function in its buffer?"),
    ),
)
