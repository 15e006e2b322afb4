# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where expected coverage is: answers from KCOV's state alone, each with what it rests on."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from kcovdbg.abi import handle as handles
from kcovdbg.abi import mode as modes
from kcovdbg.abi.era import Feature
from kcovdbg.analysis.check.evidence import Evidence, Session, name_kcov, name_task
from kcovdbg.model.carrier import Carrier
from kcovdbg.model.kcov import Kcov, KcovFields
from kcovdbg.model.task import Role, Task
from kcovdbg.target import StackFrame
from kcovdbg.walk.areas import TASK_LIST
from kcovdbg.walk.tasks import PF_EXITING, PF_KTHREAD

# The outermost functions of interrupts and softirqs, on x86 and arm64.
_INTERRUPT: Final = re.compile(
    r"(asm_sysvec_\w+|sysvec_\w+|asm_common_interrupt|common_interrupt|asm_exc_nmi|exc_nmi|do_IRQ|ret_from_intr|apic_timer_interrupt"
    r"|el[01][ht]_\d+_(irq|fiq)\w*|el1_interrupt|el0_interrupt|gic_handle_irq|call_on_irq_stack|irq_exit\w*|__irq_exit_rcu"
    r"|(__)?do_softirq\w*|handle_softirqs|run_ksoftirqd)$"
)
_NAMED: Final = 8


class Answer(NamedTuple):
    """One reason, or one thing to know."""

    answer: str
    evidence: tuple[str, ...] = ()


def explain_task(evidence: Evidence, task: Task) -> Iterator[Answer]:
    """Say why there is no coverage of a task, or where it is."""
    fields = task.fields
    own = [session for session in evidence.sessions if session.task.fields.address == fields.address]
    interrupt = find_interrupt(evidence, fields.address)
    if interrupt:
        yield Answer(
            f"it is interrupted, and its CPU is in {interrupt[-1].function}(): what runs there isn't part of its coverage",
            tuple(f"#{number} {frame.function}" for number, frame in enumerate(interrupt) if frame.function)[-_NAMED:],
        )
    if (fields.flags or 0) & PF_EXITING:
        yield Answer("it exits: KCOV was disabled for it when it began to", (f"flags={fields.flags or 0:#x}",))
    for session in own:
        yield from _explain_session(evidence, session)
    owned = [
        kcov for kcov in evidence.objects.values() if kcov.fields and kcov.fields.remote and kcov.fields.task == fields.address
    ]
    for kcov in owned:
        assert kcov.fields is not None
        if not any(session.is_tracing and evidence.is_local(session) for session in own):
            yield Answer(
                "it is the owner of a KCOV_REMOTE_ENABLE: it isn't traced itself, background sections are",
                (f"kcov={kcov.fields.address:#x}", f"mode={task.mode}"),
            )
        yield from _explain_remote(evidence, kcov.fields)
        yield from _explain_count(evidence, kcov, "its buffer")
    if not own and not owned:
        yield from _explain_idle(evidence, task)
    handle = fields.kcov_handle
    if handle and not owned:
        registered = [entry.kcov for entry in evidence.entries if entry.handle == handle]
        named = str(handles.decode_handle(handle))
        if registered:
            answer = (
                f"it carries {named}, inherited: background work that it starts collects for {name_kcov(registered[0] or 0)}"
            )
        else:
            answer = (
                f"it carries {named}, inherited, which nobody has registered any more: work that it starts collects nothing"
            )
        yield Answer(answer, (f"kcov_handle={handle:#x}",))


def find_interrupt(evidence: Evidence, task: int) -> Sequence[StackFrame]:
    """Return the frames of interrupts and softirqs on top of a running task's own, innermost first."""
    if task not in evidence.running:
        return ()
    stack = evidence.stack(task) or ()
    last = max((number for number, frame in enumerate(stack) if _INTERRUPT.match(frame.function or "")), default=-1)
    return stack[: last + 1]


def _explain_session(evidence: Evidence, session: Session) -> Iterator[Answer]:
    task, kcov = session.task, evidence.kcov(session.kcov)
    fields = task.fields
    if kcov is None:
        yield Answer("the object that it collects for can't be read", (f"kcov={session.kcov:#x}",))
        return
    owner = evidence.task_by_address.get(kcov.task or 0)
    named = name_task(owner.fields) if owner is not None else "nobody"
    if session.is_saved and session.is_tracing and evidence.is_local(session):
        yield Answer(
            "a softirq section is on top of it: its own session is saved, and goes on when that ends",
            (f"kcov_softirq={fields.kcov_softirq}", f"saved area={session.area:#x}"),
        )
        yield from _explain_buffer(evidence, kcov)
    elif evidence.is_local(session):
        if kcov.task != fields.address:
            yield Answer(
                f"it uses the buffer of {name_kcov(kcov.address)}, which isn't enabled for it: see check",
                (f"t={kcov.task or 0:#x}",),
            )
        yield from _explain_buffer(evidence, kcov)
    elif evidence.is_section(session):
        where = "an interrupted remote section of it" if session.is_saved else "a remote section in it"
        where = "a softirq section on top of it" if not session.is_saved and evidence.in_softirq(task) else where
        yield Answer(
            f"{where} collects for {name_kcov(kcov.address)} of {named}, and hasn't ended: nothing of it is merged yet",
            (f"area={session.area:#x}", f"sequence={session.sequence}", f"kcov sequence={kcov.sequence}"),
        )
        yield from _explain_merge(evidence, session, kcov)


def _explain_merge(evidence: Evidence, session: Session, kcov: KcovFields) -> Iterator[Answer]:
    """Say what will become of a section's coverage."""
    if session.sequence != kcov.sequence or not kcov.remote:
        yield Answer(
            f"the coverage of the section in {name_task(session.task.fields)} will be discarded: its object was disabled "
            "meanwhile, or its owner exited",
            (f"section sequence={session.sequence}", f"kcov sequence={kcov.sequence}", f"remote={kcov.remote}"),
        )
    area = session.task.count if not session.is_saved else None
    if session.task.full and not session.is_saved:
        yield Answer(
            f"the area of the section in {name_task(session.task.fields)} is full: what it executes now is lost",
            (f"count={area}", f"size={session.size}"),
        )
    found = evidence.objects.get(kcov.address)
    if found is not None and found.full:
        yield Answer(
            "there is no room left for it in the owner's buffer", (f"count={found.count}", f"capacity={found.capacity}")
        )


def _explain_buffer(evidence: Evidence, fields: KcovFields) -> Iterator[Answer]:
    kcov = evidence.objects.get(fields.address)
    if kcov is not None:
        yield from _explain_count(evidence, kcov, "its buffer")


def _explain_count(evidence: Evidence, kcov: Kcov, what: str) -> Iterator[Answer]:
    shown: tuple[str, ...] = (f"count={kcov.count}", f"capacity={kcov.capacity}")
    if kcov.count is None:
        yield Answer(f"the count of {what} can't be read", kcov.errors)
    elif kcov.capacity is not None and kcov.count > kcov.capacity:
        yield Answer(f"the count of {what} is impossible: nothing is recorded any more until user space resets it to 0", shown)
    elif kcov.full:
        yield Answer(f"{what} is full: everything since is lost. Reset its count, or ask KCOV_INIT_TRACE for more", shown)
    elif kcov.count == 0:
        why = (
            "no section was merged into it since it was enabled or reset"
            if kcov.fields is not None and kcov.fields.remote
            else "user space reset it, and nothing instrumented was executed by the task since. Interrupts are left out"
        )
        yield Answer(f"{what} is empty: {why}", shown)
    else:
        answer = f"there is coverage: {kcov.count} records in {what}"
        offset = evidence.target.kaslr_offset
        if offset:
            answer += ". What user space reads is the address minus the KASLR offset, in modules, too"
            shown += (f"KASLR offset={offset:#x}",)
        yield Answer(answer, shown)


def _explain_idle(evidence: Evidence, task: Task) -> Iterator[Answer]:
    """Say why a task is without a session."""
    fields = task.fields
    if (fields.flags or 0) & PF_KTHREAD:
        yield Answer("it is a kernel thread: it is covered inside remote sections only, and is in none", (f"mode={task.mode}",))
        return
    mine = [
        kcov
        for kcov in evidence.objects.values()
        if any(reference.kind in ("fd", "vma") and reference.pid == fields.tgid for reference in kcov.references)
    ]
    if not mine:
        yield Answer(
            "KCOV isn't enabled in it: its process has /sys/kernel/debug/kcov neither open nor mapped", (f"kcov={0:#x}",)
        )
        return
    for kcov in mine:
        other = evidence.task_by_address.get(kcov.fields.task or 0) if kcov.fields else None
        assert kcov.fields is not None
        about = name_kcov(kcov.fields.address)
        if other is not None:
            yield Answer(
                f"{about}, which its process has open, is enabled by another thread, {name_task(other.fields)}: KCOV traces "
                "the thread that did the ioctl, no other, and no children",
                (f"t={kcov.fields.task or 0:#x}",),
            )
        else:
            yield from _explain_disabled(evidence, kcov.fields)


def _explain_disabled(evidence: Evidence, fields: KcovFields) -> Iterator[Answer]:
    mode = evidence.mode_of(fields)
    about = name_kcov(fields.address)
    if mode == modes.DISABLED:
        yield Answer(f"{about} is open, and KCOV_INIT_TRACE was never called", (f"mode={mode}",))
        return
    if not fields.area:
        yield Answer(f"{about} isn't mapped: this kernel allocates the buffer then, and KCOV_ENABLE fails", ("area=0x0",))
        return
    shown = (f"mode={mode}", f"sequence={fields.sequence}")
    if fields.sequence == 1:
        yield Answer(f"{about} is initialised, and was never enabled", shown)
    else:
        ended = "" if fields.sequence is None else f" ({_count(fields.sequence - 1, 'session')} ended)"
        yield Answer(f"{about} isn't enabled now{ended}: KCOV_DISABLE, or the end of the thread that had it", shown)
    for session in _sections_of(evidence, fields.address):
        yield Answer(
            f"a section for it is still open in {name_task(session.task.fields)}",
            (f"area={session.area:#x}", f"sequence={session.sequence}"),
        )
        yield from _explain_merge(evidence, session, fields)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _sections_of(evidence: Evidence, address: int) -> list[Session]:
    return [session for session in evidence.sessions_of.get(address, ()) if evidence.is_section(session)]


def _explain_remote(evidence: Evidence, kcov: KcovFields) -> Iterator[Answer]:
    """Say what can be in the way of remote coverage for an object."""
    entries = evidence.entries_of.get(kcov.address, ())
    if not entries:
        yield Answer(f"no handle leads to {name_kcov(kcov.address)}: KCOV_REMOTE_ENABLE was given none", ("handles=0",))
    if kcov.remote_size == 0:
        yield Answer("areas for its sections have no size: those in tasks collect nothing", ("remote_size=0",))
    elif kcov.remote_size and kcov.size and kcov.remote_size > kcov.size:
        yield Answer(
            "areas for its sections are larger than its buffer: what doesn't fit is lost when they are merged",
            (f"remote_size={kcov.remote_size}", f"size={kcov.size}"),
        )
    sections = _sections_of(evidence, kcov.address)
    for session in sections:
        yield Answer(
            f"a section for it is open in {name_task(session.task.fields)}: nothing of it is merged until it ends",
            (f"area={session.area:#x}", f"sequence={session.sequence}"),
        )
        yield from _explain_merge(evidence, session, kcov)
    if kcov.remote_size and not sections and not evidence.census.lacks("areas"):
        made = [area for area in evidence.cached_areas if area.list == TASK_LIST and area.size == kcov.remote_size]
        count = evidence.objects[kcov.address].count if kcov.address in evidence.objects else None
        if not made and not count:
            yield Answer(
                "nobody has looked its handles up in a task: no area of its size was ever made, and its buffer is empty",
                (f"remote_size={kcov.remote_size}", f"count={count}"),
            )


def explain_handle(evidence: Evidence, handle: int) -> Iterator[Answer]:
    """Say what becomes of coverage under a handle."""
    decoded = handles.decode_handle(handle)
    if not evidence.has(Feature.REMOTE):
        yield Answer("this kernel's KCOV has no remote handles", (f"generation={evidence.layout.generation.era}",))
        return
    if decoded.reserved:
        yield Answer("bits of it are set that must be zero: KCOV_REMOTE_ENABLE refuses it", (f"handle={handle:#x}",))
    registered = [entry for entry in evidence.entries if entry.handle == handle]
    for entry in registered:
        kcov = evidence.kcov(entry.kcov or 0)
        if kcov is None:
            yield Answer("it leads to an object that can't be read", (f"kcov={entry.kcov or 0:#x}",))
            continue
        owner = evidence.task_by_address.get(kcov.task or 0)
        # A task's memory is another's soon after it is gone.
        reused = owner is not None and not evidence.is_known_to(kcov, owner)
        who = name_task(owner.fields) if owner is not None and not reused else "a task that is gone"
        yield Answer(
            f"{who} has registered it: anybody else's KCOV_REMOTE_ENABLE with it fails with EEXIST",
            (f"kcov={kcov.address:#x}", f"bucket={entry.bucket}"),
        )
        if owner is None or reused:
            shown: tuple[str, ...] = (f"t={kcov.task or 0:#x}",)
            if owner is not None:
                shown += (f"at that address is {name_task(owner.fields)}, which doesn't know of it",)
            yield Answer("its owner is gone and it stays registered for ever: see check", shown)
        yield from _explain_remote(evidence, kcov)
        found = evidence.objects.get(kcov.address)
        if found is not None:
            yield from _explain_count(evidence, found, "the owner's buffer")
    if not registered:
        yield Answer(
            "nobody has registered it: sections under it collect nothing",
            (f"registered={len(evidence.entries)}", *evidence.census.lacks("remote")),
        )
    if decoded.subsystem == handles.COMMON and not decoded.reserved:
        yield from _explain_carriers(evidence, handle, is_registered=bool(registered))
    if decoded.subsystem == handles.USB:
        yield Answer(
            f"the hub of USB bus {decoded.instance} and its requests' ends look it up, if there is such a bus",
            (f"instance={decoded.instance}",),
        )


def _explain_carriers(evidence: Evidence, handle: int, *, is_registered: bool) -> Iterator[Answer]:
    """Say who begins sections with a common handle, or starts who does."""
    tasks = [task for task in evidence.tasks if task.fields.kcov_handle == handle]
    if tasks:
        named = ", ".join(name_task(task.fields) for task in tasks[:_NAMED])
        yield Answer(
            f"carried by {named}{' and others' if len(tasks) > _NAMED else ''}: what these start in the background may run "
            "under it",
            tuple(f"task={task.fields.address:#x}" for task in tasks[:_NAMED]),
        )
    elif is_registered:
        yield Answer("no task carries it: only what was started before still can", ("kcov_handle of no task",))
    carriers, remarks = evidence.carriers
    groups: dict[tuple[str, str], list[Carrier]] = defaultdict(list)
    for carrier in carriers:
        if carrier.handle == handle:
            groups[carrier.kind.value, carrier.place].append(carrier)
    for (kind, place), found in groups.items():
        workers = ", ".join(f"task {carrier.pid}" for carrier in found if carrier.pid is not None)
        yield Answer(
            f"carried by {_count(len(found), kind)}, {place}" + (f", which {workers} works for" if workers else ""),
            tuple(f"{kind.split()[0]}={carrier.address:#x}" for carrier in found[:_NAMED]),
        )
    if remarks:
        yield Answer("who else carries it can't be told in full", remarks[:_NAMED])


def explain_kcov(evidence: Evidence, address: int) -> Iterator[Answer]:
    """Say what is the matter with an object."""
    kcov = evidence.objects.get(address)
    if kcov is None or kcov.fields is None:
        yield Answer("nothing of KCOV leads to an object at this address", (f"objects={len(evidence.objects)}",))
        return
    fields = kcov.fields
    owner = evidence.task_by_address.get(fields.task or 0)
    if fields.task and owner is None:
        yield Answer("it is enabled for a task that is gone: see check", (f"t={fields.task:#x}",))
    if owner is None:
        yield from _explain_disabled(evidence, fields)
        if kcov.count:
            yield from _explain_count(evidence, kcov, "its buffer")
        return
    if fields.remote:
        yield Answer(
            f"it takes the coverage of background sections for {name_task(owner.fields)}",
            (f"t={fields.task:#x}", f"handles={len(evidence.entries_of.get(address, ()))}"),
        )
        yield from _explain_remote(evidence, fields)
        yield from _explain_count(evidence, kcov, "its buffer")
        return
    yield Answer(f"{name_task(owner.fields)} traces itself into it, and nobody else does", (f"t={fields.task:#x}",))
    for session in evidence.sessions_of.get(address, ()):
        if session.task is owner or session.task.fields.address == owner.fields.address:
            if session.is_saved:
                yield Answer("a softirq section is on top of that task", (f"kcov_softirq={owner.fields.kcov_softirq}",))
            break
    yield from _explain_count(evidence, kcov, "its buffer")


def find_task(tasks: Sequence[Task], tid: int) -> Task | None:
    """Return the task with this number; of the idle ones, which all have 0, one that has to do with KCOV."""
    found = [task for task in tasks if task.fields.pid == tid]
    return next((task for task in found if task.role is not Role.NONE), found[0] if found else None)
