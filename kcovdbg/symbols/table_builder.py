# SPDX-License-Identifier: LGPL-2.1-or-later
"""The builder of an image's location table: ``python -m kcovdbg.symbols.table_builder VMLINUX``.

It uses llvm-symbolizer if that is installed, in some seconds, otherwise drgn, in about a minute on two processors.
"""

from __future__ import annotations

import argparse
import fcntl
import multiprocessing
import os
import re
import sys
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from kcovdbg.elf.compile_units import CompileUnit, read_units
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.symbol_table import ElfSymbol
from kcovdbg.errors import CapabilityError, KcovdbgError, TargetError
from kcovdbg.model.location import Frame
from kcovdbg.symbols.coverage_points import PointKind, Points, find_points
from kcovdbg.symbols.gc_pause import without_collection
from kcovdbg.symbols.llvm_symbolizer import find_symbolizer, symbolize
from kcovdbg.symbols.location_table import FunctionSymbol, TableWriter, TextRange
from kcovdbg.symbols.table_cache import lock_path, open_table, table_path

# Suffixes of compilers to ELF symbols of functions that they changed or split; names in DWARF have none.
_SUFFIX = re.compile(r"\.(?:isra|constprop|part|cold|lto_priv|llvm)\b.*")
_FRAMES_PER_TASK = 2000


def _text_ranges(elf: ElfFile) -> list[TextRange]:
    return [TextRange(text.address, text.address + text.size, text.name) for text in elf.text_sections()]


def _frames_by_drgn(image: Path, start: int, end: int, addresses: Sequence[int]) -> list[tuple[Frame, ...]]:
    from kcovdbg.target.drgn.locations import frames_at, open_image

    program = open_image(image, start, end)
    return [frames_at(program, address) for address in addresses]


class _Worker:
    """The Program of a process of the pool."""

    locate = None

    @classmethod
    def open(cls, image: Path, start: int, end: int) -> None:
        from kcovdbg.target.drgn.locations import frames_at, open_image

        program = open_image(image, start, end)
        cls.locate = lambda address: frames_at(program, address)


def _locate_part(addresses: Sequence[int]) -> list[tuple[Frame, ...]]:
    assert _Worker.locate is not None
    return [_Worker.locate(address) for address in addresses]


def _locate_by_drgn(image: Path, ranges: Sequence[TextRange], addresses: Sequence[int]) -> list[tuple[Frame, ...]]:
    start, end = min(text.start for text in ranges), max(text.end for text in ranges)
    parts = [addresses[at : at + _FRAMES_PER_TASK] for at in range(0, len(addresses), _FRAMES_PER_TASK)]
    # Not by fork: drgn has threads of its own.
    context = multiprocessing.get_context("spawn")
    processes = max(1, min(len(os.sched_getaffinity(0)), len(parts), 4))
    with context.Pool(processes, _Worker.open, (image, start, end)) as pool:
        return [frames for part in pool.imap(_locate_part, parts) for frames in part]


def _complete_names(
    symbolizer: str, image: Path, ranges: Sequence[TextRange], addresses: Sequence[int]
) -> list[tuple[Frame, ...]]:
    """Return locations for which llvm-symbolizer has no short names: by drgn, or else with names of ELF symbols."""
    try:
        return _frames_by_drgn(image, min(text.start for text in ranges), max(text.end for text in ranges), addresses)
    except (ImportError, KcovdbgError):
        chains = symbolize(symbolizer, image, addresses, lambda frame: frame, function_names="linkage")
        return [
            tuple(frame._replace(function=frame.function and _SUFFIX.sub("", frame.function)) for frame in frames)
            for frames in chains
        ]


class _Locator:
    """Locates addresses of an image.

    :param symbolizer: path of llvm-symbolizer; None for drgn.
    :param elf: the image.
    :param ranges: its text.
    """

    def __init__(self, symbolizer: str | None, elf: ElfFile, ranges: Sequence[TextRange]) -> None:
        self._symbolizer = symbolizer
        self._elf = elf
        self._ranges = ranges
        self._numbers: dict[Frame, int] = {}

    def frames(self) -> list[Frame]:
        """Return the frames that the numbers stand for."""
        return list(self._numbers)

    def number(self, frame: Frame) -> int:
        """Return the number of a frame; comparing numbers is faster, and there are a million frames."""
        return self._numbers.setdefault(frame, len(self._numbers))

    def locate(self, addresses: Sequence[int]) -> list[tuple[int, ...]]:
        """Return the numbers of the frames of each address, innermost first."""
        if self._symbolizer is None:
            return self._number_all(_locate_by_drgn(self._elf.path, self._ranges, addresses))
        chains = symbolize(self._symbolizer, self._elf.path, addresses, self.number)
        _check_known(self._elf, sum(map(bool, chains)), len(addresses), self._symbolizer)
        nameless = {number for frame, number in self._numbers.items() if frame.function is None}
        again = [index for index, chain in enumerate(chains) if not nameless.isdisjoint(chain)]
        if again:
            wanted = [addresses[index] for index in again]
            completed = _complete_names(self._symbolizer, self._elf.path, self._ranges, wanted)
            for index, chain in zip(again, self._number_all(completed), strict=True):
                chains[index] = chain
        return chains

    def _number_all(self, chains: Sequence[tuple[Frame, ...]]) -> list[tuple[int, ...]]:
        return [tuple(map(self.number, frames)) for frames in chains]

    def common(self, groups: Mapping[tuple[int, ...], list[tuple[int, ...]]]) -> dict[tuple[int, ...], tuple[int, ...]]:
        """Return what the locations of each group have in common: all of it, or the function alone, or nothing."""
        frames = self.frames()
        found: dict[tuple[int, ...], tuple[int, ...]] = {}
        for group, chains in groups.items():
            outer = {frames[chain[-1]]._replace(line=None, column=None) for chain in chains if chain}
            if len(set(chains)) == 1:
                found[group] = chains[0]
            else:
                found[group] = (self.number(outer.pop()),) if len(outer) == 1 else ()
        return found


def _rows(points: Points) -> list[tuple[int, PointKind, int]]:
    """Return the PCs with their kinds, ascending, each with the address of what its location is that of."""
    kinds = (
        (points.pc, PointKind.PC),
        (points.cmp, PointKind.CMP),
        (points.entry, PointKind.ENTRY),
        (points.exit, PointKind.EXIT),
        ([pc for pc in points.tail if pc not in points.jumps], PointKind.TAIL),
    )
    rows = [(pc, kind, pc - 1) for pcs, kind in kinds for pc in pcs]
    return sorted(rows + [(pc, PointKind.TAIL_KNOWN, jumps[0]) for pc, jumps in points.jumps.items()])


def _add_points(writer: TableWriter, points: Points, locator: _Locator) -> None:
    rows = _rows(points)
    if not rows:
        return
    several = {pc: jumps for pc, jumps in points.jumps.items() if len(jumps) > 1}
    jumps = sorted({at for group in several.values() for at in group})
    chains = locator.locate([*(at for _, _, at in rows), *jumps])
    by_jump = dict(zip(jumps, chains[len(rows) :], strict=True))
    by_group = locator.common({group: [by_jump[at] for at in group] for group in set(several.values())})
    for index, (pc, _, _) in enumerate(rows):
        if pc in several:
            chains[index] = by_group[several[pc]]
    ids = [writer.frame_id(*frame) for frame in locator.frames()]
    shared = {chain: tuple([ids[number] for number in chain]) for chain in set(chains[: len(rows)])}
    writer.add_all([pc for pc, _, _ in rows], [kind for _, kind, _ in rows], [shared[chain] for chain in chains[: len(rows)]])


def _source_name(unit: CompileUnit) -> str:
    """Return the source file of a unit, relative to the build root where it is below it."""
    name = unit.name
    if unit.directory is not None and Path(name).is_absolute():
        name = name.removeprefix(f"{unit.directory.rstrip('/')}/")
    return os.path.normpath(name)


def _add_functions(writer: TableWriter, elf: ElfFile, ranges: Sequence[TextRange]) -> None:
    found = read_units(elf)
    names = [_source_name(unit) for unit in found]
    units = sorted((start, end, number) for number, unit in enumerate(found) for start, end in unit.ranges)
    starts = [start for start, _, _ in units]
    by_address: dict[int, list[ElfSymbol]] = {}
    for symbol in elf.symbols:
        if symbol.is_function and any(text.start <= symbol.address < text.end for text in ranges):
            by_address.setdefault(symbol.address, []).append(symbol)
    for address, symbols in by_address.items():
        # One without a size tells least.
        first = next((symbol for symbol in symbols if symbol.size), symbols[0])
        last = max(enumerate(symbols), key=lambda item: (item[1].size, item[0]))[1]
        index = bisect_right(starts, address) - 1
        unit = names[units[index][2]] if index >= 0 and address < units[index][1] else None
        alias = last.name if last.name != first.name else None
        writer.add_function(FunctionSymbol(first.name, address, first.size, alias, unit))


def make_table(elf: ElfFile, *, symbolizer: str | None) -> TableWriter:
    """Return a table of all points of an image.

    :param symbolizer: path of llvm-symbolizer; None for drgn.
    :raises CapabilityError: when the image has no build ID, text or source lines, or resolving fails.
    :raises ElfError: when the image is damaged.
    """
    build_id = elf.build_id
    ranges = _text_ranges(elf)
    if build_id is None or not ranges or elf.is_relocatable:
        raise CapabilityError(f"{elf.path}: a location table needs a linked image with a build ID and code")
    if not elf.has_lines:
        # Its build ID is that of the full image, for which the table would be found as well.
        raise CapabilityError(f"{elf.path}: a location table needs source lines, and this debug info has none")
    writer = TableWriter(build_id, ranges)
    _add_functions(writer, elf, ranges)
    _add_points(writer, find_points(elf), _Locator(symbolizer, elf, ranges))
    return writer


@contextmanager
def _only_builder(path: Path) -> Iterator[bool]:
    """Yield whether this process is the only one that builds a table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with lock_path(path).open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            # Never removed: two processes could each lock one of the same name.
            yield True


@contextmanager
def _hold(image: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a path of an image that remains valid: a decompressed one may be removed meanwhile."""
    try:
        file = Path(image).open("rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise TargetError(f"{image}: {error.strerror}") from error
    with file:
        # For other processes as well.
        held = Path(f"/proc/{os.getpid()}/fd/{file.fileno()}")
        yield held if held.exists() else Path(image)


def _check_known(elf: ElfFile, known: int, asked: int, by: str) -> None:
    """Check that there are locations: an image with source lines has one for nearly every point.

    :raises CapabilityError: when most are missing.
    """
    if elf.section(".debug_line") is not None and known < asked // 2:
        raise CapabilityError(f"{by} located only {known} of {asked} points of {elf.path}")


def build_table(image: str | os.PathLike[str], *, folder: Path | None = None, symbolizer: str | None = None) -> Path | None:
    """Build an image's table in the cache, unless it exists or another process is building it.

    :param symbolizer: path of llvm-symbolizer; None for drgn.
    :return: the table's file; None where another process is building it.
    :raises CapabilityError: see :func:`make_table`.
    :raises TargetError: when the image cannot be read.
    :raises OSError: when the table cannot be written.
    """
    with _hold(image) as path_of_image, ElfFile(path_of_image) as elf:
        build_id = elf.build_id
        if build_id is None:
            raise CapabilityError(f"{image} has no build ID")
        path = table_path(build_id, folder)
        with _only_builder(path) as is_only:
            if not is_only:
                return None
            there = open_table(build_id, folder)
            if there is not None:
                there.close()
                return path
            with without_collection():
                make_table(elf, symbolizer=symbolizer).write(path)
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the table of the image given on the command line.

    :return: the exit status: 0 when the table exists, 1 when it does not.
    """
    parser = argparse.ArgumentParser(prog="python -m kcovdbg.symbols.table_builder", description="build a location table")
    parser.add_argument("image", metavar="VMLINUX", help="kernel image with debug info")
    parser.add_argument("--folder", type=Path, help="directory of the table (default: the user's cache)")
    parser.add_argument("--with", dest="tool", choices=("llvm", "drgn"), help="resolver (default: llvm if installed)")
    parser.add_argument("--nice", action="store_true", help="run at low priority")
    options = parser.parse_args(arguments)
    if options.nice:
        os.nice(10)
    symbolizer = None if options.tool == "drgn" else find_symbolizer()
    if options.tool == "llvm" and symbolizer is None:
        parser.error("no llvm-symbolizer in PATH")
    try:
        build_table(options.image, folder=options.folder, symbolizer=symbolizer)
    except (KcovdbgError, OSError) as error:
        told = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
        sys.stderr.write(f"{told}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
