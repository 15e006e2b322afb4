# SPDX-License-Identifier: LGPL-2.1-or-later
"""What completion offers of the target, remembered until the target moves."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

import gdb
from kcovdbg.abi.mode import PREFIX
from kcovdbg.errors import KcovdbgError
from kcovdbg.frontends.gdb_commands import parameters
from kcovdbg.target.gdb.opening import open_target
from kcovdbg.walk.census import Census
from kcovdbg.walk.layout import detect_layout

# Opening a target takes a handful of reads. Where these take longer than this, on a serial line for instance, a walk over all
# tasks is nothing to do for a press of TAB.
_PATIENCE: Final = 0.25


class KnownState:
    """Tasks, modes and CPUs as they are while the target stands still.

    :param kept: the buffers that were kept, by name.
    """

    def __init__(self, kept: dict[str, Any]) -> None:
        self._kept = kept
        self._looked = False
        self._tids: tuple[int, ...] = ()
        self._modes: tuple[str, ...] = ()
        self._cpus: tuple[int, ...] = ()

    def watch(self) -> None:
        """Forget when GDB says that something changed."""
        events = gdb.events
        for name in (
            "stop",
            "cont",
            "memory_changed",
            "new_objfile",
            "clear_objfiles",
            "inferior_deleted",
            "connection_removed",
        ):
            registry = getattr(events, name, None)
            if registry is not None:
                registry.connect(self._forget)

    def _forget(self, event: object) -> None:  # noqa: ARG002 - GDB's signature
        self._looked = False

    def _look(self) -> None:
        if self._looked:
            return
        # Once, whatever comes of it: the next key press shall not fail again.
        self._looked = True
        self._tids = self._modes = self._cpus = ()
        try:
            start = time.monotonic()
            target = open_target(parameters.kaslr_offset())
            took = time.monotonic() - start
            layout = detect_layout(target)
            self._modes = tuple(name.upper().removeprefix(PREFIX) for name in layout.modes)
            self._cpus = tuple(target.cpus())
            if took < _PATIENCE:
                self._tids = tuple(task.fields.pid for task in Census(target, layout).tasks() if task.fields.pid is not None)
        except (KcovdbgError, gdb.error):
            # There is nothing to offer; the command itself will say why.
            return

    def tids(self) -> Sequence[int]:
        """Return the tasks with KCOV state."""
        self._look()
        return self._tids

    def modes(self) -> Iterable[str]:
        """Return the kernel's modes."""
        self._look()
        return self._modes

    def kept(self) -> Iterable[str]:
        """Return the names of kept buffers."""
        return tuple(self._kept)

    def cpus(self) -> Sequence[int]:
        """Return the CPUs."""
        self._look()
        return self._cpus
