# SPDX-License-Identifier: LGPL-2.1-or-later
"""Answers about missing coverage of a task, a handle or an object, by KCOV's state alone: pure
functions of a State, which yield the likeliest cause first, each with its evidence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, ParamSpec, TypeAlias

from kcovdbg.abi import handle as handles
from kcovdbg.abi import mode as modes
from kcovdbg.abi.generations import Feature
from kcovdbg.abi.record import Comparison, find_wrapped_place
from kcovdbg.model.interrupt_frames import find_interrupt_frames
from kcovdbg.model.kcov import Kcov, KcovFields, amount_text, name_kcov, name_some, name_task
from kcovdbg.model.memory import StackFrame
from kcovdbg.model.remote import SKB, TASK_LIST, VHOST, Carrier
from kcovdbg.model.state import Part, Source, State
from kcovdbg.model.task import Role, Session, Task, TaskFields, TaskFiles
from kcovdbg.series.table import codec_of_trace

_P = ParamSpec("_P")

NEEDS: Final = (
    Part.TASKS | Part.CURRENT | Part.REMOTE | Part.CACHED_AREAS | Part.OBJECTS | Part.DEVICES
)
"""The parts that every answer reads; for a common handle, :func:`explain_handle` also reads
``Part.CARRIERS``.
"""
_NAMED: Final = 8
_CARRIER_KEYS: Final = {VHOST: "vhost_workers", SKB: "sk_buffs"}


Reason: TypeAlias = Literal[
    "interrupted", "not-recording-now", "exiting", "remote-owner", "object-unreadable",
    "session-saved", "foreign-buffer", "section-open", "section-discarded", "section-area-full",
    "owner-buffer-full", "count-unreadable", "count-impossible", "buffer-full", "buffer-empty",
    "kernel-thread", "at-site", "outside-sites", "io-uring-not-announced", "announces-handle",
    "not-opened", "enabled-by-other-thread", "descriptors-inherited", "session-lost",
    "not-initialized", "not-mapped", "never-enabled", "not-enabled-now", "remote-enable-failed",
    "no-handle", "no-section-areas", "section-areas-too-large", "handle-never-looked-up",
    "no-remote-handles", "handle-reserved-bits", "handle-not-registered", "usb-lookup",
    "handle-registered", "owner-gone", "carried-by-tasks", "not-carried", "carried-by-work",
    "carriers-incomplete", "no-object", "takes-remote-coverage", "traces-itself",
    "handle-inherited", "coverage", "function-covered", "function-not-instrumented",
    "function-not-covered", "function-unknown", "function-instrumented",
    "function-in-interrupt", "function-covered-elsewhere", "search-limited", "device-records",
    "device-disabled", "device-full", "finding", "known-bug", "unknown", "code-executed",
    "code-not-executed", "code-not-instrumented", "code-absent", "branch-never-taken",
    "system-call-not-made", "call-not-judged", "ways-left-out", "several-ways", "address-taken",
    "never-called-directly", "remote-section-leads", "interrupt-leads", "system-call-path",
]  # fmt: skip
"""The code of an answer. Codes are part of the JSON and keep their meaning."""

AnswerValue: TypeAlias = "int | str | bool | Sequence[int | str | tuple[str, str] | None] | None"
Values: TypeAlias = Mapping[str, AnswerValue]
"""Values by name: the name of the kernel's member, where there is one. None means unknown."""
_NO_VALUES: Final[Values] = MappingProxyType({})


class CodePlace(NamedTuple):
    """A place in the kernel's code."""

    pc: int
    """Address of the first instruction, as in the image."""
    function: str
    file: str | None
    line: int | None

    def __str__(self) -> str:
        return f"{self.pc:#x}" if self.file is None else f"{self.file}:{self.line}"


class Compared(NamedTuple):
    """A comparison that was recorded."""

    pc: int
    comparison: Comparison


class Answer(NamedTuple):
    """One reason for missing coverage, or one fact about it."""

    code: Reason
    answer: str
    values: Values = _NO_VALUES
    """The evidence: names and values."""
    named: Values = _NO_VALUES
    """Subjects of the sentence: tasks, objects, handles and functions."""
    notes: tuple[str, ...] = ()
    """Further evidence, one sentence each."""
    rests_on: Part = Part.NOTHING
    """The parts of the State that were searched without success."""
    question: str = ""
    """What is unknown where one of these parts could not be read: "whether it is registered"."""
    guard: CodePlace | None = None
    """The first code that did not run and is on every path to the code in question."""
    path: Sequence[str] = ()
    """Functions that call each other, from a system call to the code in question."""
    operands: Sequence[Compared] = ()
    """The comparisons before the branch that never went there."""

    def judge(self, state: State) -> Answer:
        """Return the answer; where a part that it rests on could not be read, the answer that it is
        unknown.
        """
        unread = state.unread(self.rests_on)
        if not unread:
            return self
        return Answer(
            "unknown",
            f"{self.question} is unknown: {unread[0]}",
            named=self.named,
            notes=unread[:_NAMED],
        )


def judged(explain: Callable[_P, Iterator[Answer]]) -> Callable[_P, Iterator[Answer]]:
    """Decorate a function that yields answers about a State: answers that rest on unread parts
    become unknown, and each of these is yielded once.
    """

    @wraps(explain)
    def judge(*args: _P.args, **options: _P.kwargs) -> Iterator[Answer]:
        state = args[0]
        assert isinstance(state, State)
        said: set[str] = set()
        for answer in explain(*args, **options):
            found = answer.judge(state)
            if found.code != "unknown" or found.answer not in said:
                yield found
            said.add(found.answer)

    return judge


def _name_owner(state: State, owner: TaskFields | None, task: int | None, otherwise: str) -> str:
    """Return the name of an object's owner.

    :param owner: None where no task was found at the address.
    :param task: the address: the object's ``t``.
    :param otherwise: the name where there is no such task.
    """
    if owner is not None:
        return name_task(owner)
    if task is None or (task and state.unread(Part.TASKS)):
        return "an unknown task"
    return otherwise


@judged
def explain_task(state: State, task: Task) -> Iterator[Answer]:
    """Yield why there is no coverage of a task, or where it is.

    :param state: with the task's stack if the task is running.
    """
    fields = task.fields
    own = state.sessions_in.get(fields.address, ())
    interrupt = find_interrupt(state, fields.address)
    if interrupt:
        yield Answer(
            "interrupted",
            f"it is interrupted: its CPU is in {interrupt[-1].function}(), which is not part "
            f"of its coverage",
            {"frames": [frame.function for frame in interrupt if frame.function][-_NAMED:]},
            {"function": interrupt[-1].function},
        )
    for pause in task.pauses:
        yield Answer("not-recording-now", pause, {"kcov_mode_raw": fields.kcov_mode})
    if fields.is_exiting:
        before = "" if own else "; whether it was enabled for this one is unknown"
        yield Answer(
            "exiting",
            f"exiting: KCOV is disabled when a task exits{before}",
            {"flags": fields.flags},
        )
    owned = [kcov for kcov in state.kcovs.values() if kcov.remote and kcov.task == fields.address]
    is_local = False
    # Since v7.2 a task may collect for both.
    collecting = {kcov.address for kcov in owned}
    for session in own:
        is_local = is_local or session.is_local
        collecting.add(session.kcov or 0)
    has_several = len(collecting) > 1
    for session in own:
        buffer = _name_buffer(session.kcov, has_several=has_several)
        yield from _explain_session(state, session, buffer)
    for kcov in owned:
        if _find_object(state, kcov.address) is None:
            if kcov.address not in {session.kcov for session in own}:
                yield _explain_unreadable(state, kcov.address, "the object that it owns")
            continue
        if not is_local:
            yield Answer(
                "remote-owner",
                "it is the owner of a KCOV_REMOTE_ENABLE: remote sections are traced, not the "
                "task itself",
                {"kcov": kcov.address, "mode": task.mode},
                rests_on=Part.OBJECTS,
                question="it is the owner of a KCOV_REMOTE_ENABLE; whether it is traced itself",
            )
        buffer = _name_buffer(kcov.address, has_several=has_several)
        yield from _explain_remote(state, kcov)
        yield from _explain_count(state, state.objects[kcov.address], buffer)
    if not own and not owned:
        yield from _explain_idle(state, task)
    if fields.kcov_handle and not owned:
        yield from _explain_inherited(state, fields)


def _name_buffer(kcov: int | None, *, has_several: bool) -> str:
    return f"the buffer of {name_kcov(kcov or 0)}" if has_several else "its buffer"


def _explain_inherited(state: State, task: TaskFields) -> Iterator[Answer]:
    """Yield the handle that a task carries, and owns no object of."""
    handle = task.kcov_handle or 0
    decoded = handles.decode_handle(handle)
    carried = f"it carries {decoded}"
    if decoded.subsystem != handles.COMMON or decoded.reserved:
        answer = f"{carried}, which no task can carry: see check"
        yield Answer("handle-inherited", answer, {"kcov_handle": handle})
        return
    answer = (
        f"{carried}, which it inherited and which is no longer registered: background work that it "
        f"starts is not recorded"
    )
    named: Values = {}
    for entry in state.handles:
        if entry.handle == handle:
            of = name_kcov(entry.kcov or 0)
            origin = ", which it inherited"
            if state.refers_to(task.address, entry.kcov or 0):
                # It may be the owner of an object that is damaged.
                origin = ""
            answer = f"{carried}{origin}: background work that it starts is recorded for {of}"
            named = {"kcov": entry.kcov}
            break
    yield Answer(
        "handle-inherited",
        answer,
        {"kcov_handle": handle},
        named,
        rests_on=Part.OBJECTS | Part.REMOTE,
        question=f"{carried}; whether it inherited that, and for whom that is registered,",
    )


def find_interrupt(state: State, task: int) -> Sequence[StackFrame]:
    """Return the frames of interrupts and softirqs on top of a running task's own, innermost first.

    :param task: ``struct task_struct *``; its stack is read only if it is running.
    """
    if task not in state.running:
        return ()
    return find_interrupt_frames(state.stacks[task] or ())


def _pid_of(task: TaskFields | None) -> int | None:
    return None if task is None else task.pid


def _part_of_owner(kcov: KcovFields) -> Part:
    """Return the part of a State in which the owner of an object is searched for."""
    return Part.TASKS if kcov.task else Part.NOTHING


def _task_of(state: State, session: Session) -> TaskFields:
    return state.task_by_address[session.task or 0]


def _find_object(state: State, address: int | None) -> KcovFields | None:
    """Return an object, None where it is unreadable, or the memory is of something else."""
    kcov = state.objects.get(address or 0)
    return None if kcov is None or kcov.implausible is not None else kcov.fields


def _explain_unreadable(state: State, address: int | None, what: str) -> Answer:
    """Return that nothing is known of an object."""
    kcov = state.objects.get(address or 0)
    if kcov is None:
        return Answer("object-unreadable", f"{what} is unreadable", {"kcov": address or 0})
    answer = f"{what} is unreadable"
    if kcov.implausible is not None:
        answer = f"{what} is not, or no longer, a struct kcov: {kcov.implausible}"
    return Answer("object-unreadable", answer, named={"kcov": address or 0}, notes=kcov.errors)


def _explain_session(state: State, session: Session, buffer: str) -> Iterator[Answer]:
    kcov = _find_object(state, session.kcov)
    if kcov is None:
        yield _explain_unreadable(state, session.kcov, "the object that it collects for")
    elif session.is_local:
        if session.is_saved:
            yield Answer(
                "session-saved",
                "it is in a softirq section: its own session is saved, and resumes after the "
                "section",
                {
                    "kcov_softirq": _task_of(state, session).kcov_softirq,
                    "saved_area": session.area or 0,
                },
            )
        elif kcov.task != session.task:
            yield Answer(
                "foreign-buffer",
                f"it uses the buffer of {name_kcov(kcov.address)}, which is not enabled for "
                f"it: see check",
                {"t": kcov.task or 0},
                {"kcov": kcov.address},
            )
        yield from _explain_count(state, state.objects[kcov.address], buffer)
    elif session.is_section:
        where = "a remote section in it"
        if session.is_saved:
            where = "an interrupted remote section of it"
        elif session.role is Role.SOFTIRQ_SECTION:
            where = "a softirq section in it"
        owner = state.task_by_address.get(kcov.task or 0)
        whose = _name_owner(state, owner, kcov.task, "no task")
        yield Answer(
            "section-open",
            f"{where} collects for {name_kcov(kcov.address)} of {whose}, and has not ended: "
            f"its coverage is not merged yet",
            {
                "area": session.area or 0,
                "sequence": session.sequence,
                "kcov_sequence": kcov.sequence,
            },
            {"kcov": kcov.address, "pid": _pid_of(owner)},
        )
        yield from _explain_merge(state, session, kcov)


def _explain_merge(state: State, session: Session, kcov: KcovFields) -> Iterator[Answer]:
    """Yield what happens to a section's coverage when the section ends."""
    task = state.tasks_with_state[session.task or 0]
    about, named = name_task(task.fields), {"pid": task.fields.pid}
    is_known = None not in (session.sequence, kcov.sequence, kcov.remote)
    if is_known and (session.sequence != kcov.sequence or not kcov.remote):
        reason = "its object was disabled meanwhile, or its owner exited"
        if (session.sequence or 0) > (kcov.sequence or 0):
            reason = "its sequence is ahead of its object's: see check"
        yield Answer(
            "section-discarded",
            f"the coverage of the section in {about} will be discarded: {reason}",
            {
                "section_sequence": session.sequence,
                "kcov_sequence": kcov.sequence,
                "remote": kcov.remote,
            },
            {"kcov": kcov.address, **named},
        )
    if task.full and not session.is_saved:
        yield Answer(
            "section-area-full",
            f"the area of the section in {about} is full: what it executes now is lost",
            {"count": task.count, "size": session.size},
            {"area": session.area, **named},
        )
    found = state.objects.get(kcov.address)
    if found is not None and found.full:
        yield Answer(
            "owner-buffer-full",
            "there is no room left for it in the owner's buffer",
            {"count": found.count, "capacity": found.capacity},
            {"kcov": kcov.address},
        )


def _explain_count(state: State, kcov: Kcov, what: str) -> Iterator[Answer]:
    shown: dict[str, AnswerValue] = {"count": kcov.count, "capacity": kcov.capacity}
    named = {"kcov": kcov.address}
    if kcov.count is None:
        yield Answer(
            "count-unreadable", f"the count of {what} is unreadable", named=named, notes=kcov.errors
        )
    elif kcov.capacity is not None and kcov.count > kcov.capacity:
        effect = "nothing is recorded until user space resets it to 0"
        place = None
        if codec_of_trace(kcov.mode).has_operands and kcov.fields is not None:
            size = state.kernel.bytes_of(kcov.fields.size or 0)
            place = find_wrapped_place(kcov.count, size)
        if place is not None:
            where = "in front of the buffer" if place < 0 else f"at offset {place:#x}"
            effect += f", but kernels before autumn 2026 write the next comparison {where}"
        yield Answer(
            "count-impossible", f"the count of {what} is impossible: {effect}", shown, named
        )
    elif kcov.full_because is not None:
        yield Answer(
            "buffer-full",
            f"{what} has room, but nothing more is recorded: {kcov.full_because}",
            shown,
            named,
        )
    elif kcov.full:
        yield Answer(
            "buffer-full",
            f"{what} is full: the kernel drops all further records. Reset its count, or pass a "
            f"larger size to KCOV_INIT_TRACE",
            shown,
            named,
        )
    elif kcov.count == 0:
        if kcov.fields is not None and kcov.fields.remote:
            why = "no section was merged into it since it was enabled or reset"
        else:
            why = (
                "since user space reset it, the task executed nothing instrumented. Interrupts are "
                "not recorded"
            )
        yield Answer("buffer-empty", f"{what} is empty: {why}", shown, named)
    else:
        answer = f"there is coverage: {kcov.count} records in {what}"
        offset = state.kernel.kaslr_offset
        if offset:
            answer += ". Its PCs are addresses minus the KASLR offset, in modules too"
            shown["kaslr_offset"] = offset
        yield Answer("coverage", answer, shown, named)


def _explain_idle(state: State, task: Task) -> Iterator[Answer]:
    """Yield why a task has no session."""
    fields = task.fields
    if fields.is_kernel_thread:
        yield Answer(
            "kernel-thread",
            "it is a kernel thread: it is recorded only inside remote sections, and is in none",
            {"mode": task.mode},
            rests_on=Part.TASKS,
            question="it is a kernel thread: it is recorded only inside remote sections; whether "
            "it is in one",
        )
        return
    files = TaskFiles(state.task_fields, fields)
    mine = find_opened(state, files)
    # An exiting task has closed its files.
    if not mine and not fields.is_exiting:
        yield Answer(
            "not-opened",
            "KCOV is not enabled in it: its process has /sys/kernel/debug/kcov neither open "
            "nor mapped",
            {"kcov": fields.kcov},
            rests_on=Part.TASKS | Part.OBJECTS | Part.FILES,
            question="whether its process has /sys/kernel/debug/kcov open or mapped, and KCOV "
            "enabled",
        )
    inherited: list[KcovFields] = []
    idle: list[KcovFields] = []
    has_lost = False
    for kcov in mine:
        if kcov.task == fields.address:
            has_lost = True
            yield Answer(
                "session-lost",
                f"{name_kcov(kcov.address)} is enabled for it, but the task does not refer to "
                f"it: something ended its session",
                {"t": fields.address},
                {"kcov": kcov.address, "pid": fields.pid},
                rests_on=Part.TASKS | Part.SAVED,
                question=f"{name_kcov(kcov.address)} is enabled for it; whether its session is "
                f"saved or lost",
            )
        elif kcov.task in state.task_by_address or _is_shared(state, kcov, files):
            inherited.append(kcov)
        else:
            idle.append(kcov)
    if len(inherited) > 1 and not has_lost:
        yield _sum_up_inherited(state, inherited)
    else:
        for kcov in inherited:
            yield from _explain_other(state, kcov)
    yield from _explain_all_disabled(state, idle)


def find_opened(state: State, files: TaskFiles) -> list[KcovFields]:
    """Return the objects that a task's process has open or mapped."""
    return [fields for kcov, fields in state.readable if any(map(files.has, kcov.references))]


def _is_shared(state: State, kcov: KcovFields, files: TaskFiles) -> bool:
    """Return whether a process with other files has an object's file as well: one of them inherited
    it, or was sent it.
    """
    own: set[int] = set()
    others: set[int] = set()
    for reference in state.objects[kcov.address].references:
        if reference.file:
            found = own if files.has(reference) else others
            found.add(reference.file)
    return not own.isdisjoint(others)


def _explain_other(state: State, kcov: KcovFields) -> Iterator[Answer]:
    """Yield why an object that a task has open, but did not enable, does not record it."""
    owner = state.task_by_address.get(kcov.task or 0)
    if owner is None:
        yield from _explain_disabled(state, kcov)
        return
    yield Answer(
        "enabled-by-other-thread",
        f"{name_kcov(kcov.address)}, which its process has open, is enabled by another thread, "
        f"{name_task(owner)}: KCOV traces only the thread that did the ioctl, not other threads or "
        f"children",
        {"t": kcov.task or 0},
        {"kcov": kcov.address, "pid": owner.pid},
    )


def _sum_up_inherited(state: State, kcovs: Sequence[KcovFields]) -> Answer:
    """Return one answer on all objects that a task has open and that other threads or processes
    made or enabled.
    """
    owners: list[TaskFields] = []
    for kcov in kcovs:
        owner = state.task_by_address.get(kcov.task or 0)
        if owner is not None:
            owners.append(owner)
    code: Reason = "descriptors-inherited"
    enabled = "none is enabled"
    if owners:
        code = "enabled-by-other-thread"
        enabled = f"{len(owners)} are enabled by {name_some(map(name_task, owners), _NAMED)}"
    named: Values = {
        "kcovs": [kcov.address for kcov in kcovs[:_NAMED]],
        "pids": [owner.pid for owner in owners[:_NAMED]],
    }
    return Answer(
        code,
        f"its process has {len(kcovs)} objects open that other threads or processes have as "
        f"well, of which {enabled}: descriptors are inherited, but KCOV traces only the thread "
        f"that did the ioctl",
        {"objects": len(kcovs)},
        named,
        rests_on=Part.TASKS | Part.OBJECTS | Part.FILES,
        question=f"its process has {len(kcovs)} objects open; who else has them, and for whom "
        f"they are enabled,",
    )


# What several objects are, by the code of the first answer on one.
_STEPS: Final[Mapping[Reason, str]] = {
    "not-initialized": "not initialized by KCOV_INIT_TRACE",
    "not-mapped": "initialized, but not mapped",
    "never-enabled": "initialized, but were never enabled",
    "not-enabled-now": "not enabled now",
}


def _explain_all_disabled(state: State, kcovs: Sequence[KcovFields]) -> Iterator[Answer]:
    """Yield why objects are not enabled: one answer on all objects with the same reason."""
    by_code: dict[Reason, list[KcovFields]] = defaultdict(list)
    for kcov in kcovs:
        first = next(_explain_disabled(state, kcov))
        by_code[first.code].append(kcov)
    for code, found in by_code.items():
        if len(found) == 1:
            yield from _explain_disabled(state, found[0])
            continue
        addresses = [kcov.address for kcov in found]
        yield Answer(
            code,
            f"its process has {len(found)} objects open that are {_STEPS[code]}: "
            f"{name_some(map(hex, addresses), _NAMED)}",
            {"objects": len(found)},
            {"kcovs": addresses[:_NAMED]},
            rests_on=Part.TASKS if any(kcov.task for kcov in found) else Part.NOTHING,
            question=f"its process has {len(found)} objects open; whether the tasks that they are "
            f"enabled for exist",
        )


def _explain_disabled(state: State, fields: KcovFields) -> Iterator[Answer]:
    """Yield why an object is not enabled."""
    kcov = state.objects[fields.address]
    about, named = name_kcov(fields.address), {"kcov": fields.address}
    if _says_enabled(state, kcov):
        whom = "a task that is gone" if fields.task else "no task"
        yield Answer(
            "owner-gone",
            f"{about} has the mode of an enabled object, but is enabled for {whom}: see check",
            {"mode": kcov.mode, "t": fields.task},
            named,
            rests_on=_part_of_owner(fields),
            question=f"the task that {about} is enabled for",
        )
        return
    if kcov.mode == modes.DISABLED:
        yield Answer(
            "not-initialized",
            f"{about} is open, but KCOV_INIT_TRACE was never called",
            {"mode": kcov.mode},
            named,
        )
        return
    if fields.area == 0:
        yield Answer(
            "not-mapped",
            f"{about} is not mapped: mmap() allocates the buffer on this kernel, and "
            f"KCOV_ENABLE fails without one",
            {"area": fields.area},
            named,
        )
        return
    shown: Values = {"mode": kcov.mode, "sequence": fields.sequence}
    if fields.sequence == 1:
        answer = f"{about} is initialized, but was never enabled"
        yield Answer("never-enabled", answer, shown, named)
    else:
        yield _explain_end(state, fields, shown)
        # KCOV_ENABLE records its own way back to user space. A blank buffer had remote sessions:
        # enabling them failed, or they ended before a section was merged.
        if state.kernel.has(Feature.REMOTE) and kcov.is_blank:
            yield _explain_failure(state, fields)
    yield from _explain_sections(state, fields, "a section for it is still open in {}")


def _says_enabled(state: State, kcov: Kcov) -> bool:
    """Return whether an object's mode is one that only enabled objects have: since Linux kernel
    commit ded97d2c2b2c ("kcov: support comparison operands collection") (v4.15).
    """
    return kcov.is_enabled and bool(state.kernel.modes_called(modes.INIT))


def _explain_end(state: State, fields: KcovFields, shown: Values) -> Answer:
    """Return why an object that was enabled is not enabled any more."""
    about = name_kcov(fields.address)
    ended = ""
    if fields.sequence is not None:
        ended = f" ({amount_text(fields.sequence - 1, 'session')} ended)"
    causes = "KCOV_DISABLE was called, or its thread exited"
    if state.kernel.has(Feature.REMOTE):
        causes = (
            "KCOV_DISABLE was called, its thread exited, or KCOV_REMOTE_ENABLE failed, which "
            "counts as a session"
        )
    return Answer(
        "not-enabled-now",
        f"{about} is not enabled now{ended}: {causes}",
        shown,
        {"kcov": fields.address},
        rests_on=_part_of_owner(fields),
        question=f"whether the task exists that {about} is enabled for",
    )


def _explain_failure(state: State, fields: KcovFields) -> Answer:
    """Return that KCOV_REMOTE_ENABLE may have failed, with the handles that are registered."""
    owners, registered = list_registered(state)
    answer = (
        f"the buffer never had a record, and KCOV_ENABLE leaves some. Either KCOV_REMOTE_ENABLE "
        f"failed, or it succeeded, and no section was merged before its owner disabled it or "
        f"exited. It fails with EINVAL for a handle that is not valid, and with EEXIST for one "
        f"that is registered; registered now: {owners}"
    )
    values: Values = {"count": 0, "registered": registered}
    return Answer("remote-enable-failed", answer, values, {"kcov": fields.address})


def list_registered(state: State, subsystem: int | None = None) -> tuple[str, int | None]:
    """Return the registered handles with their owners in words, and how many they are; None where
    this is unknown.

    :param subsystem: of the handles; None for all handles.
    """
    found: list[str] = []
    for entry in state.handles:
        handle = handles.decode_handle(entry.handle or 0)
        if subsystem in (None, handle.subsystem):
            found.append(f"{handle} of {name_task(entry)}")
    owners = name_some(found)
    unread = state.unread(Part.REMOTE)
    if not unread:
        return owners or "none", len(found)
    unknown = f"unknown: {unread[0]}"
    if found:
        unknown = f"{owners}, others {unknown}"
    return unknown, None


def _sections_of(state: State, address: int) -> list[Session]:
    """Return the sections that collect for an object."""
    return [session for session in state.sessions_of.get(address, ()) if session.is_section]


def _explain_sections(state: State, kcov: KcovFields, answer: str) -> Iterator[Answer]:
    """Yield the sections that collect for an object.

    :param answer: with a place for the name of the task.
    """
    for session in _sections_of(state, kcov.address):
        yield Answer(
            "section-open",
            answer.format(name_task(_task_of(state, session))),
            {"area": session.area or 0, "sequence": session.sequence},
            {"kcov": kcov.address, "pid": _task_of(state, session).pid},
        )
        yield from _explain_merge(state, session, kcov)


def _explain_remote(state: State, kcov: KcovFields) -> Iterator[Answer]:
    """Yield what may prevent remote coverage of an object."""
    has_handles = bool(state.handles_of.get(kcov.address, ()))
    if not has_handles:
        yield Answer(
            "no-handle",
            f"no handle leads to {name_kcov(kcov.address)}: KCOV_REMOTE_ENABLE was given none",
            {"handles": 0},
            {"kcov": kcov.address},
            rests_on=Part.REMOTE,
            question=f"whether a handle leads to {name_kcov(kcov.address)}",
        )
    if kcov.remote_size == 0:
        yield Answer(
            "no-section-areas",
            "areas for its sections have no size: sections in tasks record nothing",
            {"remote_size": 0},
            {"kcov": kcov.address},
        )
    elif kcov.remote_size and kcov.size and kcov.remote_size > kcov.size:
        yield Answer(
            "section-areas-too-large",
            "areas for its sections are larger than its buffer: what does not fit is lost when "
            "they are merged",
            {"remote_size": kcov.remote_size, "size": kcov.size},
            {"kcov": kcov.address},
        )
    yield from _explain_sections(
        state, kcov, "a section for it is open in {}: its coverage is merged when it ends"
    )
    if has_handles and kcov.remote_size and not _sections_of(state, kcov.address):
        made = any(
            area.list == TASK_LIST and area.size == kcov.remote_size for area in state.cached_areas
        )
        count = state.objects[kcov.address].count
        if not made and count == 0:
            yield Answer(
                "handle-never-looked-up",
                "no task has looked up its handles: no area of its size was ever allocated, "
                "and its buffer is empty",
                {"remote_size": kcov.remote_size, "count": count},
                {"kcov": kcov.address},
                rests_on=Part.CACHED_AREAS | Part.TASKS,
                question="whether a task has looked up its handles",
            )


@judged
def explain_handle(state: State, handle: int) -> Iterator[Answer]:
    """Yield what happens to coverage under a handle.

    :param state: for a common handle with ``Part.CARRIERS``.
    """
    decoded = handles.decode_handle(handle)
    if not state.kernel.has(Feature.REMOTE):
        yield Answer(
            "no-remote-handles",
            "this kernel has no remote handles",
            {"generation": state.kernel.generation.era},
        )
        return
    if decoded.reserved:
        yield Answer(
            "handle-reserved-bits",
            "reserved bits are set in it: KCOV_REMOTE_ENABLE refuses it",
            {"handle": handle},
        )
    registered = [entry for entry in state.handles if entry.handle == handle]
    for entry in registered:
        kcov = _find_object(state, entry.kcov)
        if kcov is None:
            yield _explain_unreadable(state, entry.kcov, "the object that it leads to")
        else:
            yield from _explain_registration(state, entry.bucket, kcov)
    if not registered:
        yield Answer(
            "handle-not-registered",
            "it is not registered: sections under it record nothing",
            {"registered": len(state.handles)},
            {"handle": handle},
            rests_on=Part.REMOTE,
            question="whether it is registered",
        )
    if decoded.subsystem == handles.COMMON and not decoded.reserved:
        yield from _explain_carriers(state, handle, is_registered=bool(registered))
    if decoded.subsystem == handles.USB:
        yield Answer(
            "usb-lookup",
            f"the hub of USB bus {decoded.instance} and URB completions look it up, if there "
            f"is such a bus",
            {"instance": decoded.instance},
        )


def _explain_registration(state: State, bucket: int, kcov: KcovFields) -> Iterator[Answer]:
    owner = state.task_by_address.get(kcov.task or 0)
    notes: tuple[str, ...] = ()
    if (
        owner is not None
        and owner.kcov_remote != kcov.address
        and not state.refers_to(owner.address, kcov.address)
    ):
        # Another task has reused the memory of one that is gone.
        notes = (f"at that address is now {name_task(owner)}, which does not refer to the object",)
        owner = None
    who = _name_owner(state, owner, kcov.task, "a task that is gone")
    yield Answer(
        "handle-registered",
        f"{who} registered it: KCOV_REMOTE_ENABLE with it fails with EEXIST for every other object",
        {"kcov": kcov.address, "bucket": bucket},
        {"pid": _pid_of(owner)},
    )
    if owner is None:
        yield Answer(
            "owner-gone",
            "its owner is gone, so that it stays registered forever: see check",
            {"t": kcov.task or 0},
            {"kcov": kcov.address},
            notes=notes,
            rests_on=_part_of_owner(kcov),
            question="whether its owner is gone",
        )
    yield from _explain_remote(state, kcov)
    yield from _explain_count(state, state.objects[kcov.address], "the owner's buffer")


def _explain_carriers(state: State, handle: int, *, is_registered: bool) -> Iterator[Answer]:
    """Yield what starts sections with a common handle, or starts work that does."""
    tasks = [task.fields for task in state.tasks if task.fields.kcov_handle == handle]
    shown = tasks[:_NAMED]
    if tasks:
        named = name_some(map(name_task, tasks), _NAMED)
        yield Answer(
            "carried-by-tasks",
            f"carried by {named}: their background work may run under it",
            {"tasks": [task.address for task in shown]},
            {"pids": [task.pid for task in shown]},
        )
    elif is_registered:
        yield Answer(
            "not-carried",
            "no task carries it: only work that was started before can run under it",
            named={"handle": handle},
            notes=("kcov_handle of no task",),
            rests_on=Part.TASKS,
            question="whether a task carries it",
        )
    groups: dict[tuple[str, str], list[Carrier]] = defaultdict(list)
    for carrier in state.carriers:
        if carrier.handle == handle:
            groups[carrier.kind, carrier.place].append(carrier)
    for (kind, place), found in groups.items():
        answer = f"carried by {amount_text(len(found), kind)}, {place}"
        workers: Values = {}
        pids = [carrier.pid for carrier in found if carrier.pid is not None]
        if pids:
            workers = {"pids": pids[:_NAMED]}
            answer += f", whose worker is {', '.join(map('task {}'.format, pids))}"
        addresses = [carrier.address for carrier in found[:_NAMED]]
        yield Answer("carried-by-work", answer, {_CARRIER_KEYS[kind]: addresses}, workers)
    unreadable = state.lacks(Source.CARRIERS)
    if unreadable:
        yield Answer(
            "carriers-incomplete", "the list of carriers is incomplete", notes=unreadable[:_NAMED]
        )


@judged
def explain_kcov(state: State, address: int) -> Iterator[Answer]:
    """Yield where the coverage of an object is.

    :param address: ``struct kcov *``.
    """
    kcov = state.objects.get(address)
    if kcov is None:
        yield Answer(
            "no-object",
            "nothing leads to an object at this address",
            {"objects": len(state.kcovs)},
            {"kcov": address},
            rests_on=Part.OBJECTS,
            question="whether there is an object at this address",
        )
        return
    fields = _find_object(state, address)
    if fields is None:
        yield _explain_unreadable(state, address, "the object at this address")
        return
    owner = state.task_by_address.get(fields.task or 0)
    if owner is None:
        yield from _explain_without_owner(state, kcov, fields)
        return
    if fields.remote:
        yield Answer(
            "takes-remote-coverage",
            f"it takes the coverage of remote sections for {name_task(owner)}",
            {"t": fields.task, "handles": len(state.handles_of.get(address, ()))},
            {"pid": owner.pid},
        )
        yield from _explain_remote(state, fields)
    else:
        yield from _explain_local(state, fields, owner)
    yield from _explain_count(state, kcov, "its buffer")


def _explain_without_owner(state: State, kcov: Kcov, fields: KcovFields) -> Iterator[Answer]:
    """Yield where the coverage of an object is: one that is enabled for no task, or for a task that
    was not found.
    """
    if fields.task:
        yield Answer(
            "owner-gone",
            "it is enabled for a task that is gone: see check",
            {"t": fields.task},
            rests_on=Part.TASKS,
            question=f"the task that it is enabled for, {fields.task:#x},",
        )
    is_unknown = bool(fields.task and state.unread(Part.TASKS))
    is_lost = bool(fields.task) and _says_enabled(state, kcov)
    if not is_unknown and not is_lost:
        yield from _explain_disabled(state, fields)
    if is_unknown or is_lost or kcov.count:
        yield from _explain_count(state, kcov, "its buffer")


def _explain_local(state: State, fields: KcovFields, owner: TaskFields) -> Iterator[Answer]:
    """Yield what a task records into an object that it enabled for itself."""
    yield Answer(
        "traces-itself",
        f"only {name_task(owner)} traces itself into it",
        {"t": fields.task},
        {"pid": owner.pid},
    )
    for session in state.sessions_of.get(fields.address, ()):
        if session.task != owner.address:
            continue
        if session.is_saved:
            yield Answer(
                "session-saved",
                "that task is in a softirq section",
                {"kcov_softirq": owner.kcov_softirq},
                {"pid": owner.pid},
            )
        return
