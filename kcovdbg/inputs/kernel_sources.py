# SPDX-License-Identifier: LGPL-2.1-or-later
"""The source text of a kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from kcovdbg.elf.file import ElfFile
from kcovdbg.errors import TargetError
from kcovdbg.inputs.kernel_code import LoadedCode
from kcovdbg.inputs.kernel_memory import KernelOptions
from kcovdbg.symbols.dwarf_reader import read_comp_dir
from kcovdbg.symbols.source_tree import SourceTree


class KernelSources:
    """The source text of a kernel, in the folders that the user named or in its build directory."""

    def __init__(self, options: KernelOptions, code: LoadedCode) -> None:
        self._options = options
        self._code = code
        self._read_tree: SourceTree | None = None

    @property
    def image(self) -> str | None:
        """Path of the kernel image that was built from it, None if there is none."""
        return self._options.image or self._code.image

    @cached_property
    def tree(self) -> SourceTree:
        """The source files."""
        directory: str | None = None
        if self.image is not None:
            with suppress(TargetError), ElfFile(self.image) as elf:
                directory = read_comp_dir(elf)
        self._read_tree = SourceTree(
            self._options.source_folders,
            build_directory=directory,
            image=self.image if self._options.reads_build_directory else None,
            substitutions=self._options.substitutions,
        )
        return self._read_tree

    @property
    def read_files(self) -> Iterator[str]:
        """The source files that were read so far."""
        if self._read_tree is not None:
            yield from map(str, self._read_tree.paths)

    def find_as_built(self, file: str) -> Path | None:
        """Return the path of a source file, None if it was not found, or was changed after the
        image was built. Files in a tree that the user named count as unchanged.
        """
        path = self.tree.find(file)
        if path is None or self._options.source_folders:
            return path
        if self.image is None:
            return None
        try:
            is_older = path.stat().st_mtime <= Path(self.image).stat().st_mtime
        except OSError:
            return None
        if not is_older:
            return None
        return path

    def read_as_built(self, file: str) -> Sequence[str]:
        """Return the lines of a source file, empty if :meth:`find_as_built` finds none."""
        if self.find_as_built(file) is None:
            return ()
        return self.tree.read(file).lines
