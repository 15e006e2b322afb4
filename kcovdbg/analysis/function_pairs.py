# SPDX-License-Identifier: LGPL-2.1-or-later
"""The functions that two builds of a kernel have in common, those that were moved or renamed between them included.

A function is the same where name and file agree, or the name alone where no other function has it. A function whose name is
gone is looked for among those whose name is new: by its text where both sources are at hand, or else by the pattern of its
lines with coverage points.
"""

from __future__ import annotations

import posixpath
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import Final, NamedTuple

from kcovdbg.analysis.alignment import align
from kcovdbg.analysis.pc_columns import PcColumns, low_halves, pair_words
from kcovdbg.elf.symbol_table import strip_clone_suffix
from kcovdbg.records.native_loops import Numbering

# The pattern of fewer lines recurs everywhere; in other files, that of a few more.
_PATTERN_LINES: Final = 4
_FOREIGN_PATTERN_LINES: Final = 10
_TEXT_LINES: Final = 3
# From a function's name to its first point: parameters, and a brace.
_HEADING_LINES: Final = 4
# The share of lines that a renamed function keeps: a bit more than Git's for renamed files, since functions are short.
_LIKENESS: Final = 0.6
_MOVED_LIKENESS: Final = 0.5
# Stubs of system calls that a configuration lacks.
_STUBS: Final = "kernel/sys_ni.c"
_OWN_NAME: Final = "\0"

ReadText = Callable[[str], Sequence[str]]
"""Returns the lines of a source file by its name in debug info, none where it is not at hand."""


class PairKind(str, Enum):
    """What makes two functions the same."""

    SAME = "same"
    """Name and file; the name alone where a build has no debug info of the function."""
    MOVED = "moved"
    """The name; the file is another one."""
    RENAMED = "renamed"
    """The text, or the pattern of its lines."""


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

    def pattern(self, place: int) -> tuple[int, ...]:
        """Return the lines of a function, counted from the first one."""
        lines = self.lines(place)
        return tuple(line - lines[0] for line in lines)

    def text(self, place: int) -> list[str]:
        """Return the text from a function's first line with a point to the last one, with its own name replaced.

        :return: empty where the source is not at hand.
        """
        lines = self.lines(place)
        whole = self.read_text(self.files[place]) if lines and self.files[place] else ()
        if not lines or lines[-1] > len(whole):
            # The source is older or newer than the build.
            return []
        name = self.names[place]
        return [line.strip().replace(name, _OWN_NAME) for line in whole[lines[0] - 1 : lines[-1]]]

    def begins_in(self, place: int, text: Sequence[str]) -> bool:
        """Return whether a text has the name of a function where its first point is, or in the lines before."""
        first = next(iter(self.lines(place)), 0)
        return any(self.names[place] in line for line in text[max(0, first - _HEADING_LINES) : first])


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

    def old_names(self) -> Mapping[str, str]:
        """Return the old name of each function that was renamed, by its new one."""
        renamed = (pair for pair in self._to_right.values() if pair.kind is PairKind.RENAMED)
        return {self._right.names[pair.right]: self._left.names[pair.left] for pair in renamed}

    def find_stale_files(self) -> set[str]:
        """Return the files of the left build whose text is the same in both builds although it cannot belong to both.

        Builds in one directory find the same sources, which at best are those of the later build. A function with the same
        lines at another place in the file shows that.
        """
        found: set[str] = set()
        for pair in self._to_right.values():
            file = self._left.files[pair.left]
            lines = self._left.lines(pair.left), self._right.lines(pair.right)
            if file in found or len(lines[0]) < _PATTERN_LINES or lines[0] == lines[1]:
                continue
            if self._left.pattern(pair.left) == self._right.pattern(pair.right):
                text = self._left.read_text(file) if file else ()
                if text and text == self._right.read_text(self._right.files[pair.right]):
                    found.add(file)
        return found

    def count_swapped(self) -> int:
        """Return how many functions begin where the sources of the other build have them, and not those of their own.

        0 unless they are more than those of which the contrary is true: then the sources are those of the other build.
        """
        found = {True: 0, False: 0}
        texts_of: dict[tuple[str, str], Sequence[Sequence[str]]] = {}
        for pair in self._to_right.values():
            places = (self._left, pair.left), (self._right, pair.right)
            files = self._left.files[pair.left], self._right.files[pair.right]
            if files not in texts_of:
                texts = self._left.read_text(files[0]), self._right.read_text(files[1])
                # Equal texts show nothing.
                texts_of[files] = texts if all(texts) and texts[0] != texts[1] else ()
            if not texts_of[files]:
                continue
            own, other = texts_of[files], texts_of[files][::-1]
            is_own = all(build.begins_in(place, text) for (build, place), text in zip(places, own, strict=True))
            is_other = all(build.begins_in(place, text) for (build, place), text in zip(places, other, strict=True))
            if is_own != is_other:
                found[is_other] += 1
        return found[True] if found[True] > found[False] else 0

    def add(self, left: Iterable[int], right: Iterable[int]) -> None:
        """Find the counterparts of some functions of both builds."""
        rest_left = [place for place in left if place not in self._to_right and not self._add_by_name(place, is_left=True)]
        rest_right = [place for place in right if place not in self._to_left and not self._add_by_name(place, is_left=False)]
        if rest_left or rest_right:
            self._add_renamed(rest_left, rest_right)

    def _add_pair(self, pair: FunctionPair) -> None:
        self._to_right[pair.left] = self._to_left[pair.right] = pair

    def _add_by_name(self, place: int, *, is_left: bool) -> bool:
        own, other = (self._left, self._right) if is_left else (self._right, self._left)
        if not own.names[place]:
            return False
        found, kind = other.by_key.get(own.keys[place]), PairKind.SAME
        if found is None:
            found = _find_moved(own, other, place)
            kind = PairKind.SAME if found is None or not (own.files[place] and other.files[found]) else PairKind.MOVED
        if found is None or found in (self._to_left if is_left else self._to_right):
            return False
        self._add_pair(FunctionPair(place, found, kind) if is_left else FunctionPair(found, place, kind))
        return True

    def _add_renamed(self, left: Sequence[int], right: Sequence[int]) -> None:
        """Find functions whose names are gone among those whose names are new."""
        gone = [place for name, places in self._left.by_name.items() if name not in self._right.by_name for place in places]
        new = [place for name, places in self._right.by_name.items() if name not in self._left.by_name for place in places]
        wanted = {*left}, {*right}
        gone_by_pattern = _by_pattern(self._left, gone)
        for pattern, candidates in _by_pattern(self._right, new).items():
            named = gone_by_pattern.get(pattern, ())
            if any(place in wanted[0] for place in named) or any(place in wanted[1] for place in candidates):
                self._add_alike(named, candidates, is_pattern=True)
        gone_by_file, new_by_file = _by_file(self._left, gone), _by_file(self._right, new)
        files = {self._left.keys[place][1] for place in left if place not in self._to_right}
        files |= {self._right.keys[place][1] for place in right if place not in self._to_left}
        for file in files & gone_by_file.keys() & new_by_file.keys():
            self._add_alike(gone_by_file[file], new_by_file[file], is_pattern=False)

    def _add_alike(self, left: Collection[int], right: Collection[int], *, is_pattern: bool) -> None:
        """Add the pairs whose texts are most alike.

        :param is_pattern: whether the patterns of their lines agree, which is enough for one function on each side.
        """
        left = [place for place in left if place not in self._to_right]
        right = [place for place in right if place not in self._to_left]
        if not left or not right:
            return
        texts = [{place: self._text(build, place) for place in places} for build, places in self._sides(left, right)]
        if is_pattern and len(left) == len(right) == 1 and not (texts[0][left[0]] and texts[1][right[0]]):
            is_here = self._left.keys[left[0]][1] == self._right.keys[right[0]][1]
            if is_here or len(self._left.lines(left[0])) >= _FOREIGN_PATTERN_LINES:
                self._add_pair(FunctionPair(left[0], right[0], PairKind.RENAMED))
            return
        scores = [
            (score, a, b)
            for a, mine in texts[0].items()
            for b, others in texts[1].items()
            if (score := _likeness(mine, others)) >= _LIKENESS
        ]
        for _, a, b in sorted(scores, key=lambda one: (-one[0], one[1:])):
            if a not in self._to_right and b not in self._to_left:
                self._add_pair(FunctionPair(a, b, PairKind.RENAMED))

    def _sides(self, left: Sequence[int], right: Sequence[int]) -> tuple[tuple[BuildFunctions, Sequence[int]], ...]:
        return (self._left, left), (self._right, right)

    def _text(self, build: BuildFunctions, place: int) -> list[str]:
        text = build.text(place)
        return text if len(text) >= _TEXT_LINES else []


def _by_file(functions: BuildFunctions, places: Iterable[int]) -> Mapping[str, Sequence[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for place in places:
        found[functions.keys[place][1]].append(place)
    return found


def _find_moved(own: BuildFunctions, other: BuildFunctions, place: int) -> int | None:
    """Return the one function of this name that only the other build has in its file, None where there are several."""
    name = own.names[place]
    mine = [one for one in own.by_name[name] if own.keys[one] not in other.by_key]
    found = [one for one in other.by_name.get(name, ()) if other.keys[one] not in own.by_key]
    if not len(mine) == len(found) == 1:
        # Static functions of one name: the file has moved to another directory.
        base = posixpath.basename(own.files[place])
        mine, found = (
            [one for one in places if posixpath.basename(build.files[one]) == base]
            for build, places in ((own, mine), (other, found))
        )
    return found[0] if len(mine) == len(found) == 1 and _may_be_same(own, place, other, found[0]) else None


def _may_be_same(own: BuildFunctions, place: int, other: BuildFunctions, found: int) -> bool:
    """Return whether functions of one name can be the same: a stub in another file stands for what a kernel lacks."""
    if _STUBS in (own.keys[place][1], other.keys[found][1]):
        return False
    if not own.files[place] or not other.files[found]:
        # Without debug info there is only the name.
        return True
    texts = own.text(place), other.text(found)
    if texts[0] and texts[1]:
        return _likeness(*texts, least=_MOVED_LIKENESS) >= _MOVED_LIKENESS
    sizes = sorted((len(own.lines(place)), len(other.lines(found))))
    return sizes[0] >= _MOVED_LIKENESS * sizes[1]


def _by_pattern(functions: BuildFunctions, places: Iterable[int]) -> Mapping[tuple[int, ...], Sequence[int]]:
    found: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for place in places:
        pattern = functions.pattern(place)
        if len(pattern) >= _PATTERN_LINES:
            found[pattern].append(place)
    return found


def _likeness(left: Sequence[str], right: Sequence[str], least: float = _LIKENESS) -> float:
    """Return the share of lines that two texts have in common, of the longer one; 0 where it cannot be at least so much."""
    longer, shorter = max(len(left), len(right)), min(len(left), len(right))
    if not shorter or shorter < least * longer:
        return 0.0
    if left == right:
        return 1.0
    return align(*number_lines(left, right)).common / longer


def number_lines(*texts: Sequence[str]) -> list[array[int]]:
    """Return texts as numbers, equal for equal lines."""
    numbers: dict[str, int] = {}
    return [array("Q", [numbers.setdefault(line, len(numbers) + 1) for line in text]) for text in texts]
