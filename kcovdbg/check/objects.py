# SPDX-License-Identifier: LGPL-2.1-or-later
"""K: invariants of ``struct kcov``."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from kcovdbg.abi.generations import Feature
from kcovdbg.model.finding import Certainty, Severity
from kcovdbg.model.kcov import Reference, name_kcov, name_some
from kcovdbg.model.rule import Hex, Rule, Violation, Violations, kcov_violation, values
from kcovdbg.model.state import Part, State

# A larger reference count is damaged.
_MAX_REFERENCES: Final = 1 << 20
_REMOTE: Final = (Feature.REMOTE,)
_OBJECTS_AND_TASKS: Final = Part.OBJECTS | Part.TASKS


def describe_reference(reference: Reference) -> str:
    """Return the name of a reference that the kernel counts."""
    pid = "?" if reference.pid is None else reference.pid
    if reference.kind == "task":
        return f"task {pid} that it is enabled for"
    if reference.kind == "section":
        return f"section in task {pid}"
    if reference.kind == "saved":
        return f"interrupted section of task {pid}"
    if reference.fd is not None:
        return f"descriptor {pid}/{reference.fd}"
    if reference.kind == "vma":
        return f"mapping of process {pid}"
    return f"file {reference.file or 0:#x}"


@Rule(
    "K1",
    "an object's refcount is the number of its open files, plus one if a task has it enabled, "
    "plus its remote sections",
    guaranteed_by="kcov_get(), kcov_put()",
    consequence="Too low: the object is freed while it is in use. Too high: object and buffer are "
    "never freed.",
    needs=_OBJECTS_AND_TASKS | Part.FILES | Part.SAVED,
    about_leaks=True,
    detail=(
        "Duplicated and inherited descriptors and all mappings share one file, which counts once. "
        "(In unmerged kernels each mapping may count.) Handles hold no reference. An interrupted "
        "section keeps its own."
    ),
)
def _check_references(state: State) -> Violations:
    # If each mapping holds a reference and mappings cannot be listed, the found number is too low.
    lacks_mappings = state.kernel.counts_mappings and not state.lists_vmas
    for kcov, fields in state.readable:
        if fields.refcount is None or fields.task is None:
            continue
        refcount, found = fields.refcount, kcov.counted
        if refcount == found and found >= 1:
            continue
        if lacks_mappings and found < refcount <= _MAX_REFERENCES:
            continue
        if found > refcount and kcov.count_references("fd", "vma") > refcount:
            # X1 reports this.
            continue
        names = [describe_reference(reference) for reference in kcov.references if reference.counts]
        message = f"refcount is {refcount}"
        if 1 <= refcount <= _MAX_REFERENCES:
            were = "reference was" if found == 1 else "references were"
            message += f", but {found} {were} found: "
            leaked = refcount - found
            if leaked < 0:
                message += "it will be freed while in use"
            elif leaked == 1:
                message += "1 is leaked, and the buffer is never freed"
            else:
                message += f"{leaked} are leaked, and the buffer is never freed"
        yield kcov_violation(
            fields.address,
            message,
            values(refcount=refcount, found=found, references=name_some(names) or "none"),
            *state.doubt(_OBJECTS_AND_TASKS | Part.FILES | Part.SAVED),
            anybody=True,
            most=max(1, abs(refcount - found)),
        )


@Rule(
    "K2",
    "an object's mode is a mode of its kernel, and never KCOV_MODE_REMOTE",
    guaranteed_by="kcov_get_mode()",
    consequence="KCOV_ENABLE fails with EINVAL, and a task that takes the mode over records "
    "nothing.",
    needs=Part.OBJECTS,
)
def _check_mode(state: State) -> Violations:
    kernel = state.kernel
    if not kernel.modes:
        return
    legal = kernel.mode_numbers.values - kernel.modes_called("MODE_REMOTE", "MODE_INVALID")
    for _, fields in state.readable:
        if fields.mode is not None and kernel.mode_numbers.split(fields.mode)[0] not in legal:
            message = f"an object cannot be in mode {fields.mode:#x}"
            yield kcov_violation(fields.address, message, values(mode=Hex(fields.mode)))


@Rule(
    "K3",
    "an object has a size exactly when it has a mode, and a size that KCOV_INIT_TRACE accepts",
    guaranteed_by="kcov_ioctl() (KCOV_INIT_TRACE)",
    consequence="The bounds of the buffer are wrong: records are lost, or written behind it.",
    needs=Part.OBJECTS,
)
def _check_size(state: State) -> Violations:
    limit = state.kernel.size_limit
    for kcov, fields in state.readable:
        if fields.mode is None or fields.size is None:
            continue
        mode, _ = state.kernel.mode_numbers.split(fields.mode)
        if bool(mode) != bool(fields.size):
            message = "it has a mode but no size" if mode else "it has a size but no mode"
        elif mode and not 2 <= fields.size <= limit:
            message = f"size is {fields.size}, but KCOV_INIT_TRACE accepts 2 to {limit}"
        else:
            continue
        yield kcov_violation(fields.address, message, values(mode=kcov.mode, size=fields.size))


@Rule(
    "K4",
    "an initialized object has a buffer: a vmalloc area for user space that is large enough "
    "for its size",
    guaranteed_by="kcov_ioctl() (KCOV_INIT_TRACE), up to v5.17 kcov_mmap()",
    consequence="Recording faults, or overwrites what is behind the buffer.",
    needs=Part.OBJECTS | Part.VMALLOC,
    detail="Up to v5.17 the first mmap() allocates the buffer: before it, having none is legal.",
)
def _check_area(state: State) -> Violations:
    always = _allocates_at_once(state)
    for kcov, fields in state.readable:
        if fields.mode is None or fields.area is None or fields.size is None:
            continue
        mode, _ = state.kernel.mode_numbers.split(fields.mode)
        problem = None
        if not mode and fields.area:
            problem = "it has a buffer but was never initialized"
        elif fields.area:
            problem = _find_problem(state, fields.area, fields.size)
        elif mode and always:
            problem = "it is initialized but has no buffer"
        if problem is not None:
            shown = values(mode=kcov.mode, size=fields.size, area=Hex(fields.area))
            yield kcov_violation(fields.address, problem, shown)


def _allocates_at_once(state: State) -> bool:
    """Return whether KCOV_INIT_TRACE allocates the buffer (v5.18 and later), and not mmap().

    The allocators of existing buffers show that. Types do not, because stable kernels up to v5.15
    took later changes of the structures.
    """
    if state.kernel.has(Feature.OWNER_MEMBER):
        return True
    return any(area.allocator == "kcov_ioctl" for area in state.kcov_areas)


def _find_problem(state: State, start: int, size: int) -> str | None:
    """Return why a vmalloc area cannot be a buffer of a size in words, None if it can."""
    if state.vmalloc is None:
        return None
    area, wanted = state.vmalloc.get(start), state.kernel.bytes_of(size)
    about = f"its buffer {start:#x} is"
    if area is None:
        return f"{about} not the start of a vmalloc area"
    if state.kernel.page_align(area.size) < state.kernel.page_align(wanted):
        return f"{about} a vmalloc area of {area.size} bytes, but {wanted} are needed"
    if area.has_user_pages:
        return None
    return (
        f"{about} a vmalloc area that {area.caller}() allocated for the kernel, not for user space"
    )


@Rule(
    "K5",
    "an object is in a tracing mode exactly while a task has it enabled",
    guaranteed_by="kcov_ioctl() (KCOV_ENABLE, KCOV_REMOTE_ENABLE), kcov_reset()",
    consequence="KCOV_ENABLE fails with EBUSY or EINVAL although no task collects.",
    needs=Part.OBJECTS,
    detail="Up to v4.14 the mode stays after KCOV_DISABLE.",
)
def _check_enabled(state: State) -> Violations:
    keeps_mode = not state.kernel.has(Feature.COMPARISONS)
    for kcov, fields in state.readable:
        if fields.task is None or fields.mode is None:
            continue
        if fields.task and not kcov.is_enabled:
            message = f"it is enabled for a task, but its mode is {kcov.mode}"
        elif fields.task and keeps_mode and not fields.area:
            message = "it is enabled for a task, but has no buffer"
        elif not fields.task and kcov.is_enabled and not keeps_mode:
            message = f"its mode is {kcov.mode}, but no task has it enabled"
        else:
            continue
        yield kcov_violation(fields.address, message, values(mode=kcov.mode, t=Hex(fields.task)))


@Rule(
    "K6",
    "the task that an object is enabled for exists",
    guaranteed_by="kcov_task_exit()",
    consequence="The object can be neither disabled nor enabled again, and its handles stay "
    "registered.",
    needs=_OBJECTS_AND_TASKS,
)
def _check_owner(state: State) -> Violations:
    for _, fields in state.readable:
        if fields.task and fields.task not in state.task_by_address:
            message = f"it is enabled for {fields.task:#x}, which is not a task, or no longer one"
            yield kcov_violation(
                fields.address, message, values(t=Hex(fields.task)), *state.doubt(Part.TASKS)
            )


@Rule(
    "K7",
    "an object takes remote coverage only while it is enabled, and has handles and a "
    "remote_size only then",
    guaranteed_by="kcov_ioctl() (KCOV_REMOTE_ENABLE), kcov_remote_reset()",
    consequence=(
        "Sections under its handles record for nobody, or its handles stay registered: registering "
        "them again fails with EEXIST."
    ),
    needs=Part.OBJECTS | Part.REMOTE,
    features=_REMOTE,
)
def _check_remote(state: State) -> Violations:
    for kcov, fields in state.readable:
        if None in (fields.remote, fields.task, fields.mode):
            continue
        handles = state.handles_of.get(fields.address, ())
        if fields.remote and not (fields.task and kcov.is_enabled):
            message = "it takes remote coverage, but is not enabled"
        elif not fields.remote and fields.remote_size:
            message = f"remote_size is {fields.remote_size}, but it takes no remote coverage"
        elif not fields.remote and handles:
            message = f"{len(handles)} handles lead to it, but it takes no remote coverage"
        else:
            continue
        shown = values(
            remote=fields.remote,
            t=Hex(fields.task or 0),
            mode=kcov.mode,
            remote_size=fields.remote_size,
            handles=len(handles),
        )
        is_listed = not fields.remote and bool(handles)
        yield kcov_violation(fields.address, message, shown, remote_lock=is_listed)


@Rule(
    "K8",
    "an object's sequence is at least 1",
    severity=Severity.WARNING,
    guaranteed_by="kcov_open(), kcov_reset()",
    consequence="A section may take an ended session for the current one, and merge its coverage "
    "into it.",
    needs=Part.OBJECTS,
    features=_REMOTE,
)
def _check_sequence(state: State) -> Violations:
    for _, fields in state.readable:
        if fields.sequence is not None and fields.sequence < 1:
            message = f"sequence is {fields.sequence}, but it starts at 1 and increases"
            doubt = Certainty.LIKELY, "it wraps after 2147483647 sessions"
            yield kcov_violation(fields.address, message, values(sequence=fields.sequence), *doubt)


@Rule(
    "K9",
    "areas for remote coverage have a size",
    severity=Severity.ADVICE,
    guaranteed_by="nothing: KCOV_REMOTE_ENABLE accepts 0",
    consequence="Sections in tasks record nothing, and the kernel warns of an allocation of no "
    "bytes.",
    needs=Part.OBJECTS,
    features=_REMOTE,
)
def _check_remote_size(state: State) -> Violations:
    for _, fields in state.readable:
        if fields.remote and fields.remote_size == 0:
            message = (
                "its areas for remote coverage have no size: the coverage of task sections is "
                "lost, and the kernel warns"
            )
            yield kcov_violation(fields.address, message, values(remote_size=0))


@Rule(
    "K10",
    "an object's buffer belongs to no other object, is on no free list, and is no CPU's area",
    guaranteed_by="vmalloc_user(), kcov_remote_area_put()",
    consequence=(
        "Two users write into the same memory: records are mixed, and when one frees it the "
        "other goes on in freed memory."
    ),
    needs=Part.OBJECTS | Part.CACHED_AREAS | Part.SAVED,
)
def _check_sharing(state: State) -> Violations:
    by_area: dict[int, list[int]] = defaultdict(list)
    for _, fields in state.readable:
        if fields.area:
            by_area[fields.area].append(fields.address)
    list_of = {area.address: area.list for area in state.cached_areas}
    cpu_of = {area: cpu for cpu, area in state.irq_areas.items()}
    for area, owners in by_area.items():
        about, shown = name_kcov(owners[0]), values(area=Hex(area))
        if len(owners) > 1:
            named = name_some(map(hex, owners))
            message = f"its buffer {area:#x} also belongs to other objects"
            yield Violation(about, message, (*shown, *values(kcovs=named)), kcovs=tuple(owners))
        if area in list_of:
            message = f"its buffer {area:#x} is on the list of free {list_of[area]} areas"
            yield Violation(about, message, shown, kcovs=tuple(owners), remote_lock=True)
        if area in cpu_of:
            message = f"its buffer {area:#x} is the softirq area of CPU {cpu_of[area]}"
            yield Violation(about, message, shown, kcovs=tuple(owners))


@Rule(
    "K11",
    "exactly one open file leads to an object, and every file of KCOV leads to an object",
    guaranteed_by="kcov_open(), kcov_close()",
    consequence="A file without an object crashes the kernel when it is used; an object with two "
    "files is freed too early.",
    needs=Part.OBJECTS,
)
def _check_file(state: State) -> Violations:
    for kcov, fields in state.readable:
        files = {reference.file for reference in kcov.references if reference.file}
        if len(files) > 1:
            named = name_some(map(hex, sorted(files)))
            yield kcov_violation(
                fields.address,
                f"{len(files)} open files lead to it, but each open() creates an object",
                values(files=named),
            )
    for address, kcov in state.objects.items():
        if kcov.fields is not None or state.kernel.is_pointer(address):
            continue
        holders = [
            f"{reference.pid}/{reference.fd}"
            for reference in kcov.references
            if reference.kind in ("fd", "vma")
        ]
        if holders:
            message = (
                f"the file of descriptor {name_some(holders)} leads to {address:#x}, which is not "
                f"an object"
            )
            yield Violation(name_kcov(address), message, values(private_data=Hex(address)))
