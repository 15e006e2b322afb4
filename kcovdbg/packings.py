# SPDX-License-Identifier: LGPL-2.1-or-later
"""The formats of compressed files that are read as they are (gzip, xz and zstd), and the contents of such trace files."""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Callable
from io import BytesIO
from typing import Any, Final, NamedTuple

from kcovdbg.errors import CapabilityError, KcovdbgError
from kcovdbg.limits import TRACE_SIZE, find_limit, over_limit

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


# Bytes that are unpacked at a time: at most 32 MiB come out of them.
_PIECE: Final = 1024


class UnpackedData(NamedTuple):
    """The contents of a file."""

    data: bytes
    packing: str | None
    """The program that compressed them; None where the file is not compressed."""


def unpack_data(path: object, data: bytes) -> UnpackedData:
    """Return the contents of a file, decompressed if they are compressed with gzip, xz or zstd.

    :param path: of the file, for errors.
    :raises KcovdbgError: when they are damaged, or larger than the limit.
    """
    packing = find_packing(data)
    if packing is None:
        return UnpackedData(data, None)
    limit = find_limit(TRACE_SIZE)
    try:
        unpacked = _unpack(packing, data, limit)
    except CapabilityError as error:
        raise CapabilityError(f"{path}: {error}", hint=error.hint) from None
    except Exception as error:  # noqa: BLE001 - each module has its own exceptions
        raise KcovdbgError(f"{path}: {packing.program} data is damaged: {error}", hint="copy it again") from None
    if unpacked is None:
        raise over_limit(TRACE_SIZE, f"{path} unpacked")
    return UnpackedData(unpacked, packing.program)


def _unpack(packing: Packing, data: bytes, limit: int) -> bytes | None:
    """Return what data unpacks to; None where that is more than the limit."""
    # Its value is no copy.
    unpacked = BytesIO()
    frame = packing.start()
    at = 0
    while at < len(data):
        unpacked.write(frame.decompress(data[at : at + _PIECE]))
        at = min(at + _PIECE, len(data))
        if unpacked.tell() > limit:
            return None
        if frame.eof:
            at -= len(frame.unused_data)
            if not data.startswith(packing.magic, at):
                # Padding.
                return unpacked.getvalue()
            frame = packing.start()
    raise EOFError("it ends early")
