# SPDX-License-Identifier: LGPL-2.1-or-later
"""Activity of a kernel, from consecutive samples: rates, full buffers, sections, and objects that come and go.

All counts are lower bounds: a buffer that is emptied and filled again between two looks shows less than was recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from kcovdbg.monitor.samples import AreaSample, FindingSample, ObjectSample, Sample, TaskSample

# Seconds over which rates are averaged.
_WINDOW: Final = 2.0
# Limit for the events that are kept, and for buffers of tasks that are gone.
_EVENTS: Final = 500
_TRACKS: Final = 4096


class BufferKey(NamedTuple):
    """The identity of a buffer across looks."""

    task: int
    kcov: int | None
    area: int | None
    """Of a section; None for an object's own buffer."""
    device: str | None = None
    """The device of a posted series; None for KCOV."""


class BufferStep(NamedTuple):
    """The change of one buffer between two looks."""

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


def buffers_of(sample: Sample | None) -> dict[BufferKey, TaskSample]:
    """Return the tasks of a sample by their buffers; none of no sample."""
    return {} if sample is None else {buffer_key(task): task for task in sample.tasks}


def compare_looks(before: TaskSample | None, now: TaskSample) -> BufferStep:
    """Return the change of a buffer.

    :param before: the same buffer in the look before, None where it was not seen then.
    """
    full, was_full = bool(now.full), before is not None and bool(before.full)
    if before is None or before.count is None or now.count is None:
        return BufferStep(0, False, full and not was_full, 0)
    was_reset = now.count < before.count
    gained = now.held if was_reset else max(now.held - before.held, 0)
    entered = now.syscall is not None and before.syscall is not None and now.syscall != before.syscall
    lost = was_full and full and not was_reset and entered and now.is_tracing
    return BufferStep(gained, was_reset, full and not was_full, int(lost))


def is_new_section(before: TaskSample | None, now: TaskSample) -> bool:
    """Return whether a section began since the look before."""
    return now.is_section and (before is None or not before.is_section or compare_looks(before, now).was_reset)


def lost_of_sections(before: Mapping[BufferKey, TaskSample], now: Mapping[BufferKey, TaskSample]) -> Counter[int | None]:
    """Return by object the records of sections that ended while the object's own buffer was full: none of them fit.

    :param before: the buffers in the look before.
    """
    was_full, full = ({task.kcov for task in look.values() if task.full and not task.is_section} for look in (before, now))
    lost: Counter[int | None] = Counter()
    for key, section in before.items():
        if section.is_section and section.kcov is not None and section.kcov in was_full & full:
            after = now.get(key)
            if after is None or is_new_section(section, after):
                lost[section.kcov] += section.held
    return lost


class Rate(NamedTuple):
    """A number of events per second."""

    per_second: float
    is_least: bool = False
    """Whether there may have been more."""


class _Gain(NamedTuple):
    """An amount that was added between two looks."""

    start: float
    end: float
    amount: float
    is_least: bool


_Gains = tuple[_Gain, ...]


def _recent(gains: _Gains, gain: _Gain) -> _Gains:
    """Return the gains of the last seconds."""
    return (*(old for old in gains if gain.end - old.start <= _WINDOW), gain)


def _rate(gains: _Gains) -> Rate | None:
    if not gains:
        return None
    span = gains[-1].end - gains[0].start
    total = sum(gain.amount for gain in gains)
    return Rate(total / span if span > 0 else 0.0, any(gain.is_least for gain in gains) and total > 0)


class _Track(NamedTuple):
    """One buffer since it was first seen."""

    gains: _Gains = ()
    overflows: int = 0
    lost: int = 0


class TaskActivity(NamedTuple):
    """One task of the latest sample."""

    task: TaskSample
    rate: Rate | None
    """Records; None in the first look at it."""
    overflows: int
    """How often its buffer became full, at least."""
    lost: int
    """Records that were lost, at least."""


class _SectionTrack(NamedTuple):
    in_flight: int = 0
    begun: int = 0
    gains: _Gains = ()
    handles: tuple[int, ...] = ()
    """Those of the object, as far as they are known."""


class SectionKey(NamedTuple):
    """The identity of sections: the kernel does not keep which of an object's handles a section began with."""

    kcov: int | None
    handles: tuple[int, ...]
    """The handles of the object, as far as they are known."""

    @property
    def handle(self) -> int | None:
        """The handle, None where the object has several."""
        return self.handles[0] if len(self.handles) == 1 else None


class SectionActivity(NamedTuple):
    """The remote and softirq sections with one handle."""

    key: SectionKey
    in_flight: int
    begun: int
    """Since the start, at least."""
    rate: Rate | None


class EventKind(str, Enum):
    """The kinds of events."""

    FULL = "FULL"
    CAME = "+"
    WENT = "-"
    FINDING = "finding"
    GONE = "settled"
    STATE = "state"


class MonitorEvent(NamedTuple):
    """Something that happened between two looks."""

    time: float
    """Of the look that showed it."""
    kind: EventKind
    subject: TaskSample | ObjectSample | FindingSample | str


class Cost(NamedTuple):
    """The cost of looking, over the last seconds."""

    reads: float | None
    """A second; None where they are not counted."""
    looks: float
    """A second."""
    share: float
    """Of one core's time."""


@dataclass(frozen=True)
class Activity:
    """The activity after some samples; :meth:`after` returns that after one more."""

    sample: Sample | None = None
    started: float = 0.0
    looks: int = 0
    objects: Mapping[int, ObjectSample] = field(default_factory=dict)
    """As the latest look that searched for them found them."""
    came: int = 0
    """Objects since the start."""
    went: int = 0
    events: tuple[MonitorEvent, ...] = ()
    """The latest ones, in the order of time."""
    findings: tuple[FindingSample, ...] = ()
    """Findings of the latest look at the rules that the previous one also had."""
    overflows: int = 0
    """How often any buffer became full, at least."""
    _tracks: Mapping[BufferKey, _Track] = field(default_factory=dict, repr=False)
    _sections: Mapping[int, _SectionTrack] = field(default_factory=dict, repr=False)
    _suspects: frozenset[FindingSample] = frozenset()
    _knows_objects: bool = False
    _costs: tuple[Sample, ...] = ()

    def after(self, sample: Sample) -> Activity:
        """Return the activity after one more sample."""
        last = self.sample
        before, now = buffers_of(last), buffers_of(sample)
        tracks, full = self._follow_buffers(sample, before, now)
        happened: list[tuple[EventKind, TaskSample | ObjectSample | FindingSample | str]] = [
            (EventKind.FULL, task) for task in full
        ]
        if last is not None and sample.state != last.state and sample.state is not None:
            happened.append((EventKind.STATE, sample.state))
        came = went = 0
        objects = self.objects
        if sample.objects is not None:
            objects = {found.kcov: found for found in sample.objects}
            if self._knows_objects:
                added, removed = objects.keys() - self.objects.keys(), self.objects.keys() - objects.keys()
                came, went = len(added), len(removed)
                happened += [(EventKind.CAME, objects[kcov]) for kcov in added]
                happened += [(EventKind.WENT, self.objects[kcov]) for kcov in removed]
        findings, suspects = self.findings, self._suspects
        if sample.findings is not None:
            found = frozenset(sample.findings)
            # On a stopped machine, inconsistent state does not change.
            findings, suspects = tuple(sorted(found if sample.state == "stopped" else found & suspects)), found
            happened += [(EventKind.FINDING, finding) for finding in findings if finding not in self.findings]
            happened += [(EventKind.GONE, finding) for finding in self.findings if finding not in findings]
        costs = (*self._costs, sample)
        while len(costs) > 2 and sample.time - costs[1].time > _WINDOW:
            costs = costs[1:]
        return Activity(
            sample=sample,
            started=self.started if self.looks else sample.time,
            looks=self.looks + 1,
            objects=objects,
            came=self.came + came,
            went=self.went + went,
            events=(*self.events, *(MonitorEvent(sample.time, *event) for event in happened))[-_EVENTS:],
            findings=findings,
            overflows=self.overflows + len(full),
            _tracks=tracks,
            _sections=self._follow_sections(sample, before, objects),
            _suspects=suspects,
            _knows_objects=self._knows_objects or sample.objects is not None,
            _costs=costs,
        )

    def _follow_buffers(
        self, sample: Sample, before: Mapping[BufferKey, TaskSample], now: Mapping[BufferKey, TaskSample]
    ) -> tuple[Mapping[BufferKey, _Track], list[TaskSample]]:
        """Return the tracks after a sample, and the tasks whose buffers became full."""
        lost = lost_of_sections(before, now)
        tracks = dict(self._tracks)
        full: list[TaskSample] = []
        for key, task in now.items():
            # Put it last: the first ones are forgotten first.
            track = tracks.pop(key, _Track())
            step = compare_looks(before.get(key), task)
            gains: _Gains = ()
            if key in before and self.sample is not None:
                gains = _recent(track.gains, _Gain(self.sample.time, sample.time, step.gained, step.was_reset))
            if step.became_full:
                full.append(task)
            of_sections = 0 if task.is_section else lost[task.kcov]
            tracks[key] = _Track(gains, track.overflows + step.became_full, track.lost + step.lost + of_sections)
        for key in list(tracks)[: max(len(tracks) - _TRACKS, 0)]:
            if key not in now:
                del tracks[key]
        return tracks, full

    def _follow_sections(
        self, sample: Sample, before: Mapping[BufferKey, TaskSample], objects: Mapping[int, ObjectSample]
    ) -> Mapping[int, _SectionTrack]:
        had_section = {task.kcov for task in before.values() if task.is_section}
        in_flight: Counter[int] = Counter()
        begun: Counter[int] = Counter()
        for task in sample.tasks:
            kcov, seen = task.kcov or 0, before.get(buffer_key(task))
            if task.is_section:
                in_flight[kcov] += 1
                begun[kcov] += is_new_section(seen, task)
            elif task.owns_remote and not task.is_tracing and seen is not None and task.kcov not in had_section:
                # A section that began and ended between two looks adds records to the owner's buffer.
                begun[kcov] += compare_looks(seen, task).gained > 0
        found: dict[int, _SectionTrack] = {}
        for kcov in dict.fromkeys((*self._sections, *in_flight, *(+begun))):
            track = self._sections.get(kcov, _SectionTrack())
            # An object may be found after its first section, and be gone at the end.
            handles = objects[kcov].handles if kcov in objects else track.handles
            gains = track.gains
            if self.sample is not None:
                gains = _recent(gains, _Gain(self.sample.time, sample.time, begun[kcov], True))
            found[kcov] = _SectionTrack(in_flight[kcov], track.begun + begun[kcov], gains, handles)
        return found

    @property
    def tasks(self) -> Iterator[TaskActivity]:
        """The tasks of the latest sample."""
        for key, task in buffers_of(self.sample).items():
            track = self._tracks[key]
            yield TaskActivity(task, _rate(track.gains), track.overflows, track.lost)

    @property
    def sections(self) -> tuple[SectionActivity, ...]:
        """The sections by handle, those that were begun most often first."""
        found = [
            SectionActivity(SectionKey(kcov or None, track.handles), track.in_flight, track.begun, _rate(track.gains))
            for kcov, track in self._sections.items()
        ]
        return tuple(sorted(found, key=lambda section: (-section.begun, -section.in_flight)))

    @property
    def areas(self) -> tuple[AreaSample, ...]:
        """The areas of the latest sample."""
        return () if self.sample is None else self.sample.areas

    @property
    def cost(self) -> Cost | None:
        """The cost of looking; None in the first look."""
        if len(self._costs) < 2 or (span := self._costs[-1].time - self._costs[0].time) <= 0:
            return None
        looks = self._costs[1:]
        reads = [look.reads for look in looks if look.reads is not None]
        return Cost(sum(reads) / span if reads else None, len(looks) / span, sum(look.seconds for look in looks) / span)
