# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel's log as data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class LogRecord(NamedTuple):
    """One record of printk()'s ring buffer."""

    seq: int
    """Its number since boot."""
    time: int
    """Time since boot in nanoseconds."""
    level: int
    """0 (emergency) to 7 (debug)."""
    facility: int
    """0 for the kernel; programs that write to /dev/kmsg have others."""
    caller: str | None
    """As the console shows it: ``T41`` for a thread, ``C0`` for a CPU in an interrupt; None where
    the kernel does not keep it.
    """
    text: str
    """May have several lines. Hostile: anything that user space could make the kernel print."""

    @property
    def stamp(self) -> str:
        """The time as dmesg and the console show it, without brackets."""
        return f"{self.time // 1_000_000_000:5}.{self.time % 1_000_000_000 // 1000:06}"

    def lines(self) -> Iterator[str]:
        """Yield the lines as dmesg shows them."""
        for line in self.text.split("\n"):
            yield f"[{self.stamp}] {line}"


class KernelLog(NamedTuple):
    """The records of printk()'s ring buffer that are still there."""

    records: tuple[LogRecord, ...] = ()
    """Oldest first."""
    remarks: tuple[str, ...] = ()
    """Lines on unreadable data."""
