# SPDX-License-Identifier: LGPL-2.1-or-later
"""The workspace in which traces are read: that of their build, which their side files name."""

from __future__ import annotations

import contextlib
import re
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from kcovdbg.console.argument import Value
from kcovdbg.console.buffer_sources import confine, find_trace_operands
from kcovdbg.console.command import Command
from kcovdbg.console.symbol_sources import TableTarget, find_symbolizer
from kcovdbg.console.trace_modules import TraceModules
from kcovdbg.console.workspace import Workspace
from kcovdbg.errors import KcovdbgError, TargetError
from kcovdbg.records.trace_file import TraceHeader, find_traces, read_header
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.table_cache import open_table
from kcovdbg.target.local_kernel import running_build_id
from kcovdbg.target.protocol import Target

_BUILD_ID: Final = re.compile(r"[0-9a-f]+")


def find_workspace(workspace: Workspace, command: Command, args: Namespace) -> Workspace:
    """Return the workspace in which a command runs whose buffers are traces: that of their build.

    Traces of one other build, known by their side files, have names by its table in the cache. The running kernel is not
    opened for them.
    """
    given = [getattr(args, argument.attribute, None) for argument in command.arguments if argument.value is Value.BUFFER]
    words = [word for value in given if value for word in ([value] if isinstance(value, str) else value)]
    if workspace.other_vmlinux or not words or not all(find_trace_operands(word) or word in workspace.kept for word in words):
        return workspace
    headers = [header for word in words for header in read_headers(workspace, word)]
    ids = {build_id for word in words for build_id in find_build_ids(workspace, word, None)}
    build_id = next(iter(ids), None)
    own = workspace.target if workspace.is_target_named and workspace.optional_target is not None else None
    if len(ids) > 1 or build_id in (None, running_build_id() if own is None else own.build_id):
        return workspace
    if build_id not in workspace.of_builds:
        table = open_table(build_id)
        if table is None and workspace.is_target_named:
            return workspace
        workspace.of_builds[build_id] = replace(
            workspace,
            open_target=partial(_open_table_target, build_id, table, [header for header in headers if header is not None], own),
            is_target_named=True,
            # The one that the workspace has may be for a table that the user named.
            find_symbolizer=find_symbolizer,
            # The user's source tree is of the kernel that he named.
            source_folders=() if own is not None else workspace.source_folders,
        )
    return workspace.of_builds[build_id]


def _open_table_target(
    build_id: str, table: LocationTable | None, headers: Sequence[TraceHeader], own: Target | None
) -> TableTarget:
    if table is None:
        raise TargetError(f"nothing is known of the build with build-id {build_id}: -s VMLINUX names it")
    modules = TraceModules(headers, ())
    return TableTarget(
        table,
        f"the cached table of build-id {build_id}",
        machine=None if own is None else own.machine,
        lines=modules if modules.places else None,
    )


def read_headers(workspace: Workspace, word: str) -> Iterator[TraceHeader | None]:
    """Yield the content of the side file of each trace that a word names; None for one without side file."""
    for path in find_trace_operands(word):
        with contextlib.suppress(KcovdbgError, OSError):
            # What cannot be read is reported when it is.
            yield from map(read_header, find_traces(confine(workspace, path)))


def find_build_ids(workspace: Workspace, word: str, own: str | None) -> Iterator[str | None]:
    """Yield the build IDs of the traces that a word names; None for one that has none."""
    if not find_trace_operands(word):
        kept = workspace.kept.get(word)
        yield own if kept is None else kept.shell.build_id or own
    for header in read_headers(workspace, word):
        build_id = None if header is None else build_id_of(header)
        # Tables are found by it: a path would lead elsewhere.
        yield build_id if build_id is not None and _BUILD_ID.fullmatch(build_id) else None


def build_id_of(header: TraceHeader) -> str | None:
    return None if header.build_id is None else header.build_id.lower()
