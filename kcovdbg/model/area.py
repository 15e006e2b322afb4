# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kernel-private buffers of remote and softirq sections."""

from __future__ import annotations

from typing import Final, NamedTuple

TASK_LIST: Final = "task"
IRQ_LIST: Final = "irq"
# The functions that allocate KCOV's buffers (kcov-abi.md 10.6). User buffers: kcov_ioctl since Linux kernel commit
# 17581aa13680 ("kcov: split ioctl handling into locked and unlocked parts") (in v5.18), kcov_mmap before.
USER_ALLOCATORS: Final = ("kcov_ioctl", "kcov_mmap")
AREA_ALLOCATORS: Final = {"kcov_remote_start": TASK_LIST, "kcov_init": IRQ_LIST}
"""For each function, the list that its areas are for."""


class CachedArea(NamedTuple):
    """``struct kcov_remote_area``."""

    address: int
    size: int | None
    """In words of the kernel."""
    list: str


class Area(NamedTuple):
    """One area: on a free list, or used by a section."""

    address: int
    size: int | None
    """In words of the kernel: from the overlay while the area is cached, from the section's task while it is in use; whole
    pages where only the vmalloc area shows it."""
    list: str
    """``task`` or ``irq``: the kind of section that it is for."""
    state: str | None
    """``cached`` (on a list, or idle on its CPU), ``in-use``, ``saved`` (of an interrupted section) or ``unclaimed``; None
    where some of its possible users are unknown."""
    pid: int | None = None
    cpu: int | None = None
    errors: tuple[str, ...] = ()
    device: str | None = None
    """The device of a posted series that it belongs to; None for KCOV's own."""
