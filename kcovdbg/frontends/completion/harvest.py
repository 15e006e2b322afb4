# SPDX-License-Identifier: LGPL-2.1-or-later
"""Makes the index of what completes: reads the kernel between two commands, as little as will do, and never while one types."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from kcovdbg.commands.session import Session
from kcovdbg.errors import KcovdbgError
from kcovdbg.frontends.completion.index import (
    Index,
    index_areas,
    index_descriptors,
    index_handles,
    index_kept,
    index_modes,
    index_objects,
    index_saved,
    index_tasks,
)
from kcovdbg.model.kcov import Kcov
from kcovdbg.walk.census import Census

# Objects that nobody but a descriptor or a mapping refers to are found by looking through every process. That takes
# milliseconds for each; with more tasks than this they complete once `objects` has shown them.
_FEW_TASKS: Final = 200
# A kernel that runs is looked at again after each command, unless looking would take more than this part of the time.
_SHARE: Final = 0.1


class Harvest:
    """Keeps an index up to date.

    :param session: whose kernel and kept buffers it is about.
    :param clock: seconds.
    """

    def __init__(self, session: Session, clock: Callable[[], float] = time.monotonic) -> None:
        self._session = session
        self._clock = clock
        self._index = Index()
        self._census: Census | None = None
        self._not_before = 0.0
        self._kept: tuple[str, ...] = ()
        self._seen: Census | None = None

    @property
    def index(self) -> Index:
        """What was found last."""
        return self._index

    def refresh(self) -> None:
        """Look again, after a command.

        What can't be read isn't offered; commands say why it can't be. An interrupt leaves the index as it was.
        """
        latest = self._session.latest
        kept = tuple(self._session.kept)
        stale = self._census is None or (self._session.target.live and self._clock() >= self._not_before)
        if not stale and latest is self._seen and kept == self._kept:
            return
        started = self._clock()
        try:
            if stale or self._census is None:
                self._census = Census(self._session.target, self._session.layout)
            self._index = self._build(self._census, latest)
        except KcovdbgError:
            # No tasks can be walked, for instance. Commands and options still complete.
            pass
        self._seen, self._kept = latest, kept
        if stale:
            self._not_before = self._clock() + (self._clock() - started) / _SHARE

    def _build(self, census: Census, latest: Census | None) -> Index:
        tasks = census.tasks()
        objects = tuple(self._objects(census, latest))
        tids, comms, collecting = index_tasks(census.task_fields, tasks)
        areas = latest.recall().areas if latest is not None else ()
        return Index(
            tids=tids,
            comms=comms,
            collecting=collecting,
            objects=index_objects(objects),
            areas=index_areas(areas, objects, tasks),
            handles=index_handles(census.remote),
            descriptors=index_descriptors(objects),
            saved=index_saved(census.saved),
            modes=index_modes(self._session.layout.modes),
            kept=index_kept(self._session.kept),
        )

    def _objects(self, census: Census, latest: Census | None) -> Iterator[Kcov]:
        if latest is not None:
            # What a command has just shown is what one wants to ask about next.
            yield from latest.recall().objects.values()
        if len(census.task_fields) <= _FEW_TASKS:
            yield from census.objects.values()
            return
        owners = {entry.kcov: entry for entry in census.remote if entry.kcov}
        addresses = [
            pointer
            for task in census.tasks()
            for pointer in (task.fields.kcov, task.fields.kcov_remote, task.fields.saved_kcov)
            if pointer
        ]
        for address in dict.fromkeys((*addresses, *owners)):
            try:
                fields = census.kcov(address)
            except KcovdbgError:
                continue
            owner = census.by_address.get(fields.task or 0)
            pid, comm = (None, None) if owner is None else (owner.pid, owner.comm)
            mode = self._session.layout.mode_name(fields.mode or 0)
            yield Kcov(fields, address, mode, pid, comm, None, None, None)
