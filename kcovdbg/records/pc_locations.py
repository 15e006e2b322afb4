# SPDX-License-Identifier: LGPL-2.1-or-later
"""Locations of recorded PCs: in columns for many PCs, with numbers of frames, functions and files;
in a cache for the PCs that are shown.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property, lru_cache
from typing import Final, Protocol, TypeAlias

from kcovdbg.abi.record import EXACT
from kcovdbg.compiled_module import zeros
from kcovdbg.elf.symbol_table import demangle
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.location import KIND_MASK, Frame, FrameColumns, Location, chain_word
from kcovdbg.records.native_loops import (
    NO_ID,
    FoundChains,
    Numbering,
    find_chains,
    find_innermost,
    find_outermost,
)
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.symbolizer import NOT_A_POINT
from kcovdbg.symbols.table_rows import combine_flags, gather

_LOW: Final = 1 if sys.byteorder == "big" else 0
_NO_FRAMES: Final = FrameColumns(
    array("I"), array("I"), array("I"), array("I"), array("I"), (None,)
)


def pair_words(high: Sequence[int], low: Sequence[int]) -> array[int]:
    """Return 64-bit words of two columns of 32-bit numbers."""
    halves = zeros("I", 2 * len(low))
    halves[_LOW::2] = _copy(low)
    halves[1 - _LOW :: 2] = _copy(high)
    words = array("Q")
    words.frombytes(memoryview(halves).cast("B"))
    return words


def low_halves(words: array[int]) -> array[int]:
    """Return the lower 32 bits of 64-bit words."""
    halves = array("I")
    halves.frombytes(memoryview(words).cast("B"))
    return halves[_LOW::2]


def low_bytes(words: Sequence[int]) -> bytes:
    """Return the lowest 8 bits of words, of an array or a view."""
    view = memoryview(words)  # type: ignore[arg-type]
    return bytes(view.cast("B")[(view.itemsize - 1) * _LOW :: view.itemsize])


def _copy(column: Sequence[int]) -> array[int]:
    if isinstance(column, array):
        return column
    copied = array("I")
    copied.frombytes(memoryview(column).cast("B"))  # type: ignore[arg-type]
    return copied


def kind_flags(chains: Sequence[int], kinds: Iterable[PointKind]) -> bytes:
    """Return for each chain whether its PC is of one of these kinds, 0 or 1."""
    wanted = frozenset(map(int, kinds))
    return low_bytes(chains).translate(bytes(byte & KIND_MASK in wanted for byte in range(256)))


class FrameGroups:
    """The functions and files of frames; frames of one function in one file share a group.

    :param frames: any columns.
    """

    def __init__(self, frames: FrameColumns) -> None:
        self._strings = frames.strings
        words = pair_words(frames.function, frames.file)
        numbering = Numbering()
        distinct = numbering.number(words)
        self.of_frame: array[int] = numbering.ids(words)
        """The number of each frame's group."""
        self.file: array[int] = low_halves(distinct)
        """The number of each group's file, 0 where it is unknown."""
        self.function: array[int] = array("I", [word >> 32 for word in distinct])
        """The number of each group's function, 0 where it is unknown."""

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self.file)

    def frames(self) -> Iterable[Frame]:
        """Iterate over the groups as frames without a line."""
        strings = self._strings
        for function, file in zip(self.function, self.file, strict=True):
            yield Frame(strings[function], strings[file], None, None)


@dataclass(eq=False)
class PcColumns:
    """PCs and where they are."""

    pcs: array[int]
    """The PCs, ascending. Type code Q."""
    chains: array[int]
    """The chain of each PC. Type code Q. Kind TAIL stands for an approximate location."""
    frames: FrameColumns
    """The frames that chains refer to."""
    table: LocationTable | None
    """The location table; None where there is none."""
    seen: bytearray
    """For each row of the table, 1 if it has one of the PCs, otherwise 0."""
    unlisted: Sequence[int] = ()
    """Indexes of the PCs that the table lacks; empty without a table."""

    def __len__(self) -> int:
        """Return the number of PCs."""
        return len(self.pcs)

    @cached_property
    def groups(self) -> FrameGroups:
        """The functions and files of all frames."""
        return FrameGroups(self.frames)

    @cached_property
    def approximate(self) -> bytes:
        """Whether each PC's location is approximate, 0 or 1."""
        return kind_flags(self.chains, (PointKind.TAIL,))

    @property
    def located(self) -> bytes:
        """Whether each PC has frames, approximate ones included: 0 or 1."""
        return combine_flags(self.frames, self.chains, b"\1" * len(self.frames.line))

    def symbols(self) -> array[int]:
        """Return the number of the name of the function that each PC was compiled into, 0 where it
        is unknown.
        """
        return gather(find_outermost(self.frames, self.chains), self.frames.function, 0)

    def files(self) -> array[int]:
        """Return the number of the name of the file of each PC's innermost frame, 0 where it is
        unknown.
        """
        return gather(find_innermost(self.frames, self.chains), self.frames.file, 0)

    def innermost_groups(self, chains: array[int]) -> array[int]:
        """Return the group of each chain's innermost frame, :data:`NO_ID` where it has none."""
        return gather(find_innermost(self.frames, chains), self.groups.of_frame, NO_ID)

    def outermost_groups(self, chains: array[int]) -> array[int]:
        """Return the group of each chain's outermost frame, :data:`NO_ID` where it has none."""
        return gather(find_outermost(self.frames, chains), self.groups.of_frame, NO_ID)

    def find_flags(self, flags_of: Callable[[Frame], int]) -> bytes:
        """Return for each PC what a function returns for its frames without their lines, 0 to 255,
        combined by "or".
        """
        of_groups = bytes(map(flags_of, self.groups.frames()))
        return combine_flags(
            self.frames, self.chains, bytes(map(of_groups.__getitem__, self.groups.of_frame))
        )


def _add_locations(
    chains: array[int], indexes: Sequence[int], frames: FrameColumns, locations: Sequence[Location]
) -> tuple[array[int], FrameColumns]:
    """Return chains and frames with the chains and frames of some locations added."""
    strings = list(frames.strings)
    numbers = {text: number for number, text in enumerate(strings) if text is not None}

    def number_string(text: str | None) -> int:
        if text is None:
            return 0
        if text not in numbers:
            numbers[text] = len(strings)
            strings.append(text)
        return numbers[text]

    chain_frame, function, file, line = (_copy(column)[:] for column in frames[:4])
    column = array("I", frames.column)
    starts: dict[tuple[Frame, ...], int] = {}
    found = chains[:]
    for index, location in zip(indexes, locations, strict=True):
        start = starts.get(location.frames)
        if start is None:
            start = starts[location.frames] = len(chain_frame)
            for frame in location.frames:
                chain_frame.append(len(function))
                function.append(number_string(frame.function))
                file.append(number_string(frame.file))
                line.append(frame.line or 0)
                column.append(frame.column or 0)
        kind = PointKind.TAIL if location.approximate else PointKind.PC
        found[index] = chain_word(kind, start, len(location.frames))
    return found, FrameColumns(chain_frame, function, file, line, column, strings)


Locate: TypeAlias = Callable[[Sequence[int]], Sequence[Location]]
"""Returns the locations of recorded PCs (return addresses minus the KASLR offset), in the same
order.
"""

UNKNOWN: Final = "?"
"""The function of a PC that has no name."""


def is_pattern(text: str) -> bool:
    """Return whether a name is a pattern, as of :mod:`fnmatch`."""
    return any(character in text for character in "*?[")


@lru_cache(64)
def name_matcher(name: str) -> Callable[[str], bool]:
    """Return a test whether a function has a name, or matches a pattern.

    Names of Rust may be mangled or not; they have brackets and asterisks that are no pattern.
    """
    wanted = (name, demangle(name))
    matches = re.compile(translate(name)).fullmatch if is_pattern(name) else lambda _: None

    def has_name(function: str) -> bool:
        shown = demangle(function)
        return function in wanted or shown == name or matches(shown) is not None

    return has_name


class OtherCode(Protocol):
    """The code of a kernel's modules, which its location table does not have."""

    def find_code(self, name: str) -> range | None:
        """Return the code of the symbol with a name, without the KASLR offset; None where there is
        none.
        """

    def has_function(self, name: str) -> bool:
        """Return whether debug info has a function with a name, which may be inlined everywhere."""

    def has_file(self, path: str) -> bool:
        """Return whether a module has code of a file or directory, or of one that matches a
        pattern.
        """


def _as_exact(location: Location) -> Location:
    """Return the location of an executed address, given the location of the PC behind it."""
    address = location.address - EXACT.lead
    if location.remark == NOT_A_POINT:
        return location._replace(address=address, remark=None, approximate=False)
    return location._replace(address=address)


class LocationCache:
    """Cached locations of recorded PCs.

    :param locate: looks up locations.
    :param find_table: returns the location table that they are looked up in, None while there is
        none.
    :param other: the code that the table does not have; None where nothing is known of it.
    """

    def __init__(
        self,
        locate: Locate,
        find_table: Callable[[], LocationTable | None] = lambda: None,
        other: OtherCode | None = None,
    ) -> None:
        self._locate = locate
        self._find_table = find_table
        self.other = other
        self._known: dict[int, Location] = {}
        self._last_columns: PcColumns | None = None

    @property
    def table(self) -> LocationTable | None:
        """The location table, None while there is none."""
        return self._find_table()

    def find_code(self, name: str) -> Sequence[range]:
        """Return the code of the symbols of functions that have a name, or match a pattern, with
        addresses as in the image.
        """
        table = self.table
        symbols = () if table is None else table.find_functions(name_matcher(name))
        if symbols or is_pattern(name):
            return [range(symbol.address, symbol.address + symbol.size) for symbol in symbols]
        found = None if self.other is None else self.other.find_code(name)
        return [] if found is None else [found]

    def of(self, buffer: Buffer) -> LocationCache:
        """Return the locations of the PCs of a buffer. Executed addresses need not be points, and
        their locations are exact nevertheless.
        """
        return self._exact if buffer.encoding.codec.is_exact else self

    @cached_property
    def _exact(self) -> LocationCache:
        def locate(pcs: Sequence[int]) -> Sequence[Location]:
            return list(map(_as_exact, self._locate(pcs)))

        return LocationCache(locate, self._find_table, self.other)

    def prefetch(self, pcs: Iterable[int]) -> None:
        """Look up all PCs that are not cached, in one batch; 0 stands for none."""
        # Lookups in debug info are fastest in ascending order.
        wanted = sorted({*pcs}.difference(self._known, (0,)))
        if wanted:
            self._known.update(zip(wanted, self._locate(wanted), strict=True))

    def columns(self, pcs: array[int]) -> PcColumns:
        """Return where PCs are, as columns; only the last ones are cached.

        :param pcs: ascending; type code Q.
        """
        table, last = self.table, self._last_columns
        if last is None or last.table is not table or last.pcs != pcs:
            self._last_columns = last = self._find_columns(pcs, table)
        return last

    def _find_columns(self, pcs: array[int], table: LocationTable | None) -> PcColumns:
        frames = _NO_FRAMES
        unlisted: Sequence[int] = ()
        if table is None:
            everything = array("I", range(len(pcs)))
            found = FoundChains(zeros("Q", len(pcs)), everything, bytearray())
        else:
            frames = table.columns.frames
            found = find_chains(pcs, table.columns)
            unlisted = found.rest
        chains = found.chains
        if found.rest:
            locations = self._locate([pcs[index] for index in found.rest])
            chains, frames = _add_locations(chains, found.rest, frames, locations)
        return PcColumns(pcs, chains, frames, table, found.seen, unlisted)

    def __getitem__(self, pc: int) -> Location:
        """Return the location of a PC."""
        found = self._known.get(pc)
        if found is None:
            (found,) = self._locate((pc,))
            self._known[pc] = found
        return found

    def frame(self, pc: int) -> Frame:
        """Return the innermost frame; its members are None if the location is unknown."""
        return self[pc].innermost

    def symbol(self, pc: int) -> str:
        """Return the function into which the code was compiled: the outermost frame's."""
        return self[pc].outermost.function or UNKNOWN
