# SPDX-License-Identifier: LGPL-2.1-or-later
"""X: what holds between the parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kcovdbg.abi.era import Feature
from kcovdbg.analysis.check.evidence import Evidence, Hex, name_kcov, name_task, values
from kcovdbg.analysis.check.rule import Rule, Violation
from kcovdbg.walk.objects import find_map_areas

# Of an object of the January 2025 series: for addresses and for edges a buffer and entries.
_AREAS_OF_MAPS: Final = 4
_ROADS: Final = ("tasks", "per-cpu", "files", "slab", "vmalloc", "remote", "areas")


def check_holders(evidence: Evidence) -> Iterator[Violation]:
    """X1."""
    for kcov in evidence.objects.values():
        fields = kcov.fields
        if fields is None or fields.refcount is None:
            continue
        holders = [reference for reference in kcov.references if reference.kind in ("fd", "vma") and reference.counts]
        if fields.refcount < len(holders):
            what = "files and mappings" if evidence.has(Feature.VMA_REFERENCES) else "files"
            yield Violation(
                name_kcov(fields.address),
                f"refcount is {fields.refcount}, and {len(holders)} {what} alone hold it: it is used after its end, or will be",
                values(refcount=fields.refcount, holders=len(holders)),
                kcovs=(fields.address,),
                anybody=True,
            )


def check_leaks(evidence: Evidence) -> Iterator[Violation]:
    """X2."""
    if evidence.vmalloc is None:
        return
    certainty, reason = evidence.doubt(*_ROADS)
    claimed = {kcov.fields.area for kcov in evidence.objects.values() if kcov.fields is not None}
    claimed.update(session.area for session in evidence.sessions)
    maps_known = True
    if evidence.has(Feature.UNIQUE_MAPS):
        # These have buffers for edges and memory for entries, too.
        for address, kcov in evidence.objects.items():
            found_areas = find_map_areas(evidence.target, address)
            claimed |= found_areas
            sized = kcov.fields is None or kcov.fields.size is None or kcov.fields.size > 0
            maps_known = maps_known and (len(found_areas) == _AREAS_OF_MAPS or not sized)
    if maps_known:
        for area in evidence.census.user_buffers:
            if area.start not in claimed:
                yield Violation(
                    f"buffer {area.start:#x}",
                    f"{area.caller}() allocated it, {area.size} bytes, and no object refers to it: it is leaked",
                    values(area=Hex(area.start), size=area.size, caller=area.caller),
                    certainty,
                    reason,
                    anybody=True,
                )
    for found in evidence.census.areas:
        if found.state == "unclaimed" and found.address not in claimed:
            yield Violation(
                f"area {found.address:#x}",
                f"it was made for {'softirq' if found.list == 'irq' else 'remote'} sections, {found.size} words, is on no list "
                "and used by no section: it is leaked",
                values(area=Hex(found.address), size=found.size, list=found.list),
                certainty,
                reason,
                remote_lock=True,
                anybody=True,
            )


def check_forgotten(evidence: Evidence) -> Iterator[Violation]:
    """X3."""
    for kcov in evidence.objects.values():
        fields = kcov.fields
        if fields is None or "remote" not in kcov.found_by:
            continue
        others = set(kcov.found_by) - {"remote"}
        alive = bool(fields.task) and fields.task in evidence.task_by_address
        if others or alive:
            continue
        certainty, reason = evidence.doubt("tasks", "files", "per-cpu")
        yield Violation(
            name_kcov(fields.address),
            f"only its {len(evidence.entries_of.get(fields.address, ()))} handles lead to it, which nobody can take back",
            values(t=Hex(fields.task or 0), refcount=fields.refcount),
            certainty,
            reason,
            kcovs=(fields.address,),
            remote_lock=True,
            anybody=True,
        )


def check_claims(evidence: Evidence) -> Iterator[Violation]:
    """X4."""
    for address, sessions in evidence.sessions_of.items():
        kcov = evidence.kcov(address)
        if kcov is None:
            continue
        local = {session.task.fields.address: session.task for session in sessions if evidence.is_local(session)}
        if len(local) > 1:
            named = ", ".join(name_task(task.fields) for task in local.values())
            yield Violation(
                name_kcov(address),
                f"{len(local)} tasks trace themselves into its buffer: {named}",
                values(tasks=named, t=Hex(kcov.task or 0)),
                kcovs=(address,),
                tasks=tuple(local),
            )


RULES: Final = (
    Rule(
        "X1",
        "the files that lead to an object are covered by its refcount",
        check_holders,
        "kcov_get(), kcov_put()",
        detail="In the posting of 2016 each mapping holds a reference, too; later mappings share their file's.",
    ),
    Rule(
        "X2",
        "every buffer that KCOV allocated belongs to an object, a section, a list or a CPU",
        check_leaks,
        "kcov_put(), kcov_remote_stop()",
        detail="Inside KCOV's functions there is a moment in which nothing refers to one yet: said as transient.",
    ),
    Rule(
        "X3",
        "handles aren't all that leads to an object",
        check_forgotten,
        "kcov_remote_reset()",
        eras="v5.5 and later",
        needs=frozenset({Feature.REMOTE}),
    ),
    Rule("X4", "one task traces itself into an object's buffer", check_claims, "kcov_ioctl() (KCOV_ENABLE)"),
)
