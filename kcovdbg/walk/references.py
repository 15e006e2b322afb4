# SPDX-License-Identifier: LGPL-2.1-or-later
"""Finds every ``struct kcov`` in each way of kcov-abi.md 10, and the references to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from kcovdbg.abi.mode import name_bits
from kcovdbg.errors import MissingTypeError, ReadError
from kcovdbg.model.kcov import Kcov, KcovFile, Reference, name_kcov
from kcovdbg.model.state import Lack, Reading, Source
from kcovdbg.series.table import user_allocators
from kcovdbg.target.pointer import is_kernel_pointer
from kcovdbg.target.target import SlabSource, Target
from kcovdbg.walk.files import FileWalk
from kcovdbg.walk.objects import (
    BITMAP_LEFT,
    decode_kcov,
    find_fill,
    find_implausible,
    members_of_object,
)
from kcovdbg.walk.sessions import SessionWalk
from kcovdbg.walk.structure_cache import StructureCache


def _find_lack(target: Target, objects: Mapping[int, Kcov]) -> Mapping[Source, Lack]:
    """Return a line for each object, and for each count of a buffer, that could not be read."""
    unread: list[str] = []
    uncounted: list[str] = []
    for address, kcov in objects.items():
        if kcov.fields is None:
            # A pointer that is not a kernel address is damage, which rules report.
            if is_kernel_pointer(target, address):
                unread.append(kcov.errors[0])
        elif kcov.fields.area and kcov.count is None:
            if any(error.startswith(BITMAP_LEFT) for error in kcov.errors):
                continue
            uncounted.append(f"the count of the buffer of {name_kcov(address)} could not be read")
    return {
        Source.OBJECTS: Lack(tuple(unread), is_total=len(unread) == len(objects)),
        Source.COUNTS: Lack(tuple(uncounted)),
    }


class ReferenceWalk:
    """Finds the objects in one look at a kernel, and the references to them.

    :param searches_slab: whether to search slab memory for objects without a known reference.
    """

    def __init__(
        self, cache: StructureCache, sessions: SessionWalk, *, searches_slab: bool
    ) -> None:
        self._cache = cache
        self._target = cache.target
        self._searches_slab = searches_slab
        self._layout = cache.layout
        self._sessions = sessions
        self._roads: dict[int, list[str]] = defaultdict(list)
        self._references: dict[int, list[Reference]] = defaultdict(list)
        self._errors: dict[int, list[str]] = defaultdict(list)
        """Why references to an object may be missing or wrong."""
        self._lacking: dict[Source, Lack] = {Source.SLAB: Lack(), Source.LOST: Lack()}

    def find_objects(self) -> Reading[Mapping[int, Kcov]]:
        """Find every ``struct kcov`` with the references to it, by its address."""
        self._add_sessions()
        for entry in self._cache.remote_map.found.entries:
            if entry.kcov is not None:
                # Hash entries hold no reference.
                self._add(entry.kcov, "remote", Reference("remote", 0, handle=entry.handle))
        self._add_files()
        for address in tuple(self._roads):
            self._add_enabled(address)
        self._add_unreferenced()
        objects = {address: self._object(address) for address in sorted(self._roads)}
        return Reading(objects, {**self._lacking, **_find_lack(self._target, objects)})

    def _add(self, kcov: int, road: str, reference: Reference | None = None) -> None:
        """Add an object, or a way in which it was found, with the reference that leads to it."""
        if road not in self._roads[kcov]:
            self._roads[kcov].append(road)
        if reference is not None:
            self._references[kcov].append(reference)

    def _add_sessions(self) -> None:
        for task in self._sessions.with_state:
            fields = task.fields
            if fields.kcov:
                # _add_enabled() adds the reference of a local session, by the object's `t`.
                reference = None
                if task.session.is_section:
                    reference = Reference("section", 1, fields.pid, cpu=fields.cpu)
                self._add(fields.kcov, "task", reference)
                if task.role is None:
                    doubt = f"it is unknown whether {fields.label} refers to it by a section"
                    self._errors[fields.kcov].append(doubt)
            if fields.kcov_remote:
                self._add(fields.kcov_remote, "task")
            session = task.interrupted
            if session is not None and session.kcov:
                # An interrupted section keeps its own reference.
                cpu = None if task.saved is None else task.saved.cpu
                reference = Reference("saved", int(session.is_section), fields.pid, cpu=cpu)
                self._add(session.kcov, "saved", reference)
                if task.beneath is None:
                    doubt = f"it is unknown whether {fields.label}'s saved session is a section"
                    self._errors[session.kcov].append(doubt)
        for saved, session in self._sessions.unattributed:
            if saved.kcov:
                reference = Reference("saved", int(session.is_section), cpu=saved.cpu)
                self._add(saved.kcov, "saved", reference)
                self._errors[saved.kcov] += session.errors

    def _add_files(self) -> None:
        # A file has one reference, however many descriptors and mappings lead to it.
        counted: set[int] = set()
        for file in self._cache.files.found:
            kind = "vma" if file.fd is None else "fd"
            counts = is_first = file.file not in counted
            counted.add(file.file)
            if kind == "vma" and self._layout.traits.counts_mappings:
                # The mapping has a reference of its own.
                counts = is_first or not file.is_repeated
                if is_first:
                    # The file has no descriptor: only the mapping shows the file's reference.
                    self._add(file.kcov, kind, Reference("fd", 1, file=file.file))
            reference = Reference(kind, int(counts), file.pid, file.fd, file.file, file.start)
            self._add(file.kcov, kind, reference)

    def _add_enabled(self, address: int) -> None:
        """Add the reference of the task that an object is enabled for. The object has it while
        ``t`` is set (kcov-abi.md K1).
        """
        fields = self._cache.kcov_or_none(address)
        if fields is None or not fields.task:
            return
        references = self._references[address]
        if not any(found.kind == "task" for found in references):
            pid, _, _ = self._cache.owner(fields.task)
            references.insert(0, Reference("task", 1, pid))

    def _add_unreferenced(self) -> None:
        """Search slab memory for files without a descriptor or mapping, and for objects without a
        reference, if any seem to be missing.
        """
        if self._layout.kcov is None or not self._layout.kcov.has("area"):
            # The object of a buffer is then unknown.
            return
        allocators = user_allocators()
        buffers = {area.start for area in self._cache.kcov_areas if area.allocator in allocators}
        lost = buffers - self._known_areas()
        if not lost and not any(map(self._is_unbalanced, self._roads)):
            return
        # Preparing the search reads types that nothing else needs.
        slab = self._target.slab if self._searches_slab else None
        if slab is not None:
            self._add_unlisted_files(slab)
            lost = buffers - self._known_areas()
            if lost:
                self._add_slab_objects(slab, lost)
                lost = buffers - self._known_areas()
        else:
            why = "slab memory was not searched"
            if self._searches_slab:
                why = "this target cannot search slab memory"
            line = f"{why}: files that no process holds are not found"
            self._lacking[Source.SLAB] = Lack((line,), is_total=True)
        lines = [
            f"no readable struct kcov refers to the buffer at {area:#x}" for area in sorted(lost)
        ]
        self._lacking[Source.LOST] = Lack(tuple(lines))

    def _known_areas(self) -> set[int]:
        """Return the areas of the objects found so far."""
        found: set[int] = set()
        for address in self._roads:
            fields = self._cache.kcov_or_none(address)
            if fields is not None:
                found |= self._cache.own_areas(fields)[0]
        return found

    def _is_unbalanced(self, address: int) -> bool:
        """Return whether an object has more references than were found."""
        fields = self._cache.kcov_or_none(address)
        found = sum(reference.counts for reference in self._references[address])
        return fields is not None and (fields.refcount or 0) > found

    def _add_unlisted_files(self, slab: SlabSource) -> None:
        """Add files that are in flight over a socket, registered with io_uring, or leaked."""
        known = {reference.file for found in self._references.values() for reference in found}
        walk = FileWalk(self._target)
        extra: list[KcovFile] = []
        try:
            for address in slab.for_each_file():
                if address in known:
                    continue
                kcov = walk.find_kcov(address, "a struct file of the slab cache")
                if kcov is not None:
                    extra.append(KcovFile(0, address, kcov))
        except ReadError as error:
            self._lacking[Source.SLAB] = Lack((f"the slab cache of files is incomplete: {error}",))
        if walk.unread:
            self._lacking[Source.SLAB] = Lack((*self._lacking[Source.SLAB].lines, *walk.unread))
        for file in sorted(extra, key=lambda file: walk.is_released(file.file)):
            # A released file still has its reference until it is closed. It is then freed, and its
            # object may be: it counts only for an object that lacks a reference.
            lacks_reference = file.kcov in self._roads and self._is_unbalanced(file.kcov)
            if lacks_reference or not walk.is_released(file.file):
                self._add(file.kcov, "file", Reference("fd", 1, file=file.file))
                self._add_enabled(file.kcov)

    def _add_slab_objects(self, slab: SlabSource, areas: set[int]) -> None:
        """Add slab objects that look like the ``struct kcov`` of a buffer without a known object
        (kcov-abi.md 10.7).

        :param areas: such buffers.
        """
        layout = self._layout.kcov
        assert layout is not None
        try:
            for item in slab.for_each_slab_object(layout.size):
                block = item.data[layout.start : layout.start + layout.span]
                if len(block) < layout.span:
                    continue
                fields = decode_kcov(self._layout, item.address, block)
                is_whole = bool(fields.size) == bool(fields.mode) and fields.sequence != 0
                if fields.area not in areas or not is_whole:
                    continue
                if find_implausible(self._target, self._layout, fields) is None:
                    self._add(item.address, "vmalloc")
        except ReadError as error:
            self._lacking[Source.SLAB] = Lack((f"the slab caches are incomplete: {error}",))

    def _object(self, address: int) -> Kcov:
        errors = list(self._errors[address])
        found = Kcov(
            None,
            address,
            references=tuple(self._references[address]),
            found_by=tuple(self._roads[address]),
        )
        try:
            fields = self._cache.kcov(address)
        except (ReadError, MissingTypeError) as error:
            return replace(found, errors=(str(error), *errors))
        problem = find_implausible(self._target, self._layout, fields)
        if problem is not None:
            errors.append(f"it is no longer a struct kcov: {problem}")
        if fields.task is None:
            errors.append(
                "the task that it is enabled for is unknown: that reference is not counted"
            )
        pid, comm, problems = self._cache.owner(fields.task)
        errors += problems
        unknown = self._layout.mode_numbers.split(fields.mode or 0)[1]
        if unknown:
            errors.append(f"mode {name_bits(unknown)} is unknown")
        buffer = members_of_object(self._layout, fields)
        fill = find_fill(self._target, self._layout, buffer)
        errors += fill.problems
        posted: dict[str, int | None] = {}
        for series in self._layout.traits.series:
            if series.read_object is not None:
                values, lines = series.read_object(self._target, fields)
                posted.update(values)
                errors += lines
        own_areas, knows_own_areas = self._cache.own_areas(fields)
        return replace(
            found,
            fields=fields,
            mode=buffer.mode,
            pid=pid,
            comm=comm,
            count=fill.count,
            capacity=fill.capacity,
            full=fill.full,
            errors=tuple(errors),
            implausible=problem,
            posted=posted,
            own_areas=own_areas,
            knows_own_areas=knows_own_areas,
            is_blank=fill.is_blank,
            full_because=fill.full_because,
        )
