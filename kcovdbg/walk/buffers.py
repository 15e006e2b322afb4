# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reads coverage buffers in a kernel's memory by name (``41``, ``kcov:0x…``, ``area:0x…``,
``fd:41/3``, ``saved:0``).

A buffer is read in one piece; :mod:`.record_decoder` decodes it. The last record of a live kernel's
buffer may not be written yet: it is read again (:func:`_settle`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from kcovdbg.abi import record
from kcovdbg.abi.mode import DISABLED, is_known, is_tracing
from kcovdbg.abi.record import PC, Encoding
from kcovdbg.errors import KcovdbgError, MissingTypeError, ReadError
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.state import StateSource
from kcovdbg.series import table
from kcovdbg.series.declaration import BufferFacts
from kcovdbg.target.struct_layout import read_partly
from kcovdbg.target.target import Target
from kcovdbg.walk.buffer_names import find_buffer_facts
from kcovdbg.walk.layout import Layout
from kcovdbg.walk.objects import (
    check_buffer,
    find_bitmap_left,
    find_recorded_code,
    is_possible_size,
)
from kcovdbg.walk.record_decoder import clamp_count, decode_records, find_full_remarks


def find_encoding(
    target: Target, layout: Layout, facts: BufferFacts
) -> tuple[Encoding, tuple[str, ...]]:
    """Return the encoding of a buffer, and remarks on it."""
    codec = table.codec_of_mode(facts.mode, layout.generation.features)
    encoding = record.make_encoding(codec, target.word_size, target.big_endian)
    remarks: list[str] = []
    for series in layout.traits.series:
        if series.encode is None:
            continue
        try:
            encoding, said = series.encode(target, facts, encoding)
            remarks += said
        except (ReadError, MissingTypeError) as error:
            remarks.append(f"the buffer may have records of {series.name}: {error}")
    return encoding, tuple(remarks)


def _guess(
    target: Target, layout: Layout, facts: BufferFacts, encoding: Encoding, stored: int, words: int
) -> Encoding | None:
    """Guess the format of a buffer by its first words; return None if they fit no format."""
    code = find_recorded_code(target)
    if code is None or target.word_size != 8:
        return None
    data, missing = read_partly(target, facts.address + 8, words * 8)
    if missing:
        return None
    # A mode with an unknown bit may be of a series that is not recognized.
    has_mode = facts.doubt is not None and facts.mode is not None and is_known(facts.mode)
    codecs = table.guessable_codecs(None if has_mode else layout.generation.features)
    found = record.guess_codec(record.decode_words(data, encoding), stored, *code, codecs)
    if found is None:
        return None
    return record.make_encoding(found, target.word_size, target.big_endian)


def read_stored_count(target: Target, address: int, encoding: Encoding) -> int | None:
    """Return a buffer's count word, None if it is unreadable."""
    try:
        return record.decode_word(
            target.read(address + encoding.count_offset, encoding.word_size), encoding
        )
    except ReadError:
        return None


# How often a live buffer is read again if it is reset during a read.
_RETRIES: Final = 3
# Limit for the words of an area of unknown size: 8 MiB on 64-bit kernels.
_UNKNOWN_SIZE: Final = 1 << 20
# Missing pages in a row after which the rest of a buffer counts as missing.
_PATIENCE: Final = 256


def read_buffer(target: Target, layout: Layout, source: StateSource, name: str) -> Buffer:
    """Read the buffer with this name.

    :param name: ``41`` (the buffer of a task's session, or of the object that a task owns by
        KCOV_REMOTE_ENABLE), ``kcov:0x…``, ``area:0x…``, ``fd:41/3`` (process and descriptor),
        ``saved:0`` (CPU), ``saved:t41`` (task).
    :return: the buffer, with the second buffer if the kernel writes both.
    :raises UsageError: if it is no name of a buffer.
    :raises KcovdbgError: if there is no such buffer.
    :raises ReadError: if it is unreadable.
    """
    facts = find_buffer_facts(target, layout, source, name)
    buffer = read_buffer_at(target, layout, facts)
    second = layout.traits.second_buffer
    if second is None or facts.second is None:
        return buffer
    part = replace(
        facts, address=facts.second, mode=second.mode, second=None, remarks=(), doubt=None
    )
    try:
        return replace(buffer, second=read_buffer_at(target, layout, part))
    except ReadError as error:
        remark = f"buffer of {second.noun} cannot be read: {error}"
        return replace(buffer, remarks=(*buffer.remarks, remark))


@dataclass(frozen=True, slots=True)
class _ReadBytes:
    """The bytes of a buffer's counted records that could be read."""

    stored: int | None
    """The count word."""
    count: int
    """The number of records to show, of which some may be missing."""
    data: bytes
    missing: Sequence[tuple[int, int]]
    """Offset and size of each unreadable span."""
    remarks: tuple[str, ...] = ()

    def with_remark(self, remark: str, **changes: Any) -> _ReadBytes:
        return replace(self, remarks=(*self.remarks, remark), **changes)


def read_buffer_at(target: Target, layout: Layout, facts: BufferFacts) -> Buffer:
    """Read a buffer by its facts.

    :raises ReadError: if it is unreadable, or is not at a kernel address.
    """
    check_buffer(target, facts.address)
    facts = _with_possible_size(layout, facts)
    encoding, said = find_encoding(target, layout, facts)
    stored = read_stored_count(target, facts.address, encoding)
    encoding, guessed = _check_encoding(target, layout, facts, encoding, stored)
    remarks = [*facts.remarks, *said, *guessed]
    if stored is None:
        remarks.append(
            "page with the count cannot be read: records may be left over from an earlier use"
        )
    bitmap = _read_bitmap(target, facts.address, encoding)
    remarks += bitmap.remarks
    size = _UNKNOWN_SIZE if facts.size is None else facts.size
    capacity = encoding.capacity(size, layout.buffer_word)
    read = _read_counted(target, layout, facts, encoding, stored, capacity)
    remarks += read.remarks
    found = decode_records(
        read.data,
        encoding,
        read.count,
        missing=read.missing,
        is_count_known=read.stored is not None,
    )
    remarks += found.remarks
    is_cut = len(read.data) < read.count * encoding.record_size
    has_known_mode = facts.mode is not None and is_known(facts.mode)
    buffer = Buffer(
        name=facts.name,
        encoding=found.encoding,
        words=found.words,
        count=found.count,
        stored_count=None if facts.cached else read.stored,
        capacity=None if facts.size is None else capacity,
        address=facts.address,
        size=facts.size,
        mode=facts.mode,
        pid=facts.pid,
        comm=facts.comm,
        kcov=facts.kcov,
        kaslr_offset=target.kaslr_offset,
        live=target.live,
        private=facts.private,
        has_doubtful_format=facts.doubt is not None and has_known_mode,
        bits_set=bitmap.bits_set,
        gaps=found.gaps,
        is_open=True,
        is_incomplete=stored is None or bitmap.is_cut or bool(read.missing) or is_cut,
    )
    if facts.size is None:
        remarks.append("size of the buffer is unknown: it may be full")
    remarks += find_full_remarks(buffer)
    return replace(buffer, remarks=tuple(remarks))


def _check_encoding(
    target: Target, layout: Layout, facts: BufferFacts, encoding: Encoding, stored: int | None
) -> tuple[Encoding, tuple[str, ...]]:
    """Return the encoding of a buffer, and a remark if it is a guess."""
    if facts.doubt is not None:
        # Only one mode has a prefix, which members show.
        if not encoding.prefix_words:
            encoding = _guess_doubtful(target, layout, facts, encoding, stored)
        return encoding, (f"{facts.doubt}: read as {encoding.codec.noun}, which is a guess",)
    is_used = facts.mode == DISABLED or (facts.mode is not None and is_tracing(facts.mode))
    is_idle = not facts.cached and not is_used
    if not stored or not is_idle or encoding.codec != PC or encoding.prefix_words:
        return encoding, ()
    # The kernel does not store the last mode of a buffer: guess it.
    size = _UNKNOWN_SIZE if facts.size is None else facts.size
    guessed = _guess(target, layout, facts, encoding, stored, min(record.GUESS_WORDS, size - 1))
    if guessed is None or guessed.codec == PC:
        return encoding, ()
    noun = guessed.codec.noun
    return guessed, (f"nothing collects into the buffer: read as {noun}, which is a guess",)


def _guess_doubtful(
    target: Target, layout: Layout, facts: BufferFacts, encoding: Encoding, stored: int | None
) -> Encoding:
    """Return the guessed encoding of a buffer whose mode is unknown.

    :raises KcovdbgError: if its words fit no format.
    """
    if stored and not layout.traits.is_laid_out_by_mode:
        guessed = _guess(target, layout, facts, encoding, stored, record.GUESS_WORDS)
        if guessed is not None:
            return guessed
    if facts.mode is not None and is_known(facts.mode):
        # The mode is known, but not another bit of its word.
        return encoding
    raise KcovdbgError(
        f"format of {facts.name} is unknown: {facts.doubt}",
        hint="info names what the debug info lacks; area:ADDRESS shows the words as they are",
    )


class _Bitmap(NamedTuple):
    bits_set: int | None = None
    """None if there is no bitmap."""
    is_cut: bool = False
    remarks: tuple[str, ...] = ()


def _read_bitmap(target: Target, address: int, encoding: Encoding) -> _Bitmap:
    """Read the bitmap before the count word."""
    if not encoding.prefix_words:
        return _Bitmap()
    data, missing = read_partly(target, address, encoding.count_offset)
    bits_set = record.count_bits(data)
    if not missing:
        return _Bitmap(bits_set)
    lost = sum(size for _, size in missing)
    return _Bitmap(bits_set, True, (f"{lost} bytes of the bitmap cannot be read",))


def _read_counted(
    target: Target,
    layout: Layout,
    facts: BufferFacts,
    encoding: Encoding,
    stored: int | None,
    capacity: int,
) -> _ReadBytes:
    """Read the counted records of a buffer, or all if the count is unknown.

    :param stored: the count word.
    """
    if facts.cached:
        return _ReadBytes(stored, 0, b"", ())
    count = capacity
    remarks: tuple[str, ...] = ()
    if stored is not None:
        count, remarks = clamp_count(stored, capacity, is_private=facts.private)
        mode, address = facts.mode, facts.address
        bitmap_left = find_bitmap_left(target, layout, mode, address, stored, capacity)
        if bitmap_left is not None:
            remarks = (*remarks, bitmap_left)
    data, missing = _read_records(target, facts.address, encoding, count)
    read = _ReadBytes(stored, count, data, missing, remarks)
    is_whole = len(data) == count * encoding.record_size
    if target.live and stored is not None and count and is_whole:
        return _settle(target, facts, encoding, capacity, stored, read)
    return read


def _with_possible_size(layout: Layout, facts: BufferFacts) -> BufferFacts:
    """Return the facts without a size that KCOV_INIT_TRACE never accepts (kcov-abi.md K3)."""
    if facts.size is None or is_possible_size(layout, facts.size):
        return facts
    remark = f"size of {facts.size} words is corrupt: no buffer is that large; treated as unknown"
    return facts.with_remark(remark, size=None)


def _read_records(
    target: Target, address: int, encoding: Encoding, count: int
) -> tuple[bytes, list[tuple[int, int]]]:
    """Return the bytes of records, and offset and size of each unreadable span.

    :raises ReadError: if all are unreadable.
    """
    if not count:
        return b"", []
    data, gaps = read_partly(
        target, address + encoding.records_offset, count * encoding.record_size, _PATIENCE
    )
    if gaps and sum(size for offset, size in gaps if offset < len(data)) == len(data):
        raise ReadError(
            f"no record of the buffer at {address:#x} can be read",
            address + encoding.records_offset,
        )
    return data, gaps


def _settle(
    target: Target,
    facts: BufferFacts,
    encoding: Encoding,
    capacity: int,
    stored: int,
    read: _ReadBytes,
) -> _ReadBytes:
    """Read the last record of a live buffer again, as it may not have been written before; and all
    records if the buffer was reset.
    """
    width = encoding.record_size
    for _ in range(_RETRIES):
        now = read_stored_count(target, facts.address, encoding)
        if now is None:
            return read
        if now >= stored:
            # By now all counted records are written; only an interrupted writer may leave the last
            # one.
            offset = (read.count - 1) * width
            try:
                last = target.read(facts.address + encoding.records_offset + offset, width)
            except ReadError:
                return read
            if last == read.data[offset:]:
                return read
            remark = f"record {read.count - 1} was written while the buffer was read"
            return read.with_remark(remark, data=read.data[:offset] + last)
        stored, count = now, min(now, capacity)
        data, missing = _read_records(target, facts.address, encoding, count)
        read = _ReadBytes(stored, count, data, missing, read.remarks)
        if not count:
            return read.with_remark("the buffer was reset while it was read")
    return read.with_remark(
        "the buffer was reset repeatedly while it was read: records of several rounds may be mixed"
    )


def read_window(
    target: Target, layout: Layout, source: StateSource, name: str, first: int, most: int
) -> tuple[tuple[int, ...], int]:
    """Read consecutive records of a buffer.

    :param first: the index of the first record.
    :param most: the number of records.
    :return: the PCs of the records that have one, minus the KASLR offset, and how many records
        were read.
    :raises KcovdbgError: when there is no such buffer, or the records are unreadable.
    """
    facts = find_buffer_facts(target, layout, source, name)
    encoding, _ = find_encoding(target, layout, facts)
    if encoding.codec.is_variable or facts.doubt is not None or most <= 0:
        return (), 0
    start = facts.address + encoding.records_offset + first * encoding.record_size
    words = record.decode_words(target.read(start, most * encoding.record_size), encoding)
    addresses = record.pc_words(words, encoding)
    pcs = record.pcs_of_words(set(addresses), encoding)
    return tuple(pcs[word] for word in addresses if word in pcs), most
