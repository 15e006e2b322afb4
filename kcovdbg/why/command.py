# SPDX-License-Identifier: LGPL-2.1-or-later
"""``why``: where the coverage of a task, a handle or an object is, and why code did not run."""

from __future__ import annotations

import re
from argparse import Namespace
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from kcovdbg.abi.generations import Feature
from kcovdbg.abi.handle import COMMON, decode_handle, parse_handle
from kcovdbg.check.runner import check
from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.buffer_arguments import TRACE_OPTIONS
from kcovdbg.console.column import RowType
from kcovdbg.console.command import Command, Example, Need, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.renderable import Drawing, Lines, Table
from kcovdbg.errors import CapabilityError, WordError
from kcovdbg.inputs.task_names import find_tid, is_address, suggest_task
from kcovdbg.model.finding import Cause, Certainty, Finding, Severity
from kcovdbg.model.kcov import name_kcov, name_task
from kcovdbg.model.state import Part, State
from kcovdbg.model.task import Role, Task, TaskFiles
from kcovdbg.target.pointer import is_kernel_pointer, strip_tag
from kcovdbg.why.answer_rows import COLUMNS, AnswerRows, draw_rows
from kcovdbg.why.background_work import explain_background, explain_function_work, is_background
from kcovdbg.why.code_name import CodeName, find_address, find_pc, is_line, names_state
from kcovdbg.why.device_answers import (
    explain_device_handle,
    explain_device_object,
    explain_device_task,
)
from kcovdbg.why.missing_coverage import (
    NEEDS,
    Answer,
    Values,
    explain_handle,
    explain_kcov,
    explain_task,
    find_opened,
)

if TYPE_CHECKING:
    from kcovdbg.why.code_question import UncoveredAnswers

# Names of buffers that no state explains.
_BUFFER_NAME: Final = re.compile(r"@|all$|(file|area|fd|saved|user):")
_KCOV: Final = "kcov:"
# Limit for places in the text of --all.
_MOST_OBSTACLES: Final = 20
# Limit for the other buffers with a function that are named.
_ELSEWHERE: Final = 5
_FORMS: Final = (
    "a thread id or a name (see tasks -a), a handle such as usb:1 (see remote), the address of a "
    "struct kcov, or a function"
)


class _Subject(NamedTuple):
    """A task, handle or object, and the answers from KCOV's state."""

    name: str
    answers: Sequence[Answer]
    state: State
    """With the task's stack."""
    buffer: str | None = None
    """Name of the buffer with its coverage."""
    kcovs: Collection[int] = ()
    """Objects that belong to it: findings about them are about it."""
    task: Task | None = None

    @property
    def trace(self) -> str | None:
        """Name of the buffer as a trace: by its task, whose place in the kernel is known."""
        if self.task is not None and self.task.role is Role.LOCAL and self.task.count is not None:
            return str(self.task.fields.pid)
        return self.buffer


def _ask(context: Context, subject: str) -> _Subject:
    """Return the answers about what a word names.

    :raises WordError: when it names nothing.
    """
    if subject.isdecimal():
        return _ask_of_task(context, int(subject))
    state = context.state(NEEDS)
    try:
        value = parse_handle(subject)
    except ValueError:
        raise _refuse_word(context, subject) from None
    address = strip_tag(context.target, value)
    if ":" not in subject and is_kernel_pointer(context.target, address):
        return _ask_of_object(state, address)
    if decode_handle(value).subsystem == COMMON:
        state = context.state(NEEDS | Part.CARRIERS)
    kcovs = [entry.kcov for entry in state.handles if entry.handle == value and entry.kcov]
    answers = [*explain_handle(state, value), *explain_device_handle(state, value)]
    buffer = f"kcov:{kcovs[0]:#x}" if kcovs else None
    return _Subject(f"handle {decode_handle(value)}", answers, state, buffer, kcovs)


def _ask_of_object(state: State, address: int) -> _Subject:
    of_device = list(explain_device_object(state, address))
    if of_device:
        name = name_kcov(address, str(of_device[0].named["device"]))
        return _Subject(name, of_device, state)
    answers = list(explain_kcov(state, address))
    return _Subject(name_kcov(address), answers, state, f"kcov:{address:#x}")


def _refuse_word(context: Context, word: str) -> WordError:
    hint = suggest_task(context.inputs, word, is_any=True) or _FORMS
    if is_address(word) and word[:2].lower() != "0x":
        hint = f"write an address as 0x{word}"
    return WordError(f"'{word}' is not a thread id, handle, address or function", word, hint=hint)


def _ask_of_task(context: Context, tid: int) -> _Subject:
    task = context.state(NEEDS | Part.ALL_TASKS).find_task(tid)
    address = task.fields.address
    state = context.reader.read(NEEDS | Part.ALL_TASKS, stacks=(address,))
    answers = [*explain_task(state, task), *explain_device_task(state, address)]
    kcovs = {kcov for kcov, fields in state.kcovs.items() if fields.task == address}
    for session in state.sessions_in.get(address, ()):
        kcovs.add(session.kcov or 0)
    return _Subject(name_task(task.fields), answers, state, _buffer_of(state, task), kcovs, task)


def _buffer_of(state: State, task: Task) -> str | None:
    """Return the name of the buffer with a task's own coverage, or of its process's only buffer
    where the task has none.

    What a softirq section on top of the task collects is not the task's own.
    """
    for session in state.sessions_in.get(task.fields.address, ()):
        if session.is_local:
            return f"kcov:{session.kcov:#x}"
    if task.count is not None:
        return str(task.fields.pid)
    opened = find_opened(state, TaskFiles(state.task_fields, task.fields))
    known = [kcov for kcov in opened if state.objects[kcov.address].count is not None]
    return f"kcov:{known[0].address:#x}" if len(known) == 1 else None


def _explain_work(context: Context, subject: _Subject) -> Iterator[Answer]:
    """Yield which background work of a task can be recorded."""
    state, task = subject.state, subject.task
    if task is None or not state.kernel.has(Feature.REMOTE):
        return
    if is_background(task, state.stacks[task.fields.address] or ()):
        sites = context.kernel.code.find_remote_sites().sites
        yield from explain_background(state, task, sites)


def _explain_function_work(context: Context, function: str) -> Iterator[Answer]:
    """Yield which background work of a function can be recorded."""
    state = context.state(NEEDS | Part.ALL_TASKS)
    if not state.kernel.has(Feature.REMOTE):
        return
    # Threads of a process that do background work have no mark that all kernels share: their stacks
    # decide.
    workers: list[int] = []
    for task in state.all_tasks:
        fields = task.fields
        if fields.is_kernel_thread or fields.is_worker:
            workers.append(fields.address)
    state = context.reader.read(NEEDS | Part.ALL_TASKS, stacks=workers)
    sites = context.kernel.code.find_remote_sites().sites
    yield from explain_function_work(state, function, sites)


def _find_subject(context: Context, text: str) -> str:
    """Return the thread id of the task with this name; anything else is returned as it is.

    If a task and a function have this name, the task is meant only if it has KCOV state.
    """
    if names_state(text):
        return text
    tid = find_tid(context.inputs, text)
    if tid is None and find_address(context, text) is None:
        tid = find_tid(context.inputs, text, is_any=True)
    return text if tid is None else str(tid)


def _read_question(context: Context, args: Namespace) -> CodeName | None:
    """Return the question about code that the arguments ask; None where they ask about a kernel's
    state alone.
    """
    text: str = args.subject
    names = [args.function, *args.what] if args.function is not None else args.what
    if args.all:
        if not names:
            raise WordError("why --all: no trace", text, hint="why --all DIR file:TRACE")
        return CodeName(text, None, names, is_all=True)
    pc = find_pc(context, text)
    if pc is not None or is_line(text) or not _is_of_state(context, text, names):
        return CodeName(text, pc, names)
    context.require(Need.MEMORY)
    if args.what:
        raise WordError(
            f"why: unexpected argument '{args.what[0]}'",
            args.what[0],
            hint="traces follow the name of code",
        )
    if args.function is None:
        return None
    function = args.function
    pc = find_pc(context, function)
    if pc is None and names_state(function) and not is_line(function):
        raise WordError(
            f"neither '{text}' nor '{function}' is code of this kernel",
            function,
            hint=f"code is a function, FILE:LINE or a PC; without a second word: why {text}",
        )
    return CodeName(function, pc, [text])


def _is_of_state(context: Context, text: str, names: Sequence[str]) -> bool:
    """Return whether a word names a part of a kernel's state, or nothing at all.

    :param names: the words after it. If there are any, it is code unless it is known to be
        something else.
    """
    if names_state(text):
        return True
    if context.target.memory_problem is not None:
        return False
    if _find_subject(context, text) != text:
        return True
    return not names and not _is_function(context, text)


def _is_function(context: Context, name: str) -> bool:
    """Return whether the kernel has a function, with code of its own or inlined."""
    if find_address(context, name) is not None:
        return True
    table = context.names.table
    return table is not None and bool(table.find(function=name))


def _ask_of_name(context: Context, name: str) -> _Subject | None:
    """Return the answers about the task, handle or object that a name stands for; None where it is
    the name of another buffer.
    """
    if context.target.memory_problem is not None:
        return None
    if name.startswith(_KCOV):
        name = name.removeprefix(_KCOV)
    elif _BUFFER_NAME.match(name):
        return None
    return _ask(context, _find_subject(context, name))


def _answer_code(context: Context, question: CodeName) -> Lines:
    """Return why code did not run; first, why a task that is named has no coverage."""
    # Questions about state alone load none of this.
    from kcovdbg.why.code_question import ExplainedCode, explain_code

    subjects: list[_Subject] = []
    names: list[str] = []
    for name in question.names:
        subject = _ask_of_name(context, name)
        if subject is None:
            names.append(name)
            continue
        subjects.append(subject)
        if subject.trace is not None:
            names.append(subject.trace)
    answers: list[Answer] = []
    for subject in subjects:
        answers += subject.answers
    explained = ExplainedCode(question.text, ())
    try:
        explained = explain_code(context, question, names)
    except CapabilityError as error:
        # A task without a buffer is a reason of its own.
        if names or not answers:
            raise
        remark = f"whether {question.text} can be covered is unknown: {error}"
        explained = explained._replace(remarks=[remark])
    if not explained.is_unknown:
        # Other coverage of the task explains nothing.
        answers = [answer for answer in answers if answer.code != "coverage"]
    answers += explained.answers
    if question.is_function and not explained.has_run:
        answers += _explain_others(context, question.text, subjects)
    asked = f"what leads to {explained.name}?"
    if question.is_all:
        asked = f"what stands before the lines of {explained.name} that did not run?"
    elif question.names:
        asked = f"why did {explained.name} not run?"
    return _show(context, asked, answers, subjects, explained.remarks, explained.uncovered)


def _explain_others(
    context: Context, function: str, subjects: Sequence[_Subject]
) -> Iterator[Answer]:
    """Yield which other buffers have a function, or what of its work can be recorded where no task
    is named.
    """
    from kcovdbg.why.function_answers import explain_elsewhere

    for subject in subjects:
        if subject.buffer is not None:
            elsewhere = explain_elsewhere(
                context, subject.state, function, subject.task, subject.buffer
            )
            yield from islice(elsewhere, _ELSEWHERE)
    if not subjects and context.target.memory_problem is None:
        yield from _explain_function_work(context, function)


def _run(context: Context, args: Namespace) -> Lines:
    question = _read_question(context, args)
    if question is not None:
        return _answer_code(context, question)
    subject = _ask(context, _find_subject(context, args.subject))
    asked = f"where is the coverage of {subject.name}?"
    return _show(context, asked, subject.answers, [subject], ())


def _show(
    context: Context,
    asked: str,
    answers: Iterable[Answer],
    subjects: Sequence[_Subject],
    remarks: Iterable[str],
    uncovered: UncoveredAnswers | None = None,
) -> Lines:
    """Return answers, with what `check` finds about subjects and what of their work can be
    recorded.

    :param uncovered: further answers.
    """
    answers, remarks = list(answers), list(remarks)
    if subjects:
        remarks += context.notes
    for subject in subjects:
        try:
            answers += _explain_work(context, subject)
        except CapabilityError as error:
            remarks.append(f"places that announce remote handles are unknown: {error}")
        # Violations explain more than legal state.
        about = {subject.name, *map(name_kcov, subject.kcovs)}
        report = check(context.reader, about=about)
        answers += map(_make_finding_answer, report.findings)
        answers += _name_bugs(report.findings)
        if report.unjudged:
            remarks.append(f"rules of check: {report.unjudged_text}")
    places = () if uncovered is None else uncovered.places
    if answers and not places and all(answer.code == "unknown" for answer in answers):
        context.status = 2
    shown = places[:_MOST_OBSTACLES]
    left = places[_MOST_OBSTACLES:]
    if left:
        lines = sum(place.lines for place in left)
        remarks.append(f"{len(left)} more places, with {lines} lines: --json shows all")

    rows = AnswerRows(asked, answers, uncovered)
    return Lines(
        Drawing(
            len(answers) + len(shown),
            lambda most: draw_rows(asked, islice(rows, most)),
        ),
        data=Table(COLUMNS, rows),
        remarks=tuple(dict.fromkeys(remarks)),
        is_prose=True,
    )


def _make_finding_answer(finding: Finding) -> Answer:
    notes = (finding.rule, *finding.value_texts)
    named: Values = {"rule": finding.rule, "object": finding.object, "finding": finding.values}
    if finding.severity is Severity.UNKNOWN:
        answer = (
            f"check: whether {finding.rule} is violated is unknown ({finding.reason}); in what "
            f"could be read, {finding.message}"
        )
        return Answer("unknown", answer, named=named, notes=notes)
    certainty = finding.certainty.value
    answer = f"check: {finding.message}"
    if finding.certainty is not Certainty.CERTAIN:
        answer += f" ({certainty}: {finding.reason})"
    return Answer("finding", answer, named={**named, "certainty": certainty}, notes=notes)


def _name_bugs(findings: Sequence[Finding]) -> Iterator[Answer]:
    """Yield the known bugs that explain the findings, each once with the rules that it violates,
    the likeliest first.
    """
    order = list(Certainty)
    rules: dict[str, dict[str, None]] = defaultdict(dict)
    causes: dict[str, Cause] = {}
    for finding in findings:
        for cause in finding.causes:
            bug = str(cause)
            rules[bug][finding.rule] = None
            known = causes.setdefault(bug, cause)
            if order.index(cause.certainty) < order.index(known.certainty):
                causes[bug] = cause
    for bug, cause in sorted(causes.items(), key=lambda item: order.index(item[1].certainty)):
        yield Answer(
            "known-bug",
            f"a known bug leaves such state, {cause.certainty.value} ({cause.reason}): {bug}",
            {"rules": list(rules[bug])},
        )


COMMAND: Final = Command(
    name="why",
    summary="explain where coverage is, and why code did not run",
    topic=Topic.STATE,
    run=_run,
    row_types=(RowType(COLUMNS),),
    description=(
        "For a task, a handle or an object: where its coverage is, or what prevents it, with the "
        "evidence. KCOV may not be enabled, or another thread may have enabled it; a buffer may "
        "be full; a section may be open, or its records will be discarded; a handle may not be "
        "registered, or another task may hold it. A task with a function or a line: also why that "
        "did not run. A task's coverage does not include interrupts and softirqs.\n\n"
        "For a kernel thread, a worker of io_uring or a function: also whether it runs outside of "
        "the places that announce a remote handle (see sites), where nothing is recorded.\n\n"
        "For code that did not run in some traces: the nearest function that ran, with the branch "
        "in it that never went towards the code, or the system call that was not made, and a path "
        "of direct calls. Three ways are shown, the others are counted. A trace of comparisons of "
        "the same calls adds the values that the branch compared. For code that is only called "
        "through pointers, the tables with its address are candidates. For code of modules and "
        "its calls, name their files with debug info (-s MODULE.ko).\n\n"
        "--all ranks the branches, system calls and functions that keep lines from running, by "
        "the number of these lines."
    ),
    arguments=(
        Argument(
            "subject TID|HANDLE|KCOV|FUNCTION|FILE:LINE|PC",
            Value.SUBJECT,
            "a thread id, a handle, the address of a struct kcov, or code: a function, also with "
            "an offset (vfs_read+0x15), a line or a PC",
        ),
        Argument(
            "function [FUNCTION]",
            Value.FUNCTION,
            "code that should be covered; after code, a trace of what ran",
        ),
        Argument(
            "what [WHAT…]",
            Value.BUFFER,
            "for code: traces of what ran, and of comparisons of the same calls",
        ),
        Argument(
            "--all",
            Value.FLAG,
            "rank what keeps the lines of a file or directory from running, most lines first",
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
