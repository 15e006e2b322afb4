# SPDX-License-Identifier: LGPL-2.1-or-later
"""X: invariants that span objects, tasks, files and memory."""

from __future__ import annotations

from collections import Counter
from typing import Final

from kcovdbg.abi.generations import Feature
from kcovdbg.abi.mode import bit_numbers
from kcovdbg.model.finding import Severity
from kcovdbg.model.kcov import amount_text, name_some, name_task
from kcovdbg.model.remote import IRQ_LIST
from kcovdbg.model.rule import (
    Hex,
    Rule,
    Violation,
    Violations,
    area_violation,
    kcov_violation,
    values,
)
from kcovdbg.model.state import Part, Source, State
from kcovdbg.series.table import user_allocators

_USERS: Final = Part.OBJECTS | Part.TASKS | Part.SAVED | Part.FILES | Part.REMOTE


@Rule(
    "X1",
    "an object's refcount covers the files that lead to it",
    guaranteed_by="kcov_get(), kcov_put()",
    consequence="The object is freed while a file leads to it: the next use of the file reads "
    "freed memory.",
    needs=Part.OBJECTS,
    detail="In kernels that count mappings each holds a reference of its own; in merged kernels it "
    "shares the reference of its file.",
)
def _check_holders(state: State) -> Violations:
    what = "files and mappings" if state.kernel.counts_mappings else "files"
    for kcov, fields in state.readable:
        holders = kcov.count_references("fd", "vma")
        if fields.refcount is not None and fields.refcount < holders:
            yield kcov_violation(
                fields.address,
                f"refcount is {fields.refcount}, but {holders} {what} hold it: it is used "
                f"after it was freed, or will be",
                values(refcount=fields.refcount, holders=holders),
                anybody=True,
            )


@Rule(
    "X2",
    "every buffer that KCOV allocated belongs to an object, a section, a list or a CPU",
    guaranteed_by="kcov_put(), kcov_remote_stop()",
    consequence="The memory stays allocated until the next boot.",
    needs=_USERS | Part.VMALLOC | Part.CACHED_AREAS | Part.AREAS,
    detail=(
        "Inside KCOV's functions a buffer may be unreferenced for a moment, which is reported as "
        "transient. Files in flight are found in their slab cache; where that cannot be searched, "
        "leaks are reported with --all only."
    ),
)
def _check_leaks(state: State) -> Violations:
    if state.vmalloc is None:
        return
    doubt = state.doubt(_USERS | Part.AREAS)
    # Only the slab cache shows a file in flight over a socket, which is legal.
    severity = Severity.ADVICE if state.lacks(Source.SLAB) else None
    claimed = {session.area for session in state.sessions}
    for kcov, _ in state.readable:
        claimed |= kcov.own_areas
    knows_all = all(kcov.knows_own_areas for kcov, _ in state.readable)
    allocators = user_allocators()
    for area in state.kcov_areas:
        if knows_all and area.allocator in allocators and area.start not in claimed:
            yield Violation(
                f"buffer {area.start:#x}",
                f"{area.caller}() allocated it with {area.size} bytes, but no object refers to "
                f"it: it is leaked",
                values(area=Hex(area.start), size=area.size, caller=area.caller),
                *doubt,
                anybody=True,
                severity=severity,
            )
    for found in state.areas:
        if found.state == "unclaimed" and found.address not in claimed:
            sections = "softirq" if found.list == IRQ_LIST else "remote"
            yield area_violation(
                found.address,
                f"it was allocated for {sections} sections with {found.size} words, but is on no "
                "list and in no section: it is leaked",
                values(size=found.size, list=found.list),
                certainty=doubt[0],
                reason=doubt[1],
                anybody=True,
            )


@Rule(
    "X3",
    "an object is reachable by more than its handles",
    guaranteed_by="kcov_remote_reset()",
    consequence="Nothing ever releases the object: its buffer stays allocated, and its handles "
    "fail with EEXIST for others.",
    needs=_USERS,
    features=(Feature.REMOTE,),
)
def _check_forgotten(state: State) -> Violations:
    for kcov, fields in state.readable:
        has_owner = fields.task and fields.task in state.task_by_address
        if has_owner or set(kcov.found_by) != {"remote"}:
            continue
        yield kcov_violation(
            fields.address,
            f"only its {len(state.handles_of.get(fields.address, ()))} handles lead to it, "
            f"which nobody can unregister",
            values(t=Hex(fields.task or 0), refcount=fields.refcount),
            *state.doubt(_USERS),
            remote_lock=True,
            anybody=True,
        )


@Rule(
    "X4",
    "only one task traces itself into an object's buffer",
    guaranteed_by="kcov_ioctl() (KCOV_ENABLE)",
    consequence="Records of the tasks are mixed, and some are lost: both write the same count.",
    needs=Part.OBJECTS | Part.TASKS,
)
def _check_claims(state: State) -> Violations:
    for address, sessions in state.sessions_of.items():
        kcov = state.kcovs.get(address)
        local = dict.fromkeys(
            session.task for session in sessions if session.is_local and session.task is not None
        )
        if kcov is not None and len(local) > 1:
            named = name_some(name_task(state.task_by_address[task]) for task in local)
            yield kcov_violation(
                address,
                f"{len(local)} tasks trace themselves into its buffer: {named}",
                values(tasks=named, t=Hex(kcov.task or 0)),
                tasks=tuple(local),
            )


@Rule(
    "X5",
    "a mapping shows no more than its object's buffer, and exists only once the buffer has a size",
    guaranteed_by="kcov_mmap()",
    consequence="User space reads memory that is no part of the buffer, or faults.",
    needs=Part.OBJECTS | Part.FILES,
    detail="munmap() may leave parts of a mapping, which start elsewhere.",
)
def _check_mappings(state: State) -> Violations:
    for file in state.files:
        kcov = state.kcovs.get(file.kcov)
        if file.start is None or file.end is None or file.pgoff is None:
            continue
        if kcov is None or kcov.size is None:
            continue
        size = state.kernel.bytes_of(kcov.size)
        end = file.pgoff * state.kernel.page_size + file.end - file.start
        if not state.kernel.mode_numbers.split(kcov.mode or 0)[0]:
            message = f"process {file.pid} maps it, but it was never initialized"
        elif end > state.kernel.buffers * state.kernel.page_align(size):
            message = f"process {file.pid} maps it up to byte {end}, but its buffer has {size}"
        else:
            continue
        shown = values(
            start=Hex(file.start), end=Hex(file.end), pgoff=file.pgoff, size=kcov.size, bytes=size
        )
        yield kcov_violation(file.kcov, message, shown)


@Rule(
    "X6",
    "each bit of a mode is part of a known mode, or a known flag",
    severity=Severity.INFO,
    guaranteed_by="nothing: kernels that kcovdbg does not know may have flags of their own",
    consequence="What the bit changes is unknown: for instance the format of records.",
    needs=Part.OBJECTS | Part.TASKS,
    detail=(
        "kcov_start() copies an object's mode. A bit that an object has and its session lacks may "
        "be damage. Records of a buffer whose mode has such a bit are not checked."
    ),
)
def _check_mode_bits(state: State) -> Violations:
    of_tasks: Counter[int] = Counter()
    for task in state.tasks:
        unknown = task.session.unknown_bits
        if task.interrupted is not None:
            unknown |= task.interrupted.unknown_bits
        of_tasks.update(bit_numbers(unknown))
    of_objects: Counter[int] = Counter()
    for _, fields in state.readable:
        of_objects.update(bit_numbers(state.kernel.mode_numbers.split(fields.mode or 0)[1]))
    for number in sorted({*of_tasks, *of_objects}):
        tasks, objects = of_tasks[number], of_objects[number]
        where: list[str] = []
        for count, what in ((tasks, "task"), (objects, "object")):
            if count:
                where.append(amount_text(count, what))
        message = f"unknown mode bit {number}, in {' and '.join(where)}"
        if tasks and objects:
            message += " alike"
        shown = values(bit=Hex(1 << number), tasks=tasks, objects=objects)
        yield Violation("modes", message, shown)
