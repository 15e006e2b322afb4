# SPDX-License-Identifier: LGPL-2.1-or-later
"""How to read a buffer's words: by mode and generation, by the owner's members, or by a guess from the words."""

from __future__ import annotations

from typing import Final

from kcovdbg.abi import record
from kcovdbg.abi.mode import DISABLED
from kcovdbg.abi.record import PC, Codec, Encoding
from kcovdbg.errors import KcovdbgError, MissingSymbolError, MissingTypeError, ReadError
from kcovdbg.series import table
from kcovdbg.series.declaration import BufferPlace
from kcovdbg.target.protocol import Target
from kcovdbg.target.struct_layout import read_partly
from kcovdbg.walk.buffer_names import Place
from kcovdbg.walk.layout import KCOV, TASK, Layout

_REACH: Final = 1 << 31


def find_encoding(target: Target, layout: Layout, place: Place) -> tuple[Encoding, tuple[str, ...]]:
    """Return how to read a buffer, and what to say about it."""
    codec = table.codec_of_mode(place.mode, layout.generation.features)
    encoding = record.make_encoding(codec, target.word_size, target.big_endian)
    known = BufferPlace(place.address, place.size, place.mode, _find_owner(place))
    remarks: list[str] = []
    for series in layout.traits.series:
        if series.encode is None:
            continue
        try:
            encoding, said = series.encode(target, known, encoding)
            remarks += said
        except (ReadError, MissingTypeError) as error:
            remarks.append(f"the buffer may have records of {series.name}: {error}")
    return encoding, tuple(remarks)


def _find_owner(place: Place) -> tuple[str, int] | None:
    """Return type and address of the task or the object whose buffer it is; None if there is neither."""
    if place.task is not None:
        return TASK, place.task
    return None if place.kcov is None else (KCOV, place.kcov)


def guess_encoding(target: Target, layout: Layout, place: Place, encoding: Encoding, stored: int, size: int) -> Encoding | None:
    """Guess the format of a buffer that is not enabled: the kernel does not keep what it was used for last.

    :return: None if it is the one that is assumed anyway, or nothing fits.
    """
    if encoding.codec != PC or encoding.prefix_words or place.mode == DISABLED or target.word_size != 8 or place.cached:
        return None
    guessed = _guess(target, layout, place, encoding, stored, min(record.GUESS_WORDS, size - 1))
    return None if guessed in (None, PC) else record.make_encoding(guessed or PC, target.word_size, target.big_endian)


def guess_doubtful(target: Target, layout: Layout, place: Place, encoding: Encoding) -> Encoding:
    """Guess the format of a buffer whose mode should be known and is not, if its words leave one answer.

    :raises KcovdbgError: if they do not.
    """
    if encoding.prefix_words:
        # Members say that there is a prefix: one mode alone has it.
        return encoding
    guessed = None
    if target.word_size == 8 and not layout.traits.is_laid_out_by_mode:
        stored = read_stored_count(target, place.address, encoding)
        if stored:
            guessed = _guess(target, layout, place, encoding, stored, record.GUESS_WORDS)
    if guessed is None:
        raise KcovdbgError(
            f"format of {place.name} is unknown: {place.doubt}",
            hint="info names what the debug info lacks; area:ADDRESS shows the words as they are",
        )
    return record.make_encoding(guessed, target.word_size, target.big_endian)


def _guess(target: Target, layout: Layout, place: Place, encoding: Encoding, stored: int, words: int) -> Codec | None:
    text = _text_range(target)
    if text is None:
        return None
    data, missing = read_partly(target, place.address + 8, words * 8)
    if missing:
        return None
    codecs = table.guessable_codecs(layout.generation.features)
    return record.guess_codec(record.decode_words(data, encoding), stored, *text, codecs)


def _text_range(target: Target) -> tuple[int, int] | None:
    """Return the first address of kernel code and the last one, modules included, minus the KASLR offset."""
    try:
        start = target.symbol("_stext").address - target.kaslr_offset
    except MissingSymbolError:
        return None
    # Modules lie above the kernel's text on x86 and below it on arm64: anything within 2 GiB may be code. On s390x the text is
    # linked to 1 MiB, and what is below is no code.
    return start if start < _REACH else start - _REACH, min((1 << 64) - 1, start + _REACH)


def read_stored_count(target: Target, address: int, encoding: Encoding) -> int | None:
    """Return a buffer's count as stored, in records; None if it cannot be read."""
    try:
        return record.decode_word(target.read(address + encoding.count_offset, encoding.word_size), encoding)
    except ReadError:
        return None
