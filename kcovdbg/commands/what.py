# SPDX-License-Identifier: LGPL-2.1-or-later
"""WHAT: from the name of a buffer to the buffer, wherever it is; and names for what is in it."""

from __future__ import annotations

import platform
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final

from kcovdbg.abi import record
from kcovdbg.abi.call import CALL_LENGTHS
from kcovdbg.analysis.algebra import evaluate, is_expression
from kcovdbg.analysis.counting import count_pcs
from kcovdbg.analysis.keeping import Kept, restore
from kcovdbg.analysis.naming import Names
from kcovdbg.collect.machine import is_this_machine
from kcovdbg.collect.trace_file import read_trace
from kcovdbg.collect.user_view import Comparison, compare_views, find_mapping, is_private, read_user_view
from kcovdbg.commands.session import Context
from kcovdbg.commands.suggest import suggest
from kcovdbg.errors import CapabilityError, KcovdbgError, UsageError
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.location import Frame
from kcovdbg.walk.buffers import read_buffer
from kcovdbg.walk.census import Census
from kcovdbg.walk.place import check_name

_ADDRESS: Final = re.compile(r"0[xX][0-9a-fA-F]+|[0-9a-fA-F]{16}")

FILE = "file:"
USER = "user:"
FD = "fd:"


def find_buffer(context: Context, what: str) -> Buffer:
    """Read the buffer with this name.

    :raises UsageError: when it is no name of a buffer.
    :raises KcovdbgError: when there is none of this name, or it can't be read.
    """
    if what.startswith("@"):
        return restore(find_kept(context, what))
    if what.startswith(FILE):
        target = context.session.optional_target
        if target is None:
            length = CALL_LENGTHS.get(platform.machine(), 0)
            return read_trace(what.removeprefix(FILE), pc=context.pc, call_length=length)
        return read_trace(
            what.removeprefix(FILE),
            kaslr_offset=target.kaslr_offset,
            build_id=target.build_id,
            pc=context.pc,
            call_length=CALL_LENGTHS.get(target.machine, 0),
            find_points=lambda: _find_points(context),
        )
    if what.startswith(USER):
        return read_both_views(context, FD + what.removeprefix(USER)).user
    try:
        check_name(what)
    except UsageError as error:
        # A task's name, or a bare address: there is more to say than which forms there are.
        hint = f"an object's is kcov:{what}, an area is area:{what}" if is_address(what) else find_named(context, what)
        raise UsageError(str(error), hint=hint or error.hint) from None
    return read_buffer(context.target, context.layout, context.census, what)


def is_address(text: str) -> bool:
    """Tell whether this is written as an address is: ``0x…``, or sixteen hexadecimal digits."""
    return bool(_ADDRESS.fullmatch(text))


def find_named(context: Context, comm: str) -> str | None:
    """Say which tasks have this name, if any do."""
    found = [task.fields.pid for task in context.census.tasks() if task.fields.comm == comm]
    if not found:
        return None
    return f"{comm} is task {found[0]}" if len(found) == 1 else f"tasks of this name: {', '.join(map(str, found[:8]))}"


def _find_points(context: Context) -> Container[int] | None:
    """Return the PCs that this kernel can record, where a table of them is there; nothing is waited for."""
    symbolizer = context.session.symbolizer
    return None if symbolizer is None else symbolizer.table


def read_both_views(context: Context, what: str) -> Comparison:
    """Read a descriptor's buffer as its process sees it, and as the kernel holds it, and compare them.

    :param what: ``fd:PID/FD``.
    :raises CapabilityError: when the kernel isn't the one that runs here.
    :raises KcovdbgError: when there is no such buffer, or the process hasn't mapped it.
    """
    check_name(what)
    if not is_this_machine(context.target):
        raise CapabilityError(
            f"what user space sees can be read on this machine only, and {context.target.name} is another",
            hint=f"{what} alone is what the kernel holds; a trace file that was collected there can stand beside it",
        )
    pid = int(what.removeprefix(FD).partition("/")[0])
    kernel = read_buffer(context.target, context.layout, context.census, what)
    if kernel.kcov is None:
        raise KcovdbgError(f"{what} has no struct kcov")
    if not kernel.encoding.has_count:
        raise KcovdbgError(f"{what} is a bitmap: it has no records to be compared")
    mapping = find_mapping(context.target, context.census, pid, kernel.kcov)
    first: list[Buffer] = [kernel]

    def read_kernel() -> Buffer:
        if first:
            return first.pop()
        # The object may be another one by now: all of it is read anew.
        return read_buffer(context.target, context.layout, Census(context.target, context.layout), what)

    compared = compare_views(lambda kernel: read_user_view(pid, mapping, kernel), read_kernel)
    findings = compared.findings
    if findings and is_private(pid, mapping):
        private = (
            f"process {pid} maps the buffer privately (MAP_PRIVATE): once it has written to a page, the kernel writes another"
        )
        findings = (*findings, f"{private}; MAP_SHARED mends it")
    return compared._replace(user=replace(compared.user, name=USER + what.removeprefix(FD)), findings=findings)


def find_kept(context: Context, name: str) -> Kept:
    """Return a kept buffer.

    :raises KcovdbgError: when none is kept by this name.
    """
    kept: Mapping[str, Kept] = context.session.kept
    try:
        return kept[name]
    except KeyError:
        hint = suggest(name, kept) or f"keep {name} WHAT keeps one; keep lists them"
        raise KcovdbgError(f"nothing is kept as {name}", hint=hint) from None


def find_counts(context: Context, what: str, remarks: list[str]) -> Mapping[int, int]:
    """Return how often each PC is in a buffer, or in the result of an expression over buffers.

    :param remarks: takes what the buffers say about themselves.
    :raises KcovdbgError: as :func:`find_buffer`.
    """

    def find(name: str) -> Mapping[int, int]:
        buffer = find_buffer(context, name)
        remarks.extend(told for remark in buffer.remarks if (told := f"{name}: {remark}") not in remarks)
        return count_pcs(buffer)

    return evaluate(what, find) if is_expression(what) else find(what)


def name_remarks(context: Context) -> tuple[str, ...]:
    """Say why nothing has a name, where that is so."""
    return () if context.session.optional_target is not None else (f"without names: {context.session.target_problem}",)


def kaslr_offset(context: Context) -> int:
    """Return what is to be added to a recorded PC; 0 without a kernel."""
    target = context.session.optional_target
    return 0 if target is None else target.kaslr_offset


class Filter:
    """Which PCs are wanted, by function and by file.

    :param names: of the PCs.
    :param functions: names or patterns; any frame may match.
    :param files: paths, the ends of paths, or patterns.
    """

    def __init__(self, names: Names, functions: Iterable[str], files: Iterable[str]) -> None:
        self._names = names
        self._functions = tuple(functions)
        self._files = tuple(files)
        self._known: dict[int, bool] = {}

    @property
    def passes_all(self) -> bool:
        """Whether nothing is asked for."""
        return not self._functions and not self._files

    def __call__(self, pc: int) -> bool:
        """Tell whether a PC is wanted."""
        found = self._known.get(pc)
        if found is None:
            frames = self._names[pc].frames
            found = self._known[pc] = (
                not self._functions or any(matches_function(pattern, frame) for pattern in self._functions for frame in frames)
            ) and (not self._files or any(matches_file(pattern, frame) for pattern in self._files for frame in frames))
        return found


def matches_function(pattern: str, frame: Frame) -> bool:
    """Tell whether a frame's function has this name, or matches this pattern."""
    if frame.function is None:
        return False
    return fnmatchcase(frame.function, pattern) if _is_pattern(pattern) else frame.function == pattern


def matches_file(pattern: str, frame: Frame) -> bool:
    """Tell whether a frame's file has this path, lies in this directory, ends so, or matches this pattern."""
    if frame.file is None:
        return False
    if _is_pattern(pattern):
        return fnmatchcase(frame.file, pattern)
    path = frame.file.removeprefix("./")
    pattern = pattern.removeprefix("./")
    return path == pattern or path.endswith("/" + pattern) or path.startswith(pattern.rstrip("/") + "/")


def _is_pattern(text: str) -> bool:
    return any(character in text for character in "*?[")


def matching_words(buffer: Buffer, wanted: Filter) -> set[int] | None:
    """Return the address words of the records that are wanted; None: all."""
    if wanted.passes_all:
        return None
    distinct = set(record.pc_words(buffer.words, buffer.encoding))
    return {word for word, pc in record.pcs_of_words(distinct, buffer.encoding).items() if wanted(pc)}
