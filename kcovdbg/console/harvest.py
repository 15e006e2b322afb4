# SPDX-License-Identifier: LGPL-2.1-or-later
"""Updates of the index for completion: reads the kernel between two commands, and as little of it as possible."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from kcovdbg.console.code_index import CodeIndex
from kcovdbg.console.index import Index, index_kept, index_state
from kcovdbg.console.workspace import Workspace
from kcovdbg.errors import KcovdbgError
from kcovdbg.model.kcov import Kcov
from kcovdbg.model.state import Part, State
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.walk.state import StateReader

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
        if self._workspace.target.memory_problem is not None:
            self._index = replace(self._index, kept=index_kept(self._workspace.kept))
            return
        stale = self._reader is None or (self._workspace.target.live and self._clock() >= self._not_before)
        if not stale and latest is self._seen and kept == self._kept:
            return
        started = self._clock()
        try:
            if stale or self._reader is None:
                self._reader = StateReader(self._workspace.target, self._workspace.layout)
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
        index = index_state(state, self._workspace.layout.modes, objects, areas)
        return replace(index, kept=index_kept(self._workspace.kept), code=self._index.code)

    def _find_table(self) -> LocationTable | None:
        try:
            symbolizer = self._workspace.symbolizer
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
            mode = self._workspace.layout.mode_name(fields.mode or 0)
            yield Kcov(fields, address, mode, pid, comm, None, None, None)
