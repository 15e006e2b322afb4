# SPDX-License-Identifier: LGPL-2.1-or-later
"""Buffers kept in memory: their order too, in a hundredth of their size.

A trace repeats itself: it is kept as the list of its distinct words, ascending, and the place in it of each record, both
compressed. The list alone is what sets are made of.
"""

from __future__ import annotations

import functools
import sys
import zlib
from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Final, TypeAlias

from kcovdbg.analysis.counting import as_words, make_numbering
from kcovdbg.model.buffer import Buffer

_Codec: TypeAlias = tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]

# zstd's fastest level: higher ones gain little on ids, and cost ten times as much.
_LEVEL: Final = 1


@dataclass(frozen=True, slots=True)
class Kept:
    """A buffer without its words, and these in a short form."""

    shell: Buffer
    """The buffer, with no words in it."""
    source: str
    """What it was when it was kept."""
    distinct: int
    """How many distinct words there are."""
    typecode: str
    """Of the ids: H or I."""
    dictionary: bytes
    """The distinct words, ascending, as differences."""
    ids: bytes

    @property
    def size(self) -> int:
        """Bytes held."""
        return len(self.dictionary) + len(self.ids)


@functools.cache
def _codec() -> _Codec:
    """Return what compresses and what decompresses; found when first kept, as commands that keep nothing needn't pay for it."""
    zstd: Any
    try:
        # In Python since 3.14; what pyproject.toml asks for before.
        zstd = import_module("compression.zstd")
    except ImportError:
        try:
            zstd = import_module("zstandard")
        except ImportError:
            return (lambda data: zlib.compress(data, _LEVEL)), zlib.decompress
    return (lambda data: bytes(zstd.compress(data, _LEVEL))), zstd.decompress


def keep(buffer: Buffer, name: str, source: str) -> Kept:
    """Put a buffer into its short form.

    :param name: ``@name``.
    :param source: the buffer's name until now.
    """
    words = as_words(buffer.words)
    numbering = make_numbering(buffer.words)
    distinct = numbering.number(words)
    ids = numbering.ids(words)
    typecode = "I"
    if len(distinct) <= 1 << 16:
        typecode = "H"
        halves = array("H")
        halves.frombytes(memoryview(ids).cast("B"))
        # Of each, the half that isn't zero.
        ids = halves[1 if sys.byteorder == "big" else 0 :: 2]
    compress, _ = _codec()
    shell = replace(buffer, name=name, words=array(buffer.words.typecode), live=False)
    return Kept(shell, source, len(distinct), typecode, compress(encode_ascending(distinct)), compress(ids.tobytes()))


def restore(kept: Kept) -> Buffer:
    """Make the buffer again, word for word."""
    _, decompress = _codec()
    distinct = decode_ascending(decompress(kept.dictionary))
    ids = array(kept.typecode)
    ids.frombytes(decompress(kept.ids))
    return replace(kept.shell, words=array(kept.shell.words.typecode, map(distinct.__getitem__, ids)))


def encode_ascending(values: Any) -> bytes:
    """Write ascending numbers as their differences, seven bits a byte, the lowest first (LEB128)."""
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
    """Read what :func:`encode_ascending` wrote."""
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
