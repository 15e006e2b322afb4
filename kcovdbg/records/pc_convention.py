# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find out what the PCs of a list mean, by the coverage points of the kernel and its modules.

KCOV records return addresses minus the KASLR offset. Tools write them as they are, minus 1, minus
the length of the call, or minus twice that; with the KASLR offset; with modules counted from
another address; or without the upper half. A word that is a point in one of these ways is read so,
each word on its own. Words that match no convention are kept unchanged, and counted.
"""

from __future__ import annotations

import contextlib
import math
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import filterfalse
from typing import Final, NamedTuple

from kcovdbg.abi.address import WORD_MASK
from kcovdbg.errors import KcovdbgError, TargetError
from kcovdbg.model.location import KIND_BITS, KIND_MASK, LoadedModule
from kcovdbg.records.native_loops import find_chains
from kcovdbg.records.pc_counts import make_numbering, pick_words
from kcovdbg.records.pc_options import Convention, WordReading
from kcovdbg.symbols.coverage_points import PointKind, points_of_loaded
from kcovdbg.symbols.location_table import LocationTable, TableColumns, TextRange


def require_call_length(convention: Convention, call_length: int) -> None:
    """Make sure that the length of a call is known where a convention needs it.

    :raises KcovdbgError: when it is not.
    """
    if convention is Convention.CALL and not call_length:
        raise KcovdbgError(
            "--pc call: the length of a call is unknown for this kernel's machine", hint="--pc raw"
        )


_OF_POINTS: Final = (Convention.RAW, Convention.CALL, Convention.MINUS1, Convention.TWICE)


class CodeAddresses:
    """Addresses in the code of the image or of a module: its coverage points, as KCOV records them,
    or the starts of its blocks.

    :param base: address that offsets count from.
    :param offset: the offset of each address, ascending; 32-bit numbers.
    :param code: where the code is: its first address, and the one after the last.
    :param module: name of the module; None for the image.
    :param kinds: the kind of each point, in the lowest bits of a number; none where all are of
        basic blocks.
    """

    def __init__(
        self,
        base: int,
        offset: Sequence[int],
        code: tuple[int, int],
        module: str | None = None,
        kinds: Sequence[int] = (),
    ) -> None:
        self._kinds = kinds
        self.base = base
        self.offset = offset
        self.code = code
        self.module = module

    @cached_property
    def _chain(self) -> array[int]:
        """A chain that is not empty for each address, so that :func:`find_chains` finds all."""
        return array("Q", [1 << KIND_BITS]) * len(self.offset)

    @property
    def density(self) -> float:
        """The share of all addresses of the code that are among these."""
        return min(1.0, len(self.offset) / max(self.code[1] - self.code[0], 1))

    def find_others(self, words: array[int], correction: int) -> array[int]:
        """Return the indexes of words that are not among these when a number is added to them.

        :param words: ascending.
        """
        base = self.base - correction & WORD_MASK
        columns = TableColumns(base, self.offset, self._chain, None)  # type: ignore[arg-type]
        return find_chains(words, columns).rest

    def kind_at(self, pc: int) -> int | None:
        """Return the kind of the point at an address; None where there is none."""
        index = bisect_left(self.offset, pc - self.base)
        if index == len(self.offset) or self.offset[index] != pc - self.base:
            return None
        return self._kinds[index] & KIND_MASK if self._kinds else PointKind.PC

    def __iter__(self) -> Iterator[int]:
        """Iterate over the addresses."""
        return map(self.base.__add__, self.offset)


def find_module_sets(
    modules: Iterable[LoadedModule], paths: Mapping[str, str]
) -> Iterator[CodeAddresses]:
    """Iterate over the coverage points of modules whose files are at hand.

    :param modules: with addresses as KCOV records them.
    :param paths: the paths of their files, by build ID.
    """
    for module in modules:
        path = paths.get(module.build_id or "")
        if path is not None and module.sections:
            # Points of a file that cannot be read are unknown.
            with contextlib.suppress(TargetError):
                yield list_points(points_of_loaded(module, path), module.span, module.name)


def table_points(table: LocationTable) -> CodeAddresses | None:
    """Return the points of a table; None if it has none, as for a machine whose calls are not
    recognized.
    """
    columns, texts = table.columns, table.text_ranges()
    if not len(columns.offset) or not texts:
        return None
    return CodeAddresses(columns.base, columns.offset, find_span(texts), kinds=columns.chain)


def find_span(texts: Sequence[TextRange]) -> tuple[int, int]:
    """Return the first address of sections with code, and the first one behind all of them."""
    return min(text.start for text in texts), max(text.end for text in texts)


def list_points(
    pcs: Iterable[int], code: tuple[int, int] | None = None, module: str | None = None
) -> CodeAddresses:
    """Return the points at some PCs.

    :param code: as for :class:`CodeAddresses`; None for the range of the points.
    """
    found = sorted(set(pcs))
    # Offsets have 32 bits.
    base = found[0] if found else 0
    return CodeAddresses(
        base,
        array("I", (pc - base for pc in found)),
        code or (base, found[-1] + 1 if found else base),
        module,
    )


class PcReading(NamedTuple):
    """Findings about the words of a list, and the words as KCOV records them."""

    words: array[int]
    readings: tuple[WordReading, ...] = ()
    """The one of most words first; none where the points are unknown."""
    damaged: array[int] = array("Q")
    """Indexes of records that are no points, however they are read."""
    unjudged: int = 0
    """Records outside of code whose points are known, which were read as most others."""
    restored: int = 0
    """Records whose upper half was cut off."""
    in_reach: float = 1.0
    """The share of records that can be of this kernel."""
    choices: tuple[WordReading, ...] | None = None
    """The ways that make some words points, most first, where the words are too few to decide and
    were left as recorded.
    """

    @property
    def points(self) -> int:
        """Number of records that are points."""
        return sum(reading.records for reading in self.readings)

    @property
    def judged(self) -> int:
        """Number of records of which it is known whether they are points."""
        return len(self.words) - self.unjudged

    @property
    def share(self) -> float | None:
        """The share of records that are points; None where the points are unknown, or there are no
        records.
        """
        if not self.readings or not self.judged:
            return None
        return self.points / self.judged


def find_missing(
    words: array[int], indexes: array[int], points: Iterable[CodeAddresses], correction: int = 0
) -> array[int]:
    """Return the indexes of those words that are no points when a number is added to them.

    :param words: ascending.
    :param indexes: the indexes of the words to look at, ascending.
    """
    for some in points:
        if not len(indexes):
            break
        wanted = words
        if len(indexes) != len(words):
            wanted = pick_words(words, indexes)
        missing = some.find_others(wanted, correction)
        if len(missing) != len(indexes):
            indexes = array("I", map(indexes.__getitem__, missing))
    return indexes


# Modules are at most so far from the image, as displacements have 32 bits.
_REACH: Final = 1 << 31
# Words that decide between conventions.
_SAMPLE: Final = 8192
# Words that vote for an offset.
_VOTERS: Final = 24
# The offset of KASLR is a multiple of it on every machine.
_KASLR_ALIGN: Final = 1 << 16
# The number of possible offsets, for each convention.
_OFFSETS: Final = 1 << 16
# The smallest share of words that makes a convention: since compilers place points with some
# regularity, more words than by mere chance are points in a wrong one.
_LEAST: Final = 0.2
# The smallest share of a convention that differs from the main one by a call. Where a function's
# only point follows a tail call, KCOV records a return address of its caller, and the call before
# that address may follow another point: 4.3 % of a real trace are such records (docs/coverage.md).
_LEAST_BESIDE: Final = 0.05
# Conventions in one file.
_MOST: Final = 6
# The addresses of a module may be wrong by at most so many bytes.
_SLACK: Final = 1 << 16
# One file in so many is misread by chance.
_ODDS: Final = 100


def find_convention(
    words: array[int],
    points: Sequence[CodeAddresses],
    call_length: int,
    *,
    kaslr_offset: int | None = 0,
    modules: Sequence[tuple[str, int, int]] = (),
    least: int = 0,
) -> PcReading:
    """Find out what words mean, and return them as KCOV records PCs.

    :param points: the points of the image, then of modules.
    :param call_length: bytes of a call of a callback; 0 if unknown.
    :param kaslr_offset: the kernel's offset, which words may include; None if no word does.
    :param modules: name, start and end of each loaded module, whether its points are known or not.
    :param least: how many distinct words decide; fewer are left as they are.
    """
    if not words or not points:
        return PcReading(words)
    search = _Search(words, points, call_length, kaslr_offset, modules)
    if len(search.distinct) < least:
        return search.survey()
    return search.run()


def recognize_pc(word: int, points: Iterable[CodeAddresses], call_length: int) -> Convention | None:
    """Return the convention in which one address is a point: recorded as it is, minus 1, or as the
    call; None if it is a point in no convention.
    """
    every = tuple(points)
    for convention in (Convention.RAW, Convention.MINUS1, Convention.CALL):
        pc = word + convention.correction(call_length)
        if any(some.kind_at(pc) is not None for some in every):
            return convention
    return None


def count_points(words: array[int], points: Sequence[CodeAddresses]) -> int:
    """Return how many words are points."""
    numbering = make_numbering(words)
    distinct = numbering.number(words)
    counts = numbering.counts(words)
    missing = find_missing(distinct, array("I", range(len(distinct))), points)
    return len(words) - sum(map(counts.__getitem__, missing))


def restore_upper_halves(words: array[int], points: CodeAddresses) -> tuple[array[int], int]:
    """Return words in which lower halves of addresses are whole again, and the number of these.

    :param points: the points of the image.
    """
    high = points.base & ~0xFFFFFFFF
    start, end = points.code
    restored = array("Q")
    count = 0
    for word in words:
        whole = word | high
        if high and word < 1 << 32 and start - _REACH <= whole < end + _REACH:
            word = whole
            count += 1
        restored.append(word)
    return restored, count


class _Chosen(NamedTuple):
    """A way that was chosen, and the words that it is for."""

    way: WordReading
    indexes: array[int]
    """The indexes of these words among the distinct ones."""


class _Search:
    """Reads words in the ways in which most of them are points. A way is a convention with a KASLR
    offset. Words are looked at by their indexes among the distinct ones.
    """

    def __init__(
        self,
        words: array[int],
        points: Sequence[CodeAddresses],
        call_length: int,
        kaslr_offset: int | None,
        modules: Sequence[tuple[str, int, int]],
    ) -> None:
        self.points = points
        self.call_length = call_length
        self.finds_offsets = kaslr_offset is not None
        self.modules = modules
        self.words = words
        self.numbering = make_numbering(words)
        self.distinct = self.numbering.number(words)
        self.restored = 0
        if self.distinct[0] < 1 << 32:
            self.words, self.restored = restore_upper_halves(words, points[0])
            self.numbering = make_numbering(self.words)
            self.distinct = self.numbering.number(self.words)
        self.everything = array("I", range(len(self.distinct)))
        """The indexes of all distinct words."""
        self.density = points[0].density
        self.conventions = _OF_POINTS if call_length else (Convention.RAW, Convention.MINUS1)
        self.ways: list[WordReading] = []
        for offset in dict.fromkeys((0, kaslr_offset or 0)):
            self.ways += (self._way(convention, offset) for convention in self.conventions)

    @cached_property
    def counts(self) -> array[int]:
        """How often each distinct word occurs."""
        return self.numbering.counts(self.words)

    def _way(self, convention: Convention, offset: int) -> WordReading:
        return WordReading(convention, offset, convention.correction(self.call_length) - offset)

    def survey(self) -> PcReading:
        """Return the words as they are, and what each way makes of them."""
        choices = []
        for way in self.ways:
            records = self._records(self._split(self.everything, way)[0].indexes)
            if records:
                choices.append(way._replace(records=records))
        choices.sort(key=lambda way: -way.records)
        raw, missing = self._split(self.everything, self._raw)
        return self._finish([raw], missing)._replace(choices=tuple(choices))

    def _split(self, indexes: array[int], way: WordReading) -> tuple[_Chosen, array[int]]:
        """Return a way with the words that are points in it, and the other words."""
        missing = find_missing(self.distinct, indexes, self.points, way.correction)
        return _Chosen(way, _without(indexes, missing)), missing

    @property
    def _raw(self) -> WordReading:
        """The way of KCOV."""
        return self._way(Convention.RAW, 0)

    def run(self) -> PcReading:
        """Return the words as they are meant."""
        chosen: list[_Chosen] = []
        rest, ways = self.everything, self.ways
        while len(rest) and len(chosen) < _MOST:
            found = self._choose(rest, ways, 1)
            if found is None and len(rest) * 10 >= len(self.distinct):
                offsets = self._find_offsets(pick_words(self.distinct, rest))
                found = self._choose(rest, offsets, _OFFSETS)
            if found is None:
                break
            best, rest = found
            chosen.append(best)
            if len(chosen) == 1 and len(rest) < _LEAST_BESIDE * len(self.distinct):
                correction = best.way.correction
                beside = correction - self.call_length, correction + self.call_length
                ways = [way for way in ways if way.correction not in beside]
        if not chosen:
            # Probably another kernel's list: the few matches are chance.
            raw, rest = self._split(self.everything, self._raw)
            chosen = [raw]
        chosen = self._settle(chosen)
        for module in self.points[1:]:
            if not len(rest):
                break
            chosen, rest = self._move_module(module, chosen, rest)
        return self._finish(chosen, rest)

    def _choose(
        self, rest: array[int], ways: Sequence[WordReading], tries: int
    ) -> tuple[_Chosen, array[int]] | None:
        """Return the way that makes most words points, with these words, and the words that it
        leaves; None where chance would do as well.

        :param rest: the words that are left.
        :param tries: how many offsets were possible for each way.
        """
        words = len(rest)
        sample = pick_words(self.distinct, rest[:: words // _SAMPLE + 1])
        everything = array("I", range(len(sample)))
        best: tuple[int, WordReading] | None = None
        for way in ways:
            hits = len(sample) - len(find_missing(sample, everything, self.points, way.correction))
            if hits and (best is None or hits > best[0]):
                best = hits, way
            if hits == len(sample):
                break
        if best is None:
            return None
        chosen, left = self._split(rest, best[1])
        hits = len(chosen.indexes)
        is_certain = (
            _is_certain(hits, words, self.density, tries * len(ways)) and hits >= _LEAST * words
        )
        # An offset for which words voted suits some of them in any case.
        is_likely = words == len(self.distinct) and tries == 1 and hits * 2 >= words
        if is_certain or is_likely:
            return chosen, left
        return None

    def _settle(self, chosen: Sequence[_Chosen]) -> list[_Chosen]:
        """Read words that are points in several of the ways as points of basic blocks, which most
        are.
        """
        settled = list(chosen)
        for first in range(len(settled)):
            for later in range(first + 1, len(settled)):
                one, other = settled[first], settled[later]
                moved = array("I")
                for index in self._split(one.indexes, other.way)[0].indexes:
                    if self._is_block(index, other.way) and not self._is_block(index, one.way):
                        moved.append(index)
                if moved:
                    joined = array("I", sorted((*other.indexes, *moved)))
                    settled[first] = one._replace(indexes=_without(one.indexes, moved))
                    settled[later] = other._replace(indexes=joined)
        return settled

    def _is_block(self, index: int, way: WordReading) -> bool:
        pc = self.distinct[index] + way.correction
        return any(points.kind_at(pc) == PointKind.PC for points in self.points)

    def _find_offsets(self, words: array[int]) -> list[WordReading]:
        """Return ways with the KASLR offsets for which words vote."""
        if not self.finds_offsets:
            return []
        voters = _spread(words)
        low: dict[int, list[tuple[int, Convention]]] = {}
        for convention in self.conventions:
            for word in voters:
                pc = word + convention.correction(self.call_length)
                low.setdefault(pc % _KASLR_ALIGN, []).append((pc, convention))
        votes: Counter[tuple[Convention, int]] = Counter()
        for point in self.points[0]:
            for pc, convention in low.get(point % _KASLR_ALIGN, ()):
                votes[convention, pc - point] += 1
        return [
            self._way(convention, offset)
            for (convention, offset), count in votes.most_common(4)
            if offset and count * 10 >= len(voters) * 8
        ]

    def _move_module(
        self, module: CodeAddresses, chosen: list[_Chosen], rest: array[int]
    ) -> tuple[list[_Chosen], array[int]]:
        """Find out how far the words of a module are off; return the ways with one for all of
        these words, and the words that are left.
        """
        main = chosen[0].way
        for indexes in self._find_candidates(module, main, rest):
            found = self._vote(module, main, indexes)
            if found is not None:
                moved = found.indexes
                others = [one._replace(indexes=_without(one.indexes, moved)) for one in chosen]
                return [*others, found], _without(rest, moved)
        return chosen, rest

    def _find_candidates(
        self, module: CodeAddresses, main: WordReading, rest: array[int]
    ) -> Iterator[array[int]]:
        """Yield words that may be in a module: those near where it is, then those outside of the
        image.
        """
        start, end = module.code
        first = bisect_left(self.distinct, start - main.correction - _SLACK)
        last = bisect_left(self.distinct, end - main.correction + _SLACK)
        # All words near the module: some are points already, by chance.
        if any(first <= index < last for index in rest):
            yield array("I", range(first, last))
        start, end = self.points[0].code
        far = array("I")
        for index in rest:
            if not start <= self.distinct[index] + main.correction <= end:
                far.append(index)
        if far:
            yield far

    def _vote(
        self, module: CodeAddresses, main: WordReading, indexes: array[int]
    ) -> _Chosen | None:
        """Return the way that makes nearly all words points of a module, since all are off by the
        same, with these words; None where there is none.
        """
        voters = _spread(pick_words(self.distinct, indexes))
        votes: Counter[int] = Counter()
        for word in voters:
            votes.update(point - word for point in module)
        best = _Chosen(main, array("I"))
        for correction, count in votes.most_common(4):
            if count > 1 and correction != main.correction:
                shift = correction - main.correction
                way = main._replace(correction=correction, module=module.module, shift=shift)
                missing = find_missing(self.distinct, indexes, (module,), correction)
                found = _without(indexes, missing)
                if len(found) > len(best.indexes):
                    best = _Chosen(way, found)
        hits, words = len(best.indexes), len(indexes)
        tries = len(module.offset) * len(voters)
        if hits * 10 >= words * 9 and _is_certain(hits, words, module.density, tries):
            return best
        return None

    def _finish(self, chosen: Iterable[_Chosen], rest: array[int]) -> PcReading:
        first, *others = sorted(chosen, key=lambda one: -self._records(one.indexes))
        kept = [first, *(one for one in others if len(one.indexes))]
        main = first.way
        unjudged, damaged = self._judge(rest, main)
        return PcReading(
            self._correct([*kept, _Chosen(main, unjudged)]),
            tuple(one.way._replace(records=self._records(one.indexes)) for one in kept),
            self._find_records(damaged),
            self._records(unjudged),
            self.restored,
            self._share_in_reach(main, damaged),
        )

    def _judge(self, rest: array[int], main: WordReading) -> tuple[array[int], array[int]]:
        """Split words that are no points: the first ones returned are in code whose points are
        unknown, the other ones are damaged.
        """
        text = self.points[0].code
        known = [points.module for points in self.points]
        loose = [(start, end) for name, start, end in self.modules if name not in known]
        # Without known modules, code near the image may be of any module.
        is_alone = not self.modules and len(self.points) == 1
        unjudged, damaged = array("I"), array("I")
        for index in rest:
            pc = self.distinct[index] + main.correction
            is_near_text = not text[0] <= pc <= text[1] and abs(pc - text[0]) < _REACH
            is_loose = any(start <= pc <= end for start, end in loose)
            if is_loose or (is_alone and is_near_text):
                unjudged.append(index)
            else:
                damaged.append(index)
        return unjudged, damaged

    def _share_in_reach(self, main: WordReading, damaged: array[int]) -> float:
        start, end = self.points[0].code
        far = 0
        near = range(start - _REACH, end + _REACH)
        for index in damaged:
            word = self.distinct[index]
            if word not in near and word + main.correction not in near:
                far += self.counts[index]
        return 1 - far / len(self.words)

    def _records(self, indexes: array[int]) -> int:
        return sum(map(self.counts.__getitem__, indexes))

    def _find_records(self, indexes: array[int]) -> array[int]:
        """Return the indexes of the records of distinct words."""
        if not len(indexes):
            return array("Q")
        wanted = set(map(self.distinct.__getitem__, indexes))
        return array("Q", (at for at, word in enumerate(self.words) if word in wanted))

    def _correct(self, ways: Sequence[_Chosen]) -> array[int]:
        """Return the words, each with the correction for it; others as they are."""
        if not any(way.correction and len(indexes) for way, indexes in ways):
            return self.words
        corrected = array("Q", self.distinct)
        for way, indexes in ways:
            for index in indexes:
                corrected[index] = corrected[index] + way.correction & WORD_MASK
        return pick_words(corrected, self.numbering.ids(self.words))


def _spread(words: Sequence[int]) -> Sequence[int]:
    return words[:: max(1, len(words) // _VOTERS)][:_VOTERS]


def _without(indexes: array[int], others: array[int]) -> array[int]:
    """Return indexes that are not among others; both ascending."""
    if not len(others):
        return indexes
    if len(others) == len(indexes):
        return array("I")
    taken = set(others)
    return array("I", filterfalse(taken.__contains__, indexes))


def _is_certain(hits: int, words: int, density: float, tries: int) -> bool:
    """Return whether so many words are points by more than chance (Chernoff's bound)."""
    expected = words * density
    if hits <= expected or hits < 2:
        return False
    return hits * math.log(hits / expected) - hits + expected > math.log(_ODDS * tries)
