# SPDX-License-Identifier: LGPL-2.1-or-later
"""The hash maps of the January 2025 series: what an object has recorded already, in ``kcov->map`` and ``kcov->map_edge``.

A map has 32768 buckets of ``struct kcov_entry``, which come from a pool over memory of its own, and the buffer that they are
recorded in (kcov-abi.md 5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from kcovdbg.abi import record
from kcovdbg.abi.record import RecordFormat
from kcovdbg.errors import ReadError
from kcovdbg.target import Target
from kcovdbg.walk.block import BlockLayout
from kcovdbg.walk.chain import follow_chain
from kcovdbg.walk.layout import KCOV
from kcovdbg.walk.pointer import check_pointer, read_word

MAP: Final = "struct kcov_map"
ENTRY: Final = "struct kcov_entry"
MEMBERS: Final = ("map", "map_edge")
"""Of an object: for addresses and comparisons, and for edges."""
# Without comparisons an entry is only an address.
_ENTRY_FIELDS: Final = {"ent": ("ent",), "type": ("type",), "arg1": ("arg1",), "arg2": ("arg2",)}


@dataclass(frozen=True, slots=True)
class KcovMap:
    """``struct kcov_map`` without its buckets."""

    address: int
    pool: int
    """``struct gen_pool *``."""
    mem: int
    """Memory of the entries."""
    area: int
    """The buffer."""
    chunk: int
    """Bytes that an entry takes of ``mem``."""


class MapEntry(NamedTuple):
    """``struct kcov_entry``."""

    address: int
    ent: int
    """The word that the record has: an address or an edge."""
    comparison: tuple[int, int, int]
    """The record's type, arg1 and arg2; zeros in what isn't one."""


def read_map(target: Target, kcov: int, member: str) -> KcovMap | None:
    """Read one of an object's maps.

    :param kcov: ``struct kcov *``.
    :param member: one of ``MEMBERS``.
    :return: None where the object has none.
    :raises ReadError: when it can't be read.
    :raises MissingTypeError: when the debug info lacks it.
    """
    address = read_word(target, kcov + target.member(KCOV, member).offset)
    if not address:
        return None
    check_pointer(target, address, MAP)
    pool, mem, area = (read_word(target, address + target.member(MAP, name).offset) for name in ("pool", "mem", "area"))
    return KcovMap(address, pool, mem, area, _find_chunk(target))


def _find_chunk(target: Target) -> int:
    """Return what an entry takes: the pool counts in powers of two."""
    return 1 << (target.type_size(ENTRY) - 1).bit_length()


class MapEntries(NamedTuple):
    """What is in a map."""

    entries: tuple[MapEntry, ...]
    """By bucket, as far as they could be followed."""
    problem: str | None = None
    """Why these aren't all: a chain that is broken."""
    is_absent: bool = False
    """Whether memory that should be an entry's can't be read, which is no damage of the map."""


def read_entries(target: Target, found: KcovMap, words: int) -> MapEntries:
    """Read a map's entries.

    :param words: the object's size: the map's memory has room for as many entries.
    :raises ReadError: when the buckets can't be read.
    :raises MissingTypeError: when the debug info lacks the structures.
    """
    buckets = target.member(MAP, "buckets")
    node = target.member(ENTRY, "node").offset
    fields = BlockLayout(target, ENTRY, {**_ENTRY_FIELDS, "next": ("node.next",)})
    encoding = record.make_encoding(RecordFormat.PC, target.word_size, target.big_endian)
    heads = record.decode_words(target.read(found.address + buckets.offset, buckets.size), encoding)
    end = found.mem + words * found.chunk
    absent = False

    def read_entry(link: int, before: int) -> tuple[MapEntry, int | None]:
        nonlocal absent
        address = link - node
        if not found.mem <= address < end or (address - found.mem) % found.chunk:
            led = f"{before:#x} leads to" if before else "a bucket leads to"
            raise ReadError(f"{led} {address:#x}, which is no piece of its memory", address)
        try:
            ent, kind, arg1, arg2, following = fields.read(target, address)
        except ReadError:
            absent = True
            raise
        return MapEntry(address, ent, (kind or 0, arg1 or 0, arg2 or 0)), following

    entries: list[MapEntry] = []
    for head in filter(None, heads):
        chain = follow_chain(head, 0, read_entry, words - len(entries))
        while True:
            try:
                entries.append(next(chain))
            except StopIteration as stop:
                if stop.value is not None:
                    return MapEntries(tuple(entries), stop.value, absent)
                break
    return MapEntries(tuple(entries))
