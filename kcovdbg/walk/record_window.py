# SPDX-License-Identifier: LGPL-2.1-or-later
"""A few records of a buffer, for samples of a kernel that runs: one read, whatever the length of the buffer."""

from __future__ import annotations

from typing import NamedTuple

from kcovdbg.abi import record
from kcovdbg.model.state import StateSource
from kcovdbg.target.protocol import Target
from kcovdbg.walk.buffer_names import find_place
from kcovdbg.walk.buffers import find_encoding
from kcovdbg.walk.layout import Layout


class RecordWindow(NamedTuple):
    """The PCs of some records that follow each other."""

    pcs: tuple[int, ...]
    """Minus the KASLR offset; records without a PC are left out."""
    records: int
    """Number of records read."""


def read_window(target: Target, layout: Layout, source: StateSource, name: str, first: int, most: int) -> RecordWindow:
    """Read some records of a buffer.

    :param name: of the buffer.
    :param first: the index of the first record.
    :param most: how many to read.
    :raises KcovdbgError: when there is no such buffer, or they cannot be read.
    """
    place = find_place(target, layout, source, name)
    encoding, _ = find_encoding(target, layout, place)
    if encoding.codec.is_variable or place.doubt is not None or most <= 0:
        return RecordWindow((), 0)
    start = place.address + encoding.records_offset + first * encoding.record_size
    words = record.decode_words(target.read(start, most * encoding.record_size), encoding)
    addresses = record.pc_words(words, encoding)
    pcs = record.pcs_of_words(set(addresses), encoding)
    return RecordWindow(tuple(pcs[word] for word in addresses if word in pcs), most)
