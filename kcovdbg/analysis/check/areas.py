# SPDX-License-Identifier: LGPL-2.1-or-later
"""A: what holds for the areas of sections."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

from kcovdbg.abi.era import Feature
from kcovdbg.analysis.check.evidence import PAGE, Evidence, Hex, name_kcov, name_some, name_task, round_up, values
from kcovdbg.analysis.check.rule import Rule, Violation
from kcovdbg.model.finding import Certainty, Severity
from kcovdbg.walk.areas import IRQ_LIST, TASK_LIST, CachedArea
from kcovdbg.walk.readings import plain_name

_CALLERS: Final = {TASK_LIST: "kcov_remote_start", IRQ_LIST: "kcov_init"}
# More of a cache than this is worth a word.
_MUCH: Final = 64 << 20


def _name(area: CachedArea) -> str:
    return f"area {area.address:#x}"


def check_links(evidence: Evidence) -> Iterator[Violation]:
    """A1."""
    for link in evidence.area_links:
        about = f"list of {link.list} areas"
        if link.problem is not None:
            yield Violation(
                about,
                f"it is broken: {link.problem}",
                values(link=Hex(link.address)),
                Certainty.UNSURE if link.is_missing else Certainty.CERTAIN,
                "the memory may be missing from the target" if link.is_missing else None,
                remote_lock=True,
            )
        elif link.back is not None and link.back != link.expected:
            yield Violation(
                about,
                f"{link.address:#x} leads back to {link.back:#x}, before it is {link.expected:#x}",
                values(area=Hex(link.address), prev=Hex(link.back), expected=Hex(link.expected)),
                remote_lock=True,
            )


def check_memory(evidence: Evidence) -> Iterator[Violation]:
    """A2."""
    if evidence.vmalloc is None:
        return
    for area in evidence.cached_areas:
        found = evidence.vmalloc.get(area.address)
        shown = values(area=Hex(area.address), size=area.size, list=area.list)
        if found is None:
            yield Violation(
                _name(area),
                f"it is on the list of {area.list} areas, and isn't the start of a vmalloc area",
                shown,
                remote_lock=True,
            )
        elif area.size is not None and round_up(found.size) < evidence.bytes_of(area.size):
            yield Violation(_name(area), f"it says {area.size} words, and has {evidence.words(found)}", shown, remote_lock=True)
        elif found.has_user_pages or (
            plain_name(found.caller) in _CALLERS.values() and plain_name(found.caller) != _CALLERS[area.list]
        ):
            yield Violation(
                _name(area),
                f"it is on the list of {area.list} areas, and was allocated by {found.caller}() for something else",
                (*shown, ("caller", found.caller)),
                remote_lock=True,
            )


def check_free(evidence: Evidence) -> Iterator[Violation]:
    """A3."""
    of_cpus = frozenset(evidence.irq_areas.values())
    users: dict[int, list[int]] = defaultdict(list)
    for session in evidence.sessions:
        users[session.area].append(session.task.fields.address)
    for area in evidence.cached_areas:
        user = evidence.areas_in_use.get(area.address)
        # The areas of CPUs are A7's.
        if user is not None and area.address not in of_cpus:
            yield Violation(
                _name(area),
                f"it is free, and {user} uses it: the next section gets it, too",
                values(area=Hex(area.address), list=area.list, used_by=user),
                tasks=tuple(users[area.address]),
                remote_lock=True,
            )


def check_once(evidence: Evidence) -> Iterator[Violation]:
    """A4."""
    counts = Counter(area.address for area in evidence.cached_areas)
    for address, count in counts.items():
        if count > 1:
            yield Violation(
                f"area {address:#x}", f"it is listed {count} times", values(area=Hex(address), count=count), remote_lock=True
            )
    users: dict[int, list[str]] = defaultdict(list)
    involved: dict[int, list[int]] = defaultdict(list)
    for session in evidence.sessions:
        if session.area and evidence.is_section(session):
            users[session.area].append(name_task(session.task.fields) + (" (saved)" if session.is_saved else ""))
            involved[session.area].append(session.task.fields.address)
    for address, names in users.items():
        if len(names) > 1:
            yield Violation(
                f"area {address:#x}",
                f"{len(names)} sections use it at once: {name_some(names)}",
                values(area=Hex(address)),
                tasks=tuple(involved[address]),
            )
        for kcov in evidence.objects_of_areas.get(address, ()):
            yield Violation(
                f"area {address:#x}",
                f"it is the buffer of {name_kcov(kcov)}, too",
                values(area=Hex(address), kcov=Hex(kcov)),
                tasks=tuple(involved[address]),
            )


def check_pool(evidence: Evidence) -> Iterator[Violation]:
    """A5."""
    listed = [area for area in evidence.cached_areas if area.list == IRQ_LIST]
    used = {
        session.area: session
        for session in evidence.sessions
        if not session.is_saved and session.is_tracing and evidence.in_softirq(session.task)
    }
    sizes = Counter(area.size for area in listed if area.size is not None)
    sizes.update(session.size for session in used.values())
    if len(sizes) > 1:
        usual = sizes.most_common(1)[0][0]
        for area in listed:
            if area.size not in (None, usual):
                yield Violation(
                    _name(area),
                    f"it is kept for softirqs with {area.size} words, others have {usual}",
                    values(area=Hex(area.address), size=area.size, others=usual),
                    remote_lock=True,
                )
    if evidence.census.lacks("areas", "tasks") or not evidence.area_links:
        return
    cpus = len(evidence.target.cpus())
    wanted = cpus if not evidence.is_rt else 2 * cpus if cpus >= 4 else cpus + 4
    there = len({area.address for area in listed} | used.keys())
    # Before kcov_init() there is none.
    if there and there != wanted:
        yield Violation(
            "list of irq areas",
            f"{len(listed)} areas for softirqs are free and {len(used)} used, {wanted} were made: "
            + (f"{wanted - there} lost" if there < wanted else f"{there - wanted} too many"),
            values(free=len(listed), used=len(used), made=wanted, possible_cpus=cpus),
            anybody=True,
            remote_lock=True,
        )


def check_amount(evidence: Evidence) -> Iterator[Violation]:
    """A6."""
    sizes: Counter[int] = Counter(
        area.size for area in evidence.cached_areas if area.size is not None and area.list == TASK_LIST
    )
    held = sum(evidence.bytes_of(size) * count for size, count in sizes.items())
    if held > _MUCH:
        named = name_some([f"{count} of {size} words" for size, count in sorted(sizes.items())])
        yield Violation(
            "list of task areas",
            f"{held >> 20} MiB are kept in free areas: they are never given back",
            values(areas=sum(sizes.values()), sizes=named),
        )


def check_cpu_area(evidence: Evidence) -> Iterator[Violation]:
    """A7."""
    irq = {area: cpu for cpu, area in evidence.irq_areas.items()}
    for area in evidence.cached_areas:
        if area.address in irq:
            yield Violation(
                _name(area),
                f"it is that of CPU {irq[area.address]} for softirqs, and on the list of free ones: a softirq put it back",
                values(area=Hex(area.address), cpu=irq[area.address]),
                remote_lock=True,
            )


def check_overlay(evidence: Evidence) -> Iterator[Violation]:
    """B8."""
    if evidence.vmalloc is None:
        return
    for area in evidence.cached_areas:
        found = evidence.vmalloc.get(area.address)
        if found is None or area.size is None:
            continue
        room = round_up(found.size)
        # A guard page that the kernel doesn't tell apart.
        wanted = max(round_up(evidence.bytes_of(area.size)), PAGE)
        if wanted < room - PAGE:
            yield Violation(
                _name(area),
                f"its list entry says {area.size} words, it was allocated for {evidence.words(found)}: somebody wrote over it",
                values(area=Hex(area.address), size=area.size, allocated=found.size),
                remote_lock=True,
            )


_REMOTE: Final = frozenset({Feature.REMOTE})
_ERAS: Final = "v5.5 and later"
_PUT: Final = "kcov_remote_area_put(), kcov_remote_area_get()"

RULES: Final = (
    Rule(
        "A1",
        "the lists of free areas are whole",
        check_links,
        "list_add(), list_del() under kcov_remote_lock",
        eras=_ERAS,
        needs=_REMOTE,
    ),
    Rule(
        "A2",
        "a free area is a vmalloc area of its size, made for what its list is for",
        check_memory,
        "kcov_remote_start(), kcov_init()",
        eras=_ERAS,
        needs=_REMOTE,
    ),
    Rule("A3", "a free area isn't used", check_free, _PUT, eras=_ERAS, needs=_REMOTE),
    Rule("A4", "an area is on one list once, or used by one section", check_once, _PUT, eras=_ERAS, needs=_REMOTE),
    Rule(
        "A5",
        "areas for softirqs are of one size, and none is lost",
        check_pool,
        "kcov_init()",
        eras="August 2026 and later",
        needs=frozenset({Feature.AREA_LISTS}),
        detail="One for each possible CPU; on PREEMPT_RT twice as many, or four more on up to three CPUs.",
    ),
    Rule(
        "A6",
        "free areas don't take much memory",
        check_amount,
        "nobody: the cache is never trimmed",
        Severity.ADVICE,
        eras=_ERAS,
        needs=_REMOTE,
    ),
    Rule(
        "A7",
        "a CPU's area for softirqs is never put on the list",
        check_cpu_area,
        "kcov_remote_stop()",
        eras="v5.8 to v7.2",
        needs=frozenset({Feature.IRQ_AREA_PER_CPU}),
    ),
)
OVERLAY: Final = Rule(
    "B8",
    "the first bytes of a free area are its list entry and its size, as it was allocated",
    check_overlay,
    "kcov_remote_area_put()",
    eras=_ERAS,
    needs=_REMOTE,
    detail="They are no count of records.",
)
