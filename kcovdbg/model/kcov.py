# SPDX-License-Identifier: LGPL-2.1-or-later
"""``struct kcov`` and who refers to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Reference(NamedTuple):
    """One place that refers to a ``struct kcov``."""

    kind: str
    """``fd``, ``vma``, ``task``, ``section``, ``saved`` or ``remote``."""
    counts: int
    """1 where the kernel took a reference for it, 0 where another row stands for the same reference or none is taken.

    One ``struct file`` counts once however many descriptors and mappings show it; hash entries hold no reference.
    """
    pid: int | None = None
    fd: int | None = None
    file: int | None = None
    start: int | None = None
    """Start of the mapping."""
    handle: int | None = None
    cpu: int | None = None


class KcovFields(NamedTuple):
    """What ``struct kcov`` says, read in one piece; None is a member that this kernel doesn't have."""

    address: int
    refcount: int | None
    lock: bytes
    """The raw ``spinlock_t``: all zero when nobody holds it and lock debugging is off; empty where the kernel's isn't known."""
    mode: int | None
    size: int | None
    """In words of the kernel."""
    area: int | None
    task: int | None
    """``t``: the task that did KCOV_ENABLE or KCOV_REMOTE_ENABLE."""
    remote: bool | None
    remote_size: int | None
    sequence: int | None
    trace: int | None = None
    """Where the count word is, in kernels with KCOV_UNIQUE_ENABLE (2025 series): behind a bitmap, or the area itself."""
    trace_size: int | None = None
    """In words of the kernel, the count word included."""


@dataclass(frozen=True, slots=True)
class Kcov:
    """A ``struct kcov`` with what its fields mean and everybody who refers to it."""

    fields: KcovFields | None
    """None for a buffer whose ``struct kcov`` can't be found or read."""
    address: int | None
    mode: str | None
    pid: int | None
    """Of ``t``."""
    comm: str | None
    count: int | None
    """The buffer's first word: records in it. User space can write it."""
    capacity: int | None
    """How many records fit."""
    full: bool | None
    references: tuple[Reference, ...] = ()
    found_by: tuple[str, ...] = ()
    """The roads that led to it: ``task``, ``saved``, ``remote``, ``fd``, ``vma``, ``vmalloc``."""
    errors: tuple[str, ...] = ()
    edge_area: int | None = None
    """Of the January 2025 series: the buffer for edges, beside ``area``."""
    edge_count: int | None = None
    """Its first word."""

    @property
    def counted(self) -> int:
        """The references that were found and that the kernel counts."""
        return sum(reference.counts for reference in self.references)
