# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a kernel's tables say about its code that instructions don't show: where control may go, and
what is replaced.

Entries have a size that depends on the kernel. That one is taken for which every entry makes sense.
Where there is none,
:class:`~kcovdbg.errors.CapabilityError` says so: without a table, edges between blocks would be
    missing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from enum import IntEnum
from typing import Any, Final, NamedTuple

from kcovdbg.compiled_module import load_native
from kcovdbg.errors import CapabilityError


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
    """A section at its address, with the contents that it has when it is loaded, but for what the
    kernel itself replaces.
    """

    name: str
    address: int
    data: bytes | memoryview
    is_text: bool

    def has(self, address: int) -> bool:
        """Return whether an address is in it."""
        return 0 <= address - self.address < len(self.data)


class EntryLayout(NamedTuple):
    """The entry of a table, by its members in the notation of the struct module; offsets count from
    themselves.
    """

    members: str
    names: tuple[str, ...]
    size: int
    """In bytes, with what follows the members."""


# By the kernel's sources, the newest first.
_EXCEPTIONS: Final = (
    # With a type and data, or before them a handler.
    EntryLayout("ii", ("at", "to"), 12),
    EntryLayout("ii", ("at", "to"), 8),
)
_BUGS: Final = (
    # With a format: address, format, file, line, flags.
    EntryLayout("iiiHH", ("at", "format", "file", "line", "flags"), 16),
    EntryLayout("iiHH", ("at", "file", "line", "flags"), 12),
    # CONFIG_DEBUG_BUGVERBOSE=n
    EntryLayout("iiH", ("at", "format", "flags"), 12),
    EntryLayout("iH", ("at", "flags"), 8),
    EntryLayout("iH", ("at", "flags"), 6),
)
_BUG_FLAG_WARNING: Final = 1
_KEYS: Final = (
    EntryLayout("iiq", ("at", "to", "key"), 16),
    # Addresses.
    EntryLayout("QQQ", ("at", "to", "key"), 24),
)
_ALTERNATIVES: Final = (
    # A feature and flags of 2 bytes each.
    EntryLayout("iiIBB", ("at", "by", "flags", "length", "new"), 14),
    # A feature alone; arm64 as well.
    EntryLayout("iiHBB", ("at", "by", "flags", "length", "new"), 12),
    # With the length of padding.
    EntryLayout("iiHBBB", ("at", "by", "flags", "length", "new", "padding"), 13),
    # s390
    EntryLayout("iiHB", ("at", "by", "flags", "length"), 12),
)


class KernelTable(NamedTuple):
    """A table of the kernel."""

    address: int
    data: bytes


def _read_entries(table: KernelTable, layout: EntryLayout, order: str) -> Iterator[dict[str, int]]:
    """Iterate over a table's entries, with offsets as addresses."""
    members = struct.Struct(order + layout.members)
    positions = [
        struct.calcsize(order + layout.members[:index]) for index in range(len(layout.members))
    ]
    for start in range(0, len(table.data), layout.size):
        entry = {}
        values = members.unpack_from(table.data, start)
        for name, value, code, position in zip(
            layout.names, values, layout.members, positions, strict=True
        ):
            entry[name] = (
                (value + table.address + start + position) % (1 << 64) if code == "i" else value
            )
        yield entry


def _find_entries(
    what: str,
    table: KernelTable | None,
    layouts: Sequence[EntryLayout],
    order: str,
    is_right: Callable[[dict[str, int]], bool],
) -> list[dict[str, int]]:
    """Return the entries of a table by the layout that fits.

    :raises CapabilityError: when none does.
    """
    if table is None or not table.data:
        return []
    for layout in layouts:
        if len(table.data) % layout.size == 0:
            entries = list(_read_entries(table, layout, order))
            if all(map(is_right, entries)):
                return entries
    raise CapabilityError(f"the entries of {what} have an unknown layout")


class CodeTables(NamedTuple):
    """The tables of an image; None for those that it has not."""

    exceptions: KernelTable | None
    bugs: KernelTable | None
    keys: KernelTable | None
    alternatives: KernelTable | None


class FactReader:
    """Reads what tables say.

    :param sections: of the image.
    :param order: byte order, in the notation of the struct module.
    :param decode: sets the C structure of an instruction from bytes, as native/x86_decoder.h says.
    """

    def __init__(
        self, sections: Sequence[LoadedSection], order: str, decode: Callable[[bytes, Any], None]
    ) -> None:
        self._sections = sections
        self._order = order
        self._decode = decode
        ffi, self._lib = load_native()
        self._one = ffi.new("struct kcovdbg_instruction *")

    def _is_code(self, address: int) -> bool:
        return any(section.is_text and section.has(address) for section in self._sections)

    def _bytes_at(self, address: int, size: int) -> bytes | None:
        for section in self._sections:
            if section.has(address):
                start = address - section.address
                return bytes(section.data[start : start + size])
        return None

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

    def _is_bug(self, entry: dict[str, int]) -> bool:
        if not self._is_code(entry["at"]):
            return False
        file = entry.get("file")
        is_string = file is None or any(
            section.has(file) and not section.is_text for section in self._sections
        )
        return is_string and entry.get("line", 1) > 0

    def _is_alternative(self, entry: dict[str, int]) -> bool:
        known = any(section.has(entry["by"]) for section in self._sections)
        new = entry.get("new", entry["length"])
        # Code may be replaced by nothing, of which the place is the end of a section.
        return (
            self._is_code(entry["at"])
            and 0 < entry["length"] < 0xFF
            and new <= entry["length"]
            and (known or not new)
        )

    def read(self, tables: CodeTables) -> list[Fact]:
        """Return the facts of an image, by address.

        :raises CapabilityError: when the layout of a table is unknown.
        """
        facts = []

        def leads_to_code(entry: dict[str, int]) -> bool:
            return self._is_code(entry["at"]) and self._is_code(entry["to"])

        exceptions = _find_entries(
            "__ex_table", tables.exceptions, _EXCEPTIONS, self._order, leads_to_code
        )
        facts += [Fact(entry["at"], entry["to"], FactKind.EXCEPTION) for entry in exceptions]
        keys = _find_entries("__jump_table", tables.keys, _KEYS, self._order, leads_to_code)
        facts += [Fact(entry["at"], entry["to"], FactKind.EDGE) for entry in keys]
        # Of traps about which nothing is known, blocks are exits that the next instruction may
        # follow.
        with suppress(CapabilityError):
            for entry in _find_entries(
                "__bug_table", tables.bugs, _BUGS, self._order, self._is_bug
            ):
                kind = FactKind.WARNING if entry["flags"] & _BUG_FLAG_WARNING else FactKind.BUG
                facts.append(Fact(entry["at"], 0, kind))
        alternatives = _find_entries(
            ".altinstructions",
            tables.alternatives,
            _ALTERNATIVES,
            self._order,
            self._is_alternative,
        )
        facts += self._read_alternatives(alternatives)
        return sorted(facts)

    def _read_alternatives(self, entries: Sequence[dict[str, int]]) -> Iterator[Fact]:
        """Yield the ranges that are replaced, joined where they overlap, and where replacements
        lead to.
        """
        _, lib = load_native()
        ranges = sorted((entry["at"], entry["at"] + entry["length"]) for entry in entries)
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
        for entry in entries:
            for flow, target in self._instructions(entry["by"], entry.get("new", entry["length"])):
                if flow in (lib.KCOVDBG_FLOW_JUMP, lib.KCOVDBG_FLOW_BRANCH):
                    yield Fact(entry["at"], target, FactKind.LEADS)
                elif flow in leaving:
                    yield Fact(entry["at"], 0, FactKind.LEADS)
