# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where a target's PCs are looked up, and where the source of its kernel is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast

from kcovdbg.errors import TargetError
from kcovdbg.model.location import Frame
from kcovdbg.symbols.compdir import read_build_directory
from kcovdbg.symbols.elf import ElfFile
from kcovdbg.symbols.resolve import Modules, Symbolizer, open_symbolizer
from kcovdbg.symbols.source import SourceTree
from kcovdbg.target import Target


class LineSource(Modules, Protocol):
    """A target that knows source lines: its attribute ``lines``, where it has one."""

    @property
    def image(self) -> str | None:
        """Path of the kernel's image with debug info."""

    def frames_at(self, address: int) -> Sequence[Frame]:
        """Locate an instruction of the running kernel; empty where debug info doesn't cover it."""


def make_symbolizer(target: Target) -> Symbolizer:
    """Return what locates the PCs of a target; a table of its build is made in the background where there is none."""
    lines = cast("LineSource | None", getattr(target, "lines", None))
    if lines is None:

        def name_at(address: int) -> Sequence[Frame]:
            name = target.symbol_name(address)
            return () if name is None else (Frame(name, None, None, None),)

        return open_symbolizer(
            target.kaslr_offset, build_id=target.build_id, image=None, fallback=name_at, word_size=target.word_size
        )
    return open_symbolizer(
        target.kaslr_offset,
        build_id=target.build_id,
        image=lines.image,
        fallback=lines.frames_at,
        modules=lines,
        word_size=target.word_size,
    )


def make_source_tree(
    target: Target | None, folders: Sequence[str | Path] = (), substitutions: Sequence[tuple[str, str]] = ()
) -> SourceTree:
    """Return where the source of a target's kernel is looked for: in these folders, and where it was built.

    :param substitutions: as :class:`~kcovdbg.symbols.source.SourceTree` takes them.
    """
    directory: str | None = None
    lines = None if target is None else cast("LineSource | None", getattr(target, "lines", None))
    if lines is not None and lines.image is not None:
        try:
            elf = ElfFile(lines.image)
            try:
                directory = read_build_directory(elf)
            finally:
                elf.close()
        except TargetError:
            directory = None
    return SourceTree(folders, build_directory=directory, substitutions=substitutions)
