# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find the builds that traces are of.

The side file of a trace has the build ID of its kernel. The names of the PCs come from the location
table of that build. The table is made of a vmlinux that the user names, or is in the cache if
kcovdbg has ever seen that vmlinux.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from kcovdbg.compare.build_match import BuildComparison, BuildFunctions, match_builds
from kcovdbg.console.context import Context
from kcovdbg.console.point_table import find_point_table
from kcovdbg.console.table_progress import build_table
from kcovdbg.errors import KcovdbgError
from kcovdbg.inputs.buffer_sources import find_buffer
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.inputs.trace_kernel import (
    OtherBuild,
    find_build_ids,
    find_cached_build,
    make_kernel,
    open_named_builds,
)
from kcovdbg.inputs.trace_paths import FILE
from kcovdbg.model.buffer import Buffer
from kcovdbg.symbols.coverage_points import PointKind

_NAME_ALL: Final = (
    "name the vmlinux of each build: kcovdbg --other-vmlinux FILE --other-vmlinux FILE"
)


_Build: TypeAlias = Kernel | OtherBuild


class TraceBuilds(NamedTuple):
    """The kernels in which the traces of each side were recorded."""

    kernels: Sequence[Kernel]
    """The kernel of each side; sides of one build share it."""
    remarks: tuple[str, ...]
    """Reasons for missing or perhaps wrong names, and assumptions about the traces."""


def find_builds(context: Context, sides: Sequence[Sequence[str]]) -> TraceBuilds:
    """Return the kernels in which the traces of each side were recorded.

    :param sides: names of buffers.
    :raises KcovdbgError: when traces of one side are of several builds, or a file cannot be read.
    """
    own = context.kernel
    user = context.workspace.inputs
    named = list(open_named_builds(user, partial(build_table, context.terminal)))
    ids = [_find_build_id(context, words) for words in sides]
    found = _find_known_builds(own, sides, ids, named)
    builds, assumptions = _complete_builds(sides, found, own, named)
    is_one = len({build.build_id for build in builds}) == 1
    if not is_one and own.build_id is None and own in builds:
        name = " ".join(sides[builds.index(own)])
        raise KcovdbgError(
            f"{name}: unknown which build it is of: it has no side file with a build ID",
            hint=_NAME_ALL,
        )
    remarks: list[str] = []
    kernels: dict[str | None, Kernel] = {}
    for build in builds:
        if build.build_id in kernels:
            continue
        if isinstance(build, Kernel):
            # Wait for the names of the command's kernel.
            _ = context.names
            remarks += build.names.remarks
            kernels[build.build_id] = build
        else:
            words: list[str] = []
            for one, side in zip(builds, sides, strict=True):
                if one.build_id == build.build_id:
                    words += side
            kernels[build.build_id] = make_kernel(user, build, words)
    for build_id, known in zip(ids, found, strict=True):
        if known is own and build_id not in (None, own.build_id):
            remarks.append(
                f"nothing is known of the build with build-id {build_id}: --other-vmlinux names "
                f"its vmlinux"
            )
    remarks += assumptions
    of_sides = [kernels[build.build_id] for build in builds]
    return TraceBuilds(of_sides, tuple(dict.fromkeys(remarks)))


class TraceSide(NamedTuple):
    """A buffer, and the kernel that it is of."""

    buffer: Buffer
    kernel: Kernel


def read_sides(
    context: Context, whats: Sequence[str]
) -> tuple[Sequence[TraceSide], tuple[str, ...]]:
    """Read buffers, each for its own kernel; return them with the assumptions about them.

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


def _find_known_builds(
    own: Kernel,
    sides: Sequence[Sequence[str]],
    ids: Sequence[str | None],
    named: Sequence[OtherBuild],
) -> list[_Build | None]:
    """Return the build of each side; None if its traces do not name it.

    Traces of a single unknown build stay with the kernel, because they need no names.

    :param ids: the build ID of each side.
    """
    every: tuple[_Build, ...] = (*named, own)
    known = {build.build_id: build for build in every}
    found: list[_Build | None] = []
    for words, build_id in zip(sides, ids, strict=True):
        if build_id is None:
            is_own = any(not word.startswith(FILE) for word in words)
            found.append(own if is_own else None)
            continue
        build = known.get(build_id) or find_cached_build(build_id)
        if build is None and (named or len({*ids} - {None}) > 1):
            # PCs of two builds are equal by chance only.
            raise KcovdbgError(
                f"{' '.join(words)}: nothing is known of its build, build-id {build_id}",
                hint=_NAME_ALL,
            )
        found.append(build or own)
    return found


def _complete_builds(
    sides: Sequence[Sequence[str]],
    found: Sequence[_Build | None],
    own: Kernel,
    named: Sequence[OtherBuild],
) -> tuple[list[_Build], Sequence[str]]:
    """Return the builds of all sides, and which of them are assumed.

    Traces that do not name their build belong, in order, to the named builds that have no trace
    yet. If there are fewer such builds, the first traces belong to the workspace's kernel, or,
    without one, to the first named build.

    :param found: the builds of the sides; None for an unknown one.
    """
    unknown = found.count(None)
    free = [build for build in named if build not in found]
    default = named[0] if named and own.build_id is None else own
    # The last traces belong to the last of these builds.
    assumed = iter([*[default] * (unknown - len(free)), *free[max(0, len(free) - unknown) :]])
    builds: list[_Build] = []
    assumptions = []
    for words, build in zip(sides, found, strict=True):
        if build is None:
            build = next(assumed)
            if named:
                assumptions.append(
                    f"{' '.join(words)}: no build ID; assumed to be of the build with build-id "
                    f"{build.build_id}"
                )
        builds.append(build)
    return builds, assumptions


def compare_builds(
    context: Context, builds: Sequence[Kernel], pcs: Iterable[Iterable[int]]
) -> BuildComparison:
    """Return the comparison of two builds, by which their records can be compared.

    :param builds: the builds of the left side and of the right one.
    :param pcs: the recorded PCs of each side; not read if both are of one build.
    :raises CapabilityError: when the points of a build are unknown.
    """
    if builds[0] is builds[1]:
        return BuildComparison()
    sides = list(map(frozenset[int], pcs))
    kinds: set[PointKind] = set()
    for build, recorded in zip(builds, sides, strict=True):
        of_modules = build.points.of_modules
        kinds.update(map(of_modules.__getitem__, of_modules.keys() & recorded))
    functions = []
    for build, recorded in zip(builds, sides, strict=True):
        find_point_table(context, build)
        # Points of modules that may be counterparts. The table has the image's points.
        others = set()
        for pc, kind in build.points.of_modules.items():
            if kind in kinds and pc not in recorded:
                others.add(pc)
        columns = build.names.locations.columns(array("Q", sorted(recorded | others)))
        functions.append(BuildFunctions(columns, build.sources.read_as_built, others))
    return BuildComparison(match_builds(*functions))
