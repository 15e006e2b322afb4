# SPDX-License-Identifier: LGPL-2.1-or-later
"""Decodes the content of a buffer that was copied, by the collector or into a trace file, and concatenates such buffers."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace

from kcovdbg.abi import record
from kcovdbg.abi.record import Encoding
from kcovdbg.model.buffer import Buffer
from kcovdbg.walk.buffers import full_remark, full_words_remark


def decode_buffer(
    name: str,
    data: bytes,
    encoding: Encoding,
    *,
    size: int | None,
    word_size: int,
    mode: str | None = None,
    pid: int | None = None,
    comm: str | None = None,
) -> Buffer:
    """Return the buffer that some bytes hold, from its count word on.

    The count is clamped to the capacity and to the complete records in the data.

    :param data: may be empty, or end within a record.
    :param size: size of the buffer in words of the kernel, without a prefix before the count; None if unknown.
    :param word_size: size of a word of the kernel in bytes.
    """
    start = encoding.records_offset
    stored = record.decode_word(data[: encoding.word_size], encoding) if data else 0
    complete = max(0, len(data) - start) // encoding.record_size
    capacity = None if size is None else encoding.capacity(size, word_size)
    expected = stored if capacity is None else min(stored, capacity)
    count = min(expected, complete)
    words = record.decode_words(data[start : start + count * encoding.record_size], encoding)
    if encoding.codec.is_variable:
        words, encoding = record.split_records(words, encoding)
    remarks = []
    if expected < stored:
        remarks.append(f"count {stored:#x} exceeds the capacity of {capacity} records: user space wrote it; clamped")
    if count < expected:
        remarks.append(f"truncated: {complete} complete records, count {stored:#x}")
    if encoding.codec.is_variable:
        if len(words) < count:
            remarks.append(f"the last {count - len(words)} of {count} words are no whole record")
        if capacity is not None and len(words) + encoding.codec.least_words > capacity:
            remarks.append(full_words_remark(capacity))
    elif capacity is not None and count == capacity:
        remarks.append(full_remark(capacity))
    return Buffer(
        name=name,
        encoding=encoding,
        words=words,
        count=record.count_records(words, encoding),
        stored_count=stored,
        capacity=capacity,
        size=size,
        mode=mode,
        pid=pid,
        comm=comm,
        remarks=tuple(remarks),
    )


def concatenate(buffers: Sequence[Buffer], remarks: Sequence[str]) -> Buffer:
    """Return buffers of one encoding as one.

    :param remarks: of the whole.
    """
    words = array(buffers[0].words.typecode)
    for buffer in buffers:
        words.extend(buffer.words)
    count = sum(buffer.count for buffer in buffers)
    words, encoding = record.split_records(words, buffers[0].encoding)
    # The capacity of one buffer says nothing about all of them.
    return replace(
        buffers[0],
        words=words,
        encoding=encoding,
        count=count,
        stored_count=count,
        capacity=None,
        size=None,
        remarks=tuple(remarks),
    )
