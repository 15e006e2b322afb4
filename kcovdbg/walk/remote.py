# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcov_remote_map`` and ``kcov_remote_areas``: remote handles, free areas, and the links of both for checking them.

While an area is on a list its first bytes are a ``struct kcov_remote_area``; while it is in use they are the count word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from kcovdbg.abi.generations import Feature
from kcovdbg.abi.handle import find_bucket
from kcovdbg.errors import MissingSymbolError, MissingTypeError, PointerError, ReadError
from kcovdbg.model.memory import ListLink
from kcovdbg.model.remote import IRQ_LIST, TASK_LIST, CachedArea
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


def read_hash_links(target: Target, layout: Layout) -> Iterator[ListLink]:
    """Yield the links of ``kcov_remote_map``'s chains; ``hlist_node.pprev`` is the address of the pointer to the node.

    :raises ReadError: when the table could not be read.
    :raises MissingTypeError: when the debug info lacks the types.
    :raises MissingSymbolError: when the kernel has no such table.
    """
    remote = layout.remote
    if remote is None:
        raise MissingTypeError(f"the debug info has no {REMOTE}")
    table = target.symbol("kcov_remote_map").address
    _, length = target.variable_type("kcov_remote_map")
    node = remote.offset("next")

    def read(link: int) -> tuple[int, int | None]:
        check_pointer(target, link - node, REMOTE)
        _, _, following, back = remote.read(target, link - node)
        return following or 0, back

    left = MAX_ENTRIES
    for bucket in range(length or _DEFAULT_BUCKETS):
        head = table + bucket * target.word_size
        for link in _follow(f"bucket {bucket}", read_pointer(target, head), head, 0, node, read, min(left, MAX_CHAIN)):
            left -= link.problem is None
            yield link


def read_area_links(target: Target, layout: Layout, names: tuple[str, ...]) -> Iterator[ListLink]:
    """Yield the links of ``kcov_remote_areas``; the last one is that of the head.

    :param names: of the lists.
    :raises ReadError: when a head could not be read.
    :raises MissingTypeError: when the debug info lacks the types.
    :raises MissingSymbolError: when the kernel has no such lists.
    """
    area = layout.area
    if area is None:
        raise MissingTypeError(f"the debug info has no {AREA}")
    heads = target.symbol("kcov_remote_areas").address
    node = area.offset("next")

    def read(link: int) -> tuple[int, int | None]:
        # Areas are vmalloc areas, which start with a page.
        check_pointer(target, link - node, AREA, 4096)
        following, back, _ = area.read(target, link - node)
        return following or 0, back

    for index, name in enumerate(names):
        head = heads + index * 2 * target.word_size
        last = head
        whole = True
        for link in _follow(name, read_pointer(target, head), head, head, node, read, MAX_AREAS):
            last, whole = link.address + node, link.problem is None
            yield link
        if whole:
            yield ListLink(name, head, read_pointer(target, head + target.word_size), last)


def _follow(
    name: str, first: int, before: int, end: int, node: int, read: Callable[[int], tuple[int, int | None]], limit: int
) -> Iterator[ListLink]:
    seen: set[int] = set()
    link = first
    while link != end:
        if link in seen:
            yield ListLink(name, link - node, None, before, f"it loops back to {link - node:#x}")
            return
        if len(seen) >= limit:
            yield ListLink(name, link - node, None, before, f"it has more than {limit} elements")
            return
        seen.add(link)
        try:
            following, back = read(link)
        except ReadError as error:
            yield ListLink(name, link - node, None, before, str(error), is_missing=not isinstance(error, PointerError))
            return
        yield ListLink(name, link - node, back, before)
        before, link = link, following
