# SPDX-License-Identifier: LGPL-2.1-or-later
"""Activity of a kernel, from consecutive samples: rates, full buffers, sections, and objects that come and go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from kcovdbg.monitor.events import BufferKey, buffer_key, compare_looks, is_new_section, lost_of_sections
from kcovdbg.monitor.samples import AreaSample, FindingSample, ObjectSample, Sample, TaskSample
from kcovdbg.monitor.summary import Rate, SectionActivity, SectionKey

# Seconds over which rates are averaged.
_WINDOW: Final = 2.0
# Limit for the events that are kept, and for buffers of tasks that are gone.
_EVENTS: Final = 500
_TRACKS: Final = 4096


class _Gain(NamedTuple):
    """What was added between two looks."""

    start: float
    end: float
    amount: float
    is_least: bool


class _Track(NamedTuple):
    """One buffer since it was first seen."""

    task: TaskSample
    gains: tuple[_Gain, ...] = ()
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
    gains: tuple[_Gain, ...] = ()
    handles: tuple[int, ...] = ()
    """Those of the object, as far as they are known."""


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
    """What looking costs, over the last seconds."""

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
    _costs: tuple[tuple[float, int | None, float], ...] = ()

    def after(self, sample: Sample) -> Activity:
        """Return the activity after one more sample."""
        before = self.sample
        seen = {buffer_key(task): task for task in sample.tasks}
        lost = {} if before is None else lost_of_sections(before.tasks, sample.tasks)
        tracks, events = self._follow_buffers(sample, seen, lost)
        overflows = self.overflows + len(events)
        if before is not None and sample.state != before.state and sample.state is not None:
            events.append(MonitorEvent(sample.time, EventKind.STATE, sample.state))
        came = went = 0
        objects = self.objects
        if sample.objects is not None:
            objects = {found.kcov: found for found in sample.objects}
            if self._knows_objects:
                added = [
                    MonitorEvent(sample.time, EventKind.CAME, objects[kcov]) for kcov in objects.keys() - self.objects.keys()
                ]
                removed = [
                    MonitorEvent(sample.time, EventKind.WENT, self.objects[kcov])
                    for kcov in self.objects.keys() - objects.keys()
                ]
                came, went = len(added), len(removed)
                events += [*added, *removed]
        sections = self._follow_sections(sample, objects)
        findings, suspects = self.findings, self._suspects
        if sample.findings is not None:
            found = frozenset(sample.findings)
            # On a stopped machine, inconsistent state does not change.
            kept = found if sample.state == "stopped" else found & suspects
            findings = tuple(sorted(kept))
            events += [
                MonitorEvent(sample.time, EventKind.FINDING, finding) for finding in findings if finding not in self.findings
            ]
            events += [MonitorEvent(sample.time, EventKind.GONE, finding) for finding in self.findings if finding not in kept]
            suspects = found
        costs = (*self._costs, (sample.time, sample.reads, sample.seconds))
        while len(costs) > 2 and sample.time - costs[1][0] > _WINDOW:
            costs = costs[1:]
        return Activity(
            sample=sample,
            started=self.started if self.looks else sample.time,
            looks=self.looks + 1,
            objects=objects,
            came=self.came + came,
            went=self.went + went,
            events=(*self.events, *events)[-_EVENTS:],
            findings=findings,
            overflows=overflows,
            _tracks=tracks,
            _sections=sections,
            _suspects=suspects,
            _knows_objects=self._knows_objects or sample.objects is not None,
            _costs=costs,
        )

    def _follow_buffers(
        self, sample: Sample, seen: Mapping[BufferKey, TaskSample], lost: Mapping[int, int]
    ) -> tuple[Mapping[BufferKey, _Track], list[MonitorEvent]]:
        events: list[MonitorEvent] = []
        tracks = dict(self._tracks)
        last = self.sample
        present = frozenset() if last is None else {buffer_key(task) for task in last.tasks}
        for key, task in seen.items():
            # Put it last: the first ones are forgotten first.
            track = tracks.pop(key, None)
            before = track.task if track is not None and key in present else None
            step = compare_looks(before, task)
            gains: tuple[_Gain, ...] = ()
            if before is not None and last is not None:
                gain = _Gain(last.time, sample.time, step.gained, step.was_reset)
                gains = _recent(() if track is None else track.gains, gain)
            overflows, losses = (0, 0) if track is None else (track.overflows, track.lost)
            if step.became_full:
                events.append(MonitorEvent(sample.time, EventKind.FULL, task))
            of_sections = lost.get(task.kcov or 0, 0) if not task.is_section else 0
            tracks[key] = _Track(task, gains, overflows + step.became_full, losses + step.lost + of_sections)
        for key in list(tracks)[: max(len(tracks) - _TRACKS, 0)]:
            if key not in seen:
                del tracks[key]
        return tracks, events

    def _follow_sections(self, sample: Sample, objects: Mapping[int, ObjectSample]) -> Mapping[int, _SectionTrack]:
        last = self.sample
        before = {} if last is None else {buffer_key(task): task for task in last.tasks}
        in_flight: Counter[int] = Counter()
        begun: Counter[int] = Counter()
        for task in sample.tasks:
            kcov = task.kcov or 0
            if task.is_section:
                in_flight[kcov] += 1
                begun[kcov] += is_new_section(before.get(buffer_key(task)), task)
            elif task.owns_remote and not task.is_tracing and self._grew_unseen(before, task):
                begun[kcov] += 1
        found: dict[int, _SectionTrack] = {}
        for kcov in dict.fromkeys((*self._sections, *in_flight, *begun)):
            track = self._sections.get(kcov, _SectionTrack())
            # An object may be found after its first section, and be gone at the end.
            handles = objects[kcov].handles if kcov in objects else track.handles
            gains = track.gains
            if last is not None:
                gains = _recent(gains, _Gain(last.time, sample.time, begun[kcov], True))
            found[kcov] = _SectionTrack(in_flight[kcov], track.begun + begun[kcov], gains, handles)
        return found

    def _grew_unseen(self, before: Mapping[BufferKey, TaskSample], owner: TaskSample) -> bool:
        """Return whether a section began and ended between two looks: its end adds records to the owner's buffer."""
        last = before.get(buffer_key(owner))
        return (
            last is not None
            and compare_looks(last, owner).gained > 0
            and not any(task.is_section and task.kcov == owner.kcov for task in before.values())
        )

    @property
    def tasks(self) -> Iterator[TaskActivity]:
        """The tasks of the latest sample."""
        for task in () if self.sample is None else self.sample.tasks:
            track = self._tracks.get(buffer_key(task))
            if track is not None:
                yield TaskActivity(task, _rate(track.gains), track.overflows, track.lost)

    @property
    def sections(self) -> tuple[SectionActivity, ...]:
        """The sections by handle, those that were begun most often first."""
        found = []
        for kcov, track in self._sections.items():
            handles = track.handles
            key = SectionKey(kcov or None, handles[0] if len(handles) == 1 else None, handles)
            found.append(SectionActivity(key, track.in_flight, track.begun, _rate(track.gains)))
        return tuple(sorted(found, key=lambda section: (-section.begun, -section.in_flight)))

    @property
    def areas(self) -> tuple[AreaSample, ...]:
        """The areas of the latest sample."""
        return () if self.sample is None else self.sample.areas

    @property
    def cost(self) -> Cost | None:
        """What looking costs, None in the first look."""
        if len(self._costs) < 2:
            return None
        (start, _, _), *later = self._costs
        span = later[-1][0] - start
        if span <= 0:
            return None
        reads = [reads for _, reads, _ in later if reads is not None]
        return Cost(sum(reads) / span if reads else None, len(later) / span, sum(seconds for _, _, seconds in later) / span)


def _recent(gains: Iterable[_Gain], gain: _Gain) -> tuple[_Gain, ...]:
    """Return the gains of the last seconds."""
    return (*(old for old in gains if gain.end - old.start <= _WINDOW), gain)


def _rate(gains: tuple[_Gain, ...]) -> Rate | None:
    if not gains:
        return None
    span = gains[-1].end - gains[0].start
    total = sum(gain.amount for gain in gains)
    return Rate(total / span if span > 0 else 0.0, any(gain.is_least for gain in gains) and total > 0)
