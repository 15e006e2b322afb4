# SPDX-License-Identifier: LGPL-2.1-or-later
"""Numbered source locations: chains of frames, as arrays, since a kernel has a million of them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

from kcovdbg.errors import KcovdbgError
from kcovdbg.model.location import Frame


class LocationError(KcovdbgError):
    """Numbered locations are damaged."""


class LocationArrays(NamedTuple):
    """Locations, counted from 0."""

    text: bytes
    """The strings, each with a terminating zero; they are counted from 1."""
    frames: array[int]
    """Function, file, line and column of each frame; the first two are strings; 0 for none."""
    chain_ends: array[int]
    """Where the frames of each location end."""
    chain_frames: array[int]
    """Numbers of frames, innermost first."""

    def strings(self) -> list[str]:
        """Return the strings."""
        return self.text.decode("utf-8", "replace").split("\0")[:-1]


class Locations(Protocol):
    """A set of locations that others are added to."""

    def add(self, more: LocationArrays) -> Sequence[int]:
        """Add locations; return the number that each of them has here."""

    def common(self, groups: Iterable[Sequence[int]]) -> list[int]:
        """Return what the locations of each group have in common: all of it, or the outermost function alone, or nothing."""

    def arrays(self) -> LocationArrays:
        """Return what there is."""


class PythonLocations:
    """:class:`Locations` without the compiled module."""

    def __init__(self) -> None:
        self._strings: dict[str, int] = {}
        self._frames: dict[tuple[int, int, int, int], int] = {}
        self._chains: dict[tuple[int, ...], int] = {}

    def _string(self, text: str | None) -> int:
        # Zeros separate strings.
        return 0 if text is None else self._strings.setdefault(text.replace("\0", ""), len(self._strings) + 1)

    def add_chain(self, frames: Iterable[Frame]) -> int:
        """Add one location; return its number."""
        known = self._frames
        chain = tuple(
            [
                known.setdefault((self._string(name), self._string(file), line or 0, column or 0), len(known))
                for name, file, line, column in frames
            ]
        )
        return self._chains.setdefault(chain, len(self._chains))

    def add(self, more: LocationArrays) -> Sequence[int]:
        """Add locations; return the number that each of them has here.

        :raises LocationError: when they are damaged.
        """
        ends = list(more.chain_ends)
        if ends != sorted(ends) or (ends and ends[-1] > len(more.chain_frames)) or more.text[-1:] not in (b"", b"\0"):
            raise LocationError("numbers out of range")
        strings = [0, *map(self._string, more.strings())]
        known, chains = self._frames, self._chains
        fields = iter(more.frames)
        try:
            frames = [
                known.setdefault((strings[name], strings[file], line, column), len(known))
                for name, file, line, column in zip(fields, fields, fields, fields, strict=True)
            ]
            return [
                chains.setdefault(tuple([frames[number] for number in more.chain_frames[start:end]]), len(chains))
                for start, end in pairwise((0, *ends))
            ]
        except (IndexError, ValueError):
            raise LocationError("numbers out of range") from None

    def common(self, groups: Iterable[Sequence[int]]) -> list[int]:
        """Return what the locations of each group have in common: all of it, or the outermost function alone, or nothing."""
        frames, known = list(self._frames), list(self._chains)
        numbers: list[int] = []
        for group in groups:
            if len(set(group)) == 1:
                numbers.append(group[0])
                continue
            outer = {(*frames[known[chain][-1]][:2], 0, 0) for chain in group if known[chain]}
            found = (self._frames.setdefault(outer.pop(), len(self._frames)),) if len(outer) == 1 else ()
            numbers.append(self._chains.setdefault(found, len(self._chains)))
        return numbers

    def arrays(self) -> LocationArrays:
        """Return what there is."""
        ends, numbers = array("I"), array("I")
        for chain in self._chains:
            numbers.extend(chain)
            ends.append(len(numbers))
        text = "".join(f"{string}\0" for string in self._strings).encode("utf-8", "replace")
        return LocationArrays(text, array("I", [field for frame in self._frames for field in frame]), ends, numbers)
