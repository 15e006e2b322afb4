# SPDX-License-Identifier: LGPL-2.1-or-later
"""C declarations laid out as a compiler does, so that a row's structures can be written as the
kernel's source has them.
"""

import re

from kcovdbg.target.target import Member
from tests.support.memory_target import Structure

_BLOCK = re.compile(r"([\w ]+?)\s*\{(.*?)\}\s*;", re.DOTALL)
_MEMBER = re.compile(
    r"(?P<type>[\w ]+?)\s*(?P<stars>\**)\s*\b(?P<name>\w+)\s*(?:\[(?P<length>\d+)\])?\s*(?::\s*(?P<bits>\d+))?"
)
_SIZES = {
    "char": 1,
    "bool": 1,
    "_Bool": 1,
    "int": 4,
    "unsigned int": 4,
    "unsigned": 4,
    "u32": 4,
    "u64": 8,
    "s64": 8,
}
_SIGNED = {"int", "s64", "long"}


class Declarations:
    """Types by name.

    :param word: bytes of a pointer.
    """

    def __init__(self, word=8, big_endian=False):
        self.word, self.big_endian = word, big_endian
        self.types = {}
        self._alignments = {}

    def declare(self, text):
        """Lay out each ``NAME { members };`` of the text."""
        for name, body in _BLOCK.findall(text):
            members = [piece.strip() for piece in body.split(";") if piece.strip()]
            self.types[name.strip()], self._alignments[name.strip()] = self._lay_out(members)
        return self

    def _size(self, type_name, stars):
        if stars or type_name in ("long", "unsigned long"):
            return self.word, self.word
        if type_name in self.types:
            return self.types[type_name].size, self._alignments[type_name]
        size = 4 if type_name.startswith("enum ") else _SIZES[type_name]
        return size, size

    def _lay_out(self, declared):
        members, offset, most, bits = {}, 0, 1, 0
        for text in declared:
            match = _MEMBER.fullmatch(text)
            assert match, text
            type_name = match["type"].removeprefix("const ").strip()
            size, alignment = self._size(type_name, match["stars"])
            if (
                not match["stars"]
                and type_name.startswith("struct ")
                and type_name not in self.types
            ):
                raise ValueError(f"{type_name} isn't declared")
            most = max(most, alignment)
            full_name = f"{type_name} {match['stars']}" if match["stars"] else type_name
            if match["bits"]:
                width = int(match["bits"])
                if not bits or bits + width > 8 * size:
                    offset += -offset % alignment
                    unit, bits = offset, 0
                    offset += size
                low = 8 * size - bits - width if self.big_endian else bits
                members[match["name"]] = Member(
                    unit, size, full_name, bit_offset=low, bit_size=width
                )
                bits += width
                continue
            bits = 0
            length = int(match["length"]) if match["length"] else None
            offset += -offset % alignment
            whole = size * (1 if length is None else length)
            members[match["name"]] = Member(offset, whole, full_name, full_name in _SIGNED, length)
            offset += whole
        return Structure(offset + -offset % most, members), most
