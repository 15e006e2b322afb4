# SPDX-License-Identifier: LGPL-2.1-or-later
"""Source locations of PCs, by the location table of the build or, without one, by the debugger.
Each PC is located once.
"""

from __future__ import annotations

import gc
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from kcovdbg.abi.address import word_mask
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.symbol_table import demangle, is_mangled
from kcovdbg.errors import KcovdbgError, TargetError
from kcovdbg.model.location import Frame, Location
from kcovdbg.symbols.awaited_table import AwaitedTable
from kcovdbg.symbols.coverage_points import Functions, PointKind
from kcovdbg.symbols.location_table import LocationTable, TextRange

if TYPE_CHECKING:
    from kcovdbg.symbols.dwarf_reader import DwarfReader
    from kcovdbg.target.target import SourceLines


@contextmanager
def without_collection() -> Iterator[None]:
    """Disable Python's cyclic garbage collection in a block that makes many objects and no garbage.

    Collection would take a third of the time of a look-up, and more of the time of a build.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


NO_TEXT: Final = "no kernel text"
UNLOADED: Final = "module text that is no longer loaded"
NO_CODE: Final = (NO_TEXT, UNLOADED)
"""The remarks on addresses that are in no code of the kernel."""
INIT_TEXT: Final = "init text"
TAIL_CALL: Final = "tail call: approximate"
NOT_A_POINT: Final = "not a coverage point: approximate"
TAIL_KNOWN: Final = "tail call: the address is its caller's"
NO_LINES: Final = "no line information"

_INIT: Final = ".init"

Fallback = Callable[[int], Sequence[Frame]]
"""Returns the location of an instruction of the running kernel, empty when it has none. Raises
nothing.

The name of the outermost function may be mangled.
"""


def _no_frames(address: int) -> tuple[Frame, ...]:  # noqa: ARG001
    return ()


def demangle_location(location: Location) -> Location:
    """Return a location in which a mangled name of the outermost frame is demangled, and kept as
    :attr:`~kcovdbg.model.location.Location.mangled`.
    """
    name = location.symbol
    if name is None or not is_mangled(name):
        return location
    *inner, outer = location.frames
    return location._replace(frames=(*inner, outer._replace(function=demangle(name))), mangled=name)


class ImageText(NamedTuple):
    """The code of an image. Its symbols name PCs while there is no table; its debug info locates
    PCs that the table lacks.
    """

    ranges: tuple[TextRange, ...]
    image: str | os.PathLike[str] | None = None
    """Path of the image; None if its symbols are unknown."""


class Symbolizer:
    """Source locations of the PCs of one kernel.

    PCs are as KCOV records them: return addresses minus the KASLR offset, in modules as well. A PC
    has the location of the byte before it, which is the last one of the call.

    :param kaslr_offset: the kernel's KASLR offset.
    :param table: the table of this build, which another process may still build.
    :param fallback: locates PCs that the table lacks.
    :param modules: the loaded modules; None when the target does not know them.
    :param text: the code of the image; a table replaces its ranges.
    :param word_size: bytes of the kernel's ``unsigned long``.
    """

    def __init__(
        self,
        kaslr_offset: int = 0,
        *,
        table: AwaitedTable | None = None,
        fallback: Fallback = _no_frames,
        modules: SourceLines | None = None,
        text: ImageText | None = None,
        word_size: int = 8,
    ) -> None:
        self._offset = kaslr_offset
        self._mask = word_mask(word_size)
        self._fallback = fallback
        self._modules = modules
        self._text = () if text is None else text.ranges
        self._image = None if text is None else text.image
        self._init_span = (0, 0)
        self._known: dict[int, Location] = {}
        self._awaited = table
        self._table: LocationTable | None = None
        self._has_points = False
        self._look_for_table()

    def _adopt(self, table: LocationTable) -> None:
        self._table = table
        self._text = table.text_ranges()
        init: list[int] = []
        for text in self._text:
            if text.name.startswith(_INIT):
                init += (text.start, text.end)
        self._init_span = min(init, default=0), max(init, default=0)
        # If the table has no points, as on a machine whose calls are unknown, a missing PC means
        # nothing.
        self._has_points = len(table) > 0

    def _look_for_table(self) -> None:
        if self._table is None and self._awaited is not None and self._awaited.found is not None:
            self._adopt(self._awaited.found)
            # Locations remain the same, but only the table knows which PCs are not points.
            self._known.clear()

    def locate(self, pc: int) -> Location:
        """Return the location of a PC. If it has no frames, or approximate ones, its remark says
        why.
        """
        found = self._known.get(pc)
        return self.locate_all((pc,))[0] if found is None else found

    def locate_all(self, pcs: Iterable[int]) -> list[Location]:
        """Return the location of each PC in order, far faster than one by one."""
        self._look_for_table()
        wanted = list(pcs)
        known = self._known
        missing = [pc for pc in dict.fromkeys(wanted) if pc not in known]
        found: dict[int, Location] = {}
        if missing:
            with without_collection():
                if self._table is None:
                    found = {
                        pc: demangle_location(self._locate_without_table(pc)) for pc in missing
                    }
                else:
                    found = self._locate_by_table(self._table, missing)
            # A damaged buffer may have millions of random words. They are not kept: to recognize
            # one takes no time.
            known.update(item for item in found.items() if item[1].remark != NO_TEXT)
        try:
            return [known[pc] for pc in wanted]
        except KeyError:
            return [known[pc] if pc in known else found[pc] for pc in wanted]

    def _locate_by_table(self, table: LocationTable, pcs: Sequence[int]) -> dict[int, Location]:
        offset, mask = self._offset, self._mask
        init_low, init_high = self._init_span
        tail, tail_known = int(PointKind.TAIL), int(PointKind.TAIL_KNOWN)
        # Location's own constructor takes twice the time.
        make = tuple.__new__
        rows = table.get_rows(pcs)
        others = [pc for pc, row in zip(pcs, rows, strict=True) if row is None]
        frames_of = self._locate_by_image(others)
        found: dict[int, Location] = {}
        for pc, row in zip(pcs, rows, strict=True):
            if row is None:
                if pc in frames_of:
                    mangled = table.mangled_at(pc, frames_of[pc])
                    found[pc] = self._locate_other(pc, frames_of[pc], mangled)
                else:
                    found[pc] = demangle_location(self._locate_without_table(pc))
                continue
            kind, frames = row
            remark = mangled = None
            if not frames:
                remark = TAIL_CALL if kind == tail else NO_LINES
                found[pc] = demangle_location(
                    Location(pc + offset & mask, self._by_function(pc), remark, kind == tail)
                )
                continue
            if kind != tail_known and "::" in (frames[-1].function or ""):
                mangled = table.mangled_at(pc, frames)
            if kind == tail:
                remark = TAIL_CALL
            elif kind == tail_known:
                remark = TAIL_KNOWN
            elif init_low < pc <= init_high and self._is_init(pc):
                remark = INIT_TEXT
            found[pc] = make(Location, (pc + offset & mask, frames, remark, kind == tail, mangled))
        return found

    def locate_instruction(self, address: int) -> Location:
        """Return the location of an instruction of the running kernel by debug info alone; without
        frames if debug info has none.
        """
        self._look_for_table()
        pc = address + 1 - self._offset & self._mask
        frames = self._locate_by_image((pc,)).get(pc)
        if frames is None and self._modules is not None:
            frames = tuple(self._modules.frames_at(address))
        location = demangle_location(Location(address, frames or ()))
        if location.mangled is None and "::" in (location.outermost.function or ""):
            return location._replace(mangled=self._function_at(pc - 1))
        return location

    def _locate_by_image(self, pcs: Iterable[int]) -> Mapping[int, tuple[Frame, ...]]:
        """Return the frames of the PCs in the image's code; nothing if the image is unreadable."""
        inside = sorted(pc for pc in pcs if self._section_of(pc) is not None)
        if not inside or self._debug_info is None:
            return {}
        from kcovdbg.symbols.address_locator import locate_addresses

        reader, elf = self._debug_info
        addresses = array("Q", [pc - 1 for pc in inside])
        with suppress(KcovdbgError):
            return dict(zip(inside, locate_addresses(reader, elf.symbols, addresses), strict=True))
        return {}

    @cached_property
    def _debug_info(self) -> tuple[DwarfReader, ElfFile] | None:
        """The debug info of the image, and the image, which remains open; None if unreadable."""
        if self._image is None:
            return None
        from kcovdbg.symbols.dwarf_reader import DwarfReader

        with suppress(KcovdbgError):
            elf = ElfFile(self._image)
            if elf.has_lines:
                return DwarfReader(elf), elf
        return None

    def _locate_other(
        self, pc: int, frames: tuple[Frame, ...], mangled: str | None = None
    ) -> Location:
        """Return the location of a PC in the image's code that the table lacks."""
        address = pc + self._offset & self._mask
        if not frames:
            return demangle_location(Location(address, self._by_function(pc), NO_LINES))
        if self._is_init(pc):
            return Location(address, frames, INIT_TEXT, False, mangled)
        remark = NOT_A_POINT if self._has_points else None
        return Location(address, frames, remark, self._has_points, mangled)

    def _is_init(self, pc: int) -> bool:
        text = self._section_of(pc)
        return text is not None and text.name.startswith(_INIT)

    def _locate_without_table(self, pc: int) -> Location:
        address = pc + self._offset & self._mask
        if self._text and self._section_of(pc) is None:
            return self._locate_outside(address)
        frames = tuple(self._fallback(address - 1 & self._mask))
        if self._text:
            return self._locate_other(pc, frames)
        # Without the ranges of text, debug info decides.
        return Location(address, frames, None) if frames else self._locate_outside(address)

    def function_starting_at(self, pc: int) -> str | None:
        """Return the name of the function that starts at an address in the image, None when none
        does.

        A call that ends there never returns: so hardly any recorded PC is such an address.
        """
        name = self._function_at(pc)
        return None if name == self._function_at(pc - 1) else name

    def _by_function(self, pc: int) -> tuple[Frame, ...]:
        name = self._function_at(pc - 1)
        return () if name is None else (Frame(name, None, None, None),)

    def _function_at(self, address: int) -> str | None:
        if self._table is None:
            return None if self._functions is None else self._functions.name_at(address)
        function = self._table.function_at(address)
        return None if function is None else function.name

    @cached_property
    def _functions(self) -> Functions | None:
        # An unreadable image has no functions.
        with suppress(TargetError):
            if self._image is not None:
                with ElfFile(self._image) as elf:
                    return Functions(elf.symbols)
        return None

    def _locate_outside(self, address: int) -> Location:
        if self._modules is not None:
            name = self._modules.name_at(address - 1 & self._mask)
            if name is not None:
                frames = tuple(self._fallback(address - 1 & self._mask))
                return Location(address, frames, None if frames else f"module {name}: {NO_LINES}")
            if self._modules.may_hold(address - 1 & self._mask):
                return Location(address, (), UNLOADED)
        return Location(address, (), NO_TEXT)

    def _section_of(self, pc: int) -> TextRange | None:
        # A return address may be the one after the last byte of a section.
        return next((text for text in self._text if text.start < pc <= text.end), None)


def text_ranges(elf: ElfFile) -> tuple[TextRange, ...]:
    """Return the ranges of an image's code."""
    return tuple(
        TextRange(text.address, text.address + text.size, text.name) for text in elf.text_sections()
    )


def find_image_text(
    build_id: str | None, image: str | os.PathLike[str], code: str | os.PathLike[str] | None = None
) -> ImageText | None:
    """Return the code of an image; None if it has none, is unreadable or is of another build.

    :param image: the image with debug info.
    :param code: the image with the code, if that is another file.
    """
    with suppress(TargetError), ElfFile(code or image) as elf:
        ranges = text_ranges(elf)
        if ranges and build_id in (None, elf.build_id):
            return ImageText(ranges, image)
    return None
