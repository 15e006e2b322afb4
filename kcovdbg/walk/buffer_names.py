# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names of buffers, and where the buffers are: ``41``, ``kcov:0x…``, ``area:0x…``, ``fd:41/3``, ``saved:0``, ``saved:t41``."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Final

from kcovdbg.abi.generations import Feature
from kcovdbg.abi.mode import is_known, is_tracing
from kcovdbg.errors import KcovdbgError, MissingTypeError, ReadError, UsageError
from kcovdbg.model.device import DeviceSession
from kcovdbg.model.kcov import Kcov, KcovFields
from kcovdbg.model.state import Part, StateSource
from kcovdbg.model.task import Role, SavedState, Task, TaskFiles
from kcovdbg.series import table
from kcovdbg.series.declaration import BufferFacts, Device, SecondBuffer
from kcovdbg.target.pointer import strip_tag
from kcovdbg.target.protocol import Target
from kcovdbg.walk.layout import Layout
from kcovdbg.walk.objects import read_count

_FORMS: Final = "TID, kcov:ADDRESS, area:ADDRESS, fd:PID/FD, saved:CPU, saved:tTID, file:PATH or @NAME"
_FREE_LIST_REMARK: Final = "on the free list: list pointers overlay the count, and records are left over from earlier use"


def find_buffer_facts(target: Target, layout: Layout, source: StateSource, name: str) -> BufferFacts:
    """Find the buffer with this name.

    :raises UsageError: if the name has no such form.
    :raises KcovdbgError: if there is no such buffer.
    """
    check_name(name)
    kind, colon, rest = name.partition(":")
    if not colon:
        return _with_edges(target, layout, _facts_of_found(layout, source, name, _find_task(source, int(name))))
    if kind == "kcov":
        return _facts_of_object(target, layout, source, name, strip_tag(target, _number(rest, name)))
    if kind in table.device_names():
        return _facts_of_device(target, source, name, kind, rest)
    if kind == "area":
        return _facts_of_area(target, layout, source, name, strip_tag(target, _number(rest, name)))
    if kind == "fd":
        pid, _, fd = rest.partition("/")
        return _facts_of_descriptor(target, layout, source, name, _number(pid, name, 10), _number(fd, name, 10))
    return _facts_of_saved(layout, source, name, rest)


def check_name(name: str) -> None:
    """Check that this has the form of a buffer's name, without looking for the buffer.

    :raises UsageError: if it does not.
    """
    kind, colon, rest = name.partition(":")
    if not colon:
        if not name.isdecimal():
            raise UsageError(f"'{name}' is not a buffer name; use a thread id for a task's buffer", hint=_FORMS)
    elif kind in ("kcov", "area"):
        _number(rest, name)
    elif kind == "fd":
        pid, slash, fd = rest.partition("/")
        if not slash:
            raise UsageError(f"'{name}' is not a descriptor", hint="fd:PID/FD, for instance fd:41/3")
        _number(pid, name, 10)
        _number(fd, name, 10)
    elif kind in table.device_names():
        _number(rest, name, 10 if rest.isdecimal() else 16)
    elif kind == "saved":
        _number(rest.removeprefix("t"), name, 10)
    else:
        raise UsageError(f"'{name}' is not a buffer name", hint=_FORMS)


def _number(text: str, name: str, base: int = 16) -> int:
    try:
        return int(text, base)
    except ValueError:
        raise UsageError(f"{name}: '{text}' is not {'a number' if base == 10 else 'an address'}", hint=_FORMS) from None


def _find_task(source: StateSource, tid: int) -> Task:
    # Every CPU has an idle task with pid 0: prefer one with KCOV state.
    found = [task for task in source.read(Part.ALL_TASKS).all_tasks if task.fields.pid == tid]
    if not found:
        raise KcovdbgError(f"no task {tid}", hint="tasks -a lists all")
    return next((task for task in found if task.fields.kcov_area), found[0])


def _facts_of_found(layout: Layout, source: StateSource, name: str, task: Task) -> BufferFacts:
    fields = task.fields
    if fields.kcov_area:
        return BufferFacts(
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
    # If the task's area is unknown, only a session that is not a section uses the object's.
    area_is_lost = fields.kcov_area is None and task.role not in (Role.LOCAL, Role.NONE)
    for pointer in (fields.kcov_remote, fields.kcov):
        if not pointer or area_is_lost:
            continue
        kcov = source.kcov(pointer)
        if kcov.area:
            return _facts_of_fields(layout, name, kcov, fields.pid, fields.comm)
    for session in _device_sessions(source):
        if session.task == fields.address and session.area:
            return _facts_of_device_session(source, name, session)
    problem = f"task {fields.pid} ({fields.comm}) has no coverage buffer"
    if task.errors:
        problem += f": {task.errors[0]}"
    raise KcovdbgError(problem, hint="tasks lists those that have one, objects lists all buffers")


def _doubt_mode(layout: Layout, whose: str, word: int | None) -> str | None:
    """Return why a mode, on which the format of records depends, is unknown; None if it is not."""
    if not layout.generation.has(Feature.COMPARISONS):
        return None
    if word is None:
        return f"mode of the {whose} is unknown"
    mode = layout.object_mode_name(word) if whose == "object" else layout.mode_name(word)
    return None if is_known(mode) else f"mode {mode} of the {whose} has no name in the debug info"


def _facts_of_fields(layout: Layout, name: str, kcov: KcovFields, pid: int | None, comm: str | None) -> BufferFacts:
    if not kcov.area:
        raise KcovdbgError(
            f"struct kcov at {kcov.address:#x} has no buffer",
            hint="it comes with KCOV_INIT_TRACE, before v5.18 with the first mmap()",
        )
    mode = None if kcov.mode is None else layout.object_mode_name(kcov.mode)
    doubt = _doubt_mode(layout, "object", kcov.mode)
    return BufferFacts(
        name=name, address=kcov.area, size=kcov.size, mode=mode, kcov=kcov.address, pid=pid, comm=comm, doubt=doubt
    )


def _owner(source: StateSource, kcov: KcovFields) -> tuple[int | None, str | None]:
    task = source.read(Part.TASKS).task_by_address.get(kcov.task or 0)
    return (None, None) if task is None else (task.pid, task.comm)


def _facts_of_object(target: Target, layout: Layout, source: StateSource, name: str, address: int) -> BufferFacts:
    kcov = source.kcov(address)
    return _with_edges(target, layout, _facts_of_fields(layout, name, kcov, *_owner(source, kcov)))


def _with_edges(target: Target, layout: Layout, facts: BufferFacts) -> BufferFacts:
    """Add the second buffer where it is written, and name the other one.

    A task's own fields only know the object's first buffer.

    :raises KcovdbgError: if only the second buffer is written and cannot be found: the first one would mislead.
    """
    second = layout.traits.second_buffer
    if second is None or facts.private:
        return facts
    if facts.mode not in second.alone | second.both:
        return _with_left_edges(target, layout, second, facts)
    try:
        if facts.kcov is None:
            raise MissingTypeError("the object is unknown")  # noqa: TRY301
        edges = second.find(target, facts.kcov)
    except (MissingTypeError, ReadError) as error:
        problem = f"buffer of edges cannot be found: {error}"
        if facts.mode in second.alone:
            raise KcovdbgError(problem, hint=f"the buffer of addresses is area:{facts.address:#x}") from None
        return replace(facts, remarks=(*facts.remarks, problem))
    if facts.mode in second.alone:
        remark = f"edges, in area:{edges:#x}; the object's buffer of addresses is area:{facts.address:#x}"
        return replace(facts, address=edges, remarks=(*facts.remarks, remark))
    remark = f"addresses, in area:{facts.address:#x}; edges are in a buffer of their own: area:{edges:#x}"
    return replace(facts, remarks=(*facts.remarks, remark), edges=edges)


def _with_left_edges(target: Target, layout: Layout, second: SecondBuffer, facts: BufferFacts) -> BufferFacts:
    """Add the second buffer of an object that is not enabled, if it has records: the kernel does not keep its last mode."""
    if facts.kcov is None or facts.mode is None or is_tracing(facts.mode):
        return facts
    try:
        edges = second.find(target, facts.kcov)
        if not read_count(target, layout, edges, second.mode):
            return facts
    except (MissingTypeError, ReadError):
        # objects reports it.
        return facts
    remark = f"edges are left in the object's other buffer: area:{edges:#x}"
    return replace(facts, edges=edges, remarks=(*facts.remarks, remark))


def _facts_of_descriptor(target: Target, layout: Layout, source: StateSource, name: str, pid: int, fd: int) -> BufferFacts:
    # A thread has the table of its process, unless it has one for itself.
    tasks = source.read(Part.TASKS).task_fields
    task = next((task for task in tasks if task.pid == pid), None)
    sharers = {pid} if task is None else TaskFiles(tasks, task).table_ids
    for kcov in (*source.read(Part.OBJECTS).objects.values(), *_device_objects(source)):
        if any(found.kind == "fd" and found.fd == fd and found.pid in sharers for found in kcov.references):
            if kcov.device is not None:
                return _facts_of_device_object(source, name, kcov)
            return _facts_of_object(target, layout, source, name, kcov.address or 0)
    raise KcovdbgError(f"descriptor {fd} of task {pid} is not KCOV's", hint="objects lists those that are")


def _facts_of_device(target: Target, source: StateSource, name: str, device: str, rest: str) -> BufferFacts:
    """Find a buffer of a device of a posted series: of a task, or of an object."""
    if rest.isdecimal():
        tid = int(rest)
        for session in _device_sessions(source):
            if session.device == device and session.pid == tid and session.area:
                return _facts_of_device_session(source, name, session)
        raise KcovdbgError(f"task {tid} has no session of {device}", hint="tasks lists sessions")
    address = strip_tag(target, _number(rest, name))
    for kcov in _device_objects(source):
        if kcov.device == device and kcov.address == address:
            return _facts_of_device_object(source, name, kcov)
    raise KcovdbgError(f"no object of {device} is known at {address:#x}", hint="objects lists known objects")


def _device_sessions(source: StateSource) -> tuple[DeviceSession, ...]:
    return tuple(session for device in source.read(Part.DEVICES).devices for session in device.sessions)


def _device_objects(source: StateSource) -> tuple[Kcov, ...]:
    return tuple(kcov for device in source.read(Part.DEVICES).devices for kcov in device.objects.values())


def _device(source: StateSource, name: str | None) -> Device:
    return next(table.find_device(state.feature) for state in source.read(Part.DEVICES).devices if state.name == name)


def _facts_of_device_session(source: StateSource, name: str, session: DeviceSession) -> BufferFacts:
    own = next((kcov.fields for kcov in _device_objects(source) if session.kcov and kcov.address == session.kcov), None)
    return BufferFacts(
        name=name,
        address=session.area or 0,
        size=session.size,
        mode=_device(source, session.device).mode,
        pid=session.pid,
        comm=session.comm,
        private=bool(session.depth) and (own is None or own.area != session.area),
    )


def _facts_of_device_object(source: StateSource, name: str, kcov: Kcov) -> BufferFacts:
    device, fields = _device(source, kcov.device), kcov.fields
    if fields is None or not fields.area:
        raise KcovdbgError(
            f"the object of {device.name} at {kcov.address or 0:#x} has no buffer", hint=f"it comes with {device.init_request}"
        )
    return BufferFacts(
        name=name,
        address=fields.area,
        size=fields.size,
        mode=device.mode,
        pid=kcov.pid,
        comm=kcov.comm,
    )


def _facts_of_saved(layout: Layout, source: StateSource, name: str, which: str) -> BufferFacts:
    by_task = which.startswith("t")
    number = _number(which.removeprefix("t"), name, 10)
    for saved in source.read(Part.SAVED).saved:
        if (saved.pid if by_task else saved.cpu) == number and saved.area:
            return _facts_of_session(layout, source, name, saved)
    whose = f"task {number}" if by_task else f"CPU {number}"
    raise KcovdbgError(f"{whose} has no saved session with a buffer", hint="saved lists saved sessions")


def _facts_of_session(layout: Layout, source: StateSource, name: str, saved: SavedState) -> BufferFacts:
    private = False
    with contextlib.suppress(ReadError, MissingTypeError):
        private = bool(saved.kcov) and source.kcov(saved.kcov or 0).area != saved.area
    return BufferFacts(
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


def _facts_of_area(target: Target, layout: Layout, source: StateSource, name: str, address: int) -> BufferFacts:
    for task in source.read(Part.TASKS).tasks:
        if task.fields.kcov_area == address:
            return _as_first(layout, replace(_facts_of_found(layout, source, name, task), address=address))
        if task.saved is not None and task.saved.area == address:
            return _facts_of_session(layout, source, name, task.saved)
    for area in source.read(Part.AREAS).areas:
        if area.address == address:
            # Idle areas of CPUs are on no list: nothing overlays their count.
            cached = area.state == "cached" and area.cpu is None
            remarks = (_FREE_LIST_REMARK,) if cached else () if area.state == "in-use" else ("no section uses the area",)
            return BufferFacts(
                name=name, address=address, size=area.size, mode=None, cached=cached, private=True, remarks=remarks
            )
    for kcov in source.read(Part.OBJECTS).objects.values():
        if kcov.fields is None:
            continue
        if kcov.fields.area == address:
            return _as_first(layout, _facts_of_fields(layout, name, kcov.fields, kcov.pid, kcov.comm))
        second = layout.traits.second_buffer
        if second is not None and kcov.fields.area and _is_second(target, second, kcov.address, address):
            facts = _facts_of_fields(layout, name, kcov.fields, kcov.pid, kcov.comm)
            return replace(facts, address=address, mode=second.mode, doubt=None)
    for session in _device_sessions(source):
        if session.area == address and session.depth:
            return _facts_of_device_session(source, name, session)
    for kcov in _device_objects(source):
        if kcov.fields is not None and kcov.fields.area == address:
            return _facts_of_device_object(source, name, kcov)
    size = _vmalloc_size(target, address)
    words = None if size is None else size // layout.buffer_word
    return BufferFacts(name, address, words, None, remarks=(f"{address:#x} is not known to KCOV; read as requested",))


def _vmalloc_size(target: Target, address: int) -> int | None:
    """Return the size in bytes of the vmalloc area at an address, None where none is known, as behind damage to the lists."""
    if target.vmalloc is None:
        return None
    # The lists raise their damage when all that can be read was yielded.
    with contextlib.suppress(ReadError):
        return next((area.size for area in target.vmalloc.for_each_vmalloc_area() if area.start == address), None)
    return None


def _as_first(layout: Layout, facts: BufferFacts) -> BufferFacts:
    """Describe an object's first buffer, in which records of the second one never are."""
    second = layout.traits.second_buffer
    if second is None or facts.mode not in second.alone | second.both:
        return facts
    return replace(facts, mode=second.first_mode)


def _is_second(target: Target, second: SecondBuffer, kcov: int | None, address: int) -> bool:
    try:
        return kcov is not None and second.find(target, kcov) == address
    except (MissingTypeError, ReadError):
        return False
