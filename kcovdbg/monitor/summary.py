# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the samples of a run of ``monitor`` add up to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kcovdbg.monitor.samples import FindingSample


class Rate(NamedTuple):
    """A number of events per second."""

    per_second: float
    is_least: bool = False
    """Whether there may have been more."""


class SectionKey(NamedTuple):
    """What sections are counted by."""

    kcov: int | None
    handle: int | None
    """None where the object has several: the kernel does not keep which of them a section began with."""
    handles: tuple[int, ...]
    """The handles of the object, as far as they are known."""


class SectionActivity(NamedTuple):
    """The remote and softirq sections with one handle."""

    key: SectionKey
    in_flight: int
    begun: int
    """Since the start, at least."""
    rate: Rate | None


class BufferSummary(NamedTuple):
    """One object's buffer, or the areas that are used for it, in a recording."""

    kind: str
    """``buffer``, or ``area`` for the areas of its sections."""
    kcov: int | None
    tasks: tuple[str, ...]
    """The names of the tasks that collected into it."""
    mode: str | None
    size: int | None
    """In words of the kernel."""
    capacity: int | None
    looks: int
    rounds: int
    """How often it was emptied or used anew, at least, and the last use."""
    overflows: int
    """How often it became full, at least."""
    full_seconds: float
    records: int
    """Written to it, at least."""
    rate: float | None
    """Records a second while it was not full."""
    lost: int
    """Records, at least."""
    lost_estimate: int | None
    """Records, if it was written to as fast while it was full as before; None where that is unknown."""
    largest: int
    """Records of the fullest round that was seen."""
    needed: int | None
    """Records that 99 % of the rounds need; None where overflows hide it."""
    needed_size: int | None
    """A size in words that holds them."""


class PlacedShare(NamedTuple):
    """The share of records that one function, file or directory takes."""

    function: str | None
    file: str | None
    records: float
    share: float
    """Of all sampled records, 0 to 1."""
    makefile: str | None
    """The Makefile where a line excludes it."""
    line: str | None
    """That line."""


class PlotPoint(NamedTuple):
    """What a recording shows at one moment."""

    seconds: float
    """Since its start."""
    rate: float
    """Records a second of all tasks."""
    fill: float
    """Of the fullest buffer, 0 to 1."""
    overflows: int
    """Since the start."""
    sections: int
    """In flight."""
    objects: int


class Summary(NamedTuple):
    """The answers."""

    facts: Mapping[str, str | None]
    start: float
    """Seconds since 1970."""
    seconds: float
    looks: int
    interval: float | None
    """The median time from look to look."""
    buffers: tuple[BufferSummary, ...]
    sections: tuple[SectionActivity, ...]
    functions: tuple[PlacedShare, ...]
    files: tuple[PlacedShare, ...]
    directories: tuple[PlacedShare, ...]
    sampled: float
    """Records that the shares are of."""
    findings: tuple[FindingSample, ...]
    """Findings that two consecutive looks had."""
    came: int
    went: int
    overflows: int
    cpu_share: float
    """Of one core, for looking."""
    reads: int | None
    points: tuple[PlotPoint, ...]
    errors: tuple[str, ...]
