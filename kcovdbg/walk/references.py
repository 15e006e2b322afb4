# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every ``struct kcov``, by all roads that lead to one, and who refers to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from kcovdbg.abi import mode as modes
from kcovdbg.abi.era import Feature
from kcovdbg.errors import MissingTypeError, ReadError
from kcovdbg.model.kcov import Kcov, KcovFields, Reference
from kcovdbg.model.task import Role
from kcovdbg.walk.files import FileWalk, KcovFile
from kcovdbg.walk.objects import (
    decode_kcov,
    find_capacity,
    find_edges,
    find_fill,
    find_implausible,
    looks_like_kcov,
    read_count,
)
from kcovdbg.walk.readings import USER_CALLERS, Readings, plain_name
from kcovdbg.walk.sessions import Sessions


class ReferenceWalk:
    """Who refers to what in one look at a kernel.

    :param readings: what was read.
    :param sessions: what it means.
    """

    def __init__(self, readings: Readings, sessions: Sessions) -> None:
        self._readings = readings
        self._target = readings.target
        self._layout = readings.layout
        self._sessions = sessions

    def find_objects(self) -> Mapping[int, Kcov]:
        """Find every ``struct kcov``, by every road of kcov-abi.md 10, with everybody who refers to it."""
        roads: dict[int, list[str]] = defaultdict(list)
        references: dict[int, list[Reference]] = defaultdict(list)
        uncertain: dict[int, list[str]] = defaultdict(list)

        for address, road, reference in self._references(uncertain):
            if road not in roads[address]:
                roads[address].append(road)
            if reference is not None:
                references[address].append(reference)
        self._add_files(self._readings.files, roads, references)
        self._add_attached(roads, references)
        self._add_unreferenced(roads, references)
        return {
            address: self._object(address, tuple(references[address]), tuple(roads[address]), uncertain.get(address, ()))
            for address in sorted(roads)
        }

    def _references(self, uncertain: dict[int, list[str]]) -> Iterator[tuple[int, str, Reference | None]]:
        """Yield (object, road, reference) for what tasks, saved state and the hash refer to.

        :param uncertain: takes, by object, what may be a reference and can't be told.
        """
        for task in self._sessions.tasks():
            fields = task.fields
            if fields.kcov:
                section = task.role in (Role.REMOTE_SECTION, Role.SOFTIRQ_SECTION)
                # The reference of a session that is the object's own task is counted by the object's `t`, below.
                yield fields.kcov, "task", Reference("section", 1, fields.pid, cpu=fields.cpu) if section else None
                if task.role is None:
                    uncertain[fields.kcov].append(f"whether task {fields.pid} refers to it by a section can't be told")
            if fields.kcov_remote:
                yield fields.kcov_remote, "task", None
            if task.saved is not None and task.saved.kcov:
                # A section that was interrupted keeps its own reference; a local session's is that of `t`.
                counts = int(task.beneath is Role.REMOTE_SECTION)
                yield task.saved.kcov, "saved", Reference("saved", counts, fields.pid, cpu=task.saved.cpu)
                if task.beneath is None:
                    uncertain[task.saved.kcov].append(f"whether task {fields.pid}'s saved session is a section can't be told")
        for saved in self._sessions.saved:
            if saved.task is None and saved.kcov:
                counts = int(self._sessions.saved_role(saved, uncertain[saved.kcov]) is Role.REMOTE_SECTION)
                yield saved.kcov, "saved", Reference("saved", counts, cpu=saved.cpu)
        for entry in self._readings.remote_map.entries:
            if entry.kcov is not None:
                # Hash entries hold no reference.
                yield entry.kcov, "remote", Reference("remote", 0, handle=entry.handle)

    def _add_files(
        self, files: tuple[KcovFile, ...], roads: dict[int, list[str]], references: dict[int, list[Reference]]
    ) -> None:
        counted: set[int] = set()
        per_mapping = self._layout.generation.has(Feature.VMA_REFERENCES)
        for file in files:
            kind = "vma" if file.fd is None else "fd"
            if per_mapping and kind == "vma" and file.file not in counted:
                # The mapping has a reference of its own beside that of the file, which nothing else shows.
                references[file.kcov].append(Reference("fd", 1, file=file.file))
            counts = int(file.file not in counted or (per_mapping and kind == "vma"))
            counted.add(file.file)
            if kind not in roads[file.kcov]:
                roads[file.kcov].append(kind)
            references[file.kcov].append(Reference(kind, counts, file.pid, file.fd, file.file, file.start))

    def _add_attached(self, roads: Mapping[int, list[str]], references: dict[int, list[Reference]]) -> None:
        """Add the reference that an enabled task holds: one exactly while ``kcov->t`` is set (kcov-abi.md K1)."""
        for address in roads:
            try:
                fields = self._readings.kcov(address)
            except (ReadError, MissingTypeError):
                continue
            if fields.task:
                references[address].insert(0, Reference("task", 1, self._readings.owner(fields.task)[0]))

    def _add_unreferenced(self, roads: dict[int, list[str]], references: dict[int, list[Reference]]) -> None:
        """Look for objects that no road led to, and for files that no table or mapping shows."""
        if self._layout.kcov is None or not self._layout.kcov.has("area"):
            # Then nothing tells whose a buffer is.
            return
        areas = self._readings.buffers_of(roads)
        lost = {area.start for area in self._readings.kcov_areas if plain_name(area.caller) in USER_CALLERS} - areas
        unbalanced = any(
            (kcov := self._readings.kcov_or_none(address)) is not None
            and (kcov.refcount or 0) > sum(reference.counts for reference in references[address])
            for address in roads
        )
        slab = self._target.slab
        if not (lost or unbalanced):
            return
        if slab is None:
            self._readings.lacking["slab"] = (
                "this target can't search the slab allocator: files that no process holds aren't found",
            )
        else:
            self._search_files(slab.for_each_file(), roads, references)
            areas = self._readings.buffers_of(roads)
            if lost - areas and self._layout.kcov is not None:
                self._search_slab(lost - areas, roads)
                areas = self._readings.buffers_of(roads)
        self._readings.lacking["lost"] = tuple(
            f"no struct kcov that can be read refers to the buffer at {area:#x}" for area in sorted(lost - areas)
        )

    def _search_files(self, files: Iterator[int], roads: dict[int, list[str]], references: dict[int, list[Reference]]) -> None:
        """Find files of KCOV that are in flight over a socket, registered with io_uring, or leaked."""
        known = {reference.file for found in references.values() for reference in found}
        walk = FileWalk(self._target)
        try:
            extra = tuple(
                KcovFile(0, file, kcov)
                for file in files
                if file not in known and (kcov := walk.find_kcov(file, "a struct file of the slab cache")) is not None
            )
        except ReadError as error:
            self._readings.lacking["slab"] = (f"the slab cache of files can't be read to its end: {error}",)
            return
        for file in extra:
            if "file" not in roads[file.kcov]:
                roads[file.kcov].append("file")
            references[file.kcov].append(Reference("fd", 1, file=file.file))
            fields = self._readings.kcov_or_none(file.kcov)
            if fields is not None and fields.task and not any(found.kind == "task" for found in references[file.kcov]):
                references[file.kcov].insert(0, Reference("task", 1, self._readings.owner(fields.task)[0]))

    def _search_slab(self, areas: set[int], roads: dict[int, list[str]]) -> None:
        """Find the objects of buffers that nothing leads to, by what a ``struct kcov`` looks like (kcov-abi.md 10.7)."""
        layout = self._layout.kcov
        slab = self._target.slab
        if layout is None or slab is None:
            return
        try:
            for item in slab.for_each_slab_object(layout.size):
                block = item.data[layout.start : layout.start + layout.span]
                if len(block) < layout.span:
                    continue
                fields = decode_kcov(self._layout, item.address, block)
                if fields.area in areas and looks_like_kcov(self._target, fields, fields.area or 0):
                    roads[item.address].append("vmalloc")
        except ReadError as error:
            self._readings.lacking["slab"] = (f"the slab caches can't be read to their end: {error}",)

    def _object(
        self, address: int, references: tuple[Reference, ...], roads: tuple[str, ...], uncertain: Iterable[str]
    ) -> Kcov:
        try:
            fields = self._readings.kcov(address)
        except (ReadError, MissingTypeError) as error:
            return Kcov(None, address, None, None, None, None, None, None, references, roads, (str(error), *uncertain))
        errors: list[str] = [*uncertain]
        problem = find_implausible(self._target, self._layout, fields)
        if problem is not None:
            errors.append(f"it isn't a struct kcov, or not any more: {problem}")
        if fields.task is None:
            errors.append("whom it is enabled for can't be told: that reference isn't counted")
        pid = comm = None
        if fields.task:
            pid, comm, problem = self._readings.owner(fields.task)
            if problem is not None:
                errors.append(problem)
        mode = None if fields.mode is None else self._layout.object_mode_name(fields.mode)
        count, full = find_fill(
            self._target,
            self._layout,
            fields.area,
            fields.size,
            mode,
            errors,
            fields.trace,
            fields.trace_size,
            address,
        )
        capacity = None
        if mode is not None and modes.is_known(mode):
            capacity = find_capacity(self._layout, mode, fields.size, fields.trace_size)
        edge_area, edge_count = self._edges(fields, errors)
        return Kcov(
            fields,
            address,
            mode,
            pid,
            comm,
            count,
            capacity,
            full,
            references,
            roads,
            tuple(errors),
            edge_area,
            edge_count,
        )

    def _edges(self, fields: KcovFields, errors: list[str]) -> tuple[int | None, int | None]:
        """Return where an object's edges are and how many, in kernels where they have a buffer of their own."""
        if not self._layout.generation.has(Feature.UNIQUE_MAPS):
            return None, None
        if not fields.area:
            return fields.area, None
        area = None
        try:
            area = find_edges(self._target, fields.address)
            return area, read_count(self._target, self._layout, area, "TRACE_UNIQ_EDGE")
        except (ReadError, MissingTypeError) as error:
            errors.append(f"the edges' own buffer: {error}")
            return area, None
