# SPDX-License-Identifier: LGPL-2.1-or-later
"""Coverage buffers, read by name (``41``, ``kcov:0x…``, ``area:0x…``, ``fd:41/3``, ``saved:0``),
and how their words are read.

A buffer is read in one piece. User space can write its count, which is therefore clamped; only the
kernel writes the area of a section, and a count there that is too large is corruption. The kernel
raises the count before it writes the record, so the last record of a live kernel's buffer may be
old: it is read again (:func:`_settle`).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from kcovdbg.abi import record
from kcovdbg.abi.mode import DISABLED, is_known, is_tracing
from kcovdbg.abi.record import PC, Codec, Encoding
from kcovdbg.errors import KcovdbgError, MissingTypeError, ReadError
from kcovdbg.model.buffer import Buffer, Gap
from kcovdbg.model.state import StateSource
from kcovdbg.series import table
from kcovdbg.series.declaration import BufferFacts
from kcovdbg.target.pointer import check_pointer
from kcovdbg.target.struct_layout import read_partly
from kcovdbg.target.target import Target
from kcovdbg.walk.buffer_names import find_buffer_facts
from kcovdbg.walk.layout import Layout
from kcovdbg.walk.objects import BITMAP_LEFT, find_recorded_code, may_be_bitmap


def find_encoding(
    target: Target, layout: Layout, facts: BufferFacts
) -> tuple[Encoding, tuple[str, ...]]:
    """Return how to read a buffer, and what to say about it."""
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
    """Guess the format of a buffer by its first words; return None if nothing fits."""
    code = find_recorded_code(target)
    if code is None or target.word_size != 8:
        return None
    data, missing = read_partly(target, facts.address + 8, words * 8)
    if missing:
        return None
    # A mode with an unknown bit may be one of a series that is not recognized.
    has_mode = facts.doubt is not None and facts.mode is not None and is_known(facts.mode)
    codecs = table.guessable_codecs(None if has_mode else layout.generation.features)
    found = record.guess_codec(record.decode_words(data, encoding), stored, *code, codecs)
    return (
        None if found is None else record.make_encoding(found, target.word_size, target.big_endian)
    )


def read_stored_count(target: Target, address: int, encoding: Encoding) -> int | None:
    """Return a buffer's count as stored, in records; None if it cannot be read."""
    try:
        return record.decode_word(
            target.read(address + encoding.count_offset, encoding.word_size), encoding
        )
    except ReadError:
        return None


# How often a live buffer that is reset while it is read is read again.
_RETRIES: Final = 3
# Limit for an area of unknown size, in words: 8 MiB on 64-bit kernels.
_UNKNOWN_SIZE: Final = 1 << 20
# After so many missing pages in a row the rest of a buffer counts as missing.
_PATIENCE: Final = 256
_INT_MAX: Final = 0x7FFFFFFF
# The part of a buffer that holds records: its bytes, and offset and size of what could not be read.
_Bytes: TypeAlias = "tuple[bytes, list[tuple[int, int]]]"


def read_buffer(target: Target, layout: Layout, source: StateSource, name: str) -> Buffer:
    """Read the buffer with this name.

    :param name: ``41`` (a task: what collects into it, or what the owner of a KCOV_REMOTE_ENABLE
        owns), ``kcov:0x…``, ``area:0x…``, ``fd:41/3`` (process and descriptor), ``saved:0`` (CPU),
        ``saved:t41`` (task).
    :return: the buffer, with the second one if both are being written.
    :raises UsageError: if the name has no such form.
    :raises KcovdbgError: if there is no such buffer.
    :raises ReadError: if nothing of it can be read.
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


def read_buffer_at(target: Target, layout: Layout, facts: BufferFacts) -> Buffer:
    """Read a buffer by its facts.

    :raises ReadError: if nothing of it can be read, or its address is none of the kernel.
    """
    check_pointer(target, facts.address, "buffer", layout.buffer_word)
    facts = _with_possible_size(layout, facts)
    encoding, said = find_encoding(target, layout, facts)
    remarks = [*facts.remarks, *said]
    stored = read_stored_count(target, facts.address, encoding)
    size = _UNKNOWN_SIZE if facts.size is None else facts.size
    is_idle = not (
        facts.cached
        or facts.mode == DISABLED
        or (facts.mode is not None and is_tracing(facts.mode))
    )
    if facts.doubt is not None:
        # A prefix, which members show, is there in one mode alone.
        if not encoding.prefix_words:
            by_mode = layout.traits.is_laid_out_by_mode or not stored
            guessed = (
                None
                if by_mode
                else _guess(target, layout, facts, encoding, stored or 0, record.GUESS_WORDS)
            )
            has_mode = facts.mode is not None and is_known(facts.mode)
            if guessed is None and has_mode:
                # Only a bit beside the mode is unknown.
                guessed = encoding
            if guessed is None:
                raise KcovdbgError(
                    f"format of {facts.name} is unknown: {facts.doubt}",
                    hint="info names what the debug info lacks; area:ADDRESS shows the words as "
                    "they are",
                )
            encoding = guessed
        remarks.append(f"{facts.doubt}: read as {encoding.codec.noun}, which is a guess")
    elif stored and is_idle and encoding.codec == PC and not encoding.prefix_words:
        # The kernel does not keep what a buffer was used for last.
        guessed = _guess(target, layout, facts, encoding, stored, min(record.GUESS_WORDS, size - 1))
        if guessed is not None and guessed.codec != PC:
            encoding = guessed
            remarks.append(
                f"nothing collects into the buffer: read as {encoding.codec.noun}, which is a guess"
            )
    is_incomplete = stored is None
    if stored is None:
        remarks.append(
            "page with the count cannot be read: records may be left over from an earlier use"
        )
    capacity = encoding.capacity(size, layout.buffer_word)
    bits_set = None
    if encoding.prefix_words:
        bitmap, missing = read_partly(target, facts.address, encoding.count_offset)
        bits_set = record.count_bits(bitmap)
        is_incomplete = is_incomplete or bool(missing)
        remarks += (
            [f"{sum(size for _, size in missing)} bytes of the bitmap cannot be read"]
            if missing
            else []
        )
    used = 0 if facts.cached else capacity if stored is None else min(stored, capacity)
    if stored is not None and stored > capacity and not facts.cached:
        remarks.append(_clamp_remark(facts, stored, capacity))
    if (
        stored
        and not facts.cached
        and may_be_bitmap(target, layout, facts.mode, facts.address, stored, capacity)
    ):
        remarks.append(BITMAP_LEFT)
    data, missing = _read_records(target, facts.address, encoding, used)
    is_incomplete = is_incomplete or bool(missing) or len(data) < used * encoding.record_size
    if len(data) < used * encoding.record_size:
        remarks.append(
            f"count is {used}, but pages are missing from record "
            f"{len(data) // encoding.record_size} on"
        )
        used = len(data) // encoding.record_size
        data = data[: used * encoding.record_size]
    elif target.live and stored is not None and used and not facts.cached:
        stored, used, (data, missing), settled = _settle(
            target, facts, encoding, capacity, stored, used, (data, missing)
        )
        remarks += settled
    words = record.decode_words(data, encoding)
    gaps: tuple[Gap, ...] = ()
    if encoding.codec.is_variable:
        if missing:
            # A lost word hides where all later records begin.
            del words[missing[0][0] // encoding.word_size :]
        words, encoding = record.split_records(words, encoding)
        lost = used - len(words)
        if lost and missing:
            remarks.append(
                f"records in the last {lost} of {used} words cannot be read: pages are missing"
            )
        elif lost:
            remarks.append(
                f"the last {lost} of {used} words are no whole record: being written, or "
                f"overwritten"
            )
        used = record.count_records(words, encoding)
    else:
        if stored is None:
            used = _last_written(words, encoding)
            del words[used * encoding.record_words :]
        gaps = _record_gaps(missing, encoding, used)
        if gaps:
            lost = sum(gap.length for gap in gaps)
            remarks.append(
                f"{lost} of {used} records cannot be read: pages are missing from record "
                f"{gaps[0].first} on"
            )
        elif used and record.pc_words(words, encoding)[used - 1] == 0:
            remarks.append(
                "last record is zero: the kernel raises the count before it writes the record"
            )
    buffer = Buffer(
        name=facts.name,
        encoding=encoding,
        words=words,
        count=used,
        stored_count=None if facts.cached else stored,
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
        has_doubtful_format=facts.doubt is not None
        and facts.mode is not None
        and is_known(facts.mode),
        bits_set=bits_set,
        gaps=gaps,
        is_open=True,
        is_incomplete=is_incomplete,
    )
    if facts.size is None:
        remarks.append("size of the buffer is unknown: it may be full")
    elif buffer.full and capacity and (stored is not None or encoding.codec.is_variable):
        remarks.append(full_remark(encoding.codec, capacity))
    return replace(buffer, remarks=tuple(remarks))


def full_remark(codec: Codec, capacity: int) -> str:
    """Return the remark for a full buffer: the kernel drops further records silently (kcov-abi.md
    3.3).

    :param capacity: in records; in words where records differ in length.
    """
    if codec.is_variable:
        return f"full: no record fits into the rest of {capacity} words; later ones may be missing"
    return f"full: all {capacity} records are used; later ones may be missing"


def _with_possible_size(layout: Layout, facts: BufferFacts) -> BufferFacts:
    """Treat a size that is larger than any kernel allows as unknown (kcov-abi.md K3)."""
    if facts.size is None or facts.size <= _INT_MAX // layout.buffer_word:
        return facts
    remark = f"size of {facts.size} words is corrupt: no buffer is that large; treated as unknown"
    return replace(facts, size=None, remarks=(*facts.remarks, remark))


def _clamp_remark(facts: BufferFacts, stored: int, capacity: int) -> str:
    if facts.private:
        return (
            f"count is {stored:#x} but {capacity} records fit: corrupt, as user space cannot write "
            f"it"
        )
    return (
        f"count is {stored:#x} but {capacity} records fit: written by user space, or corrupt; "
        f"clamped"
    )


def _read_records(target: Target, address: int, encoding: Encoding, count: int) -> _Bytes:
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
    used: int,
    read: _Bytes,
) -> tuple[int, int, _Bytes, list[str]]:
    """Read the end of a live buffer again: its last record may be incomplete, and its user may have
    reset it.

    :return: the count, how many records to show, their bytes, and remarks.
    """
    width = encoding.record_size
    for _ in range(_RETRIES):
        now = read_stored_count(target, facts.address, encoding)
        if now is None:
            return stored, used, read, []
        if now >= stored:
            # All counted records are written by now, except the last one if its writer was
            # interrupted.
            offset = (used - 1) * width
            try:
                last = target.read(facts.address + encoding.records_offset + offset, width)
            except ReadError:
                return stored, used, read, []
            if last == read[0][offset:]:
                return stored, used, read, []
            remark = f"record {used - 1} was written while the buffer was read"
            return stored, used, (read[0][:offset] + last, read[1]), [remark]
        stored, used = now, min(now, capacity)
        read = _read_records(target, facts.address, encoding, used)
        if not used:
            return stored, used, read, ["the buffer was reset while it was read"]
    return (
        stored,
        used,
        read,
        [
            "the buffer was reset repeatedly while it was read: records of several rounds may "
            "be mixed"
        ],
    )


def _last_written(words: array[int], encoding: Encoding) -> int:
    """Return how many records there are up to the last one that is not zero."""
    pcs = record.pc_words(words, encoding)
    return next((index + 1 for index in range(len(pcs) - 1, -1, -1) if pcs[index]), 0)


def _record_gaps(
    missing: Sequence[tuple[int, int]], encoding: Encoding, used: int
) -> tuple[Gap, ...]:
    """Return spans of missing bytes as spans of incomplete records."""
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


def read_window(
    target: Target, layout: Layout, source: StateSource, name: str, first: int, most: int
) -> tuple[tuple[int, ...], int]:
    """Read some records of a buffer that follow each other.

    :return: their PCs minus the KASLR offset, without those that have none, and how many records
        were read.
    :raises KcovdbgError: when there is no such buffer, or they cannot be read.
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
