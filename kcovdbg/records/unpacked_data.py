# SPDX-License-Identifier: LGPL-2.1-or-later
"""The contents of compressed trace files, unpacked in memory up to a limit."""

from __future__ import annotations

from io import BytesIO
from typing import Final, NamedTuple

from kcovdbg.errors import CapabilityError, KcovdbgError
from kcovdbg.limits import TRACE_SIZE, find_limit, over_limit
from kcovdbg.packings import Packing, find_packing

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
