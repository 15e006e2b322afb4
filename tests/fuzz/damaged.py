# SPDX-License-Identifier: LGPL-2.1-or-later
"""A dump's memory with something changed in it, under one loaded Program: loading debug info takes seconds."""

from __future__ import annotations

import contextlib
import struct
from typing import TYPE_CHECKING

import drgn
from drgn.helpers.linux.mm import follow_phys

from kcovdbg.target import elf
from kcovdbg.target.bare import PHYSICAL_SIZE, open_bare
from kcovdbg.target.complaints import collect_warnings
from kcovdbg.target.drgn import DrgnTarget, refuse_user_addresses
from kcovdbg.target.opening import TargetOptions, open_target

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PAGE = 4096


class DamagedMemory:
    """Physical memory of a target, with pages that were changed or taken away.

    :param source: the target; it is only read.
    """

    def __init__(self, source: DrgnTarget) -> None:
        self._read_page = lambda page: source.prog.read(page, PAGE, True)
        self._known: dict[int, bytes | None] = {}
        self.changed: dict[int, bytearray] = {}
        self.removed: set[int] = set()

    def heal(self) -> None:
        """Undo all damage."""
        self.changed.clear()
        self.removed.clear()

    @property
    def pages(self) -> list[int]:
        """The pages that were read so far, and are there."""
        return [page for page, data in self._known.items() if data is not None]

    def read(self, address: int, count: int, offset: int = 0, physical: bool = True) -> bytes:
        """Read any span. The parameters are what drgn gives a reader."""
        del offset, physical
        start = address & -PAGE
        if address + count <= start + PAGE:
            return self._page(start)[address - start : address - start + count]
        parts = [self._page(page) for page in range(start, address + count, PAGE)]
        return b"".join(parts)[address - start : address - start + count]

    def _page(self, page: int) -> bytes:
        if page in self.removed:
            raise drgn.FaultError("taken away", page)
        changed = self.changed.get(page)
        if changed is not None:
            return bytes(changed)
        if page not in self._known:
            try:
                self._known[page] = self._read_page(page)
            except drgn.FaultError:
                self._known[page] = None
        data = self._known[page]
        if data is None:
            raise drgn.FaultError("not there", page)
        return data

    def write(self, address: int, data: bytes) -> None:
        """Change memory at a physical address."""
        while data:
            page = address & -PAGE
            changed = self.changed.setdefault(page, bytearray(self._page(page)))
            piece = data[: page + PAGE - address]
            changed[address - page : address - page + len(piece)] = piece
            address, data = address + len(piece), data[len(piece) :]


class DamagedTarget(DrgnTarget):
    """A target over damaged memory."""

    def __init__(self, prog: drgn.Program, memory: DamagedMemory, source: DrgnTarget) -> None:
        super().__init__(prog, "damaged", False)
        self.memory = memory
        self._source = source

    def heal(self) -> None:
        """Undo all damage."""
        self.memory.heal()

    def physical(self, address: int) -> int:
        """Translate an address of the kernel."""
        return int(follow_phys(self._source.prog["init_mm"].address_of_(), address))

    def write(self, address: int, data: bytes) -> None:
        """Change memory at an address of the kernel."""
        while data:
            piece = data[: PAGE - address % PAGE]
            self.memory.write(self.physical(address), piece)
            address, data = address + len(piece), data[len(piece) :]

    def write_word(self, address: int, value: int) -> None:
        """Change a word."""
        self.write(address, struct.pack("<Q", value & (1 << 64) - 1))

    def write_int(self, address: int, value: int) -> None:
        """Change an ``unsigned int``."""
        self.write(address, struct.pack("<I", value & (1 << 32) - 1))

    def put(self, address: int, type_name: str, path: str, value: int) -> None:
        """Change a member."""
        member = self.member(type_name, path)
        self.write(address + member.offset, (value & (1 << 8 * member.size) - 1).to_bytes(member.size, "little"))


def open_damaged(path: str | Path | None = None, symbols: Sequence[str] = ()) -> DamagedTarget:
    """Open a dump of an x86-64 kernel so that it can be damaged; the demo by default."""
    options = TargetOptions(demo=True) if path is None else TargetOptions(core=str(path), symbols=symbols)
    source = open_target(options)
    memory = DamagedMemory(source)
    notes = source.origin.read_notes()
    if not any(note.name == "VMCOREINFO" for note in elf.parse_notes(notes, "<")):
        notes += elf.make_note("VMCOREINFO", 0, source.prog["VMCOREINFO"].string_())
    prog = open_bare(62, notes)
    prog.add_memory_segment(0, PHYSICAL_SIZE, memory.read, physical=True)
    refuse_user_addresses(prog)
    paths = [module.debug_file_path for module in source.prog.modules() if module.debug_file_path is not None]
    with collect_warnings([]), contextlib.suppress(drgn.MissingDebugInfoError):
        prog.load_debug_info(paths, default=True)
    return DamagedTarget(prog, memory, source)
