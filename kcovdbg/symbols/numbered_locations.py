# SPDX-License-Identifier: LGPL-2.1-or-later
"""Numbered source locations: chains of frames, as arrays, since a kernel has a million of them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from kcovdbg.compiled_module import column, load_native, zeros
from kcovdbg.errors import CapabilityError, KcovdbgError
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


def check_status(status: int) -> None:
    """Raise what a function of native/locations.h or native/dwarf.h says.

    :raises CapabilityError: when the locations take more memory than there is, or than those of any kernel.
    :raises LocationError: when they are damaged.
    """
    if status == -1:
        raise CapabilityError("its debug info has more locations than fit into memory")
    if status < 0:
        raise LocationError("numbers out of range")


class Locations:
    """A set of locations that others are added to, kept in C."""

    def __init__(self) -> None:
        ffi, lib = load_native()
        self.pointer = lib.kcovdbg_locations_new()
        if self.pointer == ffi.NULL:
            raise MemoryError
        self.pointer = ffi.gc(self.pointer, lib.kcovdbg_locations_free)

    def arrays(self) -> LocationArrays:
        """Return a copy of what there is."""
        ffi, lib = load_native()
        found = ffi.new("struct kcovdbg_location_arrays *")
        lib.kcovdbg_locations_arrays(self.pointer, found)

        def copy(pointer: Any, count: int) -> array[int]:
            numbers = array("I")
            if count:
                numbers.frombytes(ffi.buffer(pointer, 4 * count))
            return numbers

        text = bytes(ffi.buffer(found.text, found.text_size)) if found.text_size else b""
        return LocationArrays(
            text,
            copy(found.frames, 4 * found.frame_count),
            copy(found.chain_ends, found.chain_count),
            copy(found.chain_frames, found.chain_frame_count),
        )

    def add(self, more: LocationArrays) -> array[int]:
        """Add locations; return the number that each of them has here.

        :raises LocationError: when they are damaged.
        """
        ffi, lib = load_native()
        given = ffi.new("struct kcovdbg_location_arrays *")
        text = ffi.from_buffer(more.text)
        if len(more.frames) % 4:
            raise LocationError("numbers out of range")
        pointers = [column("I", numbers, len(numbers)) for numbers in more[1:]]
        given.text, given.text_size = text, len(more.text)
        given.frames, given.frame_count = pointers[0], len(more.frames) // 4
        given.chain_ends, given.chain_count = pointers[1], len(more.chain_ends)
        given.chain_frames, given.chain_frame_count = pointers[2], len(more.chain_frames)
        numbers = zeros("I", len(more.chain_ends))
        check_status(lib.kcovdbg_locations_add(self.pointer, given, column("I", numbers, len(numbers))))
        return numbers

    def common(self, groups: Iterable[Sequence[int]]) -> list[int]:
        """Return what the locations of each group have in common: all of it, or the outermost function alone, or nothing."""
        _, lib = load_native()
        numbers = zeros("I", 1)
        common = column("I", numbers, 1)
        found = []
        for group in groups:
            check_status(lib.kcovdbg_locations_common(self.pointer, group, len(group), common))
            found.append(numbers[0])
        return found

    def add_frames(self, chains: Iterable[Iterable[Frame]]) -> array[int]:
        """Add locations as chains of frames, innermost first; return the number that each of them has here."""
        strings: dict[str, int] = {}
        frames, ends, numbers = array("I"), array("I"), array("I")

        def string(text: str | None) -> int:
            # Zeros separate strings.
            return 0 if text is None else strings.setdefault(text.replace("\0", ""), len(strings) + 1)

        for chain in chains:
            for name, file, line, place in chain:
                numbers.append(len(numbers))
                frames.extend((string(name), string(file), line or 0, place or 0))
            ends.append(len(numbers))
        text = "".join(f"{string}\0" for string in strings).encode("utf-8", "replace")
        return self.add(LocationArrays(text, frames, ends, numbers))
