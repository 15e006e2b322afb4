# SPDX-License-Identifier: LGPL-2.1-or-later
"""Finds functions by name in a kernel and its modules: their starts, and the sizes that the kernel
prints for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

from kcovdbg.abi.address import pc_of
from kcovdbg.elf.file import ElfFile, open_image
from kcovdbg.elf.header import SHF_EXECINSTR
from kcovdbg.elf.symbol_table import ElfSymbol, SymbolTable
from kcovdbg.errors import KcovdbgError, TargetError
from kcovdbg.model.location import LoadedModule
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.target.target import Target


class SectionPlace(NamedTuple):
    """A place in a module's file that has no address in the kernel: ``.init.text`` is freed."""

    path: str
    """The path of the module's file."""
    section: str
    offset: int


class FunctionStart(NamedTuple):
    """A function's code."""

    pc: int | None
    """Address of its first instruction, minus the KASLR offset; None if it is not loaded."""
    size: int
    """Size of its symbol in bytes, 0 if the symbol has none."""
    room: int | None
    """Bytes up to the next symbol, which the kernel prints as the size; None if no symbol follows
    in its section.
    """
    place: SectionPlace | None = None
    """Its place in its file, if it is not loaded."""

    def may_have_size(self, size: int) -> bool:
        """Return whether the kernel, or another program, may print this as the function's size."""
        return self.size <= size and (self.room is None or size <= self.room)


def plain_module_name(name: str) -> str:
    """Return the kernel's name of a module: it loads ``a-b.ko`` as ``a_b``."""
    return name.replace("-", "_")


# Link-time optimization appends this, and a number, to the name of a static function that it makes
# global.
_LTO_SUFFIX: Final = ".llvm."


def _printed_name(name: str) -> str:
    """Return a function's name as a kernel built by clang prints it: until v6.6, kernel/kallsyms.c
    cuts off the suffix.
    """
    return name.partition(_LTO_SUFFIX)[0]


def _names_of(symbol: ElfSymbol) -> tuple[str, str]:
    return symbol.name, _printed_name(symbol.name)


class FunctionFinder:
    """Finds functions by name.

    :param image: path of the image with debug info, if there is one.
    :param code: path of the stripped image, if the first file lacks the code.
    :param table: the location table of the image, if there is one.
    :param modules: the loaded modules, with addresses minus the KASLR offset.
    :param files: paths of modules' files, by build ID.
    """

    def __init__(
        self,
        target: Target,
        image: str | None,
        code: str | None,
        table: LocationTable | None,
        modules: Sequence[LoadedModule],
        files: Mapping[str, str],
    ) -> None:
        self._target = target
        self._image = image
        self._code = code
        self._table = table
        self._modules = modules
        self._files = files
        self._found: dict[tuple[str, str | None], tuple[FunctionStart, ...]] = {}

    def find(self, name: str, module: str | None) -> tuple[FunctionStart, ...]:
        """Return the functions with a name in a module or, without one, in the image; if the image
        has none, in any module.
        """
        key = name, module
        if key not in self._found:
            found = self.find_in_image(name) if module is None else ()
            self._found[key] = (*found,) or (*self._of_modules(name, module),)
        return self._found[key]

    def knows_module(self, module: str) -> bool:
        """Return whether a module is loaded, or its file was given."""
        return any(loaded.name == plain_module_name(module) for loaded in self._modules)

    @cached_property
    def _symbols(self) -> SymbolTable | None:
        if self._image is not None:
            with contextlib.suppress(TargetError), open_image(self._image, self._code) as elf:
                return elf.symbols
        return None

    def find_in_image(self, name: str) -> Sequence[FunctionStart]:
        """Return the functions of the image with a name, including labels of assembly and further
        names of a function.
        """
        known = () if self._table is None else self._table.functions_named(name)
        named = [one for one in known if name in (one.name, one.alias, _printed_name(one.name))]
        if named:
            return [self._start(one.address, one.size) for one in named]
        if self._image is not None:
            # The table has no labels of assembly.
            with contextlib.suppress(TargetError), open_image(self._image, self._code) as elf:
                symbols = self._symbols or elf.symbols
                labels = [
                    symbol
                    for symbol in symbols.find_containing(name)
                    if name in _names_of(symbol) and _is_code(elf, symbol)
                ]
                return [self._start(symbol.address, symbol.size) for symbol in labels]
        with contextlib.suppress(KcovdbgError):
            found = self._target.symbol(name)
            pc = pc_of(found.address, self._target.kaslr_offset)
            return [FunctionStart(pc, found.size, None)]
        return []

    def _start(self, address: int, size: int) -> FunctionStart:
        following = None
        if self._symbols is not None and len(self._symbols):
            following = self._symbols.next_start(address)
        elif self._table is not None:
            following = self._table.next_function(address)
        return FunctionStart(address, size, None if following is None else following - address)

    def _of_modules(self, name: str, module: str | None) -> Iterator[FunctionStart]:
        for loaded in self._modules:
            path = self._files.get(loaded.build_id or "")
            if path is not None and (module is None or plain_module_name(module) == loaded.name):
                with contextlib.suppress(TargetError), ElfFile(path) as elf:
                    yield from _functions_of(elf, path, name, dict(loaded.sections))


def _is_code(elf: ElfFile, symbol: ElfSymbol) -> bool:
    return symbol.section < len(elf.sections) and bool(
        elf.sections[symbol.section].flags & SHF_EXECINSTR
    )


def _functions_of(
    elf: ElfFile, path: str, name: str, starts: Mapping[str, int]
) -> Iterator[FunctionStart]:
    """Yield the functions of a module's file with a name.

    :param starts: of its sections that are loaded.
    """
    for symbol in elf.symbols.find_containing(name):
        if name not in _names_of(symbol) or not _is_code(elf, symbol):
            continue
        section = elf.sections[symbol.section]
        following = elf.symbols.next_start(symbol.address, symbol.section)
        # Behind the last function of a section is another section, or the end of a page.
        room = None if following is None else following - symbol.address
        start = starts.get(section.name)
        if start is not None:
            yield FunctionStart(start + symbol.address, symbol.size, room)
        else:
            yield FunctionStart(
                None, symbol.size, room, SectionPlace(path, section.name, symbol.address)
            )
