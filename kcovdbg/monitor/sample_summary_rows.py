# SPDX-License-Identifier: LGPL-2.1-or-later
"""The summary of a recording: one row for JSON, and tables and sentences for text and pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Final

from kcovdbg.abi.handle import decode_handle
from kcovdbg.console.column import ADDRESS, ADDRESSES, HANDLE, LIST, MODE, NUMBER, PATH, SECONDS, SHARE, SYMBOL, Column
from kcovdbg.console.json_schema import Meaning
from kcovdbg.console.renderable import PIPED_WIDTH, Line, Table
from kcovdbg.model.object_names import name_kcov, name_some
from kcovdbg.monitor.sample_file import FINDING_COLUMNS
from kcovdbg.monitor.summary import BufferSummary, PlacedShare, SectionActivity, SectionKey, Summary

# syzkaller's executor/executor.cc; for each thread's buffer, in words.
SYZKALLER_CONSTANT: Final = "kCoverSize"
SYZKALLER_EXTRA: Final = "kExtraCoverSize"
_UNSURE: Final = "unknown: it was full in every round"
SHOWN_PLACES: Final = 15
_KILO: Final = 1024


def handle_text(key: SectionKey) -> str:
    """Return what sections are counted by, in words: a handle, or the object where it has several."""
    if key.handle is not None:
        return str(decode_handle(key.handle))
    if not key.kcov:
        return "unknown"
    return f"one of {handles_text(key.handles)}" if key.handles else name_kcov(key.kcov)


def handles_text(handles: Sequence[int]) -> str:
    """Return handles in words: ``usb:1, common:0x42``; runs of one subsystem are shortened: ``usb:1 to usb:5``."""
    runs: list[list[int]] = []
    for handle in handles:
        if runs and handle == runs[-1][-1] + 1:
            runs[-1].append(handle)
        else:
            runs.append([handle])
    texts = []
    for run in runs:
        first, last = str(decode_handle(run[0])), str(decode_handle(run[-1]))
        texts.append(first if len(run) == 1 else f"{first} to {last}" if len(run) > 2 else f"{first}, {last}")
    return ", ".join(texts)


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
        if abs(number) < 999.5:
            return f"{number:.1f}{unit}" if unit and abs(number) < 99.95 else f"{number:.0f}{unit}"
        number /= 1000
    return f"{number:.0f}T"


def syzkaller_size(words: int) -> str:
    """Return a size as syzkaller writes its constant: ``512 << 10``."""
    return f"{words // _KILO} << 10" if words % _KILO == 0 else str(words)


def _lost_text(buffer: BufferSummary) -> str | None:
    if not buffer.overflows:
        return None
    return f"{buffer.lost}" + ("" if buffer.lost_estimate is None else f" (about {short_number(buffer.lost_estimate)})")


BUFFER_COLUMNS: Final = (
    Column("kind"),
    Column("kcov", ADDRESS),
    Column("tasks", LIST, text=lambda row: name_some(row.tasks, 1), elastic=14),
    Column("mode", MODE),
    Column("size", NUMBER),
    Column("capacity", NUMBER),
    Column("looks", NUMBER, priority=4),
    Column("rounds", NUMBER, priority=2),
    Column("overflows", NUMBER, title="FULL", style=lambda row: "warning" if row.overflows else ""),
    Column(
        "full_seconds",
        SECONDS,
        title="FULL FOR",
        value=lambda row: round(row.full_seconds, 3),
        text=lambda row: seconds_text(row.full_seconds) if row.overflows else None,
        priority=2,
    ),
    Column("records", NUMBER, priority=1),
    Column(
        "rate",
        SECONDS,
        title="RECORDS/S",
        value=lambda row: None if row.rate is None else round(row.rate, 3),
        text=lambda row: None if row.rate is None else short_number(row.rate),
        priority=2,
    ),
    Column("lost", NUMBER, title="LOST", text=_lost_text),
    Column("lost_estimate", NUMBER, json_only=True),
    Column("largest", NUMBER, priority=1),
    Column("needed", NUMBER, json_only=True),
    Column(
        "needed_size", NUMBER, title="SIZE FOR 99%", text=lambda row: None if row.needed_size is None else f"{row.needed_size}"
    ),
)
_BUFFERS_SHOWN: Final = (
    "kcov",
    "tasks",
    "mode",
    "kind",
    "size",
    "rounds",
    "overflows",
    "full_seconds",
    "lost",
    "rate",
    "largest",
    "needed_size",
)
SECTION_COLUMNS: Final = (
    Column("handle", HANDLE, value=lambda row: row.key.handle, text=lambda row: handle_text(row.key)),
    Column("kcov", ADDRESS, value=lambda row: row.key.kcov, json_only=True),
    Column("handles", ADDRESSES, value=lambda row: row.key.handles, json_only=True),
    Column("begun", NUMBER, title="BEGUN"),
)
PLACE_COLUMNS: Final = (
    Column("records", NUMBER, value=lambda row: round(row.records), title="RECORDS"),
    Column("share", SHARE),
    Column("function", SYMBOL, elastic=16),
    Column("file", PATH, elastic=16, elide_start=True),
    Column("makefile", PATH, elastic=12, elide_start=True, priority=2),
    Column("line", title="TO EXCLUDE IT", priority=1),
)
SUMMARY_COLUMNS: Final = (
    Column("target", value=lambda row: row.facts.get("target")),
    Column("release", value=lambda row: row.facts.get("release")),
    Column("build_id", value=lambda row: row.facts.get("build_id")),
    Column("start", SECONDS),
    Column("seconds", SECONDS, value=lambda row: round(row.seconds, 3)),
    Column("looks", NUMBER),
    Column("interval", SECONDS),
    Column("overflows", NUMBER),
    Column("buffers", items=BUFFER_COLUMNS),
    Column("sections", items=SECTION_COLUMNS),
    Column("functions", items=PLACE_COLUMNS),
    Column("files", items=PLACE_COLUMNS),
    Column("directories", items=PLACE_COLUMNS),
    Column("came", NUMBER),
    Column("went", NUMBER),
    Column("findings", items=FINDING_COLUMNS),
    Column("cpu_share", SHARE),
    Column("reads", NUMBER),
    Column("errors", LIST),
)
_PLACE_MEANINGS: Final = {
    "records": Meaning("records that went there, estimated from samples", unit="records"),
    "share": Meaning("share of all sampled records, from 0 to 1"),
    "function": Meaning("innermost function", "grouped by file or directory, or unknown"),
    "file": Meaning("source file or directory, relative to the build root", "the debug info does not tell"),
    "makefile": Meaning("Makefile where a line excludes it from KCOV", "it is a header or not in the kernel's tree"),
    "line": Meaning("the line that excludes it from KCOV", "it is a header or not in the kernel's tree"),
}
SUMMARY_MEANINGS: Final[Mapping[str, Meaning]] = {
    "start": Meaning("time of the first look", unit="seconds since 1970"),
    "seconds": Meaning("time from the first look to the last", unit="seconds"),
    "looks": Meaning("number of looks at the kernel", unit="looks"),
    "interval": Meaning("median time from look to look", "there is only one", "seconds"),
    "overflows": Meaning("how often any buffer became full, at least"),
    "buffers": Meaning("the buffers and areas, those that overflowed most often first"),
    "buffers[].kind": Meaning("`buffer`, or `area` for the areas of the object's sections"),
    "buffers[].kcov": Meaning("address of the `struct kcov`", "it could not be read"),
    "buffers[].tasks": Meaning("names of the tasks that collected into it, with their thread ids"),
    "buffers[].looks": Meaning("looks in which it was seen", unit="looks"),
    "buffers[].rounds": Meaning("how often it was emptied or used anew, at least, and the last use"),
    "buffers[].overflows": Meaning("how often it became full, at least"),
    "buffers[].full_seconds": Meaning("time for which it was seen full", unit="seconds"),
    "buffers[].records": Meaning("records that were written to it, at least", unit="records"),
    "buffers[].rate": Meaning(
        "records a second while it was not full", "it did not grow while it was seen", "records per second"
    ),
    "buffers[].lost": Meaning("records that were lost, at least", unit="records"),
    "buffers[].lost_estimate": Meaning(
        "records that were lost if they came as fast while it was full as before", "how fast is unknown", "records"
    ),
    "buffers[].largest": Meaning("records of the fullest round that was seen", unit="records"),
    "buffers[].needed": Meaning("records that 99 % of the rounds need", "overflows hide it", "records"),
    "buffers[].needed_size": Meaning(
        "size that holds them, a power of two: an argument of KCOV_INIT_TRACE, of an area the `area_size` of "
        "KCOV_REMOTE_ENABLE",
        "overflows hide it, or its size is unknown",
        "words",
    ),
    "sections": Meaning("remote and softirq sections by handle"),
    "sections[].handle": Meaning("handle, the whole word", "the object has several, or it is unknown"),
    "sections[].kcov": Meaning("address of the `struct kcov`", "it could not be read"),
    "sections[].handles": Meaning("handles of the object, one of which it is"),
    "sections[].begun": Meaning("sections that began, at least", unit="sections"),
    **{
        f"{group}{path}": meaning
        for group in ("functions", "files", "directories")
        for path, meaning in (
            ("", Meaning("where records went, the largest share first")),
            *((f"[].{key}", meaning) for key, meaning in _PLACE_MEANINGS.items()),
        )
    },
    "came": Meaning("objects that appeared after the first look", unit="objects"),
    "went": Meaning("objects that disappeared", unit="objects"),
    "findings": Meaning("findings that two looks in a row had"),
    "findings[].rule": Meaning("name of the rule"),
    "findings[].severity": Meaning("`error`, `warning` or `transient`"),
    "findings[].object": Meaning("what the finding is about"),
    "findings[].message": Meaning("what is wrong with it"),
    "cpu_share": Meaning("share of one core's time that looking took"),
    "reads": Meaning("reads of the kernel's memory", "they were not counted", "reads"),
    "errors": Meaning("what could not be read, one sentence each"),
}


def heading_lines(summary: Summary) -> Iterator[Line]:
    """Yield what the summary is of."""
    facts = summary.facts
    release = f", Linux {facts['release']}" if facts.get("release") else ""
    yield (("header", f"{facts.get('target') or 'unknown target'}{release}"),)
    start = datetime.fromtimestamp(summary.start, timezone.utc)
    interval = "" if summary.interval is None else f", one every {summary.interval:.2f} s"
    yield (("", f"{start:%Y-%m-%d %H:%M:%S} UTC, {seconds_text(summary.seconds)}, {summary.looks} looks{interval}"),)
    reads = "" if summary.reads is None else f", {summary.reads} reads"
    yield (("remark", f"looking took {summary.cpu_share:.1%} of one core{reads}; counts are lower bounds"),)


def buffer_table(summary: Summary, limit: int | None = None) -> Table:
    """Return the table of buffers."""
    shown = summary.buffers[:limit]
    remarks = (
        [f"{len(summary.buffers) - len(shown)} more buffers; --json has them"] if len(shown) < len(summary.buffers) else []
    )
    return Table(
        BUFFER_COLUMNS, shown, show=_BUFFERS_SHOWN, empty="no buffer was seen", remarks=remarks, piped_width=PIPED_WIDTH
    )


def advice_lines(summary: Summary) -> Iterator[Line]:
    """Yield which sizes would hold 99 % of what was collected."""
    full = [buffer for buffer in summary.buffers if buffer.overflows]
    if not summary.buffers:
        return
    if not full:
        yield (("good", "no buffer became full"),)
    for kind, call, constant in (
        ("buffer", "ioctl(fd, KCOV_INIT_TRACE, {words})", SYZKALLER_CONSTANT),
        ("area", "kcov_remote_arg.area_size = {words}", SYZKALLER_EXTRA),
    ):
        of_kind = [buffer for buffer in full if buffer.kind == kind]
        if not of_kind:
            continue
        sizes = [buffer.needed_size for buffer in of_kind if buffer.needed_size is not None]
        if len(sizes) < len(of_kind):
            hidden = len(of_kind) - len(sizes)
            yield (("warning", f"size for 99 % of the rounds of {hidden} {kind}s {_UNSURE}"),)
        if sizes:
            words = max(sizes)
            yield (
                ("header", f"for 99 % of the rounds of the {kind}s that became full: "),
                ("", f"{call.format(words=words)}; in syzkaller {constant} = {syzkaller_size(words)}"),
            )


def section_table(sections: Sequence[SectionActivity]) -> Table:
    """Return the table of sections."""
    return Table(SECTION_COLUMNS, sections, empty="no section was seen")


def place_table(places: Sequence[PlacedShare], *, by: str, limit: int = SHOWN_PLACES) -> Table:
    """Return the table of places that records went to.

    :param by: ``function``, ``file`` or ``directory``.
    """
    show = ["records", "share", *(("function",) if by == "function" else ()), "file"]
    if by == "directory":
        show += ["makefile", "line"]
    elif by == "file":
        show += ["line"]
    remarks = [f"{len(places) - limit} more; --json has them"] if len(places) > limit else []
    return Table(
        PLACE_COLUMNS, places[:limit], show=show, empty="no records were sampled", remarks=remarks, piped_width=PIPED_WIDTH
    )
