# SPDX-License-Identifier: LGPL-2.1-or-later
"""Record formats of coverage buffers.

Pure functions over bytes and words. They accept any content, since user space can write every word
of its buffer. Words are kept as stored; :func:`pc_of_word` returns the PC in one, and the KASLR
offset makes it an address.

A :class:`Codec` describes a format. Mainline's are here (``kernel/kcov.c`` and
``include/uapi/linux/kcov.h``; kcov-abi.md 3.3); posted series declare theirs in
:mod:`kcovdbg.series`.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, NamedTuple


class RecordKind(str, Enum):
    """Kind of a record."""

    PC = "pc"
    CMP = "cmp"
    ENTRY = "entry"
    """A function was entered."""
    EXIT = "exit"
    """A function was left."""
    EDGE = "edge"
    """A pair of coverage points."""
    ARGUMENT = "argument"
    """The value of an argument at a function's entry."""
    RETURN = "return"
    """The value that a function returned."""
    UNKNOWN = "unknown"
    """A type that no known kernel writes."""


class Comparison(NamedTuple):
    """Operands of a comparison. A ``switch`` statement leaves one record per case."""

    type: int
    """As stored."""
    size: int
    """Size of the operands in bytes."""
    const: bool
    """Whether ``arg1`` was a compile-time constant."""
    arg1: int
    """As stored, zero-extended."""
    arg2: int


class Values(NamedTuple):
    """A value that a function was given or returned."""

    argument: int | None
    """Number of the argument, from 0; None for a returned value."""
    size: int
    """Size of the argument or returned value in bytes, of a structure as a whole."""
    pointer: int
    """Address that the values were read from."""
    values: tuple[int | None, ...]
    """One for a scalar, one for each member of a structure, zero-extended; None is memory that the
    kernel could not read.
    """


class PartialAddress(NamedTuple):
    """The texts to show for a record that holds only part of an address."""

    function: str
    """Shown as the function."""
    place: str
    """Shown as the source line."""
    problem: str
    """Why the address is unknown."""


class Record(NamedTuple):
    """One record of a buffer."""

    number: int
    """Position in the order in which the kernel wrote, from 0."""
    kind: RecordKind
    word: int
    """The word that holds the address, as stored."""
    pc: int | None
    """Return address minus the KASLR offset; None if the word cannot be one, for example if it is
    zero.
    """
    comparison: Comparison | None = None
    values: Values | None = None
    partial: PartialAddress | None = None
    """None for a whole address."""

    @property
    def has_address(self) -> bool:
        """Whether ``pc`` is an address, and not a part of one."""
        return self.pc is not None and self.partial is None


@dataclass(frozen=True, slots=True)
class Codec:
    """A record format. A format that needs code of its own is a subclass."""

    name: str
    noun: str
    """Name of its records in messages, plural."""
    word_size: int | None = None
    """Bytes of a word of the buffer, count word included; None for the kernel's ``unsigned long``.
    """
    record_words: int = 1
    """Words per record."""
    pc_word: int = 0
    """Index of a record's word that holds the address."""
    kind: RecordKind = RecordKind.PC
    """Kind of its records, if all have one kind."""
    has_calls: bool = False
    """Whether entries and exits of functions are recorded."""
    has_operands: bool = False
    """Whether a record is a comparison."""
    has_plain_pcs: bool = True
    """Whether an address word is the return address minus the KASLR offset, without other bits."""
    has_addresses: bool = True
    """Whether an address word holds a whole address."""
    base: int = 0
    """Added to an address word, if the buffer's own :attr:`Encoding.base` is unknown."""
    least_words: int = 1
    """Words of the shortest record. More than 1 means that records differ in length: the first word
    of the buffer then counts words instead of records, and ``record_words`` is 1.
    """
    has_points: bool = True
    """Whether the address in a record is the address of a coverage point."""
    lead: int = 0
    """Added to the address in a record to make a PC. A PC is a return address, which is looked up
    as the address before it.
    """

    @property
    def is_variable(self) -> bool:
        """Whether records differ in length."""
        return self.least_words > 1

    @property
    def is_exact(self) -> bool:
        """Whether a record holds the address of an executed instruction, in code of any kind."""
        return bool(self.lead)

    def find_records(self, words: Sequence[int]) -> tuple[array[int], int]:
        """Return the index of each record's first word, and the number of words in whole records.
        It is called only if records differ in length.
        """
        return array("Q", range(len(words))), len(words)

    def decode_values(
        self, words: Sequence[int]
    ) -> tuple[RecordKind, Comparison | None, Values | None]:
        """Return the kind of a record of several words, and its operands or its values."""
        del words
        return self.kind, None, None

    def capacity(self, size: int, word_size: int, prefix_words: int = 0) -> int:
        """Return how many records fit in a buffer.

        :param size: size of the buffer, in kernel words.
        :param word_size: bytes of a kernel word.
        :param prefix_words: words before the count.
        """
        words = size * word_size // (self.word_size or word_size) - prefix_words
        return max(0, (words - 1) // self.record_words)

    def decode_address(self, word: int, encoding: Encoding) -> tuple[RecordKind, int | None]:
        """Return the kind of the record with this address word, and the return address in the word.

        :param word: not zero.
        """
        del encoding
        return self.kind, word

    def split_word(self, word: int) -> PartialAddress | None:
        """Return the texts to show for a word, None if it holds a whole address."""
        del word
        return None

    def fits(self, words: Sequence[int], count: int, low: int, high: int) -> bool:
        """Return whether words look like records of this format, to guess the format of a buffer
        whose mode is unknown.

        :param words: 64-bit words of the buffer from its first record on.
        :param count: the count word, not zero.
        :param low: first address of kernel code, minus the KASLR offset.
        :param high: last address of kernel code, minus the KASLR offset.
        """
        del words, count, low, high
        return False


# Limit for the words of a buffer by which its format is guessed.
GUESS_WORDS: Final = 64
CMP_WORDS: Final = 4
CMP_CONST: Final = 1
_CMP_SIZE_SHIFT: Final = 1
_CMP_SIZE_MASK: Final = 3
# KCOV_CMP_CONST and KCOV_CMP_MASK: no kernel sets any other bit of a type.
_CMP_BITS: Final = 7


class _PcCodec(Codec):
    __slots__ = ()

    def fits(self, words: Sequence[int], count: int, low: int, high: int) -> bool:
        return all(low <= word <= high for word in words[: min(count, GUESS_WORDS)])


def find_wrapped_place(count: int, size: int) -> int | None:
    """Return the offset at which kernels before autumn 2026 write the next comparison if the count
    is impossible (kcov-abi.md 12).

    The kernel computes the end of the comparison modulo 2**64, so that the end may seem to be
    inside of the buffer.

    :param size: bytes of the buffer.
    :return: bytes from the start of the buffer, negative for memory in front of it; None if the
        kernel drops the comparison.
    """
    end = (1 + CMP_WORDS * (count + 1)) * 8 % (1 << 64)
    if end > size:
        return None
    return end - CMP_WORDS * 8


class _CmpCodec(Codec):
    __slots__ = ()

    def decode_values(
        self, words: Sequence[int]
    ) -> tuple[RecordKind, Comparison | None, Values | None]:
        return self.kind, decode_comparison(*words[:3]), None

    def fits(self, words: Sequence[int], count: int, low: int, high: int) -> bool:
        records = words[: min(count, GUESS_WORDS // CMP_WORDS) * CMP_WORDS]
        return (
            len(records) >= CMP_WORDS
            and not len(records) % CMP_WORDS
            and all(kind <= _CMP_BITS for kind in records[::CMP_WORDS])
            and all(low <= pc <= high for pc in records[3::CMP_WORDS])
        )


class _ExactCodec(Codec):
    __slots__ = ()

    def decode_address(self, word: int, encoding: Encoding) -> tuple[RecordKind, int | None]:
        del encoding
        return self.kind, word + self.lead


PC: Final[Codec] = _PcCodec("pc", "addresses")
"""One word per record: a return address minus the KASLR offset."""
EXACT: Final[Codec] = _ExactCodec("exact", "executed addresses", has_plain_pcs=False, lead=1)
"""One word per record: the address of an executed instruction, or of the first instruction of a
block. Lists of other tools have such records; kernels write none."""
CMP: Final[Codec] = _CmpCodec(
    "cmp",
    "comparisons",
    word_size=8,
    record_words=CMP_WORDS,
    pc_word=3,
    kind=RecordKind.CMP,
    has_operands=True,
)
"""Four 64-bit words per record, on 32-bit kernels as well: type, arg1, arg2, pc."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """How to read the bytes of one buffer. :func:`make_encoding` makes one."""

    codec: Codec
    word_size: int
    """Bytes of a word of the buffer, count word included: 8 for comparisons, whatever the kernel's
    word.
    """
    big_endian: bool = False
    prefix_words: int = 0
    """Words before the count: a bitmap, in kernels of some posted series."""
    base: int = 0
    """Added to an address word, for codecs that store part of an address."""
    starts: array[int] | None = field(default=None, compare=False, repr=False)
    """Index of each record's first word, if records differ in length and the words are known."""

    @property
    def record_words(self) -> int:
        """Words per record."""
        return self.codec.record_words

    @property
    def record_size(self) -> int:
        """Bytes per record."""
        return self.codec.record_words * self.word_size

    @property
    def count_offset(self) -> int:
        """Offset of the count word, in bytes."""
        return self.prefix_words * self.word_size

    @property
    def records_offset(self) -> int:
        """Offset of the first record, in bytes."""
        return self.count_offset + self.word_size

    @property
    def typecode(self) -> str:
        """Type code of :class:`array.array` and :meth:`memoryview.cast`."""
        return "Q" if self.word_size == 8 else "I"

    def capacity(self, size: int, word_size: int) -> int:
        """Return how many records fit in a buffer of ``size`` kernel words."""
        return self.codec.capacity(size, word_size, self.prefix_words)


def make_encoding(codec: Codec, word_size: int, big_endian: bool = False) -> Encoding:
    """Return the encoding of a kernel's buffer without words before the count.

    :param word_size: bytes of the kernel's ``unsigned long``.
    """
    return Encoding(codec, codec.word_size or word_size, big_endian, base=codec.base)


def decode_words(data: bytes | bytearray | memoryview, encoding: Encoding) -> array[int]:
    """Return bytes as words; an incomplete word at the end is left out."""
    whole = len(data) // encoding.word_size * encoding.word_size
    words = array(encoding.typecode)
    words.frombytes(memoryview(data)[:whole])
    if encoding.big_endian != (sys.byteorder == "big"):
        words.byteswap()
    return words


def decode_word(data: bytes, encoding: Encoding) -> int:
    """Return the word that bytes begin with."""
    return int.from_bytes(data[: encoding.word_size], "big" if encoding.big_endian else "little")


def count_bits(data: bytes) -> int:
    """Return how many bits of a bitmap are set."""
    return int.from_bytes(data, "little").bit_count()


def pc_words(words: Sequence[int], encoding: Encoding) -> Sequence[int]:
    """Return the address word of each whole record, as stored.

    :param words: the buffer's words from its first record on.
    """
    width = encoding.codec.record_words
    if encoding.starts is not None:
        offset = encoding.codec.pc_word
        return array("Q", (words[start + offset] for start in encoding.starts))
    if width == 1:
        return words
    return words[encoding.codec.pc_word : len(words) // width * width : width]


def pc_of_word(word: int, encoding: Encoding) -> tuple[RecordKind, int | None]:
    """Return the kind of the record with this address word, and the return address in the word,
    minus the KASLR offset.

    :return: with None instead of an address if the word cannot be one; zero never is.
    """
    if word:
        return encoding.codec.decode_address(word, encoding)
    if encoding.codec.has_operands:
        return RecordKind.CMP, None
    return RecordKind.PC, None


def pcs_of_words(words: Iterable[int], encoding: Encoding) -> dict[int, int]:
    """Return the return address in each address word, by the word; words without an address are
    left out.
    """
    if encoding.codec.has_plain_pcs:
        return {word: word for word in words if word}
    pairs = ((word, pc_of_word(word, encoding)[1]) for word in words)
    return {word: pc for word, pc in pairs if pc is not None}


def pcs_in_order(words: Sequence[int], encoding: Encoding) -> list[int]:
    """Return the return address in each address word, 0 if the word has none."""
    by_word = pcs_of_words(set(words), encoding)
    return [by_word.get(word, 0) for word in words]


def decode_record(words: Sequence[int], index: int, encoding: Encoding) -> Record:
    """Decode one record.

    :param words: the buffer's words from its first record on.
    :raises IndexError: if it is not whole within the words.
    """
    codec = encoding.codec
    found = record_words(words, index, encoding)
    word = found[codec.pc_word]
    kind, pc = pc_of_word(word, encoding)
    if len(found) == 1:
        return Record(index, kind, word, pc, partial=codec.split_word(word))
    kind, comparison, values = codec.decode_values(found)
    return Record(index, kind, word, pc, comparison, values)


def record_words(words: Sequence[int], index: int, encoding: Encoding) -> Sequence[int]:
    """Return the words of one record.

    :param words: the buffer's words from its first record on.
    :raises IndexError: if there is no such record.
    """
    count = count_records(words, encoding)
    if not 0 <= index < count:
        raise IndexError(f"record {index} of {count}")
    starts = encoding.starts
    if starts is None:
        width = encoding.record_words
        return words[index * width : (index + 1) * width]
    end = starts[index + 1] if index + 1 < count else len(words)
    return words[starts[index] : end]


def split_records(words: array[int], encoding: Encoding) -> tuple[array[int], Encoding]:
    """Return the words of whole records, and the encoding with the start of each record.

    :param words: the buffer's words from its first record on.
    """
    if not encoding.codec.is_variable:
        return words, encoding
    starts, whole = encoding.codec.find_records(words)
    return words[:whole], replace(encoding, starts=starts)


def count_records(words: Sequence[int], encoding: Encoding) -> int:
    """Return how many whole records there are."""
    if encoding.starts is not None:
        return len(encoding.starts)
    return len(words) // encoding.record_words


def decode_comparison(type_word: int, arg1: int, arg2: int) -> Comparison:
    """Decode the first three words of a comparison's record."""
    return Comparison(
        type_word,
        1 << (type_word >> _CMP_SIZE_SHIFT & _CMP_SIZE_MASK),
        bool(type_word & CMP_CONST),
        arg1,
        arg2,
    )


def signed_value(value: int, size: int) -> int:
    """Return the low bytes of an operand as a signed number.

    :param size: in bytes.
    """
    limit = 1 << 8 * size
    low_bytes = value % limit
    is_negative = low_bytes >= limit // 2
    return low_bytes - limit if is_negative else low_bytes


def operand_text(value: int, size: int, big_endian: bool = False) -> str | None:
    """Return an operand as text, None if most of its bytes are not printable characters.

    memcmp() with a short constant string compiles to comparisons of several characters at once. A
    single printable byte counts as text, although it is more often a number.

    :param size: in bytes.
    """
    low_bytes = value % (1 << 8 * size)
    if big_endian:
        text = low_bytes.to_bytes(size, "big").lstrip(b"\0")
    else:
        text = low_bytes.to_bytes(size, "little").rstrip(b"\0")
    if len(text) * 2 <= size or not all(0x20 <= byte < 0x7F for byte in text):
        return None
    return text.decode("ascii")


def guess_codec(
    words: Sequence[int], count: int, low: int, high: int, codecs: Iterable[Codec]
) -> Codec | None:
    """Guess the format of a buffer whose mode is unknown, by its first words.

    :param words: 64-bit words of the buffer from its first record on.
    :param count: the count word.
    :param low: first address of kernel code, minus the KASLR offset.
    :param high: last address of kernel code, minus the KASLR offset.
    :param codecs: the formats that the kernel may have, the likeliest first.
    :return: None if the words fit no format, or there are none.
    """
    if not words or not count:
        return None
    for codec in codecs:
        if codec.fits(words, count, low, high):
            return codec
    return None


CALL_LENGTHS: Final = {
    **dict.fromkeys(("x86_64", "i386", "i686"), 5),
    **dict.fromkeys(("aarch64", "armv7l", "ppc64le", "ppc64", "riscv64", "loongarch64"), 4),
    "s390x": 6,
    "mips64": 8,
}
"""Bytes from a call at a coverage point to its return address, by machine (syzkaller's
pkg/cover/backend/pc.go).
"""
