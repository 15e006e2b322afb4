# SPDX-License-Identifier: LGPL-2.1-or-later
"""Coverage buffers, read by the names that users give them: ``41``, ``kcov:0x…``, ``area:0x…``, ``fd:41/3``, ``saved:0``.

A buffer is read in one piece. Its count is the user's to write, so that it is clamped; while a section uses an area, nobody but
the kernel writes it, and its count is taken at its word and checked. The kernel raises the count before it writes the record,
so that the last record of a live kernel's buffer may be old: it is read again (:func:`_settle`).
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Final, NamedTuple

from kcovdbg.abi import record
from kcovdbg.abi.era import Feature
from kcovdbg.abi.mode import is_tracing
from kcovdbg.abi.record import Encoding, RecordFormat
from kcovdbg.errors import KcovdbgError, ReadError
from kcovdbg.model.buffer import Buffer, Gap
from kcovdbg.target import Target
from kcovdbg.walk.block import read_partly
from kcovdbg.walk.census import Census
from kcovdbg.walk.encoding import find_doubtful, find_encoding, guess_encoding, read_stored_count
from kcovdbg.walk.layout import Layout
from kcovdbg.walk.place import Place, allocated_words, find_place
from kcovdbg.walk.pointer import check_pointer

# A live buffer that is reset again and again while it is read.
_RETRIES: Final = 3
# An area whose size nobody tells is read this far at most: 8 MiB of 64-bit words.
_UNKNOWN_SIZE: Final = 1 << 20
# Of missing pages in a row, until the rest of a buffer is taken for missing too.
_PATIENCE: Final = 256
_INT_MAX: Final = 0x7FFFFFFF
_NOUNS: Final = {
    RecordFormat.PC: "addresses",
    RecordFormat.CMP: "comparisons",
    RecordFormat.PC_EXT: "addresses with entries and exits",
    RecordFormat.UNIQUE_BITMAP: "addresses behind a bitmap",
}


def read_buffer(target: Target, layout: Layout, census: Census, name: str) -> Buffer:
    """Read the buffer with this name.

    :param name: ``41`` (a task: what collects into it, or what the owner of a KCOV_REMOTE_ENABLE owns), ``kcov:0x…``,
        ``area:0x…``, ``fd:41/3`` (process and descriptor), ``saved:0`` (CPU), ``saved:t41`` (task).
    :raises UsageError: when the name is of no such form.
    :return: where addresses and edges are recorded at once, those with these beside.
    :raises KcovdbgError: when there is no such buffer.
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
    encoding, remarks = find_encoding(target, layout, place)
    if place.doubt is not None:
        encoding = find_doubtful(target, layout, place, encoding)
        remarks.append(f"{place.doubt}: that its records are {_NOUNS[encoding.format]} is a guess")
    remarks = [*place.remarks, *remarks]
    if not encoding.has_count:
        return _read_bitmap(target, layout, place, encoding, remarks)
    stored = read_stored_count(target, place.address, encoding)
    if stored is None:
        remarks.append("the page with the count can't be read: records may be left over from an earlier use")
    size = _UNKNOWN_SIZE if place.size is None else place.size
    capacity = _capacity(layout, encoding, size)
    if stored and place.doubt is None and (place.mode is None or not is_tracing(place.mode)):
        guessed = guess_encoding(target, layout, place, encoding, stored, size)
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
        if layout.generation.has(Feature.UNIQUE_BITMAP) and not (place.mode and is_tracing(place.mode)):
            # kcov_reset() of the series forgets the bitmap (kcov-abi.md 6).
            remarks.append(
                "or it was enabled with KCOV_UNIQUE_ENABLE: then a bitmap comes first, which the kernel has forgotten"
            )
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
    return replace(
        _empty_buffer(target, place, encoding),
        words=words,
        count=used,
        stored_count=None if place.cached else stored,
        capacity=None if place.size is None else capacity,
        bits_set=bits_set,
        gaps=gaps,
        remarks=tuple(remarks),
    )


def _empty_buffer(target: Target, place: Place, encoding: Encoding) -> Buffer:
    """Make a buffer of all that is known before it is read."""
    return Buffer(
        name=place.name,
        encoding=encoding,
        words=array("Q"),
        count=0,
        address=place.address,
        size=place.size,
        mode=place.mode,
        pid=place.pid,
        comm=place.comm,
        kcov=place.kcov,
        kaslr_offset=target.kaslr_offset,
        live=target.live,
        private=place.private,
    )


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
        now = read_stored_count(target, place.address, encoding)
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
    size = allocated_words(target, layout, place.address) if place.size is None else place.size
    if size is None:
        raise KcovdbgError(f"how long the bitmap at {place.address:#x} is can't be told", hint="info names what is lacking")
    data, missing = read_partly(target, place.address, size * layout.buffer_word, _PATIENCE)
    if missing:
        remarks.append(f"{sum(size for _, size in missing)} bytes of the bitmap can't be read: what they cover isn't shown")
    pcs = record.text_bitmap_pcs(data, encoding)
    remarks.append("a bit stands for four bytes of text: addresses are rounded down, and in no order of time")
    return replace(
        _empty_buffer(target, place, replace(encoding, word_size=8, big_endian=False)),
        words=pcs,
        count=len(pcs),
        capacity=_capacity(layout, encoding, size),
        bits_set=len(pcs),
        remarks=tuple(remarks),
    )
