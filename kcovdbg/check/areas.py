# SPDX-License-Identifier: LGPL-2.1-or-later
"""A: invariants of the areas of remote and softirq sections."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import partial
from operator import attrgetter
from typing import Final

from kcovdbg.abi.generations import Feature
from kcovdbg.check.handles import check_link
from kcovdbg.model.finding import Severity
from kcovdbg.model.kcov import name_kcov, name_some, name_task
from kcovdbg.model.remote import AREA_ALLOCATORS, IRQ_LIST, TASK_LIST
from kcovdbg.model.rule import Hex, Rule, Violation, Violations, area_violation, values
from kcovdbg.model.state import Part, State
from kcovdbg.model.task import Session

# A cache of more than 64 MiB is reported.
_MUCH: Final = 64 << 20
_remote_rule = partial(Rule, features=(Feature.REMOTE,))
_PUT: Final = "kcov_remote_area_put(), kcov_remote_area_get()"


def _tasks_of(sessions: Iterable[Session]) -> tuple[int, ...]:
    return tuple(session.task for session in sessions if session.task is not None)


def _find_users(sessions: Iterable[Session]) -> Mapping[int, list[Session]]:
    """Return the sessions that use each area."""
    users: dict[int, list[Session]] = defaultdict(list)
    for session in sessions:
        if session.area:
            users[session.area].append(session)
    return users


def _name_user(state: State, session: Session) -> str:
    fields = state.task_by_address.get(session.task or 0)
    return "an unknown task" if fields is None else name_task(fields)


@_remote_rule(
    "A1",
    "the lists of free areas are intact",
    guaranteed_by="list_add(), list_del() under kcov_remote_lock",
    consequence="Taking or returning an area runs forever or writes into other memory; areas "
    "behind the damage are lost.",
    needs=Part.LINKS,
)
def _check_links(state: State) -> Violations:
    for link in state.area_links:
        yield from check_link(
            f"list of {link.list} areas", link, "it", element="area", member="prev"
        )


@_remote_rule(
    "A2",
    "a free area is a vmalloc area of its size, allocated for the purpose of its list",
    guaranteed_by="kcov_remote_start(), kcov_init()",
    consequence="A section records into memory of another owner, or past the end of the area.",
    needs=Part.CACHED_AREAS | Part.VMALLOC,
)
def _check_memory(state: State) -> Violations:
    if state.vmalloc is None:
        return
    for area in state.cached_areas:
        found = state.vmalloc.get(area.address)
        shown = values(size=area.size, list=area.list)
        listed = f"it is on the list of {area.list} areas, but"
        words = 0
        purpose = area.list
        if found is not None:
            words = state.kernel.words_in(found)
            # An unknown allocator contradicts no list.
            purpose = AREA_ALLOCATORS.get(found.allocator, area.list)
        if found is None:
            message = f"{listed} is not the start of a vmalloc area"
        elif area.size is not None and area.size > words:
            message = f"its list entry says {area.size} words, but it has {words}"
        elif found.has_user_pages or purpose != area.list:
            message = f"{listed} {found.caller}() allocated it for something else"
            shown += (("caller", found.caller),)
        else:
            continue
        yield area_violation(area.address, message, shown)


@_remote_rule(
    "A3",
    "a free area is not in use",
    guaranteed_by=_PUT,
    consequence="Two sections, or a section and user space, write into the same memory.",
    needs=Part.TASKS | Part.CACHED_AREAS | Part.SAVED,
)
def _check_free(state: State) -> Violations:
    of_cpus = frozenset(state.irq_areas.values())
    users = _find_users(filter(attrgetter("is_tracing"), state.sessions))
    for area in state.cached_areas:
        found = users.get(area.address, ())
        # A7 checks the areas of CPUs.
        if found and area.address not in of_cpus:
            kind = "saved session" if found[-1].is_saved else "session"
            user = f"the {kind} of {_name_user(state, found[-1])}"
            yield area_violation(
                area.address,
                f"it is free, but {user} uses it: the next section will use it at the same time",
                values(list=area.list, used_by=user),
                tasks=_tasks_of(found),
            )


@_remote_rule(
    "A4",
    "an area is on one list once, or in use by one section",
    guaranteed_by=_PUT,
    consequence="Two sections get the same area and mix their records.",
    needs=Part.TASKS | Part.OBJECTS | Part.CACHED_AREAS,
)
def _check_once(state: State) -> Violations:
    for address, count in Counter(area.address for area in state.cached_areas).items():
        if count > 1:
            yield area_violation(address, f"it is listed {count} times", values(count=count))
    users = _find_users(filter(attrgetter("is_section"), state.sessions))
    owners: dict[int, list[int]] = defaultdict(list)
    for kcov in state.kcovs.values():
        owners[kcov.area or 0].append(kcov.address)
    for address, sessions in users.items():
        report = partial(area_violation, address, tasks=_tasks_of(sessions), remote_lock=False)
        if len(sessions) > 1:
            names: list[str] = []
            for session in sessions:
                name = _name_user(state, session)
                names.append(f"{name} (saved)" if session.is_saved else name)
            yield report(f"{len(sessions)} sections use it at once: {name_some(names)}")
        for owner in owners.get(address, ()):
            message = f"it is also the buffer of {name_kcov(owner)}"
            yield report(message, values(kcov=Hex(owner)))


@Rule(
    "A5",
    "areas for softirqs have one size, and none is lost",
    guaranteed_by="kcov_init()",
    consequence="Softirq sections get no area and record nothing, or write past the end of one.",
    needs=Part.TASKS | Part.CACHED_AREAS | Part.LINKS,
    features=(Feature.AREA_LISTS,),
    detail="There is one for each possible CPU; on PREEMPT_RT twice as many, or four more where "
    "there are at most three CPUs.",
)
def _check_pool(state: State) -> Violations:
    listed = [area for area in state.cached_areas if area.list == IRQ_LIST]
    used: dict[int, int | None] = {}
    sizes = Counter(area.size for area in listed if area.size is not None)
    is_unknown = False
    for task in state.tasks:
        session = task.session
        if not task.fields.kcov_softirq:
            continue
        if session.area is None:
            is_unknown = True
        elif session.area and session.kcov and session.is_tracing:
            used[session.area] = session.size
    for size in used.values():
        if size is not None:
            sizes[size] += 1
    usual = sizes.most_common(1)[0][0] if sizes else None
    for area in listed:
        if area.size not in (None, usual):
            yield area_violation(
                area.address,
                f"it is an area for softirqs with {area.size} words, but others have {usual}",
                values(size=area.size, others=usual),
            )
    if is_unknown or state.unread(Part.CACHED_AREAS | Part.TASKS) or not state.area_links:
        return
    cpus = len(state.kernel.cpus)
    made = cpus
    if state.kernel.is_rt:
        made = 2 * cpus if cpus >= 4 else cpus + 4
    found = len({area.address for area in listed} | used.keys())
    # Before kcov_init() there are no areas yet.
    if found and found != made:
        difference = f"{made - found} lost" if found < made else f"{found - made} too many"
        yield Violation(
            "list of irq areas",
            f"{len(listed)} areas for softirqs are free and {len(used)} are in use, but {made} "
            f"were allocated: {difference}",
            values(free=len(listed), used=len(used), made=made, possible_cpus=cpus),
            anybody=True,
            remote_lock=True,
        )


@_remote_rule(
    "A6",
    "free areas do not take much memory",
    severity=Severity.ADVICE,
    guaranteed_by="nothing: the cache is never trimmed",
    consequence="The memory stays allocated until the next boot.",
    needs=Part.CACHED_AREAS,
)
def _check_amount(state: State) -> Violations:
    sizes: Counter[int] = Counter()
    for area in state.cached_areas:
        if area.size is not None and area.list == TASK_LIST:
            sizes[area.size] += 1
    held = sum(state.kernel.bytes_of(size) * count for size, count in sizes.items())
    if held > _MUCH:
        named = name_some(f"{count} of {size} words" for size, count in sorted(sizes.items()))
        yield Violation(
            "list of task areas",
            f"free areas hold {held >> 20} MiB, which are never released",
            values(areas=sum(sizes.values()), sizes=named),
        )


@Rule(
    "A7",
    "a CPU's area for softirqs is never on the list of free areas",
    guaranteed_by="kcov_remote_stop()",
    consequence="A section in a task gets a CPU's area, into which softirqs write at the same "
    "time.",
    needs=Part.CACHED_AREAS | Part.SAVED,
    features=(Feature.IRQ_AREA_PER_CPU,),
)
def _check_cpu_area(state: State) -> Violations:
    irq = {area: cpu for cpu, area in state.irq_areas.items()}
    for area in state.cached_areas:
        if area.address in irq:
            cpu = irq[area.address]
            yield area_violation(
                area.address,
                f"it is the softirq area of CPU {cpu}, but a softirq section put it on the list of "
                f"free areas",
                values(cpu=cpu),
            )
