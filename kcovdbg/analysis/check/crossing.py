# SPDX-License-Identifier: LGPL-2.1-or-later
"""X: what holds between the parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kcovdbg.abi.era import Feature
from kcovdbg.analysis.check.evidence import PAGE, Evidence, Hex, name_kcov, name_some, name_task, round_up, values
from kcovdbg.analysis.check.rule import Rule, Violation
from kcovdbg.model.finding import Severity
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
    # A file that is in flight over a socket is legal, and found in its slab cache only.
    severity = Severity.ADVICE if evidence.census.lacks("slab") else None
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
                    severity=severity,
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
            named = name_some([name_task(task.fields) for task in local.values()])
            yield Violation(
                name_kcov(address),
                f"{len(local)} tasks trace themselves into its buffer: {named}",
                values(tasks=named, t=Hex(kcov.task or 0)),
                kcovs=(address,),
                tasks=tuple(local),
            )


def check_mappings(evidence: Evidence) -> Iterator[Violation]:
    """X5."""
    # The series of 2025 that keeps maps of what it saw has a second window of the same length behind the buffer.
    windows = 2 if evidence.has(Feature.UNIQUE_MAPS) else 1
    for file in evidence.census.files:
        kcov = evidence.kcov(file.kcov)
        if file.start is None or file.end is None or file.pgoff is None or kcov is None or kcov.size is None:
            continue
        shown = values(
            start=Hex(file.start), end=Hex(file.end), pgoff=file.pgoff, size=kcov.size, bytes=evidence.bytes_of(kcov.size)
        )
        end = file.pgoff * PAGE + file.end - file.start
        if not kcov.mode:
            message = f"process {file.pid} maps it, and it was never initialised"
        elif end > windows * round_up(evidence.bytes_of(kcov.size)):
            message = f"process {file.pid} maps it up to byte {end}, its buffer has {evidence.bytes_of(kcov.size)}"
        else:
            continue
        yield Violation(name_kcov(file.kcov), message, shown, kcovs=(file.kcov,))


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
        detail=(
            "Inside KCOV's functions there is a moment in which nothing refers to one yet: said as transient. Files in flight "
            "are found in their slab cache; where that can't be searched it is said with --all only."
        ),
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
    Rule(
        "X5",
        "a mapping shows no more than its object's buffer, and none is there before the buffer has a size",
        check_mappings,
        "kcov_mmap()",
        excludes=frozenset({Feature.TEXT_BITMAP}),
        detail="munmap() may leave parts of a mapping, which begin elsewhere.",
    ),
)
