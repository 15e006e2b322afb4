# SPDX-License-Identifier: LGPL-2.1-or-later
"""The builds that traces are of.

The side file of a trace has the build ID of its kernel. Its names come from the location table of
that build: from a vmlinux that the user names, or from the cache, where the table is if kcovdbg has
ever seen that vmlinux.
"""

from __future__ import annotations

import platform
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Final

from kcovdbg.compare.build_match import BuildComparison, BuildFunctions, match_builds
from kcovdbg.console.context import Context
from kcovdbg.console.point_table import find_point_table
from kcovdbg.console.table_progress import PATIENCE, build_table
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import NotElfError
from kcovdbg.errors import CapabilityError, KcovdbgError
from kcovdbg.inputs.trace_kernel import TraceModules, find_build_ids, read_headers, sort_images
from kcovdbg.inputs.trace_paths import FILE
from kcovdbg.records.executed_addresses import table_code
from kcovdbg.records.pc_convention import table_points
from kcovdbg.records.pc_list import TraceKernel
from kcovdbg.records.pc_locations import LocationCache
from kcovdbg.records.side_file import TraceHeader
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.dwarf_reader import read_comp_dir
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.source_tree import SourceTree
from kcovdbg.symbols.symbolizer import Symbolizer
from kcovdbg.symbols.table_cache import find_table_key, make_build_key, open_table, open_table_file
from kcovdbg.target.dump_file import unpack

_NAME_ALL: Final = (
    "name the vmlinux of each build: kcovdbg --other-vmlinux FILE --other-vmlinux FILE"
)


@dataclass(frozen=True, eq=False)
class TraceBuild:
    """A build of a kernel that traces are of."""

    build_id: str | None
    names: LocationCache
    find_tree: Callable[[], SourceTree]
    """Returns the source files that there are."""
    image: str | None
    """Its vmlinux, None where that is unknown."""
    has_own_source: bool
    """Whether the user named its source tree."""
    find_table: Callable[[], LocationTable]
    """Returns the table of its points; may raise CapabilityError."""
    kernel: TraceKernel | None = None
    """The kernel that its traces are read for; None for the workspace's."""
    kaslr_offset: int = 0
    """0 for a build that is known by its vmlinux alone."""
    remarks: tuple[str, ...] = ()
    """Why PCs have no names, or may have wrong ones: what was assumed of its traces."""
    find_module_points: Callable[[], Mapping[int, PointKind]] = dict
    """Returns the points of modules that its traces have records in, where they are known."""

    def find_source(self, file: str) -> Path | None:
        """Return the path of a source file; None where it is not at hand as it was built.

        Files that were changed after the image was built are left out, unless the user named the
        tree.
        """
        path = self.find_tree().find(file)
        if path is None or self.has_own_source:
            return path
        try:
            is_older = (
                self.image is not None and path.stat().st_mtime <= Path(self.image).stat().st_mtime
            )
        except OSError:
            return None
        return path if is_older else None

    def read_text(self, file: str) -> Sequence[str]:
        """Return the lines of a source file, none where it is not at hand as it was built."""
        return () if self.find_source(file) is None else self.find_tree().read(file).lines


def find_builds(context: Context, sides: Sequence[Sequence[str]]) -> list[TraceBuild]:
    """Return the build that the traces of each side are of; sides of one build have the same one.

    :param sides: names of buffers.
    :raises KcovdbgError: when traces of one side are of several builds, or a file cannot be read.
    """
    own = _make_own(context)
    images, module_files = sort_images(context.workspace.inputs.other_vmlinux)
    sources = chain(context.workspace.inputs.other_sources, repeat(None))
    named = [
        _open_named(context, name, source) for name, source in zip(images, sources, strict=False)
    ]
    found: list[TraceBuild | None] = []
    known: set[str] = set()
    strangers: dict[str, str] = {}
    for words in sides:
        build_id = _find_build_id(context, words, own)
        if build_id is None:
            found.append(None if all(word.startswith(FILE) for word in words) else own)
            continue
        known.add(build_id)
        build = _choose(context, words, build_id, own, named)
        found.append(build)
        if build is own and build_id != own.build_id:
            strangers[build_id] = " ".join(words)
    if strangers and len(known) > 1:
        # PCs of two builds are equal by chance only.
        build_id, name = next(iter(strangers.items()))
        raise KcovdbgError(
            f"{name}: nothing is known of its build, build-id {build_id}", hint=_NAME_ALL
        )
    builds, remarks = _complete_builds(sides, found, own, named)
    if len({build.build_id for build in builds}) > 1 and own.build_id is None and own in builds:
        name = " ".join(sides[builds.index(own)])
        raise KcovdbgError(
            f"{name}: unknown which build it is of: it has no side file with a build ID",
            hint=_NAME_ALL,
        )
    unknown = (
        f"nothing is known of the build with build-id {one}: --other-vmlinux names its vmlinux"
        for one in strangers
    )
    by_id = {own.build_id: replace(own, remarks=(*own.remarks, *unknown, *remarks))}
    words_of: dict[str | None, list[str]] = {}
    for build, words in zip(builds, sides, strict=True):
        words_of.setdefault(build.build_id, []).extend(words)
    for build in builds:
        if build.build_id not in by_id:
            headers: list[TraceHeader] = []
            for word in words_of[build.build_id]:
                headers += filter(None, read_headers(context.workspace.inputs, word))
            by_id[build.build_id] = _add_modules(
                replace(build, remarks=remarks), headers, module_files
            )
    return [by_id[build.build_id] for build in builds]


def _find_build_id(context: Context, words: Sequence[str], own: TraceBuild) -> str | None:
    """Return the build ID of the traces of one side, None if they do not say.

    :raises KcovdbgError: when they are of several builds.
    """
    ids: set[str] = set()
    for word in words:
        ids.update(filter(None, find_build_ids(context.workspace.inputs, word, own.build_id)))
    if len(ids) > 1:
        raise KcovdbgError(
            f"{' '.join(words)}: traces of {len(ids)} builds on one side",
            hint="give one build per side",
        )
    return next(iter(ids), None)


def _complete_builds(
    sides: Sequence[Sequence[str]],
    found: Sequence[TraceBuild | None],
    own: TraceBuild,
    named: Sequence[TraceBuild],
) -> tuple[list[TraceBuild], tuple[str, ...]]:
    """Return the builds of all sides, and which of them are assumed.

    Traces that do not name their build belong, in order, to the named builds that have no trace
    yet. If there are fewer such builds, the first traces belong to the workspace's kernel, or,
    without one, to the first named build.

    :param found: the builds of the sides; None for an unknown one.
    """
    free = [build for build in named if build not in found]
    unknown = [number for number, build in enumerate(found) if build is None]
    in_order = dict(zip(reversed(unknown), reversed(free), strict=False))
    default = named[0] if named and own.build_id is None else own
    builds = [build or in_order.get(number, default) for number, build in enumerate(found)]
    assumptions = tuple(
        f"{' '.join(sides[number])}: no build ID; assumed to be of the build with build-id "
        f"{builds[number].build_id}"
        for number in unknown
        if named
    )
    return builds, assumptions


def _add_modules(
    build: TraceBuild, headers: Iterable[TraceHeader], files: Mapping[str, str]
) -> TraceBuild:
    """Return a build with the modules that its traces have records in.

    :param headers: of its traces.
    """
    assert build.kernel is not None
    modules = TraceModules(headers, files)
    if not modules.loaded:
        return build
    symbolizer = Symbolizer(table=build.find_table(), fallback=modules.frames_at, modules=modules)
    names = LocationCache(symbolizer.locate_all, build.find_table, modules)
    find_points = build.kernel.find_points
    kernel = build.kernel._replace(
        find_modules=lambda: modules.loaded,
        find_points=lambda: (*(find_points() or ()), *modules.find_sets()),
    )
    remarks = build.remarks if modules.problem is None else (*build.remarks, modules.problem)
    return replace(
        build, names=names, kernel=kernel, remarks=remarks, find_module_points=modules.find_points
    )


def _choose(
    context: Context,
    words: Sequence[str],
    build_id: str,
    own: TraceBuild,
    named: Sequence[TraceBuild],
) -> TraceBuild:
    """Return the build with a build ID.

    :param words: the traces that are of it.
    """
    build = next((build for build in (own, *named) if build.build_id == build_id), None)
    if build is not None:
        return build
    table = open_table(make_build_key(build_id))
    if table is not None:
        return _make_foreign(context, table, None, None)
    if named:
        raise KcovdbgError(
            f"{' '.join(words)}: no vmlinux of its build is given, build-id {build_id}",
            hint=_NAME_ALL,
        )
    return own


def _make_own(context: Context) -> TraceBuild:
    kernel = context.kernel
    target = kernel.optional_target
    build_id = None if target is None or target.build_id is None else target.build_id.lower()
    return TraceBuild(
        build_id,
        kernel.names,
        lambda: kernel.source,
        kernel.image,
        bool(kernel.source_folders),
        lambda: find_point_table(context),
        kaslr_offset=kernel.kaslr_offset,
        remarks=kernel.name_remarks,
    )


def _open_named(context: Context, name: str, source: str | None) -> TraceBuild:
    """Open an image or a location table that the user named."""
    image = str(unpack(name).path)
    try:
        with ElfFile(image, name) as elf:
            build_id = elf.build_id
            if build_id is None:
                raise CapabilityError(
                    f"{name} has no build ID", hint="link the kernel with --build-id, the default"
                )
            has_lines = elf.has_lines
    except NotElfError:
        return _make_foreign(context, open_table_file(name, None), None, source)
    key = find_table_key(image)
    assert key is not None
    table = open_table(key)
    if table is None:
        if not has_lines:
            raise CapabilityError(
                f"{name} has no debug info with source lines",
                hint=f"with debug info in a file of its own, first give: symbols build {name} "
                f"DEBUGFILE",
            )
        table = build_table(context.terminal, image, key, PATIENCE)
    return _make_foreign(context, table, image, source)


def _make_foreign(
    context: Context, table: LocationTable, image: str | None, source: str | None
) -> TraceBuild:
    target = context.kernel.optional_target
    machine = platform.machine() if target is None else target.machine
    directory: str | None = None
    if image is not None:
        with ElfFile(image) as elf:
            machine, directory = elf.header.machine_name, read_comp_dir(elf)
    tree = SourceTree(
        () if source is None else (source,),
        build_directory=directory,
        image=image if context.kernel.reads_build_directory else None,
        substitutions=() if source is not None else context.kernel.substitutions,
    )

    symbolizer = Symbolizer(table=table)
    names = LocationCache(symbolizer.locate_all, lambda: table)
    points = table_points(table)
    kernel = TraceKernel(
        table.build_id,
        0,
        machine,
        lambda: None if points is None else (points,),
        find_code=partial(table_code, table),
    )
    return TraceBuild(
        table.build_id, names, lambda: tree, image, source is not None, lambda: table, kernel
    )


def build_remarks(builds: Iterable[TraceBuild]) -> tuple[str, ...]:
    """Return the reasons that PCs have no names or wrong ones."""
    return tuple(dict.fromkeys(remark for build in builds for remark in build.remarks))


def compare_builds(builds: Sequence[TraceBuild], pcs: Iterable[Iterable[int]]) -> BuildComparison:
    """Return the numbering that makes records of two sides comparable.

    :param builds: the builds of the left and the right side.
    :param pcs: the recorded PCs of each side; not used if both are of one build.
    :raises CapabilityError: when the points of a build are unknown.
    """
    if builds[0] is builds[1]:
        return BuildComparison()
    sides = [{*recorded} for recorded in pcs]
    of_modules = [build.find_module_points() for build in builds]
    kinds = {
        points[pc]
        for points, recorded in zip(of_modules, sides, strict=True)
        for pc in points.keys() & recorded
    }
    functions = []
    for build, recorded, points in zip(builds, sides, of_modules, strict=True):
        build.find_table()
        # Points of modules that may be counterparts; those of the image are in the table.
        others = {pc for pc, kind in points.items() if kind in kinds} - recorded
        functions.append(
            BuildFunctions(
                build.names.columns(array("Q", sorted(recorded | others))), build.read_text, others
            )
        )
    return BuildComparison(match_builds(*functions))
