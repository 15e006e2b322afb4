# SPDX-License-Identifier: LGPL-2.1-or-later
"""The lists of free areas, which remote sections reuse.

While an area is on a list its first bytes are a ``struct kcov_remote_area``; while it is in use they are the count word.
"""

from __future__ import annotations

from typing import Final

from kcovdbg.abi.generations import Feature
from kcovdbg.errors import MissingSymbolError, MissingTypeError, ReadError
from kcovdbg.model.area import IRQ_LIST, TASK_LIST, CachedArea
from kcovdbg.target.lists import Links, follow_list
from kcovdbg.target.pointer import check_pointer, read_pointer
from kcovdbg.target.protocol import Target
from kcovdbg.walk.layout import AREA, Layout

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
