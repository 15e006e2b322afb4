# SPDX-License-Identifier: LGPL-2.1-or-later
"""The builder of an image's location table: ``python -m kcovdbg.symbols.table_builder VMLINUX``.

All cores work, each on parts.
"""

from __future__ import annotations

import argparse
import fcntl
import gc
import os
import sys
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import compress, islice
from operator import ne, not_
from pathlib import Path
from typing import Final

from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.placed_module import PlacedModule
from kcovdbg.elf.shared_debug_info import find_shared_file, find_shared_link
from kcovdbg.elf.symbol_table import SymbolTable
from kcovdbg.errors import CapabilityError, KcovdbgError, TargetError
from kcovdbg.file_digest import UnchangingFile, open_unchanging
from kcovdbg.limits import hold_memory, hold_work_of_process
from kcovdbg.model.location import LoadedModule
from kcovdbg.symbols.address_locator import AddressLocator, join_spellings
from kcovdbg.symbols.arch import ARCHITECTURES
from kcovdbg.symbols.blocks import BlockMaker, order_rows, read_linked
from kcovdbg.symbols.coverage_points import PointKind, Points, find_points
from kcovdbg.symbols.definitions import list_definitions
from kcovdbg.symbols.dwarf_reader import CompileUnit, DwarfReader
from kcovdbg.symbols.location_table import (
    NO_POINTS_HINT,
    LocationTable,
    NewTable,
    SymbolColumns,
    TextRange,
)
from kcovdbg.symbols.symbolizer import text_ranges, without_collection
from kcovdbg.symbols.table_cache import (
    CACHE_HINT,
    Progress,
    lock_path,
    make_table_key,
    open_table,
    table_path,
    write_progress,
)
from kcovdbg.symbols.table_rows import (
    INVERTED,
    Locations,
    MergedPoints,
    find_equal,
    join_numbers,
    merge_kinds,
    select_numbers,
    select_words,
    subtract,
)
from kcovdbg.target.end_signals import reading
from kcovdbg.user_folder import make_folder

# Seconds between two looks at another process that builds the same table.
_PAUSE: Final = 0.05


# For each kind, whether a PC has the location of the byte before it.
_IS_PLAIN: Final = bytes(kind != PointKind.TAIL_KNOWN for kind in range(256))


def _list_addresses(rows: MergedPoints, jumps: Mapping[int, tuple[int, ...]]) -> MergedPoints:
    """Return the addresses on which the locations of PCs depend: addresses inside jumps with the
    kind 1, all others with the kind 0.
    """
    plain = select_words(rows.pcs, rows.kinds.translate(_IS_PLAIN), -1)
    inside = set().union(*set(jumps.values()))
    return merge_kinds(((plain, 0), (sorted(inside), 1)))


def _locate_rows(
    rows: MergedPoints,
    jumps: Mapping[int, tuple[int, ...]],
    addresses: MergedPoints,
    located: array[int],
    locations: Locations,
) -> array[int]:
    """Return the location of each PC.

    :param jumps: :attr:`Points.jumps`.
    :param addresses: from :func:`_list_addresses`.
    :param located: the location of each of these addresses.
    """
    of_plain = select_numbers(located, addresses.kinds.translate(INVERTED))
    inside = select_words(addresses.pcs, addresses.kinds)
    of_inside = dict(zip(inside, select_numbers(located, addresses.kinds), strict=True))
    groups = sorted(set(jumps.values()))
    common = locations.common([of_inside[at] for at in group] for group in groups)
    by_group = dict(zip(groups, common, strict=True))
    is_plain = rows.kinds.translate(_IS_PLAIN)
    known = select_words(rows.pcs, is_plain.translate(INVERTED))
    of_known = array("I", [by_group[jumps[pc]] for pc in known])
    return join_numbers(is_plain, of_known, of_plain)


def _source_name(unit: CompileUnit | None) -> str | None:
    """Return the source file of a unit, relative to the build root if it is below that; None for no
    unit.
    """
    if unit is None:
        return None
    # rustc appends the part of the crate: lib.rs/@/kernel.4df2…-cgu.0.
    name = unit.name.partition("/@/")[0]
    if unit.directory is not None and name.startswith("/"):
        name = name.removeprefix(f"{unit.directory.rstrip('/')}/")
    return os.path.normpath(name)


def list_symbols(symbols: SymbolTable, ranges: Sequence[TextRange]) -> SymbolColumns:
    """Return the functions of an image by their symbols, ascending, one for each address, without
    units.
    """
    columns = symbols.function_columns
    found = [
        index for text in sorted(ranges) for index in columns.find_between(text.start, text.end)
    ]
    starts = [columns.addresses[index] for index in found]
    is_first = [True, *map(ne, starts, islice(starts, 1, None))]
    chosen = list(compress(found, is_first))
    addresses = list(compress(starts, is_first))
    aliases: list[str | None] = [None] * len(chosen)
    for address in dict.fromkeys(compress(starts, map(not_, is_first))):
        same = found[bisect_left(starts, address) : bisect_right(starts, address)]
        # A symbol without a size is the least useful.
        own = next((index for index in same if columns.sizes[index]), same[0])
        # The last of the largest symbols.
        other = max(reversed(same), key=columns.sizes.__getitem__)
        row = bisect_left(addresses, address)
        chosen[row] = own
        if columns.names[other] != columns.names[own]:
            aliases[row] = columns.names[other]
    return SymbolColumns(
        [columns.names[index] for index in chosen],
        addresses,
        [columns.sizes[index] for index in chosen],
        aliases,
        [None] * len(chosen),
    )


def _list_functions(
    symbols: SymbolTable, reader: DwarfReader, ranges: Sequence[TextRange]
) -> SymbolColumns:
    found = list_symbols(symbols, ranges)
    units = reader.find_units(array("Q", found.addresses))
    names = {number: _source_name(reader.unit(number)) for number in set(units)}
    return found._replace(units=list(map(names.__getitem__, units)))


def merge_points(points: Points) -> MergedPoints:
    """Return all points of an image in one column of PCs, with their kinds."""
    known = array("Q", sorted(points.jumps))
    return merge_kinds(
        (
            (points.pc, PointKind.PC),
            (points.cmp, PointKind.CMP),
            (points.entry, PointKind.ENTRY),
            (points.exit, PointKind.EXIT),
            (subtract(points.tail, known), PointKind.TAIL),
            (known, PointKind.TAIL_KNOWN),
        )
    )


def make_table(
    elf: ElfFile,
    *,
    code: ElfFile | None = None,
    shared: ElfFile | None = None,
    report: Callable[[Progress], None] = lambda _: None,
) -> NewTable:
    """Return a table of all points of an image.

    :param elf: the image, or its file of debug info.
    :param code: the image, if ``elf`` is its file of debug info.
    :param shared: the file that it shares debug info with; None to find that, if there is one.
    :param report: called with the progress of locating the points.
    :raises CapabilityError: when the image has no build ID, text or source lines, or neither points
        nor blocks, or resolving fails.
    :raises ElfError: when the image is damaged.
    """
    code = elf if code is None else code
    build_id, ranges = _require_parts(elf, code)
    symbols = elf.symbols if len(elf.symbols) else code.symbols
    reader = DwarfReader(elf, shared=shared)
    points = find_points(code, symbols)
    rows = merge_points(points)
    addresses = _list_addresses(rows, points.jumps)
    locator = AddressLocator(reader, symbols, addresses.pcs, report)
    # This runs while the locator's threads work.
    functions = _list_functions(symbols, reader, ranges)
    maker = _make_block_maker(code, symbols, reader)
    if not rows.pcs and maker is None:
        # With blocks a kernel without KCOV has what lists of executed addresses need.
        if code.header.machine not in ARCHITECTURES:
            raise CapabilityError(
                f"{code.name}: calls of {code.header.machine_name} are unknown, and so are its "
                f"coverage points",
                hint="top and sym name PCs of any machine without them",
            )
        raise CapabilityError(f"{code.name}: no coverage points", hint=NO_POINTS_HINT)
    located = locator.finish()
    chains = _locate_rows(rows, points.jumps, addresses, located.chains, locator.locations)
    _require_lines(elf, chains)
    blocks = None
    if maker is not None:
        blocks = maker.make(order_rows(located.rows), min(text.start for text in ranges))
    locations = join_spellings(locator.locations.arrays())
    return NewTable(
        build_id,
        ranges,
        rows.pcs,
        rows.kinds,
        chains,
        locations,
        functions,
        list_definitions(located.definitions),
        blocks,
    )


def make_module_table(module: LoadedModule, path: str) -> LocationTable:
    """Return a table of a module where it is loaded, which takes some milliseconds for most.

    Code without a known address is left out, such as ``.init.text``.

    :param path: the path of its file with debug info.
    :raises CapabilityError: as :func:`make_table`.
    :raises ElfError: when the file is damaged.
    :raises LimitError: when it takes too much processor time.
    """
    with reading(path), PlacedModule(path, dict(module.sections)) as elf, without_collection():
        return LocationTable(path, contents=make_table(elf).to_bytes())


def _require_parts(elf: ElfFile, code: ElfFile) -> tuple[str, tuple[TextRange, ...]]:
    """Return the build ID and the code of an image that a table can be made of.

    :raises CapabilityError: when none can be made.
    """
    build_id, ranges = elf.build_id, text_ranges(code)
    if build_id is None or not ranges or code.is_relocatable:
        hint = None
        if elf is code and elf.has_lines:
            hint = "this is debug info alone: name the image as well"
        raise CapabilityError(
            f"{code.name}: a location table needs a linked image with a build ID and code",
            hint=hint,
        )
    if code.build_id != build_id:
        raise CapabilityError(f"{code.name} and {elf.name} are of different builds")
    if not elf.has_lines:
        raise CapabilityError(
            f"{elf.name}: a location table needs source lines, and this debug info has none"
        )
    if max(text.end for text in ranges) - min(text.start for text in ranges) >= 1 << 32:
        raise CapabilityError(f"{code.name}: its code is spread over more than 4 GiB")
    return build_id, ranges


def _require_lines(elf: ElfFile, chains: array[int]) -> None:
    """Raise CapabilityError if debug info has no lines for most points.

    Debug info of a known form has lines for nearly all.

    :param chains: the location of each point; 0 is the location without frames.
    """
    known = len(chains) - len(find_equal(chains, 0))
    if known < len(chains) // 2:
        raise CapabilityError(
            f"{elf.name}: debug info has lines of only {known} of {len(chains)} coverage points",
            hint="it is incomplete, damaged, or in the 64-bit format, which is not read",
        )


def _make_block_maker(
    code: ElfFile, symbols: SymbolTable, reader: DwarfReader
) -> BlockMaker | None:
    """Return the maker of an image's blocks; None if its code is not understood."""
    try:
        return BlockMaker(read_linked(code, symbols, reader))
    except CapabilityError:
        return None


@contextmanager
def _only_builder(path: Path) -> Iterator[int]:
    """Wait until no other process builds a table, and lock the table's file of progress; yield the
    descriptor of that file.

    :raises CapabilityError: when the process that started this one has ended meanwhile.
    """
    parent = os.getppid()
    make_folder(path.parent)
    # The file that a link leads to stays as it is.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(lock_path(path), flags, 0o600), "rb") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if os.getppid() != parent:
                    raise CapabilityError(
                        "nobody waits for the table, which another process builds"
                    ) from None
                time.sleep(_PAUSE)
        # The file is never removed: two processes could then lock two files of one name.
        write_progress(lock.fileno(), Progress(0, 0))
        yield lock.fileno()


def _name_file(image: str | os.PathLike[str]) -> str:
    """Return the name of a file in messages; for a path of a descriptor, the name of its file."""
    path = name = Path(image)
    with suppress(OSError):
        if path.is_relative_to("/proc/self/fd"):
            name = path.readlink()
    return str(name)


@contextmanager
def _open(image: str | os.PathLike[str]) -> Iterator[tuple[ElfFile, UnchangingFile]]:
    """Open an image, or a copy of an image that others can write, with the digest of its contents.

    :raises TargetError: when it cannot be read or copied.
    """
    name = _name_file(image)
    with ExitStack() as stack:
        try:
            found = stack.enter_context(open_unchanging(image))
        except OSError as error:
            raise TargetError(f"{name}: {error.strerror or error}") from None
        yield stack.enter_context(ElfFile(f"/proc/self/fd/{found.file.fileno()}", name)), found


def build_table_file(
    image: str | os.PathLike[str],
    *,
    code: str | os.PathLike[str] | None = None,
    shared: str | os.PathLike[str] | None = None,
    folder: Path | None = None,
) -> Path:
    """Build an image's table in the cache, unless it exists. If another process builds it, wait for
    that process.

    :param code: the stripped image, if the first one is its file of debug info.
    :param shared: the file that it shares debug info with; None to find that, if there is one.
    :return: the table's file.
    :raises CapabilityError: see :func:`make_table`.
    :raises TargetError: when the image cannot be read.
    :raises OSError: when the table cannot be written.
    """
    with ExitStack() as stack:
        elf, found = stack.enter_context(_open(image))
        files = [found]
        if shared is None:
            link = find_shared_link(elf)
            shared = None if link is None else find_shared_file(elf, link)
        others: list[ElfFile | None] = []
        for path in (shared, code):
            other = None
            if path is not None:
                other, found = stack.enter_context(_open(path))
                files.append(found)
            others.append(other)
        build_id = elf.build_id
        if build_id is None:
            raise CapabilityError(f"{elf.name} has no build ID")
        key = make_table_key(build_id, [found.digest for found in files])
        path = table_path(key, folder)
        lock = stack.enter_context(_only_builder(path))
        if open_table(key, folder) is not None:
            return path
        with without_collection():
            table = make_table(
                elf, shared=others[0], code=others[1], report=partial(write_progress, lock)
            )
            if not all(found.is_unchanged() for found in files):
                raise CapabilityError(
                    f"{elf.name} was changed while it was read",
                    hint="try again when nothing writes it",
                )
            table.write(path)
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the table of the image given on the command line.

    :return: the exit status: 0 when the table exists, 1 when it does not.
    """
    parser = argparse.ArgumentParser(
        prog="python -m kcovdbg.symbols.table_builder", description="build a location table"
    )
    parser.add_argument(
        "image", metavar="VMLINUX", help="kernel image with debug info, or its debug info alone"
    )
    parser.add_argument(
        "--code", metavar="IMAGE", help="the kernel image, if VMLINUX is its debug info alone"
    )
    parser.add_argument(
        "--shared", metavar="FILE", help="the file that dwz moved debug info of the image to"
    )
    parser.add_argument(
        "--folder", type=Path, help="directory of the table (default: the user's cache)"
    )
    parser.add_argument("--nice", action="store_true", help="run at low priority")
    options = parser.parse_args(arguments)
    if options.nice:
        os.nice(10)
    hold_work_of_process()
    try:
        with hold_memory(f"{_name_file(options.image)}: its location table"):
            build_table_file(
                options.image,
                code=options.code,
                shared=options.shared,
                folder=options.folder,
            )
    except (KcovdbgError, OSError) as error:
        message, hint = str(error), CACHE_HINT
        if isinstance(error, KcovdbgError):
            hint = error.hint or ""
        elif error.filename:
            message = f"{error.filename}: {error.strerror}"
        sys.stderr.write(f"{message}\n  {hint}\n")
        return 1
    # The process ends: there is nothing to collect.
    gc.freeze()
    return 0


if __name__ == "__main__":
    sys.exit(main())
