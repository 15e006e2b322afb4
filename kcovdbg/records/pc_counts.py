# SPDX-License-Identifier: LGPL-2.1-or-later
"""Count how often each PC occurs in a buffer, without decoding records one by one."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress, repeat
from typing import Any, Final

from kcovdbg.abi import record
from kcovdbg.model.buffer import Buffer
from kcovdbg.records.native_loops import Numbering

# The range of the text is guessed from this many records.
_SAMPLE: Final = 1024
_MARGIN: Final = 1 << 20
_MAX_TEXT: Final = 1 << 28


class PcCounts(Mapping[int, int]):
    """The number of records of each PC, in two arrays: a dictionary takes five times the memory.

    :param pcs: ascending, each once; type code Q.
    :param records: the number of records of each PC; type code Q.
    """

    def __init__(self, pcs: array[int], records: array[int]) -> None:
        self.pcs = pcs
        self.records = records

    def outside(self, code: Iterable[tuple[int, int]]) -> array[int]:
        """Return the PCs whose calls are in none of some ranges of code, ascending.

        :param code: where each starts and ends.
        """
        found = array("Q")
        done = 0
        for start, end in sorted(code):
            found.extend(self.pcs[done : max(done, bisect_right(self.pcs, start))])
            # The PC behind a call at the end of a range is that end.
            done = max(done, bisect_right(self.pcs, end))
        found.extend(self.pcs[done:])
        return found

    def __len__(self) -> int:
        """Return the number of PCs."""
        return len(self.pcs)

    def __iter__(self) -> Iterator[int]:
        """Iterate over the PCs, ascending."""
        return iter(self.pcs)

    def __getitem__(self, pc: int) -> int:
        """Return the number of records of a PC.

        :raises KeyError: when it was not recorded.
        """
        found = self.get(pc)
        if found is None:
            raise KeyError(pc)
        return int(found)

    def get(self, pc: int, default: Any = None) -> Any:
        """Return the number of records of a PC, or a default; much faster than the look-up of
        :class:`Mapping`.
        """
        index = bisect_left(self.pcs, pc)
        if index < len(self.pcs) and self.pcs[index] == pc:
            return self.records[index]
        return default

    def records_of(self, pcs: Sequence[int]) -> array[int]:
        """Return the number of records of ascending PCs, 0 for one that was not recorded."""
        if not pcs:
            return array("Q")
        part = slice(bisect_left(self.pcs, pcs[0]), bisect_right(self.pcs, pcs[-1]))
        known = dict(zip(self.pcs[part], self.records[part], strict=True))
        return array("Q", map(known.get, pcs, repeat(0)))

    def within(self, start: int, end: int) -> PcCounts:
        """Return the counts of the PCs of a range."""
        part = slice(bisect_left(self.pcs, start), bisect_left(self.pcs, end))
        return PcCounts(self.pcs[part], self.records[part])

    def select(self, wanted: bytes) -> PcCounts:
        """Return the counts of some of the PCs.

        :param wanted: for each PC, 0 to leave it out.
        """
        return PcCounts(
            array("Q", compress(self.pcs, wanted)), array("Q", compress(self.records, wanted))
        )


def as_counts(counts: Mapping[int, int]) -> PcCounts:
    """Return a mapping from PCs to records as :class:`PcCounts`."""
    if isinstance(counts, PcCounts):
        return counts
    pcs = array("Q", sorted(counts))
    return PcCounts(pcs, array("Q", map(counts.__getitem__, pcs)))


def present_words(buffer: Buffer) -> Iterator[Sequence[int]]:
    """Iterate over spans of records that could be read: their address words."""
    words = buffer.pc_words
    position = 0
    for gap in buffer.gaps:
        if gap.first > position:
            yield words[position : gap.first]
        position = gap.first + gap.length
    if position < buffer.count:
        yield words[position : buffer.count] if position or buffer.count < len(words) else words


def to_words(words: Sequence[int]) -> array[int]:
    """Return words as an array of 64-bit ones; such an array is returned as it is."""
    return words if isinstance(words, array) and words.typecode == "Q" else array("Q", words)


def pick_words(words: Sequence[int], indexes: Iterable[int]) -> array[int]:
    """Return the words at some indexes, as 64-bit ones."""
    return array("Q", map(words.__getitem__, indexes))


def to_array(words: Sequence[int]) -> array[int]:
    """Return words as an array, as the native loops take them; an array is returned as it is."""
    return words if isinstance(words, array) else array("Q", words)


def make_numbering(words: Sequence[int]) -> Numbering:
    """Return a numbering for the range in which most of some words are, guessed from a sample;
    others may be outside.
    """
    sample = sorted(word for word in words[:: max(1, len(words) // _SAMPLE)] if word)
    if not sample:
        return Numbering()
    middle = sample[len(sample) // 2]
    near = [word for word in sample if abs(word - middle) < _MAX_TEXT // 2]
    return Numbering((max(0, near[0] - _MARGIN), near[-1] + _MARGIN))


def count_pcs(buffer: Buffer) -> PcCounts:
    """Return how often each PC was recorded; zero and words that cannot hold an address are left
    out.
    """
    spans = [to_array(words) for words in present_words(buffer)]
    if not spans:
        return PcCounts(array("Q"), array("Q"))
    numbering = make_numbering(buffer.pc_words)
    distinct = numbering.number(*spans)
    counts = numbering.counts(*spans)
    if buffer.encoding.codec.has_plain_pcs:
        first = int(bool(distinct) and not distinct[0])
        return PcCounts(distinct[first:], counts[first:])
    by_word = dict(zip(distinct, counts, strict=True))
    found: dict[int, int] = {}
    for word, pc in record.pcs_of_words(by_word, buffer.encoding).items():
        # The entry and the exit record of a function may have the same PC.
        found[pc] = found.get(pc, 0) + by_word[word]
    return as_counts(found)


def distinct_words(buffer: Buffer) -> array[int]:
    """Return the distinct address words of all records, ascending; unreadable records count as
    zero.
    """
    words = buffer.pc_words
    return make_numbering(words).number(to_array(words))


def pc_sequence(buffer: Buffer) -> array[int]:
    """Return the PC of each record, in order; 0 for a record that has none or could not be read."""
    words = buffer.pc_words
    if buffer.encoding.codec.has_plain_pcs:
        return to_words(words)
    distinct = distinct_words(buffer)
    pcs = record.pcs_of_words(distinct, buffer.encoding)
    if all(pcs.get(word, 0) == word for word in distinct):
        return array("Q", words)
    return array("Q", [pcs.get(word, 0) for word in words])
