# SPDX-License-Identifier: LGPL-2.1-or-later
"""The table of a kernel's coverage points, waited for while it is being built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from kcovdbg.console.context import Context
from kcovdbg.console.table_progress import wait_for_table
from kcovdbg.console.writer import Format
from kcovdbg.elf.file import open_image
from kcovdbg.elf.symbol_table import strip_clone_suffix
from kcovdbg.errors import CapabilityError, KcovdbgError, ReadError, TargetError
from kcovdbg.model.location import Frame
from kcovdbg.symbols.arch import ARCHITECTURES
from kcovdbg.symbols.coverage_points import PointKind, find_text_points
from kcovdbg.symbols.location_table import NO_POINTS_HINT, LocationTable

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
    if symbolizer is None:
        raise CapabilityError(
            f"coverage points need a kernel image: {context.kernel.names_problem}"
        )
    table = symbolizer.table
    if table is None and symbolizer.waits_for_table:
        table = wait_for_table(context.terminal, symbolizer, _PATIENCE)
    if table is None and symbolizer.waits_for_table:
        raise CapabilityError(
            "the table of this build's coverage points is still being built in the background",
            hint="try again in a few minutes",
        )
    if table is None and symbolizer.table_problem is not None:
        raise CapabilityError(
            f"no table of this build's coverage points: {symbolizer.table_problem}",
            hint=symbolizer.table_problem.hint,
        )
    if table is None:
        raise CapabilityError(
            "the coverage points of this kernel are unknown: they are read from the code in "
            "its vmlinux",
            hint="name the vmlinux: -s VMLINUX; with debug info in a file of its own, name both",
        )
    if needs_points and not len(table):
        raise CapabilityError("this kernel has no coverage points", hint=NO_POINTS_HINT)
    return table


class OwnPoint(NamedTuple):
    """A point in a function's own code."""

    pc: int
    kind: PointKind
    frames: tuple[Frame, ...]


def find_own_points(context: Context, function: str) -> tuple[OwnPoint, ...]:
    """Return the points in a function's own code while a user waits for the table, which has those
    of inlined copies as well.

    :return: empty when the table is there, or will be within moments, and where nobody waits at a
        terminal.
    """
    symbolizer = context.kernel.symbolizer
    if (
        symbolizer is None
        or context.format is not Format.TEXT
        or context.terminal.error_width is None
    ):
        return ()
    if not symbolizer.waits_for_table or symbolizer.table is not None:
        return ()
    wait_for_table(context.terminal, symbolizer, _MOMENTS)
    image = context.kernel.image
    if symbolizer.table is not None or not symbolizer.waits_for_table or image is None:
        return ()
    rows: list[tuple[int, PointKind]] = []
    try:
        with open_image(image, context.kernel.code) as elf:
            for symbol in elf.symbols.find_containing(function):
                if (
                    symbol.is_function
                    and symbol.size
                    and function in (symbol.name, strip_clone_suffix(symbol.name))
                ):
                    rows += find_text_points(
                        elf.read(symbol.address, symbol.size), symbol.address, elf
                    )
    except TargetError:
        return ()
    rows.sort()
    locations = symbolizer.locate_all([pc for pc, _ in rows])
    return tuple(
        OwnPoint(pc, kind, location.frames)
        for (pc, kind), location in zip(rows, locations, strict=True)
    )


def find_module_points(context: Context, function: str) -> tuple[str, Sequence[OwnPoint]] | None:
    """Return a loaded module and the points of its function as recorded, from its code in memory;
    None where none has it.

    :raises KcovdbgError: when a module has it, but its points cannot be found.
    """
    target, symbolizer = context.target, context.kernel.symbolizer
    modules = context.kernel.lines
    if modules is None or symbolizer is None:
        return None
    try:
        symbol = target.symbol(function)
    except KcovdbgError:
        return None
    module = modules.name_at(symbol.address)
    if module is None:
        return None
    image, offset = context.kernel.image, target.kaslr_offset
    if image is None:
        raise CapabilityError(
            f"{function}() is in module {module}, which calls callbacks of the kernel: no "
            f"kernel image",
            hint="-s VMLINUX",
        )
    with open_image(image, context.kernel.code) as elf:
        if elf.header.machine not in ARCHITECTURES:
            raise CapabilityError(
                f"coverage points are not recognized on {elf.header.machine_name}"
            )
        try:
            text = target.read(symbol.address, symbol.size)
        except ReadError as error:
            raise CapabilityError(
                f"the code of {function}() in module {module} is unreadable: {error}"
            ) from None
        found = find_text_points(text, symbol.address, elf, offset)
    locations = symbolizer.locate_all([at - offset for at, _ in found])
    rows = zip(found, locations, strict=True)
    return module, [OwnPoint(at - offset, kind, location.frames) for (at, kind), location in rows]
