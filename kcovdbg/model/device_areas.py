# SPDX-License-Identifier: LGPL-2.1-or-later
"""The areas that remote sections of a posted series' device record into: free, in use, or claimed by nobody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kcovdbg.model.device import DeviceState
from kcovdbg.model.memory import VmallocArea
from kcovdbg.model.remote import TASK_LIST, Area
from kcovdbg.model.state import Source, State

UNCLAIMED: Final = "unclaimed"


def find_device_areas(state: State, device: DeviceState, area_words: int, allocator: str) -> Iterator[Area]:
    """Yield a device's areas: on the list of free ones, in use by a section, or allocated and in neither.

    The State has the parts DEVICES, TASKS and VMALLOC.

    :param area_words: size of each area, in words of 64 bits.
    :param allocator: the function that allocates them.
    """
    claimed: set[int] = set()
    for address in device.idle_areas:
        claimed.add(address)
        yield Area(address, area_words, TASK_LIST, "cached", device=device.name)
    for session in device.sessions:
        if session.depth and session.area:
            claimed.add(session.area)
            yield Area(session.area, session.size, TASK_LIST, "in-use", session.pid, device=device.name)
    unclaimed = None if state.lacks(Source.DEVICES, Source.TASKS) else UNCLAIMED
    for area in find_allocated(state, allocator):
        if area.start not in claimed:
            yield Area(area.start, area.size // 8, TASK_LIST, unclaimed, device=device.name)


def find_allocated(state: State, function: str) -> Iterator[VmallocArea]:
    """Yield the vmalloc areas that a function allocated, as far as they can be listed."""
    for area in (state.vmalloc or {}).values():
        if area.allocator == function and not area.is_page_array:
            yield area
