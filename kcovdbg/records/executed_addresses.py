# SPDX-License-Identifier: LGPL-2.1-or-later
"""Recognize lists of executed addresses, and find the KASLR offset that their addresses include.

Other tools than KCOV write such lists: the starts of blocks, or each instruction. Few addresses of
the kernel's code begin a block. If many addresses of a list do, it is no list of return addresses,
and the offset is right.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from kcovdbg.records.line_states import StateFinder
from kcovdbg.records.pc_convention import CodeAddresses, find_span
from kcovdbg.symbols.location_table import LocationTable

# CONFIG_PHYSICAL_ALIGN of x86-64 and MIN_KIMG_ALIGN of arm64 are at least this.
_ALIGN: Final = 2 << 20
# Distinct addresses that decide.
_SAMPLE: Final = 512
# Fewer would begin blocks by chance: one address in ten does.
_LEAST: Final = 4
# Blocks of emulators end at more places than the kernel's: at pages, and after some instructions.
_BLOCKS: Final = 0.75
# Instructions of x86-64 have at most so many bytes. In a run nearly all have a neighbor.
_LONGEST: Final = 15
_NEIGHBORS: Final = 0.7
_RUN: Final = 20
# With the right offset, so many times more addresses begin blocks than with any other offset.
_RATIO: Final = 1.5
_DEVIATIONS: Final = 6


class ExactReading(NamedTuple):
    """The result of reading a list as executed addresses."""

    kaslr_offset: int
    starts: int
    """How many addresses of the sample begin a block."""
    inside: int
    """How many addresses of the sample are in the kernel's code."""
    sample: int
    """How many distinct addresses were looked at."""
    is_certain: bool
    """Whether every other offset fits clearly worse."""

    @property
    def has_blocks(self) -> bool:
        """Whether most addresses begin blocks; addresses of other lists do not."""
        return self.sample >= _LEAST and self.starts >= _BLOCKS * self.sample


def find_block_starts(table: LocationTable) -> CodeAddresses | None:
    """Return the starts of the blocks of a table's image; None if its code is not understood."""
    blocks, texts = table.blocks, table.text_ranges()
    if blocks is None or not texts:
        return None
    starts = StateFinder(blocks, array("I"), array("Q")).find_starts()
    return CodeAddresses(blocks.base, starts, find_span(texts))


def read_exactly(
    words: Sequence[int], blocks: CodeAddresses, kaslr_offset: int | None
) -> ExactReading:
    """Find out which KASLR offset executed addresses include.

    :param blocks: the starts of the kernel's blocks.
    :param kaslr_offset: the likeliest offset besides 0; None if they include none.
    """
    distinct = sorted(set(words))
    sample = distinct[:: len(distinct) // _SAMPLE + 1]
    offsets = [0]
    if kaslr_offset is not None:
        offsets += (kaslr_offset, *_list_offsets(sample, *blocks.code))
    readings = [_judge(sample, blocks, offset) for offset in dict.fromkeys(offsets)]
    best, *others = sorted(readings, key=lambda one: -one.starts)
    second = others[0].starts if others else 0
    expected = best.inside * blocks.density
    is_certain = (
        best.starts >= _LEAST
        and best.starts >= _RATIO * second
        and (best.starts > expected + _DEVIATIONS * math.sqrt(expected + 1) or best.has_blocks)
    )
    if is_certain:
        return best._replace(is_certain=True)
    return readings[0]


def is_instruction_run(words: Sequence[int]) -> bool:
    """Return whether most addresses are of instructions that follow each other."""
    distinct = sorted(set(words))
    near = sum(later - earlier <= _LONGEST for earlier, later in pairwise(distinct))
    return len(distinct) >= _RUN and near >= _NEIGHBORS * len(distinct)


def _list_offsets(sample: Sequence[int], start: int, end: int) -> Sequence[int]:
    """Return the offsets with which some of the addresses would be in the kernel's code."""
    if not sample:
        return ()
    found: dict[int, None] = {}
    for part in (1, 2, 3):
        word = sample[len(sample) * part // 4]
        first = -(-(word - end + 1) // _ALIGN)
        last = (word - start) // _ALIGN
        found.update(dict.fromkeys(number * _ALIGN for number in range(first, last + 1)))
    return tuple(found)


def _judge(sample: Sequence[int], blocks: CodeAddresses, offset: int) -> ExactReading:
    start, end = blocks.code
    starts = inside = 0
    for word in sample:
        address = word - offset
        inside += start <= address < end
        starts += blocks.kind_at(address) is not None
    return ExactReading(offset, starts, inside, len(sample), False)


def move_words(words: Sequence[int], offset: int) -> array[int]:
    """Return addresses without the KASLR offset; addresses below the offset are unchanged."""
    if not offset:
        return array("Q", words)
    return array("Q", [word - offset if word >= offset else word for word in words])
