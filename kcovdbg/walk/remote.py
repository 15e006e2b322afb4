# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcov_remote_map`` and ``kcov_remote_areas``: remote handles, free areas, and the links of both for checking them.

While an area is on a list its first bytes are a ``struct kcov_remote_area``; while it is in use they are the count word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeVar

from kcovdbg.abi.generations import Feature
from kcovdbg.abi.handle import find_bucket
from kcovdbg.errors import MissingSymbolError, MissingTypeError, PointerError, ReadError
from kcovdbg.model.memory import ListLink
from kcovdbg.model.remote import IRQ_LIST, TASK_LIST, CachedArea
from kcovdbg.model.state import Reading, Source
from kcovdbg.target.pointer import Links, check_pointer, finish, follow_list, read_links, read_pointer, strip_tag
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
    """The hash, as far as it could be read."""

    buckets: int = 0
    entries: tuple[RemoteEntry, ...] = ()
    links: tuple[ListLink, ...] = ()
    """Of its chains; ``hlist_node.pprev`` is the address of the pointer to the node."""


def read_remote_map(target: Target, layout: Layout) -> Reading[RemoteMap]:
    """Read the hash of remote handles.

    ``DEFINE_HASHTABLE(kcov_remote_map, 4)``, since Linux kernel commit eec028c9386e ("kcov: remote coverage support") (v5.5).
    """

    def lacks(remark: str, buckets: int = 0) -> Reading[RemoteMap]:
        return Reading(RemoteMap(buckets), {Source.REMOTE: (remark,)})

    if not layout.generation.has(Feature.REMOTE):
        return lacks(f"this kernel's KCOV ({layout.generation.era}) has no remote handles")
    remote = layout.remote
    if remote is None:
        return lacks(f"the debug info has no {REMOTE}: handles could not be read")
    try:
        table = target.symbol("kcov_remote_map").address
        _, length = target.variable_type("kcov_remote_map")
        node = remote.offset("next")
    except (MissingSymbolError, MissingTypeError) as error:
        return lacks(f"handles could not be found: {error}")
    buckets, word = length or _DEFAULT_BUCKETS, target.word_size
    order = "big" if target.big_endian else "little"
    try:
        heads = target.read(table, buckets * word)
    except ReadError as error:
        return lacks(f"kcov_remote_map could not be read: {error}", buckets)

    entries: list[RemoteEntry] = []
    links: list[ListLink] = []
    for bucket in range(buckets):
        offset = bucket * word
        first = strip_tag(target, int.from_bytes(heads[offset : offset + word], order))  # type: ignore[arg-type]

        def read_entry(link: int, before: int, bucket: int = bucket) -> tuple[RemoteEntry, Links]:
            address = link - node
            check_pointer(target, address, REMOTE)
            handle, kcov, following, back = remote.read(target, address)
            # An entry in the wrong bucket is shown, and so is one with a damaged link back; one with both is not an entry.
            is_linked = target.live or back in (None, before)
            if not is_linked and (handle is None or find_bucket(handle, buckets.bit_length() - 1, word) != bucket):
                raise ReadError(f"{address:#x}, which {before:#x} leads to, is not an entry of it", address)
            return RemoteEntry(address, handle, kcov, bucket), Links(following, back)

        limit = min(MAX_CHAIN, MAX_ENTRIES - len(entries))
        for link, entry in _follow(f"bucket {bucket}", first, (table + offset, 0), node, read_entry, limit):
            links.append(link)
            entries += () if entry is None else (entry,)
    broken = tuple(f"{link.list} of kcov_remote_map is broken: {link.problem}" for link in links if link.problem is not None)
    return Reading(RemoteMap(buckets, tuple(entries), tuple(links)), {Source.REMOTE: broken})


# The cache is never trimmed, but there is an area for each section that ran at once, and each takes at least a page.
MAX_AREAS: Final = 1 << 16
"""Areas on a list; one with more is damaged."""


class _AreaLists(NamedTuple):
    """``kcov_remote_areas``: one list, or since August 2026 one for tasks and one for softirqs."""

    heads: tuple[tuple[str, int], ...]
    """Name and address of each."""
    node: int
    """Offset of the links in an area."""
    read: Callable[[int], tuple[tuple[int, int | None], Links]]
    """Returns address and size of the area at a link, and its links."""


def _find_area_lists(target: Target, layout: Layout) -> _AreaLists:
    """Find the lists of free areas.

    :raises MissingTypeError: when the debug info lacks the types.
    :raises MissingSymbolError: when the kernel has no such lists.
    """
    area = layout.area
    if area is None:
        raise MissingTypeError(f"the debug info has no {AREA}")
    start, node = target.symbol("kcov_remote_areas").address, area.offset("next")
    names = (TASK_LIST, IRQ_LIST) if layout.generation.has(Feature.AREA_LISTS) else (TASK_LIST,)

    def read(link: int) -> tuple[tuple[int, int | None], Links]:
        address = link - node
        # Areas are vmalloc areas, so they start with a page.
        check_pointer(target, address, AREA, 4096)
        following, before, size = area.read(target, address)
        return (address, size), Links(following, before)

    return _AreaLists(tuple((name, start + index * 2 * target.word_size) for index, name in enumerate(names)), node, read)


def read_cached_areas(target: Target, layout: Layout) -> Reading[tuple[CachedArea, ...]]:
    """Read the free areas, in the order of the lists."""
    if not layout.generation.has(Feature.REMOTE):
        return Reading((), {Source.AREAS: ()})
    try:
        lists = _find_area_lists(target, layout)
    except (MissingSymbolError, MissingTypeError) as error:
        return Reading((), {Source.AREAS: (f"cached areas could not be found: {error}",)})
    found: list[CachedArea] = []
    remarks: list[str] = []
    for name, head in lists.heads:
        try:
            ends = read_links(target, head)
        except ReadError as error:
            remarks.append(f"the list of {name} areas could not be read: {error}")
            continue
        areas, problem = finish(follow_list(head, ends, lists.read, MAX_AREAS, moving=target.live))
        found += (CachedArea(address, size, name) for address, size in areas)
        remarks += () if problem is None else (f"the list of {name} areas is broken: {problem}",)
    return Reading(tuple(found), {Source.AREAS: tuple(remarks)})


def read_area_links(target: Target, layout: Layout) -> Iterator[ListLink]:
    """Yield the links of the lists of free areas, forwards; the last one of each is that of its head.

    :raises ReadError: when a head could not be read.
    :raises MissingTypeError: when the debug info lacks the types.
    :raises MissingSymbolError: when the kernel has no such lists.
    """
    lists = _find_area_lists(target, layout)
    for name, head in lists.heads:
        last, is_whole = head, True
        first = read_pointer(target, head)
        for link, _ in _follow(name, first, (head, head), lists.node, lambda link, _: lists.read(link), MAX_AREAS):
            last, is_whole = link.address + lists.node, link.problem is None
            yield link
        if is_whole:
            yield ListLink(name, head, read_pointer(target, head + target.word_size), last)


_Element = TypeVar("_Element")


def _follow(
    name: str,
    first: int,
    ends: tuple[int, int],
    node: int,
    read: Callable[[int, int], tuple[_Element, Links]],
    limit: int,
) -> Iterator[tuple[ListLink, _Element | None]]:
    """Yield each link of a list with its element; the last one of a broken list has the problem, and no element.

    :param ends: the link before the first one, and the one that ends the list.
    """
    before, end = ends
    seen: set[int] = set()
    link = first
    while link != end:
        problem, is_missing = None, False
        if link in seen:
            problem = f"it loops back to {link - node:#x}"
        elif len(seen) >= limit:
            problem = f"it has more than {limit} elements"
        else:
            seen.add(link)
            try:
                element, links = read(link, before)
            except ReadError as error:
                problem, is_missing = str(error), not isinstance(error, PointerError)
        if problem is not None:
            yield ListLink(name, link - node, None, before, problem, is_missing), None
            return
        yield ListLink(name, link - node, links.before, before), element
        before, link = link, links.following or 0
