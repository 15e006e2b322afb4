# SPDX-License-Identifier: LGPL-2.1-or-later
"""One kernel by parts: memory, code, names, points and sources.

A part is opened on first use, and the Python modules that read it are imported then.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from kcovdbg.inputs.kernel_memory import KernelMemory, KernelOptions

if TYPE_CHECKING:
    from kcovdbg.inputs.kernel_code import LoadedCode
    from kcovdbg.inputs.kernel_names import KernelNames
    from kcovdbg.inputs.kernel_points import KernelPoints
    from kcovdbg.inputs.kernel_sources import KernelSources
    from kcovdbg.records.pc_list import TraceKernel
    from kcovdbg.target.target import Target


class Kernel:
    """One kernel, or none: trace files can be read without a kernel.

    :param options: the user's options for the kernel.
    """

    def __init__(self, options: KernelOptions = KernelOptions()) -> None:  # noqa: B008 - immutable
        self.options = options
        self.memory = KernelMemory(options)
        self._sources: KernelSources | None = None

    @cached_property
    def code(self) -> LoadedCode:
        """The kernel's image and modules."""
        from kcovdbg.inputs.kernel_code import LoadedCode

        return LoadedCode(self.memory)

    @cached_property
    def names(self) -> KernelNames:
        """Functions and source lines for the kernel's PCs."""
        from kcovdbg.inputs.kernel_names import KernelNames

        return KernelNames(self.options, self.memory, self.code)

    @cached_property
    def points(self) -> KernelPoints:
        """The PCs that the kernel can record."""
        from kcovdbg.inputs.kernel_points import KernelPoints

        return KernelPoints(self.memory, self.code, self.names)

    @property
    def sources(self) -> KernelSources:
        """The kernel's source text."""
        from kcovdbg.inputs.kernel_sources import KernelSources

        if self._sources is None:
            self._sources = KernelSources(self.options, self.code)
        return self._sources

    @property
    def target(self) -> Target:
        """The kernel's target, as of :attr:`.KernelMemory.target`."""
        return self.memory.target

    @property
    def build_id(self) -> str | None:
        """The build ID in lower case, None if it is unknown."""
        target = self.memory.optional_target
        if target is None or target.build_id is None:
            return None
        return target.build_id.lower()

    @property
    def trace_kernel(self) -> TraceKernel:
        """The kernel for readers of its traces."""
        from kcovdbg.records.pc_list import NO_KERNEL, TraceKernel

        target = self.memory.optional_target
        if target is None:
            return NO_KERNEL
        return TraceKernel(
            target.build_id,
            target.kaslr_offset,
            target.machine,
            self.points.find_sets,
            lambda: self.code.modules,
            self.code.find_base,
            lambda: self.points.blocks,
            lambda word: tuple(self.names.recorded_words.find(word)),
        )

    def input_files(self) -> Iterator[str]:
        """Iterate over the files of the target, if it is open, and the read source files."""
        yield from self.memory.files
        yield from self.options.source_folders
        yield from (new for _, new in self.options.substitutions)
        if self._sources is not None:
            yield from self._sources.read_files
