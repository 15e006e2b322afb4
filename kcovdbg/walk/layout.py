# SPDX-License-Identifier: LGPL-2.1-or-later
"""Detects the generation of a kernel's KCOV, its posted series, and the members that walkers read.

Features are detected by groups, in the order of kcov-abi.md 9; the first match in a group wins.
Release numbers decide nothing. Mainline's members are here; posted series (:mod:`kcovdbg.series`)
add their own.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Final, NamedTuple

from kcovdbg.abi import mode
from kcovdbg.abi.generations import (
    AREA,
    KCOV,
    MODE,
    MODE_PREFIX,
    PERCPU,
    REMOTE,
    TASK,
    Feature,
    Generation,
)
from kcovdbg.errors import MissingSymbolError, MissingTypeError, TargetError
from kcovdbg.model.kcov import KcovFields
from kcovdbg.model.task import SavedState
from kcovdbg.series import table
from kcovdbg.series.declaration import Series, SeriesMember, Variant
from kcovdbg.series.table import Traits
from kcovdbg.target.struct_layout import BlockLayout, find_kernel_symbol, find_member
from kcovdbg.target.target import Target

# Stands for the feature of every kernel.
_ALWAYS: Final = ""


class _Field(NamedTuple):
    """A field that is read from a structure of mainline."""

    paths: tuple[str, ...]
    """Newest kernel first; posted series add further paths."""
    feature: str | None = None
    """The feature of kernels that have it: their debug info is incomplete without the field. None
    if any kernel may lack it.
    """


def _fields(names: str, feature: str | None = None, *, prefix: str = "") -> dict[str, _Field]:
    """Return fields that have the names of their members, without a prefix of these."""
    return {name: _Field((prefix + name,), feature) for name in names.split()}


_SAVED: Final = "saved_mode saved_size saved_area saved_kcov saved_sequence"
_TASK_FIELDS: Final[Mapping[str, _Field]] = {
    **_fields("pid tgid comm flags", _ALWAYS),
    # In thread_info since Linux kernel commit bcf9033e5449 ("sched: move CPU field back into
    # thread_info if THREAD_INFO_IN_TASK=y") (in v5.16), in task_struct since c65eacbe290b (in
    # v4.9), before that in the thread_info at the stack's base.
    "cpu": _Field(("thread_info.cpu", "cpu")),
    **_fields("on_cpu"),
    **_fields("mm files kcov_mode kcov_size kcov_area kcov", _ALWAYS),
    **_fields("kcov_remote"),
    **_fields("kcov_handle kcov_sequence", Feature.REMOTE),
    **_fields("kcov_softirq", Feature.SOFTIRQ),
    **_fields(_SAVED, Feature.SAVED_IN_TASK, prefix="kcov_"),
    # Only posted series have these: the count word, and the number of words from it on, if a prefix
    # may come before it; and a member that makes another mode of the mode.
    "trace": _Field(()),
    "trace_size": _Field(()),
    "mode_flag": _Field(()),
    **_fields("stack"),
}
# The members that a walk over the lists of tasks needs.
_TASK_LINKS: Final[Mapping[str, _Field]] = {
    "tasks_next": _Field(("tasks.next",), _ALWAYS),
    "tasks_prev": _Field(("tasks.prev",), _ALWAYS),
    "thread_next": _Field(("thread_node.next",), _ALWAYS),
    "thread_prev": _Field(("thread_node.prev",), _ALWAYS),
    **_fields("signal", _ALWAYS),
}
_MAINLINE: Final[Mapping[str, Mapping[str, _Field]]] = {
    TASK: {**_TASK_FIELDS, **_TASK_LINKS},
    KCOV: {
        # refcount_t since Linux kernel commit 39e07cb60860 ("kcov: convert kcov.refcount to
        # refcount_t") (in v5.1), atomic_t before.
        "refcount": _Field(("refcount.refs.counter", "refcount.counter"), _ALWAYS),
        **_fields("lock mode size area t", _ALWAYS),
        **_fields("remote remote_size sequence", Feature.REMOTE),
        "trace": _Field(()),
        "trace_size": _Field(()),
        "mode_flag": _Field(()),
    },
    REMOTE: {
        **_fields("handle kcov", Feature.REMOTE),
        "next": _Field(("hnode.next",), Feature.REMOTE),
        "pprev": _Field(("hnode.pprev",), Feature.REMOTE),
    },
    AREA: {
        "next": _Field(("list.next",), Feature.REMOTE),
        "prev": _Field(("list.prev",), Feature.REMOTE),
        **_fields("size", Feature.REMOTE),
    },
    PERCPU: {**_fields(f"irq_area {_SAVED}", Feature.SAVED_PER_CPU), "mode_flag": _Field(())},
}
# Members of other structures that walkers follow.
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
_KNOWN_MODES: Final = frozenset("DISABLED INIT TRACE TRACE_PC TRACE_CMP REMOTE".split())


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of the members that walkers read in one kernel.

    A structure is None if the debug info lacks it. Walkers that need it raise an error that names
    it.
    """

    generation: Generation
    task: BlockLayout
    """``struct task_struct``: the fields of :class:`~kcovdbg.model.task.TaskFields` except the
    address, then the links.
    """
    kcov: BlockLayout | None
    remote: BlockLayout | None
    area: BlockLayout | None
    percpu: BlockLayout | None
    modes: Mapping[str, int]
    """The enumerators of ``enum kcov_mode``, and the modes that a posted series builds of them."""
    mode_numbers: mode.ModeNumbers
    mode_flags: int
    """The flag bits in a task's mode word."""
    buffer_word: int
    """Bytes of one word of a buffer."""
    in_ctxsw: int = 0
    """The KCOV_IN_CTXSW bit, 0 in kernels without it."""
    traits: Traits = field(default_factory=Traits)
    """The changes by the posted series in this kernel."""
    stack_cpu: tuple[int, int] | None = None
    """If tasks have no member for their CPU: the offset of their stack, and the offset of the CPU
    in the thread_info at the stack's base.
    """
    is_lock_held: Callable[[bytes], bool] = any
    """Returns whether a lock is held, by the bytes of its ``spinlock_t``."""

    def mode_name(self, word: int, mode_flag: int | None = None) -> str:
        """Return the name of the mode in a task's or a saved mode word, without flags.

        :param mode_flag: the task's ``mode_flag``.
        """
        return self.object_mode_name(mode.strip_flags(word, self.mode_flags), mode_flag)

    def object_mode_name(self, value: int, mode_flag: int | None = None) -> str:
        """Return the name of the mode in an object's mode word, which has none of a task's flags.

        :param mode_flag: the object's ``mode_flag``.
        """
        name = mode.mode_name(value, self.modes)
        if not mode.is_known(name) and any(series.combined_modes for series in self.traits.series):
            name = _combined_name(value, self.modes) or name
        if not mode.is_known(name):
            known, unknown = self.mode_numbers.split(value)
            return self.object_mode_name(known, mode_flag) if unknown else name
        if mode_flag:
            return self.traits.modes_by_member.get(name, name)
        return name

    def mode_of_object(self, kcov: KcovFields) -> str | None:
        """Return the name of an object's mode, None if it is unreadable."""
        return None if kcov.mode is None else self.object_mode_name(kcov.mode, kcov.mode_flag)

    def mode_of_saved(self, saved: SavedState) -> str | None:
        """Return the name of a saved mode, None if it is unreadable."""
        return None if saved.mode is None else self.mode_name(saved.mode, saved.mode_flag)

    @property
    def mode_names(self) -> tuple[str, ...]:
        """The names of all modes, without prefix; empty if the debug info has no names of modes."""
        names = [mode.plain_name(name) for name in self.modes]
        by_member = self.traits.modes_by_member.values() if names else ()
        return tuple(dict.fromkeys((*names, *by_member)))


TASK_LINKS: Final = tuple(_TASK_LINKS)
"""The names in a task's layout that :class:`~kcovdbg.model.task.TaskFields` lacks."""


def _added_members(type_name: str) -> Iterator[SeriesMember]:
    """Yield the members of a type that posted series add."""
    for series in table.SERIES:
        for member in series.members:
            if member.type_name == type_name:
                yield member


def field_paths(type_name: str, field: str) -> tuple[str, ...]:
    """Return the paths of a field in all kernels: mainline's paths, newest first, then the paths in
    posted series.
    """
    paths = list(_MAINLINE[type_name][field].paths)
    for member in _added_members(type_name):
        if member.field == field:
            paths += member.paths
    return tuple(paths)


def _all_paths(type_name: str) -> dict[str, tuple[str, ...]]:
    return {field: field_paths(type_name, field) for field in _MAINLINE[type_name]}


def detect_layout(target: Target) -> Layout:
    """Detect a kernel's KCOV by its types.

    :raises TargetError: if the kernel has no KCOV, or its debug info has no types.
    """
    try:
        task = BlockLayout(target, TASK, _all_paths(TASK))
    except MissingTypeError:
        raise TargetError(
            "the debug info has no struct task_struct",
            hint="give the kernel's vmlinux with debug info: -s VMLINUX",
        ) from None
    if not (task.has("kcov_mode") or task.has("kcov_area") or task.has("kcov")):
        raise TargetError(
            "this kernel has no KCOV: struct task_struct has no kcov members",
            hint="KCOV needs a kernel with CONFIG_KCOV=y",
        )
    found: dict[str, BlockLayout | None] = {TASK: task}
    for name in (KCOV, REMOTE, AREA, PERCPU):
        found[name] = _find_layout(target, name)
    try:
        modes = dict(target.enumerators(MODE))
    except MissingTypeError:
        modes = {}
    detected = table.detect_series(target, modes)
    generation = _detect_generation(target, found, modes, detected)
    traits = table.traits_of(generation.features)
    flagged_modes: dict[str, int] = {}
    for _, variant in detected:
        for name, base, bit in variant.flagged_modes:
            if base in modes:
                flagged_modes[name] = modes[base] | bit
    in_ctxsw = flags = 0
    if generation.has(Feature.CTXSW_FLAG):
        in_ctxsw = mode.IN_CTXSW
        # A bit that is part of a mode in this kernel is no flag.
        of_modes = reduce(operator.or_, flagged_modes.values(), 0)
        flags = sum(flag.bit for flag in traits.flags if not flag.bit & of_modes)
    modes.update(flagged_modes)
    mode_numbers = mode.ModeNumbers(
        traits.mode_values(modes) if modes else frozenset(), in_ctxsw, generation.names_modes
    )
    word_sizes = (series.word_size for series in traits.series if series.word_size is not None)
    return Layout(
        generation=generation,
        task=task,
        kcov=found[KCOV],
        remote=found[REMOTE],
        area=found[AREA],
        percpu=found[PERCPU],
        modes=modes,
        mode_numbers=mode_numbers,
        mode_flags=in_ctxsw | flags,
        buffer_word=next(word_sizes, target.word_size),
        in_ctxsw=in_ctxsw,
        traits=traits,
        stack_cpu=_find_stack_cpu(target, task),
        is_lock_held=_find_lock_test(target),
    )


SPINLOCK: Final = "spinlock_t"
# On PREEMPT_RT a spinlock is a mutex with an owner: Linux kernel commit 0f383b6dc96e
# ("locking/spinlock: Provide RT variant") (in v5.15), and the series outside of mainline before it.
_OWNERS: Final = ("lock.owner", "lock.rtmutex.owner")


def is_preempt_rt(target: Target) -> bool:
    """Return whether this is a PREEMPT_RT kernel: its spinlocks have an owner."""
    return find_member(target, SPINLOCK, _OWNERS) is not None


def _find_lock_test(target: Target) -> Callable[[bytes], bool]:
    owner = find_member(target, SPINLOCK, _OWNERS)
    if owner is not None:
        # The lowest bit says that there are waiters.
        return lambda lock: (
            int.from_bytes(lock[owner.offset :][: owner.size], target.byte_order) > 1
        )
    raw = find_member(target, SPINLOCK, ("rlock.raw_lock", "rlock"))
    start, size = 0, 4
    if raw is not None:
        start, size = raw.offset, min(raw.size, 4)
    # arm has ticket locks; riscv and others had them before queued locks. A ticket lock is free
    # when it serves the next ticket.
    tickets = ("rlock.raw_lock.tickets", "rlock.raw_lock.counter")
    has_tickets = find_member(target, SPINLOCK, tickets) is not None

    def is_held(lock: bytes) -> bool:
        word = lock[start:][:size]
        return any(word) and not (has_tickets and word[:2] == word[2:4])

    return is_held


def _combined_name(value: int, enumerators: Mapping[str, int]) -> str | None:
    """Return the name of a mode whose bits are modes, ``A|B``; None if a bit has no name."""
    parts = sorted(number for number in enumerators.values() if number > 0 and value & number)
    if sum(parts) != value:
        return None
    return "|".join(mode.mode_name(number, enumerators) for number in parts)


def _find_layout(target: Target, type_name: str) -> BlockLayout | None:
    try:
        return BlockLayout(target, type_name, _all_paths(type_name))
    except MissingTypeError:
        return None


def _has_member(target: Target, type_name: str, path: str) -> bool:
    return find_member(target, type_name, (path,)) is not None


def _find_stack_cpu(target: Target, task: BlockLayout) -> tuple[int, int] | None:
    """Return :attr:`Layout.stack_cpu`, for kernels before v4.9, and later ones of some
    architectures.
    """
    if task.has("cpu"):
        return None
    try:
        stack = target.member(TASK, "stack")
        cpu = target.member("struct thread_info", "cpu")
    except MissingTypeError:
        return None
    return stack.offset, cpu.offset


def _detect_generation(
    target: Target,
    layouts: Mapping[str, BlockLayout | None],
    modes: Mapping[str, int],
    detected: Sequence[tuple[Series, Variant]],
) -> Generation:
    names = frozenset(map(mode.plain_name, modes))
    own_era = next((series.era for series, _ in detected if series.era is not None), None)
    mainline = _detect_features(target, layouts, names, has_own_era=bool(own_era))
    features = {feature.value for feature in mainline}
    # Group F: features of posted series.
    for _, variant in detected:
        features |= variant.features
    plain = frozenset(features)
    return Generation(
        era=_find_era(target, mainline, names) if own_era is None else own_era.name,
        variants=tuple(variant.text for _, variant in detected if variant.text),
        features=plain,
        unrecognised=_find_unrecognized(target, names),
        missing=tuple(_find_missing(target, layouts, modes, plain, detected)),
    )


def _detect_features(
    target: Target,
    layouts: Mapping[str, BlockLayout | None],
    modes: Collection[str],
    *,
    has_own_era: bool,
) -> set[Feature]:
    """Return mainline's features in a kernel.

    One member of a group shows the group. If others are missing, the debug info is incomplete: that
    is no other generation.

    :param modes: names of its modes, without prefix.
    :param has_own_era: whether it is of a generation that only a posted series has.
    """

    def has_any(type_name: str, *fields: str) -> bool:
        layout = layouts[type_name]
        return layout is not None and any(map(layout.has, fields))

    has_remote = (
        has_any(KCOV, "remote", "remote_size")
        or has_any(TASK, "kcov_handle")
        or layouts[REMOTE] is not None
        or layouts[AREA] is not None
    )
    saved = _SAVED.split()
    saves_in_task = has_any(TASK, *saved)
    saves_per_cpu = has_any(PERCPU, "irq_area", *saved)
    features: set[Feature] = set()
    # Group A: the base.
    if has_remote and not has_own_era:
        features |= {Feature.COMPARISONS, Feature.REMOTE}
        if has_any(TASK, "kcov_softirq") or saves_in_task or saves_per_cpu:
            features.add(Feature.SOFTIRQ)
    elif not has_own_era and not {"INIT", "TRACE_PC", "TRACE_CMP"}.isdisjoint(modes):
        features.add(Feature.COMPARISONS)
    may_compare = Feature.COMPARISONS in features or not modes
    if has_remote or (may_compare and not has_own_era and _has_flags_in_mode(target)):
        features.add(Feature.CTXSW_FLAG)
    if Feature.SOFTIRQ in features:
        # Group B: the place of an interrupted session.
        if saves_in_task:
            features.add(Feature.SAVED_IN_TASK)
        elif saves_per_cpu:
            features |= {Feature.SAVED_PER_CPU, Feature.IRQ_AREA_PER_CPU}
        # Group C: the mark of a KCOV_REMOTE_ENABLE's owner.
        if has_any(TASK, "kcov_remote"):
            features.add(Feature.OWNER_MEMBER)
        if "REMOTE" in modes:
            features.add(Feature.MODE_REMOTE)
    # Group E: one list of areas, or one for tasks and one for softirqs.
    if Feature.REMOTE in features:
        has_two = _area_list_count(target) == 2
        if has_two or Feature.SAVED_IN_TASK in features:
            features.add(Feature.AREA_LISTS)
    return features


def _has_flags_in_mode(target: Target) -> bool:
    """Return whether a task's ``kcov_mode`` is a word, which has flags.

    It is an enumeration before Linux kernel commit 0ed557aa8139 ("sched/core / kcov: avoid
    kcov_area during task switch") (in v4.18).
    """
    member = find_member(target, TASK, field_paths(TASK, "kcov_mode"))
    return member is not None and not member.type_name.startswith("enum")


def _find_era(target: Target, features: Collection[Feature], modes: Collection[str]) -> str:
    """Return a kernel's row of mainline's table of generations."""
    if Feature.REMOTE not in features:
        if not modes:
            # Only the enumeration distinguishes them.
            return "E1-E2"
        return "E2" if Feature.COMPARISONS in features else "E1"
    if Feature.SOFTIRQ not in features:
        return "E3"
    if Feature.SAVED_IN_TASK in features:
        return "E9b" if Feature.OWNER_MEMBER in features else "E9a"
    if Feature.OWNER_MEMBER in features:
        return "E8"
    if Feature.MODE_REMOTE in features:
        return "E7"
    if Feature.SAVED_PER_CPU in features and not _has_member(target, PERCPU, "lock"):
        return "E4"
    # No type shows group D: whether KCOV_INIT_TRACE allocates the buffer.
    return "E5-E6"


def _find_missing(
    target: Target,
    layouts: Mapping[str, BlockLayout | None],
    modes: Mapping[str, int],
    features: frozenset[str],
    detected: Sequence[tuple[Series, Variant]],
) -> Iterator[str]:
    """Iterate over the members and modes of this generation that the debug info lacks."""
    added = [
        member
        for series, _ in detected
        for member in series.members
        if (member.feature or series.feature) in features
    ]
    for type_name, layout in layouts.items():
        known = _MAINLINE[type_name]
        moved = {
            member.field: member.paths
            for member in added
            if member.type_name == type_name and member.field
        }
        wanted = [name for name, field in known.items() if field.feature in (_ALWAYS, *features)]
        # A kernel with a series has the fields that only series have.
        wanted += [name for name in moved if not known[name].paths]
        if layout is None:
            if wanted:
                yield type_name
            continue
        for name in wanted:
            if not layout.has(name):
                paths = moved.get(name) or known[name].paths
                yield f"{type_name}.{paths[0]}"
    if Feature.SOFTIRQ in features and features.isdisjoint(
        (Feature.SAVED_IN_TASK, Feature.SAVED_PER_CPU)
    ):
        yield PERCPU
    yield from (name for name in _expected_modes(features, detected) if name not in modes)
    if Feature.SAVED_IN_TASK in features and features.isdisjoint(
        (Feature.OWNER_MEMBER, Feature.MODE_REMOTE)
    ):
        yield f"{TASK}.kcov_remote, or else {MODE_PREFIX}REMOTE"
    for type_name, name in _EXPECTED_ELSEWHERE:
        if not _has_member(target, type_name, name):
            yield f"{type_name}.{name}"
    for member in added:
        is_read = member.field is None and member.expected
        if is_read and find_member(target, member.type_name, member.paths) is None:
            yield f"{member.type_name}.{member.paths[0]}"


def _expected_modes(
    features: frozenset[str], detected: Sequence[tuple[Series, Variant]]
) -> Iterator[str]:
    names: tuple[str, ...] = ("DISABLED", "TRACE")
    if Feature.COMPARISONS in features:
        names = ("DISABLED", "TRACE_PC", "TRACE_CMP", "INIT")
    replaced = frozenset(name for series, _ in detected for name in series.replaced)
    yield from (full for name in names if (full := MODE_PREFIX + name) not in replaced)
    for _, variant in detected:
        yield from variant.enumerators


def _area_list_count(target: Target) -> int:
    try:
        length = target.array_length("kcov_remote_areas")
    except MissingSymbolError:
        # Without a type, the size of the symbol shows whether it is one list head or two.
        symbol = find_kernel_symbol(target, "kcov_remote_areas")
        return 0 if symbol is None else symbol.size // (2 * target.word_size)
    return length or 1


def known_members(type_name: str) -> frozenset[str]:
    """Return the names of KCOV's members of a type that some generation or series has."""
    paths = [path for field in _MAINLINE.get(type_name, {}).values() for path in field.paths]
    for member in _added_members(type_name):
        paths += member.paths
    names = frozenset(path.split(".")[0] for path in paths)
    if type_name != TASK:
        return names
    return frozenset(name for name in names if name.startswith("kcov"))


def known_modes() -> frozenset[str]:
    """Return the names of all modes that some generation or series has, without prefix."""
    return _KNOWN_MODES.union(
        mode.plain_name(name) for series in table.SERIES for name in series.enumerators
    )


def _find_unrecognized(target: Target, names: frozenset[str]) -> tuple[str, ...]:
    known = known_members(TASK)
    own = [name for name in target.member_names(TASK) if name.startswith("kcov")]
    found = [f"{TASK}.{name}" for name in own if name not in known]
    with contextlib.suppress(MissingTypeError):
        known = known_members(KCOV)
        found += [f"{KCOV}.{name}" for name in target.member_names(KCOV) if name not in known]
    found += [f"{MODE_PREFIX}{name}" for name in sorted(names - known_modes())]
    return tuple(found)
