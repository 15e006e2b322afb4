# SPDX-License-Identifier: LGPL-2.1-or-later
"""Traces made by hand, with names, for tests of commands on buffers."""

import json
import struct
from array import array
from typing import TYPE_CHECKING

from kcovdbg.abi import record
from kcovdbg.abi.record import PC
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.location import Frame, Location
from kcovdbg.records.pc_locations import LocationCache
from kcovdbg.records.side_file import side_path

if TYPE_CHECKING:
    WordArray = array[int]
else:
    # Subscriptable only since Python 3.12.
    WordArray = array

BASE = 0xFFFFFFFF81000000
SIZE = 0x100


def pc(function, point=0):
    """Return a PC: functions are 256 bytes long and have a point each 16 bytes."""
    return BASE + function * SIZE + 16 * point + 5


def locate(pcs):
    """Name PCs: function N is fn_N of file dir/file_(N/10).c; every third point is inlined."""
    found = []
    for value in pcs:
        number, rest = divmod(value - BASE, SIZE)
        if not 0 <= number < 10000:
            found.append(Location(value, (), "no kernel text"))
            continue
        outer = Frame(f"fn_{number}", f"dir/file_{number // 10}.c", 100 + rest // 16, 1)
        inner = (
            (Frame(f"helper_{number}", "include/helper.h", rest // 16 + 1, 2),)
            if rest // 16 % 3 == 2
            else ()
        )
        found.append(Location(value, (*inner, outer)))
    return found


def names():
    return LocationCache(locate)


class CountingWords(WordArray):
    """Words that count how often one of them is read."""

    touched = 0

    def __getitem__(self, index):
        CountingWords.touched += (
            len(range(*index.indices(len(self)))) if isinstance(index, slice) else 1
        )
        return super().__getitem__(index)


def make_buffer(words, name="41", codec=PC, *, word_size=8, cls=array, **values):
    encoding = record.make_encoding(codec, word_size)
    stored = cls(encoding.typecode, words)
    count = values.pop("count", len(stored) // encoding.record_words)
    return Buffer(name, encoding, stored, count, **values)


def write_words(path, words, width=1):
    """Write a trace file without a side file; return its name as a buffer."""
    path.write_bytes(struct.pack(f"<{len(words) + 1}Q", len(words) // width, *words))
    return f"file:{path}"


def write_trace(path, words, mode="TRACE_PC", **header):
    """Write a trace file with its side file; return its name as a buffer."""
    write_words(path, words, 4 if "CMP" in mode else 1)
    side = {
        "format": 1,
        "mode": mode,
        "word_size": 8,
        "byteorder": "little",
        "size": len(words) + 100,
        **header,
    }
    side_path(path).write_text(json.dumps(side))
    return f"file:{path}"
