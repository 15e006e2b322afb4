# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sources of the samples that ``monitor`` shows: a running kernel, or a recording."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeAlias

from kcovdbg.errors import GoneError, KcovdbgError
from kcovdbg.monitor.activity import Activity
from kcovdbg.monitor.sampler import Sampler, find_interval
from kcovdbg.monitor.samples import Facts, RecordedRun, RecordingWriter, Sample

# Every n-th activity of a recording is kept, for going back.
_KEPT: Final = 64
# Costs are averaged over about as many looks.
_SMOOTHED: Final = 4
# Seconds until a kernel that could not be read is read again.
_RETRY: Final = 1.0


class LiveSource:
    """Samples of a kernel that runs.

    :param sampler: takes them.
    :param facts: of the kernel.
    :param interval: seconds from one look to the next, at least.
    :param share: of one core's time that looking and drawing may take.
    :param writer: records them; None to record nothing.
    :param let_run: lets a machine that is stopped for each look run for some seconds, and returns whether it runs on;
        None for a machine that is not stopped.
    """

    def __init__(
        self,
        sampler: Sampler,
        facts: Facts,
        interval: float,
        share: float,
        writer: RecordingWriter | None = None,
        let_run: Callable[[float], bool] | None = None,
    ) -> None:
        self._sampler = sampler
        self.facts = facts
        self._interval = interval
        self.share = share
        self._writer = writer
        self.activity = Activity()
        self.problem: str | None = None
        self.is_gone = False
        self._started = time.monotonic()
        self._look_time = 0.0
        self._look_cost = 0.0
        self.frame_cost = 0.0
        self._let_run = let_run
        self._has_stopped = False

    @property
    def is_recording(self) -> bool:
        """Whether samples are recorded."""
        return self._writer is not None

    @property
    def pause(self) -> float | None:
        """Seconds to the next look, so that the budget is kept; None after the machine has ended, or stopped for good."""
        if self.is_gone or self._has_stopped:
            return None
        if self.problem is not None:
            return max(self._started + _RETRY - time.monotonic(), 0.0)
        # Whole looks have a budget of their own.
        used = self._look_cost + self.frame_cost
        stopped = self._look_time if self.is_stepped else 0.0
        due = self._started + find_interval(self.share, used, stopped, self._interval)
        return max(due - time.monotonic(), 0.0)

    def wait(self, seconds: float) -> None:
        """Wait for some seconds, in which the machine runs.

        :raises GoneError: when the machine ends before anything of it was seen.
        """
        if self._let_run is None:
            time.sleep(seconds)
        elif not self._has_stopped:
            try:
                self._has_stopped = not self._let_run(seconds)
            except GoneError as error:
                self._note_end(error)
                return
            if self._has_stopped:
                self.problem = "the machine has stopped by itself, or by another debugger"
                if self.activity.sample is not None:
                    self._add(self.activity.sample._replace(time=time.time(), state="stopped", shares=(), reads=0, seconds=0.0))

    @property
    def is_stepped(self) -> bool:
        """Whether the machine runs only while :meth:`wait` waits."""
        return self._let_run is not None

    def note_frame(self, seconds: float) -> None:
        """Take into account what it costs to draw a look.

        :param seconds: processor time of drawing one.
        """
        self.frame_cost = _smooth(self.frame_cost, seconds)

    def advance(self) -> None:
        """Look at the kernel; what cannot be read becomes the problem."""
        if self.is_gone or self._has_stopped:
            return
        self._started = time.monotonic()
        try:
            sample = self._sampler.look()
        except GoneError as error:
            self._note_end(error)
            return
        except KcovdbgError as error:
            self.problem = f"could not look at the kernel: {error}"
            return
        self.problem = None
        looked = time.monotonic() - self._started
        # Following what is new and recording it are of the look's budget as well.
        began = time.process_time()
        self._add(sample)
        if sample.objects is None:
            self._look_time = _smooth(self._look_time, looked)
            self._look_cost = _smooth(self._look_cost, sample.seconds + time.process_time() - began)

    def _note_end(self, error: GoneError) -> None:
        """Note that the machine has ended.

        :raises GoneError: when nothing of it was seen.
        """
        self.is_gone = True
        self.problem = str(error)
        last = self.activity.sample
        if last is None:
            raise error
        # Keep showing the last sample.
        self._add(
            last._replace(
                time=time.time(), state="gone", objects=None, findings=None, shares=(), reads=0, seconds=0.0, errors=()
            )
        )

    def _add(self, sample: Sample) -> None:
        self.activity = self.activity.after(sample)
        if self._writer is not None:
            self._writer.add(sample)


def _smooth(before: float, now: float) -> float:
    """Return the mean of recent values; a single outlier has little weight."""
    return now if not before else before + (now - before) / _SMOOTHED


class PlaybackSource:
    """The samples of a recording, at the speed at which they were taken or another one.

    :param recording: with at least one sample.
    """

    problem: str | None = None
    share: float | None = None
    frame_cost = 0.0
    is_recording = is_stepped = False

    def __init__(self, recording: RecordedRun) -> None:
        self.samples, self.facts = recording
        self.index = 0
        self.speed = 1.0
        self._kept: dict[int, Activity] = {}
        self.go_to(0)

    @property
    def pause(self) -> float | None:
        """Seconds to the next sample; None at the end."""
        if self.index + 1 >= len(self.samples):
            return None
        gap = max(self.samples[self.index + 1].time - self.samples[self.index].time, 0.0) / self.speed
        return max(self._since + gap - time.monotonic(), 0.0)

    def wait(self, seconds: float) -> None:
        """Wait for some seconds."""
        time.sleep(seconds)

    def note_frame(self, seconds: float) -> None:
        """Do nothing: playing has no budget."""

    def advance(self) -> None:
        """Go to the next sample, if there is one."""
        self.go_to(self.index + 1)

    def go_to(self, index: int) -> None:
        """Go to a sample; an index out of range stands for the first or the last one."""
        self.index = min(max(index, 0), len(self.samples) - 1)
        self._since = time.monotonic()
        # Computed from the nearest earlier one that is kept: the last one that was shown, or every n-th.
        first = max((kept for kept in self._kept if kept <= self.index), default=-1)
        activity = self._kept.get(first, Activity())
        for number in range(first + 1, self.index + 1):
            activity = activity.after(self.samples[number])
            if number % _KEPT == 0:
                self._kept[number] = activity
        self._kept = {kept: known for kept, known in self._kept.items() if kept % _KEPT == 0} | {self.index: activity}
        self.activity = activity

    def seek(self, seconds: float) -> None:
        """Go forward or back by some seconds, by at least one sample."""
        wanted = self.samples[self.index].time + seconds
        step = 1 if seconds > 0 else -1
        index = self.index + step
        while 0 < index < len(self.samples) and (wanted - self.samples[index].time) * step > 0:
            index += step
        self.go_to(index)


MonitorSource: TypeAlias = LiveSource | PlaybackSource
"""What a monitor shows."""
