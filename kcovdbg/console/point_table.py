# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel's table of coverage points, waited for at the terminal while it is being built."""

from __future__ import annotations

from typing import Final

from kcovdbg.console.context import Context
from kcovdbg.console.table_progress import wait_for_table
from kcovdbg.console.writer import Format
from kcovdbg.inputs.kernel_points import OwnPoint, find_own_points, require_point_table
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.symbolizer import Symbolizer

# Building a table takes some seconds, but minutes with drgn alone.
_PATIENCE: Final = 180.0
# Then a user wants to see something.
_MOMENTS: Final = 2.0


def find_point_table(context: Context, *, needs_points: bool = True) -> LocationTable:
    """Return the table of the kernel's coverage points; wait while it is being built.

    :param needs_points: whether a kernel without points is of no use; executed addresses need none.
    :raises CapabilityError: when there is none and none can be built.
    """
    symbolizer = context.kernel.symbolizer
    if symbolizer is not None and _is_awaited(symbolizer):
        wait_for_table(context.terminal, symbolizer, _PATIENCE)
    return require_point_table(context.kernel, needs_points=needs_points)


def find_early_points(context: Context, function: str) -> tuple[OwnPoint, ...]:
    """Return the points in a function's own code while a user waits for the table.

    :return: empty when the table is there, or will be within moments, and where nobody waits at a
        terminal.
    """
    symbolizer = context.kernel.symbolizer
    if symbolizer is None or context.format is not Format.TEXT:
        return ()
    if context.terminal.error_width is None or not _is_awaited(symbolizer):
        return ()
    wait_for_table(context.terminal, symbolizer, _MOMENTS)
    return find_own_points(context.kernel, function) if _is_awaited(symbolizer) else ()


def _is_awaited(symbolizer: Symbolizer) -> bool:
    return symbolizer.table is None and symbolizer.waits_for_table
