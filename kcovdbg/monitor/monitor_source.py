# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sources of the samples that ``monitor`` shows: a running kernel, or a recording."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from kcovdbg.errors import GoneError, KcovdbgError
from kcovdbg.monitor.activity import Activity
from kcovdbg.monitor.sampler import Sampler, find_interval
from kcovdbg.monitor.samples import RecordingWriter, Sample

# Every n-th activity of a recording is kept, for going back.
_KEPT: Final = 64
_SPEEDS: Final = (0.125, 64.0)
# Seconds until a kernel that could not be read is read again.
_RETRY: Final = 1.0


class LiveSource:
    """Samples of a kernel that runs.

    :param sampler: takes them.
    :param interval: seconds from one look to the next, at least.
    :param share: of one core's time that looking, recording and drawing may take.
    :param writer: records them; None to record nothing.
    :param let_run: lets a machine that is stopped for each look run for some seconds, and returns whether it runs on;
        None for a machine that is not stopped.
    """

    def __init__(
        self,
        sampler: Sampler,
        interval: float,
        share: float,
        writer: RecordingWriter | None = None,
        let_run: Callable[[float], bool] | None = None,
    ) -> None:
        self._sampler = sampler
        self._interval = interval
        self.share = share
        self._writer = writer
        self._let_run = let_run
        self.activity = Activity()
        self.problem: str | None = None
        self._is_over = False
        self._started = time.monotonic()
        self._used_before = 0.0
        self._look_time = 0.0

    @property
    def is_recording(self) -> bool:
        """Whether samples are recorded."""
        return self._writer is not None

    @property
    def is_stepped(self) -> bool:
        """Whether the machine runs only while :meth:`wait` waits."""
        return self._let_run is not None

    @property
    def pause(self) -> float | None:
        """Seconds to the next look, so that the budget is kept; None after the machine has ended, or stopped for good."""
        if self._is_over:
            return None
        interval = _RETRY
        if self.problem is None:
            # Drawing the look is of the budget as well.
            used = time.process_time() - self._used_before
            interval = find_interval(self.share, used, self._look_time if self.is_stepped else 0.0, self._interval)
        return max(self._started + interval - time.monotonic(), 0.0)

    def wait(self, seconds: float) -> None:
        """Wait for some seconds, in which the machine runs.

        :raises GoneError: when the machine ends before anything of it was seen.
        """
        if self._let_run is None:
            time.sleep(seconds)
        elif not self._is_over:
            try:
                if not self._let_run(seconds):
                    self._end("stopped", "the machine has stopped by itself, or by another debugger")
            except GoneError as error:
                self._note_end(error)

    def advance(self) -> None:
        """Look at the kernel; what cannot be read becomes the problem.

        :raises GoneError: when the machine ends before anything of it was seen.
        """
        if self._is_over:
            return
        self._started, self._used_before = time.monotonic(), time.process_time()
        try:
            sample = self._sampler.look()
        except GoneError as error:
            self._note_end(error)
            return
        except KcovdbgError as error:
            self.problem = f"could not look at the kernel: {error}"
            return
        self.problem = None
        if sample.objects is None:
            self._look_time = time.monotonic() - self._started
        else:
            # Whole looks have a budget of their own.
            self._used_before += sample.seconds
        self._add(sample)

    def _note_end(self, error: GoneError) -> None:
        if self.activity.sample is None:
            raise error
        self._end("gone", str(error))

    def _end(self, state: str, problem: str) -> None:
        """Keep showing the last sample, if there is one."""
        self._is_over = True
        self.problem = problem
        if (last := self.activity.sample) is not None:
            self._add(last._replace(time=time.time(), state=state, objects=None, shares=(), reads=0, seconds=0.0, errors=()))

    def _add(self, sample: Sample) -> None:
        self.activity = self.activity.after(sample)
        if self._writer is not None:
            self._writer.add(sample)


class PlaybackSource:
    """The samples of a recording, at the speed at which they were taken or another one.

    :param samples: at least one.
    """

    problem: str | None = None
    share: float | None = None
    is_recording = is_stepped = False

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples = samples
        self.index = -1
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

    def advance(self) -> None:
        """Go to the next sample, if there is one."""
        self.go_to(self.index + 1)

    def go_to(self, index: int) -> None:
        """Go to a sample; an index out of range stands for the first or the last one."""
        index = min(max(index, 0), len(self.samples) - 1)
        if index <= self.index or self.index < 0:
            # From the nearest earlier one that is kept.
            self.index = max((kept for kept in self._kept if kept <= index), default=-1)
            self.activity = self._kept.get(self.index, Activity())
        while self.index < index:
            self.index += 1
            self.activity = self.activity.after(self.samples[self.index])
            if self.index % _KEPT == 0:
                self._kept[self.index] = self.activity
        self._since = time.monotonic()

    def change_speed(self, factor: float) -> None:
        """Play faster or slower."""
        least, most = _SPEEDS
        self.speed = min(max(self.speed * factor, least), most)

    def seek(self, seconds: float) -> None:
        """Go forward or back by some seconds, by at least one sample."""
        wanted = self.samples[self.index].time + seconds
        step = 1 if seconds > 0 else -1
        index = self.index + step
        while 0 < index < len(self.samples) and (wanted - self.samples[index].time) * step > 0:
            index += step
        self.go_to(index)


MonitorSource: TypeAlias = LiveSource | PlaybackSource
"""A source of a monitor's looks."""
