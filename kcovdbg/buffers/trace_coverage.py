# SPDX-License-Identifier: LGPL-2.1-or-later
"""Coverage of source lines and of coverage points by a trace."""

from __future__ import annotations

import contextlib
import platform
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
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


class ModuleOffsets:
    """Offsets of code within the kernel image and modules.

    :param context: of the command; without a kernel, no offset is known.
    :param starts: symbols that offsets within the image count from: the first that exists.
    """

    def __init__(self, context: Context, starts: Iterable[str]) -> None:
        target = context.kernel.optional_target
        self._offset = 0 if target is None else target.kaslr_offset
        self._find_module = None if target is None or target.lines is None else target.lines.code_at
        self._start: int | None = None
        for name in starts:
            # Without any of them offsets are left out, which the command says.
            with contextlib.suppress(KcovdbgError):
                if target is not None:
                    self._start = pc_of(target.symbol(name).address, self._offset)
                    break
        self._text: tuple[tuple[int, int], ...] = ()
        table = None if context.kernel.symbolizer is None else context.kernel.symbolizer.table
        if table is not None:
            self._text = tuple((text.start, text.end) for text in table.text_ranges())

    def outside_image(self, pcs: array[int], length: int) -> Iterator[int]:
        """Iterate over the PCs whose calls are not in the code of the image; over all where that is unknown.

        :param pcs: ascending.
        :param length: of a call.
        """
        at = 0
        for start, end in sorted(self._text):
            first, last = bisect_left(pcs, start + length), bisect_left(pcs, end + length)
            yield from pcs[at : max(at, first)]
            at = max(at, last)
        yield from pcs[at:]

    def find_point(self, pc: int, length: int) -> ModulePoint:
        """Return the place of a recorded point, whose call has a length."""
        call = pc - length & WORD_MASK
        return ModulePoint(call, *self._find(call))

    def _find(self, call: int) -> tuple[str | None, int | None]:
        """Return the module, None for the image, and the offset from the start of its code, None where it is unknown.

        :param call: the call's address, as in the image: without the KASLR offset.
        """
        if any(start <= call < end for start, end in self._text):
            return None, None if self._start is None else call - self._start & WORD_MASK
        address = address_of(call, self._offset)
        found = None if self._find_module is None else self._find_module(address)
        if found is not None:
            name, start = found
            return name, address - start & WORD_MASK
        if self._text or self._start is None or call < self._start:
            return None, None
        return None, call - self._start


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


def find_module_points(context: Context, pcs: array[int], length: int) -> dict[int, ModulePoint]:
    """Return the places of the points that were recorded in modules, by PC.

    :param pcs: ascending.
    :param length: of a call.
    """
    offsets = ModuleOffsets(context, ())
    places = {pc: offsets.find_point(pc, length) for pc in offsets.outside_image(pcs, length)}
    return {pc: place for pc, place in places.items() if place.module is not None}
