# SPDX-License-Identifier: LGPL-2.1-or-later
"""K: what holds for every ``struct kcov``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from kcovdbg.abi.era import Feature
from kcovdbg.analysis.check.evidence import Evidence, Hex, name_kcov, name_some, round_up, values
from kcovdbg.analysis.check.rule import Rule, Violation
from kcovdbg.model.finding import Certainty, Severity
from kcovdbg.model.kcov import Kcov, KcovFields, Reference
from kcovdbg.walk.readings import plain_name

_MAX_REFERENCES: Final = 1 << 20


def _fields(evidence: Evidence) -> Iterator[KcovFields]:
    for kcov in evidence.objects.values():
        assert kcov.fields is not None
        yield kcov.fields


def describe_reference(reference: Reference) -> str:
    """Name a reference that the kernel counts."""
    pid = "?" if reference.pid is None else reference.pid
    if reference.kind == "task":
        return f"task {pid} that it is enabled for"
    if reference.kind == "section":
        return f"section in task {pid}"
    if reference.kind == "saved":
        return f"interrupted section of task {pid}"
    where = f"descriptor {pid}/{reference.fd}" if reference.fd is not None else f"mapping of process {pid}"
    return where if reference.kind == "vma" or reference.fd is not None else f"file {reference.file or 0:#x}"


def count_references(evidence: Evidence, kcov: Kcov) -> int:
    """Count the references to an object that were found.

    A census counts them by what collects now. Where fields disagree it can't tell that, and what is one reference then is
    decided here: of each file one, of the task that it is enabled for one, and one of each section.
    """
    assert kcov.fields is not None
    counted = sum(reference.counts for reference in kcov.references if reference.kind in ("fd", "vma", "task"))
    sessions = evidence.sessions_of.get(kcov.fields.address, ())
    return counted + sum(evidence.is_section(session) for session in sessions)


def check_references(evidence: Evidence) -> Iterator[Violation]:
    """K1."""
    for kcov in evidence.objects.values():
        fields = kcov.fields
        if fields is None or fields.refcount is None or fields.task is None:
            continue
        found = count_references(evidence, kcov)
        if fields.refcount == found and found >= 1:
            continue
        if found < fields.refcount <= _MAX_REFERENCES and evidence.has(Feature.VMA_REFERENCES) and evidence.target.vmas is None:
            # Each mapping has a reference of its own, and mappings can't be listed: what is found is always too little.
            continue
        if found > fields.refcount and _holders(kcov) > fields.refcount:
            # X1 says that.
            continue
        names = [describe_reference(reference) for reference in kcov.references if reference.counts]
        certainty, reason = evidence.doubt("tasks", "files", "slab", "per-cpu")
        if certainty is Certainty.CERTAIN and evidence.target.slab is None and fields.refcount > found:
            certainty, reason = Certainty.UNSURE, "files that no process holds can't be searched for on this target"
        if not 1 <= fields.refcount <= _MAX_REFERENCES:
            message = f"refcount is {fields.refcount}"
        elif fields.refcount > found:
            more = fields.refcount - found
            message = (
                f"refcount is {fields.refcount}, {found} {'reference was' if found == 1 else 'references were'} found: "
                f"{more} {'is' if more == 1 else 'are'} leaked, and the buffer with it"
            )
        else:
            message = f"refcount is {fields.refcount}, {found} references were found: it will be freed while it is used"
        yield Violation(
            name_kcov(fields.address),
            message,
            values(refcount=fields.refcount, found=found, references=name_some(names) or "none"),
            certainty,
            reason,
            kcovs=(fields.address,),
            anybody=True,
            most=max(1, abs(fields.refcount - found)),
        )


def _holders(kcov: Kcov) -> int:
    return sum(reference.counts for reference in kcov.references if reference.kind in ("fd", "vma"))


def check_mode(evidence: Evidence) -> Iterator[Violation]:
    """K2."""
    layout = evidence.layout
    if not layout.modes:
        return
    legal = {0} | {
        number for name, number in layout.modes.items() if not name.upper().endswith(("MODE_REMOTE", "MODE_INVALID"))
    }
    if evidence.has(Feature.UNIQUE_MAPS):
        # KCOV_MODE_TRACE_UNIQ_PC | KCOV_MODE_TRACE_UNIQ_EDGE.
        legal.add(0x30)
    for kcov in _fields(evidence):
        if kcov.mode is not None and kcov.mode not in legal:
            yield Violation(
                name_kcov(kcov.address),
                f"mode {kcov.mode:#x} is none that an object can have",
                values(mode=Hex(kcov.mode)),
                kcovs=(kcov.address,),
            )


def check_size(evidence: Evidence) -> Iterator[Violation]:
    """K3."""
    for kcov in _fields(evidence):
        if kcov.mode is None or kcov.size is None:
            continue
        if bool(kcov.mode) != bool(kcov.size):
            state = "it has a mode and no size" if kcov.mode else "it has a size and no mode"
        elif kcov.mode and not 2 <= kcov.size <= evidence.size_limit:
            state = f"size is {kcov.size}: KCOV_INIT_TRACE takes 2 to {evidence.size_limit}"
        else:
            continue
        yield Violation(
            name_kcov(kcov.address), state, values(mode=evidence.mode_of(kcov), size=kcov.size), kcovs=(kcov.address,)
        )


def check_area(evidence: Evidence) -> Iterator[Violation]:
    """K4."""
    always = _allocates_at_once(evidence)
    for kcov in _fields(evidence):
        if kcov.mode is None or kcov.area is None or kcov.size is None:
            continue
        shown = values(mode=evidence.mode_of(kcov), size=kcov.size, area=Hex(kcov.area))
        about = name_kcov(kcov.address)
        if not kcov.mode and kcov.area:
            yield Violation(about, "it has a buffer and was never initialised", shown, kcovs=(kcov.address,))
        elif kcov.mode and not kcov.area and always:
            yield Violation(about, "it is initialised and has no buffer", shown, kcovs=(kcov.address,))
        elif kcov.area and evidence.vmalloc is not None:
            problem = _find_problem(evidence, kcov.area, kcov.size)
            if problem is not None:
                yield Violation(about, f"its buffer {kcov.area:#x} {problem}", shown, kcovs=(kcov.address,))


def _allocates_at_once(evidence: Evidence) -> bool:
    """Tell whether KCOV_INIT_TRACE allocates the buffer (v5.18 and later) rather than mmap().

    No type tells, as stable kernels up to v5.15 took later changes of the structures; who allocated the buffers that there are
    does.
    """
    if evidence.has(Feature.OWNER_MEMBER):
        return True
    return any(plain_name(area.caller) == "kcov_ioctl" for area in evidence.census.user_buffers)


def _find_problem(evidence: Evidence, start: int, size: int) -> str | None:
    assert evidence.vmalloc is not None
    area = evidence.vmalloc.get(start)
    if area is None:
        return "isn't the start of a vmalloc area"
    if round_up(area.size) < round_up(evidence.bytes_of(size)):
        return f"is a vmalloc area of {area.size} bytes, {evidence.bytes_of(size)} are needed"
    if not area.has_user_pages:
        return f"is a vmalloc area that isn't made for user space, allocated by {area.caller}"
    return None


def check_enabled(evidence: Evidence) -> Iterator[Violation]:
    """K5."""
    old = not evidence.has(Feature.COMPARISONS)
    for kcov in _fields(evidence):
        if kcov.task is None or kcov.mode is None:
            continue
        shown = values(mode=evidence.mode_of(kcov), t=Hex(kcov.task))
        if kcov.task and (not evidence.is_enabled(kcov) or (old and not kcov.area)):
            what = "it is enabled for a task and has no buffer" if evidence.is_enabled(kcov) else "it is enabled for a task"
            message = what if evidence.is_enabled(kcov) else f"{what}, but its mode is {evidence.mode_of(kcov)}"
        elif not kcov.task and evidence.is_enabled(kcov) and not old:
            message = f"its mode is {evidence.mode_of(kcov)}, but no task has it enabled"
        else:
            continue
        yield Violation(name_kcov(kcov.address), message, shown, kcovs=(kcov.address,))


def check_owner(evidence: Evidence) -> Iterator[Violation]:
    """K6."""
    certainty, reason = evidence.doubt("tasks")
    for kcov in _fields(evidence):
        if kcov.task and kcov.task not in evidence.task_by_address:
            yield Violation(
                name_kcov(kcov.address),
                f"it is enabled for {kcov.task:#x}, which is no task, or not any more",
                values(t=Hex(kcov.task)),
                certainty,
                reason,
                kcovs=(kcov.address,),
            )


def check_remote(evidence: Evidence) -> Iterator[Violation]:
    """K7."""
    for kcov in _fields(evidence):
        if None in (kcov.remote, kcov.task, kcov.mode):
            continue
        about = name_kcov(kcov.address)
        entries = evidence.entries_of.get(kcov.address, ())
        shown = values(
            remote=kcov.remote,
            t=Hex(kcov.task or 0),
            mode=evidence.mode_of(kcov),
            remote_size=kcov.remote_size,
            handles=len(entries),
        )
        if kcov.remote and not (kcov.task and evidence.is_enabled(kcov)):
            yield Violation(about, "it takes remote coverage, but isn't enabled", shown, kcovs=(kcov.address,))
        elif not kcov.remote and kcov.remote_size:
            yield Violation(
                about,
                f"remote_size is {kcov.remote_size}, but it takes no remote coverage",
                shown,
                kcovs=(kcov.address,),
            )
        elif not kcov.remote and entries:
            yield Violation(
                about,
                f"{len(entries)} handles lead to it, but it takes no remote coverage",
                shown,
                kcovs=(kcov.address,),
                remote_lock=True,
            )


def check_sequence(evidence: Evidence) -> Iterator[Violation]:
    """K8."""
    for kcov in _fields(evidence):
        if kcov.sequence is not None and kcov.sequence < 1:
            yield Violation(
                name_kcov(kcov.address),
                f"sequence is {kcov.sequence}: it begins with 1 and goes up",
                values(sequence=kcov.sequence),
                Certainty.LIKELY,
                "after 2147483647 sessions it wraps",
                kcovs=(kcov.address,),
            )


def check_remote_size(evidence: Evidence) -> Iterator[Violation]:
    """K9."""
    for kcov in _fields(evidence):
        if kcov.remote and kcov.remote_size == 0:
            yield Violation(
                name_kcov(kcov.address),
                "it takes remote coverage into areas of no size: sections of tasks lose theirs, and the kernel warns",
                values(remote_size=0),
                kcovs=(kcov.address,),
            )


def check_sharing(evidence: Evidence) -> Iterator[Violation]:
    """K10."""
    by_area: dict[int, list[int]] = defaultdict(list)
    for kcov in _fields(evidence):
        if kcov.area:
            by_area[kcov.area].append(kcov.address)
    cached = {area.address: area for area in evidence.cached_areas}
    irq = {area: cpu for cpu, area in evidence.irq_areas.items()}
    for area, owners in by_area.items():
        about = name_kcov(owners[0])
        named = name_some([*map(hex, owners)])
        if len(owners) > 1:
            yield Violation(
                about, f"its buffer {area:#x} is that of others, too", values(area=Hex(area), kcovs=named), kcovs=tuple(owners)
            )
        if area in cached:
            yield Violation(
                about,
                f"its buffer {area:#x} is on the list of free {cached[area].list} areas",
                values(area=Hex(area)),
                kcovs=tuple(owners),
                remote_lock=True,
            )
        if area in irq:
            yield Violation(
                about,
                f"its buffer {area:#x} is that of CPU {irq[area]} for softirqs",
                values(area=Hex(area)),
                kcovs=tuple(owners),
            )


def check_file(evidence: Evidence) -> Iterator[Violation]:
    """K11."""
    for kcov in evidence.objects.values():
        assert kcov.fields is not None
        files = {reference.file for reference in kcov.references if reference.file}
        if len(files) > 1:
            named = name_some([f"{file:#x}" for file in sorted(files)])
            yield Violation(
                name_kcov(kcov.fields.address),
                f"{len(files)} open files lead to it: each open makes an object of its own",
                values(files=named),
                kcovs=(kcov.fields.address,),
            )
    for kcov in evidence.census.objects.values():
        if kcov.fields is None and kcov.address is not None and not evidence.may_be_missing(kcov.address):
            holders = name_some(
                [f"{reference.pid}/{reference.fd}" for reference in kcov.references if reference.kind in ("fd", "vma")]
            )
            if holders:
                yield Violation(
                    name_kcov(kcov.address),
                    f"the file of descriptor {holders} leads to {kcov.address:#x}, which is no object",
                    values(private_data=Hex(kcov.address)),
                )


_REMOTE: Final = frozenset({Feature.REMOTE})

RULES: Final = (
    Rule(
        "K1",
        "an object's refcount is its open file, the task that it is enabled for, and the remote sections that collect for it",
        check_references,
        "kcov_get(), kcov_put()",
        about_leaks=True,
        detail=(
            "Duplicated and inherited descriptors and all mappings share one file, which counts once (in the posting of 2016 "
            "each mapping counted). Handles hold no reference. A section that a softirq interrupted keeps its own."
        ),
    ),
    Rule("K2", "an object's mode is one of its kernel's, and never KCOV_MODE_REMOTE", check_mode, "kcov_get_mode()"),
    Rule(
        "K3",
        "an object has a size exactly when it has a mode, and a size that KCOV_INIT_TRACE takes",
        check_size,
        "kcov_ioctl() (KCOV_INIT_TRACE)",
        excludes=frozenset({Feature.TEXT_BITMAP}),
    ),
    Rule(
        "K4",
        "an initialised object has a buffer: a vmalloc area for user space, large enough for its size",
        check_area,
        "kcov_ioctl() (KCOV_INIT_TRACE), up to v5.17 kcov_mmap()",
        excludes=frozenset({Feature.TEXT_BITMAP}),
        detail="Up to v5.17 the buffer comes with the first mmap(): without it there is legally none.",
    ),
    Rule(
        "K5",
        "an object is in a tracing mode exactly while a task has it enabled",
        check_enabled,
        "kcov_ioctl() (KCOV_ENABLE, KCOV_REMOTE_ENABLE), kcov_reset()",
        detail="Up to v4.14 the mode stays after KCOV_DISABLE.",
    ),
    Rule("K6", "the task that an object is enabled for exists", check_owner, "kcov_task_exit()"),
    Rule(
        "K7",
        "an object takes remote coverage only while it is enabled, and only then has handles and a remote_size",
        check_remote,
        "kcov_ioctl() (KCOV_REMOTE_ENABLE), kcov_remote_reset()",
        eras="v5.5 and later",
        needs=_REMOTE,
    ),
    Rule(
        "K8",
        "an object's sequence is at least 1",
        check_sequence,
        "kcov_open(), kcov_reset()",
        Severity.WARNING,
        eras="v5.5 and later",
        needs=_REMOTE,
    ),
    Rule(
        "K9",
        "areas for remote coverage have a size",
        check_remote_size,
        "nobody: KCOV_REMOTE_ENABLE takes 0",
        Severity.ADVICE,
        eras="v5.5 and later",
        needs=_REMOTE,
    ),
    Rule(
        "K10",
        "an object's buffer is nobody else's: no other object's, on no free list, no CPU's",
        check_sharing,
        "vmalloc_user(), kcov_remote_area_put()",
    ),
    Rule("K11", "one open file leads to an object, and a file of KCOV's to an object", check_file, "kcov_open(), kcov_close()"),
)
