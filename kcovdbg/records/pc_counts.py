# SPDX-License-Identifier: LGPL-2.1-or-later
"""How often each PC occurs in a buffer, counted without decoding records one by one."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import compress, repeat
from typing import Any, Final, NamedTuple

from kcovdbg.abi import record
from kcovdbg.model.buffer import Buffer
from kcovdbg.records.native_loops import Numbering

# The range of the text is guessed from this many records.
_SAMPLE: Final = 1024
_MARGIN: Final = 1 << 20
_MAX_TEXT: Final = 1 << 28


class PcCounts(Mapping[int, int]):
    """How often each PC was recorded, in two arrays instead of a dictionary, which takes five times the memory.

    :param pcs: ascending, each once; type code Q.
    :param records: of each PC; type code Q.
    """

    def __init__(self, pcs: array[int], records: array[int]) -> None:
        self.pcs = pcs
        self.records = records

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
        index = self._find(pc)
        if index < 0:
            raise KeyError(pc)
        return self.records[index]

    def get(self, pc: int, default: Any = None) -> Any:
        """Return the number of records of a PC, or a default; much faster than the look-up of :class:`Mapping`."""
        index = self._find(pc)
        return default if index < 0 else self.records[index]

    def __contains__(self, pc: object) -> bool:
        """Return whether a PC was recorded."""
        return isinstance(pc, int) and self._find(pc) >= 0

    def _find(self, pc: int) -> int:
        index = bisect_left(self.pcs, pc)
        return index if index < len(self.pcs) and self.pcs[index] == pc else -1

    def records_of(self, pcs: Sequence[int]) -> array[int]:
        """Return the number of records of ascending PCs, 0 for one that was not recorded."""
        if not pcs:
            return array("Q")
        part = slice(bisect_left(self.pcs, pcs[0]), bisect_right(self.pcs, pcs[-1]))
        known = dict(zip(self.pcs[part], self.records[part], strict=True))
        return array("Q", map(known.get, pcs, repeat(0)))

    def select(self, wanted: bytes) -> PcCounts:
        """Return the counts of some of the PCs.

        :param wanted: of each PC, 0 for one that is left out.
        """
        return PcCounts(array("Q", compress(self.pcs, wanted)), array("Q", compress(self.records, wanted)))


def as_counts(counts: Mapping[int, int]) -> PcCounts:
    """Return a mapping from PCs to records as :class:`PcCounts`."""
    if isinstance(counts, PcCounts):
        return counts
    pcs = array("Q", sorted(counts))
    return PcCounts(pcs, array("Q", map(counts.__getitem__, pcs)))


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


def make_numbering(words: Sequence[int]) -> Numbering:
    """Return a numbering whose range fits some words."""
    return Numbering(find_text(words))


def count_pcs(buffer: Buffer) -> PcCounts:
    """Return how often each PC was recorded; zero and words that cannot hold an address are left out."""
    spans = [to_array(words) for words in present_words(buffer)]
    if not spans:
        return PcCounts(array("Q"), array("Q"))
    numbering = make_numbering(record.pc_words(buffer.words, buffer.encoding))
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
    """Return the distinct address words of all records, ascending; unreadable records count as zero."""
    words = record.pc_words(buffer.words, buffer.encoding)
    return make_numbering(words).number(to_array(words))


def pc_sequence(buffer: Buffer) -> array[int]:
    """Return the PC of each record, in order; 0 for a record that has none or could not be read."""
    words = record.pc_words(buffer.words, buffer.encoding)
    if buffer.encoding.codec.has_plain_pcs:
        return words if isinstance(words, array) and words.typecode == "Q" else array("Q", words)
    distinct = distinct_words(buffer)
    pcs = record.pcs_of_words(distinct, buffer.encoding)
    if all(pcs.get(word, 0) == word for word in distinct):
        return array("Q", words)
    return array("Q", [pcs.get(word, 0) for word in words])


class RunCounts:
    """In how many runs each PC occurs, and how often altogether.

    Runs are added one by one and not kept: memory is bounded by the number of distinct PCs, whatever the number of runs.

    :param runs: PC -> records, for each run.
    """

    def __init__(self, runs: Iterable[Mapping[int, int]] = ()) -> None:
        self.total = 0
        """Number of runs."""
        # PC -> [runs, records]: one look-up per PC and run.
        self._counts: dict[int, list[int]] = {}
        for run in runs:
            self.add(run)

    def add(self, run: Mapping[int, int]) -> None:
        """Add one run.

        :param run: PC -> records.
        """
        self.total += 1
        counts = self._counts
        for pc, records in run.items():
            found = counts.get(pc)
            if found is None:
                counts[pc] = [1, records]
            else:
                found[0] += 1
                found[1] += records

    @property
    def pcs(self) -> Collection[int]:
        """The PCs of all runs."""
        return self._counts.keys()

    def runs(self, pc: int) -> int:
        """Return the number of runs in which a PC occurs."""
        found = self._counts.get(pc)
        return 0 if found is None else found[0]

    def records(self, pc: int) -> int:
        """Return the number of records of a PC in all runs."""
        found = self._counts.get(pc)
        return 0 if found is None else found[1]


class Occurrence(NamedTuple):
    """One PC of several runs."""

    pc: int
    runs: int
    """Runs in which it occurs."""
    records: int
    """In all runs."""
    is_stable: bool
    """Whether it occurs in every run; otherwise it flickers."""


def find_occurrences(runs: RunCounts) -> list[Occurrence]:
    """Return every PC of some runs: flickering ones first, the rarest of them first, then by address."""
    found = [Occurrence(pc, times := runs.runs(pc), runs.records(pc), times == runs.total) for pc in runs.pcs]
    return sorted(found, key=lambda one: (one.is_stable, one.runs, one.pc))


class DiffSide(str, Enum):
    """The sides of a comparison that have a PC or a record."""

    LEFT = "left"
    """Every run on the left has it, none on the right."""
    RIGHT = "right"
    """Every run on the right has it, none on the left."""
    FLICKER = "flicker"
    """Only some runs of a side have it."""


class DifferingPc(NamedTuple):
    """One PC that not all runs of both sides have."""

    side: DiffSide
    pc: int
    records: int
    """In all runs of both sides."""
    left_runs: int
    """Runs on the left that have it."""
    right_runs: int


class RunDifference(NamedTuple):
    """How the runs of two sides differ."""

    differences: tuple[DifferingPc, ...]
    """By side, then by address."""
    common: int
    """PCs that every run of both sides has."""
    left_runs: int
    """Number of runs on the left."""
    right_runs: int


def compare_runs(left: RunCounts, right: RunCounts) -> RunDifference:
    """Compare the runs of two sides."""
    by_side: dict[DiffSide, list[DifferingPc]] = {side: [] for side in DiffSide}
    common = 0
    for pc in {*left.pcs, *right.pcs}:
        in_left, in_right = left.runs(pc), right.runs(pc)
        if in_left == left.total and in_right == right.total:
            common += 1
            continue
        if in_left == left.total and not in_right:
            side = DiffSide.LEFT
        elif in_right == right.total and not in_left:
            side = DiffSide.RIGHT
        else:
            side = DiffSide.FLICKER
        by_side[side].append(DifferingPc(side, pc, left.records(pc) + right.records(pc), in_left, in_right))
    differences = tuple(one for found in by_side.values() for one in sorted(found, key=lambda one: one.pc))
    return RunDifference(differences, common, left.total, right.total)
