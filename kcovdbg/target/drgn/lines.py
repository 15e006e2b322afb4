# SPDX-License-Identifier: LGPL-2.1-or-later
"""Source lines of the kernel and of its modules, in a running target and in files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import drgn

from kcovdbg.abi.address import page_align
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import damaged
from kcovdbg.elf.shared_debug_info import SHARED_HINT, find_shared_file, find_shared_link
from kcovdbg.errors import KcovdbgError, TargetError
from kcovdbg.input_file import PathName
from kcovdbg.model.location import Frame, LoadedModule, is_code_section, normalize_path
from kcovdbg.target.dump_file import working_path
from kcovdbg.target.target import SourceLines


def frames_at(program: drgn.Program, address: int) -> tuple[Frame, ...]:
    """Return the source location of an instruction, in about 170 microseconds.

    :param address: an address of the instruction in the running kernel. For a return address, it is
        one less.
    :return: the frames, innermost first; empty if debug info lacks them. The outermost frame of
        Rust code has the name of the symbol.
    """
    try:
        locations = program.source_location(address)
    except LookupError:
        return ()
    except Exception as error:
        # drgn raises bare Exceptions for debug info without line tables or ranges.
        if type(error) is not Exception:
            raise
        return ()
    frames: list[Frame] = []
    for location in locations:
        file = normalize_path(location.filename) if location.filename else None
        frames.append(
            Frame(location.name() or None, file, location.line or None, location.column or None)
        )
    if frames and (frames[-1].file or "").endswith(".rs"):
        # drgn has only the last part of its name: to_result for kernel::error::to_result.
        with contextlib.suppress(LookupError):
            frames[-1] = frames[-1]._replace(function=program.symbol(address).name)
    return tuple(frames)


def open_image_program(
    path: PathName, start: int, end: int, platform: drgn.Platform | None = None
) -> drgn.Program:
    """Open the debug info of a linked image, with addresses as in the image.

    :param start: the first address of its code.
    :param end: the address after the last one.
    :param platform: the image's platform, for its types; :func:`frames_at` needs none.
    :raises TargetError: when drgn cannot use the file.
    """
    program = drgn.Program(platform)
    module = program.extra_module(os.fspath(path), create=True)
    _use_file(module, path)
    if module.debug_file_status != drgn.ModuleFileStatus.HAVE:
        raise TargetError(
            f"{path} has no debug info", hint="build the kernel with CONFIG_DEBUG_INFO"
        )
    module.address_range = (start, end)
    return program


# Address given to the first section with code of a module that is not loaded. The other sections
# follow it: in the file all start at 0, and drgn could not tell them apart.
_FIRST_SECTION: Final = 1 << 20
_ADDRESS_SPACE: Final = 1 << 64
# The greatest distance of a module from the kernel's text: calls between them have 32-bit
# displacements.
_MODULE_REACH: Final = 1 << 31


class DrgnLines(SourceLines):
    """Source lines and modules of a Program.

    :param prog: with the kernel's debug info loaded.
    """

    def __init__(self, prog: drgn.Program) -> None:
        self._prog = prog
        self._unloaded: dict[str, tuple[drgn.Program, LoadedModule]] = {}

    @property
    def image(self) -> str | None:
        kernel = self._kernel
        if kernel is None:
            return None
        return working_path(kernel.debug_file_path or kernel.loaded_file_path)

    @property
    def _kernel(self) -> drgn.Module | None:
        """The kernel's image."""
        try:
            return self._prog.main_module()
        except LookupError:
            # A Program without memory has no main module: see open_image_program().
            modules = self._prog.modules()
            return next(
                (module for module in modules if isinstance(module, drgn.ExtraModule)), None
            )

    def frames_at(self, address: int) -> tuple[Frame, ...]:
        return frames_at(self._prog, address)

    def frames_in_section(self, path: str, section: str, offset: int) -> tuple[Frame, ...]:
        with contextlib.suppress(TargetError):
            if path not in self._unloaded:
                module = _place_sections(path)
                program = open_module_program([module], {module.build_id or "": path})
                self._unloaded[path] = program, module
            program, module = self._unloaded[path]
            start = dict(module.sections).get(section)
            if start is not None:
                return frames_at(program, start + offset)
        return ()

    def _module_at(self, address: int) -> drgn.RelocatableModule | None:
        try:
            module = self._prog.module(address)
        except LookupError:
            return None
        return module if isinstance(module, drgn.RelocatableModule) else None

    def name_at(self, address: int) -> str | None:
        module = self._module_at(address)
        return None if module is None else module.name

    def code_at(self, address: int) -> tuple[str, int] | None:
        module = self._module_at(address)
        if module is None or ".text" not in module.section_addresses:
            return None
        return module.name, int(module.section_addresses[".text"])

    def code_ranges(self) -> tuple[tuple[str, int, int], ...]:
        found: list[tuple[str, int, int]] = []
        for module in self._prog.modules():
            sections = getattr(module, "section_addresses", {})
            # .init.text counts as well: its range is gone after the module has freed it.
            texts = [int(address) for name, address in sections.items() if "text" in name]
            if not texts:
                continue
            for start, end in getattr(module, "address_ranges", None) or ():
                if any(start <= text < end for text in texts):
                    found.append((module.name, start, end))
        return tuple(found)

    def loaded_modules(self) -> tuple[LoadedModule, ...]:
        found: list[LoadedModule] = []
        for module in self._prog.modules():
            sections = getattr(module, "section_addresses", {})
            texts = tuple(
                (name, int(address)) for name, address in sections.items() if is_code_section(name)
            )
            if texts:
                size = sum(end - start for start, end in module.address_ranges or ())
                build_id = module.build_id.hex() if module.build_id else None
                found.append(LoadedModule(module.name, build_id, size, texts))
        return tuple(found)

    def has_function(self, name: str) -> bool:
        try:
            self._prog.function(name)
        except LookupError:
            return False
        return True

    def module_files(self) -> Iterator[str]:
        ranges = [(start, end) for _, start, end in self.code_ranges()]
        if not ranges:
            return
        for symbol in self._prog.symbols():
            if any(start <= symbol.address < end for start, end in ranges):
                yield from (
                    frame.file for frame in self.frames_at(symbol.address) if frame.file is not None
                )

    def loaded_files(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for module in self._prog.modules():
            if isinstance(module, drgn.MainModule) or not module.build_id:
                continue
            path = working_path(module.debug_file_path or module.loaded_file_path)
            if path is not None:
                found[module.build_id.hex()] = path
        return found

    def may_hold(self, address: int) -> bool:
        """Return whether an address is near the kernel's image, where a module could be."""
        try:
            text = int(self._prog.symbol("_stext").address)
        except LookupError:
            return False
        platform = self._prog.platform
        if platform is not None and platform.arch == drgn.Architecture.X86_64 and address < text:
            # Modules are behind the image: MODULES_VADDR of asm/pgtable_64_types.h.
            return False
        kernel = self._kernel
        image = () if kernel is None else kernel.address_ranges or ()
        is_in_image = any(start <= address < end for start, end in image)
        return abs(address - text) < _MODULE_REACH and not is_in_image


def open_module_program(modules: Iterable[LoadedModule], files: Mapping[str, str]) -> drgn.Program:
    """Open the debug info of loaded modules.

    :param files: their files with debug info, by build ID.
    :raises TargetError: when drgn cannot use one.
    """
    program = drgn.Program()
    for module in modules:
        path = files.get(module.build_id or "")
        if path is not None and module.sections:
            add_module(program, module, path)
    return program


def _place_sections(path: str) -> LoadedModule:
    """Return a module that is not loaded, with an address for each section of its code."""
    with ElfFile(path) as elf:
        at = _FIRST_SECTION
        placed: list[tuple[str, int]] = []
        for section in elf.text_sections():
            placed.append((section.name, at))
            at = page_align(at + section.size)
        return LoadedModule(elf.path.name, elf.build_id, at - _FIRST_SECTION, tuple(placed))


def add_module(prog: drgn.Program, loaded: LoadedModule, path: str) -> None:
    """Add a module to a Program.

    :param loaded: the module with its addresses.
    :param path: its file with debug info.
    :raises TargetError: when drgn cannot use it.
    """
    start, end = loaded.span
    if end >= _ADDRESS_SPACE:
        raise damaged(path, f"its code would reach the address {end:#x}")
    module = prog.relocatable_module(loaded.name, start, create=True)
    for name, address in loaded.sections:
        module.section_addresses[name] = address
    module.address_range = loaded.span
    _use_file(module, path)


def _use_shared_file(module: drgn.Module, path: PathName) -> None:
    """Give a module its file of debug info that ``dwz -m`` made images share.

    :raises TargetError: when the file is missing.
    """
    with ElfFile(path) as elf:
        link = find_shared_link(elf)
        found = None if link is None else find_shared_file(elf, link)
    if link is None or found is None:
        name = "another file" if link is None else f"'{link.name}'"
        raise TargetError(
            f"{path} shares debug info with {name}, which is missing", hint=SHARED_HINT
        )
    module.try_file(found)


def _use_file(module: drgn.Module, path: PathName) -> None:
    try:
        module.try_file(path, force=True)
        if module.debug_file_status == drgn.ModuleFileStatus.WANT_SUPPLEMENTARY:
            _use_shared_file(module, path)
    except KcovdbgError:
        raise
    except Exception as error:
        # drgn raises bare Exceptions for damaged files.
        raise TargetError(f"{path}: {error}") from error
