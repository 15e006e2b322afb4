# SPDX-License-Identifier: LGPL-2.1-or-later
"""Makes a location table of an image without debug info: coverage points with the names of symbols,
without lines and inlined functions.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.symbol_table import SymbolTable, demangle, strip_clone_suffix
from kcovdbg.errors import CapabilityError
from kcovdbg.model.location import Frame
from kcovdbg.symbols.coverage_points import Functions, Points, find_points
from kcovdbg.symbols.location_table import LocationTable, NewTable
from kcovdbg.symbols.symbolizer import text_ranges
from kcovdbg.symbols.table_builder import list_symbols, merge_points
from kcovdbg.symbols.table_rows import Locations
from kcovdbg.symbols.table_target import TableTarget

# As long as a file is open, its path in /proc is valid.
_KEPT: Final[list[IO[bytes]]] = []


def open_name_target(path: str | os.PathLike[str], name: str) -> TableTarget:
    """Return an image without debug info as a target: its functions and coverage points.

    Its table is not kept in the cache, whose tables have source lines.

    :param name: its name in messages.
    :raises CapabilityError: when it has no build ID, no symbols, or no code.
    :raises ElfError: when it is damaged.
    """
    with ElfFile(path, name) as elf:
        table = _make_name_table(elf)
        header = elf.header
    stream = tempfile.TemporaryFile(prefix="kcovdbg-")  # noqa: SIM115 - kept open
    stream.write(table.to_bytes())
    stream.flush()
    _KEPT.append(stream)
    found = TableTarget(
        LocationTable(Path(f"/proc/{os.getpid()}/fd/{stream.fileno()}")),
        name,
        machine=header.machine_name,
        kind="a kernel image without debug info",
    )
    found.word_size, found.big_endian = header.word_size, header.big_endian
    found.names_remark = (
        f"{name} has no debug info: lines and inlined functions are missing, names are those of "
        f"its symbols"
    )
    return found


def _make_name_table(elf: ElfFile) -> NewTable:
    symbols = elf.symbols
    if elf.build_id is None or not len(symbols) or not elf.text_sections():
        missing = "code"
        if elf.build_id is None:
            missing = "build ID"
        elif not len(symbols):
            missing = "symbols"
        raise CapabilityError(
            f"{elf.name} has no debug info (DWARF) and no {missing}",
            hint="name the vmlinux with debug info: -s VMLINUX",
        )
    points = find_points(elf, symbols)
    rows = merge_points(points)
    names = _find_names(symbols, points, rows.pcs)
    distinct = [name for name in dict.fromkeys(names) if name is not None]
    locations = Locations()
    empty, *found = locations.add_frames(
        [(), *([Frame(name, None, None, None)] for name in distinct)]
    )
    numbers: dict[str | None, int] = {None: empty, **dict(zip(distinct, found, strict=True))}
    chains = [numbers[name] for name in names]
    ranges = text_ranges(elf)
    functions = list_symbols(symbols, ranges)
    return NewTable(
        elf.build_id, ranges, rows.pcs, rows.kinds, chains, locations.arrays(), functions
    )


def _find_names(symbols: SymbolTable, points: Points, pcs: Sequence[int]) -> list[str | None]:
    """Return the function of each PC; for the PC of a tail call, the function with the jump."""
    functions = Functions(symbols)
    # There are far more points than functions.
    shown: dict[str, str] = {}

    def name_at(address: int) -> str | None:
        name = functions.name_at(address)
        if name is None:
            return None
        if name not in shown:
            shown[name] = demangle(strip_clone_suffix(name))
        return shown[name]

    names: list[str | None] = []
    for pc in pcs:
        jumps = points.jumps.get(pc)
        names.append(name_at(pc - 1 if jumps is None else jumps[0]))
    return names
