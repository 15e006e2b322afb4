# SPDX-License-Identifier: LGPL-2.1-or-later
"""Page tables in memory, for tests of what walks them."""

import struct

from kcovdbg.errors import ReadError


class TableMemory:
    """Physical memory that page tables are written into; pages that nothing was written to are not
    there.

    :param root: where the highest table is.
    :param free: where further tables are made.
    :param levels: of tables.
    :param encode: makes an entry of an address, the level of what is mapped (None: a table), and
        what else ``map`` is given.
    :param bits: of virtual addresses.
    """

    def __init__(self, root, free, levels, encode, *, granule=12, bits=64):
        self.root, self.levels, self.granule = root, levels, granule
        self._free, self._encode, self._bits = free, encode, bits
        self.pages = {}
        self._tables = {}
        self.write(root, bytes(1 << granule))

    def read(self, address, size):
        found = b""
        while len(found) < size:
            at = address + len(found)
            if at & -4096 not in self.pages:
                raise ReadError(hex(at), at)
            found += self.pages[at & -4096][at & 4095 :]
        return found[:size]

    def write(self, address, data):
        for start in range(address & -4096, address + len(data), 4096):
            page = self.pages.setdefault(start, bytearray(4096))
            first = max(start, address)
            piece = data[first - address : start + 4096 - address]
            page[first - start : first - start + len(piece)] = piece

    def map(self, virtual, physical, level=0, **more):
        """Map a page, or at a higher level a block."""
        table = self.root
        for depth in range(self.levels - 1, level - 1, -1):
            shift = self.granule + (self.granule - 3) * depth
            entries = 1 << min(self.granule - 3, self._bits - shift)
            place = table + 8 * (virtual >> shift & entries - 1)
            if depth == level:
                self.write(place, struct.pack("<Q", self._encode(physical, level, **more)))
            elif place not in self._tables:
                self._tables[place] = self._free
                self.write(self._free, bytes(1 << self.granule))
                self.write(place, struct.pack("<Q", self._encode(self._free, None)))
                self._free += 1 << self.granule
            table = self._tables.get(place)
