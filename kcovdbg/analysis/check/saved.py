# SPDX-License-Identifier: LGPL-2.1-or-later
"""S: what holds for saved state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from kcovdbg.abi import mode as modes
from kcovdbg.abi.era import Feature
from kcovdbg.analysis.check.evidence import Evidence, Hex, name_some, name_task, round_up, values
from kcovdbg.analysis.check.rule import Rule, Violation
from kcovdbg.analysis.check.sessions import check_local, check_owner_mark, check_section, make_violation
from kcovdbg.errors import KcovdbgError
from kcovdbg.model.task import SavedState
from kcovdbg.walk.locks import is_preempt_rt

_PERCPU: Final = "struct kcov_percpu_data"


def _shown(saved: SavedState) -> tuple[tuple[str, str], ...]:
    return values(
        saved_mode=Hex(saved.mode or 0),
        saved_size=saved.size,
        saved_area=Hex(saved.area or 0),
        saved_kcov=Hex(saved.kcov or 0),
        saved_sequence=saved.sequence,
    )


def check_whole(evidence: Evidence) -> Iterator[Violation]:
    """S1."""
    stale_mode = evidence.has(Feature.STATE_STRUCT)
    for instance in evidence.census.per_cpu:
        saved = instance.saved
        rest = [saved.size, saved.area, *([] if stale_mode else [saved.mode]), *([] if stale_mode else [saved.sequence])]
        current = evidence.census.current.get(instance.cpu, 0)
        if not saved.kcov and any(rest):
            yield Violation(
                f"CPU {instance.cpu}",
                "its saved state has no object, and isn't empty",
                _shown(saved),
                tasks=(current,) if current else (),
            )


def check_on_top(evidence: Evidence) -> Iterator[Violation]:
    """S2."""
    for instance in evidence.census.per_cpu:
        if not instance.saved.kcov:
            continue
        current = evidence.census.current.get(instance.cpu)
        task = evidence.task_by_address.get(current or 0)
        if task is not None and task.fields.kcov_softirq == 0:
            yield Violation(
                f"CPU {instance.cpu}",
                f"a session is saved, and {name_task(task.fields)}, which runs there, is in no softirq section",
                (*_shown(instance.saved), ("kcov_softirq", "0")),
                tasks=(task.fields.address,),
                kcovs=(instance.saved.kcov,),
            )


def check_session(evidence: Evidence) -> Iterator[Violation]:
    """S3."""
    for session in evidence.sessions:
        if not session.is_saved:
            continue
        kcov = evidence.kcov(session.kcov)
        if not session.is_tracing and session.mode != modes.REMOTE:
            yield make_violation(
                evidence, session, f"mode {session.mode} is none that is saved", values(saved_mode=session.mode)
            )
        elif kcov is None:
            continue
        elif evidence.is_local(session):
            yield from check_local(evidence, session, kcov)
        elif evidence.is_section(session):
            yield from check_section(evidence, session, kcov)
        elif evidence.is_owner(session):
            yield from check_owner_mark(evidence, session, kcov)
        else:
            yield make_violation(
                evidence,
                session,
                f"it is marked as the owner of kcov {session.kcov:#x}, which it isn't",
                values(kcov=Hex(session.kcov)),
            )
    for task in evidence.tasks:
        pointer = task.fields.saved_kcov
        if pointer and not evidence.may_be_missing(pointer):
            yield Violation(
                name_task(task.fields),
                f"its saved kcov {pointer:#x} is no address of the kernel",
                values(saved_kcov=Hex(pointer)),
                tasks=(task.fields.address,),
            )


def check_left_over(evidence: Evidence) -> Iterator[Violation]:
    """S4."""
    for task in evidence.tasks:
        if task.saved is None:
            continue
        if not task.saved.kcov:
            yield Violation(
                name_task(task.fields),
                "its saved state has no object, and isn't empty",
                _shown(task.saved),
                tasks=(task.fields.address,),
            )
            continue
        if task.fields.kcov_softirq != 0:
            continue
        yield Violation(
            name_task(task.fields),
            "a session of its own is saved, and it is in no softirq section: it lost that session",
            (*_shown(task.saved), ("kcov_softirq", "0")),
            tasks=(task.fields.address,),
        )


def check_cpu_areas(evidence: Evidence) -> Iterator[Violation]:
    """S5."""
    instances = [instance for instance in evidence.census.per_cpu if instance.irq_area is not None]
    if not any(instance.irq_area for instance in instances):
        # kcov_init() hasn't run yet.
        return
    owners: dict[int, list[int]] = defaultdict(list)
    sizes: dict[int, list[int]] = defaultdict(list)
    for instance in instances:
        area = instance.irq_area or 0
        if not area:
            yield Violation(f"CPU {instance.cpu}", "it has no area for softirq sections", values(irq_area=0))
            continue
        owners[area].append(instance.cpu)
        found = None if evidence.vmalloc is None else evidence.vmalloc.get(area)
        if found is not None:
            sizes[round_up(found.size)].append(instance.cpu)
        elif evidence.vmalloc is not None:
            yield Violation(
                f"CPU {instance.cpu}",
                f"its area for softirq sections {area:#x} isn't the start of a vmalloc area",
                values(irq_area=Hex(area)),
            )
    for area, cpus in owners.items():
        if len(cpus) > 1:
            named = name_some([*map(str, cpus)])
            yield Violation(f"CPU {cpus[0]}", f"CPUs {named} share one area for softirq sections", values(irq_area=Hex(area)))
    if len(sizes) > 1:
        usual = max(sizes, key=lambda size: len(sizes[size]))
        for size, cpus in sizes.items():
            if size != usual:
                yield Violation(
                    f"CPU {cpus[0]}", f"its area for softirq sections has {size} bytes, others have {usual}", values(size=size)
                )


def check_lock(evidence: Evidence) -> Iterator[Violation]:
    """S6."""
    target = evidence.target
    # On PREEMPT_RT the lock is a mutex; elsewhere its owner is kept for lock debugging only.
    paths = ("lock.lock.owner", "lock.lock.rtmutex.owner") if is_preempt_rt(target) else ("lock.owner",)
    for cpu in target.cpus():
        for path in paths:
            try:
                member = target.member(_PERCPU, path)
                address = target.per_cpu("kcov_percpu_data", cpu)
                data = target.read(address + member.offset, member.size)
            except KcovdbgError:
                continue
            owner = int.from_bytes(data, "big" if target.big_endian else "little") & ~1
            if not owner:
                continue
            task = evidence.task_by_address.get(owner)
            if task is None:
                yield Violation(
                    f"CPU {cpu}",
                    f"the lock of its KCOV state is held by {owner:#x}, which is no task",
                    values(owner=Hex(owner)),
                )
            elif evidence.stack(owner) and evidence.kcov_function(owner) is None:
                yield Violation(
                    f"CPU {cpu}",
                    f"the lock of its KCOV state is held by {name_task(task.fields)}, which is in no function of KCOV",
                    values(owner=Hex(owner)),
                )


_PER_CPU: Final = frozenset({Feature.SAVED_PER_CPU})
_IN_TASK: Final = frozenset({Feature.SAVED_IN_TASK})

RULES: Final = (
    Rule(
        "S1",
        "a CPU's saved state is empty, all of it, or has an object",
        check_whole,
        "kcov_remote_softirq_start(), kcov_remote_softirq_stop()",
        eras="v5.8 to v7.2",
        needs=_PER_CPU,
        detail="The deduplication series of 2025 leaves saved_mode as it was.",
    ),
    Rule(
        "S2",
        "a CPU's state is saved only while a softirq section is on top of the task that runs there",
        check_on_top,
        "kcov_remote_softirq_start(), kcov_remote_softirq_stop()",
        eras="v5.8 to v7.2",
        needs=_PER_CPU,
    ),
    Rule(
        "S3",
        "a saved session is one that a task could have: traced by itself, a section, or an owner's mark",
        check_session,
        "kcov_remote_softirq_start()",
        eras="v5.8 and later",
        needs=frozenset({Feature.SOFTIRQ}),
        detail="A softirq section on top of a task that collected nothing saves nothing. The saved mode may have bit 30.",
    ),
    Rule(
        "S4",
        "a task's saved state is empty, all of it, unless a softirq section is on top of a session of its own",
        check_left_over,
        "kcov_remote_softirq_start(), kcov_remote_softirq_stop()",
        eras="August 2026 and later",
        needs=_IN_TASK,
    ),
    Rule(
        "S5",
        "each CPU has an area for softirq sections, its own, and all of one size",
        check_cpu_areas,
        "kcov_init()",
        eras="v5.8 to v7.2",
        needs=frozenset({Feature.IRQ_AREA_PER_CPU}),
    ),
    Rule(
        "S6",
        "the lock of a CPU's KCOV state is held inside kcov_remote_start() and kcov_remote_stop() only",
        check_lock,
        "kcov_remote_start(), kcov_remote_stop()",
        eras="v5.16 and later, where the lock has an owner",
        needs=frozenset({Feature.SOFTIRQ}),
    ),
)
