# SPDX-License-Identifier: LGPL-2.1-or-later
"""The formats of compressed files that are read as they are: gzip, xz and zstd."""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from kcovdbg.errors import CapabilityError

# Bytes that the decompressor of xz may take; xz -9 needs 65 MiB.
_XZ_MEMORY: Final = 1 << 28


class Packing(NamedTuple):
    """One format."""

    magic: bytes
    program: str
    start: Callable[[], Any]
    """Returns what decompresses one frame; a file may have several. May raise CapabilityError."""


def _start_zstd() -> Any:
    try:
        # In the standard library since Python 3.14.
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]

        return zstd.ZstdDecompressor()
    except ImportError:
        pass
    try:
        import zstandard
    except ImportError:
        raise CapabilityError(
            "this Python has no zstd", hint="pip install zstandard, or decompress it first: zstd -d"
        ) from None
    return zstandard.ZstdDecompressor().decompressobj()


_PACKINGS: Final = (
    Packing(b"\x1f\x8b\x08", "gzip", lambda: zlib.decompressobj(16 + zlib.MAX_WBITS)),
    Packing(b"\xfd7zXZ\0", "xz", lambda: lzma.LZMADecompressor(memlimit=_XZ_MEMORY)),
    Packing(b"\x28\xb5\x2f\xfd", "zstd", _start_zstd),
)
MAGICS: Final = tuple(packing.magic for packing in _PACKINGS)


def find_packing(start: bytes) -> Packing | None:
    """Return the format of a file by its first bytes, None where it is not compressed in one of them."""
    return next((packing for packing in _PACKINGS if start.startswith(packing.magic)), None)
