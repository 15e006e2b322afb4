# SPDX-License-Identifier: LGPL-2.1-or-later
"""Finds the source locations of many addresses of an image in its DWARF. Each unit is read once,
and all cores read.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from kcovdbg.elf.symbol_table import ElfSymbol, SymbolTable, demangle, strip_clone_suffix
from kcovdbg.model.location import Frame
from kcovdbg.symbols.branches import map_on_cores
from kcovdbg.symbols.dwarf_reader import NO_UNIT, DwarfReader, FoundRows, UnitContents
from kcovdbg.symbols.table_cache import Progress
from kcovdbg.symbols.table_rows import (
    LocationArrays,
    Locations,
    find_equal,
    find_run_starts,
    gather,
)

# Parts are small enough that all cores have work to the end.
_PART_BYTES: Final = 8 << 20


def _function_name(address: int, function: ElfSymbol | None, label: ElfSymbol | None) -> str | None:
    """Return the name, as in DWARF, of the function that contains an address; without a function,
    the name of the label before it.
    """
    if function is not None and address < function.address + function.size:
        return demangle(strip_clone_suffix(function.name))
    return None if label is None else label.name


class _Part(NamedTuple):
    """Addresses that are located together."""

    units: Sequence[int]
    """Numbers of units, for the reader of DWARF."""
    ends: Sequence[int]
    """The end of each unit's addresses."""
    addresses: array[int]


class _Run(NamedTuple):
    """Neighbors that are in the same unit."""

    unit: int
    start: int
    """Index of the first address."""
    end: int


def _find_runs(units: array[int]) -> list[_Run]:
    """Return the runs of a column of units, sorted by unit. A column for ascending addresses has
    far fewer runs than items.
    """
    starts = find_run_starts(units)
    ends = [*starts[1:], len(units)][: len(starts)]
    return sorted(_Run(units[start], start, end) for start, end in zip(starts, ends, strict=True))


def _plan_by_units(
    reader: DwarfReader, addresses: array[int], every_unit: bool
) -> tuple[list[_Part], list[_Run]]:
    """Return parts of whole units, and the runs of all addresses in the order of the parts; the
    addresses in no unit come last.

    :param every_unit: whether units without addresses are wanted.
    """
    runs = _find_runs(reader.find_units(addresses))
    by_unit: dict[int, list[_Run]] = {}
    for run in runs:
        by_unit.setdefault(run.unit, []).append(run)
    by_unit.pop(NO_UNIT, None)
    wanted = range(len(reader)) if every_unit else by_unit
    parts: list[_Part] = []
    units: list[int] = []
    ends: list[int] = []
    part = array("Q")
    size = 0
    for unit in wanted:
        for run in by_unit.get(unit, ()):
            part.extend(addresses[run.start : run.end])
        units.append(unit)
        ends.append(len(part))
        size += reader.unit_size(unit)
        if size >= _PART_BYTES:
            parts.append(_Part(units, ends, part))
            units, ends, part, size = [], [], array("Q"), 0
    if units:
        parts.append(_Part(units, ends, part))
    return parts, runs


def _find_outermost(locations: LocationArrays) -> array[int]:
    """Return the function of the outermost frame of each location, 0 for none; 1 for a location
    without frames.
    """
    # It is the last frame before the end. Only the first location has no frames.
    frames = gather(locations.chain_ends, array("I", [NO_UNIT]) + locations.chain_frames, NO_UNIT)
    return gather(frames, locations.frames[0::4], 1)


def _demangle(locations: Locations) -> Locations:
    """Return locations with the names of Rust functions as LLVM's tools print them. Two locations
    may then be equal.
    """
    text = locations.text()
    if not any(prefix in text or text.startswith(prefix[1:]) for prefix in (b"\0_R", b"\0_ZN")):
        return locations
    mangled = locations.arrays()
    names = "".join(f"{demangle(string)}\0" for string in mangled.strings())
    demangled = Locations()
    demangled.add(mangled._replace(text=names.encode("utf-8", "replace")), are_new=True)
    return demangled


def join_spellings(locations: LocationArrays) -> LocationArrays:
    """Return locations in which each file has one name: include/a.h, by way of a unit's
    "../include", is ./include/a.h in most units.
    """
    strings = locations.strings()
    # The number that replaces each number of a string; 0 is no string.
    numbers = array("I", range(len(strings) + 1))
    dotted = {text[2:]: number for number, text in enumerate(strings, 1) if text[:2] == "./"}
    for number, text in enumerate(strings, 1):
        if text in dotted:
            numbers[dotted[text]] = number
    frames = locations.frames[:]
    frames[1::4] = gather(frames[1::4], numbers, 0)
    return locations._replace(frames=frames)


class LocatedAddresses(NamedTuple):
    """Located addresses of an image, with the rows and definitions of its units."""

    chains: array[int]
    """The location of each address, by its number."""
    rows: Sequence[FoundRows]
    """The rows of line tables, in parts."""
    definitions: Sequence[Locations]
    """The definitions of functions as frames, in parts."""


class AddressLocator:
    """Locates addresses of an image, in threads that begin at once.

    :param reader: the reader of its debug info.
    :param symbols: its symbols.
    :param addresses: ascending.
    :param report: called with the progress, after each part.
    :param everything: whether rows of line tables and definitions are wanted as well.
    """

    def __init__(
        self,
        reader: DwarfReader,
        symbols: SymbolTable,
        addresses: array[int],
        report: Callable[[Progress], None],
        *,
        everything: bool = True,
    ) -> None:
        self._reader = reader
        self._everything = everything
        self._symbols = symbols
        self._report = report
        self._addresses = addresses
        self._parts, self._runs = _plan_by_units(reader, addresses, everything)
        self._made = map_on_cores(self._read, self._parts)
        self.locations = Locations()

    def _read(self, part: _Part) -> UnitContents:
        """Read the units of a part."""
        found = self._reader.read(*part, everything=self._everything)
        return found._replace(locations=_demangle(found.locations))

    def finish(self) -> LocatedAddresses:
        """Return the located addresses; the numbers of locations are those in ``locations``."""
        # Number 0 is the location without frames.
        chains = self.locations.add_frames([()]) * len(self._addresses)
        located = array("I")
        rows: list[FoundRows] = []
        definitions: list[Locations] = []
        for done, part in enumerate(self._made, 1):
            located += gather(part.chains, self.locations.add_all(part.locations), 0)
            rows.append(part.rows)
            definitions.append(part.definitions)
            self._report(Progress(done, len(self._parts)))
        at = 0
        for _, start, end in self._runs:
            if at == len(located):
                break
            chains[start:end] = located[at : at + end - start]
            at += end - start
        for index, number in self._complete_names(chains):
            chains[index] = number
        return LocatedAddresses(chains, rows, definitions)

    def _complete_names(self, chains: array[int]) -> Iterator[tuple[int, int]]:
        """Give functions without a name in DWARF, such as copies of identical functions, the names
        of their ELF symbols.

        :return: the indexes of their addresses, each with a new location.
        """
        found = self.locations.arrays()
        wanted = find_equal(gather(chains, _find_outermost(found), 1), 0)
        strings = [None, *found.strings()] if wanted else []
        addresses = array("Q", [self._addresses[index] for index in wanted])
        functions = self._symbols.find_each_before(addresses, functions_only=True)
        labels = self._symbols.find_each_before(addresses)
        completed = []
        for index, *symbols in zip(wanted, functions, labels, strict=True):
            chain = chains[index]
            start = found.chain_ends[chain - 1] if chain else 0
            frames = []
            for number in found.chain_frames[start : found.chain_ends[chain]]:
                of, file, line, position = found.frames[4 * number : 4 * number + 4]
                frames.append(Frame(strings[of], strings[file], line, position))
            function, label = symbols
            if not (frames[-1].file or "").endswith(".S"):
                label = None
            name = _function_name(self._addresses[index], function, label)
            frames[-1] = frames[-1]._replace(function=name)
            completed.append(frames)
        return zip(wanted, self.locations.add_frames(completed), strict=True)


def locate_addresses(
    reader: DwarfReader, symbols: SymbolTable, addresses: array[int]
) -> list[tuple[Frame, ...]]:
    """Return the frames of each address of an image, innermost first; none if debug info has no
    line.

    :param reader: the reader of its debug info.
    :param symbols: its symbols.
    :param addresses: ascending.
    :raises ElfError: when the file is damaged.
    """
    locator = AddressLocator(reader, symbols, addresses, lambda _: None, everything=False)
    numbers = locator.finish().chains
    found = join_spellings(locator.locations.arrays())
    strings = [None, *found.strings()]
    frames = []
    for at in range(0, len(found.frames), 4):
        function, file, line, position = found.frames[at : at + 4]
        frames.append(Frame(strings[function], strings[file], line or None, position or None))
    chains: list[tuple[Frame, ...]] = []
    start = 0
    for end in found.chain_ends:
        chain = tuple(frames[number] for number in found.chain_frames[start:end])
        # A name alone is no location.
        chains.append(chain if chain and chain[0].file else ())
        start = end
    return [chains[number] for number in numbers]
