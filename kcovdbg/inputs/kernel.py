# SPDX-License-Identifier: LGPL-2.1-or-later
"""One kernel and what is known of it: memory, its KCOV, and names, coverage points and source for
its PCs.

Each part is read or opened when it is first asked for, and so are the modules that read it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING

from kcovdbg.abi.address import pc_of
from kcovdbg.errors import KcovdbgError, TargetError
from kcovdbg.model.location import Frame, Location
from kcovdbg.walk.layout import Layout, detect_layout

if TYPE_CHECKING:
    from kcovdbg.model.location import LoadedModule
    from kcovdbg.model.state import PointProof
    from kcovdbg.records.executed_addresses import KernelCode
    from kcovdbg.records.pc_convention import PointSet
    from kcovdbg.records.pc_list import TraceKernel
    from kcovdbg.records.pc_locations import LocationCache
    from kcovdbg.records.written_locations import WordLookup
    from kcovdbg.symbols.call_graph import CallGraph
    from kcovdbg.symbols.function_starts import FunctionFinder
    from kcovdbg.symbols.location_table import LocationTable
    from kcovdbg.symbols.remote_calls import RemoteSites
    from kcovdbg.symbols.source_tree import SourceTree
    from kcovdbg.symbols.symbolizer import Symbolizer, TableTarget
    from kcovdbg.target.target import SourceLines, Target


@dataclass(eq=False)
class Kernel:
    """One kernel, or none: trace files can be read without one."""

    open_target: Callable[[], Target] | None = None
    """Opens it when it is first needed; None where the user gave none."""
    is_named: bool = True
    """Whether the user named it; otherwise it is the running one, if a command needs it."""
    table_file: str | None = None
    """A location table of it that was built elsewhere."""
    tables: Sequence[str] = ()
    """Location tables of any builds that were built elsewhere, in place of ``table_file``."""
    source_folders: Sequence[str] = ()
    """Roots of source trees that the user named."""
    substitutions: Sequence[tuple[str, str]] = ()
    """Prefixes of source paths, as debug info names them and as they are here."""
    reads_build_directory: bool = True
    """Whether source text is also read where the kernel was built, which is for its debug info to
    say.
    """
    wait: Callable[[Symbolizer], object] | None = None
    """Waits a moment for a table that is being built: without it, lines are less exact and tail
    calls are unknown.
    """
    write_remark: Callable[[str], None] | None = None
    """Takes a note on how PCs are named."""

    @cached_property
    def target(self) -> Target:
        """The kernel, opened when first asked for.

        :raises TargetError: when it cannot be opened.
        """
        if self.open_target is None:
            raise TargetError(
                "no target", hint="kcovdbg -c VMCORE -s VMLINUX; kcovdbg --help lists the others"
            )
        return self.open_target()

    @cached_property
    def optional_target(self) -> Target | None:
        """The kernel, None where there is none or it cannot be opened."""
        return None if self._target_error is not None else self.target

    @property
    def target_problem(self) -> str:
        """Why there is no :attr:`optional_target`."""
        return str(self._target_error)

    @property
    def names_problem(self) -> str:
        """Why PCs have no names without :attr:`optional_target`."""
        return self.target_problem if self.is_named else "no vmlinux is named: -s VMLINUX"

    @property
    def name_remarks(self) -> tuple[str, ...]:
        """Why PCs have no names, or only those of symbols, where that is so."""
        target = self.optional_target
        if target is None:
            return (f"no names: {self.names_problem}",)
        own = self._own_table
        if (
            own is None
            or own.names_remark is None
            or self.symbolizer is None
            or self.symbolizer.table is not own.table
        ):
            return ()
        return (own.names_remark,)

    @property
    def _own_table(self) -> TableTarget | None:
        """The target, where it is a location table and nothing else."""
        from kcovdbg.symbols.symbolizer import TableTarget

        return self.optional_target if isinstance(self.optional_target, TableTarget) else None

    @cached_property
    def _target_error(self) -> KcovdbgError | None:
        try:
            _ = self.target
        except KcovdbgError as error:
            return error
        return None

    @cached_property
    def layout(self) -> Layout:
        """The layout of the kernel's KCOV.

        :raises TargetError: when it has none.
        """
        return detect_layout(self.target)

    @property
    def kaslr_offset(self) -> int:
        """The KASLR offset in bytes, 0 without a kernel."""
        return 0 if self.optional_target is None else self.optional_target.kaslr_offset

    @property
    def lines(self) -> SourceLines | None:
        """Source lines by the target's debug info, None where it has none."""
        return None if self.optional_target is None else self.optional_target.lines

    @property
    def image(self) -> str | None:
        """Path of the kernel image with debug info, None where there is none."""
        return None if self.lines is None else self.lines.image

    @property
    def code(self) -> str | None:
        """Path of the stripped kernel image, None where :attr:`image` has the code."""
        return None if self.optional_target is None else self.optional_target.code

    @property
    def modules(self) -> tuple[LoadedModule, ...] | None:
        """The loaded modules, with addresses as KCOV records them; None where they are unknown."""
        lines = self.lines
        return (
            None
            if lines is None
            else tuple(module.shift(-self.kaslr_offset) for module in lines.loaded_modules())
        )

    @property
    def module_files(self) -> Mapping[str, str]:
        """The files of loaded modules that are at hand, by build ID."""
        return {} if self.lines is None else self.lines.loaded_files()

    @cached_property
    def symbolizer(self) -> Symbolizer | None:
        """Locates PCs of the kernel; None without one. A table that its build lacks is made in the
        background.

        :raises TargetError: when a location table cannot be read, or ``table_file`` is of another
            build.
        """
        target = self.optional_target
        if target is None:
            return None
        from kcovdbg.symbols.symbolizer import open_symbolizer
        from kcovdbg.symbols.table_cache import choose_table_file

        def name_at(address: int) -> Sequence[Frame]:
            name = target.symbol_name(address)
            return () if name is None else (Frame(name, None, None, None),)

        symbolizer = open_symbolizer(
            target.kaslr_offset,
            build_id=target.build_id,
            image=self.image,
            code=None if self.lines is None else self.code,
            fallback=name_at if self.lines is None else self.lines.frames_at,
            modules=self.lines,
            word_size=target.word_size,
            table_file=self.table_file or choose_table_file(self.tables, target.build_id),
            spare=None if self._own_table is None else self._own_table.table,
        )
        if symbolizer.note is not None and self.write_remark is not None:
            self.write_remark(symbolizer.note)
        return symbolizer

    @cached_property
    def names(self) -> LocationCache:
        """Names for recorded PCs; without a kernel, PCs have none."""
        from kcovdbg.records.pc_locations import LocationCache

        symbolizer = self.symbolizer
        if symbolizer is None:
            return LocationCache(lambda pcs: [Location(pc, ()) for pc in pcs])

        @cache
        def find_table() -> LocationTable | None:
            if self.wait is not None:
                self.wait(symbolizer)
            return symbolizer.table

        def locate(pcs: Sequence[int]) -> Sequence[Location]:
            find_table()
            return symbolizer.locate_all(pcs)

        return LocationCache(locate, lambda: find_table() or symbolizer.table, self)

    def word_lookup(self, *, is_running: bool = False) -> WordLookup:
        """Return what finds written code locations, such as the words of an oops.

        :param is_running: whether all addresses include the KASLR offset.
        """
        from kcovdbg.records.written_locations import WordLookup

        return WordLookup(
            self.target, self.names, self.make_function_finder(), is_running=is_running
        )

    def make_function_finder(self) -> FunctionFinder:
        """Return what finds functions by name, of the image and of modules."""
        from kcovdbg.symbols.function_starts import FunctionFinder

        table = None if self.symbolizer is None else self.symbolizer.table
        return FunctionFinder(
            self.target, self.image, self.code, table, self.modules or (), self.module_files
        )

    def find_code(self, name: str) -> range | None:
        """Return the code of the symbol with a name, without the KASLR offset; None where there is
        none.
        """
        try:
            symbol = self.target.symbol(name)
        except KcovdbgError:
            return None
        start = pc_of(symbol.address, self.kaslr_offset)
        return range(start, start + symbol.size)

    def has_function(self, name: str) -> bool:
        """Return whether debug info has a function with a name, one that is inlined everywhere
        included.
        """
        return self.lines is not None and self.lines.has_function(name)

    def has_file(self, path: str) -> bool:
        """Return whether a module has code of a file or directory, or of one that matches a
        pattern.
        """
        from kcovdbg.records.located_records import matches_path

        return self.lines is not None and any(
            matches_path(path, file) for file in self.lines.module_files()
        )

    @cached_property
    def point_proof(self) -> PointProof:
        """Proves that records are coverage points."""
        from kcovdbg.symbols.code_proof import CodeProof

        return CodeProof(
            self.image, self.target.build_id, self.target.kaslr_offset, self.lines, code=self.code
        )

    def find_remote_sites(self) -> RemoteSites:
        """Return the places in the kernel that announce remote handles.

        :raises CapabilityError: when the kernel's image has no code that can be searched.
        """
        from kcovdbg.symbols.remote_calls import find_remote_sites

        return find_remote_sites(self.target, self.lines, self.code)

    @cached_property
    def call_graph(self) -> CallGraph:
        """Which functions of the kernel's image call which.

        :raises CapabilityError: when there is no image with code, or its machine is unknown.
        """
        from kcovdbg.elf.file import ElfFile
        from kcovdbg.symbols.blocks import read_linked
        from kcovdbg.symbols.branches import open_code
        from kcovdbg.symbols.call_graph import CallGraph

        with open_code(self.image, self.code, self.target.build_id) as code:
            symbols = code.symbols
            if self.code is not None and self.image is not None:
                # Those that the location table is made with.
                with ElfFile(self.image) as debug_file:
                    symbols = debug_file.symbols if len(debug_file.symbols) else symbols
            return CallGraph(read_linked(code, symbols))

    @cached_property
    def source(self) -> SourceTree:
        """The source of the kernel, where it can be found: in the folders that the user named, or
        where it was built.
        """
        from kcovdbg.elf.file import ElfFile
        from kcovdbg.symbols.dwarf_reader import read_comp_dir
        from kcovdbg.symbols.source_tree import SourceTree

        directory: str | None = None
        if self.image is not None:
            with contextlib.suppress(TargetError), ElfFile(self.image) as elf:
                directory = read_comp_dir(elf)
        return SourceTree(
            self.source_folders,
            build_directory=directory,
            image=self.image if self.reads_build_directory else None,
            substitutions=self.substitutions,
        )

    def find_point_sets(self) -> Sequence[PointSet] | None:
        """Return the PCs that the kernel and its modules can record, None where there is no table
        of them yet.
        """
        from kcovdbg.records.pc_convention import find_module_sets, table_points

        table = self.names.table
        image = None if table is None else table_points(table)
        return (
            None
            if image is None
            else (image, *find_module_sets(self.modules or (), self.module_files))
        )

    def find_base(self, name: str) -> int | None:
        """Return where offsets in the image or a module count from, as KCOV records addresses; None
        where that is unknown.

        :param name: of its file: ``vmlinux``, ``ext4.ko``.
        """
        stem = name.partition(".ko")[0].replace("-", "_")
        for module in self.modules or ():
            if module.name == stem:
                return dict(module.sections).get(".text")
        if name.lower().startswith(("vmlinux", "bzimage", "image")):
            for symbol in ("_text", "_stext"):
                with contextlib.suppress(KcovdbgError):
                    return self.target.symbol(symbol).address - self.kaslr_offset
        return None

    @property
    def trace_kernel(self) -> TraceKernel | None:
        """The kernel for readers of its traces, None without one."""
        target = self.optional_target
        if target is None:
            return None
        from kcovdbg.records.pc_list import TraceKernel

        return TraceKernel(
            target.build_id,
            target.kaslr_offset,
            target.machine,
            self.find_point_sets,
            lambda: self.modules,
            self.find_base,
            lambda: self._kernel_code,
            lambda word: tuple(self._recorded_words.find(word)),
        )

    @cached_property
    def _kernel_code(self) -> KernelCode | None:
        """The blocks of the image's code; None where they are unknown."""
        from kcovdbg.records.executed_addresses import table_code

        table = self.names.table
        return None if table is None else table_code(table)

    @cached_property
    def _recorded_words(self) -> WordLookup:
        return self.word_lookup()

    def input_files(self) -> Iterator[str]:
        """Iterate over the files that are read: those of the target are known once it is open,
        source files once read.
        """
        opened = vars(self)
        yield from getattr(opened.get("target"), "files", ())
        yield from self.source_folders
        yield from (new for _, new in self.substitutions)
        if "source" in opened:
            yield from map(str, self.source.paths)
