# SPDX-License-Identifier: LGPL-2.1-or-later
"""The functions and source lines of a kernel's PCs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

from kcovdbg.inputs.kernel_code import LoadedCode
from kcovdbg.inputs.kernel_memory import KernelMemory, KernelOptions
from kcovdbg.model.location import Frame, Location
from kcovdbg.records.pc_locations import LocationCache
from kcovdbg.symbols.awaited_table import AwaitedTable, find_awaited_table
from kcovdbg.symbols.function_starts import FunctionFinder
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.symbolizer import ImageText, Symbolizer, find_image_text
from kcovdbg.symbols.table_cache import choose_table_file, open_table_file
from kcovdbg.symbols.table_target import TableTarget
from kcovdbg.target.target import Target

if TYPE_CHECKING:
    from kcovdbg.records.written_locations import WordLookup


def _find_symbol(target: Target, address: int) -> Sequence[Frame]:
    """Return the symbol at an address as a frame, empty if there is no symbol."""
    name = target.symbol_name(address)
    if name is None:
        return ()
    return (Frame(name, None, None, None),)


class KernelNames:
    """Finds the functions and source lines of a kernel's PCs, by the location table of its build if
    there is one.
    """

    def __init__(self, options: KernelOptions, memory: KernelMemory, code: LoadedCode) -> None:
        self._options = options
        self._memory = memory
        self._code = code

    @property
    def problem(self) -> str:
        """Why PCs have no names without a target."""
        if not self._options.is_named:
            return "no vmlinux is named: -s VMLINUX"
        return self._memory.problem

    @property
    def remarks(self) -> tuple[str, ...]:
        """Why PCs have no names, or only names of symbols; empty if they have full names."""
        target = self._memory.optional_target
        if target is None:
            return (f"no names: {self.problem}",)
        if not isinstance(target, TableTarget) or target.names_remark is None:
            return ()
        if self.table is not target.table:
            return ()
        return (target.names_remark,)

    @property
    def are_known(self) -> bool:
        """Whether debug info, or a table that is there or awaited, has names of PCs."""
        table = self.awaited_table
        if table is not None and (table.found is not None or table.is_awaited):
            return True
        return self._code.lines is not None

    @cached_property
    def awaited_table(self) -> AwaitedTable | None:
        """The location table, which is built in the background if its build lacks one; None without
        a kernel.

        :raises TargetError: when a location table is unreadable, or is of another build.
        """
        target = self._memory.optional_target
        if target is None:
            return None
        named = self._options.table_file
        named = named or choose_table_file(self._options.tables, target.build_id)
        if named is not None:
            return AwaitedTable(open_table_file(named, target.build_id))
        spare = target.table if isinstance(target, TableTarget) else None
        return find_awaited_table(
            target.build_id, self._code.image, self._stripped_image, spare=spare
        )

    @property
    def table(self) -> LocationTable | None:
        """The location table, None if there is none yet."""
        if self.awaited_table is None:
            return None
        return self.awaited_table.found

    @property
    def _stripped_image(self) -> str | None:
        return None if self._code.lines is None else self._code.stripped_image

    @cached_property
    def symbolizer(self) -> Symbolizer | None:
        """Locates PCs of the kernel; None without a kernel."""
        target, lines = self._memory.optional_target, self._code.lines
        if target is None or self.awaited_table is None:
            return None
        text: ImageText | None = None
        if self._code.image is not None:
            text = find_image_text(target.build_id, self._code.image, self._stripped_image)
        return Symbolizer(
            target.kaslr_offset,
            table=self.awaited_table,
            fallback=partial(_find_symbol, target) if lines is None else lines.frames_at,
            modules=lines,
            text=text,
            word_size=target.word_size,
        )

    @cached_property
    def locations(self) -> LocationCache:
        """Names for recorded PCs; without a kernel, PCs have none."""
        symbolizer = self.symbolizer
        if symbolizer is None:
            return LocationCache(lambda pcs: [Location(pc, ()) for pc in pcs])
        return LocationCache(symbolizer.locate_all, lambda: self.table, self._code)

    def make_word_lookup(self, *, is_running: bool = False) -> WordLookup:
        """Return a finder of written code locations, such as the words of an oops.

        :param is_running: whether all addresses include the KASLR offset.
        """
        # Patterns of crash reports, which the module has, take long to load.
        from kcovdbg.records.written_locations import WordLookup

        def locate(address: int) -> Location:
            if self.symbolizer is None:
                return Location(address, ())
            return self.symbolizer.locate_instruction(address)

        finder = self.make_function_finder()
        return WordLookup(
            self._memory.target, self.locations, locate, finder, is_running=is_running
        )

    @cached_property
    def recorded_words(self) -> WordLookup:
        """Finds written code locations with addresses as KCOV records them."""
        return self.make_word_lookup()

    def make_function_finder(self) -> FunctionFinder:
        """Return a finder of functions of the image and of modules, by name."""
        code = self._code
        return FunctionFinder(
            self._memory.target,
            code.image,
            code.stripped_image,
            self.table,
            code.modules or (),
            code.module_files,
        )
