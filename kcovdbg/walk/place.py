# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where the buffers lie that users name: ``41``, ``kcov:0x…``, ``area:0x…``, ``fd:41/3``, ``saved:0``, ``saved:t41``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from kcovdbg.abi.era import Feature
from kcovdbg.abi.mode import UNIQ_BOTH, is_known, is_tracing
from kcovdbg.errors import KcovdbgError, MissingTypeError, ReadError, UsageError
from kcovdbg.model.kcov import KcovFields
from kcovdbg.model.task import Role, SavedState, Task
from kcovdbg.target import Target
from kcovdbg.walk.census import Census
from kcovdbg.walk.layout import Layout
from kcovdbg.walk.objects import find_edges, read_count

_FORMS: Final = "TID, kcov:ADDRESS, area:ADDRESS, fd:PID/FD, saved:CPU, saved:tTID, file:PATH or @NAME"
_FREE_LIST_REMARK: Final = "the area is on the free list: list pointers overlay its count, and what it holds is left over"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a buffer lies and what is known of it before it is read."""

    name: str
    address: int
    size: int | None
    """In words of the kernel."""
    mode: str | None
    kcov: int | None = None
    task: int | None = None
    """``struct task_struct *`` whose fields describe it, None where the object's do."""
    pid: int | None = None
    comm: str | None = None
    private: bool = False
    cached: bool = False
    """On a free list."""
    remarks: tuple[str, ...] = ()
    doubt: str | None = None
    """Why ``mode``, which says what records there are, isn't known though the kernel has it."""
    edges: int | None = None
    """The other buffer, where addresses and edges are collected at once (January 2025 series)."""


def find_place(target: Target, layout: Layout, census: Census, name: str) -> Place:
    """Find the buffer with this name.

    :raises UsageError: when the name is of no such form.
    :raises KcovdbgError: when there is no such buffer.
    """
    check_name(name)
    kind, colon, rest = name.partition(":")
    if not colon:
        return _with_edges(target, layout, _place_of_task(layout, census, name, _number(name, name, 10)))
    if kind == "kcov":
        return _place_of_object(target, layout, census, name, _number(rest, name))
    if kind == "area":
        return _place_of_area(target, layout, census, name, _number(rest, name))
    if kind == "fd":
        pid, _, fd = rest.partition("/")
        return _place_of_descriptor(target, layout, census, name, _number(pid, name, 10), _number(fd, name, 10))
    return _place_of_saved(layout, census, name, rest)


def check_name(name: str) -> None:
    """Make sure that this has the form of a buffer's name, without looking for it.

    :raises UsageError: when it hasn't.
    """
    kind, colon, rest = name.partition(":")
    if not colon:
        if not name.isdecimal():
            raise UsageError(f"{name} names no buffer: a task's is named by its id", hint=f"tasks shows ids; else {_FORMS}")
    elif kind in ("kcov", "area"):
        _number(rest, name)
    elif kind == "fd":
        pid, slash, fd = rest.partition("/")
        if not slash:
            raise UsageError(f"{name}: a descriptor is fd:PID/FD", hint="for instance fd:41/3")
        _number(pid, name, 10)
        _number(fd, name, 10)
    elif kind == "saved":
        _number(rest.removeprefix("t"), name, 10)
    else:
        raise UsageError(f"{name} names no buffer", hint=_FORMS)


def _number(text: str, name: str, base: int = 16) -> int:
    try:
        return int(text, base)
    except ValueError:
        raise UsageError(
            f"{name}: {text or 'nothing'} is no {'number' if base == 10 else 'address'}",
            hint=_FORMS,
        ) from None


def _find_task(census: Census, tid: int) -> Task:
    # Every CPU has an idle task with pid 0; one that has any KCOV state is meant.
    found = [task for task in census.tasks(all_tasks=True) if task.fields.pid == tid]
    if not found:
        raise KcovdbgError(f"there is no task {tid}", hint="see: tasks -a")
    return next((task for task in found if task.fields.kcov_area), found[0])


def _place_of_task(layout: Layout, census: Census, name: str, tid: int) -> Place:
    return _place_of_found(layout, census, name, _find_task(census, tid))


def _place_of_found(layout: Layout, census: Census, name: str, task: Task) -> Place:
    fields = task.fields
    if fields.kcov_area:
        return Place(
            name=name,
            address=fields.kcov_area,
            size=fields.kcov_size,
            mode=task.mode,
            kcov=fields.kcov,
            task=fields.address,
            pid=fields.pid,
            comm=fields.comm,
            private=task.role in (Role.REMOTE_SECTION, Role.SOFTIRQ_SECTION),
            doubt=_doubt_mode(layout, "task", fields.kcov_mode),
        )
    # Where the task's area isn't known, only a session that isn't a section has the object's.
    area_is_lost = fields.kcov_area is None and task.role not in (Role.LOCAL, Role.NONE)
    for pointer in (fields.kcov_remote, fields.kcov):
        if not pointer or area_is_lost:
            continue
        kcov = census.kcov(pointer)
        if kcov.area:
            return _place_of_fields(layout, name, kcov, fields.pid, fields.comm)
    why = f"task {fields.pid} ({fields.comm}) has no coverage buffer"
    if task.errors:
        why += f": {task.errors[0]}"
    raise KcovdbgError(why, hint="see: tasks, and objects for buffers that no task collects into now")


def _doubt_mode(layout: Layout, whose: str, word: int | None) -> str | None:
    """Say why a mode can't be named, where more than one kind of records would follow from it."""
    if not layout.generation.has(Feature.COMPARISONS):
        return None
    if word is None:
        return f"the {whose}'s mode isn't known"
    mode = layout.object_mode_name(word) if whose == "object" else layout.mode_name(word)
    return None if is_known(mode) else f"the {whose}'s mode is {mode}, and the debug info has no name for it"


def _place_of_fields(layout: Layout, name: str, kcov: KcovFields, pid: int | None, comm: str | None) -> Place:
    if not kcov.area:
        raise KcovdbgError(
            f"struct kcov at {kcov.address:#x} has no buffer",
            hint="nobody called KCOV_INIT_TRACE on it, or, before v5.18, nobody mapped it",
        )
    mode = None if kcov.mode is None else layout.object_mode_name(kcov.mode)
    doubt = _doubt_mode(layout, "object", kcov.mode)
    return Place(name=name, address=kcov.area, size=kcov.size, mode=mode, kcov=kcov.address, pid=pid, comm=comm, doubt=doubt)


def _owner(census: Census, kcov: KcovFields) -> tuple[int | None, str | None]:
    task = census.by_address.get(kcov.task or 0)
    return (None, None) if task is None else (task.pid, task.comm)


def _place_of_object(target: Target, layout: Layout, census: Census, name: str, address: int) -> Place:
    kcov = census.kcov(address)
    return _with_edges(target, layout, _place_of_fields(layout, name, kcov, *_owner(census, kcov)))


def _with_edges(target: Target, layout: Layout, place: Place) -> Place:
    """Point at the edges' own area where edges are collected, and name the other one (January 2025 series).

    The object has ``map_edge->area`` for edges beside its ``area`` for addresses; a task that collects only knows the latter.

    :raises KcovdbgError: when edges alone are collected and their area can't be found: the other one isn't what was asked for.
    """
    if not layout.generation.has(Feature.UNIQUE_MAPS) or place.private:
        return place
    if place.mode not in ("TRACE_UNIQ_EDGE", UNIQ_BOTH):
        return _with_left_edges(target, layout, place)
    try:
        if place.kcov is None:
            raise MissingTypeError("whose session it is isn't known")  # noqa: TRY301
        edges = find_edges(target, place.kcov)
    except (MissingTypeError, ReadError) as error:
        problem = f"the edges' own buffer can't be found: {error}"
        if place.mode == "TRACE_UNIQ_EDGE":
            raise KcovdbgError(problem, hint=f"the buffer for addresses is area:{place.address:#x}") from None
        return replace(place, remarks=(*place.remarks, problem))
    if place.mode == "TRACE_UNIQ_EDGE":
        remark = f"these are the edges, in area:{edges:#x}; the object's buffer for addresses is area:{place.address:#x}"
        return replace(place, address=edges, remarks=(*place.remarks, remark))
    remark = f"these are the addresses, in area:{place.address:#x}; edges are in a buffer of their own: area:{edges:#x}"
    return replace(place, remarks=(*place.remarks, remark), edges=edges)


def _with_left_edges(target: Target, layout: Layout, place: Place) -> Place:
    """Point at edges that are left in an object that isn't enabled: what it recorded last isn't remembered."""
    if place.kcov is None or place.mode is None or is_tracing(place.mode):
        return place
    try:
        edges = find_edges(target, place.kcov)
        if not read_count(target, layout, edges, "TRACE_UNIQ_EDGE"):
            return place
    except (MissingTypeError, ReadError):
        # objects says so.
        return place
    remark = f"edges are left in the object's other buffer: area:{edges:#x}"
    return replace(place, edges=edges, remarks=(*place.remarks, remark))


def _place_of_descriptor(target: Target, layout: Layout, census: Census, name: str, pid: int, fd: int) -> Place:
    # Descriptors are listed for a table's first task: threads share it, and so may processes.
    tables = {task.files for task in census.task_fields if pid in (task.pid, task.tgid) and task.files}
    sharers = {pid} | {task.tgid for task in census.task_fields if task.files in tables}
    for address, kcov in census.objects.items():
        for reference in kcov.references:
            if reference.kind == "fd" and reference.fd == fd and reference.pid in sharers:
                return _place_of_object(target, layout, census, name, address)
    raise KcovdbgError(f"descriptor {fd} of process {pid} isn't KCOV's", hint="see: objects")


def _place_of_saved(layout: Layout, census: Census, name: str, which: str) -> Place:
    by_task = which.startswith("t")
    number = _number(which.removeprefix("t"), name, 10)
    for saved in census.saved:
        if (saved.pid if by_task else saved.cpu) == number and saved.area:
            return _place_of_session(layout, census, name, saved)
    whose = f"task {number}" if by_task else f"CPU {number}"
    raise KcovdbgError(f"{whose} has no saved session with a buffer", hint="see: percpu")


def _place_of_session(layout: Layout, census: Census, name: str, saved: SavedState) -> Place:
    private = False
    if saved.kcov:
        try:
            private = census.kcov(saved.kcov).area != saved.area
        except (ReadError, MissingTypeError):
            private = False
    return Place(
        name=name,
        address=saved.area or 0,
        size=saved.size,
        mode=None if saved.mode is None else layout.mode_name(saved.mode),
        kcov=saved.kcov,
        pid=saved.pid,
        comm=saved.comm,
        private=private,
        doubt=_doubt_mode(layout, "saved session", saved.mode),
    )


def _place_of_area(target: Target, layout: Layout, census: Census, name: str, address: int) -> Place:
    for task in census.tasks():
        if task.fields.kcov_area == address:
            return _for_addresses(replace(_place_of_found(layout, census, name, task), address=address))
        if task.saved is not None and task.saved.area == address:
            return _place_of_session(layout, census, name, task.saved)
    for area in census.areas:
        if area.address == address:
            # The areas of CPUs aren't on a list while they are idle: nothing overlays their count.
            cached = area.state == "cached" and area.cpu is None
            remarks = (_FREE_LIST_REMARK,) if cached else () if area.state == "in-use" else ("no section uses the area now",)
            return Place(name=name, address=address, size=area.size, mode=None, cached=cached, private=True, remarks=remarks)
    for kcov in census.objects.values():
        if kcov.fields is None:
            continue
        if kcov.fields.area == address:
            return _for_addresses(_place_of_fields(layout, name, kcov.fields, kcov.pid, kcov.comm))
        if layout.generation.has(Feature.UNIQUE_MAPS) and kcov.fields.area and _edges_are_at(target, kcov.address, address):
            place = _place_of_fields(layout, name, kcov.fields, kcov.pid, kcov.comm)
            return replace(place, address=address, mode="TRACE_UNIQ_EDGE", doubt=None)
    return Place(
        name=name,
        address=address,
        size=allocated_words(target, layout, address),
        mode=None,
        remarks=(f"nothing of KCOV refers to {address:#x}: it is read as a buffer because you say so",),
    )


def _for_addresses(place: Place) -> Place:
    """Describe an object's area, in which edges never are."""
    return replace(place, mode="TRACE_UNIQ_PC") if place.mode in ("TRACE_UNIQ_EDGE", UNIQ_BOTH) else place


def _edges_are_at(target: Target, kcov: int | None, address: int) -> bool:
    try:
        return kcov is not None and find_edges(target, kcov) == address
    except (MissingTypeError, ReadError):
        return False


def allocated_words(target: Target, layout: Layout, address: int) -> int | None:
    """Return how many words of the kernel were allocated with vmalloc at an address, None where that can't be told."""
    if target.vmalloc is None:
        return None
    try:
        found = next((area for area in target.vmalloc.for_each_vmalloc_area() if area.start == address), None)
    except ReadError:
        return None
    return None if found is None else found.size // layout.buffer_word
