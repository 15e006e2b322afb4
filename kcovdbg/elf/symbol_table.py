# SPDX-License-Identifier: LGPL-2.1-or-later
"""The symbol table of a file, kept as columns because a kernel has tens of thousands of symbols."""

from __future__ import annotations

import re
import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, compress
from typing import Final, NamedTuple

from kcovdbg.compiled_module import column, load_native, zeros
from kcovdbg.elf.header import (
    SHN_ABS,
    SHN_LORESERVE,
    SHN_UNDEF,
    Header,
    damaged,
    decode_name,
    string_at,
)

_STT_NOTYPE: Final = 0
_STT_OBJECT: Final = 1
_STT_FUNC: Final = 2
_STT_GNU_IFUNC: Final = 10
# The types of symbols of code or data; symbols of assembly have no type.
_NAMING: Final = frozenset({_STT_NOTYPE, _STT_OBJECT, _STT_FUNC, _STT_GNU_IFUNC})
# ELF64_ST_TYPE() of each byte.
_TYPE_OF_INFO: Final = bytes(info & 0xF for info in range(256))
_IS_FUNCTION: Final = bytes(kind == _STT_FUNC for kind in range(256))
_MAX_NESTING: Final = 64
# native/symbol_columns.h: a name is outside the string table.
_OUTSIDE: Final = (1 << 64) - 1
# Suffixes that compilers append to the names of changed and split functions; names in DWARF have
# none.
_CLONE_SUFFIX: Final = re.compile(r"(?: \()?\.(?:isra|constprop|part|cold|lto_priv|llvm)\b.*")
# In the name of the cold part of a function.
_COLD: Final = ".cold"

# Symbols that the kernel's own table lacks: scripts/mksysmap, since v2.6.23 for labels, since v6.1
# for the others.
_NOT_IN_KALLSYMS: Final = re.compile(
    r"(?:__pi_|__kvm_nvhe_)?(?:\$|\.L|__kcfi_typeid_)|L0$|__efistub_|__crc_|__kstrtab(?:ns)?_"
    r"|__[A-Za-z0-9]{0,40}Thunk_"
    r"|_SDA2?_BASE_$"
)
_NOT_IN_KALLSYMS_ENDS: Final = ("_from_arm", "_from_thumb", "_veneer")


def strip_clone_suffix(name: str) -> str:
    """Return a function's name in the source, without ``.isra.0``, ``.part.1``, ``.cold`` and the
    like.
    """
    return _CLONE_SUFFIX.sub("", name)


def is_mangled(name: str) -> bool:
    """Return whether a name looks like a mangled name of Rust."""
    return name.startswith(("_R", "_ZN"))


def demangle(name: str) -> str:
    """Return the name of a Rust function as LLVM's tools print it; other and damaged names are
    returned unchanged.
    """
    if not is_mangled(name):
        return name
    # Few kernels have code in Rust.
    from kcovdbg.elf.rust_names import demangle_rust

    return demangle_rust(name)


class ElfSymbol(NamedTuple):
    """An entry of the symbol table."""

    name: str
    address: int
    """Its address as linked, or its offset in its section in a relocatable file."""
    size: int
    """Size in bytes."""
    is_function: bool
    section: int
    """Index of its section, 0 when the file does not define it."""


class FunctionColumns(NamedTuple):
    """The symbols of functions, in the order of the table."""

    names: Sequence[str]
    addresses: Sequence[int]
    sizes: Sequence[int]
    """0 for some symbols of assembly."""
    by_address: Sequence[int]
    """Indexes, by address and then in the order of the table."""

    def find_between(self, start: int, end: int) -> Sequence[int]:
        """Return the indexes of the functions from one address up to another, by address."""
        key = self.addresses.__getitem__
        first = bisect_left(self.by_address, start, key=key)
        return self.by_address[first : bisect_left(self.by_address, end, key=key)]

    def find_whole(self) -> Mapping[int, int]:
        """Return the function that each cold part was split from, both by index.

        Functions of several files share names. The symbols of one file are near each other.
        """
        cold: dict[int, str] = {}
        for index, name in enumerate(self.names):
            if _COLD in name:
                cold[index] = name.partition(_COLD)[0]
        if not cold:
            return {}
        wanted = set(cold.values())
        by_name: defaultdict[str, list[int]] = defaultdict(list)
        for index, name in enumerate(self.names):
            if name in wanted and self.sizes[index]:
                by_name[name].append(index)
        found: dict[int, int] = {}
        for part, name in cold.items():
            if name in by_name:
                found[part] = min(by_name[name], key=lambda other: abs(other - part))
        return found


def _order(numbers: Sequence[int]) -> list[int]:
    """Return the indexes of 64-bit numbers in ascending order of the numbers."""
    _, lib = load_native()
    count = len(numbers)
    order = zeros("I", count)
    given = column("Q", array("Q", numbers), count)
    if lib.kcovdbg_order(given, count, column("I", order, count)):
        raise MemoryError
    return order.tolist()


class _Layout(NamedTuple):
    """Size of an entry, and the places of its members, counted in each member's own size."""

    size: int
    value_code: str
    info: int
    section: int


# Elf64_Sym: name, info, other, section, value, size. Elf32_Sym: name, value, size, info, other,
# section.
_LAYOUT_64: Final = _Layout(24, "Q", 4, 3)
_LAYOUT_32: Final = _Layout(16, "I", 12, 7)
_VALUE: Final = 1
_SIZE: Final = 2


class SymbolTable:
    """The symbols of a file.

    :param strings: the string table of their names.
    :raises ElfError: when the table does not consist of whole entries; all methods raise it when a
        name is outside ``strings``.
    """

    def __init__(self, data: bytes, strings: bytes, header: Header, file_name: str) -> None:
        self._layout = _LAYOUT_64 if header.is_64bit else _LAYOUT_32
        if len(data) % self._layout.size:
            problem = f"a symbol table of {len(data)} bytes, {self._layout.size} for each symbol"
            raise damaged(file_name, problem)
        self._data = data
        self._header = header
        self._strings = strings
        self._must_swap = header.big_endian != (sys.byteorder == "big")
        self._file_name = file_name
        self._kallsyms: dict[int | None, tuple[array[int], array[int]]] = {}

    def _column(self, code: str, first: int) -> array[int]:
        members = array(code)
        members.frombytes(self._data)
        column = members[first :: self._layout.size // members.itemsize]
        if self._must_swap:
            column.byteswap()
        return column

    @cached_property
    def _names(self) -> array[int]:
        return self._column("I", 0)

    @cached_property
    def _types(self) -> bytes:
        return self._data[self._layout.info :: self._layout.size].translate(_TYPE_OF_INFO)

    @cached_property
    def _sections(self) -> array[int]:
        return self._column("H", self._layout.section)

    @cached_property
    def _addresses(self) -> array[int]:
        return self._column(self._layout.value_code, _VALUE)

    @cached_property
    def _sizes(self) -> array[int]:
        return self._column(self._layout.value_code, _SIZE)

    def place(self, addresses: Sequence[int | None]) -> SymbolTable:
        """Return the table of a 64-bit relocatable file with other addresses.

        Symbols of other files become absolute, symbols without an address undefined.

        :param addresses: the address of each symbol, in the order of the table.
        """
        data = bytearray(self._data)
        # Elf64_Sym.
        layout = struct.Struct(f"{'>' if self._header.big_endian else '<'}IBBHQQ")
        for index, address in enumerate(addresses):
            name, info, other, section, _, size = layout.unpack_from(data, index * layout.size)
            section = section or SHN_ABS
            if address is None:
                section = info = SHN_UNDEF
            row = (name, info, other, section, address or 0, size)
            layout.pack_into(data, index * layout.size, *row)
        return SymbolTable(bytes(data), self._strings, self._header, self._file_name)

    def __len__(self) -> int:
        """Return the number of symbols."""
        return len(self._data) // self._layout.size

    def __iter__(self) -> Iterator[ElfSymbol]:
        """Iterate over all symbols in the order of the table."""
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: int) -> ElfSymbol:
        """Return a symbol by its index."""
        name = self._name_at(self._names[index])
        is_function = self._types[index] == _STT_FUNC
        return ElfSymbol(
            name, self._addresses[index], self._sizes[index], is_function, self._sections[index]
        )

    def functions(self) -> Iterator[ElfSymbol]:
        """Iterate over the symbols of functions in the order of the table."""
        return map(self.__getitem__, self._function_indexes())

    def _function_indexes(self) -> Iterator[int]:
        return compress(range(len(self)), self._types.translate(_IS_FUNCTION))

    @cached_property
    def function_columns(self) -> FunctionColumns:
        """The functions in columns, which take less time than :meth:`functions`."""
        are_functions = self._types.translate(_IS_FUNCTION)
        names = self._names_at(array("I", compress(self._names, are_functions)))
        addresses = list(compress(self._addresses, are_functions))
        sizes = list(compress(self._sizes, are_functions))
        return FunctionColumns(names, addresses, sizes, _order(addresses))

    def _names_at(self, offsets: array[int]) -> list[str]:
        """Return the names at offsets of the string table."""
        ffi, lib = load_native()
        text, count = self._strings, len(offsets)
        given = (ffi.from_buffer(text), len(text), column("I", offsets, count), count)
        size = lib.kcovdbg_join_strings(*given, ffi.NULL, 0)
        if size == _OUTSIDE:
            problem = "a name of a function is outside the string table"
            raise damaged(self._file_name, problem)
        joined = zeros("B", size)
        lib.kcovdbg_join_strings(*given, ffi.from_buffer("char[]", joined), size)
        return decode_name(joined.tobytes()).split("\0")[:-1]

    def find_containing(self, *texts: str) -> Iterator[ElfSymbol]:
        """Iterate over the symbols whose names contain one of some texts."""
        offsets: set[int] = set()
        for position in chain.from_iterable(map(self._find_string, map(str.encode, texts))):
            # A name may start inside of another one.
            offsets.update(range(self._strings.rfind(b"\0", 0, position) + 1, position + 1))
        return map(self.__getitem__, self._find_named(offsets))

    def _find_named(self, offsets: Iterable[int]) -> array[int]:
        """Return the indexes of the symbols with names at some offsets of the string table."""
        _, lib = load_native()
        flags = bytearray(len(self._strings))
        for offset in offsets:
            flags[offset] = 1
        count = len(self)
        found = zeros("I", count)
        number = lib.kcovdbg_find_flagged(
            column("I", self._names, count),
            count,
            column("B", flags),
            len(flags),
            column("I", found, count),
        )
        return found[:number]

    def _name_at(self, offset: int) -> str:
        try:
            return string_at(self._strings, offset)
        except ValueError:
            problem = f"no name of a symbol at {offset:#x} of the string table"
            raise damaged(self._file_name, problem) from None

    def find(self, name: str) -> ElfSymbol | None:
        """Find the symbol of code or data with a name, None when the file does not define it."""
        return self._find_defined(self._find_string(name.encode() + b"\0"), self._index_by_name)

    def _find_defined(
        self, places: Iterable[int], index_by_name: Mapping[int, int]
    ) -> ElfSymbol | None:
        """Return the first symbol of code or data that the file defines.

        :param places: the places of a name in the string table. There are several, as linkers let a
            name share the end of a longer one.
        :param index_by_name: indexes of symbols, by the place of their name.
        """
        for place in places:
            index = index_by_name.get(place)
            if index is None or self._sections[index] == SHN_UNDEF:
                continue
            if self._types[index] in _NAMING:
                return self[index]
        return None

    def _find_string(self, wanted: bytes) -> Iterator[int]:
        """Yield each place of some bytes in the string table."""
        position = self._strings.find(wanted)
        while position >= 0:
            yield position
            position = self._strings.find(wanted, position + 1)

    def addresses_of(self, names: Iterable[str]) -> dict[str, int]:
        """Return the addresses of symbols of code or data that the file defines, by name."""
        places = {name: [*self._find_string(name.encode() + b"\0")] for name in names}
        named = self._find_named(chain.from_iterable(places.values()))
        index_by_name = {self._names[index]: index for index in named}
        addresses = {}
        for name, of_name in places.items():
            symbol = self._find_defined(of_name, index_by_name)
            if symbol is not None:
                addresses[name] = symbol.address
        return addresses

    # Local symbols come first in a table: a global symbol replaces local ones of the same name, as
    # in addresses_of().
    @cached_property
    def _index_by_name(self) -> Mapping[int, int]:
        return dict(zip(self._names, range(len(self)), strict=True))

    def find_at(self, address: int) -> ElfSymbol | None:
        """Find the symbol of code or data that contains an address as linked; of several, the one
        with the nearest start.
        """
        starts, indexes = self._by_address
        position = bisect_right(starts, address)
        # Local parts of functions may be between the start of a symbol and the address.
        for index in reversed(indexes[max(position - _MAX_NESTING, 0) : position]):
            if address < self._addresses[index] + self._sizes[index]:
                return self[index]
        return None

    def find_each_before(
        self, addresses: array[int], *, functions_only: bool = False
    ) -> list[ElfSymbol | None]:
        """Return for each address the defined symbol with a name that starts nearest at or before
        it, as linked; of several, the last one in the table.

        :param addresses: in ascending order.
        :param functions_only: whether to search only the symbols of functions, with or without a
            name.
        """
        _, lib = load_native()
        flags = self._types.translate(_IS_FUNCTION)
        if not functions_only:
            columns = zip(self._sections, self._names, strict=True)
            flags = bytes(bool(section and name) for section, name in columns)
        count = len(addresses)
        found = zeros("I", count)
        lib.kcovdbg_find_before(
            column("Q", array("Q", self._addresses)),
            column("B", flags, len(self)),
            len(self),
            column("Q", addresses, count),
            count,
            column("I", found, count),
        )
        return [None if index >= len(self) else self[index] for index in found]

    def next_start(self, address: int, section: int | None = None) -> int | None:
        """Return the next address at which the kernel knows a symbol. By the sizes that the kernel
        prints, a function ends there.

        The kernel ignores the sizes of symbols: alignment, data and functions without a name belong
        to the function before them (kernel/kallsyms.c: get_symbol_pos(); kernel/module/kallsyms.c:
        find_kallsyms_symbol()).

        :param address: the function's address, as linked.
        :param section: the index of its section in a relocatable file.
        """
        starts, indexes = self._by_start_in(section)
        for position in range(bisect_right(starts, address), len(starts)):
            name = self._name_at(self._names[indexes[position]])
            if not (_NOT_IN_KALLSYMS.match(name) or name.endswith(_NOT_IN_KALLSYMS_ENDS)):
                return starts[position]
        return None

    def _by_start_in(self, section: int | None) -> tuple[array[int], array[int]]:
        """Return the symbols of code or data with a name: their addresses, ascending, and indexes.

        :param section: the index of a section; None for all sections of a linked file.
        """
        if section not in self._kallsyms:
            wanted = range(SHN_UNDEF + 1, SHN_LORESERVE)
            if section is not None:
                wanted = range(section, section + 1)
            columns = zip(range(len(self)), self._names, self._types, self._sections, strict=True)
            named = (
                index
                for index, name, kind, own_section in columns
                if name and kind in _NAMING and own_section in wanted
            )
            indexes = array("I", sorted(named, key=self._addresses.__getitem__))
            starts = array("Q", map(self._addresses.__getitem__, indexes))
            self._kallsyms[section] = starts, indexes
        return self._kallsyms[section]

    @cached_property
    def _by_address(self) -> tuple[array[int], array[int]]:
        columns = zip(
            self._addresses,
            self._sizes,
            self._names,
            range(len(self)),
            self._types,
            self._sections,
            strict=True,
        )
        # A label has no size, and so contains no address. Images for RISC-V have many labels.
        rows = sorted(
            (address, size, name, index)
            for address, size, name, index, kind, section in columns
            if name and size and kind in _NAMING and SHN_UNDEF < section < SHN_LORESERVE
        )
        starts, indexes = array("Q"), array("I")
        for address, _, _, index in rows:
            starts.append(address)
            indexes.append(index)
        return starts, indexes
