# SPDX-License-Identifier: LGPL-2.1-or-later
"""The call graph of an image, from its code: direct calls, and the places that have the address of
a function.

The targets of calls through pointers are unknown. The places with a function's address are
candidates: the pointer may be called from anywhere, or never. Calls of the sanitizer's callbacks
and of thunks are left out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from enum import IntEnum
from functools import cached_property
from itertools import compress
from typing import Final, NamedTuple

from kcovdbg.compiled_module import copy_array, load_native
from kcovdbg.elf.symbol_table import ElfSymbol, SymbolTable
from kcovdbg.symbols.blocks import BlockColumns, CodeImage, CodeParts, NativeImage

# The functions that serve system calls, one for each of the kernel's interfaces.
_SYSTEM_CALL: Final = re.compile(
    r"__(x64|ia32|arm64|riscv|s390x?)_(compat_)?sys_(?!ni_syscall)\w+$"
)
# The entry code finds system calls of this kernel by a table, or by a function since v6.9
# (1e3ad78334a6). The image has functions for other interfaces as well.
_ENTRY: Final = re.compile(r"\w*sys_call(_table)?$")

_COLD: Final = ".cold"


class _Reference(IntEnum):
    """As in native/calls.h."""

    DIRECT = 1
    JUMP = 2
    """A tail call, which may be conditional."""
    IN_CODE = 3
    """A constant of an instruction may be the function's address; or code outside of functions
    calls it.
    """
    IN_DATA = 4
    """A word of the data is its address."""


_TAIL_CALL: Final = int(_Reference.JUMP)
_CALLS: Final = frozenset({int(_Reference.DIRECT), _TAIL_CALL})


class CallSite(NamedTuple):
    """A direct call, or a tail call."""

    address: int
    """The address of its instruction."""
    caller: int
    """Number of the function."""
    is_tail: bool


class PointerPlace(NamedTuple):
    """A place that has the address of a function, or may have it."""

    address: int
    """The address of the instruction or the word."""
    function: int | None
    """Number of the function that has the instruction; None for a word of the data, and for code
    outside of functions: assembly, such as the entries of exceptions.
    """


class CallGraph:
    """The calls between an image's functions. These have the same numbers in its blocks.

    :param image: an image or a module.
    :param externals: the addresses, behind a module's code, that stand for symbols of other files,
        by name.
    :raises CapabilityError: when the machine is unknown.
    """

    def __init__(self, image: CodeImage, externals: Mapping[str, int] | None = None) -> None:
        ffi, lib = load_native()
        named = sorted((address, name) for name, address in (externals or {}).items())
        native = NativeImage(image, [address for address, _ in named])
        self._parts = native.parts
        count = self._parts.function_count - len(named)
        self.externals: Final[Mapping[str, int]] = {
            name: count + index for index, (_, name) in enumerate(named)
        }
        """The numbers of functions of other files, by name; they follow the image's own."""
        found = lib.kcovdbg_calls_new(native.given)
        if found == ffi.NULL:
            raise MemoryError
        try:
            count, functions = found.count, self._parts.function_count
            self._ends = copy_array("I", found.ends, functions)
            self._places = copy_array("Q", found.places, count)
            self._kinds = bytes(ffi.buffer(found.kinds, count))
        finally:
            lib.kcovdbg_calls_free(found)
        self._symbols = image.symbols
        self._names = _name_functions(image.symbols, self._parts)

    def __len__(self) -> int:
        """Return the number of its own functions."""
        return len(self._ends) - len(self.externals)

    def fits(self, blocks: BlockColumns) -> bool:
        """Return whether blocks have the same functions, and so the same numbers."""
        parts = self._parts
        own = len(parts.starts) - len(self.externals)
        starts = [start + blocks.base for start in blocks.part_start]
        has_functions = list(blocks.part_function) == list(parts.functions[:own])
        return has_functions and starts == list(parts.starts[:own])

    def function_at(self, address: int) -> int | None:
        """Return the number of the function that contains an address, None if none does."""
        return self._parts.function_at(address)

    def find_named(self, name: str) -> int | None:
        """Return the number of the image's function at a symbol, None if there is none."""
        symbol = self._symbols.find(name)
        if symbol is None or not symbol.section:
            return None
        function = self.function_at(symbol.address)
        return None if function is None or function >= len(self) else function

    def name(self, function: int) -> str:
        """Return the symbol of a function."""
        return self._names.get(function, "")

    def data_at(self, address: int) -> ElfSymbol | None:
        """Return the symbol of the data that contains a word, None if none does."""
        return self._symbols.find_at(address)

    @cached_property
    def system_calls(self) -> frozenset[int]:
        """The functions that the entry code calls for system calls."""
        named = {number for number, name in self._names.items() if _SYSTEM_CALL.match(name)}
        entered = frozenset(filter(self._is_entered, named))
        return entered or frozenset(named)

    def _is_entered(self, function: int) -> bool:
        """Return whether the entry code calls a function, or its table has the address."""
        for site in self.find_callers(function):
            if _ENTRY.match(self.name(site.caller)):
                return True
        for place in self.find_pointers(function):
            symbol = self.data_at(place.address)
            if symbol is not None and _ENTRY.match(symbol.name):
                return True
        return False

    @cached_property
    def reachable(self) -> frozenset[int]:
        """The functions that a system call or an exception may lead to: by calls, or through a
        pointer.

        These are too many, as every pointer to a function counts: code that runs during boot
        registers many. Only pointers between ``__init_begin`` and ``__init_end`` do not count, as
        only boot code uses them.
        """
        begin, end = self._symbols.find("__init_begin"), self._symbols.find("__init_end")
        freed = range(0)
        if begin is not None and end is not None:
            freed = range(begin.address, end.address)
        leads_to: defaultdict[int, list[int]] = defaultdict(list)
        todo = list(self.system_calls)
        for function in range(len(self)):
            for site in self.find_callers(function):
                leads_to[site.caller].append(function)
            places = self.find_pointers(function)
            if any(place.function is not None or place.address not in freed for place in places):
                todo.append(function)
        found = set(todo)
        while todo:
            following = [one for one in leads_to[todo.pop()] if one not in found]
            found.update(following)
            todo += following
        return frozenset(found)

    def _span(self, function: int) -> range:
        return range(self._ends[function - 1] if function else 0, self._ends[function])

    def find_callers(self, function: int) -> Iterator[CallSite]:
        """Yield the direct calls and tail calls of a function."""
        function_at = self._parts.function_at
        for index in self._span(function):
            kind = self._kinds[index]
            if kind not in _CALLS:
                continue
            address = self._places[index]
            caller = function_at(address)
            assert caller is not None
            yield CallSite(address, caller, kind == _TAIL_CALL)

    def find_pointers(self, function: int) -> Iterator[PointerPlace]:
        """Yield the places that have the address of a function: words of the data first."""
        span = self._span(function)
        for index in span:
            if self._kinds[index] == _Reference.IN_DATA:
                yield PointerPlace(self._places[index], None)
        for index in span:
            if self._kinds[index] == _Reference.IN_CODE:
                address = self._places[index]
                yield PointerPlace(address, self.function_at(address))

    def has_pointers(self, function: int) -> bool:
        """Return whether a place has the address of a function."""
        span = self._span(function)
        kinds = self._kinds[span.start : span.stop]
        return _Reference.IN_DATA in kinds or _Reference.IN_CODE in kinds


def _name_functions(symbols: SymbolTable, parts: CodeParts) -> Mapping[int, str]:
    """Return the symbol of each function. Of several symbols at one address, a system call's is
    preferred, then the first one.
    """
    columns = symbols.function_columns
    at: dict[int, str] = {}
    for name, address, _ in compress(zip(*columns[:3], strict=True), columns.sizes):
        if address not in at or (_SYSTEM_CALL.match(name) and not _SYSTEM_CALL.match(at[address])):
            at[address] = name
    found: dict[int, str] = {}
    for number, start in zip(parts.functions, parts.starts, strict=True):
        # The cold part may come first.
        if start in at and (number not in found or _COLD in found[number]):
            found[number] = at[start]
    return found
