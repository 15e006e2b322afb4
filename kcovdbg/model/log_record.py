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
    """0 for the kernel; records that programs write to /dev/kmsg have other numbers."""
    caller: str | None
    """``T41`` for a thread, ``C0`` for a CPU in an interrupt; None if the kernel does not store it.
    """
    text: str
    """The message, which may have several lines. It is hostile text: user space may have made the
    kernel print anything.
    """

    @property
    def stamp(self) -> str:
        """The time in the format of dmesg, without brackets."""
        return f"{self.time // 1_000_000_000:5}.{self.time % 1_000_000_000 // 1000:06}"

    def lines(self) -> Iterator[str]:
        """Yield the lines in the format of dmesg."""
        for line in self.text.split("\n"):
            yield f"[{self.stamp}] {line}"


class KernelLog(NamedTuple):
    """The records in printk()'s ring buffer."""

    records: tuple[LogRecord, ...] = ()
    """Oldest first."""
    remarks: tuple[str, ...] = ()
    """Lines on unreadable data."""
