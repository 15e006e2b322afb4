# SPDX-License-Identifier: LGPL-2.1-or-later
"""A task's session: the collection into it at one moment."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from kcovdbg.abi import mode as modes


class Role(str, Enum):
    """The kinds of collection into a task."""

    NONE = "none"
    LOCAL = "local"
    REMOTE_SECTION = "remote-section"
    SOFTIRQ_SECTION = "softirq-section"


class Session(NamedTuple):
    """One session as a task's fields, or a saved copy of them, describe it. Members are None where unknown.

    :func:`kcovdbg.walk.sessions.decide_session` makes every one of them.
    """

    task: int | None
    """``struct task_struct *``; None for a saved session whose CPU's current task is unknown."""
    is_saved: bool
    """Whether a softirq section interrupted it."""
    mode: str | None
    """Without prefix, flags masked."""
    size: int | None
    """In words of the kernel."""
    area: int | None
    kcov: int | None
    sequence: int | None
    role: Role | None
    """The best judgment; None where nothing decides it.

    LOCAL where the session uses the object's own buffer, or the object names this task as the one that it is enabled for.
    """
    is_certain: bool = True
    """Whether the role is certain: no member disagrees with it, and none that it depends on is unreadable."""
    errors: tuple[str, ...] = ()
    """Lines on unreadable or inconsistent data."""
    is_owner_mark: bool = False
    """Whether it only marks the owner of a KCOV_REMOTE_ENABLE, as kernels before v7.2 do."""

    @property
    def certain_role(self) -> Role | None:
        """The role, None where there is any doubt."""
        return self.role if self.is_certain else None

    @property
    def is_tracing(self) -> bool:
        """Whether it records coverage."""
        return self.mode is not None and modes.is_tracing(self.mode)

    @property
    def is_local(self) -> bool:
        """Whether the task traces itself."""
        return self.role is Role.LOCAL

    @property
    def is_section(self) -> bool:
        """Whether it is a remote or softirq section that collects for an object, and so holds a reference to it."""
        is_idle = self.mode is not None and modes.is_known(self.mode) and not modes.is_tracing(self.mode)
        return self.role in (Role.REMOTE_SECTION, Role.SOFTIRQ_SECTION) and bool(self.kcov) and not is_idle
