# SPDX-License-Identifier: LGPL-2.1-or-later
"""What happens between two looks: buffers that fill or are emptied, overflows, events that are waited for."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from kcovdbg.monitor.samples import TaskSample


class BufferLook(NamedTuple):
    """One buffer in one look."""

    name: str
    full: bool | None
    """None where it is unknown."""


class _Overflow(NamedTuple):
    times: int
    full: bool


@dataclasses.dataclass(frozen=True)
class OverflowCounts:
    """The buffers that were seen full.

    A buffer that its user empties and the kernel fills again between two looks counts once: the numbers are lower bounds.
    """

    _seen: Mapping[str, _Overflow] = dataclasses.field(default_factory=dict)

    def after(self, looks: Iterable[BufferLook]) -> OverflowCounts:
        """Return the counts after another look.

        A buffer that is not in it, or whose state is unknown, stays as it was seen last.
        """
        seen = dict(self._seen)
        for name, full in looks:
            if full is None:
                continue
            times, was_full = seen.get(name, _Overflow(0, False))
            seen[name] = _Overflow(times + (full and not was_full), full)
        return OverflowCounts(seen)

    @property
    def times(self) -> Mapping[str, int]:
        """How often each buffer became full, at least; the most often first, without those that never did."""
        full = [(name, seen.times) for name, seen in self._seen.items() if seen.times]
        return dict(sorted(full, key=lambda item: -item[1]))


class BufferKey(NamedTuple):
    """The identity of a buffer across looks."""

    task: int
    kcov: int | None
    area: int | None
    """Of a section; None for an object's own buffer."""
    device: str | None = None
    """The device of a posted series; None for KCOV."""


class BufferStep(NamedTuple):
    """The change of one buffer."""

    gained: int
    """Records, at least."""
    was_reset: bool
    """Whether it was emptied, or its section ended and another one began."""
    became_full: bool
    lost: int
    """Records, at least: a task that enters another system call while its buffer is full loses one."""


def buffer_key(task: TaskSample) -> BufferKey:
    """Return the identity of the buffer that a task's count belongs to."""
    return BufferKey(task.task, task.kcov, task.kcov_area if task.is_section else None, task.device)


def compare_looks(before: TaskSample | None, now: TaskSample) -> BufferStep:
    """Return the change of a buffer.

    :param before: the same buffer in the look before, None where it was not seen then.
    """
    full = bool(now.full)
    if before is None or before.count is None or now.count is None:
        return BufferStep(0, False, full and not (before is not None and before.full), 0)
    was_reset = now.count < before.count
    count, base = (_plausible(task) for task in (now, before))
    gained = count if was_reset else max(count - base, 0)
    stays_full = bool(before.full) and full and not was_reset
    entered = now.syscall is not None and before.syscall is not None and now.syscall != before.syscall
    return BufferStep(gained, was_reset, full and not before.full, int(stays_full and entered and now.is_tracing))


def _plausible(task: TaskSample) -> int:
    """Return a buffer's count, which user space can write, as far as the buffer can hold it."""
    count = task.count or 0
    return count if task.capacity is None else min(count, task.capacity)


def is_new_section(before: TaskSample | None, now: TaskSample) -> bool:
    """Return whether a section began since the look before."""
    return now.is_section and (before is None or not before.is_section or compare_looks(before, now).was_reset)


def lost_of_sections(before: Collection[TaskSample], now: Collection[TaskSample]) -> dict[int, int]:
    """Return by object the records of sections that ended while the object's own buffer was full: none of them fit.

    :param before: the tasks in the look before.
    """
    full = {task.kcov for task in now if task.full and not task.is_section}
    full &= {task.kcov for task in before if task.full and not task.is_section}
    current = {buffer_key(task): task for task in now}
    lost: dict[int, int] = {}
    for section in before:
        if not section.is_section or section.kcov is None or section.kcov not in full:
            continue
        after = current.get(buffer_key(section))
        if after is None or is_new_section(section, after):
            lost[section.kcov] = lost.get(section.kcov, 0) + _plausible(section)
    return lost
