# SPDX-License-Identifier: LGPL-2.1-or-later
"""Locations in code that somebody wrote down: functions with an offset, and addresses, as in an oops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

from kcovdbg.abi.address import address_of, pc_of
from kcovdbg.console.context import Context
from kcovdbg.elf.file import ElfFile, open_image
from kcovdbg.elf.header import SHF_EXECINSTR
from kcovdbg.errors import KcovdbgError, TargetError
from kcovdbg.model.location import Location
from kcovdbg.records.oops_words import CodeWord
from kcovdbg.symbols.symbolizer import demangle_location


class FunctionStart(NamedTuple):
    """A function's code."""

    name: str
    pc: int
    """Of its first instruction, minus the KASLR offset."""
    size: int
    """In bytes."""
    room: int
    """Bytes up to the next symbol: what the kernel prints as the size, which includes padding."""


class WrittenLocation(NamedTuple):
    """A location that somebody wrote down, in this kernel."""

    word: CodeWord
    pc: int | None
    """None where this kernel has no such function."""
    address: int | None
    """With the KASLR offset."""
    location: Location
    errors: tuple[str, ...] = ()
    is_other_build: bool = False
    """Whether the function has another size here."""


class WrittenLocations:
    """Finds written locations in the code of a kernel.

    :param is_running: whether all addresses include the KASLR offset.
    """

    def __init__(self, context: Context, *, is_running: bool = False) -> None:
        self._target = context.target
        self._kernel = context.kernel
        self._is_running = is_running
        self.starts: Callable[[str, str | None], tuple[FunctionStart, ...]] = cache(self._find_starts)
        """Returns the functions with a name, of the image or of a module."""

    def find(self, word: CodeWord) -> Iterator[WrittenLocation]:
        """Yield the locations that a word can mean: one, or one for each function of a name that several have."""
        if word.address is not None:
            yield self._find_address(word, word.address)
            return
        assert word.function is not None
        starts = self.starts(word.function, word.module)
        fitting = [start for start in starts if not (word.size and start.size) or start.size <= word.size <= start.room]
        is_other = bool(starts) and not fitting
        for start in fitting or starts:
            errors = []
            if is_other:
                errors.append(f"its size is {start.size:#x} here, not {word.size:#x}: the vmlinux is another build's")
            elif start.size and word.offset > start.room:
                errors.append(f"the function ends at +{start.size:#x} here")
            if len(fitting or starts) > 1:
                errors.append(f"{len(fitting or starts)} functions have this name")
            pc = start.pc + word.offset
            yield self._make(word, pc, tuple(errors), is_other_build=is_other)
        if not starts:
            yield WrittenLocation(word, None, None, Location(0, ()), (self._explain_missing(word),))

    def _find_address(self, word: CodeWord, address: int) -> WrittenLocation:
        offset, names = self._target.kaslr_offset, self._kernel.names
        pc = pc_of(address, offset) if self._is_running else address
        if word.is_oops and offset and names[pc_of(address, offset)].frames and not names[address].frames:
            pc = pc_of(address, offset)
        return self._make(word, pc)

    def _make(self, word: CodeWord, pc: int, errors: tuple[str, ...] = (), *, is_other_build: bool = False) -> WrittenLocation:
        address = address_of(pc, self._target.kaslr_offset)
        is_recorded = word.function is None and not word.is_exact and not word.is_oops
        lines = self._kernel.lines
        # A coverage point's row may be of a function that recorded its caller by a tail call.
        frames = () if is_recorded or lines is None else tuple(lines.frames_at(address if word.is_exact else address - 1))
        # Names are of the instruction before an address.
        location = demangle_location(Location(address, frames)) if frames else self._kernel.names[pc + word.is_exact]
        if location.frames and not is_recorded:
            # That it is no coverage point says nothing about it.
            location = location._replace(remark=None, approximate=False)
        return WrittenLocation(word, pc, address, location, errors, is_other_build)

    def _explain_missing(self, word: CodeWord) -> str:
        if word.module is None:
            return f"this kernel has no function {word.function}"
        known = {place.name for place in self._kernel.modules or ()}
        if _module_name(word.module) in known:
            return f"module {word.module} has no function {word.function}, or its debug info is missing: -s {word.module}.ko"
        return f"module {word.module} is unknown: -s {word.module}.ko"

    def _find_starts(self, name: str, module: str | None) -> tuple[FunctionStart, ...]:
        if module is not None:
            return tuple(self._of_modules(name, _module_name(module)))
        return tuple(self._of_image(name)) or tuple(self._of_modules(name, None))

    def _of_image(self, name: str) -> Iterator[FunctionStart]:
        symbolizer, image = self._kernel.symbolizer, self._kernel.image
        table = None if symbolizer is None else symbolizer.table
        found_any = False
        for known in () if table is None else table.functions_named(name):
            if name in (known.name, known.alias):
                found_any = True
                yield FunctionStart(name, known.address, known.size, _with_padding(known.size))
        if found_any:
            return
        if image is None:
            try:
                found = self._target.symbol(name)
            except KcovdbgError:
                return
            yield FunctionStart(name, pc_of(found.address, self._target.kaslr_offset), found.size, found.size)
            return
        # The table has no labels of assembly.
        with open_image(image, self._kernel.code) as elf:
            yield from _functions_of(elf, name, lambda _section, address: address)

    def _of_modules(self, name: str, module: str | None) -> Iterator[FunctionStart]:
        files = self._kernel.module_files
        for place in self._kernel.modules or ():
            path = files.get(place.build_id or "")
            if path is None or module not in (None, place.name):
                continue
            starts = dict(place.sections)
            try:
                with ElfFile(path) as elf:
                    names = [section.name for section in elf.sections]

                    def locate(
                        section: int, address: int, names: list[str] = names, starts: dict[str, int] = starts
                    ) -> int | None:
                        start = starts.get(names[section]) if section < len(names) else None
                        return None if start is None else start + address

                    yield from _functions_of(elf, name, locate)
            except TargetError:
                continue


# Functions start at multiples of this, in kernels of any architecture.
_ALIGNMENT = 16


def _with_padding(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _module_name(name: str) -> str:
    return name.replace("-", "_")


def _functions_of(elf: ElfFile, name: str, locate: Callable[[int, int], int | None]) -> Iterator[FunctionStart]:
    """Yield the functions of a file with a name.

    :param locate: returns the PC of a symbol by its section and address, None where its section is not loaded.
    """
    for symbol in elf.symbols.find_containing(name):
        if symbol.name != name or symbol.section >= len(elf.sections) or not elf.sections[symbol.section].flags & SHF_EXECINSTR:
            continue
        pc = locate(symbol.section, symbol.address)
        if pc is not None:
            yield FunctionStart(name, pc, symbol.size, _with_padding(symbol.size))
