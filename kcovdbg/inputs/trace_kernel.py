# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel that recorded a trace. The trace's side file names its build and its modules."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from typing import Final, NamedTuple, TypeAlias

from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import NotElfError
from kcovdbg.errors import CapabilityError, KcovdbgError, TargetError
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.inputs.trace_modules import TraceModules
from kcovdbg.inputs.trace_paths import FILE, confine
from kcovdbg.inputs.user_inputs import UserInputs
from kcovdbg.records.side_file import TraceHeader, find_traces, read_header
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.table_cache import find_table_key, make_build_key, open_table, open_table_file
from kcovdbg.symbols.table_target import TableTarget
from kcovdbg.target.dump_file import unpack
from kcovdbg.target.local_kernel import running_build_id
from kcovdbg.target.target import Target


def sort_images(names: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Sort files into kernel images and modules.

    :return: the images and all other files as named, and the paths of the unpacked modules by
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


class OtherBuild(NamedTuple):
    """A build that is known by its location table."""

    table: LocationTable
    image: str | None = None
    """Its vmlinux, None if there is only a table."""
    source: str | None = None
    """The root of its source tree, if the user named that."""

    @property
    def build_id(self) -> str:
        """Its build ID, hexadecimal."""
        return str(self.table.build_id)


BuildTable: TypeAlias = Callable[[str, str], LocationTable]
"""Builds the location table of an image under a key, and waits for it."""


def open_named_builds(
    user: UserInputs, build_table: BuildTable, wanted: str | None = None
) -> Iterator[OtherBuild]:
    """Open the images and location tables that the user named for traces of other builds.

    :param wanted: the build ID of the only build to open; None for all.
    :raises CapabilityError: when an image has no build ID, or has neither a table nor debug info to
        build one.
    """
    images, _ = sort_images(user.other_vmlinux)
    for name, source in zip(images, chain(user.other_sources, repeat(None)), strict=False):
        image = str(unpack(name).path)
        try:
            with ElfFile(image, name) as elf:
                build_id, has_lines = elf.build_id, elf.has_lines
        except NotElfError:
            table = open_table_file(name, None)
            if wanted in (None, table.build_id):
                yield OtherBuild(table, None, source)
            continue
        if build_id is None:
            raise CapabilityError(
                f"{name} has no build ID", hint="link the kernel with --build-id, the default"
            )
        if wanted not in (None, build_id):
            continue
        key = find_table_key(image)
        assert key is not None
        built = open_table(key)
        if built is None and not has_lines:
            raise CapabilityError(
                f"{name} has no debug info with source lines",
                hint=f"with debug info in a file of its own, first give: symbols build {name} "
                f"DEBUGFILE",
            )
        yield OtherBuild(built or build_table(image, key), image, source)


def find_cached_build(build_id: str) -> OtherBuild | None:
    """Return a build whose table is in the user's cache, None if there is none."""
    table = open_table(make_build_key(build_id))
    return None if table is None else OtherBuild(table)


def make_kernel(
    user: UserInputs,
    build: OtherBuild,
    words: Iterable[str],
    source_folders: Sequence[str] = (),
) -> Kernel:
    """Return the kernel of a build that is known by its location table.

    :param words: names of its traces; the kernel has the modules in their side files.
    :param source_folders: its source trees, unless the user named one with the build.
    """
    own = user.kernel
    _, files = sort_images(user.other_vmlinux)
    modules = TraceModules(_read_headers(user, words), files)
    machine = None
    if build.image is not None:
        with ElfFile(build.image) as elf:
            machine = elf.header.machine_name
    elif own.options.is_named and own.memory.optional_target is not None:
        machine = own.memory.optional_target.machine
    lines = modules if modules.loaded else None
    name = f"the table of build-id {build.build_id}"
    options = replace(
        own.options,
        open_target=partial(TableTarget, build.table, name, machine=machine, lines=lines),
        is_named=True,
        table_file=str(build.table.path),
        image=build.image,
        source_folders=source_folders,
    )
    if build.source is not None:
        # The user's replacements of paths are for the command's own kernel.
        options = replace(options, source_folders=(build.source,), substitutions=())
    return Kernel(options)


def find_kernel(user: UserInputs, words: Sequence[str], build_table: BuildTable) -> Kernel:
    """Return the kernel on which a command runs. If all its buffers are traces of one other build,
    that is the kernel of that build; otherwise it is the user's kernel.

    The names of another build come from the vmlinux that the user named for it, or from its table
    in the user's cache. Without either, the traces are refused when they are read; the running
    kernel is not opened.

    :param words: names of the buffers.
    """
    kernel = user.kernel
    if not words or not all(word.startswith(FILE) or word in user.kept for word in words):
        return kernel
    ids: set[str | None] = set()
    for word in words:
        ids.update(find_build_ids(user, word, None))
    if len(ids) != 1:
        return kernel
    (build_id,) = ids
    own = kernel.memory.optional_target if kernel.options.is_named else None
    own_build_id = running_build_id() if own is None else own.build_id
    if build_id is None or build_id == own_build_id:
        return kernel
    if build_id in user.of_builds:
        return user.of_builds[build_id]
    build = next(open_named_builds(user, build_table, build_id), None)
    build = build or find_cached_build(build_id)
    if build is not None:
        # If the user named a kernel, the source trees may be that kernel's.
        folders = kernel.options.source_folders if own is None else ()
        found = make_kernel(user, build, words, folders)
    elif kernel.options.is_named or user.other_vmlinux:
        return kernel
    else:
        found = Kernel(
            replace(kernel.options, open_target=partial(_refuse_build, build_id), is_named=True)
        )
    user.of_builds[build_id] = found
    return found


def _refuse_build(build_id: str) -> Target:
    raise TargetError(
        f"nothing is known of the build with build-id {build_id}: -s VMLINUX names it",
        hint="or build its table once: symbols build VMLINUX",
    )


def _read_headers(user: UserInputs, words: Iterable[str]) -> Iterator[TraceHeader]:
    """Yield the content of each trace's side file, an empty one for a trace without side file.

    :param words: names of buffers, some of which are traces.
    """
    for word in words:
        if word.startswith(FILE):
            # The errors of unreadable files are reported when the traces are read.
            with contextlib.suppress(KcovdbgError, OSError):
                found, folder = confine(word.removeprefix(FILE), user.confinement)
                for trace in find_traces(found):
                    yield read_header(trace, folder) or TraceHeader()


_BUILD_ID: Final = re.compile(r"[0-9a-f]+")


def find_build_ids(user: UserInputs, word: str, own: str | None) -> Iterator[str | None]:
    """Yield the build IDs of the traces that a word names, None for a trace without build ID.

    :param own: the build ID of all other buffers.
    """
    if not word.startswith(FILE):
        kept = user.kept.get(word)
        if kept is not None and kept.buffer.build_id:
            own = kept.buffer.build_id
        yield own
    for header in _read_headers(user, (word,)):
        build_id = (header.build_id or "").lower()
        # The build ID becomes a part of a path.
        yield build_id if _BUILD_ID.fullmatch(build_id) else None
