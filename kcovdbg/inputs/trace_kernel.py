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

from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import NotElfError
from kcovdbg.errors import KcovdbgError, TargetError
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
from kcovdbg.target.target import SourceLines, Target


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
    headers: list[TraceHeader | None] = []
    ids: set[str | None] = set()
    for word in words:
        headers += read_headers(user, word)
        ids.update(find_build_ids(user, word, None))
    build_id = next(iter(ids), None)
    own = kernel.memory.optional_target if kernel.options.is_named else None
    if len(ids) > 1 or build_id in (None, running_build_id() if own is None else own.build_id):
        return kernel
    if build_id not in user.of_builds:
        named = _open_named_table(user, build_id)
        if isinstance(named, MissingTable):
            return named
        table = open_table(make_build_key(build_id)) if named is None else named.table
        if table is None and (kernel.options.is_named or user.other_vmlinux):
            return kernel
        known = [header for header in headers if header is not None]
        _, modules = sort_images(user.other_vmlinux)
        open_target = partial(_open_table_target, build_id, table, known, modules, own)
        options = replace(
            kernel.options,
            open_target=open_target,
            is_named=True,
            # The files that the user named may be of the other kernel.
            table_file=None if table is None else str(table.path),
            tables=(),
            source_folders=_find_sources(kernel, own, named),
        )
        user.of_builds[build_id] = Kernel(options)
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
        if built is None:
            return MissingTable(image, key)
        return _NamedBuild(built, source)
    return None


def _find_sources(kernel: Kernel, own: Target | None, named: _NamedBuild | None) -> Sequence[str]:
    """Return the roots of the source trees of a build: what the user named may be that of the other
    kernel.
    """
    if named is not None and named.source is not None:
        return (named.source,)
    if own is not None:
        return ()
    return kernel.options.source_folders


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
    machine = None if own is None else own.machine
    return make_table_target(table, machine, modules if modules.loaded else None)


def make_table_target(
    table: LocationTable, machine: str | None, modules: SourceLines | None
) -> TableTarget:
    """Return the target of a build that is known by its location table.

    :param machine: as of uname -m; None for this machine's.
    :param modules: that its traces have records in, None where there are none.
    """
    name = f"the table of build-id {table.build_id}"
    return TableTarget(table, name, machine=machine, lines=modules)


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
        if kept is not None and kept.empty.build_id:
            own = kept.empty.build_id
        yield own
    for header in read_headers(user, word):
        build_id: str | None = None
        if header is not None and header.build_id is not None:
            build_id = header.build_id.lower()
            # Tables are found by it: a path would lead elsewhere.
            if not _BUILD_ID.fullmatch(build_id):
                build_id = None
        yield build_id
