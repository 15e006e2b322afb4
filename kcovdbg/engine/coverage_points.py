# SPDX-License-Identifier: LGPL-2.1-or-later
"""The table of a kernel's coverage points, waited for while it is being built."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final, NamedTuple

from kcovdbg.analysis.function_coverage import FunctionPoints, PointRows
from kcovdbg.engine.context import Context
from kcovdbg.errors import CapabilityError
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.location_table import LocationTable

# Building a table takes some seconds with llvm-symbolizer, and a minute with drgn alone.
_PATIENCE: Final = 180.0
_STEP: Final = 0.5
_TEXT: Final = ".text"


def find_point_table(context: Context) -> LocationTable:
    """Return the table of the kernel's coverage points; wait while it is being built.

    :raises CapabilityError: when there is none and none can be built.
    """
    symbolizer = context.workspace.symbolizer
    if symbolizer is None:
        raise CapabilityError(f"coverage points need a kernel image: {context.workspace.target_problem}")
    table = symbolizer.table
    if table is None and symbolizer.waits_for_table:
        context.terminal.stderr.write("kcovdbg: finding the coverage points of this build, once\n")
        context.terminal.stderr.flush()
        end = time.monotonic() + _PATIENCE
        while table is None and symbolizer.waits_for_table and time.monotonic() < end:
            time.sleep(_STEP)
            table = symbolizer.table
    if table is None and symbolizer.waits_for_table:
        raise CapabilityError(
            "the table of this build's coverage points is still being built in the background",
            hint="try again in a few minutes; installing llvm-symbolizer makes it much faster",
        )
    if table is None and symbolizer.table_problem is not None:
        raise CapabilityError(
            f"no table of this build's coverage points: {symbolizer.table_problem}", hint=symbolizer.table_problem.hint
        )
    if table is None:
        raise CapabilityError(
            "the coverage points of this kernel are unknown: they are read from its vmlinux",
            hint="name the vmlinux with debug info: -s VMLINUX",
        )
    return table


class FunctionTable(NamedTuple):
    """The functions in the image's ``.text`` that have points."""

    functions: list[FunctionPoints]
    """Ascending."""
    points: PointRows
    """The points among the rows of the table."""


def find_function_points(context: Context, kinds: Iterable[PointKind], call_length: int) -> FunctionTable:
    """Return the functions in the image's ``.text`` that have points, as syzkaller lists them.

    :param kinds: of points.
    :param call_length: bytes of a call of a callback.
    :raises CapabilityError: when the points are unknown.
    """
    table = find_point_table(context)
    text = next((text for text in table.text_ranges() if text.name == _TEXT), None)
    if text is None:
        raise CapabilityError(f"the kernel image has no {_TEXT} section")
    functions = (symbol for symbol in table.functions() if symbol.size and text.start <= symbol.address < text.end)
    points = PointRows(table.columns, kinds)
    return FunctionTable(list(points.group(functions, text.start, text.end, call_length)), points)
