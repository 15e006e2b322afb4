# SPDX-License-Identifier: LGPL-2.1-or-later
"""Record formats of coverage buffers.

Pure functions over bytes and words. None raises on any content, since user space can write every
word of its buffer. Words are kept as stored; :func:`pc_of_word` and the KASLR offset turn one into
an address.

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
    """A word that has only part of an address, in words."""

    function: str
    """Shown instead of a function."""
    place: str
    """Shown instead of a source line."""
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
    """A record format. A format that differs in more than these values is a subclass."""

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
    """Kind of its records, if all are of one kind."""
    has_calls: bool = False
    """Whether entries and exits of functions are recorded."""
    has_operands: bool = False
    """Whether a record is a comparison."""
    has_plain_pcs: bool = True
    """Whether an address word is the return address minus the KASLR offset, as it stands."""
    has_addresses: bool = True
    """Whether an address word has a whole address."""
    base: int = 0
    """Added to what an address word holds, if the buffer's own :attr:`Encoding.base` is unknown."""
    least_words: int = 1
    """Words of the shortest record, where records differ in length. Then the first word of a buffer
    counts words, and ``record_words`` is 1."""
    is_variable: bool = False
    """Whether records differ in length."""
    has_points: bool = True
    """Whether the address of a record is that of a coverage point."""
    lead: int = 0
    """Added to the address in a record to make a PC of it: PCs are return addresses, and are looked
    up as the address before them.
    """

    @property
    def is_exact(self) -> bool:
        """Whether a record has the address of an instruction that was executed, of any code."""
        return bool(self.lead)

    def find_records(self, words: Sequence[int]) -> tuple[array[int], int]:
        """Return where each record begins, and how many words are whole records. Only called if
        records differ in length.
        """
        return array("Q", range(len(words))), len(words)

    def decode_values(
        self, words: Sequence[int]
    ) -> tuple[RecordKind, Comparison | None, Values | None]:
        """Return the kind of a record of several words, and what it holds beside the address."""
        del words
        return self.kind, None, None

    def capacity(self, size: int, word_size: int, prefix_words: int = 0) -> int:
        """Return how many records fit into a buffer.

        :param size: size of the buffer, in kernel words.
        :param word_size: bytes of a kernel word.
        :param prefix_words: words before the count.
        """
        words = size * word_size // (self.word_size or word_size) - prefix_words
        return max(0, (words - 1) // self.record_words)

    def decode_address(self, word: int, encoding: Encoding) -> tuple[RecordKind, int | None]:
        """Return the kind of the record with this address word, which is not zero, and the return
        address in it.
        """
        del encoding
        return self.kind, word

    def split_word(self, word: int) -> PartialAddress | None:
        """Return what a word has instead of an address, None where it has a whole one."""
        del word
        return None

    def fits(self, words: Sequence[int], count: int, low: int, high: int) -> bool:
        """Return whether words can only be records of this format: a guess, for a buffer whose mode
        is not known.

        :param words: 64-bit words of the buffer from its first record on.
        :param count: the count word, not zero.
        :param low: first address of kernel code, minus the KASLR offset.
        :param high: last one.
        """
        del words, count, low, high
        return False


# How many words of a buffer a guess looks at.
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
    """Return the offset at which kernels before autumn 2026 write a comparison behind an impossible
    count, as their bound wraps (kcov-abi.md 12); None if they drop it.

    A negative one is in front of the buffer.

    :param size: bytes of the buffer.
    """
    end = (1 + CMP_WORDS * (count + 1)) * 8 % (1 << 64)
    return end - CMP_WORDS * 8 if end <= size else None


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
"""One word per record: the address of an instruction that was executed, or of the first one of
executed code. No kernel writes these; lists of other tools have them."""
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
    """Added to what an address word holds, for codecs that store part of an address."""
    starts: array[int] | None = field(default=None, compare=False, repr=False)
    """Index of each record's first word, where records differ in length and the words are known."""

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
        """Return how many records fit into a buffer of ``size`` kernel words."""
        return self.codec.capacity(size, word_size, self.prefix_words)


def make_encoding(
    codec: Codec,
    word_size: int,
    big_endian: bool = False,
    *,
    prefix_words: int = 0,
    base: int | None = None,
) -> Encoding:
    """Describe a kernel's buffer.

    :param word_size: bytes of the kernel's ``unsigned long``.
    :param prefix_words: words before the count.
    :param base: what an address word lacks; None for the codec's own.
    """
    return Encoding(
        codec,
        codec.word_size or word_size,
        big_endian,
        prefix_words,
        codec.base if base is None else base,
    )


def decode_words(data: bytes | bytearray | memoryview, encoding: Encoding) -> array[int]:
    """Return bytes as words, without an incomplete one at the end."""
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
    """Return the kind of the record with this address word, and the return address in it, minus the
    KASLR offset.

    :return: None for an address that cannot be one, zero first of all.
    """
    if not word:
        return (RecordKind.CMP if encoding.codec.has_operands else RecordKind.PC), None
    return encoding.codec.decode_address(word, encoding)


def pcs_of_words(words: Iterable[int], encoding: Encoding) -> dict[int, int]:
    """Map distinct address words to the return addresses in them; words without one are left
    out.
    """
    if encoding.codec.has_plain_pcs:
        return {word: word for word in words if word}
    pairs = ((word, pc_of_word(word, encoding)[1]) for word in words)
    return {word: pc for word, pc in pairs if pc is not None}


def pcs_in_order(words: Sequence[int], encoding: Encoding) -> list[int]:
    """Return the return address in each address word, 0 where it has none."""
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
    starts, width, count = encoding.starts, encoding.record_words, count_records(words, encoding)
    if not 0 <= index < count:
        raise IndexError(f"record {index} of {count}")
    if starts is None:
        return words[index * width : (index + 1) * width]
    return words[starts[index] : starts[index + 1] if index + 1 < len(starts) else len(words)]


def split_records(words: array[int], encoding: Encoding) -> tuple[array[int], Encoding]:
    """Return the words that are whole records, and the encoding that knows where each begins.

    :param words: the buffer's words from its first record on.
    """
    if not encoding.codec.is_variable:
        return words, encoding
    starts, whole = encoding.codec.find_records(words)
    return words[:whole], replace(encoding, starts=starts)


def count_records(words: Sequence[int], encoding: Encoding) -> int:
    """Return how many whole records there are."""
    return len(words) // encoding.record_words if encoding.starts is None else len(encoding.starts)


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
    half = 1 << 8 * size - 1
    return ((value & (half << 1) - 1) ^ half) - half


def operand_text(value: int, size: int, big_endian: bool = False) -> str | None:
    """Return the characters that an operand consists of, None if it is not text.

    memcmp() of a short constant string compiles to such comparisons, for instance of four
    characters at once. A single printable byte counts as text as well, although it is more often a
    number.

    :param size: in bytes.
    """
    data = (value & (1 << 8 * size) - 1).to_bytes(size, "big" if big_endian else "little")
    text = data.rstrip(b"\0") if not big_endian else data.lstrip(b"\0")
    if not text or len(text) * 2 <= size or not all(0x20 <= byte < 0x7F for byte in text):
        return None
    return text.decode("ascii")


def guess_codec(
    words: Sequence[int], count: int, low: int, high: int, codecs: Iterable[Codec]
) -> Codec | None:
    """Guess the format of a buffer whose mode is not known, by its first words.

    :param words: 64-bit words of the buffer from its first record on.
    :param count: the count word.
    :param low: first address of kernel code, minus the KASLR offset.
    :param high: last one.
    :param codecs: the formats that the kernel may have, the likeliest first.
    :return: None if nothing fits, or there are too few words.
    """
    if not words or not count:
        return None
    return next((codec for codec in codecs if codec.fits(words, count, low, high)), None)


CALL_LENGTHS: Final = {
    **dict.fromkeys(("x86_64", "i386", "i686"), 5),
    **dict.fromkeys(("aarch64", "armv7l", "ppc64le", "ppc64", "riscv64", "loongarch64"), 4),
    "s390x": 6,
    "mips64": 8,
}
"""Bytes from a call at a coverage point to its return address, by machine (syzkaller's
pkg/cover/backend/pc.go).
"""
