# SPDX-License-Identifier: LGPL-2.1-or-later
"""Summarize a recording of ``monitor``: which buffers overflow, which size would do, and where
records go.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Final, NamedTuple, TypeAlias

from kcovdbg.abi.handle import decode_handle
from kcovdbg.console.column import (
    ADDRESS,
    ADDRESSES,
    HANDLE,
    LIST,
    MODE,
    NUMBER,
    PATH,
    SECONDS,
    SHARE,
    SYMBOL,
    Column,
    RowType,
)
from kcovdbg.console.renderable import PIPED_WIDTH, Line, Table
from kcovdbg.model.kcov import name_kcov, name_some
from kcovdbg.monitor.activity import Activity, BufferKey, BufferStep, SectionActivity
from kcovdbg.monitor.samples import Sample

# The share of rounds that the recommended size holds.
_HELD: Final = 0.99
# Words of a page on 64-bit kernels, and the smallest size that is recommended.
_PAGE_WORDS: Final = 512
# Limit for the handles of an object that are named.
_HANDLES: Final = 6
# Limit for the points of a plot.
_POINTS: Final = 400
_HEADER: Final = ".h"

_Records: TypeAlias = Counter[tuple[str | None, str | None]]
"""Records by function and file."""


class _Round(NamedTuple):
    """The use of a buffer since it was empty."""

    records: int = 0
    is_full: bool = False
    full_seconds: float = 0.0


@dataclass(slots=True)
class BufferUse:
    """The use of one object's buffer, or of the areas that are used for it, in a recording; counts
    are lower bounds.
    """

    kind: str
    """``buffer``, or ``area`` for the areas of its sections."""
    kcov: int | None
    mode: str | None
    size: int | None = None
    """Size in words of the kernel."""
    tasks: dict[str, None] = field(default_factory=dict)
    """The names of the tasks that collected into it."""
    capacity: int | None = None
    looks: int = 0
    overflows: int = 0
    """How often it became full."""
    full_seconds: float = 0.0
    records: int = 0
    """Written to it."""
    lost: int = 0
    free_seconds: float = 0.0
    free_records: int = 0
    """Written to it while it was not full."""
    rounds: dict[tuple[BufferKey, int], _Round] = field(default_factory=dict)
    """Its uses from one reset to the next, and the last one, by buffer and the look in which each
    began.
    """

    def add(
        self, step: BufferStep, span: float, size: int | None, key: tuple[BufferKey, int]
    ) -> None:
        """Add a step of a buffer.

        :param span: time since the look before, in seconds.
        :param size: the size of the object's buffer.
        :param key: the key of the buffer's current round.
        """
        task = step.now
        # The task of an owner of remote handles has no area; its object has, and may be found
        # later.
        self.size = task.kcov_size or size or self.size
        self.tasks[f"{task.comm or '?'} ({task.pid if task.pid is not None else '?'})"] = None
        self.capacity = task.capacity
        self.looks += 1
        self.overflows += step.became_full
        self.records += step.gained
        self.lost += step.lost
        if step.stayed_full:
            self.full_seconds += span
        elif step.before is not None and not step.was_reset:
            self.free_seconds += span
            self.free_records += step.gained
        if task.held:
            full_seconds = self.rounds.get(key, _Round()).full_seconds
            if step.stayed_full:
                full_seconds += span
            self.rounds[key] = _Round(task.held, bool(task.full), full_seconds)

    @property
    def rate(self) -> float | None:
        """Records a second while it was not full."""
        if self.free_seconds <= 0 or not self.free_records:
            return None
        return self.free_records / self.free_seconds

    @property
    def lost_estimate(self) -> int | None:
        """Lost records, if the rate was the same while it was full; None if the rate is unknown."""
        if self.full_seconds and self.rate is None:
            return None
        return max(round((self.rate or 0.0) * self.full_seconds), self.lost)

    @property
    def largest(self) -> int:
        """Records of the fullest round that was seen."""
        return max((one.records for one in self.rounds.values()), default=0)

    @property
    def needed(self) -> int | None:
        """Records that 99 % of the rounds need; None if full rounds hide it, or without rounds."""
        rate = self.rate
        needs = []
        for one in self.rounds.values():
            lost = 0.0
            if one.is_full:
                # Without a rate, it is unknown how much did not fit.
                lost = math.inf
                if rate is not None:
                    lost = one.full_seconds * rate
            needs.append(one.records + lost)
        if not needs:
            return None
        needs.sort()
        needed = needs[math.ceil(_HELD * len(needs)) - 1]
        if math.isinf(needed):
            return None
        # Assume that a full buffer lacks at least one record.
        return math.ceil(needed) + any(
            one.is_full and one.records >= needed for one in self.rounds.values()
        )

    @property
    def needed_size(self) -> int | None:
        """A size in words that holds these records: a power of two and whole pages."""
        needed = self.needed
        if needed is None or not self.size or not self.capacity:
            return None
        # A record takes a word or, as a comparison, several.
        words = 1 + needed * max((self.size - 1) // self.capacity, 1)
        return max(_PAGE_WORDS, 1 << (words - 1).bit_length())


class LocatedShare(NamedTuple):
    """The records that went into one function, file or directory."""

    function: str | None
    file: str | None
    records: float
    share: float
    """Share of all sampled records, 0 to 1."""


class PlotPoint(NamedTuple):
    """A recording at one moment."""

    seconds: float
    """Since its start."""
    rate: float
    """Records a second of all tasks."""
    fill: float
    """Share of the fullest buffer that is in use, 0 to 1."""
    overflows: int
    """Since the start."""
    sections: int
    """Number of sections in flight."""
    objects: int


class Summary(NamedTuple):
    """The answers that a recording gives."""

    last: Sample
    activity: Activity
    """At the end."""
    interval: float | None
    """The median time from look to look."""
    buffers: tuple[BufferUse, ...]
    shares: Mapping[str, tuple[LocatedShare, ...]]
    """The places that took most records, by ``function``, ``file`` and ``directory``."""
    points: tuple[PlotPoint, ...]
    errors: tuple[str, ...]


def summarize(samples: Iterable[Sample]) -> Summary:
    """Return the answers that samples give.

    :param samples: one or more, in the order of time.
    """
    uses: dict[tuple[str, int | None, str | None], BufferUse] = {}
    # The looks in which the rounds of buffers began.
    starts: dict[BufferKey, int] = {}
    shares: _Records = Counter()
    errors: dict[str, None] = {}
    points: list[PlotPoint] = []
    gaps: list[float] = []
    activity = Activity()
    for sample in samples:
        last = activity.sample
        activity = activity.after(sample)
        errors.update(dict.fromkeys(sample.errors))
        for share in sample.shares:
            file = None if share.file is None else str(PurePosixPath(share.file))
            shares[share.function, file] += share.records  # type: ignore[assignment]
        span = 0.0
        if last is not None:
            span = sample.time - last.time
            gaps.append(span)
        for key, step in activity.steps.items():
            task = step.now
            if step.before is None or step.before.count is None or step.was_reset:
                starts[key] = activity.looks
            if task.count is not None and task.capacity:
                of = ("area" if task.is_section else "buffer", task.object, task.kcov_mode)
                found = activity.objects.get(task.object or 0)
                size = None
                if found is not None:
                    size = found.size
                uses.setdefault(of, BufferUse(*of)).add(step, span, size, (key, starts[key]))
        points.append(_make_point(activity, sample, span))
    return Summary(
        last=sample,
        activity=activity,
        interval=sorted(gaps)[len(gaps) // 2] if gaps else None,
        buffers=tuple(sorted(uses.values(), key=_buffer_order)),
        shares=_rank_shares(shares),
        points=tuple(_thin(points, _POINTS)),
        errors=tuple(errors),
    )


def _make_point(activity: Activity, sample: Sample, span: float) -> PlotPoint:
    """Return the point of the latest sample.

    :param span: seconds since the sample before.
    """
    rate = 0.0
    if span > 0:
        # Devices count words.
        steps = activity.steps.items()
        rate = sum(step.gained for key, step in steps if key.device is None) / span
    return PlotPoint(
        seconds=activity.seconds,
        rate=rate,
        fill=max((task.fill or 0.0 for task in sample.tasks), default=0.0),
        overflows=activity.overflows,
        sections=sum(task.is_section for task in sample.tasks),
        objects=len(activity.objects),
    )


def _buffer_order(buffer: BufferUse) -> tuple[float, ...]:
    return (
        -buffer.overflows,
        -(buffer.lost_estimate or buffer.lost),
        -buffer.records,
        buffer.kcov or 0,
    )


def _directory_of(file: str | None) -> str | None:
    """Return the directory of a source file.

    A header's directory is named with ``*.h``: code of headers is compiled in other directories.
    """
    if file is None:
        return None
    path = PurePosixPath(file)
    if path.suffix == _HEADER:
        return str(path.parent / f"*{_HEADER}")
    return f"{path.parent}/"


def _rank_shares(shares: _Records) -> Mapping[str, tuple[LocatedShare, ...]]:
    """Return the shares of functions, files and directories, the largest first."""
    files: _Records = Counter()
    directories: _Records = Counter()
    for (_, file), records in shares.items():
        files[None, file] += records
        directories[None, _directory_of(file)] += records
    return {"function": _rank(shares), "file": _rank(files), "directory": _rank(directories)}


def _rank(records_of: _Records) -> tuple[LocatedShare, ...]:
    # Without records, there is nothing to divide.
    total = sum(records_of.values()) or 1.0
    ordered = sorted(records_of.items(), key=lambda item: (-item[1], str(item[0])))
    return tuple(LocatedShare(*located, records, records / total) for located, records in ordered)


def exclusion(file: str | None) -> tuple[str | None, str | None]:
    """Return the Makefile where a line excludes a source file or a directory from KCOV, and that
    line.

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
    """Return at most so many points. Neighbors are joined, with their highest values."""
    if len(points) <= most:
        return list(points)
    joined = []
    edges = [number * len(points) // most for number in range(most + 1)]
    for first, end in pairwise(edges):
        group = points[first:end]
        point = group[-1]._replace(
            rate=sum(point.rate for point in group) / len(group),
            fill=max(point.fill for point in group),
            sections=max(point.sections for point in group),
        )
        joined.append(point)
    return joined


def handle_text(section: SectionActivity) -> str:
    """Return the name that sections are counted by: a handle, or the object if it has several."""
    if section.handle is not None:
        return str(decode_handle(section.handle))
    if not section.kcov:
        return "unknown"
    if section.handles:
        return f"one of {handles_text(section.handles)}"
    return name_kcov(section.kcov)


def handles_text(handles: Sequence[int]) -> str:
    """Return the first handles as text: ``usb:1, common:0x42``."""
    return name_some([str(decode_handle(handle)) for handle in handles], _HANDLES)


def seconds_text(seconds: float) -> str:
    """Return a time span: ``3.2 s``, ``12 min 05 s``."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min"


def short_number(number: float) -> str:
    """Return a number in at most five characters: ``999``, ``12.3k``, ``4.5M``."""
    for unit in ("", "k", "M", "G"):
        if unit and abs(number) < 99.95:
            return f"{number:.1f}{unit}"
        if abs(number) < 999.5:
            return f"{number:.0f}{unit}"
        number /= 1000
    return f"{number:.0f}T"


def syzkaller_size(words: int) -> str:
    """Return a size as syzkaller writes its constant: ``512 << 10``."""
    if words % 1024:
        return str(words)
    return f"{words // 1024} << 10"


def _lost_text(buffer: BufferUse) -> str | None:
    if not buffer.overflows:
        return None
    if buffer.lost_estimate is None:
        return str(buffer.lost)
    return f"{buffer.lost} (about {short_number(buffer.lost_estimate)})"


_BUFFER_COLUMNS: Final = (
    Column("kind", meaning="`buffer`, or `area` for the areas of the object's sections"),
    Column("kcov", ADDRESS, meaning="address of the `struct kcov`", null="it could not be read"),
    Column(
        "tasks",
        LIST,
        text=lambda row: name_some([*row.tasks], 1),
        elastic=14,
        meaning="names of the tasks that collected into it, with their thread ids",
    ),
    Column("mode", MODE),
    Column("size", NUMBER),
    Column("capacity", NUMBER),
    Column("looks", NUMBER, priority=4, meaning="looks in which it was seen", unit="looks"),
    Column(
        "rounds",
        NUMBER,
        value=lambda row: len(row.rounds),
        priority=2,
        meaning="number of uses, at least: how often it was emptied or used anew, and the last use",
    ),
    Column(
        "overflows",
        NUMBER,
        title="FULL",
        style=lambda row: "warning" if row.overflows else "",
        meaning="how often it became full, at least",
    ),
    Column(
        "full_seconds",
        SECONDS,
        title="FULL FOR",
        value=lambda row: round(row.full_seconds, 3),
        text=lambda row: seconds_text(row.full_seconds) if row.overflows else None,
        priority=2,
        meaning="time for which it was seen full",
        unit="seconds",
    ),
    Column(
        "records",
        NUMBER,
        priority=1,
        meaning="records that were written to it, at least",
        unit="records",
    ),
    Column(
        "rate",
        SECONDS,
        title="RECORDS/S",
        value=lambda row: row.rate and round(row.rate, 3),
        text=lambda row: row.rate and short_number(row.rate),
        priority=2,
        meaning="records a second while it was not full",
        null="it did not grow while it was seen",
        unit="records per second",
    ),
    Column(
        "lost",
        NUMBER,
        title="LOST",
        text=_lost_text,
        meaning="records that were lost, at least",
        unit="records",
    ),
    Column(
        "lost_estimate",
        NUMBER,
        json_only=True,
        meaning="records that were lost if the rate was the same while it was full",
        null="the rate is unknown",
        unit="records",
    ),
    Column(
        "largest",
        NUMBER,
        priority=1,
        meaning="records of the fullest round that was seen",
        unit="records",
    ),
    Column(
        "needed",
        NUMBER,
        json_only=True,
        meaning="number of records that is enough for 99 % of the uses",
        null="it is unknown, because the buffer was full, or always empty",
        unit="records",
    ),
    Column(
        "needed_size",
        NUMBER,
        title="SIZE FOR 99%",
        meaning=(
            "size that holds so many records, a power of two: for a buffer the argument of "
            "KCOV_INIT_TRACE, for an area the `area_size` of KCOV_REMOTE_ENABLE"
        ),
        null="it is unknown, because the buffer was full, or always empty, or its size is unknown",
        unit="words",
    ),
)
_SHOWN: Final = tuple(
    "kcov tasks mode kind size rounds overflows full_seconds lost rate largest needed_size".split()
)
_SECTION_COLUMNS: Final = (
    Column(
        "handle",
        HANDLE,
        text=handle_text,
        meaning="handle, the whole word",
        null="the object has several, or it is unknown",
    ),
    Column(
        "kcov",
        ADDRESS,
        json_only=True,
        meaning="address of the `struct kcov`",
        null="it could not be read",
    ),
    Column(
        "handles",
        ADDRESSES,
        json_only=True,
        meaning="handles of the object; the section's is one of them",
    ),
    Column(
        "begun", NUMBER, title="BEGUN", meaning="sections that began, at least", unit="sections"
    ),
)
_NO_MAKEFILE: Final = "it is a header or not in the kernel's tree"
_SHARE_COLUMNS: Final = (
    Column(
        "records",
        NUMBER,
        value=lambda row: round(row.records),
        meaning="records that went there, estimated from samples",
        unit="records",
    ),
    Column("share", SHARE, meaning="share of all sampled records, from 0 to 1"),
    Column(
        "function",
        SYMBOL,
        elastic=16,
        meaning="innermost function",
        null="grouped by file or directory, or unknown",
    ),
    Column(
        "file",
        PATH,
        elastic=16,
        meaning="source file or directory, relative to the build root",
        null="the debug info does not say",
    ),
    Column(
        "makefile",
        PATH,
        value=lambda row: exclusion(row.file)[0],
        elastic=12,
        priority=2,
        meaning="Makefile where a line excludes it from KCOV",
        null=_NO_MAKEFILE,
    ),
    Column(
        "line",
        title="TO EXCLUDE IT",
        value=lambda row: exclusion(row.file)[1],
        priority=1,
        meaning="the line that excludes it from KCOV",
        null=_NO_MAKEFILE,
    ),
)
# The columns that tables in text have beside the records.
_SHARE_KEYS: Final = {
    "function": ("function", "file"),
    "file": ("file", "line"),
    "directory": ("file", "makefile", "line"),
}
_RANKED: Final = "where records went, the largest share first"
_SUMMARY_COLUMNS: Final = (
    Column("target", value="last.target"),
    Column("release", value="last.release"),
    Column("build_id", value="last.build_id"),
    Column(
        "start",
        SECONDS,
        value="activity.started",
        meaning="time of the first look",
        unit="seconds since 1970",
    ),
    Column(
        "seconds",
        SECONDS,
        value=lambda row: round(row.activity.seconds, 3),
        meaning="time from the first look to the last",
        unit="seconds",
    ),
    Column(
        "looks",
        NUMBER,
        value="activity.looks",
        meaning="number of looks at the kernel",
        unit="looks",
    ),
    Column(
        "interval",
        SECONDS,
        meaning="median time from look to look",
        null="there is only one",
        unit="seconds",
    ),
    Column(
        "overflows",
        NUMBER,
        value="activity.overflows",
        meaning="how often any buffer became full, at least",
    ),
    Column(
        "buffers",
        items=_BUFFER_COLUMNS,
        meaning="the buffers and areas, those that overflowed most often first",
    ),
    Column(
        "sections",
        value="activity.sections",
        items=_SECTION_COLUMNS,
        meaning="remote and softirq sections by handle",
    ),
    Column(
        "functions", value=lambda row: row.shares["function"], items=_SHARE_COLUMNS, meaning=_RANKED
    ),
    Column("files", value=lambda row: row.shares["file"], items=_SHARE_COLUMNS, meaning=_RANKED),
    Column(
        "directories",
        value=lambda row: row.shares["directory"],
        items=_SHARE_COLUMNS,
        meaning=_RANKED,
    ),
    Column(
        "came",
        NUMBER,
        value="activity.came",
        meaning="objects that appeared after the first look",
        unit="objects",
    ),
    Column(
        "went",
        NUMBER,
        value="activity.went",
        meaning="objects that disappeared",
        unit="objects",
    ),
    Column(
        "cpu_share",
        SHARE,
        value="activity.cpu_share",
        meaning="share of one core's time that looking took",
    ),
    Column(
        "reads",
        NUMBER,
        value="activity.reads",
        meaning="reads of the kernel's memory",
        null="they were not counted",
        unit="reads",
    ),
    Column("errors", LIST, meaning="what could not be read, one sentence each"),
)
SUMMARY_ROWS: Final = RowType(_SUMMARY_COLUMNS, when="`--summary`")


def heading_lines(summary: Summary) -> Iterator[Line]:
    """Yield the kernel, the time and the number of looks, and what looking cost."""
    last, activity = summary.last, summary.activity
    kernel = last.target or "unknown target"
    if last.release:
        kernel += f", Linux {last.release}"
    yield (("header", kernel),)
    start = datetime.fromtimestamp(activity.started, timezone.utc)
    span = seconds_text(activity.seconds)
    looks = f"{start:%Y-%m-%d %H:%M:%S} UTC, {span}, {activity.looks} looks"
    if summary.interval is not None:
        looks += f", one every {summary.interval:.2f} s"
    yield (("", looks),)
    cost = f"looking took {activity.cpu_share:.1%} of one core"
    if activity.reads is not None:
        cost += f", {activity.reads} reads"
    yield (("remark", f"{cost}; counts are lower bounds"),)


def buffer_table(summary: Summary, limit: int | None = None) -> Table:
    """Return the table of buffers."""
    shown = summary.buffers[:limit]
    more = len(summary.buffers) - len(shown)
    remarks = []
    if more:
        remarks.append(f"{more} more buffers; --json has them")
    return Table(
        _BUFFER_COLUMNS,
        shown,
        show=_SHOWN,
        empty="no buffer was seen",
        remarks=remarks,
        piped_width=PIPED_WIDTH,
    )


def advice_lines(summary: Summary) -> Iterator[Line]:
    """Yield the sizes that would hold 99 % of the rounds."""
    full = [buffer for buffer in summary.buffers if buffer.overflows]
    if summary.buffers and not full:
        yield (("good", "no buffer became full"),)
    for kind, call, constant in (
        ("buffer", "ioctl(fd, KCOV_INIT_TRACE, {words})", "kCoverSize"),
        ("area", "kcov_remote_arg.area_size = {words}", "kExtraCoverSize"),
    ):
        of_kind = [buffer for buffer in full if buffer.kind == kind]
        if not of_kind:
            continue
        sizes = [buffer.needed_size for buffer in of_kind if buffer.needed_size is not None]
        if len(sizes) < len(of_kind):
            hidden = f"{len(of_kind) - len(sizes)} {kind}s"
            problem = f"size for 99 % of the rounds of {hidden} unknown: it was full in every round"
            yield (("warning", problem),)
        if sizes:
            words = max(sizes)
            shown = f"{call.format(words=words)}; in syzkaller {constant} = {syzkaller_size(words)}"
            heading = f"for 99 % of the rounds of the {kind}s that became full: "
            yield (("header", heading), ("", shown))


def section_table(sections: Sequence[SectionActivity]) -> Table:
    """Return the table of sections."""
    return Table(_SECTION_COLUMNS, sections, empty="no section was seen")


def share_table(shares: Sequence[LocatedShare], *, by: str, limit: int = 15) -> Table:
    """Return the table of the shares of functions, files or directories.

    :param by: ``function``, ``file`` or ``directory``.
    """
    remarks = []
    if len(shares) > limit:
        remarks.append(f"{len(shares) - limit} more; --json has them")
    return Table(
        _SHARE_COLUMNS,
        shares[:limit],
        show=("records", "share", *_SHARE_KEYS[by]),
        empty="no records were sampled",
        remarks=remarks,
        piped_width=PIPED_WIDTH,
    )
