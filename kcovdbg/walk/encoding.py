# SPDX-License-Identifier: LGPL-2.1-or-later
"""How a buffer's words are to be read: by mode and generation, by the object's own members, or by what is in it."""

from __future__ import annotations

from kcovdbg.abi import record
from kcovdbg.abi.era import Feature
from kcovdbg.abi.mode import DISABLED
from kcovdbg.abi.record import Encoding, RecordFormat
from kcovdbg.errors import KcovdbgError, MissingSymbolError, MissingTypeError, ReadError
from kcovdbg.target import Target
from kcovdbg.walk.block import read_partly
from kcovdbg.walk.formats import read_format
from kcovdbg.walk.layout import KCOV, TASK, Layout
from kcovdbg.walk.place import Place
from kcovdbg.walk.states import read_state


def find_encoding(target: Target, layout: Layout, place: Place) -> tuple[Encoding, list[str]]:
    """Find out how to read a buffer: by mode and generation, and by the object's own members where these decide."""
    generation = layout.generation
    remarks: list[str] = []
    extended = has_bitmap = False
    bitmap_words = 0
    try:
        owner = _find_owner(place)
        if owner is not None and generation.has(Feature.EXT_RECORDS):
            extended = bool(read_format(target, *owner))
        if owner is not None and generation.has(Feature.UNIQUE_BITMAP):
            state = read_state(target, *owner)
            bits, trace = state.bitmap_size, state.trace
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


def _find_owner(place: Place) -> tuple[str, int] | None:
    """Return the type and the address of the task whose buffer it is, or of the object; None where there is neither."""
    if place.task is not None:
        return TASK, place.task
    return None if place.kcov is None else (KCOV, place.kcov)


def guess_encoding(target: Target, layout: Layout, place: Place, encoding: Encoding, stored: int, size: int) -> Encoding | None:
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
    if guessed in (None, RecordFormat.PC) or (
        guessed is RecordFormat.PC_EXT and not layout.generation.has(Feature.EXT_RECORDS)
    ):
        return None
    return record.make_encoding(guessed or RecordFormat.PC, target.word_size, target.big_endian)


def find_doubtful(target: Target, layout: Layout, place: Place, encoding: Encoding) -> Encoding:
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
        stored = read_stored_count(target, place.address, encoding)
        data, missing = read_partly(target, place.address + 8, 64 * 8)
        if stored and not missing:
            guessed = record.guess_format(record.decode_words(data, encoding), stored, *text)
    if (
        guessed is None
        or generation.has(Feature.UNIQUE_MAPS)
        or (guessed is RecordFormat.PC_EXT and not layout.generation.has(Feature.EXT_RECORDS))
    ):
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


def read_stored_count(target: Target, address: int, encoding: Encoding) -> int | None:
    """Return a buffer's count as it stands there, in records; None where it can't be read."""
    try:
        return record.decode_word(target.read(address + encoding.count_offset, encoding.word_size), encoding)
    except ReadError:
        return None
