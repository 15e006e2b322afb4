# SPDX-License-Identifier: LGPL-2.1-or-later
"""The system call that a task is in."""

from __future__ import annotations

from typing import NamedTuple


class Syscall(NamedTuple):
    """A system call with its arguments."""

    number: int
    name: str | None
    """None for a 32-bit call, whose numbers have other names."""
    args: tuple[int, ...]
    """As many as the call takes; all that registers hold where that is unknown."""


class TaskSyscall(NamedTuple):
    """What is known of the system call that a task is in."""

    call: Syscall | None
    """None where it is in none, or that is unknown."""
    error: str | None = None
    """Why it is unknown."""
