# SPDX-License-Identifier: LGPL-2.1-or-later
"""Coverage of source lines and of coverage points by a trace."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from kcovdbg.abi.address import WORD_MASK, address_of, pc_of
from kcovdbg.abi.record import CALL_LENGTHS
from kcovdbg.compare.trace_builds import TraceBuild
from kcovdbg.console.context import Context
from kcovdbg.console.coverage_points import find_point_table
from kcovdbg.errors import CapabilityError, KcovdbgError
from kcovdbg.model.location import Frame
from kcovdbg.records.coverage import FileCoverage, ModulePoint, find_lines
from kcovdbg.records.pc_counts import as_counts
from kcovdbg.symbols.coverage_points import PointKind


class CoveredLines(NamedTuple):
    """Lines with points in functions that were executed."""

    files: list[FileCoverage]
    """By name."""
    remarks: tuple[str, ...]
    """Missing parts: lines that were not executed, or records of tail calls."""

    @property
    def total(self) -> int:
        """Number of lines with points."""
        return sum(len(file.lines) for file in self.files)

    @property
    def covered(self) -> int:
        """Number of executed lines."""
        return sum(file.covered_lines for file in self.files)


def find_line_coverage(
    context: Context,
    counts: Mapping[int, int],
    kinds: Iterable[PointKind],
    wanted: Callable[[Frame], bool] | None = None,
    build: TraceBuild | None = None,
) -> CoveredLines:
    """Return the lines with points in functions that were executed.

    :param counts: PC -> records.
    :param kinds: of the points that can be among them.
    :param wanted: of which functions or files the lines are of interest; None for all.
    :param build: that was executed; None for the kernel.
    """
    remarks: tuple[str, ...] = ()
    names = context.kernel.names if build is None else build.names
    try:
        if build is None:
            find_point_table(context)
        else:
            build.find_table()
    except CapabilityError as error:
        remarks = (f"uncovered lines are unavailable: {error}",)
    known = as_counts(counts)
    columns = names.columns(known.pcs)
    unknown = columns.approximate.count(1)
    if unknown:
        remark = f"{unknown} of {len(counts)} PCs are left out: recorded by tail calls from unknown functions"
        remarks = (remark, *remarks)
    return CoveredLines(find_lines(columns, known.records, kinds, wanted), remarks)


def find_call_length(context: Context) -> int:
    """Return how many bytes before a recorded PC its call begins; without a kernel that of this machine.

    :raises KcovdbgError: when it is unknown.
    """
    target = context.kernel.optional_target
    machine = platform.machine() if target is None else target.machine
    try:
        return CALL_LENGTHS[machine]
    except KeyError:
        raise KcovdbgError(
            f"the length of a call instruction on {machine} is unknown",
            hint="export hex writes the PCs as the kernel recorded them",
        ) from None


def make_point_finder(context: Context, length: int, starts: Iterable[str] = ()) -> Callable[[int], ModulePoint]:
    """Return a function from a recorded PC to its place in the kernel image or a module; without a kernel, it finds none.

    :param length: of a call.
    :param starts: symbols that offsets within the image count from: the first that exists.
    """
    target = context.kernel.optional_target
    kaslr_offset = 0 if target is None else target.kaslr_offset
    find_module = None if target is None or target.lines is None else target.lines.code_at
    image_start: int | None = None
    for name in starts:
        # Without any of them offsets are left out, which the command says.
        with contextlib.suppress(KcovdbgError):
            if target is not None:
                image_start = pc_of(target.symbol(name).address, kaslr_offset)
                break
    table = None if context.kernel.symbolizer is None else context.kernel.symbolizer.table
    text = () if table is None else tuple((text.start, text.end) for text in table.text_ranges())

    def find_point(pc: int) -> ModulePoint:
        call = pc - length & WORD_MASK
        is_in_image = any(start <= call < end for start, end in text)
        address = address_of(call, kaslr_offset)
        found = None if is_in_image or find_module is None else find_module(address)
        if found is not None:
            name, start = found
            return ModulePoint(call, name, address - start & WORD_MASK)
        if image_start is None or not (is_in_image or (not text and call >= image_start)):
            return ModulePoint(call, None, None)
        return ModulePoint(call, None, call - image_start & WORD_MASK)

    return find_point


def find_code_ends(context: Context) -> dict[str | None, int]:
    """Return where the code of the image, under None, and of each loaded module ends, without the KASLR offset."""
    kernel = context.kernel
    target = kernel.optional_target
    table = None if kernel.symbolizer is None else kernel.symbolizer.table
    ends: dict[str | None, int] = {}
    if table is not None:
        ends[None] = max((text.end for text in table.text_ranges()), default=0)
    if target is not None and target.lines is not None:
        for name, _, end in target.lines.code_ranges():
            ends[name] = max(ends.get(name, 0), pc_of(end, target.kaslr_offset))
    return ends


def find_points_in_modules(context: Context, pcs: Iterable[int], length: int) -> dict[int, ModulePoint]:
    """Return the places of the points that were recorded in modules, by PC.

    :param length: of a call.
    """
    find_point = make_point_finder(context, length)
    return {pc: place for pc in pcs if (place := find_point(pc)).module is not None}
