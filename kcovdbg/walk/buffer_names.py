# SPDX-License-Identifier: LGPL-2.1-or-later
"""Parses names of buffers (``41``, ``kcov:0x…``, ``area:0x…``, ``fd:41/3``, ``saved:0``,
``saved:t41``), and finds the buffers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from kcovdbg.abi.generations import Feature
from kcovdbg.abi.mode import is_known, is_tracing, name_bits, strip_flags
from kcovdbg.errors import KcovdbgError, MissingTypeError, ReadError, UsageError
from kcovdbg.model.device import DeviceSession
from kcovdbg.model.kcov import HasTask, Kcov, KcovFields
from kcovdbg.model.state import Part, StateSource
from kcovdbg.model.task import Role, SavedState, Task, TaskFiles
from kcovdbg.series import table
from kcovdbg.series.declaration import BufferFacts, SecondBuffer
from kcovdbg.target.pointer import strip_tag
from kcovdbg.target.target import Target
from kcovdbg.walk.layout import Layout
from kcovdbg.walk.objects import read_count

_FORMS: Final = (
    "TID, kcov:ADDRESS, area:ADDRESS, fd:PID/FD, saved:CPU, saved:tTID, file:PATH or @NAME"
)
_FREE_LIST_REMARK: Final = (
    "on the free list: list pointers overlay the count, and records are left over from earlier use"
)


class BufferName(NamedTuple):
    """The parts of a buffer's name."""

    kind: str
    """``kcov``, ``area``, ``fd``, ``saved``, the name of a posted series' device, or empty for the
    buffer of a task.
    """
    number: int
    """A thread id, a CPU or an address."""
    fd: int = 0
    """A descriptor."""
    is_task: bool = False
    """Whether the number is a thread id."""


def parse_name(name: str) -> BufferName:
    """Return the parts of a buffer's name; the buffer need not exist.

    :raises UsageError: if it is no name of a buffer.
    """

    def number(text: str, base: int = 16) -> int:
        try:
            return int(text, base)
        except ValueError:
            wanted = "a number" if base == 10 else "an address"
            raise UsageError(f"{name}: '{text}' is not {wanted}", hint=_FORMS) from None

    kind, colon, rest = name.partition(":")
    if not colon:
        if not name.isdecimal():
            raise UsageError(
                f"'{name}' is not a buffer name; use a thread id for a task's buffer", hint=_FORMS
            )
        return BufferName("", int(name), is_task=True)
    if kind in ("kcov", "area"):
        return BufferName(kind, number(rest))
    if kind == "fd":
        pid, slash, fd = rest.partition("/")
        if not slash:
            raise UsageError(
                f"'{name}' is not a descriptor", hint="fd:PID/FD, for instance fd:41/3"
            )
        return BufferName(kind, number(pid, 10), number(fd, 10))
    if kind == "saved":
        return BufferName(kind, number(rest.removeprefix("t"), 10), is_task=rest.startswith("t"))
    if any(kind == device.name for device in table.devices()):
        if rest.isdecimal():
            return BufferName(kind, int(rest), is_task=True)
        return BufferName(kind, number(rest))
    raise UsageError(f"'{name}' is not a buffer name", hint=_FORMS)


def find_buffer_facts(
    target: Target, layout: Layout, source: StateSource, name: str
) -> BufferFacts:
    """Find the buffer with this name.

    :raises UsageError: if it is no name of a buffer.
    :raises KcovdbgError: if there is no such buffer.
    """
    kind, number, fd, is_task = parse_name(name)
    search = _BufferSearch(target, layout, source, name)
    if not kind:
        return search.find_of_task(number)
    if kind == "fd":
        return search.find_descriptor(number, fd)
    if kind == "saved":
        return search.find_saved(number, is_task=is_task)
    if is_task:
        return search.find_device_session(kind, number)
    address = strip_tag(target, number)
    if kind == "kcov":
        return search.of_object(source.kcov(address))
    if kind == "area":
        return search.find_area(address)
    return search.find_device_object(kind, address)


class _BufferSearch:
    """The search for one buffer."""

    def __init__(self, target: Target, layout: Layout, source: StateSource, name: str) -> None:
        self._target = target
        self._layout = layout
        self._source = source
        self._second = layout.traits.second_buffer
        self._facts = partial(BufferFacts, name)

    def find_of_task(self, tid: int) -> BufferFacts:
        return self._with_second(self._of_task(self._source.read(Part.ALL_TASKS).find_task(tid)))

    def _of_task(self, task: Task) -> BufferFacts:
        fields = task.fields
        if fields.kcov_area:
            return self._facts(
                address=fields.kcov_area,
                size=fields.kcov_size,
                mode=task.mode,
                kcov=fields.kcov,
                task=fields.address,
                pid=fields.pid,
                comm=fields.comm,
                private=task.role in (Role.REMOTE_SECTION, Role.SOFTIRQ_SECTION),
                remarks=() if task.session.is_certain else task.session.errors,
                doubt=self._doubt_mode("task", fields.kcov_mode, fields.kcov),
            )
        # A task whose area is unknown may be in a section, which does not use the object's buffer.
        area_is_lost = fields.kcov_area is None and task.role not in (Role.LOCAL, Role.NONE)
        for pointer in (fields.kcov_remote, fields.kcov):
            if not pointer or area_is_lost:
                continue
            kcov = self._source.kcov(pointer)
            if kcov.area:
                return self._of_fields(kcov, fields)
        for session in self._device_sessions:
            if session.task == fields.address and session.area:
                return self._of_device_session(session)
        problem = f"task {fields.pid} ({fields.comm}) has no coverage buffer"
        if task.errors:
            problem += f": {task.errors[0]}"
        raise KcovdbgError(
            problem, hint="tasks lists those that have one, objects lists all buffers"
        )

    def _doubt_mode(self, whose: str, word: int | None, kcov: int | None = None) -> str | None:
        """Return why a mode is unknown, and with it the format of records; None if it is known.

        :param whose: ``task``, ``saved session`` or ``object``.
        :param word: the mode word.
        :param kcov: the object of a session.
        """
        if not self._layout.generation.has(Feature.COMPARISONS):
            return None
        if word is None:
            return f"mode of the {whose} is unknown"
        value = word
        if whose != "object":
            value = strip_flags(word, self._layout.mode_flags)
        mode = self._layout.object_mode_name(value)
        if not is_known(mode):
            return f"mode {mode} of the {whose} has no name in the debug info"
        unknown = self._layout.mode_numbers.split(value)[1]
        if kcov:
            with contextlib.suppress(ReadError, MissingTypeError):
                unknown |= self._layout.mode_numbers.split(self._source.kcov(kcov).mode or 0)[1]
        return f"mode {name_bits(unknown)} is unknown" if unknown else None

    def _of_fields(self, kcov: KcovFields, owner: HasTask | None) -> BufferFacts:
        if not kcov.area:
            raise KcovdbgError(
                f"struct kcov at {kcov.address:#x} has no buffer",
                hint="it comes with KCOV_INIT_TRACE, before v5.18 with the first mmap()",
            )
        pid = comm = None
        if owner is not None:
            pid, comm = owner.pid, owner.comm
        return self._facts(
            address=kcov.area,
            size=kcov.size,
            mode=self._layout.mode_of_object(kcov),
            kcov=kcov.address,
            pid=pid,
            comm=comm,
            doubt=self._doubt_mode("object", kcov.mode),
        )

    def of_object(self, kcov: KcovFields) -> BufferFacts:
        owner = self._source.read(Part.TASKS).task_by_address.get(kcov.task or 0)
        return self._with_second(self._of_fields(kcov, owner))

    def _with_second(self, facts: BufferFacts) -> BufferFacts:
        """Return the facts with the second buffer, if the kernel writes it or it has records, and
        with a remark that names the other buffer. A task's fields know only the first buffer.

        :raises KcovdbgError: if the kernel writes only the second buffer, and it cannot be found.
        """
        second = self._second
        if second is None or facts.private:
            return facts
        is_alone = facts.mode in second.alone
        is_written = is_alone or facts.mode in second.both
        # The last mode of an object that is not enabled is unknown: the second buffer may have been
        # written in it.
        if not is_written and (facts.kcov is None or facts.mode is None or is_tracing(facts.mode)):
            return facts
        first_name = f"area:{facts.address:#x}"
        try:
            if facts.kcov is None:
                raise MissingTypeError("the object is unknown")  # noqa: TRY301
            address = second.find(self._target, facts.kcov)
            if not is_written and not read_count(self._target, self._layout, address, second.mode):
                return facts
        except (MissingTypeError, ReadError) as error:
            problem = f"buffer of {second.noun} cannot be found: {error}"
            if is_alone:
                hint = f"the buffer of {second.first_noun} is {first_name}"
                raise KcovdbgError(problem, hint=hint) from None
            if is_written:
                return facts.with_remark(problem)
            # The object is not enabled: the command objects reports it.
            return facts
        name = f"area:{address:#x}"
        if is_alone:
            remark = (
                f"{second.noun}, in {name}; the object's buffer of {second.first_noun} is "
                f"{first_name}"
            )
            return facts.with_remark(remark, address=address)
        if is_written:
            remark = (
                f"{second.first_noun}, in {first_name}; {second.noun} are in a buffer of their "
                f"own: {name}"
            )
        else:
            remark = f"{second.noun} are left in the object's other buffer: {name}"
        return facts.with_remark(remark, second=address)

    def find_descriptor(self, pid: int, fd: int) -> BufferFacts:
        # A thread has the file table of its process, or its own.
        tasks = self._source.read(Part.TASKS).task_fields
        sharers: Collection[int | None] = (pid,)
        for task in tasks:
            if task.pid == pid:
                sharers = TaskFiles(tasks, task).table_ids
                break
        for kcov in (*self._source.read(Part.OBJECTS).objects.values(), *self._device_objects):
            for found in kcov.references:
                if found.kind == "fd" and found.fd == fd and found.pid in sharers:
                    if kcov.device is not None:
                        return self._of_device_object(kcov)
                    return self.of_object(self._source.kcov(kcov.address or 0))
        said = f"descriptor {fd} of task {pid} is not KCOV's"
        raise self._absent(said, Part.OBJECTS | Part.FILES, "objects lists those that are")

    def _absent(self, said: str, parts: Part, hint: str) -> KcovdbgError:
        """Return the error for a name that matches nothing in some parts."""
        problem = self._source.read(parts).say_absent(said, parts)
        return KcovdbgError(problem, hint=hint)

    def find_device_session(self, device: str, tid: int) -> BufferFacts:
        for session in self._device_sessions:
            if session.device == device and session.pid == tid and session.area:
                return self._of_device_session(session)
        said = f"task {tid} has no session of {device}"
        raise self._absent(said, Part.DEVICES, "tasks lists sessions")

    def find_device_object(self, device: str, address: int) -> BufferFacts:
        for kcov in self._device_objects:
            if kcov.device == device and kcov.address == address:
                return self._of_device_object(kcov)
        said = f"no object of {device} is known at {address:#x}"
        raise self._absent(said, Part.DEVICES, "objects lists known objects")

    @property
    def _device_sessions(self) -> tuple[DeviceSession, ...]:
        return tuple(
            session
            for device in self._source.read(Part.DEVICES).devices
            for session in device.sessions
        )

    @property
    def _device_objects(self) -> tuple[Kcov, ...]:
        return tuple(
            kcov
            for device in self._source.read(Part.DEVICES).devices
            for kcov in device.objects.values()
        )

    def _of_device_session(self, session: DeviceSession) -> BufferFacts:
        is_own = False
        for kcov in self._device_objects:
            if session.kcov and kcov.address == session.kcov and kcov.fields is not None:
                is_own = kcov.fields.area == session.area
        return self._facts(
            address=session.area or 0,
            size=session.size,
            mode=session.mode,
            pid=session.pid,
            comm=session.comm,
            private=bool(session.depth) and not is_own,
        )

    def _of_device_object(self, kcov: Kcov) -> BufferFacts:
        device = next(
            device for device in self._layout.traits.devices if device.name == kcov.device
        )
        fields = kcov.fields
        if fields is None or not fields.area:
            problem = f"the object of {device.name} at {kcov.address or 0:#x} has no buffer"
            raise KcovdbgError(problem, hint=f"it comes with {device.init_request}")
        return self._facts(
            address=fields.area, size=fields.size, mode=device.mode, pid=kcov.pid, comm=kcov.comm
        )

    def find_saved(self, number: int, *, is_task: bool) -> BufferFacts:
        for saved in self._source.read(Part.SAVED).saved:
            if (saved.pid if is_task else saved.cpu) == number and saved.area:
                return self._of_saved(saved)
        whose = "task" if is_task else "CPU"
        said = f"{whose} {number} has no saved session with a buffer"
        raise self._absent(said, Part.SAVED, "saved lists saved sessions")

    def _of_saved(self, saved: SavedState) -> BufferFacts:
        private = False
        with contextlib.suppress(ReadError, MissingTypeError):
            private = bool(saved.kcov) and self._source.kcov(saved.kcov or 0).area != saved.area
        return self._facts(
            address=saved.area or 0,
            size=saved.size,
            mode=self._layout.mode_of_saved(saved),
            kcov=saved.kcov,
            pid=saved.pid,
            comm=saved.comm,
            private=private,
            doubt=self._doubt_mode("saved session", saved.mode, saved.kcov),
        )

    def find_area(self, address: int) -> BufferFacts:
        for task in self._source.read(Part.TASKS).tasks:
            if task.fields.kcov_area == address:
                return self._as_first(replace(self._of_task(task), address=address))
            if task.saved is not None and task.saved.area == address:
                return self._of_saved(task.saved)
        for area in self._source.read(Part.AREAS).areas:
            if area.address == address:
                # Idle areas of CPUs are on no list: nothing overlays their count.
                cached = area.state == "cached" and area.cpu is None
                remarks: tuple[str, ...] = ()
                if cached:
                    remarks = (_FREE_LIST_REMARK,)
                elif area.state != "in-use":
                    remarks = ("no section uses the area",)
                return self._facts(
                    address, area.size, None, cached=cached, private=True, remarks=remarks
                )
        second = self._second
        for kcov, fields in self._source.read(Part.OBJECTS).readable:
            if fields.area == address:
                return self._as_first(self._of_fields(fields, kcov))
            if second is not None and fields.area and self._find_second(second, fields) == address:
                facts = self._of_fields(fields, kcov)
                return replace(facts, address=address, mode=second.mode, doubt=None)
        for session in self._device_sessions:
            if session.area == address and session.depth:
                return self._of_device_session(session)
        for kcov in self._device_objects:
            if kcov.fields is not None and kcov.fields.area == address:
                return self._of_device_object(kcov)
        remark = f"{address:#x} is not known to KCOV; read as requested"
        return self._facts(address, self._count_words(address), None, remarks=(remark,))

    def _count_words(self, address: int) -> int | None:
        """Return the size in words of the vmalloc area at an address, None if it is not known."""
        source = self._target.vmalloc
        if source is None:
            return None
        # The walk raises an error for a damaged list after all readable areas.
        with contextlib.suppress(ReadError):
            for area in source.for_each_vmalloc_area():
                if area.start == address:
                    return area.size // self._layout.buffer_word
        return None

    def _as_first(self, facts: BufferFacts) -> BufferFacts:
        """Return the facts about an object's first buffer with the mode of its records."""
        second = self._second
        if second is None or facts.mode not in second.alone | second.both:
            return facts
        return replace(facts, mode=second.first_mode)

    def _find_second(self, second: SecondBuffer, kcov: KcovFields) -> int | None:
        with contextlib.suppress(MissingTypeError, ReadError):
            return second.find(self._target, kcov.address)
        return None
