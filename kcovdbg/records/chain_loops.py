# SPDX-License-Identifier: LGPL-2.1-or-later
"""Loops over the chains of frames of many PCs, in C, with Python implementations that give the same results.

Numbers of a damaged table that are beyond a column's end are skipped. The header native/chains.h documents the C functions.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from kcovdbg.compiled_module import column, has_native, load_native, zeros
from kcovdbg.model.frame_columns import KIND_BITS, MAX_DEPTH, NO_CHAIN, FrameColumns, frames_of_chain
from kcovdbg.records.native_loops import NO_ID
from kcovdbg.symbols.location_table import TableColumns


class FoundChains(NamedTuple):
    """The chains of PCs in a location table."""

    chains: array[int]
    """Of each PC; NO_CHAIN where the table has no frames of it. Type code Q."""
    rest: array[int]
    """Indexes of the PCs without one. Type code I."""
    seen: bytearray
    """Of each row of the table, whether it is that of one of the PCs: 0 or 1."""


class LineSums(NamedTuple):
    """What was counted for each line, by its number."""

    hits: array[int]
    points: array[int]
    covered: array[int]


class GroupSums(NamedTuple):
    """What was counted for each group of PCs, by its number."""

    records: array[int]
    points: array[int]
    """Number of PCs."""
    hottest: array[int]
    """Index of the first of the PCs with the most records."""
    repeats: array[int]


def _use(native: bool | None) -> bool:
    return has_native() if native is None else native


def _native_chains(frames: FrameColumns) -> Any:
    """Return the C structure; it is valid as long as the columns are."""
    ffi, _ = load_native()
    numbers = column("I", frames.chain_frame, len(frames.chain_frame))
    return ffi.new("struct kcovdbg_chains *", {"frames": numbers, "count": len(frames.chain_frame)}), numbers


def find_chains(pcs: array[int], table: TableColumns, *, native: bool | None = None) -> FoundChains:
    """Find the chains of PCs in a table.

    :param pcs: ascending; type code Q.
    :param native: whether to use the compiled module; None to use it if it is there. Likewise below.
    """
    chains, seen = zeros("Q", len(pcs)), bytearray(len(table.offset))
    if _use(native):
        _, lib = load_native()
        rest = zeros("I", len(pcs))
        missing = lib.kcovdbg_chains_find(
            column("Q", pcs, len(pcs)),
            len(pcs),
            table.base,
            column("I", table.offset, len(table.offset)),
            column("Q", table.chain, len(table.offset)),
            len(table.offset),
            column("Q", chains, len(pcs)),
            column("I", rest, len(pcs)),
            column("B", seen, len(table.offset)),
        )
        return FoundChains(chains, rest[:missing], seen)
    rest = array("I")
    offsets, rows = iter(table.offset), iter(table.chain)
    row, offset, chain = -1, -1, NO_CHAIN
    for index, pc in enumerate(pcs):
        wanted = pc - table.base
        while offset < wanted:
            row += 1
            offset, chain = next(offsets, 1 << 64), next(rows, NO_CHAIN)
        if offset == wanted:
            seen[row] = 1
            if chain >> KIND_BITS & MAX_DEPTH:
                chains[index] = chain
                continue
        rest.append(index)
    return FoundChains(chains, rest, seen)


def _python_chains(frames: FrameColumns, chains: Sequence[int]) -> Iterator[Sequence[int]]:
    return (frames_of_chain(frames, chain) for chain in chains)


def _find_ends(frames: FrameColumns, chains: Sequence[int], outermost: bool, native: bool | None) -> array[int]:
    if _use(native):
        _, lib = load_native()
        found = zeros("I", len(chains))
        within, _keep = _native_chains(frames)
        lib.kcovdbg_chains_ends(
            within[0], column("Q", chains, len(chains)), len(chains), outermost, column("I", found, len(chains))
        )
        return found
    end = -1 if outermost else 0
    return array("I", [chain[end] if len(chain) else NO_ID for chain in _python_chains(frames, chains)])


def find_innermost(frames: FrameColumns, chains: array[int], *, native: bool | None = None) -> array[int]:
    """Return the number of each chain's innermost frame, :data:`NO_ID` of an empty one."""
    return _find_ends(frames, chains, False, native)


def find_outermost(frames: FrameColumns, chains: Sequence[int], *, native: bool | None = None) -> array[int]:
    """Return the number of each chain's outermost frame, :data:`NO_ID` of an empty one."""
    return _find_ends(frames, chains, True, native)


def flatten_chains(frames: FrameColumns, chains: array[int], *, native: bool | None = None) -> tuple[array[int], array[int]]:
    """Return the length of each chain, and the numbers of the frames of all of them, innermost first."""
    if _use(native):
        ffi, lib = load_native()
        lengths = zeros("I", len(chains))
        within, _keep = _native_chains(frames)
        arguments = within[0], column("Q", chains, len(chains)), len(chains), column("I", lengths, len(chains))
        numbers = zeros("I", lib.kcovdbg_chains_flatten(*arguments, ffi.NULL, 0))
        lib.kcovdbg_chains_flatten(*arguments, column("I", numbers, len(numbers)), len(numbers))
        return lengths, numbers
    lengths, numbers = array("I"), array("I")
    for chain in _python_chains(frames, chains):
        lengths.append(len(chain))
        numbers.extend(chain)
    return lengths, numbers


def combine_flags(frames: FrameColumns, chains: Sequence[int], flags: bytes, *, native: bool | None = None) -> bytes:
    """Return the flags of all frames of each chain, combined by "or".

    :param flags: of each frame.
    """
    if _use(native):
        _, lib = load_native()
        combined = bytearray(len(chains))
        within, _keep = _native_chains(frames)
        lib.kcovdbg_chains_flags(
            within[0],
            column("Q", chains, len(chains)),
            len(chains),
            column("B", flags, len(flags)),
            len(flags),
            column("B", combined, len(chains)),
        )
        return bytes(combined)

    def combine(chain: Sequence[int]) -> int:
        found = 0
        for frame in chain:
            found |= flags[frame] if frame < len(flags) else 0
        return found

    return bytes(map(combine, _python_chains(frames, chains)))


def add_lines(
    frames: FrameColumns,
    groups: Iterable[tuple[array[int], array[int] | None]],
    lines: array[int],
    line_count: int,
    *,
    native: bool | None = None,
) -> LineSums:
    """Count chains for the lines of their frames, for each line once.

    :param groups: chains, with the hits of each; None for no hits.
    :param lines: the number of each frame's line.
    :param line_count: of lines.
    """
    sums = LineSums(zeros("Q", line_count), zeros("I", line_count), zeros("I", line_count))
    if _use(native):
        _, lib = load_native()
        ffi, _ = load_native()
        within, _keep = _native_chains(frames)
        for chains, hits in groups:
            failed = lib.kcovdbg_chains_add(
                within[0],
                column("Q", chains, len(chains)),
                ffi.NULL if hits is None else column("Q", hits, len(chains)),
                len(chains),
                column("I", lines, len(lines)),
                len(lines),
                line_count,
                column("Q", sums.hits, line_count),
                column("I", sums.points, line_count),
                column("I", sums.covered, line_count),
            )
            if failed:
                raise MemoryError
        return sums
    for chains, hits in groups:
        for index, chain in enumerate(_python_chains(frames, chains)):
            more = 0 if hits is None else hits[index]
            for line in {lines[frame] for frame in chain if frame < len(lines)}:
                if line < line_count:
                    sums.hits[line] += more
                    sums.points[line] += 1
                    sums.covered[line] += more > 0
    return sums


def gather(indexes: Sequence[int], values: Sequence[int], missing: int, *, native: bool | None = None) -> array[int]:
    """Return the value at each index.

    :param indexes: of 32 bits, as the values.
    :param missing: for an index beyond the end.
    """
    if _use(native):
        _, lib = load_native()
        found = zeros("I", len(indexes))
        lib.kcovdbg_gather(
            column("I", indexes, len(indexes)),
            len(indexes),
            column("I", values, len(values)),
            len(values),
            missing,
            column("I", found, len(indexes)),
        )
        return found
    count = len(values)
    return array("I", [values[index] if index < count else missing for index in indexes])


def count_repeats(ids: array[int], groups: array[int], *, native: bool | None = None) -> array[int]:
    """Count the records that repeat a PC of the same run of a group, mostly in loops.

    A run is consecutive records whose PCs have the same group.

    :param ids: the number of each record's PC.
    :param groups: of each PC.
    :return: repeated records of each PC. Type code Q.
    """
    repeats = zeros("Q", len(groups))
    if _use(native):
        _, lib = load_native()
        failed = lib.kcovdbg_count_repeats(
            column("I", ids, len(ids)),
            len(ids),
            column("I", groups, len(groups)),
            len(groups),
            column("Q", repeats, len(groups)),
        )
        if failed:
            raise MemoryError
        return repeats
    had = zeros("I", len(groups))
    run = group = 0
    for index in ids:
        if groups[index] != group or not run:
            group = groups[index]
            run += 1
        repeats[index] += had[index] == run
        had[index] = run
    return repeats


def sum_groups(
    groups: array[int], counts: array[int], repeats: array[int], group_count: int, *, native: bool | None = None
) -> GroupSums:
    """Sum up the records of groups of PCs.

    :param groups: of each PC.
    :param counts: records of each PC. Type code Q.
    :param repeats: repeated records of each PC. Type code Q.
    """
    sums = GroupSums(zeros("Q", group_count), zeros("I", group_count), zeros("I", group_count), zeros("Q", group_count))
    if _use(native):
        _, lib = load_native()
        lib.kcovdbg_sum_groups(
            column("I", groups, len(groups)),
            column("Q", counts, len(groups)),
            column("Q", repeats, len(groups)),
            len(groups),
            group_count,
            column("Q", sums.records, group_count),
            column("I", sums.points, group_count),
            column("I", sums.hottest, group_count),
            column("Q", sums.repeats, group_count),
        )
        return sums
    for index, group in enumerate(groups):
        if not sums.points[group] or counts[index] > counts[sums.hottest[group]]:
            sums.hottest[group] = index
        sums.points[group] += 1
        sums.records[group] += counts[index]
        sums.repeats[group] += repeats[index]
    return sums
