# SPDX-License-Identifier: LGPL-2.1-or-later
"""How often each PC occurs in a buffer, counted without decoding records one by one."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Final

from kcovdbg.abi import record
from kcovdbg.analysis.native_loops import Numbering
from kcovdbg.model.buffer import Buffer

# The range of the text is guessed from this many records.
_SAMPLE: Final = 1024
_MARGIN: Final = 1 << 20
_MAX_TEXT: Final = 1 << 28


def present_words(buffer: Buffer) -> Iterator[Sequence[int]]:
    """Iterate over spans of records that could be read: their address words."""
    words = record.pc_words(buffer.words, buffer.encoding)
    position = 0
    for gap in buffer.gaps:
        if gap.first > position:
            yield words[position : gap.first]
        position = gap.first + gap.length
    if position < buffer.count:
        yield words[position : buffer.count] if position or buffer.count < len(words) else words


def find_text(words: Sequence[int]) -> tuple[int, int]:
    """Return the range of addresses in which most of the words lie, guessed from a sample; some may lie outside."""
    sample = sorted(word for word in words[:: max(1, len(words) // _SAMPLE)] if word)
    if not sample:
        return 0, 0
    middle = sample[len(sample) // 2]
    near = [word for word in sample if abs(word - middle) < _MAX_TEXT // 2]
    return max(0, near[0] - _MARGIN), near[-1] + _MARGIN


def to_array(words: Sequence[int]) -> array[int]:
    """Return words as an array, as the native loops take them; an array is returned as it is."""
    return words if isinstance(words, array) else array("Q", words)


def make_numbering(words: Sequence[int], *, native: bool | None = None) -> Numbering:
    """Return a numbering whose range fits some words.

    :param native: whether to use the compiled module; None to use it if it is there.
    """
    return Numbering(find_text(words), native=native)


def count_words(buffer: Buffer) -> dict[int, int]:
    """Return how often each address word occurs, as stored in the buffer."""
    spans = [to_array(words) for words in present_words(buffer)]
    if not spans:
        return {}
    numbering = make_numbering(record.pc_words(buffer.words, buffer.encoding))
    distinct = numbering.number(*spans)
    return dict(zip(distinct, numbering.counts(*spans), strict=True))


def count_pcs(buffer: Buffer) -> dict[int, int]:
    """Return how often each PC was recorded; zero and words that cannot hold an address are left out.

    :return: return address minus the KASLR offset -> number of records.
    """
    counts = count_words(buffer)
    found: dict[int, int] = {}
    for word, pc in record.pcs_of_words(counts, buffer.encoding).items():
        # The entry and the exit record of a function may have the same PC.
        found[pc] = found.get(pc, 0) + counts[word]
    return found


def distinct_words(buffer: Buffer) -> array[int]:
    """Return the distinct address words of all records, ascending; unreadable records count as zero."""
    words = record.pc_words(buffer.words, buffer.encoding)
    return make_numbering(words).number(to_array(words))


def pc_sequence(buffer: Buffer) -> array[int]:
    """Return the PC of each record, in order; 0 for a record that has none or could not be read."""
    words = record.pc_words(buffer.words, buffer.encoding)
    distinct = distinct_words(buffer)
    pcs = record.pcs_of_words(distinct, buffer.encoding)
    if all(pcs.get(word, 0) == word for word in distinct):
        return array("Q", words)
    return array("Q", [pcs.get(word, 0) for word in words])
