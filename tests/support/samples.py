# SPDX-License-Identifier: LGPL-2.1-or-later
"""Samples of a running kernel, made by hand."""

from kcovdbg.monitor.monitor_source import LiveSource
from kcovdbg.monitor.samples import ObjectSample, Sample, TaskSample
from tests.support.state import make_layout, make_target

KCOV, OTHER = 0xFFFF888003A51C00, 0xFFFF888003A51D00
USB = 1 << 56 | 1


def task(count, *, pid=41, capacity=511, **values):
    known = {
        "pid": pid,
        "comm": "syz-executor",
        "task": 0xFFFF888004000000 + pid * 0x1000,
        "kcov": KCOV,
        "kcov_remote": None,
        "kcov_mode": "TRACE_PC",
        "role": "local",
        "owns_remote": False,
        "kcov_area": 0xFFFFC90000200000,
        "kcov_size": capacity + 1,
        "count": count,
        "capacity": capacity,
        "full": count is not None and count >= capacity,
    }
    return TaskSample(**{**known, **values})


def section(count, *, pid=7, **values):
    return task(
        count,
        pid=pid,
        comm="kworker/0:1",
        role="remote-section",
        kcov_area=0xFFFFC90000300000,
        **values,
    )


def owner(count, **values):
    return task(
        count,
        pid=42,
        kcov_mode="REMOTE",
        role="none",
        owns_remote=True,
        kcov_area=0,
        kcov_size=0,
        **values,
    )


def kcov(address=KCOV, pid=41, handles=()):
    return ObjectSample(
        address, None, "TRACE_PC", 512, 0xFFFFC90000200000, pid, "syz-executor", handles
    )


def sample(time, *tasks, **values):
    known = {"state": "running", "objects": None, "shares": (), "reads": 10, "seconds": 0.01}
    return Sample(
        "QEMU guest at /run/qmp", "6.12.0", "ab" * 20, time=time, tasks=tasks, **{**known, **values}
    )


class FakeSource(LiveSource):
    """Answers with samples made by hand, the last one again and again; raises exceptions among
    them, and calls functions.
    """

    def __init__(self, *answers, **options):
        super().__init__(make_target(), make_layout(), None, **options)
        self.answers = list(answers)
        self.looks = 0

    def look(self):
        self.looks += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer() if callable(answer) else answer


class FakeMachine:
    """Runs between two looks, for no time at all; the ends of its runs are given, or exceptions."""

    def __init__(self, *ends):
        self.ends = list(ends)
        self.runs = []

    def run(self, spans, _is_wanted, seconds):
        assert not spans
        self.runs.append(seconds)
        end = self.ends.pop(0)
        if isinstance(end, BaseException):
            raise end
        return end
