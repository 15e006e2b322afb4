# SPDX-License-Identifier: LGPL-2.1-or-later
"""A kernel that consists of files alone, an image and modules: types, names, source lines, and the
code of the modules as if they were loaded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Final, NamedTuple

import drgn

from kcovdbg.abi.address import page_align
from kcovdbg.elf.file import ElfFile, link_section, open_image
from kcovdbg.elf.header import SHF_ALLOC
from kcovdbg.model.location import LoadedModule, is_code_section
from kcovdbg.target.drgn.lines import DrgnLines, add_module, open_image_program
from kcovdbg.target.drgn.program_memory import platform_of
from kcovdbg.target.drgn.program_types import ProgramTypes
from kcovdbg.target.missing_vmcoreinfo import find_release, read_banner

# On x86-64 this section is linked to addresses from 0 on, far from the rest of the image.
_PER_CPU: Final = ".data..percpu"
# Bytes between the image and the modules. No kernel loads modules there: so no trace has an address
# there by accident.
_GAP: Final = 1 << 20
_NAME: Final = b"name="


class ImageModule(NamedTuple):
    """A module's file, and the addresses of its code."""

    path: str
    loaded: LoadedModule


class LinkedCode(NamedTuple):
    """A section of a module's code as if it were loaded, padded to whole pages."""

    start: int
    module: str
    data: bytes


class ImageLines(DrgnLines):
    """Source lines and modules of a Program that has only files.

    :param prog: with the debug info of the image and of the modules.
    :param find_code: returns the code of the modules.
    """

    def __init__(self, prog: drgn.Program, find_code: Callable[[], Sequence[LinkedCode]]) -> None:
        super().__init__(prog)
        self._find_code = find_code

    def code_ranges(self) -> tuple[tuple[str, int, int], ...]:
        """Return the code of modules: name, start and end of each range."""
        return tuple(
            (code.module, code.start, code.start + len(code.data)) for code in self._find_code()
        )


class ImageTarget(ProgramTypes):
    """A :class:`~kcovdbg.target.target.Target` without memory: a kernel image, with modules placed
    behind it.

    :param name: its name in messages.
    :param path: the image with debug info.
    :param modules: paths of modules with debug info.
    :param code: path of the stripped image that has the code, None if the image with debug info has
        it.
    :raises TargetError: when a file is damaged, or drgn cannot use it.
    """

    def __init__(self, name: str, path: str, modules: Sequence[str], *, code: str | None) -> None:
        self.name = name
        self.memory_problem = f"{name} is a kernel image"
        self.image = path
        self.code = code
        with open_image(path, code) as elf:
            self.machine = elf.header.machine_name
            self.build_id = elf.build_id
            self.release = find_release(read_banner(elf)[1]) or "unknown"
            placed = [part for part in elf.sections if part.flags & SHF_ALLOC and part.address]
            loaded = [section for section in placed if not section.name.startswith(_PER_CPU)]
            start = min((section.address for section in loaded), default=0)
            end = max((section.address + section.size for section in loaded), default=0)
            prog = open_image_program(path, start, end, platform_of(elf.header))
        super().__init__(prog)
        self._modules = tuple(_lay_out_modules(modules, page_align(end) + _GAP))
        for module in self._modules:
            add_module(prog, module.loaded, module.path)

    @property
    def files(self) -> Iterator[str]:
        """The image, the stripped image, and the modules."""
        yield from filter(None, (self.image, self.code))
        yield from (module.path for module in self._modules)

    def read(self, address: int, size: int) -> bytes:
        """Read the code of modules.

        :raises CapabilityError: for any other memory.
        """
        index = bisect_right(self._code, address, key=lambda code: code.start) - 1
        if index >= 0:
            start, _, data = self._code[index]
            if address + size <= start + len(data):
                return data[address - start :][:size]
        return super().read(address, size)

    @cached_property
    def lines(self) -> ImageLines:
        """Source lines and modules of the files."""
        return ImageLines(self.prog, lambda: self._code)

    @cached_property
    def _code(self) -> Sequence[LinkedCode]:
        """The code of the modules, by address."""
        return sorted(code for module in self._modules for code in self._link(module))

    def _link(self, module: ImageModule) -> Iterator[LinkedCode]:
        """Yield the sections with a module's code, with their calls relocated."""
        starts = dict(module.loaded.sections)
        with ElfFile(module.path) as elf, open_image(self.image, self.code) as kernel:

            def find_address(number: int) -> int | None:
                symbol = elf.symbols[number]
                if not symbol.section:
                    # Other modules may define the symbol, which the image then lacks.
                    exported = kernel.symbols.find(symbol.name)
                    return None if exported is None else exported.address
                if symbol.section >= len(elf.sections):
                    return None
                start = starts.get(elf.sections[symbol.section].name)
                return None if start is None else start + symbol.address

            for section in elf.text_sections():
                start = starts.get(section.name)
                if start is not None:
                    data = link_section(elf, section, start, find_address)
                    whole = data.ljust(page_align(len(data)), b"\0")
                    yield LinkedCode(start, module.loaded.name, whole)


def _lay_out_modules(paths: Sequence[str], start: int) -> Iterator[ImageModule]:
    """Yield the modules with addresses, one behind the other; the second file of a module is left
    out.

    :param start: the address of the first module.
    """
    names: set[str] = set()
    for path in paths:
        with ElfFile(path) as elf:
            name = _find_name(elf)
            if name in names:
                continue
            names.add(name)
            end = start
            texts: list[tuple[str, int]] = []
            for section in elf.sections:
                if section.flags & SHF_ALLOC:
                    if is_code_section(section.name):
                        texts.append((section.name, end))
                    end = page_align(end + section.size)
            loaded = LoadedModule(name, elf.build_id, end - start, tuple(texts))
            yield ImageModule(path, loaded)
            # `span` guesses the size of the last section: it may end later.
            start = page_align(max(end, loaded.span[1]))


def _find_name(elf: ElfFile) -> str:
    """Return the name of a module: since v4.13 ``.modinfo`` has it, before it is the file name."""
    section = elf.section(".modinfo")
    # In a file with debug info alone, the section reads as empty.
    entries = b"" if section is None else elf.read_section(section)
    for entry in entries.split(b"\0"):
        if entry.startswith(_NAME):
            return entry.removeprefix(_NAME).decode(errors="backslashreplace")
    return elf.path.name.partition(".")[0].replace("-", "_")
