# SPDX-License-Identifier: LGPL-2.1-or-later
"""Recordings of ``monitor``: a row per look, as JSON Lines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, TypeVar

from kcovdbg.console.column import ADDRESS, ADDRESSES, BOOL, COMM, LIST, MODE, NUMBER, PATH, PID, SECONDS, SYMBOL, Column
from kcovdbg.console.json_schema import Meaning
from kcovdbg.console.output_files import Inputs, no_inputs, refuse_input
from kcovdbg.console.renderable import Fields
from kcovdbg.console.writer import json_lines
from kcovdbg.errors import KcovdbgError
from kcovdbg.input_file import parse_json
from kcovdbg.limits import TEXT_SIZE, find_limit, over_limit
from kcovdbg.monitor.samples import AreaSample, FindingSample, ObjectSample, RecordedRun, RecordShare, Sample, TaskSample
from kcovdbg.output_file import open_output

_T = TypeVar("_T")

TARGET_KEYS: Final = ("target", "release", "build_id")
"""The keys of what does not change, which each row begins with."""

TASK_COLUMNS: Final = (
    Column("pid", PID),
    Column("tgid", PID),
    Column("comm", COMM),
    Column("task", ADDRESS),
    Column("kcov", ADDRESS),
    Column("kcov_mode", MODE),
    Column("role"),
    Column("beneath"),
    Column("owns_remote", BOOL),
    Column("kcov_sequence", NUMBER),
    Column("kcov_area", ADDRESS),
    Column("kcov_size", NUMBER),
    Column("count", NUMBER),
    Column("capacity", NUMBER),
    Column("full", BOOL),
    Column("syscall"),
    Column("device"),
)
OBJECT_COLUMNS: Final = (
    Column("kcov", ADDRESS),
    Column("mode", MODE),
    Column("size", NUMBER),
    Column("area", ADDRESS),
    Column("pid", PID),
    Column("comm", COMM),
    Column("handles", ADDRESSES),
    Column("device"),
)
AREA_COLUMNS: Final = (Column("list"), Column("state"), Column("areas", NUMBER), Column("words", NUMBER), Column("device"))
FINDING_COLUMNS: Final = (Column("rule"), Column("severity"), Column("object"), Column("message"))
SHARE_COLUMNS: Final = (Column("function", SYMBOL), Column("file", PATH), Column("records", SECONDS))

SAMPLE_COLUMNS: Final = (
    *(Column(key) for key in TARGET_KEYS),
    Column("time", SECONDS),
    Column("state"),
    Column("tasks", items=TASK_COLUMNS),
    Column("objects", items=OBJECT_COLUMNS),
    Column("areas", items=AREA_COLUMNS),
    Column("findings", items=FINDING_COLUMNS),
    Column("shares", items=SHARE_COLUMNS),
    Column("reads", NUMBER),
    Column("seconds", SECONDS),
    Column("errors", LIST),
)

MEANINGS: Final[Mapping[str, Meaning]] = {
    "time": Meaning("time of the look", unit="seconds since 1970"),
    "state": Meaning("what the machine did: `running`, `stopped` or `gone`, which repeats the look before", "it is unknown"),
    "tasks": Meaning("the tasks with KCOV state"),
    "tasks[].kcov": Meaning("address of the `struct kcov` that it collects for or owns", "it could not be read"),
    "tasks[].syscall": Meaning("system call that the task is in, with its arguments", "the task is in none, or it is unknown"),
    "tasks[].device": Meaning("device of a posted series that collects, which counts words", "KCOV does"),
    "objects[].device": Meaning("device of a posted series that it is an object of", "it is a `struct kcov`"),
    "areas[].device": Meaning("device of a posted series that they belong to", "they are KCOV's own"),
    "objects": Meaning("every `struct kcov`", "this look did not search for them"),
    "objects[].pid": Meaning("thread id of the task that it is enabled for", "there is none"),
    "objects[].comm": Meaning("name of that task", "there is none"),
    "objects[].handles": Meaning("remote handles that are registered for it"),
    "areas": Meaning("areas by kind and use"),
    "areas[].state": Meaning("`cached`, `in-use` or `saved`"),
    "areas[].areas": Meaning("how many there are", unit="areas"),
    "areas[].words": Meaning("their size together, as far as it is known", unit="words"),
    "findings": Meaning("findings of this look, which may be transient", "this look applied no rules"),
    "findings[].rule": Meaning("name of the rule"),
    "findings[].severity": Meaning("`error`, `warning` or `transient`"),
    "findings[].object": Meaning("what the finding is about"),
    "findings[].message": Meaning("what is wrong with it"),
    "shares": Meaning("where records went since the look before, estimated from some of them"),
    "shares[].records": Meaning("records in the function, estimated", unit="records"),
    "reads": Meaning("reads of the kernel's memory for this look", "they were not counted", "reads"),
    "seconds": Meaning("processor time of this look", unit="seconds"),
    "errors": Meaning("what could not be read, one sentence each"),
}


def make_row(sample: Sample, facts: Mapping[str, str | None]) -> dict[str, Any]:
    """Return a sample as a row of these columns.

    :param facts: the values of :data:`TARGET_KEYS`.
    """
    return {**{key: facts.get(key) for key in TARGET_KEYS}, **sample._asdict()}


def read_row(row: Mapping[str, Any]) -> tuple[Sample, dict[str, str | None]]:
    """Return the sample and the facts in an encoded row.

    :raises ValueError: when it is not a row of a recording.
    """
    try:
        facts = {key: row[key] for key in TARGET_KEYS}
        texts = (row["state"], *facts.values())
        if not isinstance(row["reads"], int) or not all(isinstance(text, str | None) for text in texts):
            raise ValueError("a value of another type")  # noqa: TRY301 (of the file)
        sample = Sample(
            time=float(row["time"]),
            state=row["state"],
            tasks=_read_items(row["tasks"], TaskSample, TASK_COLUMNS) or (),
            objects=_read_items(row["objects"], ObjectSample, OBJECT_COLUMNS),
            areas=_read_items(row["areas"], AreaSample, AREA_COLUMNS) or (),
            findings=_read_items(row["findings"], FindingSample, FINDING_COLUMNS),
            shares=_read_items(row["shares"], RecordShare, SHARE_COLUMNS) or (),
            reads=row["reads"],
            seconds=float(row["seconds"]),
            errors=tuple(map(str, row["errors"] or ())),
        )
        return sample, facts
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a sample: {type(error).__name__}: {error}") from None


def _read_items(items: Any, make: Callable[..., _T], columns: tuple[Column, ...]) -> tuple[_T, ...] | None:
    if items is None:
        return None
    return tuple(make(**{column.key: _decode(_find(item, column.key), column) for column in columns}) for item in items)


def _find(item: Mapping[str, Any], key: str) -> Any:
    # Recordings of 0.1.0 lack it.
    return item.get(key) if key == "device" else item[key]


def _decode(value: Any, column: Column) -> Any:
    if value is None:
        return None
    if column.kind is ADDRESS:
        return int(value, 16)
    if column.kind is ADDRESSES:
        return tuple(int(item, 16) for item in value)
    expected: tuple[type, ...] = (str,)
    if column.kind in (NUMBER, PID):
        expected = (int,)
    elif column.kind is SECONDS:
        expected = (int, float)
    elif column.kind is BOOL:
        expected = (bool,)
    if not isinstance(value, expected) or (isinstance(value, bool) and column.kind is not BOOL):
        raise ValueError(f"{column.key} is {value!r}")
    return value


class RecordingWriter:
    """A recording that samples are added to.

    :param stream: written to.
    :param facts: target, release and build ID.
    """

    def __init__(self, stream: BinaryIO, facts: Mapping[str, str | None]) -> None:
        self._stream = stream
        self._facts = facts
        self.samples = 0

    def add(self, sample: Sample) -> None:
        """Add a sample."""
        self.samples += 1
        for line in json_lines(Fields(SAMPLE_COLUMNS, make_row(sample, self._facts))):
            self._stream.write(line.encode())


@contextlib.contextmanager
def open_recording(path: str, facts: Mapping[str, str | None], inputs: Inputs = no_inputs) -> Iterator[RecordingWriter]:
    """Open a recording for writing.

    The file gets its name when the block ends. C-c and what ends the process in order end the block; what was recorded is kept.

    :param inputs: what must not be overwritten.
    :raises KcovdbgError: when it cannot be written.
    """
    end: BaseException | None = None
    try:
        with open_output(path, check=partial(refuse_input, path, inputs)) as stream:
            try:
                yield RecordingWriter(stream, facts)
            except OSError as error:
                if error.filename is None:
                    # An error of the recording's own file, which is then useless.
                    raise
                end = error
            except BaseException as error:  # noqa: BLE001 (raised again once the recording is complete)
                end = error
    except OSError as error:
        raise KcovdbgError(f"could not write '{path}': {error.strerror or error}") from error
    if end is not None:
        raise end


class RecordedSample(NamedTuple):
    """A sample of a recording, with the facts that do not change."""

    sample: Sample
    facts: Mapping[str, str | None]


def read_samples(path: str) -> Iterator[RecordedSample]:
    """Iterate over the samples of a recording.

    :raises KcovdbgError: when it is not a recording, or cannot be read.
    """
    number = 0
    try:
        for row in _read_lines(path):
            number += 1
            yield RecordedSample(*read_row(row))
    except OSError as error:
        raise KcovdbgError(f"could not read '{path}': {error.strerror or error}") from error
    except ValueError as error:
        where = f"row {max(number, 1)}: " if number else ""
        raise KcovdbgError(
            f"'{path}' is not a recording of monitor: {where}{error}", hint="monitor --record FILE writes one"
        ) from None
    if not number:
        raise KcovdbgError(f"'{path}' is empty", hint="monitor --record FILE writes a recording")


def read_run(path: str) -> RecordedRun:
    """Read a recording.

    :raises KcovdbgError: when it is not one, or cannot be read.
    """
    found = list(read_samples(path))
    return RecordedRun(tuple(row.sample for row in found), found[0].facts)


def _read_lines(path: str) -> Iterator[Mapping[str, object]]:
    with Path(path).expanduser().open("rb") as stream:
        limit = find_limit(TEXT_SIZE)
        while line := stream.readline(limit + 1):
            if len(line) > limit:
                raise over_limit(TEXT_SIZE, f"a row of {path}")
            if not line.strip():
                continue
            row = parse_json(line)
            if not isinstance(row, dict):
                raise ValueError("a line is not an object")  # noqa: TRY004 (of the file)
            yield row
