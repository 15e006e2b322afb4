# SPDX-License-Identifier: LGPL-2.1-or-later
"""A module's file, read as if it were linked to the addresses at which the module is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Final

from kcovdbg.abi.address import page_align
from kcovdbg.elf.file import LINKABLE, ElfFile, link_section
from kcovdbg.elf.header import SHF_ALLOC, SHN_LORESERVE, Section
from kcovdbg.elf.symbol_table import SymbolTable
from kcovdbg.errors import CapabilityError
from kcovdbg.input_file import PathName

# Bytes between code and data, and after data.
_GAP: Final = 1 << 16
# Bytes for each symbol of another file.
_EXTERNAL_SIZE: Final = 16
_ADDRESS_SPACE: Final = 1 << 64


class PlacedModule(ElfFile):
    """A relocatable file with addresses.

    Its data, and then the symbols of other files, get free addresses behind its code. Code without
    an address is left out: the kernel frees ``.init.text``.

    :param places: addresses of sections with code, by name.
    :raises CapabilityError: when the relocations of its machine are unknown.
    """

    def __init__(self, path: PathName, places: Mapping[str, int]) -> None:
        super().__init__(path)
        self._places = places
        self._linked: dict[int, bytes] = {}
        self._unplaced = ElfFile(path)
        if self.header.machine not in LINKABLE or not self.header.is_64bit:
            self.close()
            raise CapabilityError(
                f"{self.name}: relocations of {self.header.machine_name} are unknown"
            )

    def close(self) -> None:
        """Close the file; contents that were read stay usable."""
        self._unplaced.close()
        super().close()

    @property
    def is_relocatable(self) -> bool:
        """False, as it is read as a linked file."""
        return False

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """The section headers, with addresses."""
        return tuple(self._place_sections())

    def _place_sections(self) -> Iterator[Section]:
        sections, places = self._unplaced.sections, self._places
        texts = [section for section in sections if section.name in places]
        ends = [places[section.name] + section.size for section in texts]
        free = page_align(max(ends, default=0)) + _GAP
        for section in sections:
            if not section.flags & SHF_ALLOC:
                yield section
            elif section.name in places:
                yield section._replace(address=places[section.name])
            elif section.is_text:
                # Sections without flags are not loaded.
                yield section._replace(flags=0)
            else:
                yield section._replace(address=free)
                free = page_align(free + section.size)
            self._check_address(free)

    def _check_address(self, address: int) -> None:
        if address >= _ADDRESS_SPACE:
            raise self._damaged(f"something at the address {address:#x}")

    @cached_property
    def externals(self) -> Mapping[str, int]:
        """The addresses of symbols of other files, by name."""
        return {
            symbol.name: address or 0
            for symbol, address in zip(self._unplaced.symbols, self._addresses, strict=True)
            if symbol.name and not symbol.section
        }

    @cached_property
    def _addresses(self) -> list[int | None]:
        """The address of each symbol, None for a symbol in code that is left out."""
        end = max((section.address + section.size for section in self.sections), default=0)
        external = page_align(end) + _GAP
        left_out = {
            section.number
            for section, before in zip(self.sections, self._unplaced.sections, strict=True)
            if section.flags != before.flags
        }
        found: list[int | None] = []
        for symbol in self._unplaced.symbols:
            if not symbol.section:
                external += _EXTERNAL_SIZE
                found.append(external)
            elif symbol.section in left_out:
                found.append(None)
            elif symbol.section >= min(SHN_LORESERVE, len(self.sections)):
                found.append(symbol.address)
            else:
                address = self.sections[symbol.section].address + symbol.address
                self._check_address(address)
                found.append(address)
        self._check_address(external)
        return found

    @cached_property
    def symbols(self) -> SymbolTable:
        """The symbol table, with addresses."""
        return self._unplaced.symbols.place(self._addresses)

    def read_section(self, section: Section, limit: int | None = None) -> bytes:
        """Return the contents of a section, with relocations applied."""
        if section.number not in self._linked:
            address_of = self._addresses.__getitem__
            self._linked[section.number] = link_section(
                self._unplaced, section, section.address, address_of
            )
        return self._linked[section.number][:limit]

    def map_section(self, section: Section) -> bytes:
        """Return the contents of a section, which cannot be mapped from the file."""
        return self.read_section(section)

    def read(self, address: int, size: int) -> bytes:
        """Return the bytes at an address up to the end of its section, none outside of sections."""
        section = self.section_at(address)
        if section is None:
            return b""
        start = address - section.address
        return self.read_section(section)[start : start + size]
