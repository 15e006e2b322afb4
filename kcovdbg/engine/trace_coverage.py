# SPDX-License-Identifier: LGPL-2.1-or-later
"""Coverage of source lines and of coverage points by a trace."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kcovdbg.abi.address import WORD_MASK, address_of, pc_of
from kcovdbg.abi.call_length import CALL_LENGTHS
from kcovdbg.analysis.line_coverage import find_lines
from kcovdbg.engine.context import Context
from kcovdbg.engine.coverage_points import find_points
from kcovdbg.errors import CapabilityError, KcovdbgError
from kcovdbg.model.coverage import LineCoverage, PointCoverage
from kcovdbg.model.location import Frame
from kcovdbg.symbols.coverage_points import PointKind


class CoveredLines(NamedTuple):
    """Lines with points in functions that were executed."""

    lines: list[LineCoverage]
    """By file and line."""
    remarks: tuple[str, ...]
    """What is missing: lines that were not executed, or records of tail calls."""


def find_line_coverage(
    context: Context, counts: Mapping[int, int], kinds: Iterable[PointKind], wanted: Callable[[Frame], bool]
) -> CoveredLines:
    """Return the lines with points in functions that were executed.

    :param counts: PC -> records.
    :param kinds: of the points that can be among them.
    :param wanted: which frames' lines are of interest.
    """
    names = context.workspace.names
    names.learn(counts)
    known = {pc: count for pc, count in counts.items() if not names[pc].approximate}
    points: Iterable[tuple[int, Sequence[Frame]]] = ()
    remarks: tuple[str, ...] = ()
    if len(known) < len(counts):
        unknown = len(counts) - len(known)
        remarks = (f"{unknown} of {len(counts)} PCs are left out: recorded by tail calls from unknown functions",)
    try:
        points = find_points(context, kinds)
    except CapabilityError as error:
        remarks = (*remarks, f"uncovered lines are unavailable: {error}")
    return CoveredLines(find_lines(known, lambda pc: names[pc].frames, points, wanted), remarks)


def find_call_length(context: Context) -> int:
    """Return how many bytes before a recorded PC its call begins; without a kernel that of this machine.

    :raises KcovdbgError: when it is unknown.
    """
    target = context.workspace.optional_target
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
        target = context.workspace.optional_target
        self._offset = 0 if target is None else target.kaslr_offset
        self._find_module = getattr(getattr(target, "lines", None), "code_at", None)
        self._start: int | None = None
        for name in starts:
            # Without any of them offsets are left out, which the command says.
            with contextlib.suppress(KcovdbgError):
                if target is not None:
                    self._start = pc_of(target.symbol(name).address, self._offset)
                    break
        self._text: tuple[tuple[int, int], ...] = ()
        table = None if context.workspace.symbolizer is None else context.workspace.symbolizer.table
        if table is not None:
            self._text = tuple((text.start, text.end) for text in table.text_ranges())

    def find(self, call: int) -> tuple[str | None, int | None]:
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


def find_point_coverage(
    context: Context, counts: Mapping[int, int], length: int, starts: Iterable[str] = ()
) -> Iterator[PointCoverage]:
    """Iterate over the points that were recorded, in the order of the counts.

    :param counts: PC -> records.
    :param length: of a call.
    :param starts: as for :class:`ModuleOffsets`.
    """
    names = context.workspace.names
    names.learn(counts)
    offsets = ModuleOffsets(context, starts)
    for pc, hits in counts.items():
        call = pc - length & WORD_MASK
        yield PointCoverage(pc, call, *offsets.find(call), hits, names[pc].frames)
