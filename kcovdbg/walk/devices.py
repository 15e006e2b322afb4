# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reads the objects, handles, sessions and free areas of devices that posted series add."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

from kcovdbg.abi import record
from kcovdbg.abi.generations import TASK
from kcovdbg.errors import MissingError, MissingSymbolError, MissingTypeError, ReadError
from kcovdbg.model.device import DeviceSession, DeviceState
from kcovdbg.model.kcov import Kcov, KcovFields, Reference
from kcovdbg.model.remote import RemoteHandle
from kcovdbg.series import table
from kcovdbg.series.declaration import Device, DeviceSections
from kcovdbg.target.pointer import (
    Links,
    Remarks,
    check_pointer,
    finish,
    follow_list,
    read_links,
    read_word,
)
from kcovdbg.target.struct_layout import BlockLayout, find_kernel_symbol
from kcovdbg.walk.files import FileWalk
from kcovdbg.walk.remote import read_hash
from kcovdbg.walk.structure_cache import StructureCache

_MAX_IDLE: Final = 1 << 16


class DeviceWalk:
    """Reads a device in one look at a kernel."""

    def __init__(self, cache: StructureCache, device: Device) -> None:
        self._cache = cache
        self._target = cache.target
        self._device = device
        self.remarks = Remarks()
        """Lines on unreadable data."""
        codec = table.codec_of_mode(device.mode, cache.layout.generation.features)
        self._encoding = record.make_encoding(
            codec, cache.target.word_size, cache.target.big_endian
        )

    def read(self) -> DeviceState:
        """Read the objects, handles, sessions and free areas."""
        sessions = self.sessions
        entries = self._handles()
        references: dict[int, list[Reference]] = defaultdict(list)
        for session in sessions:
            if session.kcov:
                of_object = references[session.kcov]
                if session.depth:
                    of_object.append(Reference("section", 1, session.pid))
        for entry in entries:
            if entry.kcov:
                # Hash entries hold no reference.
                references[entry.kcov].append(Reference("remote", 0, handle=entry.handle))
        self._add_files(references)
        objects: dict[int, Kcov] = {}
        published: dict[int, int] = {}
        for address in sorted(references):
            objects[address], handle = self._object(address, references[address])
            if handle is not None:
                published[address] = handle
        if "kcov" not in self._device.task_members:
            # Tasks do not point to their objects, but objects to their tasks.
            of_tasks: dict[int | None, int] = {}
            for address, kcov in objects.items():
                if kcov.fields is not None:
                    of_tasks[kcov.fields.task] = address
            sessions = tuple(
                replace(session, kcov=of_tasks.get(session.task)) for session in sessions
            )
        idle_areas, idle_count = self._idle_areas
        # The owner of a handle is left out: the task that opened the device may have ended.
        errors = {address: kcov.errors for address, kcov in objects.items()}
        handles = tuple(
            entry._replace(errors=errors.get(entry.kcov or 0, ()), device=self._device.name)
            for entry in entries
        )
        return DeviceState(
            self._device.name,
            self._device.feature,
            objects,
            handles,
            published,
            sessions,
            idle_areas,
            idle_count,
        )

    def _layout(self, type_name: str, members: Mapping[str, Sequence[str]]) -> BlockLayout | None:
        try:
            layout = BlockLayout(self._target, type_name, members)
        except MissingTypeError as error:
            self._note(str(error))
            return None
        for name, paths in members.items():
            if not layout.has(name):
                self._note(f"the debug info has no {type_name}.{' or '.join(paths)}")
        return layout

    def _note(self, problem: str) -> None:
        self.remarks.note(f"{self._device.name}: {problem}")

    @cached_property
    def sessions(self) -> tuple[DeviceSession, ...]:
        """The sessions, which take few reads."""
        return tuple(self._find_sessions())

    def _find_sessions(self) -> Iterator[DeviceSession]:
        layout = self._layout(TASK, self._device.task_members)
        if layout is None:
            return
        unread = 0
        for fields in self._cache.tasks.found:
            try:
                values = layout.read_named(self._target, fields.address)
            except ReadError:
                unread += 1
                continue
            kcov = values.get("kcov")
            if not kcov and not values["area"]:
                continue
            count, capacity, full = self._fill(values["area"], values["size"])
            sequence = values["sequence"]
            yield DeviceSession(
                device=self._device.name,
                mode=self._device.mode,
                task=fields.address,
                pid=fields.pid,
                comm=fields.comm,
                kcov=kcov,
                area=values["area"],
                size=values["size"],
                sequence=None if sequence is None else sequence & self._device.sequence_mask,
                depth=values["depth"] if self._device.remote is not None else 0,
                enabled=None if values["enabled"] is None else bool(values["enabled"]),
                count=count,
                full=full,
                capacity=capacity,
            )
        if unread:
            self._note(f"the sessions of {unread} tasks could not be read")

    def _fill(
        self, area: int | None, size: int | None
    ) -> tuple[int | None, int | None, bool | None]:
        """Return how many words of a buffer are in use, how many it has, and whether no further
        record fits.
        """
        if not size:
            return None, None, None
        capacity = self._encoding.capacity(size, self._target.word_size)
        width = self._encoding.word_size
        try:
            check_pointer(self._target, area or 0, "buffer", width)
            count = read_word(self._target, area or 0, width)
        except ReadError:
            return None, capacity, None
        return count, capacity, count + self._encoding.codec.least_words > capacity

    @cached_property
    def _remote(self) -> DeviceSections | None:
        """The remote sections; None if the kernel has none.

        A kernel without remote sections lacks the hash, the type of its entries, and the list of
        free areas. If only some of them are missing, or the symbols lack the device's operations as
        well, the debug info or the symbols are incomplete.
        """
        remote = self._device.remote
        if remote is None or find_kernel_symbol(self._target, self._device.operations) is None:
            return remote
        symbols = (remote.map, remote.idle_list, remote.idle_count)
        if any(find_kernel_symbol(self._target, name) is not None for name in symbols):
            return remote
        try:
            self._target.type_size(remote.type)
        except MissingTypeError:
            return None
        return remote

    def _handles(self) -> tuple[RemoteHandle, ...]:
        """Return the entries of the hash."""
        remote = self._remote
        if remote is None:
            return ()
        layout = self._layout(remote.type, remote.members)
        if layout is None:
            return ()
        try:
            found = read_hash(self._target, remote.map, layout)
        except (MissingError, ReadError) as error:
            self._note(f"handles could not be found: {error}")
            return ()
        for problem in found.broken(remote.map):
            self.remarks.note(problem)
        return found.entries

    def _add_files(self, references: dict[int, list[Reference]]) -> None:
        walk = FileWalk(self._target, self._device.operations)
        counted: set[int] = set()
        tasks = self._cache.tasks.found
        for file in (*walk.for_each_descriptor(tasks), *walk.for_each_mapping(tasks)):
            kind = "vma" if file.fd is None else "fd"
            counts = int(file.file not in counted)
            counted.add(file.file)
            found = Reference(kind, counts, file.pid, file.fd, file.file, file.start)
            references[file.kcov].append(found)
        for remark in walk.remarks:
            self._note(remark)

    @cached_property
    def _object_layout(self) -> BlockLayout | None:
        return self._layout(self._device.object_type, self._device.object_members)

    def _object(self, address: int, references: list[Reference]) -> tuple[Kcov, int | None]:
        """Return one object, and its registered handle."""
        name, layout = self._device.name, self._object_layout
        try:
            check_pointer(self._target, address, self._device.object_type)
            if layout is None:
                missing = f"the debug info has no {self._device.object_type}"
                raise MissingTypeError(missing)  # noqa: TRY301
            found = layout.read_named(self._target, address)
        except (ReadError, MissingTypeError) as error:
            self.remarks.note(f"{name} {address:#x}: {error}")
            kcov = Kcov(
                None, address, references=tuple(references), errors=(str(error),), device=name
            )
            return kcov, None
        size, area, task, handle = found["size"], found["area"], found["task"], found.get("handle")
        is_remote = None
        if handle is not None:
            is_remote = bool(handle)
        fields = KcovFields(
            address,
            found["refcount"],
            is_locked=False,
            mode=None,
            size=size,
            area=area,
            task=task,
            remote=is_remote,
            remote_size=None,
            sequence=None,
        )
        pid, comm, errors = self._cache.owner(task)
        if task:
            references.insert(0, Reference("task", int(self._device.tasks_count), pid))
        mode = self._device.mode if task or handle else None
        count, capacity, full = self._fill(area, size)
        kcov = Kcov(
            fields,
            address,
            mode,
            pid,
            comm,
            count,
            capacity,
            full,
            tuple(references),
            errors=errors,
            device=name,
        )
        return kcov, handle

    @cached_property
    def _idle_areas(self) -> tuple[tuple[int, ...], int | None]:
        """The free areas, and the kernel's count of them; None as the count of a broken list."""
        remote, word = self._remote, self._target.word_size
        if remote is None:
            return (), None

        def read_area(link: int) -> tuple[int, Links]:
            check_pointer(self._target, link, "area", word)
            return link, Links(*read_links(self._target, link))

        try:
            head = self._target.symbol(remote.idle_list).address
            count = read_word(self._target, self._target.symbol(remote.idle_count).address)
        except (MissingSymbolError, ReadError) as error:
            self._note(f"free areas could not be found: {error}")
            return (), None
        found, problem = finish(follow_list(self._target, head, read_area, _MAX_IDLE))
        if problem is not None:
            self.remarks.note(f"{remote.idle_list} is broken: {problem}")
        return tuple(found), count if problem is None else None
