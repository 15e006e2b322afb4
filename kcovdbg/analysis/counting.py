# SPDX-License-Identifier: LGPL-2.1-or-later
"""How often each PC is in a buffer, without looking at records one by one."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence

from kcovdbg.abi import record
from kcovdbg.model.buffer import Buffer


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


def count_pcs(buffer: Buffer) -> dict[int, int]:
    """Return how often each PC was recorded; zero and what can't be an address are left out.

    :return: return addresses minus the KASLR offset, and their counts.
    """
    counts: Counter[int] = Counter()
    for words in present_words(buffer):
        counts.update(words)
    pcs = record.pcs_of_words(counts, buffer.encoding)
    found: dict[int, int] = {}
    for word, pc in pcs.items():
        # An entry and an exit of one function may share their address.
        found[pc] = found.get(pc, 0) + counts[word]
    return found


def distinct_pcs(buffer: Buffer) -> array[int]:
    """Return the PCs of a buffer, ascending, each once."""
    return array("Q", sorted(count_pcs(buffer)))


def pc_sequence(buffer: Buffer) -> array[int]:
    """Return the PC of each record in order: 0 where there is none or the record is missing."""
    words = record.pc_words(buffer.words, buffer.encoding)
    distinct = set(words)
    pcs = record.pcs_of_words(distinct, buffer.encoding)
    if len(pcs) + (0 in distinct) == len(distinct) and all(word == pc for word, pc in pcs.items()):
        return array("Q", words)
    return array("Q", [pcs.get(word, 0) for word in words])
