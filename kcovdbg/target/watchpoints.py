# SPDX-License-Identifier: LGPL-2.1-or-later
"""Hardware watchpoints: a machine runs until memory is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from kcovdbg.model.memory import StackFrame


class MemorySpan(NamedTuple):
    """Memory that one hardware watchpoint covers."""

    address: int
    size: int
    """In bytes: 1, 2, 4 or 8; the address is a multiple of it."""


class RunEnd(str, Enum):
    """Why a machine that ran until a write has stopped."""

    WRITE = "write"
    """The write that was waited for."""
    TIME = "time"
    """The time has passed."""
    INTERRUPT = "interrupt"
    """C-c."""
    OTHER = "other"
    """Something else stopped it: another debugger, a breakpoint, its end in a panic."""


class Watchpoints(Protocol):
    """Hardware watchpoints of a machine. Nothing is written to its memory."""

    def run(self, spans: Sequence[MemorySpan], is_wanted: Callable[[], bool], seconds: float | None) -> RunEnd:
        """Let the machine run until a wanted write to some memory, then stop it. The watchpoints are removed however it ends.

        :param spans: the memory.
        :param is_wanted: called after each write, while the machine is stopped; False lets it go on.
        :param seconds: after which the machine is stopped without one; None: never.
        :raises CapabilityError: when the machine has no hardware watchpoints for it.
        :raises GoneError: when the machine ends.
        """

    @property
    def cpu(self) -> int | None:
        """The CPU that stopped, None where that is unknown."""

    def stack_problem(self) -> str | None:
        """Return why :meth:`stack` lacks callers, None when it is complete."""

    def other_stacks(self) -> Iterator[tuple[int, Sequence[StackFrame]]]:
        """Iterate over the other CPUs, each with its stack; empty stacks are of CPUs in user mode."""

    @property
    def pc(self) -> int:
        """The address after the instruction that wrote, in the running kernel."""

    def stack(self) -> Sequence[StackFrame]:
        """Return the stack of the CPU that stopped, innermost frame first; at least the frame of :attr:`pc`."""
