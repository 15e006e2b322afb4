# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reads remote handles from ``kcov_remote_map``, free areas from ``kcov_remote_areas``, and the
links of both, which rules check.

The first bytes of a free area are a ``struct kcov_remote_area``; in an area in use, they are the
count word.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from kcovdbg.abi.address import PAGE_SIZE
from kcovdbg.abi.generations import AREA, REMOTE, Feature
from kcovdbg.abi.handle import find_bucket
from kcovdbg.errors import MissingError, MissingTypeError, PointerError, ReadError
from kcovdbg.model.memory import ListLink
from kcovdbg.model.remote import IRQ_LIST, TASK_LIST, Area, RemoteHandle
from kcovdbg.model.state import Reading, Source
from kcovdbg.target.pointer import (
    Links,
    check_pointer,
    finish,
    follow_chain,
    follow_list,
    read_links,
    read_words,
    strip_tag,
)
from kcovdbg.target.struct_layout import BlockLayout
from kcovdbg.target.target import Target
from kcovdbg.walk.layout import Layout

# The number of buckets if the debug info lacks the symbol's type: DEFINE_HASHTABLE(kcov_remote_map,
# 4) in every known version.
_DEFAULT_BUCKETS: Final = 16
# A KCOV_REMOTE_ENABLE registers up to 257 handles, which spread over 16 chains.
MAX_CHAIN: Final = 1 << 16
"""Limit for the entries of a chain; a longer one is damaged."""
# As many handles as 500 owners may have. Damage may loop every chain.
MAX_ENTRIES: Final = 1 << 17
"""Limit for the entries of all chains together."""


class RemoteMap(NamedTuple):
    """The part of a hash of remote handles that could be read."""

    buckets: int = 0
    entries: tuple[RemoteHandle, ...] = ()
    """The entries, without the owners of their objects."""
    links: tuple[ListLink, ...] = ()
    """The links of its chains. A link back, ``hlist_node.pprev``, is the address of the pointer to
    the node.
    """

    def broken(self, name: str) -> tuple[str, ...]:
        """Return a line for each chain that could not be followed to its end."""
        return tuple(
            f"{link.list} of {name} is broken: {link.problem}"
            for link in self.links
            if link.problem is not None
        )


def read_remote_map(target: Target, layout: Layout) -> Reading[RemoteMap]:
    """Read the hash of remote handles.

    ``DEFINE_HASHTABLE(kcov_remote_map, 4)``, since Linux kernel commit eec028c9386e ("kcov: remote
    coverage support") (v5.5).
    """
    found = RemoteMap()
    problems: tuple[str, ...] = ()
    if not layout.generation.has(Feature.REMOTE):
        return Reading.of(Source.REMOTE, found)
    if layout.remote is None:
        problems = (f"the debug info has no {REMOTE}: handles could not be read",)
    else:
        try:
            found = read_hash(target, "kcov_remote_map", layout.remote)
            problems = found.broken("kcov_remote_map")
        except MissingError as error:
            problems = (f"handles could not be found: {error}",)
        except ReadError as error:
            problems = (f"kcov_remote_map could not be read: {error}",)
    return Reading.of(Source.REMOTE, found, problems, is_total=not found.entries)


def read_hash(target: Target, name: str, layout: BlockLayout) -> RemoteMap:
    """Read a hash of remote handles.

    :param name: the hash's symbol.
    :param layout: ``handle``, ``kcov``, ``next`` and ``pprev`` of its entries, in this order.
    :raises MissingSymbolError: when the kernel has no such hash.
    :raises MissingTypeError: when the debug info lacks a type or a member.
    :raises ReadError: when the buckets are unreadable.
    """
    table = target.symbol(name).address
    length = target.array_length(name)
    node = layout.offset("next")
    buckets, word = length or _DEFAULT_BUCKETS, target.word_size
    entries: list[RemoteHandle] = []
    links: list[ListLink] = []
    for bucket, head in enumerate(read_words(target, table, buckets)):
        first = strip_tag(target, head)

        def read_entry(link: int, before: int, bucket: int = bucket) -> tuple[RemoteHandle, Links]:
            address = link - node
            check_pointer(target, address, layout.type_name)
            handle, kcov, following, back = layout.read(target, address)
            # An entry may be in the wrong bucket, or have a damaged link back. If both is so, it is
            # no entry.
            is_linked = target.live or back in (None, before)
            bits = buckets.bit_length() - 1
            if not is_linked and (handle is None or find_bucket(handle, bits, word) != bucket):
                problem = f"{address:#x}, which {before:#x} leads to, is not an entry of it"
                raise ReadError(problem, address)
            return RemoteHandle(address, handle, bucket, kcov, None, None), Links(following, back)

        limit = min(MAX_CHAIN, MAX_ENTRIES - len(entries))
        ends = (table + bucket * word, 0)
        found, of_chain = _follow(f"bucket {bucket}", first, ends, node, read_entry, limit)
        entries += found
        links += of_chain
    if not links and not target.live and _is_in_empty_page(target, table):
        raise ReadError("its page has nothing but zeros, as if the dump had left it out", table)
    return RemoteMap(buckets, tuple(entries), tuple(links))


def _is_in_empty_page(target: Target, address: int) -> bool:
    """Return whether a variable is in a page of zeros. Its neighbors are variables of other parts
    of the kernel.
    """
    try:
        return not any(target.read(address & -PAGE_SIZE, PAGE_SIZE))
    except ReadError:
        return False


# The lists are never trimmed. They have as many areas as sections ever ran at once.
MAX_AREAS: Final = 1 << 16
"""Limit for the areas on a list; a longer one is damaged."""


class AreaLists(NamedTuple):
    """``kcov_remote_areas``: one list, or since August 2026 one for tasks and one for softirqs."""

    areas: tuple[Area, ...] = ()
    """The free areas in the order of the lists."""
    links: tuple[ListLink, ...] = ()
    """The links; the last link of each whole list is the link of its head."""


def read_area_lists(target: Target, layout: Layout) -> Reading[AreaLists]:
    """Read the lists of free areas."""
    if not layout.generation.has(Feature.REMOTE):
        return Reading.of(Source.AREAS, AreaLists())
    area, word = layout.area, target.word_size
    try:
        if area is None:
            raise MissingTypeError(f"the debug info has no {AREA}")
        start, node = target.symbol("kcov_remote_areas").address, area.offset("next")
    except MissingError as error:
        problem = f"cached areas could not be found: {error}"
        return Reading.of(Source.AREAS, AreaLists(), (problem,), is_total=True)
    areas: list[Area] = []
    links: list[ListLink] = []
    remarks: list[str] = []
    names = (TASK_LIST, IRQ_LIST) if layout.generation.has(Feature.AREA_LISTS) else (TASK_LIST,)
    for index, name in enumerate(names):
        head = start + index * 2 * word

        def read_area(link: int, before: int = 0, name: str = name) -> tuple[Area, Links]:
            del before
            # Areas are vmalloc areas, which start at a page.
            check_pointer(target, link - node, AREA, 4096)
            following, back, size = area.read(target, link - node)
            return Area(link - node, size, name, "cached"), Links(following, back)

        try:
            first, last = read_links(target, head)
        except ReadError as error:
            remarks.append(f"the list of {name} areas could not be read: {error}")
            continue
        found, of_list = _follow(name, first, (head, head), node, read_area, MAX_AREAS)
        if not of_list or of_list[-1].problem is None:
            before = of_list[-1].address + node if of_list else head
            of_list.append(ListLink(name, head, last, before))
        links += of_list
        if any(link.problem is not None or link.back != link.expected for link in of_list):
            # Follow only valid links, from either end.
            found, broken = finish(follow_list(target, head, read_area, MAX_AREAS))
            if broken is not None:
                remarks.append(f"the list of {name} areas is broken: {broken}")
        areas += found
    lists = AreaLists(tuple(areas), tuple(links))
    return Reading.of(Source.AREAS, lists, remarks, is_total=not areas)


_Element = TypeVar("_Element")


def _follow(
    name: str,
    first: int,
    ends: tuple[int, int],
    node: int,
    read: Callable[[int, int], tuple[_Element, Links]],
    limit: int,
) -> tuple[list[_Element], list[ListLink]]:
    """Return the elements of a list, and a link for each. If the list is broken, a further link has
    the problem.

    :param ends: the link before the first one, and the link that ends the list.
    """
    links: list[ListLink] = []
    last, following, is_missing = ends[0], first, False

    def read_link(link: int, before: int) -> tuple[_Element, int]:
        nonlocal last, following, is_missing
        try:
            element, found = read(link, before)
        except ReadError as error:
            is_missing = not isinstance(error, PointerError)
            raise
        links.append(ListLink(name, link - node, found.before, before))
        last, following = link, found.following or 0
        return element, following

    elements, problem = finish(follow_chain(first, ends[1], read_link, limit, last))
    if problem is not None:
        links.append(ListLink(name, following - node, None, last, problem, is_missing))
    return elements, links
