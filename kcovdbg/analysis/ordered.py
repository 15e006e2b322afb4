# SPDX-License-Identifier: LGPL-2.1-or-later
"""An ordered trace kept small: its distinct PCs, and its records as compressed numbers of these.

A trace of 65 thousand records takes some KiB that way instead of half a MiB.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kcovdbg.analysis.hot import Numbering, Words

_ZSTD_LEVEL: Final = 1
_ZLIB_LEVEL: Final = 6


def _find_zstd() -> tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]] | None:
    if sys.version_info >= (3, 14):
        from compression import zstd

        return (lambda data: zstd.compress(data, _ZSTD_LEVEL)), zstd.decompress
    try:
        import zstandard
    except ImportError:
        return None
    # One of each: making them costs more than a small trace does.
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress, zstandard.ZstdDecompressor().decompress


_ZSTD: Final = _find_zstd()


@dataclass(frozen=True, slots=True)
class OrderedTrace:
    """A trace in order, compressed."""

    pcs: array[int]
    """The distinct PCs, ascending."""
    count: int
    """Records."""
    _data: bytes
    _id_size: int
    _is_zstd: bool

    def ids(self) -> array[int]:
        """Return the place of each record's PC in :attr:`pcs`."""
        data = _ZSTD[1](self._data) if self._is_zstd and _ZSTD is not None else zlib.decompress(self._data)
        ids = array("H" if self._id_size == 2 else "I")
        ids.frombytes(data)
        return ids if self._id_size == 4 else array("I", ids)

    def records(self) -> array[int]:
        """Return the PCs in order."""
        pcs = self.pcs
        return array("Q", [pcs[index] for index in self.ids()])

    def nbytes(self) -> int:
        """Return the memory held, in bytes."""
        return len(self._data) + self.pcs.itemsize * len(self.pcs)


def compress_trace(words: Words, numbering: Numbering) -> OrderedTrace:
    """Compress a buffer's PCs.

    :param numbering: of the kernel that recorded it; its numbers change.
    """
    pcs = numbering.number(words)
    ids = numbering.ids(words)
    id_size = 4
    if len(pcs) <= 1 << 16:
        # Of each 32-bit number, the half that isn't zero.
        halves = array("H")
        halves.frombytes(memoryview(ids).cast("B"))
        data = halves[1 if sys.byteorder == "big" else 0 :: 2].tobytes()
        id_size = 2
    else:
        data = ids.tobytes()
    packed = zlib.compress(data, _ZLIB_LEVEL) if _ZSTD is None else _ZSTD[0](data)
    return OrderedTrace(pcs, len(ids), packed, id_size, _ZSTD is not None)
