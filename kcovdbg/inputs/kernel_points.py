# SPDX-License-Identifier: LGPL-2.1-or-later
"""A kernel's coverage points: its table of them, and those of one function read from its code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kcovdbg.elf.file import open_image
from kcovdbg.elf.symbol_table import strip_clone_suffix
from kcovdbg.errors import CapabilityError, KcovdbgError, ReadError, TargetError
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.model.location import Frame
from kcovdbg.symbols.arch import ARCHITECTURES
from kcovdbg.symbols.coverage_points import PointKind, find_text_points
from kcovdbg.symbols.location_table import NO_POINTS_HINT, LocationTable


def require_point_table(kernel: Kernel, *, needs_points: bool = True) -> LocationTable:
    """Return the table of a kernel's coverage points.

    :param needs_points: whether a kernel without points is of no use; executed addresses need none.
    :raises CapabilityError: when there is none, or none yet.
    """
    symbolizer = kernel.symbolizer
    if symbolizer is None:
        raise CapabilityError(f"coverage points need a kernel image: {kernel.names_problem}")
    table = symbolizer.table
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


def find_own_points(kernel: Kernel, function: str) -> tuple[OwnPoint, ...]:
    """Return the points in a function's own code, read from the kernel's image without its table,
    which has those of inlined copies as well.

    :return: empty where the image has no such function, or no code.
    """
    image, symbolizer = kernel.image, kernel.symbolizer
    if image is None or symbolizer is None:
        return ()
    rows: list[tuple[int, PointKind]] = []
    try:
        with open_image(image, kernel.code) as elf:
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


def find_module_points(kernel: Kernel, function: str) -> tuple[str, Sequence[OwnPoint]] | None:
    """Return a loaded module and the points of its function as recorded, from its code in memory;
    None where none has it.

    :raises KcovdbgError: when a module has it, but its points cannot be found.
    """
    target, symbolizer = kernel.target, kernel.symbolizer
    modules = kernel.lines
    if modules is None or symbolizer is None:
        return None
    try:
        symbol = target.symbol(function)
    except KcovdbgError:
        return None
    module = modules.name_at(symbol.address)
    if module is None:
        return None
    image, offset = kernel.image, target.kaslr_offset
    if image is None:
        raise CapabilityError(
            f"{function}() is in module {module}, which calls callbacks of the kernel: no "
            f"kernel image",
            hint="-s VMLINUX",
        )
    with open_image(image, kernel.code) as elf:
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
