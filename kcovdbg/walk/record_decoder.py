# SPDX-License-Identifier: LGPL-2.1-or-later
"""The one decoder of coverage buffers. The bytes may be of a kernel's memory, a trace file or a
copy by the collector.

The count is clamped, as user space can write the count of its buffer. The kernel raises the count
before it writes a record: so the last record may not be written yet.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kcovdbg.abi import record
from kcovdbg.abi.record import Encoding
from kcovdbg.model.buffer import Buffer, Gap


def clamp_count(
    stored: int, capacity: int | None, *, is_private: bool = False
) -> tuple[int, tuple[str, ...]]:
    """Return a buffer's count, clamped to the capacity, and a remark if it was clamped.

    :param capacity: None if the size of the buffer is unknown.
    :param is_private: whether only the kernel writes the buffer.
    """
    if capacity is None or stored <= capacity:
        return stored, ()
    problem = f"count is {stored:#x} but {capacity} records fit"
    if is_private:
        remark = f"{problem}: corrupt, as user space cannot write it"
    else:
        remark = f"{problem}: user space wrote it, or it is corrupt; clamped"
    return capacity, (remark,)


@dataclass(frozen=True, slots=True)
class DecodedRecords:
    """The whole records in some bytes."""

    words: array[int]
    encoding: Encoding
    """The encoding of the buffer, with the start of each record if records differ in length."""
    count: int
    gaps: tuple[Gap, ...] = ()
    remarks: tuple[str, ...] = ()


def decode_records(
    data: bytes,
    encoding: Encoding,
    count: int,
    *,
    missing: Sequence[tuple[int, int]] = (),
    cause: str = "pages are missing",
    is_count_known: bool = True,
) -> DecodedRecords:
    """Decode the records of a buffer.

    :param data: the bytes from the first record on; missing ones are zero, and it may end early.
    :param count: the number of records to decode, or of words if records differ in length.
    :param missing: offset and size of each missing span, ascending.
    :param cause: the reason if the data ends early.
    :param is_count_known: whether zeros at the end are records; if not, they may be unused space.
    """
    remarks: list[str] = []
    whole = len(data) // encoding.record_size
    if whole < count:
        remarks.append(f"count is {count:#x}, but {cause} from record {whole} on")
        count = whole
    words = record.decode_words(data[: count * encoding.record_size], encoding)
    if encoding.codec.is_variable:
        found = _split(words, encoding, missing)
    else:
        if not is_count_known:
            count = _last_written(words, encoding)
            del words[count * encoding.record_words :]
        found = _find_gaps(words, encoding, missing)
    return replace(found, remarks=(*remarks, *found.remarks))


def _split(
    words: array[int], encoding: Encoding, missing: Sequence[tuple[int, int]]
) -> DecodedRecords:
    """Find the records in the words of a buffer whose records differ in length."""
    counted = len(words)
    if missing:
        # The starts of all records after a lost word are unknown.
        del words[missing[0][0] // encoding.word_size :]
    words, encoding = record.split_records(words, encoding)
    lost = counted - len(words)
    remarks: tuple[str, ...] = ()
    if lost and missing:
        remarks = (
            f"records in the last {lost} of {counted} words cannot be read: pages are missing",
        )
    elif lost:
        remarks = (
            f"the last {lost} of {counted} words are no whole record: being written, or "
            f"overwritten",
        )
    count = record.count_records(words, encoding)
    return DecodedRecords(words, encoding, count, remarks=remarks)


def _find_gaps(
    words: array[int], encoding: Encoding, missing: Sequence[tuple[int, int]]
) -> DecodedRecords:
    """Find which records of one length are incomplete."""
    count = record.count_records(words, encoding)
    gaps = _record_gaps(missing, encoding, count)
    remarks: tuple[str, ...] = ()
    if gaps:
        lost = sum(gap.length for gap in gaps)
        remarks = (
            f"{lost} of {count} records cannot be read: pages are missing from record "
            f"{gaps[0].first} on",
        )
    elif count and record.pc_words(words, encoding)[count - 1] == 0:
        remarks = ("last record is zero: the kernel raises the count before it writes the record",)
    return DecodedRecords(words, encoding, count, gaps, remarks)


def _last_written(words: array[int], encoding: Encoding) -> int:
    """Return the number of records up to the last one that is not zero."""
    pcs = record.pc_words(words, encoding)
    for index in range(len(pcs) - 1, -1, -1):
        if pcs[index]:
            return index + 1
    return 0


def _record_gaps(
    missing: Sequence[tuple[int, int]], encoding: Encoding, count: int
) -> tuple[Gap, ...]:
    """Return spans of missing bytes as spans of incomplete records."""
    gaps: list[Gap] = []
    for offset, size in missing:
        first = offset // encoding.record_size
        end = min(count, -(-(offset + size) // encoding.record_size))
        if first >= end:
            continue
        if gaps and gaps[-1].first + gaps[-1].length >= first:
            gaps[-1] = Gap(gaps[-1].first, end - gaps[-1].first)
        else:
            gaps.append(Gap(first, end - first))
    return tuple(gaps)


def find_full_remarks(buffer: Buffer) -> tuple[str, ...]:
    """Return a remark if a buffer is full: the kernel drops further records silently (kcov-abi.md
    3.3).
    """
    codec = buffer.encoding.codec
    # Without a count, unused space may count as records.
    is_counted = buffer.stored_count is not None or codec.is_variable
    if not (buffer.full and buffer.capacity and is_counted):
        return ()
    if codec.is_variable:
        fill = f"no record fits into the rest of {buffer.capacity} words"
    else:
        fill = f"all {buffer.capacity} records are used"
    return (f"full: {fill}; later ones may be missing",)


def decode_buffer(
    name: str,
    data: bytes,
    encoding: Encoding,
    *,
    size: int | None,
    word_size: int,
    mode: str | None,
    pid: int | None,
    comm: str | None,
) -> Buffer:
    """Decode a buffer whose bytes begin with the count word. The count is clamped to the capacity
    and to the complete records in the data.

    :param data: the bytes, which may be empty or end within a record.
    :param size: size of the buffer in words of the kernel, without a prefix before the count; None
        if unknown.
    :param word_size: size of a word of the kernel in bytes.
    """
    stored = record.decode_word(data[: encoding.word_size], encoding) if data else 0
    capacity = None if size is None else encoding.capacity(size, word_size)
    count, clamped = clamp_count(stored, capacity)
    found = decode_records(data[encoding.records_offset :], encoding, count, cause="the data ends")
    end = encoding.records_offset + count * encoding.record_size
    buffer = Buffer(
        name=name,
        encoding=found.encoding,
        words=found.words,
        count=found.count,
        stored_count=stored,
        capacity=capacity,
        size=size,
        mode=mode,
        pid=pid,
        comm=comm,
        is_incomplete=bool(data) and len(data) < end,
    )
    remarks = (*clamped, *found.remarks, *find_full_remarks(buffer))
    return replace(buffer, remarks=remarks)
