# SPDX-License-Identifier: LGPL-2.1-or-later
"""Facts about a kernel's code that its tables have and its instructions do not show: further edges
of control, and the code that is replaced.

Debug info has the layout of a table's entries. Without debug info, the first known layout by which
every entry makes sense counts. If none does, :class:`~kcovdbg.errors.CapabilityError` is raised:
without the table, edges between blocks would be missing.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from itertools import chain, count, repeat
from operator import add, attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

from kcovdbg.compiled_module import load_native
from kcovdbg.errors import CapabilityError
from kcovdbg.symbols.dwarf_reader import Structure, StructureMember


class FactKind(IntEnum):
    """As in native/blocks.h."""

    EDGE = 1
    EXCEPTION = 2
    WARNING = 3
    BUG = 4
    PATCHED = 5
    LEADS = 6


class Fact(NamedTuple):
    """Something about the instruction at an address."""

    address: int
    value: int
    kind: FactKind


class LoadedSection(NamedTuple):
    """A section at its address, with the contents that are loaded, which the kernel may patch."""

    name: str
    address: int
    data: bytes | memoryview
    is_text: bool

    def has(self, address: int) -> bool:
        """Return whether an address is in it."""
        return 0 <= address - self.address < len(self.data)


class TableKind(NamedTuple):
    """A table of the kernel."""

    name: str
    """The name of its section."""
    bounds: tuple[str, str]
    """The symbols at its start and its end in a linked image."""
    structure: str
    """The structure of its entries; empty if these are plain places."""
    members: Mapping[str, tuple[str, ...]]
    """The values that are read, each with the members that may have it, newest first."""
    places: frozenset[str]
    """The values that are places: 4 bytes count from the member itself, 8 bytes are an address."""
    known: tuple[Structure, ...]
    """The layouts to try if debug info lacks the structure, newest first."""


def _layout(size: int, **members: tuple[int, int]) -> Structure:
    """Return a layout by the offset and size of each member."""
    return Structure(size, tuple(StructureMember(name, *place) for name, place in members.items()))


EXCEPTIONS: Final = TableKind(
    "__ex_table",
    ("__start___ex_table", "__stop___ex_table"),
    "exception_table_entry",
    {"at": ("insn",), "to": ("fixup",)},
    frozenset(("at", "to")),
    # With a type and data, or before them a handler.
    (_layout(12, at=(0, 4), to=(4, 4)), _layout(8, at=(0, 4), to=(4, 4))),
)
BUGS: Final = TableKind(
    "__bug_table",
    ("__start___bug_table", "__stop___bug_table"),
    "bug_entry",
    # With CONFIG_GENERIC_BUG_RELATIVE_POINTERS, the address is a displacement.
    {"at": ("bug_addr_disp", "bug_addr"), "flags": ("flags",)},
    frozenset(("at", "file")),
    (
        # With a format string: address, format, file, line, flags.
        _layout(16, at=(0, 4), file=(8, 4), line=(12, 2), flags=(14, 2)),
        _layout(12, at=(0, 4), file=(4, 4), line=(8, 2), flags=(10, 2)),
        # CONFIG_DEBUG_BUGVERBOSE=n
        _layout(12, at=(0, 4), flags=(8, 2)),
        _layout(8, at=(0, 4), flags=(4, 2)),
        _layout(6, at=(0, 4), flags=(4, 2)),
    ),
)
_BUG_FLAG_WARNING: Final = 1
# Traps of kCFI's checks of indirect calls. Since 89245600941e, the entries are plain places.
CHECKS: Final = TableKind(
    "__kcfi_traps",
    ("__start___kcfi_traps", "__stop___kcfi_traps"),
    "",
    {"at": ("at",)},
    frozenset(("at",)),
    (_layout(4, at=(0, 4)),),
)
KEYS: Final = TableKind(
    "__jump_table",
    ("__start___jump_table", "__stop___jump_table"),
    "jump_entry",
    {"at": ("code",), "to": ("target",)},
    frozenset(("at", "to")),
    (_layout(16, at=(0, 4), to=(4, 4)), _layout(24, at=(0, 8), to=(8, 8))),
)
ALTERNATIVES: Final = TableKind(
    ".altinstructions",
    ("__alt_instructions", "__alt_instructions_end"),
    "alt_instr",
    # The names on x86 and s390, then on arm64 and riscv. On riscv, both lengths are one member.
    {
        "at": ("instr_offset", "orig_offset", "old_offset"),
        "by": ("repl_offset", "alt_offset"),
        "length": ("instrlen", "orig_len", "alt_len"),
        "new": ("replacementlen", "alt_len", "instrlen"),
    },
    frozenset(("at", "by")),
    (
        # A feature and flags of 2 bytes each.
        _layout(14, at=(0, 4), by=(4, 4), length=(12, 1), new=(13, 1)),
        # A feature of 2 bytes, without flags; on arm64 as well.
        _layout(12, at=(0, 4), by=(4, 4), length=(10, 1), new=(11, 1)),
        # With the length of padding.
        _layout(13, at=(0, 4), by=(4, 4), length=(10, 1), new=(11, 1)),
        # On s390, both lengths are equal.
        _layout(12, at=(0, 4), by=(4, 4), length=(10, 1), new=(10, 1)),
    ),
)

TABLES: Final = (EXCEPTIONS, BUGS, CHECKS, KEYS, ALTERNATIVES)


def choose_members(kind: TableKind, structure: Structure) -> Structure | None:
    """Return the members of a structure by which a table is read, None if one is missing."""
    by_name = {member.name: member for member in structure.members}
    members = []
    for name, candidates in kind.members.items():
        found = next((by_name[member] for member in candidates if member in by_name), None)
        if found is None:
            return None
        members.append(found._replace(name=name))
    return Structure(structure.size, tuple(members))


class KernelTable(NamedTuple):
    """A table of the kernel."""

    address: int
    data: bytes
    layout: Structure | None = None
    """The layout of its entries by debug info; None if debug info lacks it."""


_CODES: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}


_Entries: TypeAlias = Mapping[str, Sequence[int]]
"""The entries of a table as columns, by the names of the values."""


def _read_entries(kind: TableKind, table: KernelTable, layout: Structure, order: str) -> _Entries:
    """Return a table's entries, with addresses for places."""
    entries: dict[str, Sequence[int]] = {}
    for name, offset, size in layout.members:
        is_offset = name in kind.places and size == 4
        code = "i" if is_offset else _CODES[size]
        after = layout.size - offset - size
        rows = struct.iter_unpack(f"{order}{offset}x{code}{after}x", table.data)
        numbers: Iterable[int] = chain.from_iterable(rows)
        if is_offset:
            numbers = map(add, numbers, count(table.address + offset, layout.size))
        entries[name] = list(numbers)
    return entries


CodeTables: TypeAlias = Mapping[str, KernelTable]
"""The tables that an image has, by the name of their kind."""


class FactReader:
    """Reads the facts in an image's tables.

    :param sections: the sections of the image.
    :param order: byte order, in the notation of the struct module.
    :param decode: decodes the bytes of an instruction into a C structure: native/x86_decoder.h.
    """

    def __init__(
        self, sections: Sequence[LoadedSection], order: str, decode: Callable[[bytes, Any], None]
    ) -> None:
        self._sections = sorted(sections, key=attrgetter("address"))
        self._starts = [section.address for section in self._sections]
        self._text_bounds: list[int] = []
        for section in self._sections:
            if section.is_text:
                self._text_bounds += (section.address, section.address + len(section.data))
        self._order = order
        self._decode = decode
        ffi, self._lib = load_native()
        self._one = ffi.new("struct kcovdbg_instruction *")

    def _section_at(self, address: int) -> LoadedSection | None:
        index = bisect_right(self._starts, address) - 1
        section = self._sections[index] if index >= 0 else None
        return section if section is not None and section.has(address) else None

    def _are_code(self, addresses: Iterable[int]) -> bool:
        # Between the bounds of a section, the number of bounds before an address is odd.
        bounds = self._text_bounds
        return all(bisect_right(bounds, address) & 1 for address in addresses)

    def _bytes_at(self, address: int, size: int) -> bytes | None:
        section = self._section_at(address)
        if section is None:
            return None
        start = address - section.address
        return bytes(section.data[start : start + size])

    def _instructions(self, address: int, size: int) -> Iterator[tuple[int, int]]:
        """Yield the flow of each instruction of some code, and the target of a direct branch, 0 for
        others.
        """
        code = self._bytes_at(address, size)
        at = 0
        while code and at < len(code):
            self._decode(code[at:], self._one)
            at += self._one.length
            yield self._one.flow, (address + at + self._one.displacement) % (1 << 64)

    def _are_bugs(self, entries: _Entries) -> bool:
        if not self._are_code(entries["at"]) or not all(entries.get("line", ())):
            return False
        files = map(self._section_at, set(entries.get("file", ())))
        return all(section is not None and not section.is_text for section in files)

    def _are_alternatives(self, entries: _Entries) -> bool:
        columns = (entries[name] for name in ("by", "length", "new"))
        for by, length, new in zip(*columns, strict=True):
            # The place of an empty replacement may be the end of a section.
            is_known = not new or self._section_at(by) is not None
            if not (0 < length < 0xFF and new <= length and is_known):
                return False
        return self._are_code(entries["at"])

    def _lead_to_code(self, entries: _Entries) -> bool:
        return self._are_code(chain(entries["at"], entries["to"]))

    def _find_entries(
        self, tables: CodeTables, kind: TableKind, are_right: Callable[[_Entries], bool]
    ) -> _Entries:
        """Return the entries of a table by the first layout that fits.

        :param are_right: returns whether entries make sense.
        :raises CapabilityError: when no layout fits.
        """
        table = tables.get(kind.name)
        if table is None or not table.data:
            return dict.fromkeys(kind.members, ())
        layouts = kind.known if table.layout is None else (table.layout,)
        for layout in layouts:
            if len(table.data) % layout.size == 0:
                entries = _read_entries(kind, table, layout, self._order)
                if are_right(entries):
                    return entries
        raise CapabilityError(f"the entries of {kind.name} have an unknown layout")

    def read(self, tables: CodeTables) -> list[Fact]:
        """Return the facts of an image, by address.

        :raises CapabilityError: when the layout of a table is unknown.
        """
        return sorted(self._list_facts(tables))

    def _list_facts(self, tables: CodeTables) -> Iterator[Fact]:
        for table, leads in ((EXCEPTIONS, FactKind.EXCEPTION), (KEYS, FactKind.EDGE)):
            entries = self._find_entries(tables, table, self._lead_to_code)
            yield from map(Fact, entries["at"], entries["to"], repeat(leads))
        # Without facts about a trap, its block is an exit that the next instruction may follow.
        with suppress(CapabilityError):
            entries = self._find_entries(tables, BUGS, self._are_bugs)
            for at, flags in zip(entries["at"], entries["flags"], strict=True):
                kind = FactKind.WARNING if flags & _BUG_FLAG_WARNING else FactKind.BUG
                yield Fact(at, 0, kind)
        # The trap is in front of the call that it checks. If the kernel dies of the trap, the call
        # is not executed, but other code of its line is.
        traps = self._find_entries(tables, CHECKS, lambda entries: self._are_code(entries["at"]))
        for at in traps["at"]:
            yield Fact(at, 0, FactKind.WARNING)
        yield from self._read_alternatives(
            self._find_entries(tables, ALTERNATIVES, self._are_alternatives)
        )

    def _read_alternatives(self, entries: _Entries) -> Iterator[Fact]:
        """Yield the ranges that are replaced, of which overlapping ones are joined; and the targets
        of branches in replacements.
        """
        _, lib = load_native()
        starts, replacements, lengths, sizes = (
            entries[name] for name in ("at", "by", "length", "new")
        )
        ranges = sorted(zip(starts, map(add, starts, lengths), strict=True))
        joined: list[list[int]] = []
        for start, end in ranges:
            if joined and start < joined[-1][1]:
                joined[-1][1] = max(joined[-1][1], end)
            else:
                joined.append([start, end])
        for start, end in joined:
            yield Fact(start, end, FactKind.PATCHED)
        leaving = (
            lib.KCOVDBG_FLOW_RETURN,
            lib.KCOVDBG_FLOW_INDIRECT_JUMP,
            lib.KCOVDBG_FLOW_MAY_LEAVE,
        )
        for at, by, size in zip(starts, replacements, sizes, strict=True):
            for flow, target in self._instructions(by, size):
                if flow in (lib.KCOVDBG_FLOW_JUMP, lib.KCOVDBG_FLOW_BRANCH):
                    yield Fact(at, target, FactKind.LEADS)
                elif flow in leaving:
                    yield Fact(at, 0, FactKind.LEADS)
