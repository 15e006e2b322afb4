# SPDX-License-Identifier: LGPL-2.1-or-later
"""A task's KCOV fields."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Role(str, Enum):
    """What collects into a task."""

    NONE = "none"
    LOCAL = "local"
    REMOTE_SECTION = "remote-section"
    SOFTIRQ_SECTION = "softirq-section"


class SavedState(NamedTuple):
    """An interrupted session, parked while a softirq section runs.

    Linux kernel commit 5ff3b30ab57d ("kcov: collect coverage from interrupts") (in v5.8) keeps it in
    ``struct kcov_percpu_data``; "kcov: fix data corruption and race conditions on PREEMPT_RT" (August 2026, stable trees
    too) in ``struct task_struct``.
    """

    where: str
    """``cpu`` or ``task``: which structure holds it."""
    cpu: int | None
    task: int | None
    """``struct task_struct *`` whose session it is: the task itself, or the CPU's current one."""
    pid: int | None
    comm: str | None
    mode: int | None
    """``unsigned int``, flag bits included."""
    size: int | None
    """In words of the kernel."""
    area: int | None
    kcov: int | None
    sequence: int | None
    errors: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is saved: the kernel keeps all five members zero then."""
        return not (self.kcov or self.mode or self.size or self.area or self.sequence)


class TaskFields(NamedTuple):
    """What ``struct task_struct`` says, read in one piece; None is a member that this kernel doesn't have."""

    address: int
    pid: int | None
    tgid: int | None
    comm: str | None
    flags: int | None
    """``PF_*``."""
    cpu: int | None
    on_cpu: bool | None
    mm: int | None
    files: int | None
    kcov_mode: int | None
    """The word as stored, flag bits included."""
    kcov_size: int | None
    """In words of the kernel."""
    kcov_area: int | None
    kcov: int | None
    kcov_remote: int | None
    kcov_handle: int | None
    kcov_sequence: int | None
    kcov_softirq: int | None
    saved_mode: int | None
    saved_size: int | None
    saved_area: int | None
    saved_kcov: int | None
    saved_sequence: int | None
    trace: int | None = None
    """Where the count word is, in kernels with KCOV_UNIQUE_ENABLE (2025 series): behind a bitmap, or the area itself."""
    trace_size: int | None = None
    """In words of the kernel, the count word included."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task with what its fields mean."""

    fields: TaskFields
    mode: str | None
    """``enum kcov_mode`` without prefix, flags masked; None where it can't be read."""
    in_ctxsw: bool | None
    role: Role | None
    """What collects into it now; None where the ``struct kcov`` that decides it can't be read."""
    beneath: Role | None
    """The role of the session that a softirq section interrupted; None where there is none, or it can't be told."""
    owns_remote: bool | None
    """Owner of a KCOV_REMOTE_ENABLE; None where this kernel has none, or it can't be told."""
    count: int | None
    """The count word of the buffer that ``buffer TID`` shows: its own area, or the object's of a remote owner."""
    full: bool | None
    saved: SavedState | None
    errors: tuple[str, ...] = ()
