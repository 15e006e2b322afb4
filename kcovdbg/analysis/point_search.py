# SPDX-License-Identifier: LGPL-2.1-or-later
"""Coverage points of functions and files, searched in C where the compiled module can be used."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import compress, count

from kcovdbg.compiled_module import has_native
from kcovdbg.model.frame_columns import KIND_MASK
from kcovdbg.records.chain_loops import combine_flags
from kcovdbg.symbols.coverage_points import POINT_KINDS, PointKind
from kcovdbg.symbols.location_table import LocationTable


def find_points(
    table: LocationTable,
    kinds: Iterable[PointKind] = POINT_KINDS,
    *,
    function: str | None = None,
    files: Iterable[str] | None = None,
    native: bool | None = None,
) -> array[int]:
    """Find points as :meth:`LocationTable.find` does.

    :param native: whether to search in C; by default where that is possible.
    """
    if not (has_native() if native is None else native):
        return table.find(kinds, function=function, files=files)
    columns = table.columns
    flags = bytearray(len(columns.frames.function))
    for frame in table.find_frames(function=function, files=files):
        flags[frame] = 1
    of_kinds = frozenset(map(int, kinds))
    found = array("Q")
    for index in compress(count(), combine_flags(columns.frames, columns.chain, bytes(flags), native=True)):
        if columns.chain[index] & KIND_MASK in of_kinds:
            found.append(columns.base + columns.offset[index])
    if function is not None and files is None:
        return array("Q", sorted({*found, *table.find_in_symbols(of_kinds, function)}))
    return found
