# SPDX-License-Identifier: LGPL-2.1-or-later
"""Wait at the terminal for the table of a kernel's coverage points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kcovdbg.console.context import Context
from kcovdbg.console.table_progress import wait_for_table
from kcovdbg.console.writer import Format
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.inputs.kernel_points import FunctionPoint
from kcovdbg.symbols.location_table import LocationTable

# Building a table takes some seconds, but minutes with drgn alone.
_PATIENCE: Final = 180.0
# Seconds after which the user is told that a table is being built.
_MOMENTS: Final = 2.0


def find_point_table(
    context: Context, kernel: Kernel | None = None, *, needs_points: bool = True
) -> LocationTable:
    """Return the table of a kernel's coverage points; wait while it is being built.

    :param kernel: None for the context's.
    :param needs_points: whether a kernel without points is of no use; executed addresses need none.
    :raises CapabilityError: when there is none and none can be built.
    """
    kernel = context.kernel if kernel is None else kernel
    table = kernel.names.awaited_table
    if table is not None and table.is_awaited:
        wait_for_table(context.terminal, table, _PATIENCE)
    return kernel.points.require_table(needs_points=needs_points)


def find_early_points(context: Context, function: str) -> Sequence[FunctionPoint]:
    """Return the points in a function's own code while a user waits for the table.

    :return: empty when the table is there, or will be within moments, and where nobody waits at a
        terminal.
    """
    table = context.kernel.names.awaited_table
    is_watched = context.format is Format.TEXT and context.terminal.error_width is not None
    if table is None or not table.is_awaited or not is_watched:
        return ()
    wait_for_table(context.terminal, table, _MOMENTS)
    if not table.is_awaited:
        return ()
    return context.kernel.points.find_in_function(function)
