# SPDX-License-Identifier: LGPL-2.1-or-later
"""Builds the table of an image: ``python -m kcovdbg.symbols.build VMLINUX``.

llvm-symbolizer does the work when it is installed, in some seconds; drgn otherwise, in about a minute on two processors.
"""

from __future__ import annotations

import argparse
import fcntl
import multiprocessing
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from kcovdbg.errors import CapabilityError, KcovdbgError, TargetError
from kcovdbg.model.location import Frame
from kcovdbg.symbols.cache import open_table, table_path
from kcovdbg.symbols.compdir import read_build_directory
from kcovdbg.symbols.elf import ElfFile
from kcovdbg.symbols.garbage import without_collection
from kcovdbg.symbols.llvm import find_symbolizer, symbolize
from kcovdbg.symbols.points import PointKind, Points, find_points
from kcovdbg.symbols.table import FunctionSymbol, TableWriter, TextRange

# What a compiler appends to the ELF symbol of a function that it changed or split; DWARF has the name without.
_SUFFIX = re.compile(r"\.(?:isra|constprop|part|cold|lto_priv|llvm)\b.*")
_FRAMES_PER_TASK = 2000


def _text_ranges(elf: ElfFile) -> list[TextRange]:
    return [TextRange(text.address, text.address + text.size, text.name) for text in elf.text_sections()]


def _frames_by_drgn(image: Path, start: int, end: int, addresses: Sequence[int]) -> list[tuple[Frame, ...]]:
    from kcovdbg.target.drgn_source import frames_at, open_image

    program = open_image(image, start, end)
    return [frames_at(program, address) for address in addresses]


class _Worker:
    """drgn in a process of a pool, opened once."""

    locate = None

    @classmethod
    def open(cls, image: Path, start: int, end: int) -> None:
        from kcovdbg.target.drgn_source import frames_at, open_image

        program = open_image(image, start, end)
        cls.locate = lambda address: frames_at(program, address)


def _locate_part(addresses: Sequence[int]) -> list[tuple[Frame, ...]]:
    assert _Worker.locate is not None
    return [_Worker.locate(address) for address in addresses]


def _add_by_drgn(writer: TableWriter, image: Path, ranges: Sequence[TextRange], rows: Sequence[tuple[int, PointKind]]) -> None:
    start, end = min(text.start for text in ranges), max(text.end for text in ranges)
    parts = [rows[at : at + _FRAMES_PER_TASK] for at in range(0, len(rows), _FRAMES_PER_TASK)]
    # Not by fork: drgn has threads of its own.
    context = multiprocessing.get_context("spawn")
    processes = max(1, min(len(os.sched_getaffinity(0)), len(parts), 4))
    with context.Pool(processes, _Worker.open, (image, start, end)) as pool:
        tasks = ([pc - 1 for pc, _ in part] for part in parts)
        for part, found in zip(parts, pool.imap(_locate_part, tasks), strict=True):
            for (pc, kind), frames in zip(part, found, strict=True):
                writer.add_frames(pc, kind, frames)


def _complete_names(
    symbolizer: str, image: Path, ranges: Sequence[TextRange], addresses: Sequence[int]
) -> list[tuple[Frame, ...]]:
    """Locate again what llvm-symbolizer has no short name for: by drgn, or else by ELF symbols without their suffixes."""
    try:
        return _frames_by_drgn(image, min(text.start for text in ranges), max(text.end for text in ranges), addresses)
    except (ImportError, KcovdbgError):
        chains = symbolize(symbolizer, image, addresses, lambda frame: frame, function_names="linkage")
        return [
            tuple(frame._replace(function=frame.function and _SUFFIX.sub("", frame.function)) for frame in frames)
            for frames in chains
        ]


def _add_by_llvm(
    writer: TableWriter, symbolizer: str, elf: ElfFile, ranges: Sequence[TextRange], rows: Sequence[tuple[int, PointKind]]
) -> None:
    image = elf.path
    nameless: set[int] = set()

    def make_frame(frame: Frame) -> int:
        index = writer.frame_id(*frame)
        if frame.function is None:
            nameless.add(index)
        return index

    chains = symbolize(symbolizer, image, [pc - 1 for pc, _ in rows], make_frame)
    _check_known(elf, sum(map(bool, chains)), len(rows), symbolizer)
    writer.add_all([pc for pc, _ in rows], [kind for _, kind in rows], chains)
    again = [row for row, chain in zip(rows, chains, strict=True) if not nameless.isdisjoint(chain)]
    if again:
        completed = _complete_names(symbolizer, image, ranges, [pc - 1 for pc, _ in again])
        for (pc, kind), frames in zip(again, completed, strict=True):
            writer.add_frames(pc, kind, frames)


def _rows(points: Points) -> list[tuple[int, PointKind]]:
    kinds = ((points.pc, PointKind.PC), (points.cmp, PointKind.CMP), (points.tail, PointKind.TAIL))
    return sorted((pc, kind) for pcs, kind in kinds for pc in pcs)


def make_table(elf: ElfFile, *, symbolizer: str | None) -> TableWriter:
    """Resolve all points of an image.

    :param symbolizer: path of llvm-symbolizer; None for drgn.
    :raises CapabilityError: when the image has no build-id, no text or no source lines, or what should resolve it fails.
    :raises TargetError: when the image is damaged.
    """
    build_id = elf.build_id
    ranges = _text_ranges(elf)
    if build_id is None or not ranges or elf.is_relocatable:
        raise CapabilityError(f"{elf.path}: a table needs a linked image with a build-id and code")
    if not elf.has_lines:
        # Its build-id is that of the whole image, whose users would find the table and wonder.
        raise CapabilityError(f"{elf.path}: a table needs source lines, and this debug info has none")
    writer = TableWriter(build_id, ranges)
    writer.set_directory(read_build_directory(elf))
    for symbol in elf.symbols():
        if symbol.is_function and any(text.start <= symbol.value < text.end for text in ranges):
            writer.add_function(FunctionSymbol(symbol.name, symbol.value, symbol.size))
    rows = _rows(find_points(elf))
    if rows and symbolizer is not None:
        _add_by_llvm(writer, symbolizer, elf, ranges, rows)
    elif rows:
        _add_by_drgn(writer, elf.path, ranges, rows)
    return writer


@contextmanager
def _only_builder(path: Path) -> Iterator[bool]:
    """Tell whether this process is the only one that builds a table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            # The file stays: were it removed, two processes could lock one each.
            yield True


@contextmanager
def _hold(image: str | os.PathLike[str]) -> Iterator[Path]:
    """Give an image a name that lasts: one that was decompressed goes with the program that did it, and while we read it."""
    try:
        file = Path(image).open("rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise TargetError(f"{image}: {error.strerror}") from error
    with file:
        # Other processes open it by this name, too.
        held = Path(f"/proc/{os.getpid()}/fd/{file.fileno()}")
        yield held if held.exists() else Path(image)


def _check_known(elf: ElfFile, known: int, asked: int, by: str) -> None:
    """Refuse answers that can't be right: an image with lines has them for nearly every point.

    :raises CapabilityError: when most answers are missing.
    """
    if elf.section(".debug_line") is not None and known < asked // 2:
        raise CapabilityError(f"{by} locates {known} of {asked} points of {elf.path} only")


def build_table(image: str | os.PathLike[str], *, folder: Path | None = None, symbolizer: str | None = None) -> Path | None:
    """Build an image's table into the cache, unless it is there or another process is building it.

    :param symbolizer: path of llvm-symbolizer; None for drgn.
    :return: the table's file; None where another process is building it.
    :raises CapabilityError: see :func:`make_table`.
    :raises TargetError: when the image can't be read.
    :raises OSError: when the table can't be written.
    """
    with _hold(image) as path_of_image, closing(ElfFile(path_of_image)) as elf:
        build_id = elf.build_id
        if build_id is None:
            raise CapabilityError(f"{image} has no build-id")
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
    """Build the table of the image that the command line names.

    :return: the exit status: 0 when the table is there, 1 when not.
    """
    parser = argparse.ArgumentParser(prog="python -m kcovdbg.symbols.build", description="Build a kernel's symbol table.")
    parser.add_argument("image", metavar="VMLINUX", help="kernel image with debug info")
    parser.add_argument("--folder", type=Path, help="where to put it (default: the user's cache)")
    parser.add_argument("--with", dest="tool", choices=("llvm", "drgn"), help="what resolves addresses (default: llvm)")
    parser.add_argument("--nice", action="store_true", help="yield to other processes")
    options = parser.parse_args(arguments)
    if options.nice:
        os.nice(10)
    symbolizer = None if options.tool == "drgn" else find_symbolizer()
    if options.tool == "llvm" and symbolizer is None:
        parser.error("no llvm-symbolizer in PATH")
    try:
        build_table(options.image, folder=options.folder, symbolizer=symbolizer)
    except (KcovdbgError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
