# SPDX-License-Identifier: LGPL-2.1-or-later
"""Source locations of PCs, and the loaded modules that PCs are in."""

from __future__ import annotations

import posixpath
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from kcovdbg.abi.record import Record


class Frame(NamedTuple):
    """One level of a location: a function, or one that was inlined into it."""

    function: str | None
    file: str | None
    """Relative to the build's root, without ".." inside."""
    line: int | None
    column: int | None


def normalize_path(path: str) -> str:
    """Return a path of debug info without "..", "." and empty components, but for the "./" that it
    may begin with.

    native/dwarf.c does so with paths that it reads.
    """
    if "/." not in path and "//" not in path:
        return path
    normal = posixpath.normpath(path)
    return f"./{normal}" if path.startswith("./") and not normal.startswith((".", "/")) else normal


_NOWHERE: Final = Frame(None, None, None, None)


class Location(NamedTuple):
    """The code at an address."""

    address: int
    frames: tuple[Frame, ...]
    """Innermost first."""
    remark: str | None = None
    """Why there are no frames, or why they are approximate."""
    approximate: bool = False
    """Whether a tail call was recorded whose function is unknown: the frames are its caller's."""
    mangled: str | None = None
    """The outermost frame's function as named in the image; None if the frame has that name."""

    @property
    def symbol(self) -> str | None:
        """The name in the image of the function into which the code was compiled."""
        return self.mangled or self.outermost.function

    @property
    def innermost(self) -> Frame:
        """The innermost frame; its members are None if there are no frames."""
        return self.frames[0] if self.frames else _NOWHERE

    @property
    def outermost(self) -> Frame:
        """The frame of the function into which the code was compiled; its members are None if there
        are no frames.
        """
        return self.frames[-1] if self.frames else _NOWHERE


NO_CHAIN: Final = 0
"""The chain of a PC that has no frames."""
KIND_BITS: Final = 3
KIND_MASK: Final = (1 << KIND_BITS) - 1
START_SHIFT: Final = 16
MAX_DEPTH: Final = (1 << START_SHIFT - KIND_BITS) - 1


class FrameColumns(NamedTuple):
    """The frames of chains.

    A chain is a word. From the lowest bit on, it has the kind of a point (3 bits), the number of
    frames (13), and the index of the innermost frame in ``chain_frame``. The members are arrays or
    views of 32-bit numbers; ``column`` has 16-bit numbers.
    """

    chain_frame: Sequence[int]
    """Numbers of frames, by which the next columns are indexed."""
    function: Sequence[int]
    """Number of a string."""
    file: Sequence[int]
    """Number of a string."""
    line: Sequence[int]
    """0 if it is unknown."""
    column: Sequence[int]
    """0 if it is unknown."""
    strings: Sequence[str | None]
    """The first stands for None; no other two are equal."""


def chain_word(kind: int, start: int, length: int) -> int:
    """Return the word of a chain."""
    return start << START_SHIFT | min(length, MAX_DEPTH) << KIND_BITS | kind


def frames_of_chain(columns: FrameColumns, chain: int) -> Sequence[int]:
    """Return the numbers of a chain's frames, innermost first."""
    start = chain >> START_SHIFT
    return columns.chain_frame[start : start + (chain >> KIND_BITS & MAX_DEPTH)]


class LocatedRecord(NamedTuple):
    """A record with its address and location."""

    record: Record
    address: int | None
    """PC plus KASLR offset; None if the record has no PC."""
    location: Location | None
    """None if the record has no PC, or only the page of a PC."""

    @property
    def symbol(self) -> str | None:
        """The function that the code was compiled into."""
        return None if self.location is None else self.location.symbol


def is_code_section(name: str) -> bool:
    """Return whether a section has code that stays. .init.text is freed, and another module may
    then be there.
    """
    return "text" in name and not name.startswith(".init")


class LoadedModule(NamedTuple):
    """The address of one loaded module; modules of one name and build ID have the same code."""

    name: str
    build_id: str | None
    """Hexadecimal."""
    size: int
    """Bytes that the module takes: no section of it is longer."""
    sections: tuple[tuple[str, int], ...]
    """Names and addresses of its sections with code."""

    @property
    def key(self) -> tuple[str, str | None]:
        """Unique key: name and build ID."""
        return self.name, self.build_id

    @property
    def span(self) -> tuple[int, int]:
        """The first address of its code, and one that is behind all of it."""
        starts = [address for _, address in self.sections]
        return min(starts), max(starts) + self.size

    def shift(self, offset: int) -> LoadedModule:
        """Return it with its addresses changed: minus the KASLR offset, they are as KCOV records
        PCs.
        """
        return self._replace(
            sections=tuple((name, address + offset) for name, address in self.sections)
        )


class ModuleMap:
    """Finds the modules that return addresses are in."""

    def __init__(self, modules: Iterable[LoadedModule]) -> None:
        sections = (
            (address, name, module) for module in modules for name, address in module.sections
        )
        self._sections = sorted(sections, key=itemgetter(0))
        self._starts = [start for start, _, _ in self._sections]

    def find(self, pc: int) -> tuple[LoadedModule, str, int] | None:
        """Return the module of a return address, the section, and the offset in the section; None
        if it is in no module.
        """
        index = bisect_left(self._starts, pc) - 1
        if index < 0:
            return None
        start, name, module = self._sections[index]
        if pc > start + module.size:
            return None
        return module, name, pc - start


def move_pcs(
    pcs: Iterable[int], old: Sequence[LoadedModule], new: Sequence[LoadedModule]
) -> tuple[dict[int, int], dict[int, str]]:
    """Move return addresses in modules to the places at which the modules are loaded now.

    :param pcs: distinct addresses.
    :return: the new address of each one that changes; and the name of the module for each one in a
        module that is not loaded.
    """
    modules = ModuleMap(old)
    starts = {(module.key, name): address for module in new for name, address in module.sections}
    moved: dict[int, int] = {}
    lacking: dict[int, str] = {}
    for pc in pcs:
        found = modules.find(pc)
        if found is None:
            continue
        module, section, offset = found
        start = starts.get((module.key, section))
        if start is None:
            lacking[pc] = module.name
        elif start + offset != pc:
            moved[pc] = start + offset
    return moved, lacking
