# SPDX-License-Identifier: LGPL-2.1-or-later
"""Samples of a kernel that runs: what ``monitor`` sees in one look, records and plays back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from kcovdbg.abi.mode import is_tracing
from kcovdbg.model.session import Role

SECTION_ROLES = (Role.REMOTE_SECTION.value, Role.SOFTIRQ_SECTION.value)


@dataclass(frozen=True, slots=True)
class TaskSample:
    """One task with KCOV state; members are None where they are unknown."""

    pid: int | None
    tgid: int | None
    comm: str | None
    task: int
    """``struct task_struct *``."""
    kcov: int | None
    """The object that is collected for, or that the task owns."""
    kcov_mode: str | None
    """Without prefix, flags masked."""
    role: str | None
    beneath: str | None
    """The role of the session that a softirq section interrupted."""
    owns_remote: bool | None
    kcov_sequence: int | None
    kcov_area: int | None
    kcov_size: int | None
    """In words of the kernel."""
    count: int | None
    capacity: int | None
    full: bool | None
    syscall: str | None
    """The system call with its arguments."""
    device: str | None = None
    """The device of a posted series that collects; None for KCOV. Its counts are in words."""

    @property
    def is_section(self) -> bool:
        """Whether a remote or softirq section collects into the task."""
        return self.role in SECTION_ROLES

    @property
    def is_tracing(self) -> bool:
        """Whether it records coverage."""
        return self.kcov_mode is not None and is_tracing(self.kcov_mode)

    @property
    def fill(self) -> float | None:
        """How full its buffer is, 0 to 1."""
        if self.count is None or not self.capacity:
            return None
        return min(self.count / self.capacity, 1.0)


class ObjectSample(NamedTuple):
    """One ``struct kcov``."""

    kcov: int
    mode: str | None
    size: int | None
    """In words of the kernel."""
    area: int | None
    pid: int | None
    """Of the task that it is enabled for."""
    comm: str | None
    handles: tuple[int, ...] = ()
    """Those that are registered for it."""
    device: str | None = None
    """The device of a posted series that it is an object of; None for a ``struct kcov``."""


class AreaSample(NamedTuple):
    """How many areas of one kind there are."""

    list: str
    """``task`` or ``irq``."""
    state: str
    """``cached``, ``in-use`` or ``saved``."""
    areas: int
    words: int
    device: str | None = None
    """The device of a posted series that they belong to; None for KCOV's own."""


class FindingSample(NamedTuple):
    """One finding of a rule."""

    rule: str
    severity: str
    object: str
    message: str


class RecordShare(NamedTuple):
    """How many records went into one function since the look before, estimated from some of them."""

    function: str | None
    """The innermost one, which may be inlined; None where it is unknown."""
    file: str | None
    records: float


class Sample(NamedTuple):
    """One look at a kernel."""

    time: float
    """Seconds since 1970."""
    state: str | None
    """``running``, ``stopped`` or ``gone``; None where that is unknown."""
    tasks: tuple[TaskSample, ...]
    objects: tuple[ObjectSample, ...] | None
    """None where this look did not search for them."""
    areas: tuple[AreaSample, ...]
    findings: tuple[FindingSample, ...] | None
    """None where this look applied no rules."""
    shares: tuple[RecordShare, ...]
    reads: int | None
    """Reads of the kernel's memory for it, None where they are not counted."""
    seconds: float
    """Processor time that it took."""
    errors: tuple[str, ...] = ()
    """What could not be read."""


class RecordedRun:
    """The samples of one run of ``monitor``, with what does not change.

    :param samples: in order of time.
    :param facts: the target's name, release and build ID.
    """

    def __init__(self, samples: tuple[Sample, ...], facts: Mapping[str, str | None]) -> None:
        self.samples = samples
        self.facts = facts

    @cached_property
    def seconds(self) -> float:
        """From the first sample to the last one."""
        return self.samples[-1].time - self.samples[0].time if self.samples else 0.0
