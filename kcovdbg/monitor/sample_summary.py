# SPDX-License-Identifier: LGPL-2.1-or-later
"""The answers that a recording of ``monitor`` gives: which buffers overflow, which size would do, where records go."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from kcovdbg.monitor.activity import Activity
from kcovdbg.monitor.events import BufferKey, buffer_key, compare_looks, lost_of_sections
from kcovdbg.monitor.samples import FindingSample, RecordShare, Sample, TaskSample
from kcovdbg.monitor.summary import BufferSummary, PlacedShare, PlotPoint, Summary

# The share of rounds that the recommended size holds.
_HELD: Final = 0.99
# Words of a page on 64-bit kernels, and the smallest size that is recommended.
_PAGE_WORDS: Final = 512
# Limit for the points of a plot.
_POINTS: Final = 400
_HEADER: Final = ".h"


class _SummaryKey(NamedTuple):
    kind: str
    kcov: int | None
    size: int | None
    mode: str | None


@dataclass(slots=True)
class _BufferTotals:
    """What is added up for one buffer."""

    tasks: dict[str, None] = field(default_factory=dict)
    mode: str | None = None
    capacity: int | None = None
    looks: int = 0
    overflows: int = 0
    full_seconds: float = 0.0
    free_seconds: float = 0.0
    records: int = 0
    free_records: int = 0
    lost: int = 0
    rounds: list[tuple[int, bool, float]] = field(default_factory=list)
    """Of each round the records, whether the buffer was full, and for how long."""


class _Round(NamedTuple):
    """The use of a buffer since it was empty."""

    key: _SummaryKey
    records: int
    is_full: bool
    full_seconds: float


def summarize(samples: Iterable[Sample], facts: Mapping[str, str | None]) -> Summary:
    """Return the answers that samples give.

    :param samples: in the order of time.
    """
    usage = _BufferUsage()
    shares: Counter[tuple[str | None, str | None]] = Counter()
    findings: dict[FindingSample, None] = {}
    errors: dict[str, None] = {}
    points: list[PlotPoint] = []
    gaps: list[float] = []
    activity, last = Activity(), None
    start = cpu = 0.0
    reads: int | None = None
    for sample in samples:
        activity = activity.after(sample)
        findings.update(dict.fromkeys(activity.findings))
        errors.update(dict.fromkeys(sample.errors))
        for share in sample.shares:
            file = None if share.file is None else str(PurePosixPath(share.file))
            shares[share.function, file] += share.records  # type: ignore[assignment]
        cpu += sample.seconds
        if sample.reads is not None:
            reads = (reads or 0) + sample.reads
        if last is None:
            start = sample.time
        else:
            gaps.append(sample.time - last.time)
        sizes = {kcov: found.size for kcov, found in activity.objects.items()}
        gained = usage.add(sizes, last, sample)
        span = gaps[-1] if gaps else 0.0
        points.append(
            PlotPoint(
                seconds=sample.time - start,
                rate=gained / span if span > 0 else 0.0,
                fill=max((task.fill or 0.0 for task in sample.tasks), default=0.0),
                overflows=activity.overflows,
                sections=sum(task.is_section for task in sample.tasks),
                objects=len(activity.objects),
            )
        )
        last = sample
        if len(points) >= 4 * _POINTS:
            points = _thin(points, 2 * _POINTS)
    totals = usage.end()
    seconds = 0.0 if last is None else last.time - start
    sampled = sum(shares.values())
    buffers = sorted((_summarize_buffer(key, of) for key, of in totals.items()), key=_buffer_order)
    return Summary(
        facts=dict(facts),
        start=start,
        seconds=seconds,
        looks=activity.looks,
        interval=sorted(gaps)[len(gaps) // 2] if gaps else None,
        buffers=tuple(buffers),
        sections=activity.sections,
        functions=_rank((RecordShare(*place, records) for place, records in shares.items()), sampled),
        files=_rank((RecordShare(None, file, records) for (_, file), records in shares.items()), sampled),
        directories=_rank(_by_directory(shares), sampled),
        sampled=sampled,
        findings=tuple(findings),
        came=activity.came,
        went=activity.went,
        overflows=activity.overflows,
        cpu_share=cpu / seconds if seconds > 0 else 0.0,
        reads=reads,
        points=tuple(_thin(points, _POINTS)),
        errors=tuple(errors),
    )


class _BufferUsage:
    """The use of each buffer, added up over samples."""

    def __init__(self) -> None:
        self._totals: dict[_SummaryKey, _BufferTotals] = {}
        self._rounds: dict[BufferKey, _Round] = {}

    def add(self, sizes: Mapping[int, int | None], last: Sample | None, sample: Sample) -> int:
        """Add a sample to the totals; return the records that all of KCOV's buffers gained.

        :param last: the sample before it.
        :param sizes: of the objects' buffers, in words.
        """
        known = {} if last is None else {buffer_key(task): task for task in last.tasks}
        lost = {} if last is None else lost_of_sections(last.tasks, sample.tasks)
        span = 0.0 if last is None else sample.time - last.time
        present: set[BufferKey] = set()
        gained = 0
        for task in sample.tasks:
            if task.count is None or not task.capacity:
                continue
            key, before = buffer_key(task), known.get(buffer_key(task))
            present.add(key)
            of = _SummaryKey("area" if task.is_section else "buffer", task.kcov, _size_of(task, sizes), task.kcov_mode)
            step = compare_looks(before, task)
            total = self._totals.setdefault(of, _BufferTotals())
            total.tasks[f"{task.comm or '?'} ({task.pid if task.pid is not None else '?'})"] = None
            total.capacity = task.capacity
            total.looks += 1
            total.overflows += step.became_full
            total.records += step.gained
            total.lost += step.lost + (0 if task.is_section else lost.get(task.kcov or 0, 0))
            # Devices count words.
            gained += step.gained if task.device is None else 0
            was_full = before is not None and bool(before.full) and not step.was_reset
            if before is not None and was_full and task.full:
                total.full_seconds += span
            elif before is not None and not step.was_reset:
                total.free_seconds += span
                total.free_records += step.gained
            current = self._rounds.get(key)
            if current is not None and (step.was_reset or not _is_same(current.key, of)):
                self._end_round(current)
                current = None
            full_seconds = (0.0 if current is None else current.full_seconds) + (span if was_full and task.full else 0.0)
            self._rounds[key] = _Round(of, min(task.count, task.capacity), bool(task.full), full_seconds)
        for key in [key for key in self._rounds if key not in present]:
            self._end_round(self._rounds.pop(key))
        return gained

    def end(self) -> Mapping[_SummaryKey, _BufferTotals]:
        """Return the totals, after the last sample."""
        for left in self._rounds.values():
            self._end_round(left)
        # What was seen of an object's buffer before a look found the object, and so its size.
        for key in [key for key in self._totals if key.size is None]:
            of = next((known for known in self._totals if known.size is not None and known._replace(size=None) == key), None)
            if of is None:
                continue
            unsized, total = self._totals.pop(key), self._totals[of]
            total.tasks = {**unsized.tasks, **total.tasks}
            for name in ("looks", "overflows", "full_seconds", "free_seconds", "records", "free_records", "lost", "rounds"):
                setattr(total, name, getattr(unsized, name) + getattr(total, name))
        return self._totals

    def _end_round(self, ended: _Round) -> None:
        if ended.records:
            self._totals[ended.key].rounds.append((ended.records, ended.is_full, ended.full_seconds))


def _is_same(before: _SummaryKey, now: _SummaryKey) -> bool:
    """Return whether a buffer is the same one, as far as its size is known."""
    return before == now or (None in (before.size, now.size) and before._replace(size=None) == now._replace(size=None))


def _size_of(task: TaskSample, sizes: Mapping[int, int | None]) -> int | None:
    """Return the size of the buffer that a task's count is of, in words."""
    if task.kcov_size:
        return task.kcov_size
    # An owner of remote handles has no area itself: it is the object's.
    return sizes.get(task.kcov or 0)


def _summarize_buffer(key: _SummaryKey, total: _BufferTotals) -> BufferSummary:
    rate = total.free_records / total.free_seconds if total.free_seconds > 0 and total.free_records else None
    estimate = None if total.full_seconds and rate is None else round((rate or 0.0) * total.full_seconds)
    if estimate is not None:
        estimate = max(estimate, total.lost)
    needed = _find_needed(total, rate)
    words = None
    if needed is not None and key.size and total.capacity:
        # Comparisons take four words, records of other formats what they take.
        words = _round_size(1 + needed * max((key.size - 1) // total.capacity, 1))
    return BufferSummary(
        kind=key.kind,
        kcov=key.kcov,
        tasks=tuple(total.tasks),
        mode=key.mode,
        size=key.size,
        capacity=total.capacity,
        looks=total.looks,
        rounds=len(total.rounds),
        overflows=total.overflows,
        full_seconds=total.full_seconds,
        records=total.records,
        rate=rate,
        lost=total.lost,
        lost_estimate=estimate,
        largest=max((records for records, _, _ in total.rounds), default=0),
        needed=needed,
        needed_size=words,
    )


def _find_needed(total: _BufferTotals, rate: float | None) -> int | None:
    """Return how many records the rounds need, all but 1 % of them."""
    needs: list[float] = []
    for records, is_full, full_seconds in total.rounds:
        if is_full and rate is None:
            # How much did not fit is unknown.
            needs.append(math.inf)
        else:
            needs.append(records + (full_seconds * (rate or 0.0) if is_full else 0))
    if not needs:
        return None
    needs.sort()
    needed = needs[min(math.ceil(_HELD * len(needs)), len(needs)) - 1]
    if math.isinf(needed):
        return None
    # Assume that a full buffer lacks at least one record.
    is_cut = any(is_full and records >= needed for records, is_full, _ in total.rounds)
    return math.ceil(needed) + is_cut


def _round_size(words: int) -> int:
    """Return a size that is a power of two and whole pages."""
    return max(_PAGE_WORDS, 1 << (words - 1).bit_length())


def _buffer_order(buffer: BufferSummary) -> tuple[float, ...]:
    return (-buffer.overflows, -(buffer.lost_estimate or buffer.lost), -buffer.records, buffer.kcov or 0)


def _by_directory(shares: Mapping[tuple[str | None, str | None], float]) -> Iterator[RecordShare]:
    """Yield shares by directory; those of headers by themselves, as code of one is compiled elsewhere."""
    for (_, file), records in shares.items():
        path = PurePosixPath(file or "")
        if path.suffix == _HEADER:
            yield RecordShare(None, str(path.parent / f"*{_HEADER}"), records)
        else:
            yield RecordShare(None, None if file is None else f"{path.parent}/", records)


def _rank(shares: Iterable[RecordShare], total: float) -> tuple[PlacedShare, ...]:
    """Add up shares of one place, and say what excludes it; the largest first."""
    sums: dict[tuple[str | None, str | None], float] = {}
    for share in shares:
        place = (share.function, share.file)
        sums[place] = sums.get(place, 0.0) + share.records
    ordered = sorted(sums.items(), key=lambda item: (-item[1], str(item[0])))
    return tuple(
        PlacedShare(function, file, records, records / total if total else 0.0, *exclusion(file))
        for (function, file), records in ordered
    )


def exclusion(file: str | None) -> tuple[str | None, str | None]:
    """Return the Makefile where a line excludes a source file or a directory from KCOV, and that line.

    Code of a header is compiled into each file that includes it, and only those can be excluded.
    """
    if file is None or file.startswith(("/", "..")):
        return None, None
    path = PurePosixPath(file)
    if path.suffix in (".c", ".S", ".rs"):
        return str(path.parent / "Makefile"), f"KCOV_INSTRUMENT_{path.stem}.o := n"
    if path.suffix or not file.endswith("/"):
        return None, None
    return str(path / "Makefile"), "KCOV_INSTRUMENT := n"


def _thin(points: Sequence[PlotPoint], most: int) -> list[PlotPoint]:
    """Return at most so many points: of those that are joined, the highest values."""
    if len(points) <= most:
        return list(points)
    step = len(points) / most
    found = []
    for number in range(most):
        group = points[int(number * step) : max(int((number + 1) * step), int(number * step) + 1)]
        last = group[-1]
        found.append(
            PlotPoint(
                last.seconds,
                sum(point.rate for point in group) / len(group),
                max(point.fill for point in group),
                last.overflows,
                max(point.sections for point in group),
                last.objects,
            )
        )
    return found
