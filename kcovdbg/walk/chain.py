# SPDX-License-Identifier: LGPL-2.1-or-later
"""Linked lists and hash chains, followed with bounds."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple, TypeVar

from kcovdbg.errors import ReadError

Node = TypeVar("Node")


class Links(NamedTuple):
    """The two links of an element; None is one that isn't known."""

    following: int | None
    before: int | None


def follow_chain(
    first: int, end: int, read: Callable[[int, int], tuple[Node, int | None]], limit: int, start: int = 0
) -> Generator[Node, None, str | None]:
    """Yield the elements of a hash chain, or of a list in one direction.

    :param first: address of the first link.
    :param end: the link that ends it: the head's own address in a ``list_head``, 0 in an ``hlist_head``.
    :param read: from a link and the one that led to it, returns the element and the next link; raises :class:`ReadError` where
        it can't be read or isn't one.
    :param limit: more elements than this can't be right.
    :param start: what leads to the first link.
    :return: why it ended before its end, None where it reached it.
    """
    seen: set[int] = set()
    link: int | None = first
    before = start
    while link != end:
        if link is None:
            return "a link isn't known"
        if link in seen:
            return f"it comes back to {link:#x}"
        if len(seen) >= limit:
            return f"it has more than {limit} elements"
        seen.add(link)
        try:
            node, following = read(link, before)
        except ReadError as error:
            return str(error)
        yield node
        before, link = link, following
    return None


def follow_list(
    head: int,
    ends: Links,
    read: Callable[[int], tuple[Node, Links]],
    limit: int,
    *,
    moving: bool = False,
) -> Generator[Node, None, str | None]:
    """Yield the elements of a ``list_head``; of a broken one those that its two ends lead to.

    An element is one where its link back leads to where one came from: what a stray pointer leads to is none.

    :param head: address of the head.
    :param ends: of the head itself.
    :param read: returns the element at a link, and its links; raises :class:`ReadError` where it can't be read or isn't one.
    :param moving: a live kernel's list may change between two reads, so that links back don't tell.
    :return: why it isn't whole, None where it is.
    """
    found: set[int] = set()

    def step(link: int, before: int, forwards: bool) -> tuple[Node, int | None]:
        node, links = read(link)
        onwards, back = links if forwards else (links.before, links.following)
        if not moving and back is not None and back != before:
            raise ReadError(f"{link:#x}, which {before:#x} leads to, leads back to {back:#x}", link)
        found.add(link)
        return node, onwards

    if ends.following is None:
        broken: str | None = "a link isn't known"
    else:
        broken = yield from follow_chain(ends.following, head, lambda link, before: step(link, before, True), limit, head)
    if broken is None or ends.before is None:
        return broken

    def step_back(link: int, before: int) -> tuple[Node, int | None]:
        if link in found:
            raise _MetError("", link)
        return step(link, before, False)

    # Its other end leads to what lies behind the damage.
    yield from follow_chain(ends.before, head, step_back, limit, head)
    return broken


class _MetError(ReadError):
    """What follows is known from the other end."""
