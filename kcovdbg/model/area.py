# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kernel-private buffers of remote and softirq sections."""

from __future__ import annotations

from typing import NamedTuple


class Area(NamedTuple):
    """One area: on a free list, or in use by a section."""

    address: int
    size: int | None
    """In words of the kernel. The free list's own overlay says it while the area is cached, the section's task while in use;
    whole pages where only the vmalloc list tells."""
    list: str
    """``task`` or ``irq``: for which sections it is kept."""
    state: str | None
    """``cached`` (on a list or idle on its CPU), ``in-use``, ``saved`` (of an interrupted section) or ``unclaimed``; None where
    not everybody is known who could have it."""
    pid: int | None = None
    cpu: int | None = None
    errors: tuple[str, ...] = ()
