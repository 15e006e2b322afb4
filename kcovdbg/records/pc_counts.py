# SPDX-License-Identifier: LGPL-2.1-or-later
"""How often each PC occurs in a buffer, counted without decoding records one by one, and which
functions take most of it.
"""

from __future__ import annotations

import operator
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import compress, count, repeat
from typing import Any, Final, NamedTuple

from kcovdbg.abi import record
from kcovdbg.compiled_module import column, load_native, zeros
from kcovdbg.model.buffer import Buffer
from kcovdbg.records.native_loops import NO_ID, Numbering
from kcovdbg.records.pc_names import PcColumns
from kcovdbg.symbols.table_rows import gather

# The range of the text is guessed from this many records.
_SAMPLE: Final = 1024
_MARGIN: Final = 1 << 20
_MAX_TEXT: Final = 1 << 28


class PcCounts(Mapping[int, int]):
    """How often each PC was recorded, in two arrays instead of a dictionary, which takes five times
    the memory.

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
        found = self.get(pc)
        if found is None:
            raise KeyError(pc)
        return int(found)

    def get(self, pc: int, default: Any = None) -> Any:
        """Return the number of records of a PC, or a default; much faster than the look-up of
        :class:`Mapping`.
        """
        index = bisect_left(self.pcs, pc)
        return self.records[index] if index < len(self.pcs) and self.pcs[index] == pc else default

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
    words = record.pc_words(buffer.words, buffer.encoding)
    position = 0
    for gap in buffer.gaps:
        if gap.first > position:
            yield words[position : gap.first]
        position = gap.first + gap.length
    if position < buffer.count:
        yield words[position : buffer.count] if position or buffer.count < len(words) else words


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
    """Return the distinct address words of all records, ascending; unreadable records count as
    zero.
    """
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

    Runs are added one by one and not kept: memory is bounded by the number of distinct PCs,
    whatever the number of runs.

    :param runs: PC -> records, for each run.
    """

    def __init__(self, runs: Iterable[Mapping[int, int]] = ()) -> None:
        self.total = 0
        """Number of runs."""
        self.counts: dict[int, list[int]] = {}
        """Of each PC, the number of runs that have it, and of its records in all of them: one
        look-up per PC and run.
        """
        for run in runs:
            self.add(run)

    def add(self, run: Mapping[int, int]) -> None:
        """Add one run.

        :param run: PC -> records.
        """
        self.total += 1
        counts = self.counts
        for pc, records in run.items():
            found = counts.get(pc)
            if found is None:
                counts[pc] = [1, records]
            else:
                found[0] += 1
                found[1] += records


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
    """Return every PC of some runs: flickering ones first, the rarest of them first, then by
    address.
    """
    found = [
        Occurrence(pc, times, records, times == runs.total)
        for pc, (times, records) in runs.counts.items()
    ]
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
    for pc in left.counts.keys() | right.counts.keys():
        in_left, left_records = left.counts.get(pc, (0, 0))
        in_right, right_records = right.counts.get(pc, (0, 0))
        if in_left == left.total and in_right == right.total:
            common += 1
            continue
        if in_left == left.total and not in_right:
            side = DiffSide.LEFT
        elif in_right == right.total and not in_left:
            side = DiffSide.RIGHT
        else:
            side = DiffSide.FLICKER
        by_side[side].append(DifferingPc(side, pc, left_records + right_records, in_left, in_right))
    differences = tuple(
        one for found in by_side.values() for one in sorted(found, key=lambda one: one.pc)
    )
    return RunDifference(differences, common, left.total, right.total)


class Share(NamedTuple):
    """The share of a buffer that one function, file or PC takes."""

    records: int
    share: float
    """Fraction of all records, 0 to 1."""
    points: int
    """Distinct PCs."""
    pc: int
    """The PC with the most records."""
    repeats: int
    """Records of points that the same function run already had, mostly from loops."""


class Ranking(NamedTuple):
    """Groups of PCs by their records."""

    shares: list[Share]
    """Of those with the most records, these first."""
    groups: int
    """Number of all groups."""
    records: int
    """Of all groups."""
    repeats: int
    """Of all groups."""


def rank(
    columns: PcColumns,
    counts: array[int],
    repeats: array[int],
    by: str,
    wanted: bytes | None = None,
    limit: int | None = None,
) -> Ranking:
    """Group PCs and sort the groups, the largest first.

    :param columns: where the PCs are.
    :param counts: records of each PC. Type code Q.
    :param repeats: repeated records of each PC, from :func:`count_repeats`. Type code Q.
    :param by: ``function`` (innermost, including inlined ones), ``file`` or ``pc``. A PC without a
        function is its own group.
    :param wanted: of each PC, 0 for one that is left out; None to rank all.
    :param limit: how many groups to return at most; None for all.
    """
    pcs = columns.pcs
    groups = array("I", range(len(pcs))) if by == "pc" else _groups(columns, by)
    if wanted is not None:
        pcs, counts, repeats = (
            array("Q", compress(values, wanted)) for values in (pcs, counts, repeats)
        )
        groups = array("I", compress(groups, wanted))
    size = max(groups, default=-1) + 1
    # Of each group: its records, its PCs, the index of the first PC with the most records, and its
    # repeats.
    records, points, hottest, repeated = (
        zeros("Q", size),
        zeros("I", size),
        zeros("I", size),
        zeros("Q", size),
    )
    _, lib = load_native()
    lib.kcovdbg_sum_groups(
        column("I", groups),
        column("Q", counts, len(groups)),
        column("Q", repeats, len(groups)),
        len(groups),
        size,
        column("Q", records),
        column("I", points),
        column("I", hottest),
        column("Q", repeated),
    )
    order = sorted(compress(range(size), points), key=hottest.__getitem__)
    order.sort(key=records.__getitem__, reverse=True)
    total = sum(records)
    shares = [
        Share(
            records[group],
            records[group] / total,
            points[group],
            pcs[hottest[group]],
            repeated[group],
        )
        for group in order[:limit]
    ]
    return Ranking(shares, len(order), total, sum(repeated))


def _groups(columns: PcColumns, by: str) -> array[int]:
    """Return the number of each PC's group."""
    if by == "file":
        return columns.files()
    # Static functions in different files may share a name. What a tail call recorded is in a callee
    # of the function.
    frames = columns.groups
    named = array("I", range(len(frames)))
    for number in compress(count(), map(operator.not_, frames.function)):
        named[number] = NO_ID
    groups = gather(columns.innermost_groups(), named, NO_ID)
    for index in compress(count(), columns.approximate):
        if groups[index] != NO_ID:
            groups[index] += len(frames)
    free = count(2 * len(frames))
    return (
        array("I", [next(free) if group == NO_ID else group for group in groups])
        if NO_ID in groups
        else groups
    )


def count_repeats(columns: PcColumns, sequence: array[int]) -> array[int]:
    """Count the records that repeat a point of the same run of a function, mostly in loops.

    :param columns: where the PCs of the sequence are.
    :param sequence: PCs in order, 0 for records without one. Type code Q.
    :return: repeated records of each PC of the columns. Type code Q.
    """
    numbering = make_numbering(sequence)
    distinct = numbering.number(sequence)
    symbols = columns.symbols()
    first = len(distinct) - len(columns)
    if first:
        # Records without a PC are in no function, not even the unknown one.
        symbols.insert(0, NO_ID)
    repeats = zeros("Q", len(symbols))
    ids = numbering.ids(sequence)
    _, lib = load_native()
    if lib.kcovdbg_count_repeats(
        column("I", ids), len(ids), column("I", symbols), len(symbols), column("Q", repeats)
    ):
        raise MemoryError
    return repeats[first:]
