# SPDX-License-Identifier: LGPL-2.1-or-later
"""The PCs that a kernel can record."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

from kcovdbg.elf.file import ElfFile, open_image
from kcovdbg.elf.symbol_table import strip_clone_suffix
from kcovdbg.errors import CapabilityError, KcovdbgError, ReadError, TargetError
from kcovdbg.inputs.kernel_code import LoadedCode
from kcovdbg.inputs.kernel_memory import KernelMemory
from kcovdbg.inputs.kernel_names import KernelNames
from kcovdbg.inputs.trace_modules import TraceModules
from kcovdbg.model.location import Frame, LoadedModule, ModuleMap
from kcovdbg.records.executed_addresses import find_block_starts
from kcovdbg.records.line_states import TraceRecords
from kcovdbg.records.pc_convention import CodeAddresses, find_module_sets, find_span, table_points
from kcovdbg.records.pc_counts import as_counts
from kcovdbg.symbols.arch import ARCHITECTURES
from kcovdbg.symbols.coverage_points import PointKind, find_points, find_text_points
from kcovdbg.symbols.location_table import NO_POINTS_HINT, LocationTable


class FunctionPoint(NamedTuple):
    """A point in a function's own code."""

    pc: int
    kind: PointKind
    frames: tuple[Frame, ...]


# Limit for the modules that are named in remarks.
_NAMED: Final = 3


class ModuleCode(NamedTuple):
    """A loaded module, with the table of its code."""

    module: LoadedModule
    table: LocationTable | None
    """The table of its code, with blocks; None if there is none."""
    problem: str = ""
    """Why there is no table."""


class KernelPoints:
    """The PCs that a kernel can record: its coverage points, and the blocks of its code."""

    def __init__(self, memory: KernelMemory, code: LoadedCode, names: KernelNames) -> None:
        self._memory = memory
        self._code = code
        self._names = names
        self._module_codes: dict[LoadedModule, ModuleCode] = {}

    def require_known(self) -> None:
        """Make sure that the coverage points are known, or will be once the table is built.

        :raises CapabilityError: when they are not.
        """
        awaited = self._names.awaited_table
        if awaited is None or not awaited.is_awaited:
            self.require_table(needs_points=False)

    def require_table(self, *, needs_points: bool) -> LocationTable:
        """Return the table of the coverage points.

        :param needs_points: whether the table must have points; executed addresses need none.
        :raises CapabilityError: when there is no such table, or it is still being built.
        """
        awaited = self._names.awaited_table
        if awaited is None:
            raise CapabilityError(f"coverage points need a kernel image: {self._names.problem}")
        if awaited.is_awaited:
            raise CapabilityError(
                "the table of this build's coverage points is still being built in the background",
                hint="try again in a few minutes",
            )
        table, problem = awaited.found, awaited.problem
        if table is None and problem is not None:
            raise CapabilityError(
                f"no table of this build's coverage points: {problem}", hint=problem.hint
            )
        if table is None:
            raise CapabilityError(
                "the coverage points of this kernel are unknown: they are read from the code in "
                "its vmlinux",
                hint="name the vmlinux: -s VMLINUX; with debug info in a file of its own, name "
                "both",
            )
        if needs_points and not len(table):
            raise CapabilityError("this kernel has no coverage points", hint=NO_POINTS_HINT)
        return table

    def find_sets(self) -> Sequence[CodeAddresses] | None:
        """Return the PCs that the kernel and its modules can record; None if they are unknown, or
        will be known once the table is built.
        """
        awaited = self._names.awaited_table
        if awaited is None or awaited.is_awaited:
            return None
        table = awaited.found
        image = self._points_in_code if table is None else table_points(table)
        if image is None:
            return None
        modules = self._code.modules or ()
        return (image, *find_module_sets(modules, self._code.module_files))

    @cached_property
    def _points_in_code(self) -> CodeAddresses | None:
        """The points in the image's code, for a kernel without a table; None if the image has no
        code or no points.
        """
        if self._code.image is None:
            return None
        from kcovdbg.symbols.symbolizer import text_ranges
        from kcovdbg.symbols.table_builder import merge_points

        try:
            with open_image(self._code.image, self._code.stripped_image) as elf:
                texts, rows = text_ranges(elf), merge_points(find_points(elf))
        except TargetError:
            return None
        if not rows.pcs or rows.pcs[-1] - rows.pcs[0] >> 32:
            return None
        base = rows.pcs[0]
        offset = array("I", map((-base).__add__, rows.pcs))
        return CodeAddresses(base, offset, find_span(texts), kinds=rows.kinds)

    @property
    def of_modules(self) -> Mapping[int, PointKind]:
        """The known points of the modules that traces have records in."""
        if not isinstance(self._code.lines, TraceModules):
            return {}
        return self._code.lines.find_points()

    def find_modules(self, traces: Iterable[TraceRecords] | None = None) -> Iterator[ModuleCode]:
        """Yield loaded modules, each with its table if the user named its file with debug info.

        :param traces: yield only modules in which one of these has records; None for all modules.
        """
        files, modules = self._code.module_files, self._code.modules or ()
        if traces is not None:
            of_modules = ModuleMap(modules)
            places = filter(None, map(of_modules.find, self._find_outside(traces)))
            modules = tuple(dict.fromkeys(module for module, _, _ in places))
        for module in modules:
            if module not in self._module_codes:
                path = files.get(module.build_id or "")
                self._module_codes[module] = _read_module(module, path)
            yield self._module_codes[module]

    def find_module_tables(
        self, traces: Iterable[TraceRecords] | None = None
    ) -> list[LocationTable]:
        """Return the tables of loaded modules.

        :param traces: as for :meth:`find_modules`.
        """
        tables = (one.table for one in self.find_modules(traces))
        return [table for table in tables if table is not None]

    def _find_outside(self, traces: Iterable[TraceRecords]) -> Collection[int]:
        """Return the PCs of traces that are outside of the image."""
        table = self._names.table
        texts = () if table is None else table.text_ranges()
        ranges = [(text.start, text.end) for text in texts]
        found: set[int] = set()
        for trace in traces:
            found.update(as_counts(trace.counts).outside(ranges))
        return found

    @property
    def lacks_modules(self) -> bool:
        """Whether the code of some loaded module is unknown."""
        files = self._code.module_files
        if any(module.build_id not in files for module in self._code.modules or ()):
            return True
        return any(one.table is None for one in self._module_codes.values())

    def explain_modules(self, traces: Iterable[TraceRecords]) -> list[str]:
        """Return a line for each module in which traces have records and that has no table: only
        its lines with records are known.
        """
        lacking = [one for one in self.find_modules(traces) if one.table is None]
        remarks = [
            f"module {one.module.name}: only its lines with records are known: {one.problem}"
            for one in lacking[:_NAMED]
        ]
        if len(lacking) > _NAMED:
            remarks.append(f"{len(lacking) - _NAMED} more modules: only lines with records")
        return remarks

    @cached_property
    def blocks(self) -> CodeAddresses | None:
        """The blocks of the image's code; None where they are unknown."""
        table = self._names.table
        return None if table is None else find_block_starts(table)

    def find_in_function(self, function: str) -> Sequence[FunctionPoint]:
        """Return the points in a function's own code, without those of its inlined copies. They are
        found in the kernel's image.

        :return: empty if the image has no such function, or no code.
        """
        if self._code.image is None:
            return ()
        rows: list[tuple[int, PointKind]] = []
        try:
            with open_image(self._code.image, self._code.stripped_image) as elf:
                for text, address in _read_function(elf, function):
                    rows += find_text_points(text, address, elf)
        except TargetError:
            return ()
        return self._locate(sorted(rows))

    def find_in_module(self, function: str) -> tuple[str, Sequence[FunctionPoint]] | None:
        """Return the name of the loaded module that has a function, and the points in the
        function's code in memory; None if no module has it.

        :raises KcovdbgError: when a module has it, but its points cannot be found.
        """
        target, lines = self._memory.target, self._code.lines
        try:
            symbol = target.symbol(function)
        except KcovdbgError:
            return None
        module = None if lines is None else lines.name_at(symbol.address)
        if module is None:
            return None
        if self._code.image is None:
            raise CapabilityError(
                f"{function}() is in module {module}, which calls callbacks of the kernel: no "
                f"kernel image",
                hint="-s VMLINUX",
            )
        offset = target.kaslr_offset
        with open_image(self._code.image, self._code.stripped_image) as elf:
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
        return module, self._locate([(address - offset, kind) for address, kind in found])

    def _locate(self, rows: Sequence[tuple[int, PointKind]]) -> Sequence[FunctionPoint]:
        names = self._names.locations
        names.prefetch(pc for pc, _ in rows)
        return [FunctionPoint(pc, kind, names[pc].frames) for pc, kind in rows]


def _read_module(module: LoadedModule, path: str | None) -> ModuleCode:
    """Return a module with the table of its file.

    :param path: the file; None if the user did not name it.
    """
    from kcovdbg.symbols.table_builder import make_module_table

    if path is None:
        build = f"with build ID {module.build_id}" if module.build_id else "of an unknown build"
        return ModuleCode(module, None, f"no file {build} is named (-s MODULE.ko)")
    try:
        table = make_module_table(module, path)
    except KcovdbgError as error:
        return ModuleCode(module, None, str(error))
    if table.blocks is None:
        return ModuleCode(module, None, "its code is not understood")
    return ModuleCode(module, table)


def _read_function(elf: ElfFile, function: str) -> Iterator[tuple[bytes, int]]:
    """Yield the code and the address of each symbol of a function, clones included."""
    for symbol in elf.symbols.find_containing(function):
        if not symbol.is_function or not symbol.size:
            continue
        if function in (symbol.name, strip_clone_suffix(symbol.name)):
            yield elf.read(symbol.address, symbol.size), symbol.address
