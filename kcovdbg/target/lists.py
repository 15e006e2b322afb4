# SPDX-License-Identifier: LGPL-2.1-or-later
"""Linked lists and hash chains, walked with bounds, and remarks on what a walk could not reach or read."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final, NamedTuple, TypeVar

from kcovdbg.errors import ReadError
from kcovdbg.target.pointer import read_pointer
from kcovdbg.target.protocol import Target

_SHOWN: Final = 40


class Remarks(list[str]):
    """The first remarks of a walk, and the number of further ones."""

    def __init__(self) -> None:
        super().__init__()
        self._more = 0

    def note(self, remark: str) -> None:
        """Add a remark, or count it when there are many."""
        if len(self) < _SHOWN:
            self.append(remark)
            return
        self._more += 1
        if self._more > 1:
            self.pop()
        self.append(f"{self._more} more unreadable")


Node = TypeVar("Node")


class Links(NamedTuple):
    """The two links of an element; None for an unknown one."""

    following: int | None
    before: int | None


def read_links(target: Target, address: int) -> Links:
    """Read a ``struct list_head``.

    :raises ReadError: when it cannot be read.
    """
    return Links(read_pointer(target, address), read_pointer(target, address + target.word_size))


def follow_chain(
    first: int, end: int, read: Callable[[int, int], tuple[Node, int | None]], limit: int, start: int = 0
) -> Generator[Node, None, str | None]:
    """Yield the elements of a hash chain, or of a list in one direction.

    :param first: address of the first link.
    :param end: the link that ends it: the address of the head of a ``list_head``, 0 for an ``hlist_head``.
    :param read: called with a link and the one before it; returns the element and the next link; raises :class:`ReadError` when
        it cannot be read or is not an element.
    :param limit: the greatest plausible number of elements.
    :param start: the link before the first one.
    :return: why it stopped before the end, None when it reached the end.
    """
    seen: set[int] = set()
    link: int | None = first
    before = start
    while link != end:
        if link is None:
            return "unknown link"
        if link in seen:
            return f"cycle at {link:#x}"
        if len(seen) >= limit:
            return f"more than {limit} elements"
        seen.add(link)
        try:
            node, following = read(link, before)
        except ReadError as error:
            return str(error)
        yield node
        before, link = link, following
    return None


def finish(walk: Generator[Node, None, str | None]) -> tuple[list[Node], str | None]:
    """Return all elements of a walk, and why it stopped before the end."""
    found: list[Node] = []
    while True:
        try:
            found.append(next(walk))
        except StopIteration as stop:
            return found, stop.value


def follow_list(
    head: int,
    ends: Links,
    read: Callable[[int], tuple[Node, Links]],
    limit: int,
    *,
    moving: bool = False,
) -> Generator[Node, None, str | None]:
    """Yield the elements of a ``list_head``; of a broken one, those reachable from either end.

    An element is valid if its link back points to the one before: a stray pointer does not lead to one.

    :param head: address of the head.
    :param ends: of the head itself.
    :param read: returns the element at a link, and its links; raises :class:`ReadError` when it cannot be read or is not one.
    :param moving: whether the list may change between two reads, as in a live kernel; links back are then not checked.
    :return: why it is incomplete, None when it is complete.
    """
    found: set[int] = set()

    def step(link: int, before: int, forwards: bool) -> tuple[Node, int | None]:
        node, links = read(link)
        onwards, back = links if forwards else (links.before, links.following)
        if not moving and back is not None and back != before:
            raise ReadError(f"{before:#x} links to {link:#x}, which links back to {back:#x}", link)
        found.add(link)
        return node, onwards

    if ends.following is None:
        broken: str | None = "unknown link"
    else:
        broken = yield from follow_chain(ends.following, head, lambda link, before: step(link, before, True), limit, head)
    if broken is None or ends.before is None:
        return broken

    def step_back(link: int, before: int) -> tuple[Node, int | None]:
        if link in found:
            raise _MetError("", link)
        return step(link, before, False)

    # From the other end, up to the damage.
    yield from follow_chain(ends.before, head, step_back, limit, head)
    return broken


class _MetError(ReadError):
    """The element was reached from the other end already."""
