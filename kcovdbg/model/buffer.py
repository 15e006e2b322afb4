# SPDX-License-Identifier: LGPL-2.1-or-later
"""A coverage buffer as it was read: plain words, and what must be known to read them."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

from kcovdbg.abi.record import Encoding


class Gap(NamedTuple):
    """Records that couldn't be read; their words are zero and mean nothing."""

    first: int
    """Index of the first record that isn't whole."""
    length: int


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """One buffer, read once. Two buffers are the same when they are one object: comparing words is an analysis of its own."""

    name: str
    """As the user named it: ``41``, ``file:PATH``."""
    encoding: Encoding
    words: array[int] = field(repr=False)
    """From the first record to the last one used, as stored; typecode Q or I. Nothing may change them."""
    count: int
    """Records in ``words``: the stored count, clamped to what fits and what could be read."""
    stored_count: int | None = None
    """The count word; user space can write it. None where it couldn't be read, or the format has none."""
    capacity: int | None = None
    """How many records fit; None where the buffer's size isn't known."""
    address: int | None = None
    size: int | None = None
    """In words of the kernel."""
    mode: str | None = None
    pid: int | None = None
    comm: str | None = None
    kcov: int | None = None
    """The ``struct kcov`` that it belongs to or collects for."""
    kaslr_offset: int = 0
    """To be added to a recorded PC."""
    live: bool = False
    private: bool = False
    """Whether user space has no way to write it: areas of remote sections while they are in use."""
    bits_set: int | None = None
    """Of a buffer with a bitmap: how many bits are set."""
    gaps: tuple[Gap, ...] = ()
    """Ascending, not touching one another."""
    remarks: tuple[str, ...] = ()
    """What a reader must know: clamped, full, still being written, missing pages; each a line."""
    edges: Buffer | None = field(default=None, repr=False)
    """Where an object records addresses and edges at once (January 2025 series): the other buffer."""

    @property
    def full(self) -> bool | None:
        """Whether nothing more fits: then it can't be told from one that was cut. None where the size isn't known."""
        return None if self.capacity is None or not self.encoding.has_count else self.count >= self.capacity
