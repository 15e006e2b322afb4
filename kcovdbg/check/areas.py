# SPDX-License-Identifier: LGPL-2.1-or-later
"""A: invariants of the areas that remote and softirq sections collect into."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from kcovdbg.abi.generations import Feature
from kcovdbg.check.handles import check_link
from kcovdbg.model.finding import Severity
from kcovdbg.model.kcov import name_kcov, name_some, name_task
from kcovdbg.model.remote import AREA_ALLOCATORS, IRQ_LIST, TASK_LIST
from kcovdbg.model.rule import Hex, Rule, Violation, Violations, area_violation, values
from kcovdbg.model.state import Part, State
from kcovdbg.model.task import Session

# Free areas of more bytes are reported.
_MUCH_MEMORY: Final = 64 << 20
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
        shown = values(size=area.size, list=area.list)
        listed = f"it is on the list of {area.list} areas"
        memory = state.vmalloc.get(area.address)
        if memory is None:
            message = f"{listed}, but is not the start of a vmalloc area"
            yield area_violation(area.address, message, shown)
            continue
        words = state.kernel.words_in(memory)
        # An unknown allocator contradicts no list.
        right_list = AREA_ALLOCATORS.get(memory.allocator, area.list)
        if area.size is not None and area.size > words:
            message = f"its list entry says {area.size} words, but it has {words}"
            yield area_violation(area.address, message, shown)
        elif memory.has_user_pages or right_list != area.list:
            message = f"{listed}, but {memory.caller}() allocated it for something else"
            shown += (("caller", memory.caller),)
            yield area_violation(area.address, message, shown)


@_remote_rule(
    "A3",
    "a free area is not in use",
    guaranteed_by=_PUT,
    consequence="Two sections, or a section and user space, write into the same memory.",
    needs=Part.TASKS | Part.CACHED_AREAS | Part.SAVED,
)
def _check_free(state: State) -> Violations:
    # A7 checks the areas of CPUs.
    of_cpus = frozenset(state.irq_areas.values())
    users = _find_users(session for session in state.sessions if session.is_tracing)
    for area in state.cached_areas:
        sessions = users.get(area.address, ())
        if not sessions or area.address in of_cpus:
            continue
        kind = "saved session" if sessions[-1].is_saved else "session"
        user = f"the {kind} of {_name_user(state, sessions[-1])}"
        yield area_violation(
            area.address,
            f"it is free, but {user} uses it: the next section will use it at the same time",
            values(list=area.list, used_by=user),
            tasks=_tasks_of(sessions),
        )


@_remote_rule(
    "A4",
    "an area is on one list once, or in use by one section",
    guaranteed_by=_PUT,
    consequence="Two sections get the same area and mix their records.",
    needs=Part.TASKS | Part.OBJECTS | Part.CACHED_AREAS,
)
def _check_once(state: State) -> Violations:
    times_listed = Counter(area.address for area in state.cached_areas)
    for address, count in times_listed.items():
        if count > 1:
            yield area_violation(address, f"it is listed {count} times", values(count=count))
    users = _find_users(session for session in state.sessions if session.is_section)
    objects_of: dict[int, list[int]] = defaultdict(list)
    for kcov in state.kcovs.values():
        objects_of[kcov.area or 0].append(kcov.address)
    for address, sessions in users.items():
        report = partial(area_violation, address, tasks=_tasks_of(sessions), remote_lock=False)
        if len(sessions) > 1:
            names: list[str] = []
            for session in sessions:
                name = _name_user(state, session)
                names.append(f"{name} (saved)" if session.is_saved else name)
            yield report(f"{len(sessions)} sections use it at once: {name_some(names)}")
        for kcov_address in objects_of.get(address, ()):
            message = f"it is also the buffer of {name_kcov(kcov_address)}"
            yield report(message, values(kcov=Hex(kcov_address)))


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
    free = [area for area in state.cached_areas if area.list == IRQ_LIST]
    in_softirq = [task.session for task in state.tasks if task.fields.kcov_softirq]
    used: dict[int, int | None] = {}
    for session in in_softirq:
        if session.area and session.kcov and session.is_tracing:
            used[session.area] = session.size
    sizes = Counter([*(area.size for area in free), *used.values()])
    del sizes[None]
    usual = sizes.most_common(1)[0][0] if sizes else None
    for area in free:
        if area.size not in (None, usual):
            yield area_violation(
                area.address,
                f"it is an area for softirqs with {area.size} words, but others have {usual}",
                values(size=area.size, others=usual),
            )
    is_unread = state.unread(Part.CACHED_AREAS | Part.TASKS) or not state.area_links
    if is_unread or any(session.area is None for session in in_softirq):
        return
    cpus = len(state.kernel.cpus)
    made = cpus
    if state.kernel.is_rt:
        made = 2 * cpus if cpus >= 4 else cpus + 4
    found = len({area.address for area in free} | used.keys())
    # Before kcov_init() there are no areas yet.
    if found and found != made:
        difference = f"{made - found} lost" if found < made else f"{found - made} too many"
        yield Violation(
            "list of irq areas",
            f"{len(free)} areas for softirqs are free and {len(used)} are in use, but {made} "
            f"were allocated: {difference}",
            values(free=len(free), used=len(used), made=made, possible_cpus=cpus),
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
    if held > _MUCH_MEMORY:
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
    cpu_of = {area: cpu for cpu, area in state.irq_areas.items()}
    for area in state.cached_areas:
        cpu = cpu_of.get(area.address)
        if cpu is not None:
            yield area_violation(
                area.address,
                f"it is the softirq area of CPU {cpu}, but a softirq section put it on the list of "
                f"free areas",
                values(cpu=cpu),
            )
