# SPDX-License-Identifier: LGPL-2.1-or-later
"""The index for completion: tasks, objects, handles and areas as plain data, so that typing never reads the kernel."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kcovdbg.abi.handle import decode_handle
from kcovdbg.abi.mode import PREFIX
from kcovdbg.console.choices import Candidate, Choices
from kcovdbg.console.code_index import CodeIndex
from kcovdbg.model.area import Area
from kcovdbg.model.kcov import Kcov
from kcovdbg.model.remote import RemoteHandle
from kcovdbg.model.state import State
from kcovdbg.model.task import SavedState, Task, TaskFields
from kcovdbg.console.escape import escape

_DULL: Final = frozenset({"DISABLED", None})
# A number on every CPU or thread: kworker/0:1, kc-thr/7.
_INSTANCE: Final = re.compile(r"[/:\-]?\d[\w:/.+\-]*$")


@dataclass(frozen=True, slots=True)
class Index:
    """Words that complete values, by the type of value, at one moment."""

    tids: Choices = Choices()  # noqa: RUF009 - choices are immutable
    """Thread ids of all tasks, those with KCOV state first."""
    comms: Choices = Choices()  # noqa: RUF009
    collecting: Choices = Choices()  # noqa: RUF009
    """Thread ids of tasks with a buffer."""
    objects: Choices = Choices()  # noqa: RUF009
    areas: Choices = Choices()  # noqa: RUF009
    handles: Choices = Choices()  # noqa: RUF009
    descriptors: Choices = Choices()  # noqa: RUF009
    """``41/3``."""
    saved: Choices = Choices()  # noqa: RUF009
    """CPUs, and ``t41``."""
    modes: Choices = Choices()  # noqa: RUF009
    kept: Choices = Choices()  # noqa: RUF009
    """``@name``."""
    code: CodeIndex = CodeIndex()  # noqa: RUF009


def index_state(state: State, modes: Iterable[str], objects: Sequence[Kcov] = (), areas: Iterable[Area] = ()) -> Index:
    """Return the index of a kernel, without kept buffers.

    :param state: with TASKS, REMOTE and SAVED.
    :param objects: as far as they are known.
    :param areas: as far as they are known.
    """
    tids, comms, collecting = index_tasks(state.task_fields, state.tasks)
    return Index(
        tids=tids,
        comms=comms,
        collecting=collecting,
        objects=index_objects(objects),
        areas=index_areas(areas, objects, state.tasks),
        handles=index_handles(state.handles),
        descriptors=index_descriptors(objects),
        saved=index_saved(state.saved),
        modes=index_modes(modes),
    )


def index_tasks(fields: Iterable[TaskFields], tasks: Iterable[Task]) -> tuple[Choices, Choices, Choices]:
    """Return the thread ids and the names of all tasks, and the thread ids of those with a buffer."""
    tasks = tuple(tasks)
    tids = [Candidate(str(task.fields.pid), _task_meta(task)) for task in tasks]
    collecting = [Candidate(str(task.fields.pid), _task_meta(task)) for task in tasks if task.count is not None]
    counts: dict[str, int] = {}
    comms: dict[str, None] = dict.fromkeys(task.fields.comm for task in tasks if task.fields.comm is not None)
    for other in fields:
        tids.append(Candidate(str(other.pid), escape(other.comm or "")))
        if other.comm is None:
            continue
        comms[other.comm] = None
        counts[other.comm] = counts.get(other.comm, 0) + 1
    return Choices(tids), Choices(_comm_entries(comms, counts)), Choices(collecting)


def _task_meta(task: Task) -> str:
    mode = "" if task.mode in _DULL else f"  {task.mode}"
    count = "" if task.count is None else f"  {task.count}{' FULL' if task.full else ''}"
    return f"{escape(task.fields.comm or '')}{mode}{count}"


def _comm_entries(comms: Iterable[str], counts: Mapping[str, int]) -> Iterator[Candidate]:
    patterns: dict[str, int] = {}
    comms = tuple(comms)
    for comm in comms:
        stem = _INSTANCE.sub("", comm)
        if stem and stem != comm:
            patterns[f"{stem}*"] = patterns.get(f"{stem}*", 0) + counts.get(comm, 1)
    for comm in comms:
        # A name that is not printable cannot be typed; such a task has a thread id.
        if comm and escape(comm) == comm:
            number = counts.get(comm, 1)
            yield Candidate(comm, f"{number} task{'s' if number != 1 else ''} with this name")
    for pattern, number in patterns.items():
        if number > 1 and escape(pattern) == pattern:
            yield Candidate(pattern, f"{number} tasks")


def _task_text(pid: int | None, comm: str | None) -> str:
    return f"{'' if pid is None else pid} {escape(comm or '')}".strip()


def index_objects(objects: Iterable[Kcov]) -> Choices:
    """Return the addresses of objects."""
    return Choices(Candidate(f"{kcov.address:#x}", _object_meta(kcov)) for kcov in objects if kcov.address)


def _object_meta(kcov: Kcov) -> str:
    owner = "" if kcov.pid is None else f"  {kcov.pid} {escape(kcov.comm or '')}"
    count = "" if kcov.count is None else f"  {kcov.count}{' FULL' if kcov.full else ''}"
    return f"{kcov.mode or '?'}{count}{owner}"


def index_descriptors(objects: Iterable[Kcov]) -> Choices:
    """Return the descriptors of KCOV, as ``41/3``."""
    return Choices(
        Candidate(f"{reference.pid}/{reference.fd}", f"{kcov.mode or '?'}  kcov {kcov.address:#x}")
        for kcov in objects
        if kcov.address
        for reference in kcov.references
        if reference.kind == "fd" and reference.fd is not None
    )


def index_handles(entries: Iterable[RemoteHandle]) -> Choices:
    """Return handles as they are written in commands."""
    return Choices(
        Candidate(
            str(decode_handle(entry.handle)), f"{'' if entry.pid is None else entry.pid} {escape(entry.comm or '')}".strip()
        )
        for entry in entries
        if entry.handle is not None
    )


def index_areas(areas: Iterable[Area], objects: Iterable[Kcov], tasks: Iterable[Task]) -> Choices:
    """Return the addresses of buffers: areas of sections, and buffers of objects and tasks."""
    entries = [Candidate(f"{area.address:#x}", f"{area.list} area, {area.state}") for area in areas]
    entries += [
        Candidate(f"{kcov.fields.area:#x}", f"of kcov {kcov.address:#x}")
        for kcov in objects
        if kcov.fields is not None and kcov.fields.area and kcov.address
    ]
    entries += [
        Candidate(f"{task.fields.kcov_area:#x}", f"{task.fields.pid} {escape(task.fields.comm or '')}")
        for task in tasks
        if task.fields.kcov_area
    ]
    return Choices(entries)


def index_saved(saved: Iterable[SavedState]) -> Choices:
    """Return where saved state is: CPUs, and ``t41``."""
    entries: list[Candidate] = []
    for state in saved:
        where = f"t{state.pid}" if state.where == "task" else str(state.cpu)
        entries.append(Candidate(where, _task_text(state.pid, state.comm)))
    return Choices(entries)


def index_modes(modes: Iterable[str]) -> Choices:
    """Return the kernel's modes as they are written in commands."""
    return Choices(Candidate(mode.upper().removeprefix(PREFIX).lower().replace("_", "-"), escape(mode)) for mode in modes)


def index_kept(kept: Mapping[str, object]) -> Choices:
    """Return the names of kept buffers."""
    return Choices(Candidate(name, escape(f"kept from {getattr(buffer, 'source', '?')}")) for name, buffer in kept.items())
