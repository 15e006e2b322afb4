# SPDX-License-Identifier: LGPL-2.1-or-later
"""A coverage buffer: its words, and their encoding."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from kcovdbg.abi.record import Encoding, Record, decode_record, pc_words


class Gap(NamedTuple):
    """Records that could not be read. Their words are zeros without meaning."""

    first: int
    """Index of the first incomplete record."""
    length: int


class Order(NamedTuple):
    """Whether records are in the order in which they were recorded."""

    is_known: bool | None = True
    """None if it is unknown whether they have an order."""
    reason: str = ""
    """Why they have no order, or why that is unknown."""


IN_ORDER: Final = Order()


class ListFit(NamedTuple):
    """How well a list of PCs, or a buffer in an unknown mode, fits a kernel."""

    points: int
    """Records that are coverage points."""
    judged: int
    """Records in code whose points are known."""
    remark: str
    """The result in words; it is among the buffer's remarks if :attr:`is_low`."""
    hint: str | None = None
    """The option that makes it fit better."""

    @property
    def is_low(self) -> bool:
        """Whether fewer than half are points: the build or the convention is another one."""
        return self.points * 2 < self.judged


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """One buffer, read once. Buffers are equal only if they are identical."""

    name: str
    """The user's name of it: ``41``, ``file:PATH``."""
    encoding: Encoding
    words: array[int] = field(repr=False)
    """The words of all records, as stored; typecode Q or I. They must not be changed."""
    count: int
    """Records in ``words``: the stored count, clamped to the capacity and to the records that could
    be read.
    """
    stored_count: int | None = None
    """The count word, which user space can write. It counts words if records differ in length. None
    if it is unreadable, or the format has none.
    """
    capacity: int | None = None
    """Capacity in records, or in words if records differ in length; None if the size of the buffer
    is unknown.
    """
    address: int | None = None
    size: int | None = None
    """Size in kernel words."""
    mode: str | None = None
    pid: int | None = None
    comm: str | None = None
    kcov: int | None = None
    """The ``struct kcov`` that owns the buffer, or for which a section collects."""
    kaslr_offset: int = 0
    """Add it to a recorded PC for the address in the running kernel."""
    build_id: str | None = None
    """Build ID of the kernel that recorded a trace, hexadecimal, from its side file."""
    live: bool = False
    private: bool = False
    """Whether user space cannot write it: the area of a section."""
    has_doubtful_format: bool = False
    """Whether the format is a guess, because a bit beside the mode is unknown."""
    bits_set: int | None = None
    """Number of bits set, if the buffer has or is a bitmap."""
    gaps: tuple[Gap, ...] = ()
    """The incomplete records, ascending; neighbors are one gap."""
    is_open: bool = False
    """Whether it was read from the memory of a kernel: its task may be inside a system call that
    has not recorded everything yet.
    """
    was_full: bool = False
    """Whether a buffer that was merged into it was full, so that records may have been dropped."""
    is_incomplete: bool = False
    """Whether records are missing, or may be missing because the count could not be read."""
    remarks: tuple[str, ...] = ()
    """Lines for the reader: the count was clamped, the buffer is full, pages are missing."""
    listed_code: array[int] | None = field(default=None, repr=False)
    """For a list of executed addresses, the addresses of all instructions that may have been
    executed; None if these are unknown.
    """
    order: Order = IN_ORDER
    fit: ListFit | None = None
    """None for a buffer in a kernel's memory, or if the points are unknown."""
    file_words: array[int] | None = field(default=None, repr=False)
    """The records as in a file of PCs; None for another buffer, or for a selection of records."""
    second: Buffer | None = field(default=None, repr=False)
    """The second buffer of an object that writes both at once."""

    @property
    def full(self) -> bool | None:
        """Whether no further record fits, so that records may have been dropped; None if that is
        unknown.
        """
        if self.capacity is None:
            return None
        if self.encoding.codec.is_variable:
            return len(self.words) + self.encoding.codec.least_words > self.capacity
        return self.count >= self.capacity

    def with_remarks(self, *remarks: str, **changes: Any) -> Buffer:
        """Return the buffer with further remarks before its own, and with changed values."""
        return replace(self, remarks=(*remarks, *self.remarks), **changes)

    @property
    def pc_words(self) -> Sequence[int]:
        """The address word of each whole record, as stored."""
        return pc_words(self.words, self.encoding)

    def decode(self, index: int) -> Record:
        """Return a record.

        :raises IndexError: if there is no such record.
        """
        return decode_record(self.words, index, self.encoding)

    @property
    def missing(self) -> frozenset[int]:
        """The indexes of the records that could not be read."""
        return frozenset(
            index for gap in self.gaps for index in range(gap.first, gap.first + gap.length)
        )
