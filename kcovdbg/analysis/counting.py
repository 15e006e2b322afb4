# SPDX-License-Identifier: LGPL-2.1-or-later
"""How often each PC is in a buffer, without looking at records one by one."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from kcovdbg.abi import record
from kcovdbg.model.buffer import Buffer

if TYPE_CHECKING:
    from kcovdbg.analysis.hot import Numbering, Words

# Where the text lies is seen in some of the records; PCs outside are numbered all the same, slower.
_SAMPLE: Final = 1024
_MARGIN: Final = 1 << 20
_MOST_TEXT: Final = 1 << 28


def present_words(buffer: Buffer) -> Iterator[Sequence[int]]:
    """Yield the address words of all records that were read, in spans: missing ones are left out."""
    words = record.pc_words(buffer.words, buffer.encoding)
    position = 0
    for gap in buffer.gaps:
        if gap.first > position:
            yield words[position : gap.first]
        position = gap.first + gap.length
    if position < buffer.count:
        yield words[position : buffer.count] if position or buffer.count < len(words) else words


def find_text(words: Sequence[int]) -> tuple[int, int]:
    """Guess from a sample of words where the text is that they are in: the densest part, not the whole truth."""
    sample = sorted(word for word in words[:: max(1, len(words) // _SAMPLE)] if word)
    if not sample:
        return 0, 0
    middle = sample[len(sample) // 2]
    near = [word for word in sample if abs(word - middle) < _MOST_TEXT // 2]
    return max(0, near[0] - _MARGIN), near[-1] + _MARGIN


def as_words(words: Sequence[int]) -> Words:
    """Hand words to the loops in C."""
    from kcovdbg.analysis.hot import Words

    data = words if isinstance(words, array) else array("Q", words)
    return Words(data, data.itemsize, sys.byteorder == "big")


def make_numbering(words: Sequence[int], *, native: bool | None = None) -> Numbering:
    """Make what numbers the distinct ones among some words; loads the compiled module, which only counting needs.

    :param native: whether to use it; None for: when it is there.
    """
    from kcovdbg.analysis.hot import Numbering

    return Numbering(find_text(words), native=native)


def count_words(buffer: Buffer) -> dict[int, int]:
    """Return how often each address word was recorded, as stored."""
    spans = [as_words(words) for words in present_words(buffer)]
    if not spans:
        return {}
    numbering = make_numbering(record.pc_words(buffer.words, buffer.encoding))
    distinct = numbering.number(*spans)
    return dict(zip(distinct, numbering.counts(*spans), strict=True))


def count_pcs(buffer: Buffer) -> dict[int, int]:
    """Return how often each PC was recorded; zero and what can't be an address are left out.

    :return: return addresses minus the KASLR offset, and their counts.
    """
    counts = count_words(buffer)
    found: dict[int, int] = {}
    for word, pc in record.pcs_of_words(counts, buffer.encoding).items():
        # An entry and an exit of one function may share their address.
        found[pc] = found.get(pc, 0) + counts[word]
    return found


def distinct_words(buffer: Buffer) -> array[int]:
    """Return the distinct address words of all records, missing ones included, ascending."""
    words = record.pc_words(buffer.words, buffer.encoding)
    return make_numbering(words).number(as_words(words))


def pc_sequence(buffer: Buffer) -> array[int]:
    """Return the PC of each record in order: 0 where there is none or the record is missing."""
    words = record.pc_words(buffer.words, buffer.encoding)
    distinct = distinct_words(buffer)
    pcs = record.pcs_of_words(distinct, buffer.encoding)
    if all(pcs.get(word, 0) == word for word in distinct):
        return array("Q", words)
    return array("Q", [pcs.get(word, 0) for word in words])
