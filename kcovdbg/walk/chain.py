# SPDX-License-Identifier: LGPL-2.1-or-later
"""Linked lists and hash chains, followed with bounds."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

from kcovdbg.errors import ReadError

Node = TypeVar("Node")


def follow_chain(
    first: int, end: int, read: Callable[[int], tuple[Node, int]], limit: int
) -> Generator[Node, None, str | None]:
    """Yield the elements of a list or a hash chain.

    :param first: address of the first link.
    :param end: the link that ends it: the head's own address in a ``list_head``, 0 in an ``hlist_head``.
    :param read: returns the element at a link and the next link; raises :class:`ReadError` where it can't be read.
    :param limit: more elements than this can't be right.
    :return: why it ended before its end, None where it reached it.
    """
    seen: set[int] = set()
    link = first
    while link != end:
        if link in seen:
            return f"it comes back to {link:#x}"
        if len(seen) >= limit:
            return f"it has more than {limit} elements"
        seen.add(link)
        try:
            node, link = read(link)
        except ReadError as error:
            return str(error)
        yield node
    return None
