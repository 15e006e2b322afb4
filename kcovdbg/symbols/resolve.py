# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names program counters: by the table where there is one, by the debugger where there is none, each PC once."""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from kcovdbg.errors import CapabilityError, TargetError
from kcovdbg.model.location import Frame, Location
from kcovdbg.symbols.cache import open_table, start_build
from kcovdbg.symbols.elf import ElfFile, ElfSymbol
from kcovdbg.symbols.garbage import without_collection
from kcovdbg.symbols.llvm import find_symbolizer, symbolize
from kcovdbg.symbols.points import PointKind
from kcovdbg.symbols.table import Table, TextRange

NO_TEXT: Final = "no kernel text"
UNLOADED: Final = "module text that is no longer loaded"
INIT_TEXT: Final = "init text"
TAIL_CALL: Final = "tail call: approximate"
NO_LINES: Final = "no line information"

_INIT: Final = ".init"

# From so many on llvm-symbolizer, which reads each unit's functions once, is faster than asking one by one: 3600 in two
# thirds of the time, 13500 in a third. Fewer don't pay for its start.
_BATCH: Final = 2000

# How long an answer stays good that there is no table yet, in seconds.
_TABLE_WAIT: Final = 0.5

Fallback = Callable[[int], Sequence[Frame]]
"""Locates the instruction at an address of the running kernel; empty where it can't. Raises nothing."""

Batch = Callable[[Sequence[int]], Sequence[tuple[Frame, ...]]]
"""Locates instructions by their addresses in the image, all at once. Raises CapabilityError when it can't."""

Functions = Callable[[int], str | None]
"""Names the function that an instruction lies in, by its address in the image; None where none does. Raises nothing."""


class Modules(Protocol):
    """Knows where modules are."""

    def name_at(self, address: int) -> str | None:
        """Name the loaded module whose code an address of the running kernel lies in."""

    def may_hold(self, address: int) -> bool:
        """Tell whether modules are put where this address is."""


def _no_frames(address: int) -> tuple[Frame, ...]:  # noqa: ARG001
    return ()


class Symbolizer:
    """Locates PCs of one kernel.

    PCs are as KCOV records them: return addresses, with the KASLR offset taken off (off addresses in modules too). Names,
    files, lines and columns are the call's, that is, of the byte before.

    :param kaslr_offset: what the kernel's image is shifted by.
    :param table: of this build, if it is there.
    :param fallback: for what the table hasn't got.
    :param modules: where modules are; None where the target can't tell.
    :param text: the image's code; taken from the table when there is one.
    :param word_size: bytes of the kernel's ``unsigned long``.
    :param find_table: called now and then while there is no table, until it returns one.
    :param batch: locates many PCs of the image while there is no table; None for: one by one.
    :param functions: names the function that an instruction of the image lies in, where there is neither table nor line.
    """

    def __init__(
        self,
        kaslr_offset: int = 0,
        *,
        table: Table | None = None,
        fallback: Fallback = _no_frames,
        modules: Modules | None = None,
        text: Sequence[TextRange] = (),
        word_size: int = 8,
        find_table: Callable[[], Table | None] | None = None,
        batch: Batch | None = None,
        functions: Functions | None = None,
    ) -> None:
        self._offset = kaslr_offset
        self._mask = (1 << 8 * word_size) - 1
        self._fallback = fallback
        self._modules = modules
        self._text = tuple(text)
        self._init_span = (0, 0)
        self._find_table = find_table
        self._batch = batch
        self._functions = functions
        self._next_look = 0.0
        self._known: dict[int, Location] = {}
        self._table: Table | None = None
        self._has_points = False
        if table is not None:
            self._adopt(table)

    def _adopt(self, table: Table) -> None:
        self._table = table
        self._text = table.text_ranges()
        init = [text for text in self._text if text.name.startswith(_INIT)]
        self._init_span = (min((text.start for text in init), default=0), max((text.end for text in init), default=0))
        # Without points (an architecture whose calls aren't known) nothing can be told from a PC's absence.
        self._has_points = len(table) > 0
        self._find_table = None

    @property
    def table(self) -> Table | None:
        """The table, once it is there."""
        self._look_for_table()
        return self._table

    @property
    def waits_for_table(self) -> bool:
        """Whether there is no table yet, and there may be one later."""
        return self._find_table is not None

    def _look_for_table(self) -> None:
        if self._find_table is None:
            return
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _TABLE_WAIT
        table = self._find_table()
        if table is not None:
            self._adopt(table)
            # What is known came from the same debug info, but for what only the table knows: which PCs are no points.
            self._known.clear()

    def locate(self, pc: int) -> Location:
        """Locate one PC.

        :return: never fails; where there are no frames, or approximate ones, its remark says why. ``address`` is the PC
            in the running kernel, with the KASLR offset.
        """
        found = self._known.get(pc)
        return self.locate_all((pc,))[0] if found is None else found

    def locate_all(self, pcs: Iterable[int]) -> list[Location]:
        """Locate many PCs, which is faster by far than one by one: one result for each, in their order."""
        self._look_for_table()
        wanted = list(pcs)
        known = self._known
        missing = [pc for pc in dict.fromkeys(wanted) if pc not in known]
        found: dict[int, Location] = {}
        if missing:
            with without_collection():
                if self._table is None:
                    frames = self._locate_in_batch(missing)
                    found = {pc: self._locate_without_table(pc, frames.get(pc)) for pc in missing}
                else:
                    found = self._locate_by_table(self._table, missing)
            # Random words from a damaged buffer could be millions, and cost next to nothing to tell.
            known.update(item for item in found.items() if item[1].remark != NO_TEXT)
        try:
            return [known[pc] for pc in wanted]
        except KeyError:
            return [known[pc] if pc in known else found[pc] for pc in wanted]

    def _locate_by_table(self, table: Table, pcs: Sequence[int]) -> dict[int, Location]:
        offset, mask = self._offset, self._mask
        init_low, init_high = self._init_span
        tail = int(PointKind.TAIL)
        # Without the named arguments of Location's own constructor, in half the time.
        make = tuple.__new__
        found: dict[int, Location] = {}
        for pc, row in zip(pcs, table.get_rows(pcs), strict=True):
            if row is None:
                found[pc] = self._locate_without_table(pc)
                continue
            kind, frames = row
            remark = None
            if not frames:
                frames, remark = self._by_function(pc), NO_LINES
            elif kind == tail:
                remark = TAIL_CALL
            elif init_low < pc <= init_high and self._is_init(pc):
                remark = INIT_TEXT
            found[pc] = make(Location, (pc + offset & mask, frames, remark))
        return found

    def _is_init(self, pc: int) -> bool:
        text = self._section_of(pc)
        return text is not None and text.name.startswith(_INIT)

    def _locate_in_batch(self, pcs: Sequence[int]) -> dict[int, tuple[Frame, ...]]:
        """Return the frames of those that are worth a batch; what it has no full answer for is left out."""
        if self._batch is None or len(pcs) < _BATCH:
            return {}
        inside = [pc for pc in pcs if self._section_of(pc) is not None]
        if len(inside) < _BATCH:
            return {}
        try:
            chains = self._batch([pc - 1 for pc in inside])
        except CapabilityError:
            # One by one it works as well.
            self._batch = None
            return {}
        found = zip(inside, chains, strict=True)
        return {pc: frames for pc, frames in found if frames and all(frame.function is not None for frame in frames)}

    def _locate_without_table(self, pc: int, known: tuple[Frame, ...] | None = None) -> Location:
        address = pc + self._offset & self._mask
        text = self._section_of(pc)
        if text is None and self._text:
            return self._locate_outside(address)
        frames = known or tuple(self._fallback(address - 1 & self._mask))
        if text is None:
            # Without a word on where text is, debug info tells.
            return Location(address, frames, None) if frames else self._locate_outside(address)
        if not frames:
            return Location(address, self._by_function(pc), NO_LINES)
        if text.name.startswith(_INIT):
            return Location(address, frames, INIT_TEXT)
        return Location(address, frames, TAIL_CALL if self._has_points else None)

    def _by_function(self, pc: int) -> tuple[Frame, ...]:
        if self._table is not None:
            function = self._table.function_at(pc - 1)
            name = None if function is None else function.name
        else:
            name = None if self._functions is None else self._functions(pc - 1)
        return () if name is None else (Frame(name, None, None, None),)

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
        # A return address may be that after a section's last byte.
        return next((text for text in self._text if text.start < pc <= text.end), None)


def has_lines(image: str | os.PathLike[str]) -> bool:
    """Tell whether an image has source lines, without which no table is made of it."""
    try:
        with closing(ElfFile(image)) as elf:
            return elf.has_lines
    except TargetError:
        return False


def read_text_ranges(image: str | os.PathLike[str], build_id: str | None = None) -> tuple[TextRange, ...]:
    """Return where an image's code is, addresses as in the image.

    :param build_id: that it must have, hexadecimal; None takes any.
    :return: empty where the file can't tell, or is of another build.
    """
    try:
        with closing(ElfFile(image)) as elf:
            if build_id is not None and elf.build_id != build_id:
                return ()
            return tuple(TextRange(text.address, text.address + text.size, text.name) for text in elf.text_sections())
    except TargetError:
        return ()


class SymbolTable:
    """Names functions by an image's symbol table, which is read when it is first asked.

    :param image: where it is; one that can't be read any more has no names.
    """

    def __init__(self, image: str | os.PathLike[str]) -> None:
        self._image = image
        self._starts: list[int] | None = None
        self._symbols: list[ElfSymbol] = []

    def function_at(self, address: int) -> str | None:
        """Name the function that an instruction lies in, by its address in the image."""
        if self._starts is None:
            self._symbols = self._read()
            self._starts = [symbol.value for symbol in self._symbols]
        index = bisect_right(self._starts, address) - 1
        if index < 0:
            return None
        symbol = self._symbols[index]
        return symbol.name if address < symbol.value + symbol.size else None

    def _read(self) -> list[ElfSymbol]:
        try:
            with closing(ElfFile(self._image)) as elf:
                named: dict[int, ElfSymbol] = {}
                for symbol in elf.symbols():
                    if symbol.is_function:
                        # Of several at one address the first one counts, as in the table.
                        named.setdefault(symbol.value, symbol)
        except TargetError:
            return []
        return [named[start] for start in sorted(named)]


def _make_batch(image: str | os.PathLike[str]) -> Batch | None:
    symbolizer = find_symbolizer()
    return None if symbolizer is None else partial(symbolize, symbolizer, Path(image), make_frame=_same)


def _same(frame: Frame) -> Frame:
    return frame


def open_symbolizer(
    kaslr_offset: int,
    *,
    build_id: str | None,
    image: str | os.PathLike[str] | None,
    fallback: Fallback = _no_frames,
    modules: Modules | None = None,
    word_size: int = 8,
    folder: Path | None = None,
    may_build: bool = True,
) -> Symbolizer:
    """Make a symbolizer with the table of the build, or one that takes the table over once it has been built.

    Doesn't wait: without a table, a process is started that builds it, and answers come from the fallback meanwhile.

    :param build_id: of the kernel's image, hexadecimal; None where the target doesn't tell, then there is no table.
    :param image: the kernel's image with debug info, if the user has it.
    :param folder: where tables are; None for the user's cache.
    :param may_build: whether to start building the table.
    """
    table = None if build_id is None else open_table(build_id, folder)
    find_table: Callable[[], Table | None] | None = None
    batch: Batch | None = None
    functions: Functions | None = None
    text: tuple[TextRange, ...] = ()
    if table is None and image is not None:
        text = read_text_ranges(image, build_id)
        functions = SymbolTable(image).function_at if text else None
        if text and build_id is not None and has_lines(image):
            find_table = partial(open_table, build_id, folder)
            batch = _make_batch(image)
            if may_build:
                start_build(image, folder)
    return Symbolizer(
        kaslr_offset,
        table=table,
        fallback=fallback,
        modules=modules,
        text=text,
        word_size=word_size,
        find_table=find_table,
        batch=batch,
        functions=functions,
    )
