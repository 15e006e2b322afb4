# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names of buffers, and where the buffers are: ``41``, ``kcov:0x…``, ``area:0x…``, ``fd:41/3``,
``saved:0``, ``saved:t41``.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial
from typing import Final

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
from kcovdbg.target.protocol import Target
from kcovdbg.walk.layout import Layout
from kcovdbg.walk.objects import read_count

_FORMS: Final = (
    "TID, kcov:ADDRESS, area:ADDRESS, fd:PID/FD, saved:CPU, saved:tTID, file:PATH or @NAME"
)
_FREE_LIST_REMARK: Final = (
    "on the free list: list pointers overlay the count, and records are left over from earlier use"
)


def parse_name(name: str) -> tuple[str, int, int, bool]:
    """Return the parts of a buffer's name, without looking for the buffer.

    :return: the kind (``kcov``, ``area``, ``fd``, ``saved``, the name of a posted series' device,
        or empty for a task's own); a thread id, a CPU or an address; a descriptor; whether the
        number is a thread id, where it may be something else.
    :raises UsageError: if it has no such form.
    """

    def number(text: str, base: int = 16) -> int:
        try:
            return int(text, base)
        except ValueError:
            raise UsageError(
                f"{name}: '{text}' is not {'a number' if base == 10 else 'an address'}", hint=_FORMS
            ) from None

    kind, colon, rest = name.partition(":")
    if not colon:
        if not name.isdecimal():
            raise UsageError(
                f"'{name}' is not a buffer name; use a thread id for a task's buffer", hint=_FORMS
            )
        return "", int(name), 0, True
    if kind in ("kcov", "area"):
        return kind, number(rest), 0, False
    if kind == "fd":
        pid, slash, fd = rest.partition("/")
        if not slash:
            raise UsageError(
                f"'{name}' is not a descriptor", hint="fd:PID/FD, for instance fd:41/3"
            )
        return kind, number(pid, 10), number(fd, 10), False
    if kind == "saved":
        return kind, number(rest.removeprefix("t"), 10), 0, rest.startswith("t")
    if any(kind == device.name for device in table.devices()):
        return kind, number(rest, 10 if rest.isdecimal() else 16), 0, rest.isdecimal()
    raise UsageError(f"'{name}' is not a buffer name", hint=_FORMS)


def find_buffer_facts(
    target: Target, layout: Layout, source: StateSource, name: str
) -> BufferFacts:
    """Find the buffer with this name.

    :raises UsageError: if the name has no such form.
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
    if kind not in ("kcov", "area") and is_task:
        return search.find_device_session(kind, number)
    address = strip_tag(target, number)
    if kind == "kcov":
        return search.of_object(source.kcov(address))
    return search.find_area(address) if kind == "area" else search.find_device_object(kind, address)


class _BufferSearch:
    """The search for one buffer."""

    def __init__(self, target: Target, layout: Layout, source: StateSource, name: str) -> None:
        self._target = target
        self._layout = layout
        self._source = source
        self._second = layout.traits.second_buffer
        self._facts = partial(BufferFacts, name)

    def find_of_task(self, tid: int) -> BufferFacts:
        return self._with_edges(self._of_task(self._source.read(Part.ALL_TASKS).find_task(tid)))

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
                doubt=self._doubt_mode("task", fields.kcov_mode, fields.kcov),
            )
        # If the task's area is unknown, only a session that is not a section uses the object's.
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
        """Return why a mode, on which the format of records depends, is unknown; None if it is not.

        :param kcov: the object of a session.
        """
        if not self._layout.generation.has(Feature.COMPARISONS):
            return None
        if word is None:
            return f"mode of the {whose} is unknown"
        value = word if whose == "object" else strip_flags(word, self._layout.mode_flags)
        mode = self._layout.object_mode_name(value)
        if not is_known(mode):
            return f"mode {mode} of the {whose} has no name in the debug info"
        unknown = self._layout.split_mode(value)[1]
        if kcov:
            with contextlib.suppress(ReadError, MissingTypeError):
                unknown |= self._layout.split_mode(self._source.kcov(kcov).mode or 0)[1]
        return f"mode {name_bits(unknown)} is unknown" if unknown else None

    def _of_fields(self, kcov: KcovFields, owner: HasTask | None) -> BufferFacts:
        if not kcov.area:
            raise KcovdbgError(
                f"struct kcov at {kcov.address:#x} has no buffer",
                hint="it comes with KCOV_INIT_TRACE, before v5.18 with the first mmap()",
            )
        return self._facts(
            address=kcov.area,
            size=kcov.size,
            mode=None
            if kcov.mode is None
            else self._layout.object_mode_name(kcov.mode, kcov.mode_flag),
            kcov=kcov.address,
            pid=None if owner is None else owner.pid,
            comm=None if owner is None else owner.comm,
            doubt=self._doubt_mode("object", kcov.mode),
        )

    def of_object(self, kcov: KcovFields) -> BufferFacts:
        owner = self._source.read(Part.TASKS).task_by_address.get(kcov.task or 0)
        return self._with_edges(self._of_fields(kcov, owner))

    def _with_edges(self, facts: BufferFacts) -> BufferFacts:
        """Add the second buffer where it is written or has records, and name the other one.

        A task's own fields only know the object's first buffer.

        :raises KcovdbgError: if only the second buffer is written and cannot be found: the first
            one would mislead.
        """
        second = self._second
        if second is None or facts.private:
            return facts
        is_alone = facts.mode in second.alone
        is_written = is_alone or facts.mode in second.both
        # The kernel does not keep the last mode of an object that is not enabled: it may have left
        # edges.
        if not is_written and (facts.kcov is None or facts.mode is None or is_tracing(facts.mode)):
            return facts
        try:
            if facts.kcov is None:
                raise MissingTypeError("the object is unknown")  # noqa: TRY301
            edges = second.find(self._target, facts.kcov)
            if not is_written and not read_count(self._target, self._layout, edges, second.mode):
                return facts
        except (MissingTypeError, ReadError) as error:
            problem = f"buffer of edges cannot be found: {error}"
            if is_alone:
                raise KcovdbgError(
                    problem, hint=f"the buffer of addresses is area:{facts.address:#x}"
                ) from None
            # Of an object that is not enabled, objects reports it.
            return replace(facts, remarks=(*facts.remarks, problem)) if is_written else facts
        if is_alone:
            remark = (
                f"edges, in area:{edges:#x}; the object's buffer of addresses is "
                f"area:{facts.address:#x}"
            )
            return replace(facts, address=edges, remarks=(*facts.remarks, remark))
        remark = f"edges are left in the object's other buffer: area:{edges:#x}"
        if is_written:
            remark = (
                f"addresses, in area:{facts.address:#x}; edges are in a buffer of their own: "
                f"area:{edges:#x}"
            )
        return replace(facts, remarks=(*facts.remarks, remark), edges=edges)

    def find_descriptor(self, pid: int, fd: int) -> BufferFacts:
        # A thread has the table of its process, unless it has one for itself.
        tasks = self._source.read(Part.TASKS).task_fields
        task = next((task for task in tasks if task.pid == pid), None)
        sharers = {pid} if task is None else TaskFiles(tasks, task).table_ids
        for kcov in (*self._source.read(Part.OBJECTS).objects.values(), *self._device_objects):
            if any(
                found.kind == "fd" and found.fd == fd and found.pid in sharers
                for found in kcov.references
            ):
                if kcov.device is not None:
                    return self._of_device_object(kcov)
                return self.of_object(self._source.kcov(kcov.address or 0))
        state = self._source.read(Part.OBJECTS)
        problem = state.say_absent(
            f"descriptor {fd} of task {pid} is not KCOV's", Part.OBJECTS | Part.FILES
        )
        raise KcovdbgError(problem, hint="objects lists those that are")

    def find_device_session(self, device: str, tid: int) -> BufferFacts:
        for session in self._device_sessions:
            if session.device == device and session.pid == tid and session.area:
                return self._of_device_session(session)
        state = self._source.read(Part.DEVICES)
        problem = state.say_absent(f"task {tid} has no session of {device}", Part.DEVICES)
        raise KcovdbgError(problem, hint="tasks lists sessions")

    def find_device_object(self, device: str, address: int) -> BufferFacts:
        for kcov in self._device_objects:
            if kcov.device == device and kcov.address == address:
                return self._of_device_object(kcov)
        state = self._source.read(Part.DEVICES)
        problem = state.say_absent(f"no object of {device} is known at {address:#x}", Part.DEVICES)
        raise KcovdbgError(problem, hint="objects lists known objects")

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
        own = next(
            (
                kcov.fields
                for kcov in self._device_objects
                if session.kcov and kcov.address == session.kcov
            ),
            None,
        )
        return self._facts(
            address=session.area or 0,
            size=session.size,
            mode=session.mode,
            pid=session.pid,
            comm=session.comm,
            private=bool(session.depth) and (own is None or own.area != session.area),
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
        whose = f"task {number}" if is_task else f"CPU {number}"
        state = self._source.read(Part.SAVED)
        problem = state.say_absent(f"{whose} has no saved session with a buffer", Part.SAVED)
        raise KcovdbgError(problem, hint="saved lists saved sessions")

    def _of_saved(self, saved: SavedState) -> BufferFacts:
        private = False
        with contextlib.suppress(ReadError, MissingTypeError):
            private = bool(saved.kcov) and self._source.kcov(saved.kcov or 0).area != saved.area
        return self._facts(
            address=saved.area or 0,
            size=saved.size,
            mode=None
            if saved.mode is None
            else self._layout.mode_name(saved.mode, saved.mode_flag),
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
                remarks = (
                    (_FREE_LIST_REMARK,)
                    if cached
                    else ()
                    if area.state == "in-use"
                    else ("no section uses the area",)
                )
                return self._facts(
                    address, area.size, None, cached=cached, private=True, remarks=remarks
                )
        for kcov, fields in self._source.read(Part.OBJECTS).readable:
            if fields.area == address:
                return self._as_first(self._of_fields(fields, kcov))
            if (
                self._second is not None
                and fields.area
                and self._is_second(self._second, fields.address, address)
            ):
                return replace(
                    self._of_fields(fields, kcov),
                    address=address,
                    mode=self._second.mode,
                    doubt=None,
                )
        for session in self._device_sessions:
            if session.area == address and session.depth:
                return self._of_device_session(session)
        for kcov in self._device_objects:
            if kcov.fields is not None and kcov.fields.area == address:
                return self._of_device_object(kcov)
        size = self._vmalloc_size(address)
        words = None if size is None else size // self._layout.buffer_word
        return self._facts(
            address, words, None, remarks=(f"{address:#x} is not known to KCOV; read as requested",)
        )

    def _vmalloc_size(self, address: int) -> int | None:
        """Return the size in bytes of the vmalloc area at an address; None if none is known, as
        behind damage to the lists.
        """
        source = self._target.vmalloc
        # The lists raise their damage when all that can be read was yielded.
        with contextlib.suppress(ReadError):
            areas = () if source is None else source.for_each_vmalloc_area()
            return next((area.size for area in areas if area.start == address), None)
        return None

    def _as_first(self, facts: BufferFacts) -> BufferFacts:
        """Describe an object's first buffer, in which records of the second one never are."""
        second = self._second
        if second is None or facts.mode not in second.alone | second.both:
            return facts
        return replace(facts, mode=second.first_mode)

    def _is_second(self, second: SecondBuffer, kcov: int, address: int) -> bool:
        with contextlib.suppress(MissingTypeError, ReadError):
            return second.find(self._target, kcov) == address
        return False
