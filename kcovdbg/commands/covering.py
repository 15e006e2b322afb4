# SPDX-License-Identifier: LGPL-2.1-or-later
"""Coverage of a buffer by point, by line and by function, for the commands that count it."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from kcovdbg.abi.call import CALL_LENGTHS
from kcovdbg.analysis.lines import find_lines
from kcovdbg.commands.points import find_point_table, is_file
from kcovdbg.commands.session import Context
from kcovdbg.commands.what import matches_file, matches_function
from kcovdbg.errors import CapabilityError, KcovdbgError
from kcovdbg.model.coverage import LineCoverage, PointCoverage
from kcovdbg.model.location import Frame
from kcovdbg.symbols.points import PointKind

_MASK: Final = (1 << 64) - 1


def find_points(context: Context) -> Iterator[tuple[int, Sequence[Frame]]]:
    """Return all points of the kernel with their frames.

    :raises CapabilityError: when they aren't known.
    """
    table = find_point_table(context)
    pcs = table.pcs(PointKind.PC)
    return ((pc, row[1] if row else ()) for pc, row in zip(pcs, table.get_rows(pcs), strict=True))


def find_line_coverage(
    context: Context, counts: Mapping[int, int], wanted: Callable[[Frame], bool], remarks: list[str]
) -> list[LineCoverage]:
    """Return the lines with points in functions that were executed, by file and line.

    :param counts: PC -> records.
    :param wanted: which frames' lines are of interest.
    :param remarks: takes why the lines that were not executed are missing, where they are.
    """
    names = context.session.names
    names.learn(counts)
    points: Iterable[tuple[int, Sequence[Frame]]] = ()
    try:
        points = find_points(context)
    except CapabilityError as error:
        remarks.append(f"what is not covered can't be told: {error}")
    return find_lines(counts, lambda pc: names[pc].frames, points, wanted)


def matches_place(place: str, frame: Frame) -> bool:
    """Tell whether a frame is in this function or file."""
    return matches_file(place, frame) if is_file(place) else matches_function(place, frame)


def call_length(context: Context) -> int:
    """Return how many bytes before a recorded PC its call begins; without a kernel that of this machine.

    :raises KcovdbgError: when it isn't known.
    """
    target = context.session.optional_target
    machine = platform.machine() if target is None else target.machine
    try:
        return CALL_LENGTHS[machine]
    except KeyError:
        raise KcovdbgError(
            f"how long a call is isn't known for {machine}", hint="export hex writes the PCs as the kernel recorded them"
        ) from None


class Placing:
    """Tells which module's code a PC is in.

    :param context: of the command; without a kernel, nothing is known.
    :param starts: symbols that offsets within the image count from: the first that there is.
    """

    def __init__(self, context: Context, starts: Iterable[str]) -> None:
        target = context.session.optional_target
        self._offset = 0 if target is None else target.kaslr_offset
        self._find_module = getattr(getattr(target, "lines", None), "code_at", None)
        self._start: int | None = None
        for name in starts:
            # Without any, offsets are left out, and that is told.
            with contextlib.suppress(KcovdbgError):
                if target is not None:
                    self._start = target.symbol(name).address - self._offset & _MASK
                    break
        self._text: tuple[tuple[int, int], ...] = ()
        table = None if context.session.symbolizer is None else context.session.symbolizer.table
        if table is not None:
            self._text = tuple((text.start, text.end) for text in table.text_ranges())

    def place(self, call: int) -> tuple[str | None, int | None]:
        """Return the module, None for the image, and the offset from the start of its code.

        :param call: the call's address, as in the image: without the KASLR offset.
        """
        if any(start <= call < end for start, end in self._text):
            return None, None if self._start is None else call - self._start & _MASK
        found = None if self._find_module is None else self._find_module(call + self._offset & _MASK)
        if found is not None:
            name, start = found
            return name, call + self._offset - start & _MASK
        if self._text or self._start is None or call < self._start:
            return None, None
        return None, call - self._start


def find_point_coverage(
    context: Context, counts: Mapping[int, int], length: int, starts: Iterable[str] = ()
) -> Iterator[PointCoverage]:
    """Yield the points that were recorded, in the order of the counts.

    :param counts: PC -> records.
    :param length: of a call.
    :param starts: symbols that offsets within the image count from: the first that there is.
    """
    names = context.session.names
    names.learn(counts)
    placing = Placing(context, starts)
    for pc, hits in counts.items():
        call = pc - length & _MASK
        yield PointCoverage(pc, call, *placing.place(call), hits, names[pc].frames)
