# SPDX-License-Identifier: LGPL-2.1-or-later
"""Words for completion: names in a command's state and in the kernel's image."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, NamedTuple

from kcovdbg.abi.handle import decode_handle
from kcovdbg.abi.mode import PREFIX
from kcovdbg.console.text import escape
from kcovdbg.console.workspace import Workspace
from kcovdbg.elf.symbol_table import demangle
from kcovdbg.errors import KcovdbgError
from kcovdbg.model.kcov import Kcov
from kcovdbg.model.remote import Area
from kcovdbg.model.state import Part, State
from kcovdbg.model.task import Task, TaskFields
from kcovdbg.records.trace_file import Kept
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.walk.state import StateReader

LIMIT: Final = 200
"""Limit for a menu: a longer one is not read, and slow to draw."""

# A shorter part of a word is in too many words to be of use.
_PART_LENGTH: Final = 3


class Candidate(NamedTuple):
    """A word with its description."""

    text: str
    meta: str = ""


def _is_part(typed: str) -> bool:
    """Return whether a typed text is looked for within words: a number is only the beginning of one."""
    return len(typed) >= _PART_LENGTH and not typed.isdecimal()


class Choices:
    """Words in the order in which they are offered; of equal words the first one counts."""

    def __init__(self, entries: Iterable[Candidate] = ()) -> None:
        unique: dict[str, Candidate] = {}
        for entry in entries:
            unique.setdefault(entry.text, entry)
        self._entries = tuple(unique.values())

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def matching(self, prefix: str) -> list[Candidate]:
        """Return the words that begin with a text, then those that have it elsewhere, up to :data:`LIMIT`."""
        found = list(islice((entry for entry in self._entries if entry.text.startswith(prefix)), LIMIT))
        if _is_part(prefix):
            within = (entry for entry in self._entries if prefix in entry.text and not entry.text.startswith(prefix))
            found += islice(within, LIMIT - len(found))
        return found


class CodeIndex:
    """The names in the table of a kernel's coverage points; read when they are first asked for.

    :param find_table: returns the table, None while there is none. It is called again then.
    """

    def __init__(self, find_table: Callable[[], LocationTable | None] = lambda: None) -> None:
        self._find_table = find_table
        self._functions: Choices | None = None
        self._files: Sequence[str] = ()

    def _load(self) -> Choices:
        if self._functions is None:
            table = self._find_table()
            if table is None:
                return _NOTHING
            names = sorted({demangle(symbol.name) for symbol in table.functions()})
            self._functions = Choices(Candidate(name, "function") for name in names if escape(name) == name)
            files = sorted({file.removeprefix("./") for file in table.files()})
            self._files = [file for file in files if escape(file) == file]
        return self._functions

    def functions(self, prefix: str) -> list[Candidate]:
        """Return the functions with a prefix."""
        return self._load().matching(prefix)

    def files(self, prefix: str) -> Iterator[Candidate]:
        """Iterate over the source files and directories with a prefix, down to the next slash."""
        self._load()
        head = prefix[: prefix.rfind("/") + 1]
        parts = (file[len(head) :].partition("/") for file in self._files if file.startswith(prefix))
        for part, slash in dict.fromkeys((part, slash) for part, slash, _ in parts):
            yield Candidate(f"{head}{part}{slash}", "directory" if slash else "source file")

    def named_files(self, prefix: str) -> Iterator[Candidate]:
        """Iterate over the source files in any directory whose own names have a text, those that begin with it first."""
        self._load()
        names = sorted((file.rpartition("/")[2], file) for file in self._files if prefix in file)
        begin = [file for name, file in names if name.startswith(prefix)]
        within = [file for name, file in names if prefix in name and not name.startswith(prefix)] if _is_part(prefix) else ()
        yield from (Candidate(file, "source file") for file in (*begin, *within))


_NOTHING: Final = Choices()
_DULL: Final = frozenset({"DISABLED", None})
# A number on every CPU or thread: kworker/0:1, kc-thr/7.
_INSTANCE: Final = re.compile(r"[/:\-]?\d[\w:/.+\-]*$")


@dataclass(frozen=True, slots=True)
class Index:
    """Words that complete values, by the type of value, at one moment."""

    tids: Choices = _NOTHING
    """Thread ids of all tasks, those with KCOV state first."""
    comms: Choices = _NOTHING
    collecting: Choices = _NOTHING
    """Thread ids of tasks with a buffer."""
    objects: Choices = _NOTHING
    areas: Choices = _NOTHING
    handles: Choices = _NOTHING
    descriptors: Choices = _NOTHING
    """``41/3``."""
    saved: Choices = _NOTHING
    """CPUs, and ``t41``."""
    modes: Choices = _NOTHING
    kept: Choices = _NOTHING
    """``@name``."""
    code: CodeIndex = CodeIndex()  # noqa: RUF009


def index_state(state: State, modes: Iterable[str], objects: Sequence[Kcov] = (), areas: Iterable[Area] = ()) -> Index:
    """Return the index of a kernel, without kept buffers.

    :param state: with TASKS, REMOTE and SAVED.
    :param objects: as far as they are known.
    :param areas: as far as they are known.
    """
    tids, comms, collecting = _index_tasks(state.task_fields, state.tasks)
    return Index(
        tids=tids,
        comms=comms,
        collecting=collecting,
        objects=Choices(Candidate(f"{kcov.address:#x}", _object_meta(kcov)) for kcov in objects if kcov.address),
        areas=_index_areas(areas, objects, state.tasks),
        handles=Choices(
            Candidate(str(decode_handle(entry.handle)), _task_text(entry.pid, entry.comm))
            for entry in state.handles
            if entry.handle is not None
        ),
        descriptors=Choices(
            Candidate(f"{reference.pid}/{reference.fd}", f"{kcov.mode or '?'}  kcov {kcov.address:#x}")
            for kcov in objects
            if kcov.address
            for reference in kcov.references
            if reference.kind == "fd" and reference.fd is not None
        ),
        saved=Choices(
            Candidate(f"t{one.pid}" if one.where == "task" else str(one.cpu), _task_text(one.pid, one.comm))
            for one in state.saved
        ),
        modes=Choices(Candidate(mode.upper().removeprefix(PREFIX).lower().replace("_", "-"), escape(mode)) for mode in modes),
    )


def _index_tasks(fields: Iterable[TaskFields], tasks: Iterable[Task]) -> tuple[Choices, Choices, Choices]:
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


def _object_meta(kcov: Kcov) -> str:
    owner = "" if kcov.pid is None else f"  {kcov.pid} {escape(kcov.comm or '')}"
    count = "" if kcov.count is None else f"  {kcov.count}{' FULL' if kcov.full else ''}"
    return f"{kcov.mode or '?'}{count}{owner}"


def _index_areas(areas: Iterable[Area], objects: Iterable[Kcov], tasks: Iterable[Task]) -> Choices:
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


def _index_kept(kept: Mapping[str, Kept]) -> Choices:
    """Return the names of kept buffers."""
    return Choices(Candidate(name, escape(f"kept from {buffer.source}")) for name, buffer in kept.items())


# Objects that only a descriptor or a mapping refers to are found by searching every process, which takes milliseconds for
# each. With more tasks than this they are offered only after `objects` has shown them.
_FEW_TASKS: Final = 200
# A running kernel is read again after each command, as long as that takes no larger share of the time than this.
_SHARE: Final = 0.1


class Harvest:
    """Keeps an index of a workspace's kernel and kept buffers up to date.

    :param workspace: the workspace.
    :param clock: seconds.
    """

    def __init__(self, workspace: Workspace, clock: Callable[[], float] = time.monotonic) -> None:
        self._workspace = workspace
        self._clock = clock
        self._reader: StateReader | None = None
        self._not_before = 0.0
        self._kept: tuple[str, ...] = ()
        self._seen: StateReader | None = None
        self._index = Index(code=CodeIndex(self._find_table))

    @property
    def index(self) -> Index:
        """The current index."""
        return self._index

    def refresh(self) -> None:
        """Update the index, after a command.

        Unreadable state is not offered; commands report why it is unreadable. An interrupt leaves the index as it was.
        """
        latest = self._workspace.latest
        kept = tuple(self._workspace.kept)
        if self._workspace.kernel.target.memory_problem is not None:
            self._index = replace(self._index, kept=_index_kept(self._workspace.kept))
            return
        stale = self._reader is None or (self._workspace.kernel.target.live and self._clock() >= self._not_before)
        if not stale and latest is self._seen and kept == self._kept:
            return
        started = self._clock()
        try:
            if stale or self._reader is None:
                self._reader = StateReader(self._workspace.kernel.target, self._workspace.kernel.layout)
            self._index = self._build(self._reader, latest)
        except KcovdbgError:
            # For instance, the tasks cannot be walked. Commands and options still complete.
            pass
        self._seen, self._kept = latest, kept
        if stale:
            self._not_before = self._clock() + (self._clock() - started) / _SHARE

    def _build(self, reader: StateReader, latest: StateReader | None) -> Index:
        state = reader.read(Part.TASKS | Part.REMOTE | Part.SAVED)
        shown = None if latest is None else latest.recall()
        objects = tuple(self._objects(reader, shown))
        areas = shown.areas if shown is not None and Part.AREAS in shown.parts else ()
        index = index_state(state, self._workspace.kernel.layout.modes, objects, areas)
        return replace(index, kept=_index_kept(self._workspace.kept), code=self._index.code)

    def _find_table(self) -> LocationTable | None:
        try:
            symbolizer = self._workspace.kernel.symbolizer
        except KcovdbgError:
            return None
        return None if symbolizer is None else symbolizer.table

    def _objects(self, reader: StateReader, shown: State | None) -> Iterator[Kcov]:
        if shown is not None and Part.OBJECTS in shown.parts:
            # The next command is often about what the last one showed.
            yield from shown.objects.values()
        state = reader.read(Part.TASKS | Part.REMOTE)
        if len(state.task_fields) <= _FEW_TASKS:
            yield from reader.read(Part.OBJECTS).objects.values()
            return
        addresses = [
            pointer
            for task in state.tasks
            for pointer in (task.fields.kcov, task.fields.kcov_remote, task.fields.saved_kcov)
            if pointer
        ]
        for address in dict.fromkeys((*addresses, *state.handles_of)):
            try:
                fields = reader.kcov(address)
            except KcovdbgError:
                continue
            owner = state.task_by_address.get(fields.task or 0)
            pid, comm = (None, None) if owner is None else (owner.pid, owner.comm)
            mode = self._workspace.kernel.layout.mode_name(fields.mode or 0)
            yield Kcov(fields, address, mode, pid, comm, None, None, None)
