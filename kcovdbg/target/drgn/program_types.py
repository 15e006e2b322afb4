# SPDX-License-Identifier: LGPL-2.1-or-later
"""Types and symbols of a drgn Program, cached. They need no memory of the kernel."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from operator import attrgetter
from typing import Final

import drgn

from kcovdbg.errors import MissingSymbolError, MissingTypeError
from kcovdbg.target.drgn.drgn_messages import reading_debug_info
from kcovdbg.target.target import Member, Symbol, Target

# Limit for the addresses that drgn looks up. For more, all symbols are sorted, which takes as long
# as hundreds of look-ups.
_FEW_NAMES: Final = 64


class ProgramTypes(Target):
    """The methods of a target that need only debug info.

    :param prog: with the kernel's debug info loaded.
    """

    def __init__(self, prog: drgn.Program) -> None:
        self.prog = prog
        platform = prog.platform
        assert platform is not None
        self.word_size = 8 if platform.flags & drgn.PlatformFlags.IS_64_BIT else 4
        self.big_endian = not platform.flags & drgn.PlatformFlags.IS_LITTLE_ENDIAN
        self._type = cache(self._find_type)
        self._member = cache(self._find_member)
        self._symbol = cache(self._find_symbol)
        self._symbol_name = cache(self._find_symbol_name)

    def symbol(self, name: str) -> Symbol:
        return self._symbol(name)

    def symbol_name(self, address: int) -> str | None:
        return self._symbol_name(address)

    def _find_symbol_name(self, address: int) -> str | None:
        if self._symbol_name.cache_info().currsize >= _FEW_NAMES:
            return self._symbol_table.find_name(address)
        # Symbols without a size are labels, here as in the table.
        found = [symbol for symbol in self.prog.symbols(address) if symbol.size and symbol.name]
        if not found:
            return None
        return str(max(found, key=attrgetter("address", "size", "name")).name)

    def type_size(self, type_name: str) -> int:
        try:
            return int(drgn.sizeof(self._type(type_name)))
        except TypeError:
            raise MissingTypeError(f"the debug info has only the name of {type_name}") from None

    def member(self, type_name: str, path: str) -> Member:
        return self._member(type_name, path)

    @reading_debug_info()
    def member_names(self, type_name: str) -> Sequence[str]:
        return tuple(_for_each_member_name(_strip(self._type(type_name)), type_name))

    @reading_debug_info()
    def enumerators(self, type_name: str) -> Mapping[str, int]:
        enumeration = _strip(self._type(type_name))
        try:
            enumerators = enumeration.enumerators
        except AttributeError:
            raise MissingTypeError(f"{type_name} is not an enumeration") from None
        if enumerators is None:
            raise MissingTypeError(f"the debug info has only the name of {type_name}")
        return {enumerator.name: enumerator.value for enumerator in enumerators}

    @reading_debug_info()
    def has_name(self, name: str) -> bool:
        try:
            self.prog[name]
        except LookupError:
            # drgn searches the ELF symbol table linearly, in a millisecond for 50,000 symbols. That
            # is faster than to make the table.
            return bool(self.prog.symbols(name))
        except drgn.BadDataError:
            # A function in assembly: see _find_symbol().
            return True
        return True

    @reading_debug_info()
    def array_length(self, name: str) -> int | None:
        try:
            kind = _strip(self.prog.variable(name).type_)
        except LookupError:
            raise MissingSymbolError(f"the kernel has no variable {name}") from None
        return kind.length if kind.kind == drgn.TypeKind.ARRAY else None

    @reading_debug_info()
    def member_at(
        self, name: str, address: int, offset: int, files: Iterable[str] = ()
    ) -> str | None:
        # Without a file, drgn returns any of several static variables with one name.
        for file in (None, *files):
            try:
                variable = self.prog.variable(name, file)
            except LookupError:
                continue
            if variable.address_ == address:
                return _find_part(variable.type_, offset)
        return None

    @reading_debug_info()
    def _find_type(self, type_name: str) -> drgn.Type:
        try:
            return self.prog.type(type_name)
        except (LookupError, SyntaxError):
            raise MissingTypeError(f"the debug info has no {type_name}") from None

    @reading_debug_info()
    def _find_member(self, type_name: str, path: str) -> Member:
        kind = self._type(type_name)
        bits = 0
        bit_size: int | None = None
        for part in path.split("."):
            outer = _strip(kind)
            try:
                member = outer.member(part)
            except (LookupError, TypeError):
                raise MissingTypeError(f"{type_name} has no member {path}") from None
            bits += member.bit_offset
            kind, bit_size = member.type, member.bit_field_size
        if bit_size is not None:
            return self._make_bit_field(kind, bits, bit_size)
        stripped = _strip(kind)
        try:
            size = int(drgn.sizeof(kind))
        except TypeError:
            # A flexible array.
            size = 0
        length = None
        if stripped.kind == drgn.TypeKind.ARRAY:
            length = stripped.length or 0
        return Member(bits // 8, size, kind.type_name(), _is_signed(stripped), length)

    def _make_bit_field(self, kind: drgn.Type, bits: int, bit_size: int) -> Member:
        size = int(drgn.sizeof(kind))
        offset = bits // (8 * size) * size
        if bits + bit_size > 8 * (offset + size):
            # In a packed structure, a bit-field may cross units: its own bytes are then its unit.
            offset = bits // 8
            size = (bits + bit_size + 7) // 8 - offset
        within = bits - 8 * offset
        if self.big_endian:
            # DWARF then counts from the most significant bit of the unit.
            within = 8 * size - within - bit_size
        return Member(
            offset, size, kind.type_name(), _is_signed(_strip(kind)), None, within, bit_size
        )

    @reading_debug_info()
    def _find_symbol(self, name: str) -> Symbol:
        # The index of the debug info takes microseconds; drgn's search of the ELF symbol table is
        # linear.
        try:
            found = self.prog[name]
            address = found.address_
        except (LookupError, drgn.BadDataError):
            # BadDataError: binutils describe the type of a function in assembly with a tag that
            # drgn does not know.
            pass
        else:
            if address is not None:
                try:
                    size = int(drgn.sizeof(found.type_))
                except TypeError:
                    # A function, or an array declared without its length.
                    size = 0
                return Symbol(name, address, size or self._symbol_table.find_size(address))
        # To sort all symbols takes as long as hundreds of such searches.
        named = self.prog.symbols(name)
        if named:
            last = max(named, key=lambda symbol: symbol.address)
            return Symbol(name, last.address, last.size)
        symbol = self._symbol_table.by_name.get(name)
        if symbol is None:
            raise MissingSymbolError(f"the kernel has no symbol {name}")
        return symbol

    @cached_property
    def _symbol_table(self) -> _SymbolTable:
        return _SymbolTable(self.prog)


class _SymbolTable:
    """All ELF symbols by address and by name. drgn would search them linearly."""

    # Limit for the symbols between the start of a symbol and an address in it.
    _NESTED: Final = 8

    def __init__(self, prog: drgn.Program) -> None:
        self._all: list[tuple[int, int, str]] = sorted(
            (symbol.address, symbol.size, symbol.name) for symbol in prog.symbols() if symbol.name
        )
        # Symbols without a size are labels, mostly in functions in assembly.
        self._sized = [symbol for symbol in self._all if symbol[1]]
        self._addresses = [symbol[0] for symbol in self._sized]

    def find_name(self, address: int) -> str | None:
        """Return the name of the symbol at an address. Of several, it is the one with the nearest
        start, then the largest.
        """
        index = bisect.bisect_right(self._addresses, address)
        for start, size, name in reversed(self._sized[max(index - self._NESTED, 0) : index]):
            if address < start + size:
                return name
        return None

    def find_size(self, address: int) -> int:
        """Return the size of the symbol that starts at an address, 0 when there is none."""
        index = bisect.bisect_right(self._addresses, address) - 1
        if index < 0 or self._addresses[index] != address:
            return 0
        return self._sized[index][1]

    @cached_property
    def by_name(self) -> dict[str, Symbol]:
        """The symbols by name, with and without a compiler's suffix; in Rust, mangled and not."""
        from kcovdbg.elf.symbol_table import demangle, is_mangled, strip_clone_suffix

        table = {name: Symbol(name, address, size) for address, size, name in self._all}
        for full, symbol in list(table.items()):
            if "." in full:
                table.setdefault(strip_clone_suffix(full), symbol)
            if is_mangled(full):
                table.setdefault(demangle(full), symbol)
        return table


def _strip(kind: drgn.Type) -> drgn.Type:
    """Return the type behind typedefs."""
    while kind.kind == drgn.TypeKind.TYPEDEF:
        kind = kind.type
    return kind


def _is_signed(kind: drgn.Type) -> bool:
    if kind.kind == drgn.TypeKind.INT:
        return bool(kind.is_signed)
    if kind.kind == drgn.TypeKind.ENUM and kind.type is not None:
        return bool(_strip(kind.type).is_signed)
    return False


def _for_each_member_name(kind: drgn.Type, type_name: str) -> Iterator[str]:
    try:
        members = kind.members
    except AttributeError:
        raise MissingTypeError(f"{type_name} is not a structure") from None
    if members is None:
        raise MissingTypeError(f"the debug info has only the name of {type_name}")
    for member in members:
        if member.name is not None:
            yield member.name
        elif member.type.kind in (drgn.TypeKind.STRUCT, drgn.TypeKind.UNION):
            yield from _for_each_member_name(member.type, type_name)


def _find_part(kind: drgn.Type, offset: int) -> str | None:
    """Return the path of the pointer at an offset in a value of a type, None if there is none."""
    path = ""
    while True:
        kind = _strip(kind)
        if kind.kind == drgn.TypeKind.ARRAY:
            size = int(drgn.sizeof(kind.type))
            if not size:
                return None
            path += f"[{offset // size}]"
            kind, offset = kind.type, offset % size
        elif kind.kind in (drgn.TypeKind.STRUCT, drgn.TypeKind.UNION):
            members = [
                member
                for member in kind.members or ()
                if member.bit_field_size is None
                and 0 <= 8 * offset - member.bit_offset < 8 * _size_of(member.type)
            ]
            if not members:
                return None
            path += f".{members[0].name}" if members[0].name else ""
            kind, offset = members[0].type, offset - members[0].bit_offset // 8
        else:
            return path if kind.kind == drgn.TypeKind.POINTER and not offset else None


def _size_of(kind: drgn.Type) -> int:
    """Return the size of a type, 0 for a flexible array."""
    try:
        return int(drgn.sizeof(kind))
    except TypeError:
        return 0
