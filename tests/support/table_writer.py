# SPDX-License-Identifier: LGPL-2.1-or-later
"""Location tables of a few PCs."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from kcovdbg.elf.file import ElfFile
from kcovdbg.model.location import Frame
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.location_table import FunctionSymbol, NewTable, SymbolColumns, TextRange
from kcovdbg.symbols.table_rows import Locations


class TableWriter:
    """A table that PCs and functions are added to one by one."""

    def __init__(self, build_id: str, ranges: Sequence[TextRange]) -> None:
        self._build_id = build_id
        self._ranges = ranges
        self._rows: dict[int, tuple[PointKind, tuple[Frame, ...]]] = {}
        self._functions: dict[int, FunctionSymbol] = {}

    def add_frames(self, pc: int, kind: PointKind, frames: Iterable[Frame]) -> None:
        self._rows[pc] = kind, tuple(frames)

    def add_function(self, symbol: FunctionSymbol) -> None:
        self._functions.setdefault(symbol.address, symbol)

    def make(self) -> NewTable:
        pcs = sorted(self._rows)
        kinds = [self._rows[pc][0] for pc in pcs]
        locations = Locations()
        chains = locations.add_frames(self._rows[pc][1] for pc in pcs)
        functions = [self._functions[address] for address in sorted(self._functions)]
        columns = zip(*functions, strict=True) if functions else [()] * 5
        return NewTable(
            self._build_id,
            self._ranges,
            pcs,
            kinds,
            chains,
            locations.arrays(),
            SymbolColumns(*columns),
        )

    def to_bytes(self) -> bytes:
        return self.make().to_bytes()

    def write(self, path: Path) -> None:
        self.make().write(path)


def write_one(path: Path, image: Path, function: str, *, is_other_build: bool = False) -> int:
    """Write a table of one PC of an image, which names a function that the image does not have;
    return the PC.
    """
    with ElfFile(image) as elf:
        text, build_id = elf.section(".text"), elf.build_id
    assert text is not None
    assert build_id is not None
    writer = TableWriter(
        "00" * 20 if is_other_build else build_id,
        [TextRange(text.address, text.address + text.size, ".text")],
    )
    writer.add_frames(text.address + 9, PointKind.PC, (Frame(function, "a.c", 7, None),))
    writer.write(path)
    return text.address + 9
