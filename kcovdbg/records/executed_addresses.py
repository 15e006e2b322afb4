# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lists of executed addresses: whether a list is one, and the KASLR offset that its addresses
include.

Other tools than KCOV name code by itself: where its blocks begin, or each instruction. Blocks of
the kernel's code begin at few of all addresses, which tells such lists from lists of return
addresses, and the right offset from others.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from kcovdbg.records.line_states import StateFinder
from kcovdbg.records.pc_convention import find_span
from kcovdbg.symbols.location_table import LocationTable

# CONFIG_PHYSICAL_ALIGN of x86-64 and MIN_KIMG_ALIGN of arm64 are at least this.
_ALIGN: Final = 2 << 20
# Distinct addresses that decide.
_SAMPLE: Final = 512
# Fewer would begin blocks by chance: one address in ten does.
_LEAST: Final = 4
# Blocks of emulators end at more places than the kernel's: at pages, and after some instructions.
_BLOCKS: Final = 0.75
# Instructions of x86-64 have at most so many bytes; of a run nearly all have a neighbor.
_LONGEST: Final = 15
_NEIGHBORS: Final = 0.7
_RUN: Final = 20
# The right offset makes so many times more addresses starts of blocks than any other one.
_RATIO: Final = 1.5
_DEVIATIONS: Final = 6


class KernelCode(NamedTuple):
    """The blocks of the code of a kernel's image."""

    base: int
    """Address that starts count from."""
    starts: Sequence[int]
    """The starts of all blocks, ascending."""
    code: tuple[int, int]
    """Where its code is: the first address, and the one after the last."""

    def has_start(self, address: int) -> bool:
        """Return whether a block begins at an address as in the image."""
        offset = address - self.base
        index = bisect_left(self.starts, offset)
        return index < len(self.starts) and self.starts[index] == offset

    def has_code(self, address: int) -> bool:
        """Return whether an address is between the first and the last one of the code."""
        return self.code[0] <= address < self.code[1]


class ExactReading(NamedTuple):
    """Findings about a list as one of executed addresses."""

    kaslr_offset: int
    starts: int
    """How many addresses of the sample begin a block."""
    inside: int
    """How many addresses of the sample are in the kernel's code."""
    sample: int
    """How many distinct addresses were looked at."""
    is_certain: bool
    """Whether another offset, or none, would not do as well."""

    @property
    def has_blocks(self) -> bool:
        """Whether most addresses begin blocks, which those of other lists do not."""
        return self.sample >= _LEAST and self.starts >= _BLOCKS * self.sample


def table_code(table: LocationTable) -> KernelCode | None:
    """Return the blocks of a table's image; None where its code is not understood."""
    blocks, texts = table.blocks, table.text_ranges()
    if blocks is None or not texts:
        return None
    starts = StateFinder(blocks, array("I"), array("Q")).find_starts()
    return KernelCode(blocks.base, starts, find_span(texts))


def read_exactly(
    words: Sequence[int], code: KernelCode, offsets: Sequence[int], *, finds_offset: bool = True
) -> ExactReading:
    """Find out which KASLR offset executed addresses include.

    :param offsets: that are likely, the likeliest first.
    :param finds_offset: whether others are tried.
    """
    distinct = sorted(set(words))
    sample = distinct[:: len(distinct) // _SAMPLE + 1]
    tried = dict.fromkeys(offsets)
    if finds_offset:
        tried.update(dict.fromkeys(_list_offsets(sample, code)))
    readings = [_judge(sample, code, offset) for offset in tried]
    likely = readings[0]
    best, *rest = sorted(readings, key=lambda one: -one.starts)
    others = rest[0].starts if rest else 0
    density = len(code.starts) / max(code.code[1] - code.code[0], 1)
    expected = best.inside * density
    is_certain = (
        best.starts >= _LEAST
        and best.starts >= _RATIO * others
        and (best.starts > expected + _DEVIATIONS * math.sqrt(expected + 1) or best.has_blocks)
    )
    if is_certain:
        return best._replace(is_certain=True)
    return likely


def is_instruction_run(words: Sequence[int]) -> bool:
    """Return whether addresses are those of instructions that follow each other, mostly."""
    distinct = sorted(set(words))
    near = sum(later - earlier <= _LONGEST for earlier, later in pairwise(distinct))
    return len(distinct) >= _RUN and near >= _NEIGHBORS * len(distinct)


def _list_offsets(sample: Sequence[int], code: KernelCode) -> Sequence[int]:
    """Return the offsets with which some of the addresses would be in the kernel's code."""
    if not sample:
        return ()
    start, end = code.code
    found: dict[int, None] = {}
    for part in (1, 2, 3):
        word = sample[len(sample) * part // 4]
        first = -(-(word - end + 1) // _ALIGN)
        last = (word - start) // _ALIGN
        found.update(dict.fromkeys(number * _ALIGN for number in range(first, last + 1)))
    return tuple(found)


def _judge(sample: Sequence[int], code: KernelCode, offset: int) -> ExactReading:
    moved = list(map((-offset).__add__, sample))
    inside = sum(map(code.has_code, moved))
    return ExactReading(offset, sum(map(code.has_start, moved)), inside, len(sample), False)


def move_words(words: Sequence[int], offset: int) -> array[int]:
    """Return addresses without the KASLR offset; those below it are left as they are."""
    if not offset:
        return array("Q", words)
    return array("Q", [word - offset if word >= offset else word for word in words])
