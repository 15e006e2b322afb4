# SPDX-License-Identifier: LGPL-2.1-or-later
"""The formats of coverage buffers: which words a buffer is made of and what they say.

Pure functions over bytes and words; none raises on any content, since user space can write every word of its buffer. What is
in a buffer is kept as it was stored: an address to look up is made of it by :func:`pc_of_word` and the KASLR offset.

Source: ``kernel/kcov.c`` and ``include/uapi/linux/kcov.h``; the formats of posted series are those of kcov-abi.md 2 and 5-8.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from kcovdbg.abi.era import Feature
from kcovdbg.abi.mode import UNIQ_BOTH


class RecordFormat(str, Enum):
    """What a buffer holds."""

    PC = "pc"
    """One word per record: a return address minus the KASLR offset."""
    CMP = "cmp"
    """Four 64-bit words per record, on 32-bit kernels too: type, arg1, arg2, pc."""
    PC_32 = "pc-32"
    """32-bit words, the lower half of an address each; the upper half is all ones (posting of January 2016)."""
    PC_EXT = "pc-ext"
    """One word per record, whose top four bits tell function entries and exits apart (2026 series)."""
    UNIQ_PC = "uniq-pc"
    """As PC, each address once (January 2025 series)."""
    UNIQ_EDGE = "uniq-edge"
    """One word per record: an address, its low 12 bits mixed with a hash of the previous one (January 2025 series)."""
    UNIQ_CMP = "uniq-cmp"
    """As CMP, each record once (January 2025 series)."""
    UNIQUE_BITMAP = "unique-bitmap"
    """A bitmap of guards, then count and PCs of those that were new (KCOV_UNIQUE_ENABLE, 2025 series)."""
    TEXT_BITMAP = "text-bitmap"
    """The whole buffer is a bitmap of the kernel's text, a bit for four bytes; no count (KCOV_INIT_UNIQUE, 2021 series)."""


class Kind(str, Enum):
    """What one record is."""

    PC = "pc"
    CMP = "cmp"
    ENTRY = "entry"
    """A function was entered."""
    EXIT = "exit"
    """A function was left."""
    EDGE = "edge"
    """The address is known up to its low 12 bits."""
    UNKNOWN = "unknown"
    """A type that no known kernel writes."""


class Comparison(NamedTuple):
    """The operands of a comparison; a ``switch`` leaves one record per case."""

    type: int
    """As stored."""
    size: int
    """Of the operands, in bytes."""
    const: bool
    """Whether ``arg1`` was a constant at compile time."""
    arg1: int
    """As stored, zero-extended."""
    arg2: int


class Record(NamedTuple):
    """One record of a buffer."""

    number: int
    """From 0, in the order in which the kernel wrote."""
    kind: Kind
    word: int
    """The word that holds the address, as stored."""
    pc: int | None
    """The return address minus the KASLR offset; None where the word can't be one: zero, for instance."""
    comparison: Comparison | None = None


@dataclass(frozen=True, slots=True)
class Encoding:
    """How the bytes of a buffer are to be read. :func:`make_encoding` fills it in."""

    format: RecordFormat
    word_size: int
    """Bytes of a word of the buffer, the count word included: 8 for comparisons, whatever the kernel's word."""
    big_endian: bool = False
    bitmap_words: int = 0
    """Of UNIQUE_BITMAP: words before the count."""
    text_start: int = 0
    """Of TEXT_BITMAP: ``_stext`` minus the KASLR offset."""
    base: int = 0
    """Of PC_32: what a word lacks of the return address minus the KASLR offset."""

    @property
    def record_words(self) -> int:
        """Words per record."""
        return CMP_WORDS if self.format in _COMPARISONS else 1

    @property
    def record_size(self) -> int:
        """Bytes per record."""
        return self.record_words * self.word_size

    @property
    def count_offset(self) -> int:
        """Where the count word is, in bytes from the buffer's start."""
        return self.bitmap_words * self.word_size

    @property
    def has_count(self) -> bool:
        """Whether the buffer says how many records it holds."""
        return self.format is not RecordFormat.TEXT_BITMAP

    @property
    def records_offset(self) -> int:
        """Where the first record is, in bytes from the buffer's start."""
        return self.count_offset + self.word_size if self.has_count else 0

    @property
    def typecode(self) -> str:
        """Of :class:`array.array` and :meth:`memoryview.cast`."""
        return "Q" if self.word_size == 8 else "I"


CMP_WORDS: Final = 4
CMP_CONST: Final = 1
_CMP_SIZE_SHIFT: Final = 1
_CMP_SIZE_MASK: Final = 3
# KCOV_CMP_CONST and KCOV_CMP_MASK: no kernel sets any other bit of a type.
_CMP_BITS: Final = 7
_COMPARISONS: Final = frozenset({RecordFormat.CMP, RecordFormat.UNIQ_CMP})

# include/uapi/linux/kcov.h of "kcov: introduce extended PC coverage collection mode" (2026, posted).
_EXT_TYPE_SHIFT: Final = 60
_EXT_IP_ONES: Final = 0xFF << 56
_EXT_KINDS: Final = {0xF: Kind.PC, 0x0: Kind.ENTRY, 0x1: Kind.EXIT}

# Where x86-64 has the kernel's text.
_UPPER_HALF: Final = 0xFFFFFFFF << 32
# include/linux/hash.h: GOLDEN_RATIO_64 and GOLDEN_RATIO_32. Both are odd, so that their low 12 bits have an inverse.
_GOLDEN_RATIO: Final = {8: 0x61C8864680B583EB, 4: 0x61C88647}
_EDGE_MASK: Final = 0xFFF
_TEXT_STEP: Final = 4

_FORMATS: Final = {
    "TRACE_CMP": RecordFormat.CMP,
    "TRACE_UNIQ_PC": RecordFormat.UNIQ_PC,
    "TRACE_UNIQ_EDGE": RecordFormat.UNIQ_EDGE,
    "TRACE_UNIQ_CMP": RecordFormat.UNIQ_CMP,
    "UNIQUE_PC": RecordFormat.UNIQUE_BITMAP,
    "TRACE_UNIQUE_PC": RecordFormat.UNIQUE_BITMAP,
}
_BITS: Final = tuple(tuple(bit for bit in range(8) if byte >> bit & 1) for byte in range(256))


def format_of_mode(
    mode: str | None, features: Collection[str] = frozenset(), *, extended: bool = False, has_bitmap: bool = True
) -> RecordFormat:
    """Return the format that a mode records in; PC records where the mode doesn't say.

    :param mode: a name from ``enum kcov_mode`` without prefix.
    :param features: of the kernel's generation; without them those of a plain kernel.
    :param extended: ``kcov_ext_format``: the mode TRACE_PC was asked for as KCOV_TRACE_PC_EXT.
    :param has_bitmap: ``kcov_state.bitmap`` is set.
    """
    if Feature.WORDS_32 in features:
        return RecordFormat.PC_32
    if Feature.TEXT_BITMAP in features and mode in ("UNIQUE_PC", "INIT_UNIQUE"):
        return RecordFormat.TEXT_BITMAP
    if extended:
        return RecordFormat.PC_EXT
    found = _FORMATS.get(mode or "", RecordFormat.PC)
    if found is RecordFormat.UNIQUE_BITMAP and not has_bitmap:
        return RecordFormat.PC
    if mode == UNIQ_BOTH:
        # Addresses are in the object's area, edges in one of their own.
        return RecordFormat.UNIQ_PC
    return found


def make_encoding(
    record_format: RecordFormat,
    word_size: int,
    big_endian: bool = False,
    *,
    bitmap_words: int = 0,
    text_start: int = 0,
    base: int | None = None,
) -> Encoding:
    """Describe a kernel's buffer.

    :param word_size: bytes of the kernel's ``unsigned long``.
    :param bitmap_words: of UNIQUE_BITMAP: how many words the bitmap takes.
    :param text_start: of TEXT_BITMAP: ``_stext`` minus the KASLR offset.
    :param base: of PC_32: what a word lacks; None: all ones, as the posting's example has it.
    """
    if record_format in _COMPARISONS:
        word_size = 8
    elif record_format is RecordFormat.PC_32:
        word_size = 4
        base = _UPPER_HALF if base is None else base
    return Encoding(record_format, word_size, big_endian, bitmap_words, text_start, base or 0)


def find_capacity(record_format: RecordFormat, size: int, word_size: int, *, bitmap_words: int = 0) -> int:
    """Return how many records fit into a buffer.

    :param size: of the buffer in words of the kernel.
    :param word_size: bytes of such a word.
    :param bitmap_words: of UNIQUE_BITMAP: words before the count.
    """
    if record_format in _COMPARISONS:
        # The count is a 64-bit word as well: floor((bytes / 8 - 1) / 4).
        return max(0, (size * word_size // 8 - 1) // CMP_WORDS)
    if record_format is RecordFormat.TEXT_BITMAP:
        return max(0, size * word_size * 8)
    return max(0, size - bitmap_words - 1)


def decode_words(data: bytes | bytearray | memoryview, encoding: Encoding) -> array[int]:
    """Turn bytes into words; what doesn't fill a whole one at the end is left out."""
    whole = len(data) // encoding.word_size * encoding.word_size
    words = array(encoding.typecode)
    words.frombytes(memoryview(data)[:whole])
    if encoding.big_endian != (sys.byteorder == "big"):
        words.byteswap()
    return words


def decode_word(data: bytes, encoding: Encoding) -> int:
    """Return the first word of some bytes."""
    return int.from_bytes(data[: encoding.word_size], "big" if encoding.big_endian else "little")


def count_bits(data: bytes) -> int:
    """Return how many bits of a bitmap are set."""
    return int.from_bytes(data, "little").bit_count()


def text_bitmap_pcs(data: bytes, encoding: Encoding) -> array[int]:
    """Return the addresses that a bitmap of the kernel's text marks, ascending, rounded down to four bytes from ``_stext``."""
    if encoding.big_endian:
        # Bits are numbered within words: those of a big-endian word's last byte come first.
        words = decode_words(data, encoding)
        if sys.byteorder == "big":
            words.byteswap()
        data = words.tobytes()
    start = encoding.text_start
    found = array("Q")
    position = 0
    zeros = bytes(4096)
    while position < len(data):
        piece = data[position : position + 4096]
        # Text is covered sparsely: most pages of the bitmap have nothing.
        if piece != zeros[: len(piece)]:
            found.extend(
                (start + _TEXT_STEP * (8 * (position + at) + bit)) & 0xFFFFFFFFFFFFFFFF
                for at, byte in enumerate(piece)
                if byte
                for bit in _BITS[byte]
            )
        position += len(piece)
    return found


def pc_words(words: Sequence[int], encoding: Encoding) -> Sequence[int]:
    """Return the word of each whole record that holds its address, as stored, without looking at any.

    :param words: the buffer's words from its first record on.
    """
    if encoding.record_words == 1:
        return words
    whole = len(words) // CMP_WORDS * CMP_WORDS
    return words[CMP_WORDS - 1 : whole : CMP_WORDS]


def pc_of_word(word: int, encoding: Encoding) -> tuple[Kind, int | None]:
    """Tell what a record's address word is, and the return address minus the KASLR offset in it.

    :return: the address is None for what can't be one, zero first of all.
    """
    record_format = encoding.format
    if not word:
        return (Kind.CMP if record_format in _COMPARISONS else Kind.PC), None
    if record_format in _COMPARISONS:
        return Kind.CMP, word
    if record_format is RecordFormat.PC_32:
        return Kind.PC, word + encoding.base & 0xFFFFFFFFFFFFFFFF
    if record_format is RecordFormat.UNIQ_EDGE:
        return Kind.EDGE, word
    if record_format is RecordFormat.PC_EXT and encoding.word_size == 8:
        kind = _EXT_KINDS.get(word >> _EXT_TYPE_SHIFT, Kind.UNKNOWN)
        return kind, None if kind is Kind.UNKNOWN else word | _EXT_IP_ONES
    return Kind.PC, word


def pcs_of_words(words: Iterable[int], encoding: Encoding) -> dict[int, int]:
    """Map distinct address words to the return addresses in them; what holds none is left out."""
    if encoding.format in (RecordFormat.PC, RecordFormat.UNIQ_PC, RecordFormat.UNIQUE_BITMAP, *_COMPARISONS):
        return {word: word for word in words if word}
    pairs = ((word, pc_of_word(word, encoding)[1]) for word in words)
    return {word: pc for word, pc in pairs if pc is not None}


def decode_record(words: Sequence[int], index: int, encoding: Encoding) -> Record:
    """Decode one record.

    :param words: the buffer's words from its first record on.
    :raises IndexError: when it isn't whole within the words.
    """
    width = encoding.record_words
    start = index * width
    if index < 0 or start + width > len(words):
        raise IndexError(f"record {index} of {len(words) // width}")
    if width == 1:
        word = words[start]
        kind, pc = pc_of_word(word, encoding)
        return Record(index, kind, word, pc)
    kind_word, arg1, arg2, word = words[start : start + CMP_WORDS]
    return Record(index, Kind.CMP, word, word or None, decode_comparison(kind_word, arg1, arg2))


def decode_comparison(type_word: int, arg1: int, arg2: int) -> Comparison:
    """Decode the first three words of a comparison's record."""
    return Comparison(type_word, 1 << (type_word >> _CMP_SIZE_SHIFT & _CMP_SIZE_MASK), bool(type_word & CMP_CONST), arg1, arg2)


def is_plausible(comparison: Comparison) -> bool:
    """Tell whether a kernel wrote this: known bits in the type, operands that fit the size (kcov-abi.md B5, B6)."""
    limit = 1 << 8 * comparison.size
    return comparison.type <= _CMP_BITS and comparison.arg1 < limit and comparison.arg2 < limit


def signed_value(value: int, size: int) -> int:
    """Read the low bytes of an operand as a signed number.

    :param size: in bytes.
    """
    half = 1 << 8 * size - 1
    return ((value & (half << 1) - 1) ^ half) - half


def operand_text(value: int, size: int, big_endian: bool = False) -> str | None:
    """Return the characters that an operand consists of, None where it isn't text.

    A comparison of four characters with a constant, say, is how memcmp() of a short string compiles. One byte alone is more
    often a number than a letter, and counts as text all the same when it is printable.

    :param size: in bytes.
    """
    data = (value & (1 << 8 * size) - 1).to_bytes(size, "big" if big_endian else "little")
    text = data.rstrip(b"\0") if not big_endian else data.lstrip(b"\0")
    if not text or len(text) * 2 <= size or not all(0x20 <= byte < 0x7F for byte in text):
        return None
    return text.decode("ascii")


def mix_edge(previous: int, pc: int, word_size: int) -> int:
    """Return the record of the edge between two addresses, as KCOV_TRACE_UNIQ_EDGE writes it."""
    return (previous & _EDGE_MASK) * _GOLDEN_RATIO[word_size] & _EDGE_MASK ^ pc


def split_edge(word: int) -> tuple[int, int]:
    """Split an edge's record into the page of its address and the 12 bits in which both addresses are mixed."""
    return word & ~_EDGE_MASK, word & _EDGE_MASK


def previous_of_edge(word: int, pc: int, word_size: int) -> int | None:
    """Return the low 12 bits of the address before this one on an edge; None when the edge can't lead to this address.

    The multiplication that hashes them is by an odd number, so that nothing of these bits is lost.

    :param pc: an address that the edge may lead to: it must lie in the record's page.
    """
    if (word ^ pc) & ~_EDGE_MASK:
        return None
    return ((word ^ pc) & _EDGE_MASK) * pow(_GOLDEN_RATIO[word_size], -1, _EDGE_MASK + 1) & _EDGE_MASK


def guess_format(words: Sequence[int], count: int, low: int, high: int) -> RecordFormat | None:
    """Guess what a buffer holds whose mode nobody remembers, from its first words.

    :param words: 64-bit words of the buffer from its first record on.
    :param count: the count word.
    :param low: first address of kernel code, minus the KASLR offset.
    :param high: last one.
    :return: PC, CMP or PC_EXT; None when nothing fits or there is too little.
    """
    sample = words[: min(count, 64)]
    if not sample:
        return None
    if all(low <= word <= high for word in sample):
        return RecordFormat.PC
    records = words[: min(count, 16) * CMP_WORDS]
    if (
        len(records) >= CMP_WORDS
        and not len(records) % CMP_WORDS
        and all(kind <= _CMP_BITS for kind in records[::CMP_WORDS])
        and all(low <= pc <= high for pc in records[3::CMP_WORDS])
    ):
        return RecordFormat.CMP
    if all(low <= word | _EXT_IP_ONES <= high and _is_extended(word) for word in sample):
        return RecordFormat.PC_EXT
    return None


def _is_extended(word: int) -> bool:
    """Tell whether this can be a record with a type: below the type are zeros, and then a kernel address."""
    return word >> _EXT_TYPE_SHIFT == 0xF or (word >> 56 in (0x00, 0x10) and word >> 48 & 0xFF == 0xFF)
