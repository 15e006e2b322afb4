# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcov_remote_map``: the handles that background sections look up."""

from __future__ import annotations

from typing import Final, NamedTuple

from kcovdbg.abi.generations import Feature
from kcovdbg.abi.handle import find_bucket
from kcovdbg.errors import MissingSymbolError, MissingTypeError, ReadError
from kcovdbg.model.area import IRQ_LIST, TASK_LIST, CachedArea
from kcovdbg.target.lists import Links, follow_chain, follow_list
from kcovdbg.target.pointer import check_pointer, read_pointer, strip_tag
from kcovdbg.target.protocol import Target
from kcovdbg.walk.layout import AREA, REMOTE, Layout

# DEFINE_HASHTABLE(kcov_remote_map, 4) in every known version; the symbol's type is used where it is known.
_DEFAULT_BUCKETS: Final = 16
# Each KCOV_REMOTE_ENABLE registers up to 257 handles; and they spread over 16 chains.
MAX_CHAIN: Final = 1 << 16
"""Entries of a chain; one with more is damaged."""
# The handles of 500 owners with as many as they may have: damage may loop every chain.
MAX_ENTRIES: Final = 1 << 17
"""Entries of all chains together."""


class RemoteEntry(NamedTuple):
    """``struct kcov_remote``."""

    address: int
    handle: int | None
    kcov: int | None
    bucket: int


class RemoteMap(NamedTuple):
    """The entries of the hash, and what could not be read of it."""

    buckets: int
    entries: tuple[RemoteEntry, ...]
    remarks: tuple[str, ...]


def read_remote_map(target: Target, layout: Layout) -> RemoteMap:
    """Read the hash of remote handles.

    ``DEFINE_HASHTABLE(kcov_remote_map, 4)``, since Linux kernel commit eec028c9386e ("kcov: remote coverage support") (v5.5).
    """
    if not layout.generation.has(Feature.REMOTE):
        return RemoteMap(0, (), (f"this kernel's KCOV ({layout.generation.era}) has no remote handles",))
    if layout.remote is None:
        return RemoteMap(0, (), (f"the debug info has no {REMOTE}: handles could not be read",))
    try:
        head = target.symbol("kcov_remote_map")
        _, length = target.variable_type("kcov_remote_map")
        link_offset = layout.remote.offset("next")
    except (MissingSymbolError, MissingTypeError) as error:
        return RemoteMap(0, (), (f"handles could not be found: {error}",))
    buckets = length or _DEFAULT_BUCKETS
    word = target.word_size
    order = "big" if target.big_endian else "little"
    try:
        heads = target.read(head.address, buckets * word)
    except ReadError as error:
        return RemoteMap(buckets, (), (f"kcov_remote_map could not be read: {error}",))

    entries: list[RemoteEntry] = []
    remarks: list[str] = []
    remote = layout.remote
    bits = buckets.bit_length() - 1
    for bucket in range(buckets):
        stored = int.from_bytes(heads[bucket * word : (bucket + 1) * word], order)  # type: ignore[arg-type]
        first = strip_tag(target, stored)

        def read_entry(link: int, before: int, bucket: int = bucket) -> tuple[RemoteEntry, int | None]:
            address = link - link_offset
            check_pointer(target, address, REMOTE)
            handle, kcov, following, back = remote.read(target, address)
            # An entry in the wrong bucket is shown, and so is one with a damaged link back; one with both is not an entry.
            if back not in (None, before) and not target.live and (handle is None or find_bucket(handle, bits, word) != bucket):
                raise ReadError(f"{address:#x}, which {before:#x} leads to, is not an entry of it", address)
            return RemoteEntry(address, handle, kcov, bucket), following

        chain = follow_chain(first, 0, read_entry, min(MAX_CHAIN, MAX_ENTRIES - len(entries)), head.address + bucket * word)
        while True:
            try:
                entries.append(next(chain))
            except StopIteration as stop:
                if stop.value is not None:
                    remarks.append(f"bucket {bucket} of kcov_remote_map is broken: {stop.value}")
                break
    return RemoteMap(buckets, tuple(entries), tuple(remarks))


# The cache is never trimmed, but there is an area for each section that ran at once, and each takes at least a page.
MAX_AREAS: Final = 1 << 16
"""Areas on a list; one with more is damaged."""


def read_cached_areas(target: Target, layout: Layout) -> tuple[tuple[CachedArea, ...], tuple[str, ...]]:
    """Read the free areas: ``kcov_remote_areas``, one list, or since August 2026 one for tasks and one for softirqs.

    :return: the areas in the lists' order, and remarks on what could not be read.
    """
    if not layout.generation.has(Feature.REMOTE):
        return (), ()
    if layout.area is None:
        return (), (f"the debug info has no {AREA}: cached areas could not be read",)
    try:
        heads = target.symbol("kcov_remote_areas").address
    except MissingSymbolError as error:
        return (), (f"cached areas could not be found: {error}",)
    names = (TASK_LIST, IRQ_LIST) if layout.generation.has(Feature.AREA_LISTS) else (TASK_LIST,)
    area = layout.area
    try:
        link_offset = area.offset("next")
    except MissingTypeError as error:
        return (), (f"cached areas could not be found: {error}",)

    def read_area(link: int) -> tuple[tuple[int, int | None], Links]:
        address = link - link_offset
        # Areas are vmalloc areas, so they start with a page.
        check_pointer(target, address, AREA, 4096)
        following, before, size = area.read(target, address)
        return (address, size), Links(following, before)

    found: list[CachedArea] = []
    remarks: list[str] = []
    for index, name in enumerate(names):
        head = heads + index * 2 * target.word_size
        try:
            ends = Links(read_pointer(target, head), read_pointer(target, head + target.word_size))
        except ReadError as error:
            remarks.append(f"the list of {name} areas could not be read: {error}")
            continue
        chain = follow_list(head, ends, read_area, MAX_AREAS, moving=target.live)
        while True:
            try:
                address, size = next(chain)
            except StopIteration as stop:
                if stop.value is not None:
                    remarks.append(f"the list of {name} areas is broken: {stop.value}")
                break
            found.append(CachedArea(address, size, name))
    return tuple(found), tuple(remarks)
