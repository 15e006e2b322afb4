# SPDX-License-Identifier: LGPL-2.1-or-later
"""Take the samples of ``monitor``: look at a running kernel within a budget of processor time.

A near look reads the tasks. If there are many, it reads only tasks that had KCOV state before, and
the CPUs' current tasks. A whole look reads all tasks and finds the objects, as often as the budget
allows.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from kcovdbg.abi.mode import DISABLED
from kcovdbg.console.wording import syscall_text
from kcovdbg.errors import GoneError, KcovdbgError, ReadError
from kcovdbg.limits import renew_time_for_replies
from kcovdbg.model.kcov import Kcov
from kcovdbg.model.state import Part, Source, State
from kcovdbg.model.task import Role, Task, TaskFields
from kcovdbg.monitor.activity import Activity, BufferKey, buffer_key, compare_looks
from kcovdbg.monitor.samples import (
    OBJECT_SAMPLE_COLUMNS,
    TASK_SAMPLE_COLUMNS,
    ObjectSample,
    RecordShare,
    Sample,
    TaskSample,
)
from kcovdbg.records.pc_locations import LocationCache
from kcovdbg.target.connection import MachineState
from kcovdbg.target.target import Target
from kcovdbg.target.watchpoints import RunEnd, Watchpoints
from kcovdbg.walk.buffers import read_window
from kcovdbg.walk.layout import Layout
from kcovdbg.walk.state import StateReader
from kcovdbg.walk.tasks import read_current_tasks, read_task

SHARE: Final = 0.04
"""The share of one core's time that looks may take by default."""
LEAST_INTERVAL: Final = 0.25
"""Least time between two looks, in seconds."""

# Looks may stop a machine for this part of the time that they may take.
_STOPPED_PART: Final = 0.5
_NEAR: Final = Part.TASKS | Part.CURRENT | Part.DEVICE_SESSIONS
_WHOLE: Final = _NEAR | Part.REMOTE | Part.FILES | Part.VMALLOC | Part.OBJECTS | Part.DEVICES
_LEFT_OUT: Final = frozenset((Source.SLAB, Source.LOST, Source.STACKS))
# If there are no more tasks, a near look reads all: that hardly takes longer.
_FEW_TASKS: Final = 300
# The part of the budget for whole looks.
_WHOLE_PART: Final = 0.25
# Least time between two whole looks, in seconds.
_WHOLE_INTERVAL: Final = 1.0
# Near looks still read so many tasks without KCOV state that had it before: workers often begin
# another section.
_MAX_REMEMBERED: Final = 64
# Limits of one look: buffers from which records are read, and records of each.
_MAX_BUFFERS: Final = 4
_MAX_RECORDS: Final = 128


_READ_TASK: Final = {column.key: column.reader() for column in TASK_SAMPLE_COLUMNS}
_READ_OBJECT: Final = {column.key: column.reader() for column in OBJECT_SAMPLE_COLUMNS}


def make_task_samples(state: State) -> Iterator[TaskSample]:
    """Yield a sample of each task with KCOV state, and of each session of a posted series'
    device.
    """
    for task in state.tasks:
        members = {key: read(task) for key, read in _READ_TASK.items()}
        members["role"] = _role_name(task.role)
        yield _complete(TaskSample(**members), state)
    for session in state.device_sessions:
        mode = session.mode
        if session.enabled is False:
            mode = DISABLED
        sample = TaskSample(
            pid=session.pid,
            comm=session.comm,
            task=session.task,
            kcov=session.kcov,
            kcov_remote=None,
            kcov_mode=mode,
            kcov_size=session.size,
            kcov_area=session.area,
            role=_role_name(session.role),
            owns_remote=False,
            count=session.count,
            capacity=session.capacity,
            full=session.full,
            device=session.device,
        )
        yield _complete(sample, state)


def _role_name(role: Role | None) -> str | None:
    if role is None:
        return None
    return role.value


def _complete(sample: TaskSample, state: State) -> TaskSample:
    """Return a sample with its system call, and without an impossible count of a section."""
    entered = state.syscalls.get(sample.task)
    if entered is not None and entered.call is not None:
        sample = replace(sample, syscall=syscall_text(entered.call))
    count, capacity = sample.count, sample.capacity
    if sample.is_section and count is not None and capacity is not None and count > capacity:
        # The section ended between two reads: the word is now a link of the list of free areas.
        return replace(sample, count=None, full=None)
    return sample


def _make_object_samples(state: State) -> tuple[ObjectSample, ...]:
    """Return a sample of each object of KCOV, then of the devices' objects."""
    found: list[ObjectSample] = []

    def add(kcov: Kcov, handles: Iterable[int | None]) -> None:
        members = {key: read(kcov) for key, read in _READ_OBJECT.items()}
        known = sorted(handle for handle in handles if handle is not None)
        found.append(ObjectSample(**members, handles=tuple(known)))

    for address, kcov in sorted(state.objects.items()):
        add(kcov, (handle.handle for handle in state.handles_of.get(address, ())))
    for device in state.devices:
        for address, kcov in sorted(device.objects.items()):
            add(kcov, (device.published.get(address) or None,))
    return tuple(found)


def _find_errors(state: State) -> tuple[str, ...]:
    """Return the errors of a look, without the parts that looks do not read."""
    errors: dict[str, None] = {}
    for source, lack in state.lacking.items():
        if source not in _LEFT_OUT:
            errors |= dict.fromkeys(lack.lines)
    return tuple(errors)


# Seconds until a kernel that could not be read is read again.
_RETRY: Final = 1.0


class LiveSource:
    """Samples of a kernel that runs.

    :param target: the kernel.
    :param layout: the layout of its KCOV.
    :param names: locates sampled records; None to sample no records.
    :param interval: least time from one look to the next, in seconds.
    :param share: the share of one core's time that looking, recording and drawing may take.
    :param record: records a sample; None to record nothing.
    :param machine: if each look stops the machine, lets it run between looks.
    """

    def __init__(
        self,
        target: Target,
        layout: Layout,
        names: LocationCache | None,
        interval: float = LEAST_INTERVAL,
        share: float = SHARE,
        record: Callable[[Sample], None] | None = None,
        machine: Watchpoints | None = None,
    ) -> None:
        self.target = target
        self._layout = layout
        self._names = names
        self._interval = interval
        self.share = share
        self._record = record
        self._machine = machine
        self.activity = Activity()
        self.problem: str | None = None
        self._is_over = False
        # Start of the latest look, processor time until then, and seconds for which the look
        # stopped the machine.
        self._began = time.monotonic()
        self._used = self._stopped = 0.0
        self._next_whole = 0.0
        self._state: str | None = None
        self._task_count = 0
        self._known: dict[int, TaskFields] = {}
        self._last: dict[BufferKey, TaskSample] = {}
        # Chooses the records to sample.
        self._random = random.Random(0)  # noqa: S311

    @property
    def is_recording(self) -> bool:
        """Whether samples are recorded."""
        return self._record is not None

    @property
    def is_stepped(self) -> bool:
        """Whether the machine runs only while :meth:`wait` waits."""
        return self._machine is not None

    @property
    def pause(self) -> float | None:
        """Seconds until the next look may begin; None after the machine has ended or stopped for
        good.
        """
        if self._is_over:
            return None
        interval = _RETRY
        if self.problem is None:
            # The time also includes drawing the look.
            used = time.process_time() - self._used
            interval = self._find_interval(1 - _WHOLE_PART, used, self._interval)
        return max(self._began + interval - time.monotonic(), 0.0)

    def _find_interval(self, part: float, used: float, least: float) -> float:
        """Return the seconds from one look to the next with which looks keep to a part of the
        budget.

        :param used: processor time of a look and of showing it.
        :param least: least time from one look to the next.
        """
        cost = max(used, self._stopped / _STOPPED_PART)
        return max(least, cost / (self.share * part))

    def wait(self, seconds: float) -> None:
        """Wait for some seconds while the machine runs.

        :raises KcovdbgError: when the machine ends or stops before the first look.
        """
        if self._machine is None:
            time.sleep(seconds)
        elif not self._is_over:
            try:
                end = self._machine.run((), lambda: True, seconds)
            except GoneError as error:
                self._end("gone", error)
                return
            if end is RunEnd.INTERRUPT:
                raise KeyboardInterrupt
            if end is not RunEnd.TIME:
                problem = "the machine has stopped by itself, or by another debugger"
                self._end("stopped", KcovdbgError(problem))

    def advance(self) -> None:
        """Look at the kernel. An error becomes the problem.

        :raises GoneError: when the machine ends before the first look.
        """
        if self._is_over:
            return
        self._began, self._used = time.monotonic(), time.process_time()
        try:
            sample = self.look()
        except GoneError as error:
            self._end("gone", error)
            return
        except KcovdbgError as error:
            self.problem = f"could not look at the kernel: {error}"
            return
        self.problem = None
        end = time.monotonic()
        self._stopped = 0.0
        if self.is_stepped:
            self._stopped = end - self._began
        if sample.objects is not None:
            # Whole looks have a budget of their own: this one does not delay the next near look.
            rest = self._find_interval(_WHOLE_PART, sample.seconds, _WHOLE_INTERVAL)
            self._next_whole = end + rest
            self._used += sample.seconds
            self._stopped = 0.0
        self._add(sample)

    def _end(self, state: str, error: KcovdbgError) -> None:
        """Keep showing the last sample; raise if there is none."""
        last = self.activity.sample
        if last is None:
            raise error
        self._is_over = True
        self.problem = str(error)
        self._add(
            last._replace(
                time=time.time(),
                state=state,
                objects=None,
                shares=(),
                reads=0,
                seconds=0.0,
                errors=(),
            )
        )

    def _add(self, sample: Sample) -> None:
        self.activity = self.activity.after(sample)
        if self._record is not None:
            self._record(sample)

    def look(self) -> Sample:
        """Read a sample.

        :raises GoneError: when the machine has ended.
        :raises KcovdbgError: when nothing could be read.
        """
        renew_time_for_replies()
        started, reads_before = time.process_time(), self.target.read_count
        is_whole = time.monotonic() >= self._next_whole
        parts = _NEAR
        if is_whole:
            parts = _WHOLE
            self._state = self._find_machine_state()
        now = time.time()
        near = None
        if not is_whole and self._task_count > _FEW_TASKS:
            near = self._find_near()
        reader = StateReader(self.target, self._layout, known_tasks=near, is_brief=True)
        state = reader.read(parts)
        known = {task.fields.address: task.fields for task in state.tasks}
        for session in state.device_sessions:
            if session.task in state.task_by_address:
                known[session.task] = state.task_by_address[session.task]
        state = reader.read(parts, syscalls=tuple(known.values()))
        tasks = tuple(make_task_samples(state))
        before = [
            address
            for address in self._known
            if address in state.task_by_address and address not in known
        ]
        remembered = {address: self._known[address] for address in before[-_MAX_REMEMBERED:]}
        self._known = remembered | known
        if near is None:
            self._task_count = len(state.task_fields)
        # Samples of devices follow KCOV's.
        shares = self._sample_records(state.tasks, tasks[: len(state.tasks)])
        self._last = {buffer_key(task): task for task in tasks}
        objects = None
        if is_whole:
            objects = _make_object_samples(state)
        reads = None
        if reads_before is not None and self.target.read_count is not None:
            reads = self.target.read_count - reads_before
        return Sample(
            target=self.target.name,
            release=self.target.release,
            build_id=self.target.build_id,
            time=now,
            state=self._state,
            tasks=tasks,
            objects=objects,
            shares=shares,
            reads=reads,
            seconds=time.process_time() - started,
            errors=_find_errors(state),
        )

    def _find_machine_state(self) -> str | None:
        machine = self.target.state()
        if machine is None:
            return None
        if self.is_stepped and machine is MachineState.STOPPED:
            machine = MachineState.RUNNING
        return machine.value

    def _find_near(self) -> Sequence[TaskFields]:
        """Return the tasks that a near look reads."""
        found = dict(self._known)
        for address in read_current_tasks(self.target).found.values():
            if address not in found:
                try:
                    found[address] = read_task(self.target, self._layout, address)
                except ReadError:
                    continue
        return tuple(found.values())

    def _sample_records(
        self, tasks: Sequence[Task], samples: Sequence[TaskSample]
    ) -> tuple[RecordShare, ...]:
        """Read some of the records that are new in the buffers that grew most."""
        if self._names is None:
            return ()
        steps = [compare_looks(self._last.get(buffer_key(sample)), sample) for sample in samples]
        by_gain = sorted(zip(steps, tasks, strict=True), key=lambda item: -item[0].gained)
        sampled = [(step, task) for step, task in by_gain[:_MAX_BUFFERS] if step.gained]
        total = sum(step.gained for step in steps)
        sampled_total = sum(step.gained for step, _ in sampled)
        found: Counter[tuple[str | None, str | None]] = Counter()
        for step, task in sampled:
            sample, gained = step.now, step.gained
            taken = min(gained, _MAX_RECORDS)
            first = sample.held - gained + self._random.randint(0, gained - taken)
            reader = StateReader(
                self.target, self._layout, known_tasks=(task.fields,), is_brief=True
            )
            try:
                pcs, records = read_window(
                    self.target, self._layout, reader, str(sample.pid), first, taken
                )
                self._names.prefetch(pcs)
            except GoneError:
                raise
            except KcovdbgError:
                # The buffer was emptied, or its task has ended.
                continue
            if not records:
                continue
            # These records stand for all new records, also of buffers that are not sampled.
            weight = gained / records * (total / sampled_total)
            for pc, times in Counter(pcs).items():
                frame = self._names.frame(pc)
                found[frame.function, frame.file] += times * weight  # type: ignore[assignment]
        return tuple(
            RecordShare(function, file, round(float(records), 3))
            for (function, file), records in found.most_common()
        )


def follow(source: LiveSource, seconds: float | None) -> Iterator[Activity]:
    """Yield the current activity, and the activity after each look, until the source or the time
    ends.
    """
    end = math.inf
    if seconds is not None:
        end = time.monotonic() + seconds
    while True:
        yield source.activity
        pause = source.pause
        if pause is None or time.monotonic() + pause > end:
            return
        source.wait(pause)
        source.advance()
