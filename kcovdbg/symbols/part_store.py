# SPDX-License-Identifier: LGPL-2.1-or-later
"""The finished parts of a location table that is being built: an interrupted build resumes with them.

Each part is a file in a directory beside the table. Its name has its number and the number of parts, so that others
see how far the build is. It holds the chain of each of its addresses, and the chains.
"""

from __future__ import annotations

import os
import shutil
import struct
import sys
import zlib
from array import array
from pathlib import Path
from typing import Final, NamedTuple

from kcovdbg.symbols.numbered_locations import LocationArrays

_MAGIC: Final = b"KCOVPRT2" if sys.byteorder == "little" else b"2TRPVOCK"
# Magic, checksum of the addresses, checksum of what follows, sizes of the arrays in bytes.
_HEADER: Final = struct.Struct("<8sII5Q")


class LocatedPart(NamedTuple):
    """Some addresses, located."""

    chains: array[int]
    """The location of each address, by its number; ``0xffffffff`` where it could not be looked for."""
    locations: LocationArrays


class Progress(NamedTuple):
    """How far a build is."""

    done: int
    total: int


class PartStore:
    """The parts of one table.

    :param table: path of the table.
    """

    def __init__(self, table: Path) -> None:
        self._folder = table.with_name(f"{table.name}.parts")

    def _path(self, number: int, total: int) -> Path:
        return self._folder / f"{number}-of-{total}"

    def load(self, number: int, total: int, addresses: array[int]) -> LocatedPart | None:
        """Return a part if it is there, whole, and of these addresses."""
        try:
            data = self._path(number, total).read_bytes()
        except OSError:
            return None
        if len(data) < _HEADER.size:
            return None
        magic, of, checksum, *sizes = _HEADER.unpack_from(data)
        body = data[_HEADER.size :]
        if magic != _MAGIC or of != zlib.crc32(addresses) or checksum != zlib.crc32(body) or sum(sizes) != len(body):
            return None
        if sizes[0] != 4 * len(addresses):
            return None
        columns, at = [], 0
        for size in sizes[:4]:
            column = array("I")
            column.frombytes(body[at : at + size])
            columns.append(column)
            at += size
        chains, frames, ends, numbers = columns
        return LocatedPart(chains, LocationArrays(body[at:], frames, ends, numbers))

    def save(self, number: int, total: int, addresses: array[int], part: LocatedPart) -> None:
        """Keep a part.

        :raises OSError: when it cannot be written.
        """
        locations = part.locations
        columns = (part.chains, locations.frames, locations.chain_ends, locations.chain_frames)
        parts = [*(column.tobytes() for column in columns), locations.text]
        body = b"".join(parts)
        header = _HEADER.pack(_MAGIC, zlib.crc32(addresses), zlib.crc32(body), *map(len, parts))
        self._folder.mkdir(parents=True, exist_ok=True)
        # Neither atomic nor durable: an incomplete part is made again.
        self._path(number, total).write_bytes(header + body)

    def progress(self) -> Progress | None:
        """Return how far the build is, None before its first part."""
        try:
            names = [entry.name.split("-of-") for entry in os.scandir(self._folder)]
        except OSError:
            return None
        totals = [int(name[1]) for name in names if len(name) == 2 and name[1].isdigit()]
        return Progress(totals.count(max(totals)), max(totals)) if totals else None

    def remove(self) -> None:
        """Remove all parts."""
        shutil.rmtree(self._folder, ignore_errors=True)
