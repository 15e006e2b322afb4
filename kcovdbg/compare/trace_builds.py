# SPDX-License-Identifier: LGPL-2.1-or-later
"""The builds that traces are of.

The side file of a trace has the build ID of its kernel. Its names come from the location table of
that build: from a vmlinux that the user names, or from the cache, where the table is if kcovdbg has
ever seen that vmlinux.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from typing import Final, NamedTuple, TypeAlias

from kcovdbg.compare.build_match import BuildComparison, BuildFunctions, match_builds
from kcovdbg.console.context import Context
from kcovdbg.console.point_table import find_point_table
from kcovdbg.console.table_progress import PATIENCE, build_table
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import NotElfError
from kcovdbg.errors import CapabilityError, KcovdbgError
from kcovdbg.inputs.buffer_sources import find_buffer
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.inputs.trace_kernel import find_build_ids, make_table_target, read_headers, sort_images
from kcovdbg.inputs.trace_modules import TraceModules
from kcovdbg.inputs.trace_paths import FILE
from kcovdbg.model.buffer import Buffer
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.table_cache import find_table_key, make_build_key, open_table, open_table_file
from kcovdbg.target.dump_file import unpack

_NAME_ALL: Final = (
    "name the vmlinux of each build: kcovdbg --other-vmlinux FILE --other-vmlinux FILE"
)


class _OtherBuild(NamedTuple):
    """A build that is known by its location table."""

    table: LocationTable
    image: str | None
    """Its vmlinux, None where that is not at hand."""
    source: str | None
    """The root of its source tree, if the user named that."""

    @property
    def build_id(self) -> str:
        """Its build ID, hexadecimal."""
        return str(self.table.build_id)


_Build: TypeAlias = Kernel | _OtherBuild


class TraceBuilds(NamedTuple):
    """The kernels that the traces of some sides are of."""

    kernels: Sequence[Kernel]
    """Of each side; sides of one build have the same one."""
    remarks: tuple[str, ...]
    """Why PCs have no names, or may have wrong ones: what was assumed of the traces."""


def find_builds(context: Context, sides: Sequence[Sequence[str]]) -> TraceBuilds:
    """Return the builds that the traces of each side are of.

    :param sides: names of buffers.
    :raises KcovdbgError: when traces of one side are of several builds, or a file cannot be read.
    """
    own = context.kernel
    images, module_files = sort_images(context.workspace.inputs.other_vmlinux)
    sources = chain(context.workspace.inputs.other_sources, repeat(None))
    named = [
        _open_named(context, name, source) for name, source in zip(images, sources, strict=False)
    ]
    found: list[_Build | None] = []
    known: set[str] = set()
    strangers: dict[str, str] = {}
    for words in sides:
        build_id = _find_build_id(context, words)
        if build_id is None:
            found.append(None if all(word.startswith(FILE) for word in words) else own)
            continue
        known.add(build_id)
        build = _choose(words, build_id, own, named)
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
        f"nothing is known of the build with build-id {build_id}: --other-vmlinux names its vmlinux"
        for build_id in strangers
    )
    all_remarks: list[str] = []
    kernels: dict[str | None, Kernel] = {}
    for one in builds:
        if one.build_id in kernels:
            continue
        if isinstance(one, Kernel):
            # Its user waits for the names here.
            _ = context.names
            kernels[one.build_id] = one
            all_remarks += (*one.names.remarks, *unknown, *remarks)
            continue
        words = []
        for its, side in zip(builds, sides, strict=True):
            words += side if its.build_id == one.build_id else ()
        modules = _find_modules(context, words, module_files)
        kernels[one.build_id] = _make_kernel(context, one, modules)
        all_remarks += remarks if modules.problem is None else (*remarks, modules.problem)
    of_sides = [kernels[one.build_id] for one in builds]
    return TraceBuilds(of_sides, tuple(dict.fromkeys(all_remarks)))


class TraceSide(NamedTuple):
    """A buffer, and the kernel that it is of."""

    buffer: Buffer
    kernel: Kernel


def read_sides(
    context: Context, whats: Sequence[str]
) -> tuple[Sequence[TraceSide], tuple[str, ...]]:
    """Read buffers, each for the kernel that it is of; return also what was assumed of them.

    :raises KcovdbgError: as :func:`find_builds`, or when there is no such buffer.
    """
    kernels, assumptions = find_builds(context, [[what] for what in whats])
    sides = []
    for what, kernel in zip(whats, kernels, strict=True):
        sides.append(TraceSide(find_buffer(context.inputs, what, kernel), kernel))
    return sides, assumptions


def _find_build_id(context: Context, words: Sequence[str]) -> str | None:
    """Return the build ID of the traces of one side, None if they do not say.

    :raises KcovdbgError: when they are of several builds.
    """
    own = context.kernel.build_id
    ids: set[str] = set()
    for word in words:
        ids.update(filter(None, find_build_ids(context.workspace.inputs, word, own)))
    if len(ids) > 1:
        raise KcovdbgError(
            f"{' '.join(words)}: traces of {len(ids)} builds on one side",
            hint="give one build per side",
        )
    return next(iter(ids), None)


def _complete_builds(
    sides: Sequence[Sequence[str]],
    found: Sequence[_Build | None],
    own: Kernel,
    named: Sequence[_OtherBuild],
) -> tuple[list[_Build], tuple[str, ...]]:
    """Return the builds of all sides, and which of them are assumed.

    Traces that do not name their build belong, in order, to the named builds that have no trace
    yet. If there are fewer such builds, the first traces belong to the workspace's kernel, or,
    without one, to the first named build.

    :param found: the builds of the sides; None for an unknown one.
    """
    free = [build for build in named if build not in found]
    unknown = [number for number, build in enumerate(found) if build is None]
    in_order = dict(zip(reversed(unknown), reversed(free), strict=False))
    default: _Build = named[0] if named and own.build_id is None else own
    builds: list[_Build] = []
    for number, build in enumerate(found):
        builds.append(in_order.get(number, default) if build is None else build)
    assumptions = tuple(
        f"{' '.join(sides[number])}: no build ID; assumed to be of the build with build-id "
        f"{builds[number].build_id}"
        for number in unknown
        if named
    )
    return builds, assumptions


def _find_modules(context: Context, words: Iterable[str], files: Mapping[str, str]) -> TraceModules:
    """Return the modules that traces have records in."""
    headers = (header for word in words for header in read_headers(context.workspace.inputs, word))
    return TraceModules([header for header in headers if header is not None], files)


def _choose(
    words: Sequence[str], build_id: str, own: Kernel, named: Sequence[_OtherBuild]
) -> _Build:
    """Return the build with a build ID.

    :param words: the traces that are of it.
    """
    known: tuple[_Build, ...] = (own, *named)
    for build in known:
        if build.build_id == build_id:
            return build
    table = open_table(make_build_key(build_id))
    if table is not None:
        return _OtherBuild(table, None, None)
    if named:
        raise KcovdbgError(
            f"{' '.join(words)}: no vmlinux of its build is given, build-id {build_id}",
            hint=_NAME_ALL,
        )
    return own


def _open_named(context: Context, name: str, source: str | None) -> _OtherBuild:
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
        return _OtherBuild(open_table_file(name, None), None, source)
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
    return _OtherBuild(table, image, source)


def _make_kernel(context: Context, build: _OtherBuild, modules: TraceModules) -> Kernel:
    target = context.kernel.memory.optional_target
    machine = None if target is None else target.machine
    if build.image is not None:
        with ElfFile(build.image) as elf:
            machine = elf.header.machine_name
    options = replace(
        context.kernel.options,
        open_target=partial(make_table_target, build.table, machine, modules),
        is_named=True,
        table_file=str(build.table.path),
        tables=(),
        image=build.image,
        source_folders=() if build.source is None else (build.source,),
    )
    # Those that the user gave are for paths of the other build.
    return Kernel(options if build.source is None else replace(options, substitutions=()))


def compare_builds(
    context: Context, builds: Sequence[Kernel], pcs: Iterable[Iterable[int]]
) -> BuildComparison:
    """Return what makes records of two sides comparable.

    :param builds: of the left side and of the right one.
    :param pcs: that were recorded on each side; not asked for where both are of one build.
    :raises CapabilityError: when the points of a build are unknown.
    """
    if builds[0] is builds[1]:
        return BuildComparison()
    sides = [{*recorded} for recorded in pcs]
    of_modules = [build.points.of_modules for build in builds]
    kinds = {
        points[pc]
        for points, recorded in zip(of_modules, sides, strict=True)
        for pc in points.keys() & recorded
    }
    functions = []
    for build, recorded, points in zip(builds, sides, of_modules, strict=True):
        find_point_table(context, build)
        # Points of modules that may be counterparts; those of the image are in the table.
        others = {pc for pc, kind in points.items() if kind in kinds} - recorded
        columns = build.names.locations.columns(array("Q", sorted(recorded | others)))
        functions.append(BuildFunctions(columns, build.sources.read_as_built, others))
    return BuildComparison(match_builds(*functions))
