# SPDX-License-Identifier: LGPL-2.1-or-later
"""Buffers kept in memory in compact form: all records in their order, in about a hundredth of the size.

Traces repeat themselves. A buffer is kept as its distinct words, ascending, and the number of each record's word among them,
both compressed.
"""

from __future__ import annotations

import functools
import sys
import zlib
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Final, TypeAlias

from kcovdbg.model.buffer import Buffer
from kcovdbg.records.pc_counts import make_numbering, to_array

_Codec: TypeAlias = tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]

# The fastest level of zstd: higher ones save little on these numbers and take ten times as long.
_LEVEL: Final = 1


@dataclass(frozen=True, slots=True)
class Kept:
    """A buffer in compact form."""

    shell: Buffer
    """The buffer without its words."""
    source: str
    """Name of the buffer that was kept."""
    distinct: int
    """Number of distinct words."""
    typecode: str
    """Type of the numbers in ``ids``: ``H`` or ``I``, as in :mod:`array`."""
    dictionary: bytes
    """The distinct words, ascending, as compressed differences."""
    ids: bytes
    """The number of each word among the distinct ones, compressed."""

    @property
    def size(self) -> int:
        """Size of the compressed data in bytes."""
        return len(self.dictionary) + len(self.ids)


@functools.cache
def _codec() -> _Codec:
    """Return the functions that compress and decompress; imported on first use, since few commands keep buffers."""
    zstd: Any
    try:
        # Python has it since 3.14; before, zstandard is a dependency.
        zstd = import_module("compression.zstd")
    except ImportError:
        try:
            zstd = import_module("zstandard")
        except ImportError:
            return (lambda data: zlib.compress(data, _LEVEL)), zlib.decompress
    return (lambda data: bytes(zstd.compress(data, _LEVEL))), zstd.decompress


def keep(buffer: Buffer, name: str, source: str) -> Kept:
    """Return the compact form of a buffer.

    :param name: ``@name``.
    :param source: the name of the buffer that is kept.
    """
    words = to_array(buffer.words)
    numbering = make_numbering(buffer.words)
    distinct = numbering.number(words)
    ids = numbering.ids(words)
    typecode = "I"
    if len(distinct) <= 1 << 16:
        typecode = "H"
        halves = array("H")
        halves.frombytes(memoryview(ids).cast("B"))
        # The lower half of each number; the upper one is zero.
        ids = halves[1 if sys.byteorder == "big" else 0 :: 2]
    compress, _ = _codec()
    shell = replace(buffer, name=name, words=array(buffer.words.typecode), live=False)
    return Kept(shell, source, len(distinct), typecode, compress(encode_ascending(distinct)), compress(ids.tobytes()))


def restore(kept: Kept) -> Buffer:
    """Return the buffer as it was kept."""
    _, decompress = _codec()
    distinct = decode_ascending(decompress(kept.dictionary))
    ids = array(kept.typecode)
    ids.frombytes(decompress(kept.ids))
    return replace(kept.shell, words=array(kept.shell.words.typecode, map(distinct.__getitem__, ids)))


def encode_ascending(values: Iterable[int]) -> bytes:
    """Encode ascending numbers as differences in LEB128: seven bits per byte, lowest first."""
    data = bytearray()
    previous = 0
    for value in values:
        difference = value - previous
        previous = value
        while difference > 0x7F:
            data.append(difference & 0x7F | 0x80)
            difference >>= 7
        data.append(difference)
    return bytes(data)


def decode_ascending(data: bytes) -> array[int]:
    """Decode the output of :func:`encode_ascending`."""
    values = array("Q")
    value = difference = shift = 0
    for byte in data:
        difference |= (byte & 0x7F) << shift
        if byte & 0x80:
            shift += 7
        else:
            value += difference
            values.append(value)
            difference = shift = 0
    return values
