# SPDX-License-Identifier: LGPL-2.1-or-later
"""How an open target's memory was come by: what a slice of it needs besides the memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass


@contextlib.contextmanager
def stands_still() -> Iterator[bool]:
    """Stand for a kernel that doesn't move anyway: a dump, a machine held by its GDB stub."""
    yield True


@contextlib.contextmanager
def moves_on() -> Iterator[bool]:
    """Stand for a kernel that nobody can stop: the one that kcovdbg runs on."""
    yield False


def _no_notes() -> bytes:
    return b""


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Origin:
    """What the one who opened a target knows about it."""

    read_notes: Callable[[], bytes] = _no_notes
    """Return the ELF notes of the dump as they are, PRSTATUS and VMCOREINFO among them; empty where there are none."""
    standstill: Callable[[], AbstractContextManager[bool]] = stands_still
    """A block during which the kernel stands still; yields whether it does."""
    close: Callable[[], None] = _nothing
    """Let go of it. May be called twice."""
