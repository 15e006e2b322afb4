# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every ``struct kcov``, found by each road of kcov-abi.md 10, and the references to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from kcovdbg.abi.mode import name_bits
from kcovdbg.errors import MissingTypeError, ReadError
from kcovdbg.model.kcov import Kcov, KcovFields, KcovFile, Reference, name_kcov
from kcovdbg.model.state import Lack, Reading, Source
from kcovdbg.series.table import user_allocators
from kcovdbg.target.pointer import is_kernel_pointer
from kcovdbg.target.protocol import SlabSource, Target
from kcovdbg.walk.files import FileWalk
from kcovdbg.walk.objects import BITMAP_LEFT, decode_kcov, find_fill, find_implausible, read_count
from kcovdbg.walk.sessions import SessionWalk
from kcovdbg.walk.structure_cache import StructureCache


def _find_lack(target: Target, objects: Mapping[int, Kcov]) -> Mapping[Source, Lack]:
    """Return which of some objects, and which counts of their buffers, could not be read."""
    unread: list[str] = []
    uncounted: list[str] = []
    for address, kcov in objects.items():
        if kcov.fields is None:
            # A pointer that leads to no kernel address is damage, which rules report.
            unread += kcov.errors[:1] if is_kernel_pointer(target, address) else ()
        elif kcov.fields.area and kcov.count is None and BITMAP_LEFT not in kcov.errors:
            uncounted.append(f"the count of the buffer of {name_kcov(address)} could not be read")
    return {
        Source.OBJECTS: Lack(tuple(unread), is_total=len(unread) == len(objects)),
        Source.COUNTS: Lack(tuple(uncounted)),
    }


class ReferenceWalk:
    """The references in one look at a kernel.

    :param searches_slab: whether to search slab memory for objects that nothing leads to.
    """

    def __init__(
        self, cache: StructureCache, sessions: SessionWalk, *, searches_slab: bool = True
    ) -> None:
        self._cache = cache
        self._target = cache.target
        self._searches_slab = searches_slab
        self._layout = cache.layout
        self._sessions = sessions
        self._roads: dict[int, list[str]] = defaultdict(list)
        self._references: dict[int, list[Reference]] = defaultdict(list)
        self._errors: dict[int, list[str]] = defaultdict(list)
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

    def _add(
        self, kcov: int, road: str, reference: Reference | None = None, errors: Sequence[str] = ()
    ) -> None:
        """Add one road to an object.

        :param errors: why the reference may be missing or wrong.
        """
        if road not in self._roads[kcov]:
            self._roads[kcov].append(road)
        if reference is not None:
            self._references[kcov].append(reference)
        self._errors[kcov] += errors

    def _add_sessions(self) -> None:
        for task in self._sessions.with_state:
            fields = task.fields
            if fields.kcov:
                # A local session's reference is that of the object's `t`, which _add_enabled()
                # counts.
                reference = (
                    Reference("section", 1, fields.pid, cpu=fields.cpu)
                    if task.session.is_section
                    else None
                )
                doubt = f"it is unknown whether {fields.label} refers to it by a section"
                self._add(fields.kcov, "task", reference, (doubt,) if task.role is None else ())
            if fields.kcov_remote:
                self._add(fields.kcov_remote, "task")
            if task.interrupted is not None and task.interrupted.kcov:
                # An interrupted section keeps its own reference.
                counts = int(task.interrupted.is_section)
                doubt = f"it is unknown whether {fields.label}'s saved session is a section"
                cpu = None if task.saved is None else task.saved.cpu
                reference = Reference("saved", counts, fields.pid, cpu=cpu)
                self._add(
                    task.interrupted.kcov,
                    "saved",
                    reference,
                    (doubt,) if task.beneath is None else (),
                )
        for saved, session in self._sessions.unattributed:
            if saved.kcov:
                reference = Reference("saved", int(session.is_section), cpu=saved.cpu)
                self._add(saved.kcov, "saved", reference, session.errors)

    def _add_files(self) -> None:
        counted: set[int] = set()
        per_mapping = self._layout.traits.counts_mappings
        for file in self._cache.files.found:
            kind = "vma" if file.fd is None else "fd"
            if per_mapping and kind == "vma" and file.file not in counted:
                # The mapping has a reference of its own besides the file's, which nothing else
                # shows.
                self._add(file.kcov, kind, Reference("fd", 1, file=file.file))
            counts = int(
                file.file not in counted or (per_mapping and kind == "vma" and not file.is_repeated)
            )
            counted.add(file.file)
            self._add(
                file.kcov, kind, Reference(kind, counts, file.pid, file.fd, file.file, file.start)
            )

    def _add_enabled(self, address: int) -> None:
        """Add the reference for the task that an object is enabled for: it has one while ``t`` is
        set (kcov-abi.md K1).
        """
        fields = self._cache.kcov_or_none(address)
        references = self._references[address]
        if (
            fields is not None
            and fields.task
            and not any(found.kind == "task" for found in references)
        ):
            references.insert(0, Reference("task", 1, self._cache.owner(fields.task)[0]))

    def _add_unreferenced(self) -> None:
        """Add files that no table or mapping shows, and objects that nothing leads to."""
        if self._layout.kcov is None or not self._layout.kcov.has("area"):
            # Then the owner of a buffer is unknown.
            return
        allocators = user_allocators()
        buffers = {area.start for area in self._cache.kcov_areas if area.allocator in allocators}
        lost = buffers - self._known_areas()
        if not lost and not any(map(self._is_unbalanced, self._roads)):
            return
        # Preparing the search reads types of compilation units that nothing else needs.
        slab = self._target.slab if self._searches_slab else None
        if slab is None:
            why = (
                "this target cannot search slab memory"
                if self._searches_slab
                else "slab memory was not searched"
            )
            self._lacking[Source.SLAB] = Lack(
                (f"{why}: files that no process holds are not found",), is_total=True
            )
        else:
            self._add_unlisted_files(slab)
            lost = buffers - self._known_areas()
            if lost:
                self._add_slab_objects(slab, lost)
                lost = buffers - self._known_areas()
        lines = (
            f"no readable struct kcov refers to the buffer at {area:#x}" for area in sorted(lost)
        )
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
        fields = self._cache.kcov_or_none(address)
        return fields is not None and (fields.refcount or 0) > sum(
            found.counts for found in self._references[address]
        )

    def _add_unlisted_files(self, slab: SlabSource) -> None:
        """Add files that are in flight over a socket, registered with io_uring, or leaked."""
        known = {reference.file for found in self._references.values() for reference in found}
        walk = FileWalk(self._target)
        extra: list[KcovFile] = []
        try:
            for address in slab.for_each_file():
                kcov = (
                    None
                    if address in known
                    else walk.find_kcov(address, "a struct file of the slab cache")
                )
                if kcov is not None:
                    extra.append(KcovFile(0, address, kcov))
        except ReadError as error:
            self._lacking[Source.SLAB] = Lack((f"the slab cache of files is incomplete: {error}",))
        if walk.unread:
            self._lacking[Source.SLAB] = Lack((*self._lacking[Source.SLAB].lines, *walk.unread))
        released = {file.file for file in extra if walk.is_released(file.file)}
        for file in sorted(extra, key=lambda file: file.file in released):
            # A file that is about to be closed still has its reference; a freed one has none, and
            # its object may be freed as well.
            if file.file not in released or (
                file.kcov in self._roads and self._is_unbalanced(file.kcov)
            ):
                self._add(file.kcov, "file", Reference("fd", 1, file=file.file))
                self._add_enabled(file.kcov)

    def _add_slab_objects(self, slab: SlabSource, areas: set[int]) -> None:
        """Add what looks like the ``struct kcov`` of a buffer to which nothing leads (kcov-abi.md
        10.7).
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
                if (
                    fields.area in areas
                    and is_whole
                    and find_implausible(self._target, self._layout, fields) is None
                ):
                    self._add(item.address, "vmalloc")
        except ReadError as error:
            self._lacking[Source.SLAB] = Lack((f"the slab caches are incomplete: {error}",))

    def _object(self, address: int) -> Kcov:
        references, roads = tuple(self._references[address]), tuple(self._roads[address])
        errors = list(self._errors[address])
        try:
            fields = self._cache.kcov(address)
        except (ReadError, MissingTypeError) as error:
            return Kcov(
                None,
                address,
                None,
                None,
                None,
                None,
                None,
                None,
                references,
                roads,
                (str(error), *errors),
            )
        problem = find_implausible(self._target, self._layout, fields)
        if problem is not None:
            errors.append(f"it is no longer a struct kcov: {problem}")
        if fields.task is None:
            errors.append(
                "the task that it is enabled for is unknown: that reference is not counted"
            )
        pid, comm, problems = self._cache.owner(fields.task)
        errors += problems
        mode = (
            None
            if fields.mode is None
            else self._layout.object_mode_name(fields.mode, fields.mode_flag)
        )
        unknown = self._layout.split_mode(fields.mode or 0)[1]
        errors += [f"mode {name_bits(unknown)} is unknown"] if unknown else []
        fill = find_fill(
            self._target,
            self._layout,
            fields.area,
            fields.size,
            mode,
            fields.trace,
            fields.trace_size,
            address,
        )
        errors += fill.problems
        edge_area, edge_count, problem = self._edges(fields)
        if problem is not None:
            errors.append(problem)
        own_areas, knows_own_areas = self._cache.own_areas(fields)
        return Kcov(
            fields,
            address,
            mode,
            pid,
            comm,
            fill.count,
            fill.capacity,
            fill.full,
            references,
            roads,
            tuple(errors),
            edge_area,
            edge_count,
            own_areas,
            knows_own_areas,
            fill.is_blank,
            fill.full_because,
        )

    def _edges(self, fields: KcovFields) -> tuple[int | None, int | None, str | None]:
        """Return the address and the count of an object's second buffer, which holds edges, and
        what is unreadable.
        """
        second = self._layout.traits.second_buffer
        if second is None:
            return None, None, None
        if not fields.area:
            return fields.area, None, None
        area = None
        try:
            area = second.find(self._target, fields.address)
            return area, read_count(self._target, self._layout, area, second.mode), None
        except (ReadError, MissingTypeError) as error:
            return area, None, f"buffer for edges: {error}"
