# SPDX-License-Identifier: LGPL-2.1-or-later
"""Buffers kept in memory, compressed."""

from __future__ import annotations

import zlib
from array import array
from dataclasses import dataclass, replace
from typing import Final

from kcovdbg.model.buffer import Buffer
from kcovdbg.records.pc_counts import distinct_words

# The fastest: traces repeat themselves, so that higher levels save little.
_COMPRESSION: Final = 1


@dataclass(frozen=True, slots=True)
class Kept:
    """A buffer in compressed form."""

    empty: Buffer
    """The buffer without its words."""
    source: str
    """Name of the buffer that was kept."""
    distinct: int
    """Number of distinct address words."""
    data: bytes
    """The words, compressed."""


def keep(buffer: Buffer, name: str, source: str) -> Kept:
    """Return the compressed form of a buffer.

    :param name: ``@name``.
    :param source: the name of the buffer that is kept.
    """
    empty = replace(
        buffer, name=name, words=array(buffer.words.typecode), live=False, file_words=None
    )
    return Kept(
        empty, source, len(distinct_words(buffer)), zlib.compress(buffer.words, _COMPRESSION)
    )


def restore(kept: Kept) -> Buffer:
    """Return the buffer as it was kept."""
    words = array(kept.empty.words.typecode)
    words.frombytes(zlib.decompress(kept.data))
    return replace(kept.empty, words=words)
