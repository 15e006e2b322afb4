# SPDX-License-Identifier: LGPL-2.1-or-later
"""A dump's memory with something changed in it, under one loaded Program: loading debug info takes
seconds.
"""

from __future__ import annotations

import struct
from pathlib import Path

import drgn
from drgn.helpers.linux.mm import follow_phys

from kcovdbg.target.demo_files import find_demo
from kcovdbg.target.drgn.program_memory import copy_program
from kcovdbg.target.drgn.target import DrgnTarget
from kcovdbg.target.dump_file import working_path
from kcovdbg.target.target_options import TargetOptions, open_target

PAGE = 4096
LINE = 64
"""Bytes that are damaged or not as one."""
HEALTHY = Path(__file__).parents[1] / "golden" / "healthy" / "slice.zst"
"""A slice of the demo's kernel before anything damaged it."""


class DamagedMemory:
    """Physical memory of a target, with pages that were changed or taken away.

    :param source: the target; it is only read.
    """

    def __init__(self, source: DrgnTarget) -> None:
        self._read_page = lambda page: source.prog.read(page, PAGE, True)
        self._known: dict[int, bytes | None] = {}
        self.changed: dict[int, bytearray] = {}
        self.removed: set[int] = set()
        self.damaged: frozenset[int] = frozenset()
        """The lines that aren't what they were, by physical address over their size."""

    def heal(self) -> None:
        """Undo all damage."""
        self.changed.clear()
        self.removed.clear()
        self.damaged = frozenset()

    def settle(self) -> None:
        """Find out what a case's damage has changed, once it is done."""
        lines: set[int] = set()
        for page in self.removed:
            lines.update(range(page // LINE, (page + PAGE) // LINE))
        for page, data in self.changed.items():
            before = self._known.get(page)
            lines.update(
                (page + at) // LINE
                for at in range(0, PAGE, LINE)
                if before is None or data[at : at + LINE] != before[at : at + LINE]
            )
        self.damaged = frozenset(lines)

    def page(self, page: int) -> bytes | None:
        """Return a page as it is now, None where there is none."""
        if page in self.removed:
            return None
        changed = self.changed.get(page)
        return self.healthy_page(page) if changed is None else bytes(changed)

    def healthy_page(self, page: int) -> bytes | None:
        """Return a page as it was before any damage, None where there is none."""
        if page not in self._known:
            try:
                self._known[page] = self._read_page(page)
            except drgn.FaultError:
                self._known[page] = None
        return self._known[page]

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
        data = self.page(page)
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
        self.notes_of_dump = b""
        self._source = source

    def heal(self) -> None:
        """Undo all damage, and forget what was read of memory."""
        self.memory.heal()
        self.forget()

    def forget(self) -> None:
        """Forget what was read of memory and kept: so that the next one sees the damage."""
        self._cpus = None
        self._per_cpu.clear()

    @property
    def vmlinux(self) -> str:
        """The kernel's image with debug info, as a file that others can read."""
        found: str | None = working_path(self._source.prog.main_module().debug_file_path)
        assert found is not None
        return found

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

    def put(self, address: int, type_name: str, path: str, value: int) -> None:
        """Change a member."""
        member = self.member(type_name, path)
        self.write(
            address + member.offset,
            (value & (1 << 8 * member.size) - 1).to_bytes(member.size, "little"),
        )


def open_damaged() -> DamagedTarget:
    """Open a slice of the demo's kernel, healthy, so that it can be damaged."""
    demo = find_demo()
    symbols = (str(demo / "vmlinux.zst"), str(demo / "kcovlab_keep.ko.zst"))
    source = open_target(TargetOptions(core=str(HEALTHY), symbols=symbols))
    assert isinstance(source, DrgnTarget)
    memory = DamagedMemory(source)
    notes = source.read_notes()
    target = DamagedTarget(copy_program(source.prog, notes, memory.read), memory, source)
    target.notes_of_dump = notes
    return target
