# SPDX-License-Identifier: LGPL-2.1-or-later
"""State of a device that a posted series adds: its objects, handles and sessions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kcovdbg.model.kcov import Kcov
from kcovdbg.model.remote import RemoteHandle
from kcovdbg.model.task import Role


@dataclass(frozen=True, slots=True)
class DeviceSession:
    """A device's collection into a task."""

    device: str
    mode: str
    """The mode by whose format the device's buffers are read."""
    task: int
    """``struct task_struct *``."""
    pid: int | None
    comm: str | None
    kcov: int | None
    """The device's object; None if it is unknown."""
    area: int | None
    size: int | None
    """Size in words."""
    sequence: int | None
    """Sequence number of the last record."""
    depth: int | None
    """Nesting depth of remote sections, 0 in the task's own session."""
    enabled: bool | None
    """Whether records are written."""
    count: int | None
    """The number of words in use, by the first word of the area."""
    full: bool | None
    capacity: int | None = None
    """The number of words after the first one."""

    @property
    def role(self) -> Role | None:
        """The role of the task's coverage; None if unknown in this kernel."""
        if self.depth is None:
            return None
        return Role.REMOTE_SECTION if self.depth else Role.LOCAL


class DeviceState(NamedTuple):
    """The objects, handles, sessions and free areas of one device."""

    name: str
    feature: str
    """Feature of the kernels with this form of the device."""
    objects: Mapping[int, Kcov]
    """The objects by their address."""
    handles: tuple[RemoteHandle, ...]
    published: Mapping[int, int]
    """The registered handle in each object, 0 for none."""
    sessions: tuple[DeviceSession, ...]
    idle_areas: tuple[int, ...]
    """The free areas of remote sections."""
    idle_count: int | None
    """The kernel's count of free areas; None if it has none, or their list is incomplete."""
