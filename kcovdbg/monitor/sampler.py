# SPDX-License-Identifier: LGPL-2.1-or-later
"""Takes samples of a kernel that runs, within a budget of processor time.

A near look reads the tasks; where there are many, only those that had KCOV state before, and the CPUs' current ones. A
whole look walks all tasks, finds the objects, and applies the rules that need no more than that; it comes as often as the
budget allows.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kcovdbg.abi.mode import DISABLED
from kcovdbg.check.runner import check_briefly
from kcovdbg.console.wording import syscall_text
from kcovdbg.errors import GoneError, KcovdbgError, ReadError
from kcovdbg.model.kcov import Kcov
from kcovdbg.model.remote import IRQ_LIST, TASK_LIST
from kcovdbg.model.state import Part, Source, State
from kcovdbg.model.task import Role, Task, TaskFields
from kcovdbg.monitor.activity import BufferKey, buffer_key, compare_looks
from kcovdbg.monitor.samples import AreaSample, FindingSample, ObjectSample, RecordShare, Sample, TaskSample
from kcovdbg.records.pc_names import LocationCache
from kcovdbg.target.connection import MachineState
from kcovdbg.target.protocol import Target
from kcovdbg.walk.buffers import read_window
from kcovdbg.walk.layout import Layout
from kcovdbg.walk.state import StateReader
from kcovdbg.walk.tasks import find_current_tasks, read_task

SHARE: Final = 0.04
"""The share of one core's time that looking may take by default."""
LEAST_INTERVAL: Final = 0.25
"""Seconds between two looks, at least."""

STOPPED_PART: Final = 0.5
"""The share of the time for which a machine may be stopped for looks, as a part of the share of a core."""

_NEAR: Final = Part.TASKS | Part.CURRENT | Part.SAVED | Part.CACHED_AREAS | Part.DEVICE_USE
_WHOLE: Final = (
    _NEAR
    | Part.REMOTE
    | Part.FILES
    | Part.VMALLOC
    | Part.OBJECTS
    | Part.AREAS
    | Part.LINKS
    | Part.LOCKS
    | Part.TASK_FACTS
    | Part.DEVICES
)
_LEFT_OUT: Final = frozenset((Source.SLAB, Source.LOST, Source.STACKS))
# Up to so many tasks, reading all takes not much longer than reading some.
_FEW_TASKS: Final = 300
# The part of the budget that is for whole looks.
_WHOLE_PART: Final = 0.25
# Seconds between two whole looks, at least.
_WHOLE_INTERVAL: Final = 1.0
# Seconds for which a task is still read after its section has ended: workers often begin another one.
_REMEMBERED: Final = 10.0
_MAX_REMEMBERED: Final = 64
# Limits for the buffers of which records are read in one look, and for the records of each.
_MAX_BUFFERS: Final = 4
_MAX_RECORDS: Final = 128


class Sampler:
    """Takes samples, one after another.

    :param target: the kernel.
    :param layout: of this kernel.
    :param names: locates the records that are sampled; None to sample none.
    :param share: of one core's time that looking may take.
    :param is_stepped: whether the machine is stopped for each look, and runs between two.
    """

    def __init__(
        self, target: Target, layout: Layout, names: LocationCache | None, share: float = SHARE, *, is_stepped: bool = False
    ) -> None:
        self.target = target
        self._layout = layout
        self._names = names
        self._share = share
        self._known: tuple[TaskFields, ...] = ()
        self._remembered: dict[int, tuple[float, TaskFields]] = {}
        self._last: dict[BufferKey, TaskSample] = {}
        self._next_whole = 0.0
        self._tasks = 0
        self._state: str | None = None
        self._is_stepped = is_stepped
        # Chooses the records that are read in a buffer; no security depends on it.
        self._random = random.Random(0)  # noqa: S311

    def look(self) -> Sample:
        """Look at the kernel once.

        :raises GoneError: when the machine has ended.
        :raises KcovdbgError: when nothing could be read.
        """
        started, reads, began = time.process_time(), self._reads, time.monotonic()
        is_whole = time.monotonic() >= self._next_whole
        if is_whole:
            machine = self.target.state()
            self._state = None if machine is None else machine.value
            if self._is_stepped and machine is MachineState.STOPPED:
                self._state = MachineState.RUNNING.value
        now = time.time()
        walks = is_whole or self._tasks <= _FEW_TASKS
        reader = StateReader(self.target, self._layout, known_tasks=None if walks else self._find_near(), is_brief=True)
        state = reader.read(_WHOLE if is_whole else _NEAR)
        of_devices = find_device_tasks(state)
        asked = {fields.address: fields for fields in (*(task.fields for task in state.tasks), *of_devices)}
        state = reader.read(_WHOLE if is_whole else _NEAR, syscalls=tuple(asked.values()))
        tasks = tuple(make_task_sample(task, state) for task in state.tasks)
        self._remember(state.tasks, of_devices, time.monotonic())
        if walks:
            self._tasks = len(state.task_fields)
        shares = self._sample_records(state.tasks, tasks)
        findings = None
        if is_whole:
            findings = tuple(
                FindingSample(found.rule, found.severity.value, found.object, found.message)
                for found in check_briefly(reader, _WHOLE)
            )
        # Parts that a near look leaves out are not reported as missing.
        errors = tuple(note for source, notes in state.lacking.items() if source not in _LEFT_OUT for note in notes)
        used = time.process_time() - started
        if is_whole:
            now_done = time.monotonic()
            stopped = (now_done - began) / STOPPED_PART if self._is_stepped else 0.0
            self._next_whole = now_done + max(_WHOLE_INTERVAL, max(used, stopped) / (self._share * _WHOLE_PART))
        self._last = {buffer_key(task): task for task in tasks}
        return Sample(
            time=now,
            state=self._state,
            tasks=(*tasks, *make_device_samples(state)),
            objects=make_object_samples(state) if is_whole else None,
            areas=count_areas(state),
            findings=findings,
            shares=shares,
            reads=None if reads is None or self._reads is None else self._reads - reads,
            seconds=used,
            errors=tuple(dict.fromkeys(errors)),
        )

    @property
    def _reads(self) -> int | None:
        """The reads of the target so far, None where it does not count them."""
        reads: int | None = getattr(self.target, "read_count", None)
        return reads

    def _find_near(self) -> Sequence[TaskFields]:
        """Return the tasks of a near look."""
        found = {fields.address: fields for fields in self._known}
        found.update((address, fields) for address, (_, fields) in self._remembered.items())
        for address in find_current_tasks(self.target).values():
            if address not in found:
                try:
                    found[address] = read_task(self.target, self._layout, address)
                except ReadError:
                    continue
        return tuple(found.values())

    def _remember(self, tasks: Iterable[Task], of_devices: Iterable[TaskFields], now: float) -> None:
        self._known = (*(task.fields for task in tasks), *of_devices)
        for task in tasks:
            if task.session.is_section:
                self._remembered.pop(task.fields.address, None)
                self._remembered[task.fields.address] = (now, task.fields)
        for address, (seen, _) in tuple(self._remembered.items()):
            if now - seen > _REMEMBERED or len(self._remembered) > _MAX_REMEMBERED:
                del self._remembered[address]

    def _sample_records(self, tasks: Sequence[Task], samples: Sequence[TaskSample]) -> tuple[RecordShare, ...]:
        """Read some of the records that are new in the buffers that grew most."""
        if self._names is None:
            return ()
        steps = [compare_looks(self._last.get(buffer_key(sample)), sample) for sample in samples]
        growing = sorted((number for number, step in enumerate(steps) if step.gained), key=lambda number: -steps[number].gained)
        found: Counter[tuple[str | None, str | None]] = Counter()
        total = sum(step.gained for step in steps)
        read = sum(steps[number].gained for number in growing[:_MAX_BUFFERS])
        for number in growing[:_MAX_BUFFERS]:
            step, task, sample = steps[number], tasks[number], samples[number]
            count = min(sample.count or 0, sample.capacity or 0)
            new = min(step.gained, count)
            taken = min(new, _MAX_RECORDS)
            first = count - new + self._random.randint(0, new - taken)
            reader = StateReader(self.target, self._layout, known_tasks=(task.fields,), is_brief=True)
            try:
                window = read_window(self.target, self._layout, reader, str(sample.pid), first, taken)
                self._names.prefetch(window.pcs)
            except GoneError:
                raise
            except KcovdbgError:
                # It was emptied, or its task has ended: the next look samples other records.
                continue
            if not window.records:
                continue
            # The buffers that are read stand for those that are not.
            weight = step.gained / window.records * (total / read)
            for pc, times in Counter(window.pcs).items():
                frame = self._names.frame(pc)
                found[frame.function, frame.file] += times * weight  # type: ignore[assignment]
        return tuple(RecordShare(function, file, round(float(records), 3)) for (function, file), records in found.most_common())


def make_task_sample(task: Task, state: State) -> TaskSample:
    """Return a task as a sample has it."""
    fields = task.fields
    count, full = task.count, task.full
    if task.session.is_section and _is_link(count, task.capacity):
        count = full = None
    return TaskSample(
        pid=fields.pid,
        tgid=fields.tgid,
        comm=fields.comm,
        task=fields.address,
        kcov=fields.kcov or fields.kcov_remote or fields.kcov,
        kcov_mode=task.mode,
        role=None if task.role is None else task.role.value,
        beneath=None if task.beneath is None else task.beneath.value,
        owns_remote=task.owns_remote,
        kcov_sequence=fields.kcov_sequence,
        kcov_area=fields.kcov_area,
        kcov_size=fields.kcov_size,
        count=count,
        capacity=task.capacity,
        full=full,
        syscall=_syscall_of(fields.address, state),
    )


def _is_link(count: int | None, capacity: int | None) -> bool:
    """Return whether an area's count, which only the kernel writes, is a link of the list of free areas.

    The section ended between two reads.
    """
    return count is not None and capacity is not None and count > capacity


def _syscall_of(task: int, state: State) -> str | None:
    call = state.syscall(task).call if task in state.syscalls else None
    return None if call is None else syscall_text(call)


def find_device_tasks(state: State) -> tuple[TaskFields, ...]:
    """Return the tasks that devices of posted series collect into."""
    sessions = (session for device in state.device_use for session in device.sessions)
    return tuple(state.task_by_address[session.task] for session in sessions if session.task in state.task_by_address)


def make_device_samples(state: State) -> Iterator[TaskSample]:
    """Yield what devices of posted series collect into tasks."""
    for device in state.device_use:
        for session in device.sessions:
            fields = state.task_by_address.get(session.task)
            count = None if session.depth and _is_link(session.count, session.capacity) else session.count
            yield TaskSample(
                pid=session.pid,
                tgid=None if fields is None else fields.tgid,
                comm=session.comm,
                task=session.task,
                kcov=session.kcov,
                kcov_mode=DISABLED if session.enabled is False else device.mode,
                role=None if session.role is None else session.role.value,
                beneath=None,
                owns_remote=False,
                kcov_sequence=session.sequence,
                kcov_area=session.area,
                kcov_size=session.size,
                count=count,
                capacity=session.capacity,
                full=None if count is None else session.full,
                syscall=_syscall_of(session.task, state),
                device=device.name,
            )


def make_object_samples(state: State) -> tuple[ObjectSample, ...]:
    """Return the objects of a state."""

    def make(address: int, kcov: Kcov, handles: Iterable[int | None], device: str | None = None) -> ObjectSample:
        size, area = (None, None) if kcov.fields is None else (kcov.fields.size, kcov.fields.area)
        known = tuple(sorted(handle for handle in handles if handle is not None))
        return ObjectSample(address, kcov.mode, size, area, kcov.pid, kcov.comm, known, device)

    found = [
        make(address, kcov, (handle.handle for handle in state.handles_of.get(address, ())))
        for address, kcov in sorted(state.objects.items())
    ]
    for device in state.devices:
        found += [
            make(address, kcov, (device.published.get(address) or None,), device.name)
            for address, kcov in sorted(device.objects.items())
        ]
    return tuple(found)


def count_areas(state: State) -> tuple[AreaSample, ...]:
    """Count the areas of a state that are cached, in use, or of an interrupted section."""
    areas: Counter[tuple[str, str]] = Counter()
    words: Counter[tuple[str, str]] = Counter()

    def add(kind: str, use: str, size: int | None) -> None:
        areas[kind, use] += 1
        words[kind, use] += size or 0

    used: set[int] = set()
    for task in state.tasks:
        fields = task.fields
        if task.session.is_section and fields.kcov_area:
            used.add(fields.kcov_area)
            add(IRQ_LIST if task.role is Role.SOFTIRQ_SECTION else TASK_LIST, "in-use", fields.kcov_size)
        if task.interrupted is not None and task.interrupted.is_section:
            add(TASK_LIST, "saved", task.interrupted.size)
    for area in state.cached_areas:
        add(area.list, "cached", area.size)
    for idle in state.irq_areas.values():
        if idle not in used:
            add(IRQ_LIST, "cached", None)
    of_kcov = tuple(AreaSample(kind, use, number, words[kind, use]) for (kind, use), number in sorted(areas.items()))
    return (*of_kcov, *_count_device_areas(state))


def _count_device_areas(state: State) -> Iterator[AreaSample]:
    for device in state.device_use:
        sizes = [session.size or 0 for session in device.sessions if session.depth]
        if sizes:
            yield AreaSample(TASK_LIST, "in-use", len(sizes), sum(sizes), device.name)
        if device.idle_areas:
            number = len(device.idle_areas)
            yield AreaSample(TASK_LIST, "cached", number, number * device.area_words, device.name)


def find_interval(share: float, used: float, stopped: float, least: float) -> float:
    """Return the seconds from one look to the next so that looking and drawing take no more than a share of a core.

    :param used: processor time of a look and of drawing it.
    :param stopped: seconds for which a look stops the machine.
    """
    return max(least, max(used, stopped / STOPPED_PART) / (share * (1 - _WHOLE_PART)))
