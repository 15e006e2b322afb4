# SPDX-License-Identifier: LGPL-2.1-or-later
"""State of a device that a posted series adds beside KCOV's own: its objects, handles and
sessions.
"""

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
    """Mode in which the device's buffers are read."""
    task: int
    """``struct task_struct *``."""
    pid: int | None
    comm: str | None
    kcov: int | None
    """The device's object; None where tasks of this kernel do not name it."""
    area: int | None
    size: int | None
    """Size in words."""
    sequence: int | None
    """Sequence number of the last record."""
    depth: int | None
    """Nesting depth of remote sections: 0 in a session of the task's own."""
    enabled: bool | None
    """Whether records are written."""
    count: int | None
    """The first word of the area: words in use."""
    full: bool | None
    capacity: int | None = None
    """Words after the first one."""

    @property
    def role(self) -> Role | None:
        """The role of the task's coverage; None if unknown in this kernel."""
        if self.depth is None:
            return None
        return Role.REMOTE_SECTION if self.depth else Role.LOCAL


class DeviceState(NamedTuple):
    """Everything that belongs to one device."""

    name: str
    feature: str
    """Feature of the kernels in which it has this form."""
    objects: Mapping[int, Kcov]
    """The objects by their address."""
    handles: tuple[RemoteHandle, ...]
    published: Mapping[int, int]
    """The handle that each object stores as registered, 0 for none."""
    sessions: tuple[DeviceSession, ...]
    idle_areas: tuple[int, ...]
    """Areas of remote sections that are free."""
    idle_count: int | None
    """The kernel's count; None where it has none, or where the list could not be read to its end.
    """
