# SPDX-License-Identifier: LGPL-2.1-or-later
"""The connection that an open target is read through: stop its kernel, its notes, close it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum

from kcovdbg.errors import TargetError


@contextlib.contextmanager
def already_stopped() -> Iterator[bool]:
    """Do nothing: a dump, or a machine stopped by its GDB stub, does not change."""
    yield True


@contextlib.contextmanager
def keeps_running() -> Iterator[bool]:
    """Do nothing: the kernel that kcovdbg runs on cannot be stopped."""
    yield False


def _no_notes() -> bytes:
    return b""


def _nothing() -> None:
    pass


class MachineState(str, Enum):
    """The state of a machine that can be read."""

    RUNNING = "running"
    STOPPED = "stopped"
    GONE = "gone"


def _not_a_machine() -> MachineState | None:
    return None


def _not_gone() -> bool:
    return False


def _not_stopped() -> str | None:
    return None


def _is_still(_reason: str) -> str | None:
    return None


def _not_stopped_by_kcovdbg() -> str | None:
    raise TargetError("kcovdbg did not stop this machine")


@dataclass(frozen=True, slots=True)
class Connection:
    """The connection to an open target."""

    read_notes: Callable[[], bytes] = _no_notes
    """Return the ELF notes of a dump as they are, PRSTATUS and VMCOREINFO among them; empty when there are none."""
    pause: Callable[[], AbstractContextManager[bool]] = already_stopped
    """Stop the kernel for a block; yields whether it is stopped."""
    state: Callable[[], MachineState | None] = _not_a_machine
    """Ask what the machine does; None for a dump."""
    is_gone: Callable[[], bool] = _not_gone
    """Return whether the machine has ended, without asking it."""
    stop_note: Callable[[], str | None] = _not_stopped
    """Return a note on who stopped the machine before kcovdbg connected to it; None while it runs."""
    resume: Callable[[], str | None] = _not_stopped_by_kcovdbg
    """Let a machine continue that was left stopped by a run of kcovdbg that has ended; return a note for the user.

    :raises TargetError: when none did.
    """
    leave_stopped: Callable[[str], str | None] = _is_still
    """Leave a machine that kcovdbg stopped so when the target is closed, for a reason that later runs of kcovdbg give; return a
    note for the user, None where closing the target lets nothing go on."""
    close: Callable[[], None] = _nothing
    """Close it; may be called twice."""
    files: tuple[str, ...] = ()
    """The files that the user named or that were found: a dump, debug info."""
