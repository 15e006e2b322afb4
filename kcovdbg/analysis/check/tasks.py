# SPDX-License-Identifier: LGPL-2.1-or-later
"""T: what holds for every task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from kcovdbg.abi import handle as handles
from kcovdbg.abi import mode as modes
from kcovdbg.abi.era import Feature
from kcovdbg.analysis.check.evidence import Evidence, Hex, Session, name_kcov, name_some, name_task, round_up, values
from kcovdbg.analysis.check.rule import Rule, Violation
from kcovdbg.analysis.check.sessions import check_local, check_owner_mark, check_section, make_violation
from kcovdbg.model.finding import Certainty, Severity
from kcovdbg.model.kcov import KcovFields
from kcovdbg.model.task import Task
from kcovdbg.walk.areas import IRQ_LIST
from kcovdbg.walk.readings import plain_name
from kcovdbg.walk.tasks import PF_EXITING, PF_KTHREAD

# What a task's stack shows while it is switched out or in.
_SWITCHING: Final = ("__schedule", "schedule", "__switch_to", "finish_task_switch", "context_switch", "ret_from_fork")
# Where a worker sits between two pieces of work, and what is on its stack while it does one.
_WAITING: Final = {"worker_thread": ("process_one_work", "process_scheduled_works")}
# Who allocates what a softirq section doesn't collect into.
_OTHER_CALLERS: Final = ("kcov_remote_start", "kcov_ioctl", "kcov_mmap")
# Bits above any mode of any kernel: flags of trees that aren't known.
_UNKNOWN_FLAGS: Final = 0xF0000000


def _sessions(evidence: Evidence, *, saved: bool = False) -> Iterator[tuple[Session, KcovFields]]:
    for session in evidence.sessions:
        kcov = evidence.kcov(session.kcov)
        if kcov is not None and session.is_saved == saved:
            yield session, kcov


def _has_owned(evidence: Evidence, task: Task, kcov: KcovFields) -> bool:
    """Tell whether a task refers to an object, by its own fields or saved ones."""
    return task.fields.address in evidence.users_of.get(kcov.address, ())


def check_symmetry(evidence: Evidence) -> Iterator[Violation]:
    """T1."""
    for kcov in evidence.objects.values():
        fields = kcov.fields
        assert fields is not None
        task = evidence.task_by_address.get(fields.task or 0)
        if task is None or fields.remote or not evidence.is_enabled(fields):
            continue
        if not _has_owned(evidence, task, fields):
            yield Violation(
                name_kcov(fields.address),
                f"it is enabled for {name_task(task.fields)}, which doesn't know of it",
                values(t=Hex(task.fields.address), task_kcov=Hex(task.fields.kcov or 0)),
                kcovs=(fields.address,),
                tasks=(task.fields.address,),
            )
    for session, fields in (*_sessions(evidence), *_sessions(evidence, saved=True)):
        address = session.task.fields.address
        if evidence.is_local(session):
            if fields.task != address or fields.remote:
                yield make_violation(
                    evidence,
                    session,
                    f"it traces itself into the buffer of kcov {fields.address:#x}, which "
                    + ("takes remote coverage" if fields.remote and fields.task == address else "isn't enabled for it"),
                    values(kcov=Hex(fields.address), t=Hex(fields.task or 0), remote=fields.remote),
                )
        elif not session.is_tracing and session.mode == modes.DISABLED and not evidence.is_owner(session):
            yield make_violation(
                evidence,
                session,
                f"it refers to kcov {fields.address:#x} and collects nothing for it",
                values(kcov=Hex(fields.address), mode=session.mode),
            )
    for task in evidence.tasks:
        pointer = task.fields.kcov
        if pointer and not evidence.may_be_missing(pointer):
            yield Violation(
                name_task(task.fields),
                f"its kcov {pointer:#x} is no address of the kernel",
                values(kcov=Hex(pointer)),
                tasks=(task.fields.address,),
            )


def check_copies(evidence: Evidence) -> Iterator[Violation]:
    """T2."""
    for session, kcov in _sessions(evidence):
        if evidence.is_local(session):
            yield from check_local(evidence, session, kcov)


def check_rest(evidence: Evidence) -> Iterator[Violation]:
    """T3."""
    for task in evidence.tasks:
        fields = task.fields
        if fields.kcov != 0:
            continue
        mode = evidence.layout.mode_name(fields.kcov_mode or 0)
        # The boot-time self-test (v6.11) traces into no buffer, in the task that becomes init.
        testing = fields.pid == 1 and not fields.kcov_area and not fields.kcov_size and modes.is_tracing(mode)
        newer = evidence.has(Feature.MODE_REMOTE) or evidence.has(Feature.OWNER_MEMBER)
        if (testing and newer) or not (mode != modes.DISABLED or fields.kcov_size or fields.kcov_area):
            continue
        if (fields.kcov_mode or 0) & ~evidence.layout.mode_flags & ~_UNKNOWN_FLAGS == 0 and not (
            fields.kcov_size or fields.kcov_area
        ):
            continue
        yield Violation(
            name_task(fields),
            f"it has no kcov, and yet mode {mode}, size {fields.kcov_size} and area {fields.kcov_area or 0:#x}",
            values(kcov_mode=mode, kcov_size=fields.kcov_size, kcov_area=Hex(fields.kcov_area or 0)),
            tasks=(fields.address,),
        )


def check_owners(evidence: Evidence) -> Iterator[Violation]:
    """T4."""
    for session, kcov in _sessions(evidence):
        if evidence.is_owner(session):
            yield from check_owner_mark(evidence, session, kcov)
    own_member = evidence.has(Feature.OWNER_MEMBER)
    for item in evidence.objects.values():
        fields = item.fields
        assert fields is not None
        task = evidence.task_by_address.get(fields.task or 0)
        if task is None or not fields.remote:
            continue
        if own_member:
            knows = task.fields.kcov_remote == fields.address
        else:
            knows = any(
                session.task.fields.address == task.fields.address and not session.is_tracing
                for session in evidence.sessions_of.get(fields.address, ())
            )
        if not knows:
            yield Violation(
                name_kcov(fields.address),
                f"{name_task(task.fields)} registered its handles, and doesn't know of it any more",
                values(
                    t=Hex(task.fields.address),
                    task_kcov=Hex(task.fields.kcov or 0),
                    task_kcov_remote=Hex(task.fields.kcov_remote or 0) if own_member else "no such member",
                ),
                kcovs=(fields.address,),
                tasks=(task.fields.address,),
            )
    for task in evidence.tasks if own_member else ():
        pointer = task.fields.kcov_remote
        owned = evidence.kcov(pointer) if pointer else None
        if owned is not None and not (owned.remote and owned.task == task.fields.address):
            yield Violation(
                name_task(task.fields),
                f"its kcov_remote {owned.address:#x} "
                + ("takes no remote coverage" if not owned.remote else "is enabled for another task"),
                values(kcov_remote=Hex(owned.address), remote=owned.remote, t=Hex(owned.task or 0)),
                kcovs=(owned.address,),
                tasks=(task.fields.address,),
            )
        elif pointer and owned is None and not evidence.may_be_missing(pointer):
            yield Violation(
                name_task(task.fields),
                f"its kcov_remote {pointer:#x} is no address of the kernel",
                values(kcov_remote=Hex(pointer)),
                tasks=(task.fields.address,),
            )


def check_modes(evidence: Evidence) -> Iterator[Violation]:
    """T5."""
    layout = evidence.layout
    if not layout.modes:
        return
    init = {number for name, number in layout.modes.items() if "MODE_INIT" in name.upper() or name.upper().endswith("INVALID")}
    legal = {0, *layout.modes.values()} - (init if evidence.has(Feature.COMPARISONS) else set())
    if evidence.has(Feature.UNIQUE_MAPS):
        legal.add(0x30)
    for task in evidence.tasks:
        fields = task.fields
        if fields.kcov_mode is None:
            continue
        word = modes.strip_flags(fields.kcov_mode, layout.mode_flags)
        about = name_task(fields)
        shown = values(kcov_mode=Hex(fields.kcov_mode), kcov=Hex(fields.kcov or 0))
        if word & ~_UNKNOWN_FLAGS not in legal:
            yield Violation(about, f"its mode {word:#x} is none that a task can have", shown, tasks=(fields.address,))
            continue
        if layout.mode_name(word) != modes.REMOTE:
            continue
        kcov = evidence.kcov(fields.kcov or 0)
        if not fields.kcov or (kcov is not None and not (kcov.remote and kcov.task == fields.address)):
            yield Violation(
                about,
                "its mode is that of the owner of a KCOV_REMOTE_ENABLE, and it owns none",
                shown,
                tasks=(fields.address,),
                kcovs=(fields.kcov or 0,),
            )


def check_sections(evidence: Evidence) -> Iterator[Violation]:
    """T6."""
    for session, kcov in _sessions(evidence):
        if evidence.is_section(session):
            yield from check_section(evidence, session, kcov)


def check_softirq(evidence: Evidence) -> Iterator[Violation]:
    """T7."""
    listed = {area.address for area in evidence.cached_areas if area.list == IRQ_LIST}
    for task in evidence.tasks:
        fields = task.fields
        if not fields.kcov_softirq:
            continue
        about = name_task(fields)
        shown = values(kcov_softirq=fields.kcov_softirq, cpu=fields.cpu, kcov_area=Hex(fields.kcov_area or 0))
        if fields.kcov_softirq != 1:
            yield Violation(about, f"kcov_softirq is {fields.kcov_softirq:#x}", shown, tasks=(fields.address,))
            continue
        if not evidence.is_rt and evidence.running and fields.address not in evidence.running:
            yield Violation(
                about,
                "it is in a softirq section, and runs on no CPU",
                shown,
                tasks=(fields.address,),
                certainty=Certainty.CERTAIN,
            )
        elif evidence.serves_softirq(fields.address) is False:
            yield Violation(
                about,
                f"it is in a softirq section, and {'serves' if evidence.is_rt else 'its CPU serves'} no softirq",
                shown,
                tasks=(fields.address,),
                anybody=False,
            )
        area = fields.kcov_area or 0
        if not modes.is_tracing(evidence.layout.mode_name(fields.kcov_mode or 0)):
            yield Violation(
                about, "it is in a softirq section that collects nothing", shown, tasks=(fields.address,), anybody=False
            )
        elif evidence.has(Feature.IRQ_AREA_PER_CPU) and not evidence.is_rt:
            own = evidence.irq_areas.get(fields.cpu if fields.cpu is not None else -1)
            if own is not None and own != area:
                yield Violation(
                    about,
                    f"its softirq section collects into {area:#x}, its CPU's area is {own:#x}",
                    shown,
                    tasks=(fields.address,),
                )
        elif area in listed:
            yield Violation(
                about,
                f"its softirq section collects into {area:#x}, which is on the list of free ones",
                shown,
                tasks=(fields.address,),
                remote_lock=True,
            )
        if evidence.vmalloc is not None and (found := evidence.vmalloc.get(area)) is not None:
            wanted = evidence.bytes_of(fields.kcov_size or 0)
            if round_up(wanted) != round_up(found.size):
                yield Violation(
                    about,
                    f"its softirq section has {fields.kcov_size} words, its area {evidence.words(found)}",
                    shown,
                    tasks=(fields.address,),
                )
            elif plain_name(found.caller) in _OTHER_CALLERS:
                yield Violation(
                    about,
                    f"its softirq section collects into {area:#x}, which {found.caller}() allocated for something else",
                    (*shown, ("caller", found.caller)),
                    tasks=(fields.address,),
                )


def check_handle(evidence: Evidence) -> Iterator[Violation]:
    """T8."""
    for task in evidence.tasks:
        value = task.fields.kcov_handle
        if value and not handles.is_common(value):
            yield Violation(
                name_task(task.fields),
                f"its handle {value:#x} is no common one",
                values(kcov_handle=Hex(value)),
                tasks=(task.fields.address,),
            )


def check_switch_flag(evidence: Evidence) -> Iterator[Violation]:
    """T9."""
    for task in evidence.tasks:
        fields = task.fields
        if task.in_ctxsw is None or fields.on_cpu is None:
            continue
        shown = values(kcov_mode=Hex(fields.kcov_mode or 0), on_cpu=int(bool(fields.on_cpu)))
        if task.in_ctxsw and fields.on_cpu and fields.address in evidence.running:
            stack = evidence.stack(fields.address)
            if stack is None or any((frame.function or "").startswith(_SWITCHING) for frame in stack):
                # It is being switched in or out, or may be.
                continue
            yield Violation(
                name_task(fields), "it runs, and is marked as switched out: it records nothing", shown, tasks=(fields.address,)
            )
        elif (
            not task.in_ctxsw
            and not fields.on_cpu
            and fields.address not in evidence.running
            and modes.is_tracing(evidence.layout.mode_name(fields.kcov_mode or 0))
            and fields.kcov
        ):
            yield Violation(
                name_task(fields),
                "it is switched out, and isn't marked as such: what runs at its switches is recorded",
                shown,
                tasks=(fields.address,),
            )


def check_number(evidence: Evidence) -> Iterator[Violation]:
    """T10."""
    local: dict[int, list[int]] = defaultdict(list)
    remote: dict[int, list[int]] = defaultdict(list)
    for kcov in evidence.objects.values():
        fields = kcov.fields
        if fields is not None and fields.task and evidence.is_enabled(fields):
            (remote if fields.remote else local)[fields.task].append(fields.address)
    for address in {**local, **remote}:
        task = evidence.task_by_address.get(address)
        if task is None:
            continue
        groups = [("KCOV_ENABLE", local[address]), ("KCOV_REMOTE_ENABLE", remote[address])]
        if not evidence.has(Feature.OWNER_MEMBER):
            groups = [("KCOV_ENABLE or KCOV_REMOTE_ENABLE", [*local[address], *remote[address]])]
        for what, objects in groups:
            if len(objects) > 1:
                yield Violation(
                    name_task(task.fields),
                    f"{len(objects)} objects are enabled for it by {what}",
                    values(kcovs=name_some([*map(hex, objects)]), task_kcov=Hex(task.fields.kcov or 0)),
                    kcovs=tuple(objects),
                    tasks=(address,),
                )


def check_exiting(evidence: Evidence) -> Iterator[Violation]:
    """T11."""
    for task in evidence.tasks:
        fields = task.fields
        # A softirq section may run on top of a task that exits.
        if not (fields.flags or 0) & PF_EXITING or fields.kcov_softirq:
            continue
        # What it closes on its way out may begin sections in it, which are over before it is dead.
        within = fields.address in evidence.in_section and not evidence.is_dead(fields.address)
        for name, pointer in (("kcov", fields.kcov), ("kcov_remote", fields.kcov_remote)):
            if pointer and not (name == "kcov" and within):
                yield Violation(
                    name_task(fields),
                    f"it exits, and still has {name} {pointer:#x}: kcov_task_exit() warned and left it",
                    values(**{name: Hex(pointer)}, flags=Hex(fields.flags or 0)),
                    tasks=(fields.address,),
                    kcovs=(pointer,),
                )


def check_kernel_threads(evidence: Evidence) -> Iterator[Violation]:
    """T12."""
    for session, kcov in _sessions(evidence):
        task = session.task
        if not (task.fields.flags or 0) & PF_KTHREAD:
            continue
        if evidence.is_local(session):
            yield make_violation(
                evidence,
                session,
                f"it is a kernel thread, and traces itself into kcov {kcov.address:#x}",
                values(kcov=Hex(kcov.address)),
            )
            continue
        if not evidence.is_section(session) or evidence.in_softirq(task) or task.fields.on_cpu:
            continue
        functions = {frame.function for frame in evidence.stack(task.fields.address) or ()}
        for idle, working in _WAITING.items():
            if idle in functions and not functions.intersection(working):
                yield make_violation(
                    evidence,
                    session,
                    "it waits for work, and its last work's section never ended: what it does next is counted in",
                    values(kcov=Hex(kcov.address), stack=f"in {idle}()"),
                )


_REMOTE: Final = frozenset({Feature.REMOTE})
_SOFTIRQ: Final = frozenset({Feature.SOFTIRQ})

RULES: Final = (
    Rule(
        "T1",
        "an object that is enabled for a task is the one that the task collects into, and the other way round",
        check_symmetry,
        "kcov_ioctl() (KCOV_ENABLE), kcov_disable()",
        detail="While a softirq section is on top of a task, the task's own session is in its saved state.",
    ),
    Rule(
        "T2",
        "a task that traces itself has its object's mode, size, area and sequence",
        check_copies,
        "kcov_start()",
        detail="Flag bits of the task's mode don't count: bit 30 is set in every task that is switched out.",
    ),
    Rule(
        "T3",
        "a task without an object has mode 0, size 0 and no area",
        check_rest,
        "kcov_stop(), kcov_task_init()",
        detail="A sequence is left behind, legally. The boot-time self-test (v6.11) sets a mode without an area.",
    ),
    Rule(
        "T4",
        "the owner of a KCOV_REMOTE_ENABLE is marked as one, and collects nothing by it",
        check_owners,
        "kcov_ioctl() (KCOV_REMOTE_ENABLE), kcov_remote_start(), kcov_remote_stop()",
        eras="v5.5 and later",
        needs=_REMOTE,
        detail="Up to v6.9 its mode is 0, up to v7.1 KCOV_MODE_REMOTE, and from v7.2 on it has kcov_remote.",
    ),
    Rule("T5", "a task's mode is one that a task can have, and KCOV_MODE_REMOTE that of an owner", check_modes, "kcov_start()"),
    Rule(
        "T6",
        "a remote section collects into an area of its own that is large enough, for an object that is as far on or further",
        check_sections,
        "kcov_remote_start()",
        eras="v5.5 and later",
        needs=_REMOTE,
        detail="A section of an earlier sequence is legal: its object was disabled meanwhile, and its coverage is discarded.",
    ),
    Rule(
        "T7",
        "a task in a softirq section runs on a CPU, and collects into an area for softirqs",
        check_softirq,
        "kcov_remote_start(), kcov_remote_stop()",
        eras="v5.8 and later",
        needs=_SOFTIRQ,
        detail="On PREEMPT_RT it may be preempted: whether it serves a softirq is counted in the task.",
    ),
    Rule(
        "T8",
        "a task's handle is 0 or a common one",
        check_handle,
        "kcov_ioctl() (KCOV_REMOTE_ENABLE)",
        eras="v5.5 and later",
        needs=_REMOTE,
        detail="Children inherit it, and keep it when its owner is gone.",
    ),
    Rule(
        "T9",
        "a task is marked as switched out exactly while it is",
        check_switch_flag,
        "kcov_prepare_switch(), kcov_finish_switch()",
        Severity.WARNING,
        eras="v4.18 and later",
        needs=frozenset({Feature.CTXSW_FLAG}),
        detail="A task that never ran isn't marked.",
    ),
    Rule(
        "T10",
        "one object at most is enabled for a task; from v7.2 on one by KCOV_ENABLE and one by KCOV_REMOTE_ENABLE",
        check_number,
        "kcov_ioctl() (KCOV_ENABLE, KCOV_REMOTE_ENABLE)",
        eras="v4.16 and later; before, a bug",
    ),
    Rule(
        "T11",
        "a task that exits has no object",
        check_exiting,
        "kcov_task_exit()",
        detail="A softirq section may interrupt one that exits, and what it closes may begin sections in it until it is dead.",
    ),
    Rule(
        "T12",
        "a kernel thread collects inside remote sections only, and ends them with its work",
        check_kernel_threads,
        "kcov_remote_stop(), and who calls it",
    ),
)
