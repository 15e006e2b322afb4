# SPDX-License-Identifier: LGPL-2.1-or-later
"""The image and the modules of a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from kcovdbg.abi.address import pc_of
from kcovdbg.errors import KcovdbgError
from kcovdbg.inputs.kernel_memory import KernelMemory
from kcovdbg.model.location import LoadedModule
from kcovdbg.target.target import SourceLines

if TYPE_CHECKING:
    from kcovdbg.model.state import PointProof
    from kcovdbg.symbols.call_graph import CallGraph
    from kcovdbg.symbols.remote_calls import RemoteSites


class LoadedCode:
    """The image and the modules of a kernel, if the user named them or they were found."""

    def __init__(self, memory: KernelMemory) -> None:
        self._memory = memory

    @property
    def lines(self) -> SourceLines | None:
        """Source lines by the target's debug info, None if it has none."""
        target = self._memory.optional_target
        return None if target is None else target.lines

    @property
    def image(self) -> str | None:
        """Path of the kernel image with debug info, None if there is none."""
        return None if self.lines is None else self.lines.image

    @property
    def stripped_image(self) -> str | None:
        """Path of the stripped kernel image, None if :attr:`image` has the code."""
        target = self._memory.optional_target
        return None if target is None else target.code

    @property
    def modules(self) -> tuple[LoadedModule, ...] | None:
        """The loaded modules, with addresses as KCOV records them; None if they are unknown."""
        if self.lines is None:
            return None
        offset = self._memory.kaslr_offset
        return tuple(module.shift(-offset) for module in self.lines.loaded_modules())

    @property
    def module_files(self) -> Mapping[str, str]:
        """The known files of loaded modules, by build ID."""
        return {} if self.lines is None else self.lines.loaded_files()

    @cached_property
    def proof(self) -> PointProof:
        """Proves that records are coverage points."""
        from kcovdbg.symbols.code_proof import CodeProof

        target = self._memory.target
        return CodeProof(
            self.image, target.build_id, target.kaslr_offset, self.lines, code=self.stripped_image
        )

    def find_remote_sites(self) -> RemoteSites:
        """Return the places in the kernel that start remote sections.

        :raises CapabilityError: when the kernel's image has no code that can be searched.
        """
        from kcovdbg.symbols.remote_calls import find_remote_sites

        return find_remote_sites(self._memory.target, self.lines, self.stripped_image)

    def find_code(self, name: str) -> range | None:
        """Return the code of the symbol with a name, minus the KASLR offset; None if there is no
        such symbol, or it is a symbol of data.
        """
        try:
            symbol = self._memory.target.symbol(name)
        except KcovdbgError:
            return None
        start = pc_of(symbol.address, self._memory.kaslr_offset)
        is_of_module = self.lines is not None and self.lines.name_at(symbol.address) is not None
        if self._texts and not is_of_module and not any(start in text for text in self._texts):
            return None
        return range(start, start + symbol.size)

    @cached_property
    def _texts(self) -> Sequence[range]:
        """The code of the image, empty without an image."""
        from kcovdbg.elf.file import ElfFile

        path = self.stripped_image or self.image
        if path is None:
            return ()
        with ElfFile(path) as elf:
            sections = elf.text_sections()
        return [range(one.address, one.address + one.size) for one in sections]

    def has_function(self, name: str) -> bool:
        """Return whether debug info has a function with a name, which may be inlined everywhere."""
        return self.lines is not None and self.lines.has_function(name)

    def has_file(self, path: str) -> bool:
        """Return whether a module has code of a file, of a directory, or of files that match a
        pattern.
        """
        from kcovdbg.records.located_records import matches_path

        return self.lines is not None and any(
            matches_path(path, file) for file in self.lines.module_files()
        )

    def find_base(self, name: str) -> int | None:
        """Return the address in records at which the image or a module starts, None if it is
        unknown.

        :param name: the name of its file: ``vmlinux``, ``ext4.ko``.
        """
        stem = name.partition(".ko")[0].replace("-", "_")
        for module in self.modules or ():
            if module.name == stem:
                return dict(module.sections).get(".text")
        if name.lower().startswith(("vmlinux", "bzimage", "image")):
            for symbol in ("_text", "_stext"):
                with suppress(KcovdbgError):
                    return self._memory.target.symbol(symbol).address - self._memory.kaslr_offset
        return None

    @cached_property
    def call_graph(self) -> CallGraph:
        """The calls between functions of the kernel's image.

        :raises CapabilityError: when there is no image with code, or its machine is unknown.
        """
        from kcovdbg.elf.file import ElfFile
        from kcovdbg.symbols.blocks import read_linked
        from kcovdbg.symbols.branches import open_code
        from kcovdbg.symbols.call_graph import CallGraph

        build_id = self._memory.target.build_id
        with open_code(self.image, self.stripped_image, build_id) as code:
            symbols = code.symbols
            if self.stripped_image is not None and self.image is not None:
                # The location table has these symbols.
                with ElfFile(self.image) as debug_file:
                    symbols = debug_file.symbols if len(debug_file.symbols) else symbols
            return CallGraph(read_linked(code, symbols))

    def make_module_graph(self, module: LoadedModule) -> CallGraph:
        """Return the calls between functions of a module, and its calls of other files.

        :param module: a module whose file is known.
        :raises KcovdbgError: when the file is unreadable.
        """
        from kcovdbg.elf.placed_module import PlacedModule
        from kcovdbg.symbols.blocks import read_linked
        from kcovdbg.symbols.call_graph import CallGraph

        path = self.module_files[module.build_id or ""]
        with PlacedModule(path, dict(module.sections)) as elf:
            return CallGraph(read_linked(elf, elf.symbols), elf.externals)
