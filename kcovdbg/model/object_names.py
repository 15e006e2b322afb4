# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names of tasks and objects in messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

# Limit for lists of names in messages.
_NAMED: Final = 20


class HasTask(Protocol):
    """Data that refers to a task: the task's fields, saved state, a buffer, a remote handle."""

    @property
    def pid(self) -> int | None:
        """Its thread id."""

    @property
    def comm(self) -> str | None:
        """Its name."""


def name_task(fields: HasTask) -> str:
    """Return a task's name: ``task 41 (syz-executor)``."""
    return f"task {'?' if fields.pid is None else fields.pid}" + (f" ({fields.comm})" if fields.comm else "")


def name_kcov(address: int, device: str = "kcov") -> str:
    """Return an object's name: ``kcov 0xffff…``.

    :param device: whose object it is.
    """
    return f"{device} {address:#x}"


def name_some(names: Sequence[str], most: int = _NAMED) -> str:
    """Return a list of names; of a long one, the first names and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
