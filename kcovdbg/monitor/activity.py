# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compute the activity of a kernel from consecutive samples: rates, full buffers, sections, and
objects that come and go.

All counts are lower bounds: a buffer that is emptied and filled again between two looks shows less
than was recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from kcovdbg.model.kcov import name_kcov, name_task
from kcovdbg.monitor.samples import ObjectSample, Sample, TaskSample

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
    """The area of a section; None for an object's own buffer."""
    device: str | None = None
    """The device of a posted series; None for KCOV."""


class BufferStep(NamedTuple):
    """The change of one buffer between two looks."""

    before: TaskSample | None
    """None if the look before did not see the buffer."""
    now: TaskSample
    gained: int
    """Records, at least."""
    was_reset: bool
    """Whether the buffer was emptied, or its section ended and another one began."""
    became_full: bool
    stayed_full: bool
    lost: int
    """Records, at least: a task that enters another system call while its buffer is full loses one.
    """

    @property
    def begins_section(self) -> bool:
        """Whether a section began."""
        return self.now.is_section and (
            self.before is None or not self.before.is_section or self.was_reset
        )


def buffer_key(task: TaskSample) -> BufferKey:
    """Return the identity of the buffer that a task's count belongs to."""
    area = None
    if task.is_section:
        area = task.kcov_area
    return BufferKey(task.task, task.object, area, task.device)


def compare_looks(before: TaskSample | None, now: TaskSample) -> BufferStep:
    """Return the change of a buffer.

    :param before: the same buffer in the look before; None if that did not see it.
    """
    was_full = before is not None and bool(before.full)
    became_full = bool(now.full) and not was_full
    if before is None or before.count is None or now.count is None:
        return BufferStep(before, now, 0, False, became_full, False, 0)
    was_reset = now.count < before.count
    gained = now.held
    if not was_reset:
        gained = max(now.held - before.held, 0)
    stayed_full = was_full and bool(now.full) and not was_reset
    entered = None not in (now.syscall, before.syscall) and now.syscall != before.syscall
    lost = stayed_full and entered and now.is_tracing
    return BufferStep(before, now, gained, was_reset, became_full, stayed_full, int(lost))


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


def _rate(gains: _Gains) -> Rate | None:
    if not gains:
        return None
    span = gains[-1].end - gains[0].start
    total = sum(gain.amount for gain in gains)
    is_least = total > 0 and any(gain.is_least for gain in gains)
    if span <= 0:
        return Rate(0.0, is_least)
    return Rate(total / span, is_least)


class TaskActivity(NamedTuple):
    """One buffer since it was first seen, with its task as it was seen last."""

    task: TaskSample
    gains: _Gains = ()
    overflows: int = 0
    """How often the buffer became full, at least."""
    lost: int = 0
    """Lost records, at least."""

    @property
    def rate(self) -> Rate | None:
        """Records per second; None after the first look."""
        return _rate(self.gains)


class SectionActivity(NamedTuple):
    """The remote and softirq sections of one object: the kernel does not keep which of its handles
    a section began with.
    """

    kcov: int | None
    handles: tuple[int, ...] = ()
    """The known handles of the object."""
    in_flight: int = 0
    begun: int = 0
    """Since the start, at least."""
    gains: _Gains = ()

    @property
    def handle(self) -> int | None:
        """The handle; None if the object has several."""
        if len(self.handles) != 1:
            return None
        return self.handles[0]

    @property
    def rate(self) -> Rate | None:
        """Sections that begin per second."""
        return _rate(self.gains)


class MonitorEvent(NamedTuple):
    """Something that happened between two looks."""

    time: float
    """Time of the look that showed it."""
    text: str
    style: str = ""


def _full_text(task: TaskSample) -> str:
    where, unit = "buffer", "records"
    if task.is_section:
        where = "area of a section"
    if task.device is not None:
        unit = "words"
    return f"FULL: {where} of {name_task(task)}, {task.capacity} {unit}"


def _object_text(found: ObjectSample) -> str:
    text = name_kcov(found.kcov, found.device or "kcov")
    if found.pid is not None:
        text += f" of {name_task(found)}"
    if found.size:
        text += f", {found.size} words"
    return text


def _find_full(tasks: Iterable[TaskSample]) -> set[int | None]:
    """Return the objects whose own buffer is full."""
    return {task.object for task in tasks if task.full and not task.is_section}


@dataclass(frozen=True)
class Activity:
    """The activity after some samples; :meth:`after` adds one more."""

    sample: Sample | None = None
    started: float = 0.0
    looks: int = 0
    steps: Mapping[BufferKey, BufferStep] = field(default_factory=dict, repr=False)
    """Changes of each buffer since the look before, records of sections that did not fit included.
    """
    objects: Mapping[int, ObjectSample] = field(default_factory=dict)
    """Objects that the latest search found."""
    came: int = 0
    """Objects since the start."""
    went: int = 0
    events: tuple[MonitorEvent, ...] = ()
    """The latest events, in the order of time."""
    overflows: int = 0
    """How often any buffer became full, at least."""
    reads: int | None = None
    """Reads of the kernel's memory; None if they are not counted."""
    used: float = 0.0
    """Processor time that looking took, in seconds."""
    _tracks: Mapping[BufferKey, TaskActivity] = field(default_factory=dict, repr=False)
    _sections: Mapping[int, SectionActivity] = field(default_factory=dict, repr=False)

    @property
    def seconds(self) -> float:
        """Time since the first look."""
        if self.sample is None:
            return 0.0
        return self.sample.time - self.started

    @property
    def cpu_share(self) -> float:
        """The share of one core's time that looking took."""
        if self.seconds <= 0:
            return 0.0
        return self.used / self.seconds

    def after(self, sample: Sample) -> Activity:
        """Return the activity after one more sample."""
        steps = self._find_steps(sample)
        objects = self.objects
        if sample.objects is not None:
            objects = {found.kcov: found for found in sample.objects}
        started, reads = self.started, self.reads
        came = sorted(objects.keys() - self.objects.keys())
        went = sorted(self.objects.keys() - objects.keys())
        if not self.looks:
            started = sample.time
            # The objects of the first look were there before.
            came = []
        if sample.reads is not None:
            reads = (reads or 0) + sample.reads
        events: list[MonitorEvent] = []

        def add_event(text: str, style: str = "") -> None:
            events.append(MonitorEvent(sample.time, text, style))

        for step in steps.values():
            if step.became_full:
                add_event(_full_text(step.now), "error")
        if self.sample is not None and sample.state not in (self.sample.state, None):
            add_event(f"the machine is {sample.state}", "warning")
        for kcov in came:
            add_event(f"+ {_object_text(objects[kcov])}", "good")
        for kcov in went:
            add_event(f"- {_object_text(self.objects[kcov])}")
        return replace(
            self,
            sample=sample,
            started=started,
            looks=self.looks + 1,
            steps=steps,
            objects=objects,
            came=self.came + len(came),
            went=self.went + len(went),
            events=(*self.events, *events)[-_EVENTS:],
            overflows=self.overflows + sum(step.became_full for step in steps.values()),
            reads=reads,
            used=self.used + sample.seconds,
            _tracks=self._follow_buffers(sample.time, steps),
            _sections=self._follow_sections(sample.time, steps, objects),
        )

    @property
    def _last_tasks(self) -> tuple[TaskSample, ...]:
        if self.sample is None:
            return ()
        return self.sample.tasks

    def _find_steps(self, sample: Sample) -> Mapping[BufferKey, BufferStep]:
        """Return the change of each buffer, with records of sections that did not fit."""
        before = {buffer_key(task): task for task in self._last_tasks}
        steps: dict[BufferKey, BufferStep] = {}
        for task in sample.tasks:
            key = buffer_key(task)
            steps[key] = compare_looks(before.get(key), task)
        lost = self._find_lost(steps)
        for key, step in steps.items():
            if not step.now.is_section:
                steps[key] = step._replace(lost=step.lost + lost[step.now.object])
        return steps

    def _find_lost(self, steps: Mapping[BufferKey, BufferStep]) -> Counter[int | None]:
        """Return by object the records of sections that ended while the object's own buffer was
        full: none of them fit.
        """
        full = _find_full(step.now for step in steps.values()) & _find_full(self._last_tasks)
        lost: Counter[int | None] = Counter()
        for section in self._last_tasks:
            if section.is_section and section.object is not None and section.object in full:
                step = steps.get(buffer_key(section))
                if step is None or step.begins_section:
                    lost[section.object] += section.held
        return lost

    def _follow_buffers(
        self, now: float, steps: Mapping[BufferKey, BufferStep]
    ) -> Mapping[BufferKey, TaskActivity]:
        tracks = dict(self._tracks)
        for key, step in steps.items():
            # Put it last: the first ones are forgotten first.
            track = tracks.pop(key, TaskActivity(step.now))
            gains: _Gains = ()
            if step.before is not None:
                gains = self._add_gain(track.gains, now, step.gained, is_least=step.was_reset)
            tracks[key] = TaskActivity(
                step.now, gains, track.overflows + step.became_full, track.lost + step.lost
            )
        for key in list(tracks)[: max(len(tracks) - _TRACKS, 0)]:
            if key not in steps:
                del tracks[key]
        return tracks

    def _follow_sections(
        self, now: float, steps: Mapping[BufferKey, BufferStep], objects: Mapping[int, ObjectSample]
    ) -> Mapping[int, SectionActivity]:
        had_section = {task.object for task in self._last_tasks if task.is_section}
        in_flight: Counter[int] = Counter()
        begun: Counter[int] = Counter()
        for step in steps.values():
            task, kcov = step.now, step.now.object or 0
            if task.is_section:
                in_flight[kcov] += 1
                begun[kcov] += step.begins_section
            elif task.owns_remote and not task.is_tracing and task.object not in had_section:
                # A section that began and ended between two looks adds records to the owner's
                # buffer.
                begun[kcov] += step.gained > 0
        found: dict[int, SectionActivity] = {}
        for kcov in dict.fromkeys((*self._sections, *in_flight, *(+begun))):
            track = self._sections.get(kcov, SectionActivity(kcov or None))
            # An object may be found after its first section, and be gone at the end.
            handles = track.handles
            if kcov in objects:
                handles = objects[kcov].handles
            gains = self._add_gain(track.gains, now, begun[kcov], is_least=True)
            found[kcov] = SectionActivity(
                kcov or None, handles, in_flight[kcov], track.begun + begun[kcov], gains
            )
        return found

    def _add_gain(self, gains: _Gains, now: float, amount: int, *, is_least: bool) -> _Gains:
        """Return the gains of the last seconds, including the gain since the latest sample."""
        if self.sample is None:
            return ()
        recent = [old for old in gains if now - old.start <= _WINDOW]
        return (*recent, _Gain(self.sample.time, now, amount, is_least))

    @property
    def tasks(self) -> tuple[TaskActivity, ...]:
        """The tasks of the latest sample."""
        return tuple(self._tracks[key] for key in self.steps)

    @property
    def sections(self) -> tuple[SectionActivity, ...]:
        """The sections by object, most begun first."""
        found = self._sections.values()
        return tuple(sorted(found, key=lambda section: (-section.begun, -section.in_flight)))
