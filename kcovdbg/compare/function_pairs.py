# SPDX-License-Identifier: LGPL-2.1-or-later
"""The functions that two builds of a kernel have in common, and the lines of these."""

from __future__ import annotations

import posixpath
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple

from kcovdbg.elf.symbol_table import strip_clone_suffix
from kcovdbg.records.alignment import align
from kcovdbg.records.native_loops import Block, Numbering
from kcovdbg.records.pc_columns import PcColumns, low_halves, pair_words

# A function that was moved keeps at least this share of its lines with points.
_MOVED_LINES: Final = 0.5
# Stubs of system calls that a configuration lacks.
_STUBS: Final = "kernel/sys_ni.c"

ReadText = Callable[[str], Sequence[str]]
"""Returns the lines of a source file by its name in debug info, none where it is not at hand."""


class PairKind(str, Enum):
    """The criterion for two functions to be the same."""

    SAME = "same"
    """Name and file; the name alone where a build has no debug info of the function."""
    MOVED = "moved"
    """The name; the file is another one."""


class FunctionPair(NamedTuple):
    """A function in two builds."""

    left: int
    """The number of its place in the left build."""
    right: int
    kind: PairKind


class BuildFunctions:
    """The functions that one build has points in, each by the number of its place.

    :param columns: of the PCs that were recorded in it, with its table.
    :param read_text: reads the sources that it was built from.
    :param unrecorded: those of the PCs that were not recorded, but are points which the table lacks.
    """

    def __init__(self, columns: PcColumns, read_text: ReadText, unrecorded: Collection[int] = frozenset()) -> None:
        self.columns = columns
        self.unrecorded = unrecorded
        self.read_text = read_text
        places, strings = columns.places, columns.frames.strings
        self.names: list[str] = [strip_clone_suffix(strings[number] or "") for number in places.function]
        self.files: list[str] = [strings[number] or "" for number in places.file]
        normal = {file: posixpath.normpath(file) if file else "" for file in set(self.files)}
        self.keys: list[tuple[str, str]] = [(name, normal[file]) for name, file in zip(self.names, self.files, strict=True)]
        """Name and file of each, the latter without ``./``."""
        self._spans: dict[int, range] = {}

    @cached_property
    def by_key(self) -> Mapping[tuple[str, str], int]:
        """Name and file -> place; functions without a name have none."""
        return {key: place for place, key in enumerate(self.keys) if key[0]}

    @cached_property
    def by_name(self) -> Mapping[str, Sequence[int]]:
        """Name -> places."""
        found: dict[str, list[int]] = defaultdict(list)
        for place, name in enumerate(self.names):
            if name:
                found[name].append(place)
        return found

    @cached_property
    def _numbered_lines(self) -> tuple[array[int], array[int]]:
        words = pair_words(self.columns.places.of_frame, self.columns.frames.line)
        numbering = Numbering()
        return numbering.number(words), numbering.ids(words)

    @property
    def place_lines(self) -> array[int]:
        """The distinct lines of all functions, ascending: the place in the high half of a word, the line in the low one.

        Frames without a line have the line 0.
        """
        return self._numbered_lines[0]

    @cached_property
    def _lines(self) -> array[int]:
        return low_halves(self.place_lines)

    @property
    def line_of_frame(self) -> array[int]:
        """The index of each frame's function and line in :attr:`place_lines`."""
        return self._numbered_lines[1]

    def line_span(self, place: int) -> range:
        """Return the indexes of the lines of a function in :attr:`place_lines`."""
        found = self._spans.get(place)
        if found is None:
            words = self.place_lines
            start = bisect_left(words, place << 32 | 1)
            found = self._spans[place] = range(start, bisect_left(words, place + 1 << 32, start))
        return found

    def has_unknown_line(self, place: int) -> bool:
        """Return whether a function has frames without a line; their index is the one before the others."""
        at = self.line_span(place).start - 1
        return at >= 0 and self.place_lines[at] == place << 32

    def lines(self, place: int) -> array[int]:
        """Return the lines of a function that frames of points are on, ascending."""
        span = self.line_span(place)
        return self._lines[span.start : span.stop]

    def text(self, place: int) -> list[str]:
        """Return the text from a function's first line with a point to the last one.

        :return: empty where the source is not at hand.
        """
        lines = self.lines(place)
        whole = self.read_text(self.files[place]) if lines and self.files[place] else ()
        if not lines or lines[-1] > len(whole):
            # The source is older or newer than the build.
            return []
        return [line.strip() for line in whole[lines[0] - 1 : lines[-1]]]


class FunctionPairs:
    """Finds functions of one build in another, each once.

    :param left: the functions of the left build.
    :param right: those of the right build.
    """

    def __init__(self, left: BuildFunctions, right: BuildFunctions) -> None:
        self._left = left
        self._right = right
        self._to_right: dict[int, FunctionPair] = {}
        self._to_left: dict[int, FunctionPair] = {}

    def to_right(self, place: int) -> FunctionPair | None:
        """Return the pair that a function of the left build is in, None where it is in none."""
        return self._to_right.get(place)

    def to_left(self, place: int) -> FunctionPair | None:
        """Return the pair that a function of the right build is in, None where it is in none."""
        return self._to_left.get(place)

    def __iter__(self) -> Iterator[FunctionPair]:
        """Iterate over the pairs."""
        return iter(self._to_right.values())

    def add(self, left: Iterable[int], right: Iterable[int]) -> None:
        """Find the counterparts of some functions of both builds."""
        for places, is_left in ((left, True), (right, False)):
            known = self._to_right if is_left else self._to_left
            for place in places:
                if place not in known:
                    self._add_by_name(place, is_left=is_left)

    def _add_by_name(self, place: int, *, is_left: bool) -> None:
        own, other = (self._left, self._right) if is_left else (self._right, self._left)
        if not own.names[place]:
            return
        found, kind = other.by_key.get(own.keys[place]), PairKind.SAME
        if found is None:
            found = _find_moved(own, other, place)
            kind = PairKind.SAME if found is None or not (own.files[place] and other.files[found]) else PairKind.MOVED
        if found is not None and found not in (self._to_left if is_left else self._to_right):
            pair = FunctionPair(place, found, kind) if is_left else FunctionPair(found, place, kind)
            self._to_right[pair.left] = self._to_left[pair.right] = pair


def _find_moved(own: BuildFunctions, other: BuildFunctions, place: int) -> int | None:
    """Return the one function of this name that only the other build has in its file, None where there are several."""
    name = own.names[place]
    mine = [one for one in own.by_name[name] if own.keys[one] not in other.by_key]
    found = [one for one in other.by_name.get(name, ()) if other.keys[one] not in own.by_key]
    return found[0] if len(mine) == len(found) == 1 and _may_be_same(own, place, other, found[0]) else None


def _may_be_same(own: BuildFunctions, place: int, other: BuildFunctions, found: int) -> bool:
    """Return whether functions of one name can be the same: a stub in another file stands for what a kernel lacks."""
    if _STUBS in (own.keys[place][1], other.keys[found][1]):
        return False
    if not own.files[place] or not other.files[found]:
        # Without debug info there is only the name.
        return True
    sizes = sorted((len(own.lines(place)), len(other.lines(found))))
    return sizes[0] >= _MOVED_LINES * sizes[1]


def number_lines(*texts: Sequence[str]) -> list[array[int]]:
    """Return texts as numbers, equal for equal lines."""
    numbers: dict[str, int] = {}
    return [array("Q", [numbers.setdefault(line, len(numbers) + 1) for line in text]) for text in texts]


# Shorter runs agree by chance: between 6.1 and 6.12, 68 % of single distances and 42 % of two in a row were of other lines.
_RUN: Final = 4
# Where a function begins and ends, less is left to chance.
_EDGE_RUN: Final = 2


class LinePairs(NamedTuple):
    """The lines with points that two versions of a function have in common."""

    to_right: Mapping[int, int]
    """Line in the left build -> line in the right one."""
    is_by_source: bool
    """Whether the sources of both were compared."""


def pair_lines(left: BuildFunctions, left_place: int, right: BuildFunctions, right_place: int) -> LinePairs:
    """Return the lines that a function has in two builds."""
    lines = left.lines(left_place), right.lines(right_place)
    if not lines[0] or not lines[1]:
        return LinePairs({}, False)
    texts = left.text(left_place), right.text(right_place)
    if texts[0] and texts[1]:
        return LinePairs(_pair_by_text(lines, texts), True)
    return LinePairs(_pair_by_order(*lines), False)


def _pair_by_text(lines: Sequence[Sequence[int]], texts: Sequence[Sequence[str]]) -> dict[int, int]:
    first, other = lines[0][0], lines[1][0]
    blocks: Sequence[Block] = (Block(0, 0, len(texts[0])),)
    if texts[0] != texts[1]:
        blocks = align(*number_lines(*texts)).blocks
    right = set(lines[1])
    of_text = {first + left + at: other + there + at for left, there, length in blocks for at in range(length)}
    return {line: of_text[line] for line in lines[0] if of_text.get(line) in right}


def _pair_by_order(left: Sequence[int], right: Sequence[int]) -> dict[int, int]:
    """Pair lines by their distances from those before: in functions where all agree, or in runs of several that do."""
    if len(left) == len(right) and all(there - here == right[0] - left[0] for here, there in zip(left, right, strict=True)):
        return dict(zip(left, right, strict=True))
    steps = [array("Q", [1, *(b - a + 1 for a, b in pairwise(side))]) for side in (left, right)]
    pairs: dict[int, int] = {}
    i = j = 0
    for start, other, length in align(*steps).blocks:
        is_at_edge = start == other == 0 or (start + length == len(left) and other + length == len(right))
        if length < (_EDGE_RUN if is_at_edge else _RUN):
            continue
        if i < start and j < other:
            # The first distance of a run is that from the lines before it.
            pairs[left[start - 1]] = right[other - 1]
        pairs.update(zip(left[start : start + length], right[other : other + length], strict=True))
        i, j = start + length, other + length
    return pairs
