# SPDX-License-Identifier: LGPL-2.1-or-later
"""The links of KCOV's lists, each with its expected value, for checking them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kcovdbg.errors import MissingTypeError, PointerError, ReadError
from kcovdbg.model.memory import ListLink
from kcovdbg.target.pointer import check_pointer, read_pointer
from kcovdbg.target.protocol import Target
from kcovdbg.walk.layout import AREA, REMOTE, Layout
from kcovdbg.walk.remote import MAX_AREAS, MAX_CHAIN, MAX_ENTRIES


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
    for bucket in range(length or 16):
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
