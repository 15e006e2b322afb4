# SPDX-License-Identifier: LGPL-2.1-or-later
"""The symbolizer and the source tree of a target: its location table, waited for with a progress bar, or its debug info."""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn, Protocol, TypeVar, cast

from kcovdbg.console.terminal import Terminal
from kcovdbg.elf.compile_units import read_comp_dir
from kcovdbg.elf.file import ElfFile
from kcovdbg.errors import CapabilityError, KcovdbgError, MissingSymbolError, MissingTypeError, TargetError
from kcovdbg.model.location import Frame
from kcovdbg.model.module_place import ModulePlace
from kcovdbg.records.pc_convention import PointSet, list_points
from kcovdbg.symbols.code_proof import CodeProof
from kcovdbg.symbols.coverage_points import find_place_points
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.remote_calls import RemoteCalls
from kcovdbg.symbols.source_tree import SourceTree
from kcovdbg.symbols.symbolizer import Modules, Symbolizer, open_symbolizer
from kcovdbg.symbols.table_cache import CACHE_HINT, Progress, TableBuild, choose_table_file, find_usable_cache
from kcovdbg.target.protocol import FileTarget, Member, Symbol, Target


class LineSource(Modules, Protocol):
    """Source lines of a target: its attribute ``lines``, where it has one."""

    @property
    def image(self) -> str | None:
        """Path of the kernel image with debug info."""

    def frames_at(self, address: int) -> Sequence[Frame]:
        """Return the frames at an address in the running kernel; empty where debug info lacks it."""

    def has_function(self, name: str) -> bool:
        """Return whether debug info has a function with a name, one that is inlined everywhere included."""

    def module_files(self) -> Iterator[str]:
        """Yield the source files of loaded modules, some more than once."""

    def module_places(self) -> tuple[ModulePlace, ...]:
        """Return where the code of loaded modules is."""


def find_module_places(target: Target) -> tuple[ModulePlace, ...] | None:
    """Return where a target's modules are, with addresses as KCOV records them; None where that is unknown."""
    lines = cast("LineSource | None", getattr(target, "lines", None))
    return None if lines is None else tuple(place.shift(-target.kaslr_offset) for place in lines.module_places())


def find_module_files(target: Target) -> Mapping[str, str]:
    """Return the files of a target's modules that are at hand, by build ID."""
    find = getattr(getattr(target, "lines", None), "loaded_files", None)
    return {} if find is None else find()


def find_module_sets(places: Iterable[ModulePlace], paths: Mapping[str, str]) -> Iterator[PointSet]:
    """Iterate over the coverage points of modules whose files are at hand.

    :param places: where modules are, with addresses as KCOV records them.
    :param paths: of their files, by build ID.
    """
    for place in places:
        path = paths.get(place.build_id or "")
        if path is not None and place.sections:
            # Points of a file that cannot be read are unknown.
            with contextlib.suppress(TargetError):
                yield list_points(find_place_points(place, path), place.span, place.name)


def find_base(target: Target, name: str) -> int | None:
    """Return where offsets in the image or a module count from, as KCOV records addresses; None where that is unknown.

    :param name: of its file: ``vmlinux``, ``ext4.ko``.
    """
    stem = name.partition(".ko")[0].replace("-", "_")
    for place in find_module_places(target) or ():
        if place.name == stem:
            return dict(place.sections).get(".text")
    if not name.lower().startswith(("vmlinux", "bzimage", "image")):
        return None
    for symbol in ("_text", "_stext"):
        with contextlib.suppress(KcovdbgError):
            return target.symbol(symbol).address - target.kaslr_offset
    return None


def find_image(target: Target) -> str | None:
    """Return the path of a target's kernel image with debug info, None where it has none."""
    lines = cast("LineSource | None", getattr(target, "lines", None))
    return None if lines is None else lines.image


def find_code(target: Target) -> str | None:
    """Return the path of a target's stripped kernel image, None where :func:`find_image` returns the one with the code."""
    code: str | None = getattr(target, "code", None)
    return code


def find_symbolizer(target: Target | None, table_file: str | None = None, tables: Sequence[str] = ()) -> Symbolizer | None:
    """Return the symbolizer of a target; where its build has no table yet, one is made in the background.

    :param table_file: a table that was built elsewhere.
    :param tables: tables of any builds that were built elsewhere; used if ``table_file`` is None.
    :raises TargetError: when one of them cannot be read, or ``table_file`` is of another build.
    """
    if target is None:
        return None
    table_file = table_file or choose_table_file(tables, target.build_id)
    lines = cast("LineSource | None", getattr(target, "lines", None))
    if lines is None:

        def name_at(address: int) -> Sequence[Frame]:
            name = target.symbol_name(address)
            return () if name is None else (Frame(name, None, None, None),)

        return open_symbolizer(
            target.kaslr_offset,
            build_id=target.build_id,
            image=None,
            fallback=name_at,
            word_size=target.word_size,
            table_file=table_file,
        )
    return open_symbolizer(
        target.kaslr_offset,
        build_id=target.build_id,
        image=lines.image,
        code=find_code(target),
        fallback=lines.frames_at,
        modules=lines,
        word_size=target.word_size,
        table_file=table_file,
    )


def find_point_proof(target: Target) -> CodeProof:
    """Return what proves that records are coverage points: the kernel's image and its modules."""
    modules = cast("LineSource | None", getattr(target, "lines", None))
    return CodeProof(find_image(target), target.build_id, target.kaslr_offset, modules, code=find_code(target))


def find_remote_calls(target: Target) -> RemoteCalls:
    """Return the calls of a kernel that announce remote handles."""
    return RemoteCalls(find_image(target), target.build_id, target.kaslr_offset, code=find_code(target))


def make_source_tree(
    target: Target | None, folders: Sequence[str | Path] = (), substitutions: Sequence[tuple[str, str]] = ()
) -> SourceTree:
    """Return the source tree of a target's kernel, looked for in these folders and where it was built.

    :param substitutions: as :class:`~kcovdbg.symbols.source_tree.SourceTree` takes them.
    """
    image = None if target is None else find_image(target)
    directory: str | None = None
    if image is not None:
        try:
            with ElfFile(image) as elf:
                directory = read_comp_dir(elf)
        except TargetError:
            directory = None
    return SourceTree(folders, build_directory=directory, image=image, substitutions=substitutions)


class TableTarget(FileTarget):
    """A location table as a :class:`~kcovdbg.target.protocol.Target`: it has names and coverage points, and no types.

    :param name: what messages call it.
    :param machine: as of uname -m; None for this machine's, as tables do not say it.
    :param lines: the modules that traces have records in, None where none is known.
    """

    word_size = 8
    big_endian = False
    release = "unknown"

    def __init__(self, table: LocationTable, name: str, *, machine: str | None = None, lines: LineSource | None = None) -> None:
        super().__init__(name, "a location table")
        self.build_id = table.build_id
        self.machine = machine or platform.machine()
        self.lines = lines
        self._table = table

    def symbol(self, name: str) -> Symbol:
        """Find a function by name.

        :raises MissingSymbolError: when the table has none.
        """
        found = next((symbol for symbol in self._table.functions_named(name) if symbol.name == name), None)
        if found is None:
            raise MissingSymbolError(f"the location table has no function {name}")
        return Symbol(name, found.address, found.size)

    def symbol_name(self, address: int) -> str | None:
        """Return the name of the function that an address is in, None when it is in none."""
        found = self._table.function_at(address)
        return None if found is None else found.name

    def type_size(self, type_name: str) -> int:
        """Refuse: tables have no types.

        :raises MissingTypeError: always.
        """
        self._refuse(type_name)

    def member(self, type_name: str, path: str) -> Member:
        """Refuse, as :meth:`type_size`."""
        self._refuse(f"{type_name}.{path}")

    def member_names(self, type_name: str) -> Sequence[str]:
        """Refuse, as :meth:`type_size`."""
        self._refuse(type_name)

    def enumerators(self, type_name: str) -> Mapping[str, int]:
        """Refuse, as :meth:`type_size`."""
        self._refuse(type_name)

    def variable_type(self, name: str) -> tuple[str, int | None]:
        """Return nothing: tables have no variables.

        :raises MissingSymbolError: always.
        """
        raise MissingSymbolError(f"{self.memory_problem}, which has no variables such as {name}")

    def _refuse(self, name: str) -> NoReturn:
        raise MissingTypeError(f"{self.memory_problem}, which has no types such as {name}", hint="-s VMLINUX")


_STEP: Final = 0.05
_BAR: Final = 24
_TITLE: Final = "finding coverage points"

_Found = TypeVar("_Found")


class ProgressBar:
    """A progress bar on a terminal; elsewhere a line that says what is waited for.

    :param terminal: its standard error is written to.
    :param is_quiet: whether to say nothing where that is not a terminal.
    :param clock: returns the time in seconds.
    """

    def __init__(self, terminal: Terminal, *, is_quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = terminal.stderr
        self._width = terminal.error_width
        self._clock = clock
        self._first: tuple[float, int] | None = None
        self._shown = 0
        if self._width is None and not is_quiet:
            self._stream.write(f"kcovdbg: {_TITLE} of this build, once\n")
            self._stream.flush()

    def show(self, progress: Progress | None) -> None:
        """Show how far the build is; None before its first part."""
        if self._width is None:
            return
        text = self._text(progress)[: self._width - 1]
        # Blanks work on every terminal, unlike escape sequences.
        self._stream.write(f"\r{text}{' ' * (self._shown - len(text))}")
        self._stream.flush()
        self._shown = len(text)

    def _text(self, progress: Progress | None) -> str:
        if progress is None:
            return f"{_TITLE} …"
        now = self._clock()
        if self._first is None:
            # Parts that were there before are not of this build.
            self._first = now, progress.done
        start, before = self._first
        filled = _BAR * progress.done // progress.total
        text = f"{_TITLE} [{'#' * filled}{'-' * (_BAR - filled)}] {100 * progress.done // progress.total} %"
        if progress.done == progress.total:
            return f"{text}, writing the table"
        if progress.done > before and now > start:
            left = (now - start) / (progress.done - before) * (progress.total - progress.done)
            text += f", {left:.0f} s left"
        return text

    def clear(self) -> None:
        """Remove the bar."""
        if self._shown:
            self._stream.write(f"\r{' ' * self._shown}\r")
            self._stream.flush()
            self._shown = 0


def wait_with_progress(
    terminal: Terminal,
    find: Callable[[], _Found | None],
    find_progress: Callable[[], Progress | None],
    patience: float,
    *,
    is_quiet: bool = False,
) -> _Found | None:
    """Wait until a table has been built.

    :param find: returns what is waited for, None while it is not there.
    :param patience: seconds.
    :param is_quiet: as in :class:`ProgressBar`.
    :return: None when it is not there in time.
    """
    found = find()
    if found is not None:
        return found
    bar = ProgressBar(terminal, is_quiet=is_quiet)
    end = time.monotonic() + patience
    try:
        while found is None and time.monotonic() < end:
            bar.show(find_progress())
            time.sleep(_STEP)
            found = find()
    finally:
        bar.clear()
    return found


def build_table(terminal: Terminal, image: str, build_id: str, patience: float, code: str | None = None) -> LocationTable:
    """Build the location table of an image in the cache, and wait for it.

    :param image: ELF file with debug info.
    :param patience: seconds; a table that takes longer is finished in the background.
    :param code: ELF file with the code, where that is another one.
    :raises CapabilityError: when there is no cache, or the table is not there in time.
    :raises KcovdbgError: when it cannot be built.
    """
    cache = find_usable_cache()
    if cache.folder is None:
        raise CapabilityError(f"the cache cannot be used: {cache.problem}", hint=CACHE_HINT)
    build = TableBuild(image, build_id, cache.folder, code=code, nice=False)
    try:
        table = wait_with_progress(terminal, build.find, build.progress, patience)
    except KeyboardInterrupt:
        build.stop()
        raise
    if table is None:
        raise CapabilityError("the table is still being built in the background", hint="give the same command again")
    return table
