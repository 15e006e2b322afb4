# SPDX-License-Identifier: LGPL-2.1-or-later
"""Coverage buffers, read by the names that users give them: ``41``, ``kcov:0x…``, ``area:0x…``, ``fd:41/3``, ``saved:0``.

A buffer is read in one piece. Its count is the user's to write, so that it is clamped; while a section uses an area, nobody but
the kernel writes it, and its count is taken at its word and checked. The kernel raises the count before it writes the record,
so that the last record of a live kernel's buffer may be old: it is read again (:func:`_settle`).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from kcovdbg.abi import record
from kcovdbg.abi.era import Feature
from kcovdbg.abi.mode import DISABLED, UNIQ_BOTH, is_known, is_tracing
from kcovdbg.abi.record import Encoding, RecordFormat
from kcovdbg.errors import KcovdbgError, MissingSymbolError, MissingTypeError, ReadError, UsageError
from kcovdbg.model.buffer import Buffer, Gap
from kcovdbg.model.kcov import KcovFields
from kcovdbg.model.task import Role, SavedState, Task
from kcovdbg.target import Target
from kcovdbg.walk.block import BlockLayout, find_member, read_partly
from kcovdbg.walk.census import Census
from kcovdbg.walk.layout import KCOV, TASK, Layout
from kcovdbg.walk.objects import find_edges, read_count
from kcovdbg.walk.pointer import check_pointer

# A live buffer that is reset again and again while it is read.
_RETRIES: Final = 3
# An area whose size nobody tells is read this far at most: 8 MiB of 64-bit words.
_UNKNOWN_SIZE: Final = 1 << 20
# Of missing pages in a row, until the rest of a buffer is taken for missing too.
_PATIENCE: Final = 256
_INT_MAX: Final = 0x7FFFFFFF
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


def read_buffer(target: Target, layout: Layout, census: Census, name: str) -> Buffer:
    """Read the buffer with this name.

    :param name: ``41`` (a task: what collects into it, or what the owner of a KCOV_REMOTE_ENABLE owns), ``kcov:0x…``,
        ``area:0x…``, ``fd:41/3`` (process and descriptor), ``saved:0`` (CPU), ``saved:t41`` (task).
    :raises UsageError: when the name is of no such form.
    :raises KcovdbgError: when there is no such buffer.
    :return: where addresses and edges are recorded at once, those with these beside.
    :raises ReadError: when nothing of it can be read.
    """
    place = find_place(target, layout, census, name)
    buffer = read_place(target, layout, place)
    if place.edges is None:
        return buffer
    part = replace(place, address=place.edges, mode="TRACE_UNIQ_EDGE", edges=None, remarks=(), doubt=None)
    try:
        return replace(buffer, edges=read_place(target, layout, part))
    except ReadError as error:
        return replace(buffer, remarks=(*buffer.remarks, f"the edges' own buffer can't be read: {error}"))


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
        _number(name, name, 10)
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
        size=_allocated_words(target, layout, address),
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


def _allocated_words(target: Target, layout: Layout, address: int) -> int | None:
    """Return how many words were allocated at an address, None where that can't be told."""
    if target.vmalloc is None:
        return None
    try:
        found = next((area for area in target.vmalloc.for_each_vmalloc_area() if area.start == address), None)
    except ReadError:
        return None
    return None if found is None else found.size // layout.buffer_word


class _Bytes(NamedTuple):
    """The part of a buffer that holds records."""

    data: bytes
    gaps: tuple[tuple[int, int], ...]
    """Offset and size of what couldn't be read."""


def read_place(target: Target, layout: Layout, place: Place) -> Buffer:
    """Read a buffer whose place is known.

    :raises ReadError: when nothing of it can be read, or the place is no kernel address.
    """
    check_pointer(target, place.address, "buffer", layout.buffer_word)
    place = _with_possible_size(layout, place)
    encoding, remarks = _find_encoding(target, layout, place)
    if place.doubt is not None:
        encoding = _find_doubtful(target, layout, place, encoding)
        remarks.append(f"{place.doubt}: that its records are {_NOUNS[encoding.format]} is a guess")
    remarks = [*place.remarks, *remarks]
    if not encoding.has_count:
        return _read_bitmap(target, layout, place, encoding, remarks)
    stored = _read_count(target, place.address, encoding)
    if stored is None:
        remarks.append("the page with the count can't be read: records may be left over from an earlier use")
    size = _UNKNOWN_SIZE if place.size is None else place.size
    capacity = _capacity(layout, encoding, size)
    if stored and place.doubt is None and (place.mode is None or not is_tracing(place.mode)):
        guessed = _guess_encoding(target, layout, place, encoding, stored, size)
        if guessed is not None:
            encoding, capacity = guessed, _capacity(layout, guessed, size)
            remarks.append(f"nothing collects into the buffer: that its records are {_NOUNS[encoding.format]} is a guess")
    bits_set = None
    if encoding.bitmap_words:
        bitmap, missing = read_partly(target, place.address, encoding.count_offset)
        bits_set = record.count_bits(bitmap)
        remarks += [f"{sum(size for _, size in missing)} bytes of the bitmap can't be read"] if missing else []
    used = 0 if place.cached else capacity if stored is None else min(stored, capacity)
    if stored is not None and stored > capacity and not place.cached:
        remarks.append(_clamp_remark(place, stored, capacity))
    read = _read_records(target, place.address, encoding, used)
    if len(read.data) < used * encoding.record_size:
        remarks.append(f"{used} records were counted: from {len(read.data) // encoding.record_size} on their pages are missing")
        used = len(read.data) // encoding.record_size
        read = read._replace(data=read.data[: used * encoding.record_size])
    elif target.live and stored is not None and used and not place.cached:
        stored, used, read, settled = _settle(target, place, encoding, capacity, stored, used, read)
        remarks += settled
    words = record.decode_words(read.data, encoding)
    if stored is None:
        used = _last_written(words, encoding)
        del words[used * encoding.record_words :]
    gaps = _record_gaps(read.gaps, encoding, used)
    if gaps:
        lost = sum(gap.length for gap in gaps)
        remarks.append(f"{lost} of {used} records can't be read: their pages are missing, from record {gaps[0].first} on")
    if used and not gaps and record.pc_words(words, encoding)[used - 1] == 0:
        remarks.append("the last record is zero: the kernel raises the count before it writes, and was about to")
    if place.size is None:
        remarks.append("the buffer's size isn't known: whether it is full can't be told")
    elif stored is not None and used >= capacity > 0:
        remarks.append(full_remark(capacity))
    return Buffer(
        name=place.name,
        encoding=encoding,
        words=words,
        count=used,
        stored_count=None if place.cached else stored,
        capacity=None if place.size is None else capacity,
        address=place.address,
        size=place.size,
        mode=place.mode,
        pid=place.pid,
        comm=place.comm,
        kcov=place.kcov,
        kaslr_offset=target.kaslr_offset,
        live=target.live,
        private=place.private,
        bits_set=bits_set,
        gaps=gaps,
        remarks=tuple(remarks),
    )


_NOUNS: Final = {
    RecordFormat.PC: "addresses",
    RecordFormat.CMP: "comparisons",
    RecordFormat.PC_EXT: "addresses with entries and exits",
    RecordFormat.UNIQUE_BITMAP: "addresses behind a bitmap",
}


def _with_possible_size(layout: Layout, place: Place) -> Place:
    """Take a size for what it is when it is larger than any kernel allows (kcov-abi.md K3)."""
    if place.size is None or place.size <= _INT_MAX // layout.buffer_word:
        return place
    remark = f"its size is {place.size} words, and no buffer is as large: it is corrupt, and taken for unknown"
    return replace(place, size=None, remarks=(*place.remarks, remark))


def full_remark(capacity: int) -> str:
    """Say what it means that a buffer is full: the kernel drops a record without a word (kcov-abi.md 3.3)."""
    return f"full: all {capacity} records that fit are used, so that what came later may be missing"


def _capacity(layout: Layout, encoding: Encoding, size: int) -> int:
    return record.find_capacity(encoding.format, size, layout.buffer_word, bitmap_words=encoding.bitmap_words)


def _clamp_remark(place: Place, stored: int, capacity: int) -> str:
    if place.private:
        return f"the count is {stored:#x}, {capacity} records fit: user space can't write it, so that this is corruption"
    return f"the count is {stored:#x}, {capacity} records fit: user space wrote it, or it is corrupt; it is cut to what fits"


def _read_count(target: Target, address: int, encoding: Encoding) -> int | None:
    try:
        return record.decode_word(target.read(address + encoding.count_offset, encoding.word_size), encoding)
    except ReadError:
        return None


def _read_records(target: Target, address: int, encoding: Encoding, count: int) -> _Bytes:
    if not count:
        return _Bytes(b"", ())
    data, gaps = read_partly(target, address + encoding.records_offset, count * encoding.record_size, _PATIENCE)
    if gaps and sum(size for offset, size in gaps if offset < len(data)) == len(data):
        raise ReadError(f"no record of the buffer at {address:#x} can be read", address + encoding.records_offset)
    return _Bytes(data, tuple(gaps))


def _settle(
    target: Target, place: Place, encoding: Encoding, capacity: int, stored: int, used: int, read: _Bytes
) -> tuple[int, int, _Bytes, list[str]]:
    """Look at a live buffer again: its last record may have been on its way, and its user may have reset it.

    :return: the count, the records to show, their bytes, and remarks.
    """
    width = encoding.record_size
    for _ in range(_RETRIES):
        now = _read_count(target, place.address, encoding)
        if now is None:
            return stored, used, read, []
        if now >= stored:
            # What was counted before is written by now, but for the last record where its writer was interrupted.
            offset = (used - 1) * width
            try:
                last = target.read(place.address + encoding.records_offset + offset, width)
            except ReadError:
                return stored, used, read, []
            if last == read.data[offset:]:
                return stored, used, read, []
            remark = f"record {used - 1} was being written while it was read"
            return stored, used, read._replace(data=read.data[:offset] + last), [remark]
        stored, used = now, min(now, capacity)
        read = _read_records(target, place.address, encoding, used)
        if not used:
            return stored, used, read, ["the buffer was reset while it was read"]
    return stored, used, read, ["the buffer is being reset again and again: records of several rounds may be mixed"]


def _last_written(words: array[int], encoding: Encoding) -> int:
    """Return how many records there are up to the last one that isn't zero."""
    pcs = record.pc_words(words, encoding)
    return next((index + 1 for index in range(len(pcs) - 1, -1, -1) if pcs[index]), 0)


def _record_gaps(missing: tuple[tuple[int, int], ...], encoding: Encoding, used: int) -> tuple[Gap, ...]:
    """Turn spans of missing bytes into spans of records that aren't whole."""
    gaps: list[Gap] = []
    for offset, size in missing:
        first = offset // encoding.record_size
        end = min(used, -(-(offset + size) // encoding.record_size))
        if first >= end:
            continue
        if gaps and gaps[-1].first + gaps[-1].length >= first:
            gaps[-1] = Gap(gaps[-1].first, end - gaps[-1].first)
        else:
            gaps.append(Gap(first, end - first))
    return tuple(gaps)


def _read_bitmap(target: Target, layout: Layout, place: Place, encoding: Encoding, remarks: list[str]) -> Buffer:
    """Read the buffer of KCOV_INIT_UNIQUE, in which records are set bits."""
    # Without a count only its size tells what is still of the bitmap.
    size = _allocated_words(target, layout, place.address) if place.size is None else place.size
    if size is None:
        raise KcovdbgError(f"how long the bitmap at {place.address:#x} is can't be told", hint="info names what is lacking")
    data, missing = read_partly(target, place.address, size * layout.buffer_word, _PATIENCE)
    if missing:
        remarks.append(f"{sum(size for _, size in missing)} bytes of the bitmap can't be read: what they cover isn't shown")
    pcs = record.text_bitmap_pcs(data, encoding)
    remarks.append("a bit stands for four bytes of text: addresses are rounded down, and in no order of time")
    return Buffer(
        name=place.name,
        encoding=replace(encoding, word_size=8, big_endian=False),
        words=pcs,
        count=len(pcs),
        capacity=_capacity(layout, encoding, size),
        address=place.address,
        size=place.size,
        mode=place.mode,
        pid=place.pid,
        comm=place.comm,
        kcov=place.kcov,
        kaslr_offset=target.kaslr_offset,
        live=target.live,
        private=place.private,
        bits_set=len(pcs),
        remarks=tuple(remarks),
    )


def _find_encoding(target: Target, layout: Layout, place: Place) -> tuple[Encoding, list[str]]:
    """Find out how to read a buffer: by mode and generation, and by the object's own members where these decide."""
    generation = layout.generation
    remarks: list[str] = []
    extended = has_bitmap = False
    bitmap_words = 0
    try:
        if generation.has(Feature.EXT_RECORDS):
            extended = bool(_read_own(target, place, "kcov_ext_format", "kcov_ext_format"))
        if generation.has(Feature.UNIQUE_BITMAP):
            bits = _read_own(target, place, "kcov_state.bitmap_size", "state.bitmap_size")
            trace = _read_own(target, place, "kcov_state.trace", "state.trace") if bits is None else None
            # What lies before the trace is the bitmap.
            before = trace - place.address if trace else 0
            bitmap_words = (before if bits is None else bits // 8) // layout.buffer_word
            has_bitmap = bitmap_words > 0
            if has_bitmap and place.size is not None and bitmap_words >= place.size:
                remarks.append(f"the bitmap would take {bitmap_words} of {place.size} words: it is left out")
                bitmap_words = 0
    except (ReadError, MissingTypeError) as error:
        remarks.append(f"whether the buffer has records of another format can't be read: {error}")
    chosen = record.format_of_mode(place.mode, generation.features, extended=extended, has_bitmap=has_bitmap)
    if has_bitmap and bitmap_words:
        chosen = RecordFormat.UNIQUE_BITMAP
    elif chosen is RecordFormat.UNIQUE_BITMAP:
        chosen = RecordFormat.PC
    text_start = 0
    if chosen is RecordFormat.TEXT_BITMAP:
        try:
            text_start = target.symbol("_stext").address - target.kaslr_offset
        except MissingSymbolError as error:
            remarks.append(f"addresses are offsets into the text: {error}")
    encoding = record.make_encoding(
        chosen,
        target.word_size,
        target.big_endian,
        bitmap_words=bitmap_words,
        text_start=text_start,
        base=_find_base(target) if chosen is RecordFormat.PC_32 else None,
    )
    return encoding, remarks


def _find_base(target: Target) -> int:
    """Return what a 32-bit word lacks: the upper half of the text. The posting of 2016 doesn't take KASLR's offset off."""
    try:
        upper = target.symbol("_stext").address >> 32 << 32
    except MissingSymbolError:
        upper = 0xFFFFFFFF << 32 if target.word_size == 8 else 0
    return upper - target.kaslr_offset


def _read_own(target: Target, place: Place, in_task: str, in_kcov: str) -> int | None:
    """Read a member of the task whose buffer it is, or of the object; None where there is neither."""
    if place.task is not None:
        type_name, path, address = TASK, in_task, place.task
    elif place.kcov is not None:
        type_name, path, address = KCOV, in_kcov, place.kcov
    else:
        return None
    # The first version of the deduplication series had a struct inside the state.
    inner = path.replace("state.", "state.s.")
    if find_member(target, type_name, (path, inner)) is None:
        return None
    value = BlockLayout(target, type_name, {"value": (path, inner)}).read(target, address)[0]
    return int(value) if value is not None else None


def _guess_encoding(
    target: Target, layout: Layout, place: Place, encoding: Encoding, stored: int, size: int
) -> Encoding | None:
    """Guess what a buffer holds that isn't enabled: what it was used for last isn't remembered anywhere."""
    if encoding.format is not RecordFormat.PC or place.mode == DISABLED or target.word_size != 8 or place.cached:
        return None
    text = _text_range(target)
    if text is None:
        return None
    data, missing = read_partly(target, place.address + 8, min(64, size - 1) * 8)
    if missing:
        return None
    guessed = record.guess_format(record.decode_words(data, encoding), stored, *text)
    if guessed in (None, RecordFormat.PC) or (guessed is RecordFormat.PC_EXT and not _may_extend(layout)):
        return None
    return record.make_encoding(guessed or RecordFormat.PC, target.word_size, target.big_endian)


def _may_extend(layout: Layout) -> bool:
    return layout.generation.has(Feature.EXT_RECORDS)


def _find_doubtful(target: Target, layout: Layout, place: Place, encoding: Encoding) -> Encoding:
    """Guess what a buffer holds whose mode should be known and isn't; only where what is in it leaves one answer.

    :raises KcovdbgError: where it doesn't.
    """
    if encoding.bitmap_words and encoding.format is RecordFormat.UNIQUE_BITMAP:
        # The object says that there is a bitmap: there is one mode for it.
        return encoding
    generation = layout.generation
    text = _text_range(target)
    guessed = None
    if text is not None and target.word_size == 8 and not generation.has(Feature.TEXT_BITMAP):
        stored = _read_count(target, place.address, encoding)
        data, missing = read_partly(target, place.address + 8, 64 * 8)
        if stored and not missing:
            guessed = record.guess_format(record.decode_words(data, encoding), stored, *text)
    if guessed is None or generation.has(Feature.UNIQUE_MAPS) or (guessed is RecordFormat.PC_EXT and not _may_extend(layout)):
        raise KcovdbgError(
            f"what {place.name} holds can't be told: {place.doubt}",
            hint="info names what the debug info lacks; the words are read as they are by area:ADDRESS",
        )
    return record.make_encoding(guessed, target.word_size, target.big_endian)


def _text_range(target: Target) -> tuple[int, int] | None:
    """Return the first address of kernel code and the last one, modules included, minus the KASLR offset."""
    try:
        start = target.symbol("_stext").address - target.kaslr_offset
    except MissingSymbolError:
        return None
    # Modules lie above the kernel's text on x86 and below it on arm64: anything within 2 GiB may be code.
    return max(0, start - (1 << 31)), min((1 << 64) - 1, start + (1 << 31))
