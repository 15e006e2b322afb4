# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which generation of KCOV this kernel has, by its members, and where these lie.

The detection order is that of kcov-abi.md 9: first match wins in each group. Nothing here looks at a release number.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kcovdbg.abi import mode
from kcovdbg.abi.era import Feature, Variant
from kcovdbg.errors import MissingSymbolError, MissingTypeError, TargetError
from kcovdbg.model.generation import Generation
from kcovdbg.target import Target
from kcovdbg.walk.block import BlockLayout

TASK: Final = "struct task_struct"
KCOV: Final = "struct kcov"
REMOTE: Final = "struct kcov_remote"
AREA: Final = "struct kcov_remote_area"
PERCPU: Final = "struct kcov_percpu_data"
STATE: Final = "struct kcov_state"
MODE: Final = "enum kcov_mode"

# The paths of each field, newest kernel first. The deduplication series of 2025 moved size, area and sequence into
# struct kcov_state, in its first version inside a further member `s`.
_TASK_FIELDS: Final[Mapping[str, Sequence[str]]] = {
    "pid": ("pid",),
    "tgid": ("tgid",),
    "comm": ("comm",),
    "flags": ("flags",),
    # Linux kernel commit bcf9033e5449 ("sched: move CPU field back into thread_info if THREAD_INFO_IN_TASK=y") (in v5.16);
    # before, and since c65eacbe290b (in v4.9), in task_struct itself; before that in the thread_info at the stack's end.
    "cpu": ("thread_info.cpu", "cpu"),
    "on_cpu": ("on_cpu",),
    "mm": ("mm",),
    "files": ("files",),
    "kcov_mode": ("kcov_mode", "kcov_state.mode"),
    "kcov_size": ("kcov_size", "kcov_state.size", "kcov_state.s.size"),
    "kcov_area": ("kcov_area", "kcov_state.area", "kcov_state.s.area"),
    "kcov": ("kcov",),
    "kcov_remote": ("kcov_remote",),
    "kcov_handle": ("kcov_handle",),
    "kcov_sequence": ("kcov_sequence", "kcov_state.sequence", "kcov_state.s.sequence"),
    "kcov_softirq": ("kcov_softirq",),
    "saved_mode": ("kcov_saved_mode",),
    "saved_size": ("kcov_saved_size",),
    "saved_area": ("kcov_saved_area",),
    "saved_kcov": ("kcov_saved_kcov",),
    "saved_sequence": ("kcov_saved_sequence",),
    # Where the count word is, and the words from it on: behind the bitmap of KCOV_UNIQUE_ENABLE.
    "trace": ("kcov_state.trace", "kcov_state.s.trace"),
    "trace_size": ("kcov_state.trace_size", "kcov_state.s.trace_size"),
}
# What lies far before the rest, and is wanted of the tasks only that are shown.
_LATE_FIELDS: Final = ("flags", "cpu", "on_cpu")
# What a walk over the lists needs besides.
_TASK_LINKS: Final[Mapping[str, Sequence[str]]] = {
    "tasks_next": ("tasks.next",),
    "tasks_prev": ("tasks.prev",),
    "thread_next": ("thread_node.next",),
    "thread_prev": ("thread_node.prev",),
    "signal": ("signal",),
}
_KCOV_FIELDS: Final[Mapping[str, Sequence[str]]] = {
    # refcount_t since Linux kernel commit 39e07cb60860 ("kcov: convert kcov.refcount to refcount_t") (in v5.1), atomic_t
    # before; called rc in the posting of 2016.
    "refcount": ("refcount.refs.counter", "refcount.counter", "rc.refs.counter", "rc.counter"),
    "lock": ("lock",),
    "mode": ("mode", "state.mode"),
    "size": ("size", "state.size", "state.s.size"),
    "area": ("area", "state.area", "state.s.area"),
    "t": ("t",),
    "remote": ("remote",),
    "remote_size": ("remote_size",),
    "sequence": ("sequence", "state.sequence", "state.s.sequence"),
    "trace": ("state.trace", "state.s.trace"),
    "trace_size": ("state.trace_size", "state.s.trace_size"),
}
_REMOTE_FIELDS: Final[Mapping[str, Sequence[str]]] = {
    "handle": ("handle",),
    "kcov": ("kcov",),
    "next": ("hnode.next",),
    "pprev": ("hnode.pprev",),
}
_AREA_FIELDS: Final[Mapping[str, Sequence[str]]] = {"next": ("list.next",), "prev": ("list.prev",), "size": ("size",)}
_PERCPU_FIELDS: Final[Mapping[str, Sequence[str]]] = {
    "irq_area": ("irq_area",),
    "saved_mode": ("saved_mode",),
    "saved_size": ("saved_size", "saved_state.size", "saved_state.s.size"),
    "saved_area": ("saved_area", "saved_state.area", "saved_state.s.area"),
    "saved_kcov": ("saved_kcov",),
    "saved_sequence": ("saved_sequence", "saved_state.sequence", "saved_state.s.sequence"),
}

# What each generation has, to notice what the debug info of one lacks: fields by the feature that brings them.
_ALWAYS: Final = ""
_EXPECTED_OF_TASK: Final[Mapping[str, str]] = {
    _ALWAYS: (
        "pid tgid comm flags mm files kcov_mode kcov_size kcov_area kcov tasks_next tasks_prev thread_next thread_prev signal"
    ),
    Feature.REMOTE: "kcov_handle kcov_sequence",
    Feature.SOFTIRQ: "kcov_softirq",
    Feature.SAVED_IN_TASK: "saved_mode saved_size saved_area saved_kcov saved_sequence",
    Feature.UNIQUE_BITMAP: "trace trace_size",
}
_EXPECTED_OF_KCOV: Final[Mapping[str, str]] = {
    _ALWAYS: "refcount lock mode size area t",
    Feature.REMOTE: "remote remote_size sequence",
    Feature.UNIQUE_BITMAP: "trace trace_size",
}
_EXPECTED_OF_REMOTE: Final[Mapping[str, str]] = {Feature.REMOTE: "handle kcov next pprev"}
_EXPECTED_OF_AREA: Final[Mapping[str, str]] = {Feature.REMOTE: "next prev size"}
_EXPECTED_OF_PERCPU: Final[Mapping[str, str]] = {
    Feature.SAVED_PER_CPU: "irq_area saved_mode saved_size saved_area saved_kcov saved_sequence"
}
_EXPECTED_MODES: Final[Mapping[str, str]] = {
    Feature.COMPARISONS: "DISABLED TRACE_PC TRACE_CMP",
    Feature.UNIQUE_MAPS: "REMOTE TRACE_UNIQ_PC TRACE_UNIQ_EDGE TRACE_UNIQ_CMP",
    Feature.TEXT_BITMAP: "INIT_TRACE INIT_UNIQUE UNIQUE_PC",
}
# Other structures that the walkers follow, and what of them.
_EXPECTED_ELSEWHERE: Final = (
    ("struct signal_struct", "thread_head"),
    ("struct files_struct", "fdt"),
    ("struct fdtable", "max_fds"),
    ("struct fdtable", "fd"),
    ("struct fdtable", "open_fds"),
    ("struct file", "f_op"),
    ("struct file", "private_data"),
    ("struct rq", "idle"),
    ("struct rq", "curr"),
)

# What posted series bring beside that, which check looks at and which tells formats apart: of each the paths, newest first.
_EXPECTED_OF_SERIES: Final[Mapping[str, Sequence[tuple[str, Sequence[str]]]]] = {
    Feature.UNIQUE_BITMAP: (
        *((TASK, (f"kcov_state.{name}", f"kcov_state.s.{name}")) for name in ("bitmap", "bitmap_size")),
        *((KCOV, (f"state.{name}", f"state.s.{name}")) for name in ("bitmap", "bitmap_size")),
    ),
    Feature.UNIQUE_MAPS: (
        *((KCOV, (name,)) for name in ("map", "map_edge")),
        *(("struct kcov_map", (name,)) for name in ("buckets", "pool", "mem", "area")),
        *(("struct kcov_entry", (name,)) for name in ("ent", "node")),
    ),
    Feature.EXT_RECORDS: (
        (TASK, ("kcov_ext_format",)),
        (KCOV, ("kcov_ext_format",)),
        (PERCPU, ("saved_kcov_ext_format",)),
    ),
    Feature.PC_RANGE: ((KCOV, ("pc_range.start",)), (KCOV, ("pc_range.end",))),
}

# Everything whose meaning some generation defines; a member with kcov in its name beyond these is said to be unknown.
_KNOWN_TASK_MEMBERS: Final = frozenset(
    "kcov_mode kcov_size kcov_area kcov kcov_remote kcov_handle kcov_sequence kcov_softirq kcov_state kcov_ext_format "
    "kcov_writing kcov_saved_mode kcov_saved_size kcov_saved_area kcov_saved_kcov kcov_saved_sequence "
    "kcov_dataflow_seq kcov_df_size kcov_df_area kcov_df_enabled kcov_df_seq kcov_df kcov_df_remote_depth".split()
)
_KNOWN_KCOV_MEMBERS: Final = frozenset(
    "refcount rc lock mode size area t remote remote_size sequence state kcov_ext_format pc_range prev_pc map map_edge".split()
)
_KNOWN_MODES: Final = frozenset(
    "DISABLED INIT TRACE TRACE_PC TRACE_CMP REMOTE INVALID UNIQUE_PC TRACE_UNIQUE_PC TRACE_UNIQ_PC TRACE_UNIQ_EDGE "
    "TRACE_UNIQ_CMP INIT_TRACE INIT_UNIQUE".split()
)


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of everything that the walkers read in one kernel.

    A structure that the debug info doesn't have is None; what needs it says so.
    """

    generation: Generation
    task: BlockLayout
    """``struct task_struct``: the fields of :class:`~kcovdbg.model.task.TaskFields` but the address, then the links."""
    kcov: BlockLayout | None
    remote: BlockLayout | None
    area: BlockLayout | None
    percpu: BlockLayout | None
    modes: Mapping[str, int]
    """``enum kcov_mode``."""
    mode_flags: int
    """The bits of a task's mode word that aren't mode."""
    buffer_word: int
    """Bytes of one word of a buffer."""
    near_task: BlockLayout | None = None
    """The same as ``task`` without what ``late_task`` reads; None where one read of the target takes in all of it anyway."""
    late_task: BlockLayout | None = None
    """``flags``, ``cpu`` and ``on_cpu``, in this order."""
    stack_cpu: tuple[int, int] | None = None
    """Where a task doesn't tell its CPU: offsets of its stack, and of the CPU in the thread_info at the stack's base."""

    def mode_name(self, word: int) -> str:
        """Name the mode in a task's mode word, or a saved one, flags masked."""
        return self.object_mode_name(mode.strip_flags(word, self.mode_flags))

    def object_mode_name(self, value: int) -> str:
        """Name the mode in an object's mode word, which has no flags: a bit there is damage."""
        if self.generation.has(Feature.UNIQUE_MAPS):
            return mode.combined_name(value, self.modes)
        return mode.mode_name(value, self.modes)


TASK_FIELD_COUNT: Final = len(_TASK_FIELDS)


def detect_layout(target: Target) -> Layout:
    """Look at a kernel's types once.

    :raises TargetError: when the kernel has no KCOV, or its debug info has no types.
    """
    try:
        task = BlockLayout(target, TASK, {**_TASK_FIELDS, **_TASK_LINKS})
    except MissingTypeError:
        raise TargetError(
            "the debug info has no struct task_struct", hint="give the kernel's vmlinux, with debug info, by -s VMLINUX"
        ) from None
    if not (task.has("kcov_mode") or task.has("kcov_area") or task.has("kcov")):
        raise TargetError(
            "this kernel has no KCOV: struct task_struct has no kcov members",
            hint="build it with CONFIG_KCOV=y, or look at another one",
        )
    kcov = _find_layout(target, KCOV, _KCOV_FIELDS)
    percpu = _find_layout(target, PERCPU, _PERCPU_FIELDS)
    try:
        modes = dict(target.enumerators(MODE))
    except MissingTypeError:
        modes = {}
    generation = _detect_generation(target, task, kcov, percpu, modes)
    near, late = _split_task(target, task)
    return Layout(
        generation=generation,
        task=task,
        kcov=kcov,
        remote=_find_layout(target, REMOTE, _REMOTE_FIELDS),
        area=_find_layout(target, AREA, _AREA_FIELDS),
        percpu=percpu,
        modes=modes,
        mode_flags=_find_mode_flags(generation),
        buffer_word=4 if generation.has(Feature.WORDS_32) else target.word_size,
        near_task=near,
        late_task=late,
        stack_cpu=_find_stack_cpu(target, task),
    )


def _split_task(target: Target, task: BlockLayout) -> tuple[BlockLayout | None, BlockLayout | None]:
    """Split what is read of a task in two where a GDB stub would need two packets for each task otherwise."""
    # Only targets have it that read over a wire.
    packet: int | None = getattr(target, "packet_size", None)
    if packet is None or task.span <= packet:
        return None, None
    fields = {**_TASK_FIELDS, **_TASK_LINKS}
    near = BlockLayout(target, TASK, {name: () if name in _LATE_FIELDS else paths for name, paths in fields.items()})
    if near.span > packet:
        return None, None
    return near, BlockLayout(target, TASK, {name: _TASK_FIELDS[name] for name in _LATE_FIELDS})


def _find_layout(target: Target, type_name: str, fields: Mapping[str, Sequence[str]]) -> BlockLayout | None:
    try:
        return BlockLayout(target, type_name, fields)
    except MissingTypeError:
        return None


def _has_member(target: Target, type_name: str, path: str) -> bool:
    try:
        target.member(type_name, path)
    except MissingTypeError:
        return False
    return True


def _find_mode_flags(generation: Generation) -> int:
    if not generation.has(Feature.CTXSW_FLAG):
        return 0
    # KCOV_PAUSED leaves no trace in the types, and no mode is as large.
    return mode.PAUSED | (mode.IN_CTXSW_LOCHMANN if generation.has(Feature.TEXT_BITMAP) else mode.IN_CTXSW)


def _find_stack_cpu(target: Target, task: BlockLayout) -> tuple[int, int] | None:
    """Say where the CPU of a task is that doesn't tell it: before v4.9, and longer on some architectures."""
    if task.has("cpu"):
        return None
    try:
        return target.member(TASK, "stack").offset, target.member("struct thread_info", "cpu").offset
    except MissingTypeError:
        return None


def _detect_generation(
    target: Target, task: BlockLayout, kcov: BlockLayout | None, percpu: BlockLayout | None, modes: Mapping[str, int]
) -> Generation:
    features: set[Feature] = set()
    names = {name.upper().removeprefix(mode.PREFIX) for name in modes}
    # Each by any of its members: one that is missing is a gap, not another generation.
    has_remote = (
        any(kcov is not None and kcov.has(name) for name in ("remote", "remote_size"))
        or task.has("kcov_handle")
        or _has_type(target, REMOTE)
        or _has_type(target, AREA)
    )
    saved_in_task = any(task.has(name) for name in _SAVED)
    saved_per_cpu = percpu is not None and any(percpu.has(name) for name in ("irq_area", *_SAVED))

    # Group A: the base.
    if (kcov is not None and _has_member(target, KCOV, "rc")) or any(name.startswith("kcov_mode_") for name in modes):
        era = "E0"
        features |= {Feature.WORDS_32, Feature.VMA_REFERENCES}
    elif not has_remote and not names:
        # The enumeration alone tells them apart.
        era = "E1-E2"
    elif not has_remote and not names & {"INIT", "TRACE_PC", "TRACE_CMP"}:
        era = "E1"
    elif not has_remote:
        era = "E2"
        features.add(Feature.COMPARISONS)
    elif not (task.has("kcov_softirq") or saved_in_task or saved_per_cpu):
        era = "E3"
        features |= {Feature.COMPARISONS, Feature.REMOTE}
    else:
        era = "E5-E6"
        features |= {Feature.COMPARISONS, Feature.REMOTE, Feature.SOFTIRQ}

    # The mode was the enumeration itself, without flags, before Linux kernel commit 0ed557aa8139 ("sched/core / kcov: avoid
    # kcov_area during task switch") (in v4.18).
    member = task.members["kcov_mode"]
    if has_remote or (member is not None and not member.type_name.startswith("enum") and era not in ("E0", "E1")):
        features.add(Feature.CTXSW_FLAG)

    if Feature.SOFTIRQ in features:
        # Group B: where an interrupted session is saved.
        if saved_in_task:
            features.add(Feature.SAVED_IN_TASK)
        elif saved_per_cpu:
            features |= {Feature.SAVED_PER_CPU, Feature.IRQ_AREA_PER_CPU}
        # Group C: how the owner of a KCOV_REMOTE_ENABLE is marked.
        if task.has("kcov_remote"):
            features.add(Feature.OWNER_MEMBER)
        if "REMOTE" in names:
            features.add(Feature.MODE_REMOTE)
        if Feature.SAVED_IN_TASK in features:
            era = "E9b" if Feature.OWNER_MEMBER in features else "E9a"
        elif Feature.OWNER_MEMBER in features:
            era = "E8"
        elif Feature.MODE_REMOTE in features:
            era = "E7"
        elif Feature.SAVED_PER_CPU in features and not _has_member(target, PERCPU, "lock"):
            era = "E4"
        # Group D, whether the buffer exists from KCOV_INIT_TRACE on, can't be seen in the types: E5-E6.
    # Group E: one list of areas, or one for tasks and one for softirqs.
    if Feature.REMOTE in features and (_area_list_count(target) == 2 or Feature.SAVED_IN_TASK in features):
        features.add(Feature.AREA_LISTS)

    variants = _detect_variants(target, kcov, names, features)
    return Generation(
        era=era,
        variants=tuple(variant.value for variant in variants),
        features=frozenset(feature.value for feature in features),
        unrecognised=_find_unrecognised(target, names),
        missing=tuple(_find_missing(target, task, kcov, percpu, names, features)),
    )


# What moved into struct kcov_state (2025 deduplication series).
_IN_STATE: Final = frozenset(
    "kcov_size kcov_area kcov_sequence size area sequence saved_size saved_area saved_sequence".split()
)
_SAVED: Final = ("saved_mode", "saved_size", "saved_area", "saved_kcov", "saved_sequence")


def _has_type(target: Target, type_name: str) -> bool:
    try:
        target.type_size(type_name)
    except MissingTypeError:
        return False
    return True


def _find_missing(
    target: Target,
    task: BlockLayout,
    kcov: BlockLayout | None,
    percpu: BlockLayout | None,
    names: set[str],
    features: set[Feature],
) -> Iterator[str]:
    """Yield what a kernel of this generation has and the debug info lacks."""
    paths = {
        TASK: {**_TASK_FIELDS, **_TASK_LINKS},
        KCOV: _KCOV_FIELDS,
        REMOTE: _REMOTE_FIELDS,
        AREA: _AREA_FIELDS,
        PERCPU: _PERCPU_FIELDS,
    }
    for type_name, layout, expected in (
        (TASK, task, _EXPECTED_OF_TASK),
        (KCOV, kcov, _EXPECTED_OF_KCOV),
        (REMOTE, _find_layout(target, REMOTE, _REMOTE_FIELDS), _EXPECTED_OF_REMOTE),
        (AREA, _find_layout(target, AREA, _AREA_FIELDS), _EXPECTED_OF_AREA),
        (PERCPU, percpu, _EXPECTED_OF_PERCPU),
    ):
        wanted = [field for feature, fields in expected.items() if feature in (_ALWAYS, *features) for field in fields.split()]
        if layout is None:
            if wanted:
                yield type_name
            continue
        for field in wanted:
            if not layout.has(field):
                likely = [
                    path
                    for path in paths[type_name][field]
                    if path.startswith("rc.") == (Feature.WORDS_32 in features and field == "refcount")
                    and (not path.endswith("state.mode") or _has_member(target, STATE, "s"))
                    and ("state." in path or not (Feature.STATE_STRUCT in features and field in _IN_STATE))
                ]
                yield f"{type_name}.{_likely_path(target, type_name, likely or paths[type_name][field])}"
    if Feature.SOFTIRQ in features and not features & {Feature.SAVED_IN_TASK, Feature.SAVED_PER_CPU}:
        yield PERCPU
    wanted = [name for feature, found in _EXPECTED_MODES.items() if feature in features for name in found.split()]
    if Feature.UNIQUE_BITMAP in features and not names & {"UNIQUE_PC", "TRACE_UNIQUE_PC"}:
        wanted.append("TRACE_UNIQUE_PC" if _has_member(target, STATE, "s") else "UNIQUE_PC")
    if Feature.TEXT_BITMAP not in features and Feature.COMPARISONS in features:
        wanted.append("INIT")
    if Feature.COMPARISONS not in features and Feature.WORDS_32 not in features:
        wanted += ["DISABLED", "TRACE"]
    if Feature.WORDS_32 in features and not names:
        yield "kcov_mode_trace"
    if Feature.SAVED_IN_TASK in features and not features & {Feature.OWNER_MEMBER, Feature.MODE_REMOTE}:
        yield f"{TASK}.kcov_remote, or else {mode.PREFIX}REMOTE"
    yield from (f"{mode.PREFIX}{name}" for name in wanted if name not in names)
    for type_name, name in _EXPECTED_ELSEWHERE:
        if not _has_member(target, type_name, name):
            yield f"{type_name}.{name}"
    for feature, members in _EXPECTED_OF_SERIES.items():
        for type_name, found in members if feature in features else ():
            if not any(_has_member(target, type_name, path) for path in found):
                yield f"{type_name}.{_likely_path(target, type_name, found)}"


def _likely_path(target: Target, type_name: str, paths: Sequence[str]) -> str:
    """Return the path that a missing member would have: the one of which most is there."""

    def depth(path: str) -> int:
        parts = path.split(".")
        return sum(_has_member(target, type_name, ".".join(parts[:count])) for count in range(1, len(parts)))

    deepest = max(depth(path) for path in paths)
    return min((path for path in paths if depth(path) == deepest), key=lambda path: 0 if deepest else path.count("."))


def _area_list_count(target: Target) -> int:
    try:
        _, length = target.variable_type("kcov_remote_areas")
    except MissingSymbolError:
        try:
            # Without a type the symbol's size tells one list head from two.
            return target.symbol("kcov_remote_areas").size // (2 * target.word_size)
        except MissingSymbolError:
            return 0
    return length or 1


def _detect_variants(target: Target, kcov: BlockLayout | None, names: set[str], features: set[Feature]) -> list[Variant]:
    # Group F: what postings and other trees add.
    variants: list[Variant] = []
    if any(name.startswith("TRACE_UNIQ_") for name in names) or _has_member(target, KCOV, "map_edge"):
        variants.append(Variant.UNIQUE_MAPS)
        features.add(Feature.UNIQUE_MAPS)
    if names & {"INIT_UNIQUE", "INIT_TRACE"}:
        variants.append(Variant.INIT_UNIQUE)
        features.add(Feature.TEXT_BITMAP)
    if _has_member(target, TASK, "kcov_state") or _has_member(target, KCOV, "state"):
        features.add(Feature.STATE_STRUCT)
        if _has_member(target, STATE, "s") or _has_member(target, STATE, "mode"):
            variants.append(Variant.UNIQUE_ENABLE_1)
            features |= {Feature.UNIQUE_BITMAP, Feature.UNIQUE_ENABLE_V1}
        elif any(_has_member(target, STATE, name) for name in ("bitmap", "bitmap_size")):
            variants.append(Variant.UNIQUE_ENABLE)
            features.add(Feature.UNIQUE_BITMAP)
        else:
            variants.append(Variant.STATE_ONLY)
    if any(_has_member(target, type_name, "kcov_ext_format") for type_name in (TASK, KCOV)):
        variants.append(Variant.EXT_RECORDS)
        features.add(Feature.EXT_RECORDS)
    if kcov is not None and _has_member(target, KCOV, "pc_range"):
        variants.append(Variant.PC_RANGE)
        features.add(Feature.PC_RANGE)
    if _has_member(target, TASK, "kcov_writing"):
        variants.append(Variant.WRITING)
        features.add(Feature.WRITING)
    if any(_has_member(target, TASK, name) for name in ("kcov_df", "kcov_df_seq", "kcov_df_remote_depth")):
        variants.append(Variant.DATAFLOW_FILE)
        features.add(Feature.DATAFLOW)
    elif any(
        _has_member(target, TASK, name) for name in ("kcov_dataflow_seq", "kcov_df_area", "kcov_df_size", "kcov_df_enabled")
    ):
        variants.append(Variant.DATAFLOW)
        features.add(Feature.DATAFLOW)
    return variants


def _find_unrecognised(target: Target, names: set[str]) -> tuple[str, ...]:
    found = [
        f"{TASK}.{name}" for name in target.member_names(TASK) if name.startswith("kcov") and name not in _KNOWN_TASK_MEMBERS
    ]
    with contextlib.suppress(MissingTypeError):
        found += [f"{KCOV}.{name}" for name in target.member_names(KCOV) if name not in _KNOWN_KCOV_MEMBERS]
    found += [f"{mode.PREFIX}{name}" for name in sorted(names - _KNOWN_MODES)]
    return tuple(found)
