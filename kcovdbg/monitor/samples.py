# SPDX-License-Identifier: LGPL-2.1-or-later
"""Samples of a running kernel, and recordings of samples as JSON Lines.

A sample is one look at the kernel: the rows of ``tasks`` and ``objects`` at one moment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any, BinaryIO, Final, NamedTuple

from kcovdbg.abi.mode import is_tracing
from kcovdbg.console.column import (
    ADDRESS,
    ADDRESSES,
    BOOL,
    LIST,
    NUMBER,
    PATH,
    SECONDS,
    SYMBOL,
    Column,
)
from kcovdbg.console.output_files import Inputs, open_text
from kcovdbg.console.renderable import Table
from kcovdbg.console.state_columns import OBJECT_COLUMNS, TASK_COLUMNS
from kcovdbg.console.writer import json_lines
from kcovdbg.errors import KcovdbgError
from kcovdbg.input_file import (
    decode_utf16,
    find_packing,
    open_input,
    parse_json,
    parse_number,
    read_input,
    unpack_data,
)
from kcovdbg.limits import TEXT_SIZE, TRACE_SIZE, find_limit, over_limit
from kcovdbg.model.task import Role
from kcovdbg.user_folder import expand_user


@dataclass(frozen=True, slots=True)
class TaskSample:
    """A task with KCOV state: members of its row in ``tasks``."""

    pid: int | None
    comm: str | None
    task: int
    kcov: int | None
    kcov_remote: int | None
    kcov_mode: str | None
    kcov_size: int | None
    kcov_area: int | None
    role: str | None
    owns_remote: bool | None
    count: int | None
    capacity: int | None
    full: bool | None
    syscall: str | None = None
    """The system call with its arguments."""
    device: str | None = None
    """The device of a posted series that collects; None for KCOV. Its counts are in words."""

    @property
    def object(self) -> int | None:
        """The address of the object that the task collects for, or else of the one that it owns."""
        if self.kcov or not self.kcov_remote:
            return self.kcov
        return self.kcov_remote

    @property
    def is_section(self) -> bool:
        """Whether a remote or softirq section collects into the task."""
        return self.role in (Role.REMOTE_SECTION.value, Role.SOFTIRQ_SECTION.value)

    @property
    def is_tracing(self) -> bool:
        """Whether the task records coverage."""
        return self.kcov_mode is not None and is_tracing(self.kcov_mode)

    @property
    def fill(self) -> float | None:
        """How full the task's buffer is, from 0 to 1; None if unknown."""
        if self.count is None or not self.capacity:
            return None
        return min(self.count / self.capacity, 1.0)

    @property
    def held(self) -> int:
        """The buffer's count, limited to its capacity: user space can write any count."""
        count = self.count or 0
        if self.capacity is not None:
            count = min(count, self.capacity)
        return count


class ObjectSample(NamedTuple):
    """A ``struct kcov``, or an object of a posted series' device: members of its row in
    ``objects``.
    """

    kcov: int
    device: str | None
    mode: str | None
    size: int | None
    area: int | None
    pid: int | None
    comm: str | None
    handles: tuple[int, ...] = ()
    """Its registered handles."""


class RecordShare(NamedTuple):
    """Estimated number of records of one function since the look before."""

    function: str | None
    """The innermost function, which may be inlined; None if unknown."""
    file: str | None
    records: float


class Sample(NamedTuple):
    """One look at a kernel."""

    target: str | None
    release: str | None
    build_id: str | None
    time: float
    """Seconds since 1970."""
    state: str | None
    """``running``, ``stopped`` or ``gone``; None if unknown."""
    tasks: tuple[TaskSample, ...]
    objects: tuple[ObjectSample, ...] | None
    """None if this look did not search for objects."""
    shares: tuple[RecordShare, ...]
    reads: int | None
    """Reads of the kernel's memory for this look; None if they are not counted."""
    seconds: float
    """Processor time of this look."""
    errors: tuple[str, ...] = ()
    """Unreadable data."""


TASK_SAMPLE_COLUMNS: Final = tuple(
    column for column in TASK_COLUMNS if column.key in TaskSample.__dataclass_fields__
)
OBJECT_SAMPLE_COLUMNS: Final = tuple(
    column for column in OBJECT_COLUMNS if column.key in ObjectSample._fields
)

# Number of bytes that show whether a recording is compressed or in UTF-16.
_START_SIZE: Final = 64
_ITEMS: Final = {"tasks": TaskSample, "objects": ObjectSample, "shares": RecordShare}
SAMPLE_COLUMNS: Final = (
    Column("target"),
    Column("release"),
    Column("build_id"),
    Column("time", SECONDS, meaning="time of the look", unit="seconds since 1970"),
    Column(
        "state",
        meaning=(
            "`running`, `stopped` or `gone`; a look at a machine that is gone repeats the look "
            "before"
        ),
        null="it is unknown",
    ),
    Column(
        "tasks",
        meaning="the tasks with KCOV state",
        items=(
            *(replace(column, value=None) for column in TASK_SAMPLE_COLUMNS),
            Column(
                "syscall",
                meaning="system call, with its arguments",
                null="the task is in none, or it is unknown",
            ),
            Column(
                "device",
                meaning="device of a posted series that collects, which counts words",
                null="KCOV does",
            ),
        ),
    ),
    Column(
        "objects",
        meaning="every `struct kcov`, and every object of a posted series' device",
        null="this look did not search for them",
        items=(
            *(replace(column, value=None) for column in OBJECT_SAMPLE_COLUMNS),
            Column("handles", ADDRESSES, meaning="remote handles that are registered for it"),
        ),
    ),
    Column(
        "shares",
        meaning="where records went since the look before, estimated from some of them",
        items=(
            Column("function", SYMBOL),
            Column("file", PATH),
            Column(
                "records", SECONDS, meaning="records in the function, estimated", unit="records"
            ),
        ),
    ),
    Column(
        "reads",
        NUMBER,
        meaning="reads of the kernel's memory for this look",
        null="they were not counted",
        unit="reads",
    ),
    Column("seconds", SECONDS, meaning="processor time of this look", unit="seconds"),
    Column("errors", LIST, meaning="what could not be read, one sentence each"),
)
_TYPES: Final[Mapping[object, Any]] = {
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "string": str,
}


def _parse_address(text: str) -> int:
    value = parse_number(text, 16)
    if value is None:
        raise ValueError(f"{text!r:.60} is not an address")
    return value


def _decode(value: Any, column: Column) -> Any:
    """Return the member of a sample that a value in a recording stands for.

    :raises ValueError: when the column cannot have the value.
    """
    if value is None and (column.null is not None or not column.meaning):
        return None
    if column.items is not None:
        make: Any = _ITEMS[column.key]
        return tuple(
            make(**{item.key: _decode(row[item.key], item) for item in column.items})
            for row in value
        )
    if column.kind is ADDRESS:
        return _parse_address(value)
    if column.kind is ADDRESSES:
        return tuple(map(_parse_address, value))
    if column.kind is LIST:
        return tuple(map(str, value))
    # A bool is an int in Python, but not in JSON.
    is_bool = isinstance(value, bool)
    if is_bool != (column.kind is BOOL) or not isinstance(
        value, _TYPES[column.kind.schema["type"]]
    ):
        raise ValueError(f"{column.key} is {value!r}")
    if column.kind is SECONDS:
        return float(value)
    return value


@contextlib.contextmanager
def open_recording(path: str, inputs: Inputs = tuple) -> Iterator[Callable[[Sample], None]]:
    """Open a recording; yield the function that adds a sample to it.

    The file gets its name when the block ends, even if C-c or a signal ends it.

    :param inputs: returns the files that must not be overwritten.
    :raises KcovdbgError: when it cannot be written.
    """
    # What ended the block; raised again when the file has its name.
    end: BaseException | None = None
    with open_text(path, inputs) as stream:
        try:
            yield lambda sample: stream.writelines(json_lines(Table(SAMPLE_COLUMNS, [sample])))
        except BaseException as error:
            if isinstance(error, OSError) and error.filename is None:
                # The recording could not be written: it gets no name.
                raise
            end = error
    if end is not None:
        raise end


def read_samples(path: str) -> Iterator[Sample]:
    """Iterate over the samples of a recording, in order of time.

    :raises KcovdbgError: when it is not a recording of this version, is empty, or cannot be read.
    """
    number = 0
    try:
        for row in _read_lines(path):
            number += 1
            yield Sample(
                **{column.key: _decode(row[column.key], column) for column in SAMPLE_COLUMNS}
            )
    except OSError as error:
        raise KcovdbgError(f"could not read '{path}': {error.strerror or error}") from error
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
        problem = str(error)
        if isinstance(error, KeyError):
            problem = f"no '{error.args[0]}'"
        if number:
            problem = f"row {number}: {problem}"
        raise KcovdbgError(
            f"'{path}' is not a recording of this version of monitor: {problem}",
            hint="monitor --record FILE writes one",
            wrong_file=path,
        ) from None
    if not number:
        raise KcovdbgError(f"'{path}' is empty", hint="monitor --record FILE writes a recording")


def _open_plain(path: str) -> BinaryIO:
    """Open a recording, and unpack it if it is compressed or in UTF-16."""
    stream = open_input(expand_user(path))
    start = stream.read(_START_SIZE)
    stream.seek(0)
    if find_packing(start) is None and decode_utf16(start) == start:
        return stream
    stream.close()
    return BytesIO(decode_utf16(unpack_data(path, read_input(expand_user(path), TRACE_SIZE))))


def _read_lines(path: str) -> Iterator[Mapping[str, Any]]:
    limit = find_limit(TEXT_SIZE)
    with _open_plain(path) as stream:
        while line := stream.readline(limit + 1):
            if len(line) > limit:
                raise over_limit(TEXT_SIZE, f"a row of {path}")
            if line.strip():
                yield parse_json(line)
