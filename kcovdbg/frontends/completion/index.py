# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a kernel offers to complete: its tasks, objects, handles, areas. Plain data, so that typing never reads the kernel."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kcovdbg.abi.handle import decode_handle
from kcovdbg.abi.mode import PREFIX
from kcovdbg.frontends.completion.choices import Choices, Entry
from kcovdbg.model.area import Area
from kcovdbg.model.kcov import Kcov
from kcovdbg.model.remote import RemoteHandle
from kcovdbg.model.task import SavedState, Task, TaskFields
from kcovdbg.render.escape import escape

_DULL: Final = frozenset({"DISABLED", None})
# A number on every CPU or thread: kworker/0:1, kc-thr/7.
_INSTANCE: Final = re.compile(r"[/:\-]?\d[\w:/.+\-]*$")


@dataclass(frozen=True, slots=True)
class Index:
    """One moment's words by what they are."""

    tids: Choices = Choices()  # noqa: RUF009 - choices don't change
    """Of all tasks, those with KCOV state first."""
    comms: Choices = Choices()  # noqa: RUF009
    collecting: Choices = Choices()  # noqa: RUF009
    """The tids of tasks with a buffer."""
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


def index_tasks(fields: Iterable[TaskFields], tasks: Iterable[Task]) -> tuple[Choices, Choices, Choices]:
    """Index all tasks, and those with state: their tids, their names, and the tids of those with a buffer."""
    tasks = tuple(tasks)
    tids = [Entry(str(task.fields.pid), _task_meta(task)) for task in tasks]
    collecting = [Entry(str(task.fields.pid), _task_meta(task)) for task in tasks if task.count is not None]
    counts: dict[str, int] = {}
    comms: dict[str, None] = dict.fromkeys(task.fields.comm for task in tasks if task.fields.comm is not None)
    for other in fields:
        tids.append(Entry(str(other.pid), escape(other.comm or "")))
        if other.comm is None:
            continue
        comms[other.comm] = None
        counts[other.comm] = counts.get(other.comm, 0) + 1
    return Choices(tids), Choices(_comm_entries(comms, counts)), Choices(collecting)


def _task_meta(task: Task) -> str:
    mode = "" if task.mode in _DULL else f"  {task.mode}"
    count = "" if task.count is None else f"  {task.count}{' FULL' if task.full else ''}"
    return f"{escape(task.fields.comm or '')}{mode}{count}"


def _comm_entries(comms: Iterable[str], counts: Mapping[str, int]) -> Iterator[Entry]:
    patterns: dict[str, int] = {}
    comms = tuple(comms)
    for comm in comms:
        stem = _INSTANCE.sub("", comm)
        if stem and stem != comm:
            patterns[f"{stem}*"] = patterns.get(f"{stem}*", 0) + counts.get(comm, 1)
    for comm in comms:
        # What isn't printable can't be typed either; such a task has a tid.
        if comm and escape(comm) == comm:
            number = counts.get(comm, 1)
            yield Entry(comm, f"{number} task{'s' if number != 1 else ''} of this name")
    for pattern, number in patterns.items():
        if number > 1 and escape(pattern) == pattern:
            yield Entry(pattern, f"{number} tasks")


def index_objects(objects: Iterable[Kcov]) -> Choices:
    """Index objects by their address."""
    return Choices(Entry(f"{kcov.address:#x}", _object_meta(kcov)) for kcov in objects if kcov.address)


def _object_meta(kcov: Kcov) -> str:
    owner = "" if kcov.pid is None else f"  {kcov.pid} {escape(kcov.comm or '')}"
    count = "" if kcov.count is None else f"  {kcov.count}{' FULL' if kcov.full else ''}"
    return f"{kcov.mode or '?'}{count}{owner}"


def index_descriptors(objects: Iterable[Kcov]) -> Choices:
    """Index descriptors that show KCOV."""
    return Choices(
        Entry(f"{reference.pid}/{reference.fd}", f"{kcov.mode or '?'}  kcov {kcov.address:#x}")
        for kcov in objects
        if kcov.address
        for reference in kcov.references
        if reference.kind == "fd" and reference.fd is not None
    )


def index_handles(entries: Iterable[RemoteHandle]) -> Choices:
    """Index handles as people write them."""
    return Choices(
        Entry(str(decode_handle(entry.handle)), f"{'' if entry.pid is None else entry.pid} {escape(entry.comm or '')}".strip())
        for entry in entries
        if entry.handle is not None
    )


def index_areas(areas: Iterable[Area], objects: Iterable[Kcov], tasks: Iterable[Task]) -> Choices:
    """Index buffers by their address: areas of sections, and those that user space maps."""
    entries = [Entry(f"{area.address:#x}", f"{area.list} area, {area.state}") for area in areas]
    entries += [
        Entry(f"{kcov.fields.area:#x}", f"of kcov {kcov.address:#x}")
        for kcov in objects
        if kcov.fields is not None and kcov.fields.area and kcov.address
    ]
    entries += [
        Entry(f"{task.fields.kcov_area:#x}", f"{task.fields.pid} {escape(task.fields.comm or '')}")
        for task in tasks
        if task.fields.kcov_area
    ]
    return Choices(entries)


def index_saved(saved: Iterable[SavedState]) -> Choices:
    """Index interrupted sessions by where they are saved."""
    entries: list[Entry] = []
    for state in saved:
        where = f"t{state.pid}" if state.where == "task" else str(state.cpu)
        entries.append(Entry(where, f"{'' if state.pid is None else state.pid} {escape(state.comm or '')}".strip()))
    return Choices(entries)


def index_modes(modes: Iterable[str]) -> Choices:
    """Index the kernel's modes as people type them."""
    return Choices(Entry(mode.upper().removeprefix(PREFIX).lower().replace("_", "-"), escape(mode)) for mode in modes)


def index_kept(kept: Mapping[str, object]) -> Choices:
    """Index buffers that were kept."""
    return Choices(Entry(name, escape(f"kept from {getattr(buffer, 'source', '?')}")) for name, buffer in kept.items())
