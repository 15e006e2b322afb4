# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel that traces are of: that of their build, which side files name, with the modules that
they name.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from typing import Final, NamedTuple

from kcovdbg.abi.address import page_align, page_align_down
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import NotElfError
from kcovdbg.errors import KcovdbgError, TargetError
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.inputs.trace_paths import FILE, confine
from kcovdbg.inputs.user_inputs import UserInputs
from kcovdbg.model.location import Frame, LoadedModule, ModuleMap
from kcovdbg.records.pc_convention import PointSet, find_module_sets
from kcovdbg.records.side_file import TraceHeader, find_traces, read_header
from kcovdbg.symbols.coverage_points import PointKind, points_of_loaded
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.symbolizer import Fallback, TableTarget
from kcovdbg.symbols.table_cache import find_table_key, make_build_key, open_table, open_table_file
from kcovdbg.target.dump_file import unpack
from kcovdbg.target.local_kernel import running_build_id
from kcovdbg.target.target import SourceLines, Target


class TraceModules(SourceLines):
    """The modules of one build: where the first of its traces with records in each has it, which
    all are read for.

    :param headers: of the traces.
    :param files: of modules with debug info, by build ID.
    :raises TargetError: when one of these cannot be used.
    """

    def __init__(self, headers: Iterable[TraceHeader], files: Mapping[str, str]) -> None:
        self.loaded = _choose_modules(
            module for header in headers for module in header.recorded_modules
        )
        """With addresses as KCOV records them."""
        self._map = ModuleMap(self.loaded)
        self.problem: str | None = None
        """Why modules have no source lines, None where they may have."""
        self._find_frames: Fallback = lambda _address: ()
        self._files = files
        if any(module.build_id in files for module in self.loaded):
            try:
                from kcovdbg.target.drgn.lines import frames_at, open_module_program
            except ImportError:
                self.problem = "records in modules have no source lines: these need drgn"
            else:
                self._find_frames = partial(frames_at, open_module_program(self.loaded, files))

    def find_points(self) -> Mapping[int, PointKind]:
        """Return the coverage points of the modules whose files are known, as KCOV records them."""
        known = [module for module in self.loaded if module.build_id in self._files]
        return {
            pc: kind
            for module in known
            for pc, kind in points_of_loaded(module, self._files[module.build_id or ""]).items()
        }

    def find_sets(self) -> Sequence[PointSet]:
        """Return the same, by module."""
        return tuple(find_module_sets(self.loaded, self._files))

    def loaded_modules(self) -> tuple[LoadedModule, ...]:
        """Return where the code of the modules is."""
        return self.loaded

    def loaded_files(self) -> dict[str, str]:
        """Return the files of these modules that are known, by build ID."""
        known = {module.build_id for module in self.loaded}
        return {build_id: path for build_id, path in self._files.items() if build_id in known}

    def name_at(self, address: int) -> str | None:
        """Return the name of the module that an instruction is in, None when it is in none."""
        found = self._map.find(address + 1)
        return None if found is None else found[0].name

    def may_hold(self, address: int) -> bool:
        """Return whether a module could be at an address: those with records are known."""
        return self.name_at(address) is not None

    def find_code(self, name: str) -> range | None:  # noqa: ARG002
        """Return None: symbols of modules are not read."""
        return None

    def has_function(self, name: str) -> bool:  # noqa: ARG002
        """Return True: which functions the modules have is unknown."""
        return True

    def has_file(self, path: str) -> bool:  # noqa: ARG002
        """Return True: which files the modules are from is unknown."""
        return True

    def frames_at(self, address: int) -> Sequence[Frame]:
        """Return the source location of an instruction, none where it is unknown."""
        return self._find_frames(address)


def _choose_modules(modules: Iterable[LoadedModule]) -> tuple[LoadedModule, ...]:
    """Return each module once, behind all others where another boot had another module there."""
    found: dict[tuple[str, str | None], LoadedModule] = {}
    for module in modules:
        if module.key in found or not module.sections:
            continue
        start, end = module.span
        spans = [other.span for other in found.values()]
        if any(start < other_end and other_start < end for other_start, other_end in spans):
            module = module.shift(
                page_align(max(other_end for _, other_end in spans)) - page_align_down(start)
            )
        found[module.key] = module
    return tuple(found.values())


def sort_images(names: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Return those files that are no modules, and the paths of modules without compression, by
    build ID.
    """
    images: list[str] = []
    modules: dict[str, str] = {}
    for name in names:
        path = str(unpack(name).path)
        with contextlib.suppress(NotElfError), ElfFile(path, name) as elf:
            if elf.is_relocatable and elf.build_id is not None:
                modules[elf.build_id] = path
                continue
        images.append(name)
    return images, modules


_BUILD_ID: Final = re.compile(r"[0-9a-f]+")


class MissingTable(NamedTuple):
    """The location table of a build that the user named, which has to be built first."""

    image: str
    key: str


def find_kernel(user: UserInputs, words: Sequence[str]) -> Kernel | MissingTable:
    """Return the kernel on which a command runs whose buffers are traces: that of their build.

    Traces of one other build, known by their side files, have names by the vmlinux that the user
    named for it, or by the table that the user built for it. The running kernel is not opened for
    them. Without either, they are refused when they are read.

    :param words: names of the buffers.
    :return: or what has to be built before.
    """
    kernel = user.kernel
    if not words or not all(word.startswith(FILE) or word in user.kept for word in words):
        return kernel
    headers = [header for word in words for header in read_headers(user, word)]
    ids = {build_id for word in words for build_id in find_build_ids(user, word, None)}
    build_id = next(iter(ids), None)
    own = kernel.target if kernel.is_named and kernel.optional_target is not None else None
    if len(ids) > 1 or build_id in (None, running_build_id() if own is None else own.build_id):
        return kernel
    if build_id not in user.of_builds:
        named = _open_named_table(user, build_id)
        if isinstance(named, MissingTable):
            return named
        table = open_table(make_build_key(build_id)) if named is None else named.table
        if table is None and (kernel.is_named or user.other_vmlinux):
            return kernel
        user.of_builds[build_id] = replace(
            kernel,
            open_target=partial(
                _open_table_target,
                build_id,
                table,
                [header for header in headers if header is not None],
                sort_images(user.other_vmlinux)[1],
                own,
            ),
            is_named=True,
            # The files that the user named may be of the other kernel.
            table_file=None if table is None else str(table.path),
            tables=(),
            source_folders=_find_sources(kernel, own, named),
        )
    return user.of_builds[build_id]


class _NamedBuild(NamedTuple):
    """A build whose vmlinux, or location table, the user named."""

    table: LocationTable
    source: str | None
    """The root of its source tree, if the user named that."""


def _open_named_table(user: UserInputs, build_id: str) -> _NamedBuild | MissingTable | None:
    """Return what the user named as another build's, None where that is not one with this build
    ID.
    """
    images, _ = sort_images(user.other_vmlinux)
    for name, source in zip(images, chain(user.other_sources, repeat(None)), strict=False):
        image = str(unpack(name).path)
        try:
            with ElfFile(image, name) as elf:
                if elf.build_id != build_id or not elf.has_lines:
                    continue
        except NotElfError:
            table = open_table_file(name, None)
            if table.build_id == build_id:
                return _NamedBuild(table, source)
            continue
        key = find_table_key(image)
        assert key is not None
        built = open_table(key)
        return MissingTable(image, key) if built is None else _NamedBuild(built, source)
    return None


def _find_sources(kernel: Kernel, own: Target | None, named: _NamedBuild | None) -> Sequence[str]:
    """Return the roots of the source trees of a build: what the user named may be that of the other
    kernel.
    """
    if named is not None and named.source is not None:
        return (named.source,)
    return () if own is not None else kernel.source_folders


def _open_table_target(
    build_id: str,
    table: LocationTable | None,
    headers: Sequence[TraceHeader],
    files: Mapping[str, str],
    own: Target | None,
) -> TableTarget:
    if table is None:
        raise TargetError(
            f"nothing is known of the build with build-id {build_id}: -s VMLINUX names it",
            hint="or build its table once: symbols build VMLINUX",
        )
    modules = TraceModules(headers, files)
    return TableTarget(
        table,
        f"the table of build-id {build_id}",
        machine=None if own is None else own.machine,
        lines=modules if modules.loaded else None,
    )


def read_headers(user: UserInputs, word: str) -> Iterator[TraceHeader | None]:
    """Yield the content of the side file of each trace that a word names; None for one without side
    file.
    """
    if not word.startswith(FILE):
        return
    # Unreadable files are reported when they are read.
    with contextlib.suppress(KcovdbgError, OSError):
        found, folder = confine(word.removeprefix(FILE), user.confinement)
        yield from (read_header(trace, folder) for trace in find_traces(found))


def find_build_ids(user: UserInputs, word: str, own: str | None) -> Iterator[str | None]:
    """Yield the build IDs of the traces that a word names; None for one that has none."""
    if not word.startswith(FILE):
        kept = user.kept.get(word)
        yield own if kept is None else kept.empty.build_id or own
    for header in read_headers(user, word):
        build_id = None if header is None or header.build_id is None else header.build_id.lower()
        # Tables are found by it: a path would lead elsewhere.
        yield build_id if build_id is not None and _BUILD_ID.fullmatch(build_id) else None
