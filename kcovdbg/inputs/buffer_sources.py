# SPDX-License-Identifier: LGPL-2.1-or-later
"""Buffers by name: ``41``, ``kcov:0xffff…``, ``file:PATH``, ``@name``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from kcovdbg.abi.address import pc_of
from kcovdbg.abi.record import Codec
from kcovdbg.errors import CapabilityError, KcovdbgError, UsageError, suggest
from kcovdbg.inputs.input_commands import find_hint, word_hint
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.inputs.task_names import ALL, find_tid, is_address, suggest_task
from kcovdbg.inputs.trace_paths import FILE, FileConfinement, confine
from kcovdbg.inputs.user_inputs import CommandInputs, Kept, UserInputs
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.interrupt_frames import find_interrupt_frames
from kcovdbg.model.kcov import name_kcov, name_some, name_task
from kcovdbg.model.state import Part, Source, State
from kcovdbg.model.task import Role
from kcovdbg.records.input_kind import InputKind, find_path_kind
from kcovdbg.records.joined_buffers import merge_buffers
from kcovdbg.records.line_states import Place, TraceRecords, read_records
from kcovdbg.records.pc_file import NotATraceError
from kcovdbg.records.pc_list import TraceKernel
from kcovdbg.records.pc_locations import LocationCache, is_pattern
from kcovdbg.records.pc_options import ReadingOptions
from kcovdbg.records.side_file import find_traces, side_path
from kcovdbg.records.trace_reader import (
    TraceWords,
    find_common_reading,
    find_meaning,
    read_trace,
    read_trace_words,
    require_build,
)
from kcovdbg.records.user_view import (
    ViewComparison,
    compare_views,
    find_mapping,
    is_private,
    read_user_view,
)
from kcovdbg.symbols.coverage_points import PointKind, recorded_kinds
from kcovdbg.target.local_kernel import is_this_machine
from kcovdbg.walk.buffer_names import parse_name
from kcovdbg.walk.buffers import read_buffer

# If a file of these kinds is read as a trace, the error names the kind instead of a wrong address.
_NAMED_KINDS: Final = frozenset(
    (
        InputKind.LOG,
        InputKind.REPORT,
        InputKind.RECORDING,
        InputKind.PATCH,
        InputKind.SIDE_FILE,
        InputKind.WORKDIR,
    )
)
# Number of PCs that are looked up together.
_LOOKED_UP: Final = 4096
# Limit for problems in an error.
_NAMED: Final = 8
USER: Final = "user:"
FD: Final = "fd:"


def find_buffer(inputs: CommandInputs, what: str, kernel: Kernel | None = None) -> Buffer:
    """Read the buffer with this name; the name of a task stands for its thread id.

    :param kernel: the kernel that recorded a trace; None for the command's kernel.
    :raises UsageError: when it is not a buffer name.
    :raises KcovdbgError: when there is no such buffer, or it is unreadable.
    """
    kernel = inputs.kernel if kernel is None else kernel
    if what.startswith("@"):
        return _find_kept_buffer(inputs, what, kernel)
    if what.startswith(FILE):
        return _read_merged_traces(inputs, what.removeprefix(FILE), kernel)
    if what.startswith(USER) and inputs.user.confinement is not None:
        raise CapabilityError(
            "the memory of processes is not read here", hint=f"{FD}{what.removeprefix(USER)}"
        )
    try:
        inputs.require_memory()
    except CapabilityError as error:
        _refuse_file(inputs, what)
        error.hint = f"a trace is named {FILE}PATH; or {error.hint}"
        raise
    if what.startswith(USER):
        return read_both_views(inputs, FD + what.removeprefix(USER)).user
    if what == ALL or is_pattern(what):
        return _read_together(inputs, what)
    try:
        parse_name(what)
    except UsageError as error:
        if is_address(what):
            raise UsageError(
                str(error), hint=f"kcov:{what} for an object, area:{what} for an area"
            ) from None
        tid = find_tid(inputs, what)
        if tid is None:
            _refuse_file(inputs, what)
            error.hint = suggest_task(inputs, what) or error.hint
            raise
        what = str(tid)
    return read_buffer(inputs.target, inputs.layout, inputs.reader, what)


def _find_kept_buffer(inputs: CommandInputs, name: str, kernel: Kernel) -> Buffer:
    buffer = find_kept(inputs.user, name).buffer
    trace_kernel = kernel.trace_kernel
    require_build(name, buffer.build_id, trace_kernel)
    if kernel is not inputs.kernel and kernel.build_id == buffer.build_id:
        return replace(buffer, kaslr_offset=trace_kernel.kaslr_offset)
    return buffer


def _refuse_file(inputs: CommandInputs, what: str) -> None:
    """Refuse the name of a file without ``file:``.

    :raises UsageError: when there is such a file, with its kind as the hint.
    """
    # Another program must not ask what is at a path.
    if inputs.user.confinement is not None:
        return
    hint = find_hint(what)
    if hint is not None:
        raise UsageError(f"'{what}' is a file, not a buffer", hint=hint)


def list_buffers(state: State) -> Iterator[tuple[str, str]]:
    """Iterate over all buffers that hold records: the name of each, and where its records come
    from.
    """
    for session in state.sessions:
        if session.is_section and not session.is_saved and session.area:
            kind = "a remote section"
            if session.role is Role.SOFTIRQ_SECTION:
                kind = "a softirq section"
            yield (
                f"area:{session.area:#x}",
                f"in {kind} on {name_task(state.task_by_address[session.task or 0])}",
            )
    for address, kcov in sorted(state.objects.items()):
        if kcov.fields is None or not kcov.fields.area or not kcov.count:
            continue
        owner = state.task_by_address.get(kcov.fields.task or 0)
        where = f"in {name_kcov(address)}"
        if owner is not None:
            where = f"for {name_task(owner)}"
        if kcov.fields.remote:
            where = f"in the background, {where}"
        yield f"kcov:{address:#x}", where


_ALL_PARTS: Final = Part.TASKS | Part.CURRENT | Part.OBJECTS


def find_unread_buffers(state: State) -> tuple[str, ...]:
    """Return a line for each problem because of which :func:`list_buffers` may miss a buffer."""
    lines = [*state.lacks(Source.COUNTS), *state.unread(_ALL_PARTS)]
    for task in state.tasks:
        # If the role is known, so is the area of a section.
        if task.role is None:
            lines += name_remarks(name_task(task.fields), task.errors)
    return tuple(dict.fromkeys(lines))


def _read_together(inputs: CommandInputs, what: str) -> Buffer:
    """Read several buffers, and merge them.

    :param what: ``all``, or a pattern of names of tasks.
    :raises KcovdbgError: when there is no such buffer, or all are unreadable.
    """
    names: list[str] = []
    unread: list[str] = []
    if what == ALL:
        state = inputs.state(_ALL_PARTS)
        names += (name for name, _ in list_buffers(state))
        unread += find_unread_buffers(state)
    else:
        state = inputs.state(Part.TASKS)
        for task in state.tasks:
            if not fnmatchcase(task.fields.comm or "", what):
                continue
            if task.count is None:
                unread += name_remarks(name_task(task.fields), task.errors)
            else:
                names.append(str(task.fields.pid))
        unread += state.unread(Part.TASKS)
    if not names:
        absent = f"'{what}': no such task has a buffer"
        if unread:
            absent += f" in what could be read; unknown: {name_some(unread, _NAMED)}"
        raise KcovdbgError(absent, hint="tasks lists those that have")
    buffers: list[Buffer] = []
    for name in names:
        try:
            buffers.append(read_buffer(inputs.target, inputs.layout, inputs.reader, name))
        except KcovdbgError as error:
            unread.append(f"{name}: {error}")
    if not buffers:
        raise KcovdbgError(unread[0])
    chosen, others = _choose_kind(buffers)
    left_out = [f"{buffer.name} has {buffer.encoding.codec.noun}" for buffer in others]
    merged = replace(merge_buffers(what, chosen, left_out), kcov=None, address=None)
    if not unread:
        return merged
    remark = f"incomplete, since not every buffer could be read: {name_some(unread, _NAMED)}"
    return merged.with_remarks(remark, is_incomplete=True)


def _choose_kind(buffers: Sequence[Buffer]) -> tuple[Sequence[Buffer], Sequence[Buffer]]:
    """Return the buffers of one kind of records, and the other buffers. A kind with PCs is chosen
    if there is one, then the kind with the most records.
    """
    counts: Counter[_RecordsKind] = Counter()
    for buffer in buffers:
        counts[_kind_of(buffer)] += buffer.count
    best = max(counts, key=lambda kind: (kind.has_pcs, counts[kind]))
    chosen = [buffer for buffer in buffers if _kind_of(buffer) == best]
    others = [buffer for buffer in buffers if _kind_of(buffer) != best]
    return chosen, others


class _RecordsKind(NamedTuple):
    """Buffers of one kind can be merged."""

    has_pcs: bool
    codec: Codec
    word_size: int


def _kind_of(buffer: Buffer) -> _RecordsKind:
    encoding = buffer.encoding
    has_pcs = PointKind.PC in recorded_kinds(encoding.codec)
    return _RecordsKind(has_pcs, encoding.codec, encoding.word_size)


class FoundBuffers(NamedTuple):
    """The buffers that some names stand for."""

    buffers: Sequence[Buffer]
    remarks: Sequence[str]
    """Remarks on files of directories that are no traces."""


def find_trace_buffers(
    inputs: CommandInputs, names: Sequence[str], *, takes_addresses: bool = False
) -> FoundBuffers:
    """Return the buffers that names stand for; each file of a directory or pattern is a buffer.

    :param takes_addresses: whether buffers of executed addresses are accepted.
    :raises KcovdbgError: as :func:`find_buffer`; also when no file of a directory is a trace.
    """
    found: list[Buffer] = []
    remarks: list[str] = []
    for name in names:
        paths = None
        if name.startswith(FILE):
            paths = _list_traces(inputs, name.removeprefix(FILE))
        if isinstance(paths, list):
            buffers, others = _read_all(inputs, paths)
            if others:
                remarks.append(
                    f"{name}: {len(others)} of {len(paths)} files are no traces: {others[0]}"
                )
        else:
            buffers = [find_buffer(inputs, name)]
        for buffer in buffers:
            require_points(buffer, inputs.command, takes_addresses=takes_addresses)
        found += buffers
    return FoundBuffers(found, remarks)


def _read_all(
    inputs: CommandInputs, paths: Sequence[Path], kernel: Kernel | None = None
) -> tuple[list[Buffer], list[NotATraceError]]:
    """Read trace files; return the buffers, and an error for each file that is no trace.

    :raises NotATraceError: when none is a trace.
    """
    buffers: list[Buffer] = []
    others: list[NotATraceError] = []
    for found in read_traces(inputs, paths, kernel):
        if isinstance(found, NotATraceError):
            others.append(found)
        else:
            buffers.append(found)
    if not buffers:
        raise others[0]
    return buffers, others


def _list_traces(inputs: CommandInputs, path: str) -> Path | list[Path]:
    """Return the trace files of a directory or pattern as a list, and a single file as a path."""
    named, _ = confine(path, inputs.user.confinement)
    paths = find_traces(named)
    if len(paths) == 1 and not Path(named).is_dir():
        return paths[0]
    return paths


def require_points(buffer: Buffer, command: str, *, takes_addresses: bool = False) -> None:
    """Make sure that the addresses of a buffer's records are coverage points.

    :param takes_addresses: whether executed addresses are accepted.
    :raises CapabilityError: when they are not: such records show which functions ran, but not which
        of their lines.
    """
    codec = buffer.encoding.codec
    if codec.is_exact and not takes_addresses:
        hint = (
            "source, points, patch, top, and export to lcov or cobertura take them; --pc names "
            "what they are"
        )
    elif not codec.has_points:
        hint = "buffer, trace, top and view show them"
    else:
        return
    problem = f"{buffer.name} has {codec.noun}, which are not coverage points"
    raise CapabilityError(f"{command}: {problem}", hint=hint)


def require_order(buffer: Buffer, command: str) -> None:
    """Make sure that a buffer's records may have an order.

    :raises CapabilityError: when they are known to have none.
    """
    if buffer.order.is_known is False:
        raise CapabilityError(
            f"{command}: the records of {buffer.name} have no order: {buffer.order.reason}",
            hint="top, source and export show what they cover",
        )


def name_remarks(name: str, remarks: Iterable[str]) -> list[str]:
    """Return remarks with the name of their buffer before each."""
    return [f"{name}: {remark}" for remark in remarks]


def order_remarks(buffer: Buffer) -> tuple[str, ...]:
    """Return a remark if the records of a buffer have no order, or may have none."""
    order = buffer.order
    if order.is_known:
        return ()
    if order.is_known is None:
        return (f"unknown whether the records have an order: {order.reason}",)
    return (f"the records have no order: {order.reason}",)


def require_fit(buffer: Buffer, command: str, *, is_forced: bool | None = None) -> None:
    """Make sure that no output is made of another build's PCs.

    :param is_forced: whether the user wants it nevertheless; None for commands that do not ask.
    :raises CapabilityError: when fewer than half of a list's PCs are coverage points of the kernel.
    """
    fit = buffer.fit
    if fit is None or not fit.is_low or is_forced:
        return
    hint = "-s VMLINUX names their own kernel"
    if fit.hint is not None:
        hint = f"{fit.hint} reads them so"
    if is_forced is not None:
        hint += "; --force goes on"
    raise CapabilityError(f"{command}: {buffer.name}: {fit.remark}", hint=hint)


def require_names(
    inputs: CommandInputs, names: LocationCache, pcs: Iterable[int], what: str
) -> None:
    """Make sure that at least one PC of a trace has a name, unless the trace is empty.

    :param what: the answer and the trace, for the error.
    :raises CapabilityError: when there are PCs, and none is in a known function.
    """
    rest = iter(pcs)
    count = 0
    while some := list(islice(rest, _LOOKED_UP)):
        names.prefetch(some)
        if any(names[pc].frames for pc in some):
            return
        count += len(some)
    if not count:
        return
    hint = "is the trace of another kernel? name its vmlinux: -s VMLINUX"
    if inputs.kernel.memory.optional_target is None:
        hint = inputs.kernel.names.problem
    raise CapabilityError(f"{what}: none of {count:,} PCs has a name", hint=hint)


def require_named_names(
    inputs: CommandInputs, names: LocationCache, pcs: Iterable[int], what: str
) -> None:
    """Make sure that at least one PC of a buffer has a name, if the user named a kernel for names.

    :param pcs: 0 stands for a record without PC.
    :param what: the answer and the buffer, for the error.
    :raises CapabilityError: when the kernel has no name for any PC.
    """
    if _is_named_for_names(inputs):
        require_names(inputs, names, filter(None, pcs), what)


def _is_named_for_names(inputs: CommandInputs) -> bool:
    """Return whether the user named a kernel that has names but no memory."""
    kernel = inputs.user.kernel
    if not kernel.options.is_named or kernel.options.open_target is None:
        return False
    target = kernel.memory.optional_target
    return target is None or target.memory_problem is not None


def read_trace_file(
    path: str,
    kernel: TraceKernel,
    options: ReadingOptions = ReadingOptions(),  # noqa: B008 - immutable
    confinement: FileConfinement | None = None,
) -> Buffer:
    """Read a trace file, with the KASLR offset and the coverage points of its kernel.

    :param kernel: the kernel that recorded it.
    :param options: how to read a file without a side file.
    :raises KcovdbgError: when it is unreadable.
    """
    found, folder = confine(path, confinement)
    try:
        return read_trace(found, kernel, options, folder)
    except NotATraceError as error:
        raise _name_kind(found, error) from error


def _name_kind(path: str, error: NotATraceError) -> NotATraceError:
    """Return the error for a file that is no trace, with its kind if that says more."""
    found = find_path_kind(path)
    if found.kind in _NAMED_KINDS:
        return NotATraceError(path, found.noun, hint=word_hint(path, found))
    return error


def read_traces(
    inputs: CommandInputs, paths: Sequence[Path], kernel: Kernel | None = None
) -> Iterator[Buffer | NotATraceError]:
    """Read trace files, each once; yield an error for a file that is no trace.

    If a list is too short to show which convention its PCs follow, it is read by the convention of
    the other lists.

    :param kernel: as for :func:`find_buffer`.
    :raises KcovdbgError: when a trace is unreadable.
    """
    trace_kernel = _find_trace_kernel(inputs, kernel)
    options = inputs.reading or ReadingOptions()
    results: dict[Path, TraceWords | KcovdbgError] = {}

    def read_once(path: Path) -> TraceWords | KcovdbgError:
        found, folder = confine(str(path), inputs.user.confinement)
        try:
            return read_trace_words(found, trace_kernel, options, folder)
        except KcovdbgError as error:
            return error

    def read_lists() -> Iterator[TraceWords]:
        for path in paths:
            if not side_path(path).exists():
                result = results[path] = read_once(path)
                if isinstance(result, TraceWords):
                    yield result

    common = options
    if len(paths) > 1:
        common = find_common_reading(read_lists(), trace_kernel, options)
    for path in paths:
        result = results.pop(path, None) or read_once(path)
        try:
            if isinstance(result, KcovdbgError):
                raise result
            yield find_meaning(result, trace_kernel, common)
        except NotATraceError as error:
            yield _name_kind(str(path), error)


def _find_trace_kernel(inputs: CommandInputs, kernel: Kernel | None) -> TraceKernel:
    """Return the kernel of traces, once the table of its names is built."""
    if kernel is not None and kernel is not inputs.kernel:
        return kernel.trace_kernel
    if _is_named_for_names(inputs):
        # Raise the error if the kernel that the user named is unreadable.
        _ = inputs.user.kernel.target
    table = inputs.kernel.names.awaited_table
    if table is not None and inputs.wait is not None:
        inputs.wait(table)
    return inputs.kernel.trace_kernel


def _read_merged_traces(inputs: CommandInputs, path: str, kernel: Kernel) -> Buffer:
    """Read a trace file; read the files of a directory or pattern as one trace."""
    paths = _list_traces(inputs, path)
    if not isinstance(paths, list):
        trace_kernel = _find_trace_kernel(inputs, kernel)
        options = inputs.reading or ReadingOptions()
        return read_trace_file(str(paths), trace_kernel, options, inputs.user.confinement)
    buffers, others = _read_all(inputs, paths, kernel)
    return merge_buffers(f"{FILE}{path}", buffers, [str(error) for error in others])


def read_both_views(inputs: CommandInputs, what: str) -> ViewComparison:
    """Read a descriptor's buffer as its process sees it and as the kernel holds it, and compare the
    two.

    :param what: ``fd:PID/FD``.
    :raises CapabilityError: when the kernel is not the one that runs here.
    :raises KcovdbgError: when there is no such buffer, or the process has not mapped it.
    """
    parse_name(what)
    if not is_this_machine(inputs.target):
        raise CapabilityError(
            f"the user's view can be read only on this machine, not of {inputs.target.name}",
            hint=f"use {what} for the kernel's view, beside a trace file that was collected there",
        )
    pid = int(what.removeprefix(FD).partition("/")[0])
    kernel = read_buffer(inputs.target, inputs.layout, inputs.reader, what)
    if kernel.kcov is None:
        raise KcovdbgError(f"{what} has no struct kcov")
    mapping = find_mapping(inputs.target, inputs.state(Part.TASKS).task_fields, pid, kernel.kcov)

    def read_kernel() -> Buffer:
        # Read everything again, as the object may have been freed and reused.
        return read_buffer(inputs.target, inputs.layout, inputs.reader.renew(), what)

    compared = compare_views(lambda kernel: read_user_view(pid, mapping, kernel), read_kernel)
    findings = compared.findings
    if findings and is_private(pid, mapping):
        private = (
            f"process {pid} maps the buffer with MAP_PRIVATE: after it writes to a page, the "
            f"kernel's writes go elsewhere"
        )
        findings = (*findings, f"{private}; map it with MAP_SHARED")
    return compared._replace(
        user=replace(compared.user, name=USER + what.removeprefix(FD)), findings=findings
    )


def find_kept(inputs: UserInputs, name: str) -> Kept:
    """Return a kept buffer.

    :raises KcovdbgError: when there is none with this name.
    """
    kept = inputs.kept
    try:
        return kept[name]
    except KeyError:
        hint = suggest(name, kept) or f"keep {name} WHAT keeps a buffer; keep lists the kept ones"
        raise KcovdbgError(f"no kept buffer '{name}'", hint=hint) from None


class BufferCounts(NamedTuple):
    """How often each PC is in a buffer."""

    trace: TraceRecords
    """The counts, and the task's position if that is known."""
    remarks: tuple[str, ...]
    """The buffer's remarks, each with its name before it."""
    records: str = ""
    """The kind of the buffer's records, as in ``addresses (TRACE_PC)``."""
    is_incomplete: bool = False
    """Whether some records are unreadable, so that a PC may have been recorded but have no count.
    """


def find_counts(inputs: CommandInputs, what: str, *, takes_addresses: bool = False) -> BufferCounts:
    """Count the PCs of the buffer with a name.

    :param takes_addresses: as for :func:`require_points`.
    :raises KcovdbgError: as :func:`find_buffer`.
    """
    buffer = find_buffer(inputs, what)
    return count_buffer(inputs, what, buffer, takes_addresses=takes_addresses)


def count_buffer(
    inputs: CommandInputs, what: str, buffer: Buffer, *, takes_addresses: bool
) -> BufferCounts:
    """Count the PCs of a buffer.

    :param what: its name in remarks.
    :raises CapabilityError: as :func:`require_points`.
    """
    require_points(buffer, inputs.command, takes_addresses=takes_addresses)
    remarks = tuple(dict.fromkeys(name_remarks(what, buffer.remarks)))
    # Only states of lines need the task's position, and their callers take executed addresses.
    trace = read_trace_records(inputs, buffer) if takes_addresses else read_records(buffer)
    return BufferCounts(trace, remarks, _name_records(buffer), buffer.is_incomplete)


def read_trace_records(inputs: CommandInputs, buffer: Buffer) -> TraceRecords:
    """Return the records of a buffer, with the position of its task in a dump."""
    return read_records(buffer, _find_place(inputs, buffer))


def _find_place(inputs: CommandInputs, buffer: Buffer) -> Place | None:
    """Return the position of a buffer's task in the kernel's code; None if it is unknown, or if the
    buffer also has records of other tasks.
    """
    is_copy = buffer.name.startswith((FILE, USER, "@"))
    if is_copy or not buffer.is_open or buffer.live or buffer.pid is None:
        return None
    stacks = inputs.target.stacks
    tasks = [task for task in inputs.state(Part.TASKS).tasks if task.fields.pid == buffer.pid]
    if stacks is None or len(tasks) != 1:
        return None
    task = tasks[0]
    if task.role is not Role.LOCAL or task.fields.kcov != buffer.kcov:
        return None
    try:
        stack = stacks.stack_trace(task.fields.address)
    except KcovdbgError:
        return None
    # KCOV does not record interrupts on top of the task.
    of_task = stack[len(find_interrupt_frames(stack)) :]
    frames = [frame for frame in of_task if not frame.is_inline]
    if not frames or not frames[-1].is_entry:
        return None
    positions: list[int] = []
    returns: list[int] = []
    for frame in frames:
        pcs = positions if frame.is_interrupted else returns
        pcs.append(pc_of(frame.pc, buffer.kaslr_offset))
    return Place(positions, returns)


def _name_records(buffer: Buffer) -> str:
    noun = buffer.encoding.codec.noun
    if buffer.mode is None:
        return noun
    return f"{noun} ({buffer.mode})"


def require_same_kinds(
    command: str, sides: Sequence[tuple[str, str, Collection[PointKind]]]
) -> None:
    """Make sure that buffers can have points in common: points of comparisons and of blocks differ.

    :param sides: the name of each buffer, the kind of its records in words, and the kinds of points
        that these records can be.
    :raises CapabilityError: when two buffers cannot.
    """
    (first, records, kinds), *others = sides
    for name, other_records, other_kinds in others:
        if not set(kinds) & set(other_kinds):
            raise CapabilityError(
                f"{command}: {first} has {records}, {name} has {other_records}: they have "
                f"nothing to compare",
                hint="name two buffers of one mode; buffer, top and view show each of them",
            )


def require_comparable(command: str, buffers: Iterable[Buffer]) -> None:
    """Make sure that buffers can have points in common.

    :raises CapabilityError: when they cannot.
    """
    sides = []
    for buffer in buffers:
        kinds = recorded_kinds(buffer.encoding.codec)
        sides.append((buffer.name, _name_records(buffer), kinds))
    require_same_kinds(command, sides)
