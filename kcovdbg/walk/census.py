# SPDX-License-Identifier: LGPL-2.1-or-later
"""All of KCOV's state, put together: what each walker found, who refers to whom, and what a task's fields mean.

A :class:`Census` is one look at a kernel. It reads what is asked of it, once; a new look is a new census.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Final

from kcovdbg.abi.era import Feature
from kcovdbg.errors import MissingTypeError, ReadError
from kcovdbg.model.area import Area
from kcovdbg.model.kcov import Kcov
from kcovdbg.model.remote import RemoteHandle
from kcovdbg.model.snapshot import Snapshot
from kcovdbg.model.task import SavedState, Task, TaskFields
from kcovdbg.target import Target
from kcovdbg.walk.area_use import find_areas
from kcovdbg.walk.layout import REMOTE, Layout
from kcovdbg.walk.readings import Readings
from kcovdbg.walk.references import ReferenceWalk
from kcovdbg.walk.sessions import Sessions

# By the source of remarks what walks it.
_WALKS: Final = {
    "tasks": "task_fields",
    "per-cpu": "per_cpu",
    "remote": "remote_map",
    "areas": "cached_areas",
    "files": "files",
    "vmalloc": "vmalloc_areas",
    "slab": "objects",
}


class Census(Readings):
    """One look at all of KCOV's state: what was read, and what it means.

    :param target: the kernel.
    :param layout: of this kernel.
    """

    def __init__(self, target: Target, layout: Layout) -> None:
        super().__init__(target, layout)
        self._sessions = Sessions(self)

    def tasks(self, *, all_tasks: bool = False) -> tuple[Task, ...]:
        """Interpret the tasks.

        :param all_tasks: those without any KCOV state too.
        """
        return self._sessions.tasks(all_tasks=all_tasks)

    def has_state(self, fields: TaskFields) -> bool:
        """Tell whether a task has anything of KCOV's (:meth:`Sessions.has_state`)."""
        return self._sessions.has_state(fields)

    def interpret(self, fields: TaskFields) -> Task:
        """Say what a task's fields mean."""
        return self._sessions.interpret(fields)

    @cached_property
    def saved(self) -> tuple[SavedState, ...]:
        """The sessions that are saved now."""
        return self._sessions.saved

    @cached_property
    def objects(self) -> Mapping[int, Kcov]:
        """Every ``struct kcov`` by its address, found by every road of kcov-abi.md 10, with everybody who refers to it."""
        return ReferenceWalk(self, self._sessions).find_objects()

    @cached_property
    def remote(self) -> tuple[RemoteHandle, ...]:
        """The registered handles with their owners."""
        found: list[RemoteHandle] = []
        for entry in self.remote_map.entries:
            pid = comm = None
            errors: tuple[str, ...] = ()
            try:
                if entry.kcov is None:
                    raise MissingTypeError(f"the debug info has no {REMOTE}.kcov")  # noqa: TRY301
                fields = self.kcov(entry.kcov)
            except (ReadError, MissingTypeError) as error:
                errors = (str(error) if entry.kcov is None else f"kcov {entry.kcov:#x}: {error}",)
            else:
                if fields.task:
                    pid, comm, problem = self.owner(fields.task)
                    errors = () if problem is None else (problem,)
            found.append(RemoteHandle(entry.address, entry.handle, entry.bucket, entry.kcov, pid, comm, errors))
        return tuple(found)

    @cached_property
    def areas(self) -> tuple[Area, ...]:
        """Remote and softirq areas: on a list, idle on their CPU, in use, of an interrupted section, or unclaimed."""
        return find_areas(self, self._sessions)

    def lacks(self, *sources: str) -> tuple[str, ...]:
        """Say what couldn't be read of some sources; who wasn't asked yet is asked now.

        :param sources: ``tasks``, ``per-cpu``, ``remote``, ``areas``, ``files``, ``vmalloc``, ``slab``.
        """
        for source in sources:
            if self.layout.generation.has(Feature.REMOTE) or source not in ("remote", "areas"):
                getattr(self, _WALKS[source])
        return tuple(remark for source in sources for remark in self.lacking.get(source, ()))

    def remarks(self) -> tuple[str, ...]:
        """Say what the answers so far lack."""
        return tuple(remark for remarks in self.lacking.values() for remark in remarks)

    def recall(self) -> Snapshot:
        """Return what this census was asked for already; nothing is read."""
        known = self.__dict__
        return Snapshot(
            objects=known.get("objects", {}),
            remote=known.get("remote", ()),
            areas=known.get("areas", ()),
            saved=known.get("saved", ()),
            remarks=self.remarks(),
        )

    def snapshot(self) -> Snapshot:
        """Look at everything."""
        tasks, objects, remote, areas, saved = self.tasks(all_tasks=True), self.objects, self.remote, self.areas, self.saved
        return Snapshot(tasks, objects, remote, areas, saved, self.remarks())
