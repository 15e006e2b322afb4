# SPDX-License-Identifier: LGPL-2.1-or-later
"""Samples of a kernel that runs: what ``monitor`` sees in one look, its rows, and recordings of them as JSON Lines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, TypeVar

from kcovdbg.abi.mode import is_tracing
from kcovdbg.console.column import ADDRESS, ADDRESSES, BOOL, COMM, LIST, MODE, NUMBER, PATH, PID, SECONDS, SYMBOL, TEXT, Column
from kcovdbg.console.json_schema import Meaning
from kcovdbg.console.output_files import Inputs, no_inputs, refuse_input
from kcovdbg.console.renderable import Fields
from kcovdbg.console.writer import json_lines
from kcovdbg.errors import KcovdbgError
from kcovdbg.input_file import parse_json
from kcovdbg.limits import TEXT_SIZE, find_limit, over_limit
from kcovdbg.model.task import Role
from kcovdbg.output_file import open_output

_T = TypeVar("_T")
_SECTION_ROLES: Final = (Role.REMOTE_SECTION.value, Role.SOFTIRQ_SECTION.value)


@dataclass(frozen=True, slots=True)
class TaskSample:
    """One task with KCOV state, its members named as in ``tasks``; None where they are unknown."""

    pid: int | None
    tgid: int | None
    comm: str | None
    task: int
    kcov: int | None
    """The object that is collected for, or that the task owns."""
    kcov_mode: str | None
    role: str | None
    beneath: str | None
    owns_remote: bool | None
    kcov_sequence: int | None
    kcov_area: int | None
    kcov_size: int | None
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
        return self.role in _SECTION_ROLES

    @property
    def is_tracing(self) -> bool:
        """Whether it records coverage."""
        return self.kcov_mode is not None and is_tracing(self.kcov_mode)

    @property
    def fill(self) -> float | None:
        """How full its buffer is, 0 to 1."""
        return None if self.count is None or not self.capacity else min(self.count / self.capacity, 1.0)

    @property
    def held(self) -> int:
        """The buffer's count, which user space can write, as far as the buffer can hold it."""
        count = self.count or 0
        return count if self.capacity is None else min(count, self.capacity)


class ObjectSample(NamedTuple):
    """One ``struct kcov``, its members named as in ``objects``."""

    kcov: int
    mode: str | None
    size: int | None
    area: int | None
    pid: int | None
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
    """Unreadable data."""


Facts = Mapping[str, str | None]
"""What does not change from look to look: the target's name, release and build ID."""

_FACTS: Final = ("target", "release", "build_id")
_KINDS: Final = {
    **dict.fromkeys(("pid", "tgid"), PID),
    **dict.fromkeys(("task", "kcov", "kcov_area", "area"), ADDRESS),
    **dict.fromkeys(("kcov_mode", "mode"), MODE),
    **dict.fromkeys(("owns_remote", "full"), BOOL),
    **dict.fromkeys(("kcov_sequence", "kcov_size", "count", "capacity", "size", "areas", "words"), NUMBER),
    "comm": COMM,
    "handles": ADDRESSES,
    "function": SYMBOL,
    "file": PATH,
    "records": SECONDS,
}


def _columns_of(keys: Sequence[str]) -> tuple[Column, ...]:
    return tuple(Column(key, _KINDS.get(key, TEXT)) for key in keys)


FINDING_COLUMNS: Final = (
    Column("rule", meaning="name of the rule"),
    Column("severity", meaning="`error`, `warning` or `transient`"),
    Column("object", meaning="what the finding is about"),
    Column("message", meaning="what is wrong with it"),
)
_ITEMS: Final[Mapping[str, tuple[Callable[..., Any], tuple[Column, ...]]]] = {
    "tasks": (TaskSample, _columns_of(tuple(TaskSample.__dataclass_fields__))),
    "objects": (ObjectSample, _columns_of(ObjectSample._fields)),
    "areas": (AreaSample, _columns_of(AreaSample._fields)),
    "findings": (FindingSample, FINDING_COLUMNS),
    "shares": (RecordShare, _columns_of(RecordShare._fields)),
}
SAMPLE_COLUMNS: Final = (
    *(Column(key) for key in _FACTS),
    Column("time", SECONDS, meaning="time of the look", unit="seconds since 1970"),
    Column("state"),
    *(Column(key, items=columns) for key, (_, columns) in _ITEMS.items()),
    Column("reads", NUMBER, meaning="reads of the kernel's memory for this look", null="they were not counted", unit="reads"),
    Column("seconds", SECONDS, meaning="processor time of this look", unit="seconds"),
    Column("errors", LIST, meaning="what could not be read, one sentence each"),
)
MEANINGS: Final[Mapping[str, Meaning]] = {
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
    "shares": Meaning("where records went since the look before, estimated from some of them"),
    "shares[].records": Meaning("records in the function, estimated", unit="records"),
}


def make_row(sample: Sample, facts: Facts) -> dict[str, Any]:
    """Return a sample as a row of :data:`SAMPLE_COLUMNS`."""
    return {**{key: facts.get(key) for key in _FACTS}, **sample._asdict()}


def _read_row(row: Mapping[str, Any]) -> tuple[Sample, dict[str, str | None]]:
    """Return the sample and the facts in an encoded row.

    :raises ValueError: when it is not a row of a recording.
    """
    try:
        facts = {key: row[key] for key in _FACTS}
        texts = (row["state"], *facts.values())
        if not isinstance(row["reads"], int) or not all(isinstance(text, str | None) for text in texts):
            raise ValueError("a value of another type")  # noqa: TRY301 (of the file)
        items = {key: _read_items(row[key], make, columns) for key, (make, columns) in _ITEMS.items()}
        for key in ("tasks", "areas", "shares"):
            items[key] = items[key] or ()
        times = {key: float(row[key]) for key in ("time", "seconds")}
        errors = tuple(map(str, row["errors"] or ()))
        return Sample(state=row["state"], reads=row["reads"], errors=errors, **times, **items), facts  # type: ignore[arg-type]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a sample: {type(error).__name__}: {error}") from None


def _read_items(items: Any, make: Callable[..., _T], columns: tuple[Column, ...]) -> tuple[_T, ...] | None:
    if items is None:
        return None
    # Recordings of 0.1.0 have no devices.
    rows = ({"device": None, **item} for item in items)
    return tuple(make(**{column.key: _decode(row[column.key], column) for column in columns}) for row in rows)


def _decode(value: Any, column: Column) -> Any:
    if value is None:
        return None
    if column.kind is ADDRESS:
        return int(value, 16)
    if column.kind is ADDRESSES:
        return tuple(int(item, 16) for item in value)
    numbers = {NUMBER.name: int, PID.name: int, SECONDS.name: (int, float), BOOL.name: bool}
    expected = numbers.get(column.kind.name, str)
    if not isinstance(value, expected) or (isinstance(value, bool) and column.kind is not BOOL):  # type: ignore[arg-type]
        raise ValueError(f"{column.key} is {value!r}")
    return value


class RecordingWriter:
    """A recording that samples are added to.

    :param stream: written to.
    :param facts: of the kernel.
    """

    def __init__(self, stream: BinaryIO, facts: Facts) -> None:
        self._stream = stream
        self._facts = facts
        self.samples = 0

    def add(self, sample: Sample) -> None:
        """Add a sample."""
        self.samples += 1
        for line in json_lines(Fields(SAMPLE_COLUMNS, make_row(sample, self._facts))):
            self._stream.write(line.encode())


@contextlib.contextmanager
def open_recording(path: str, facts: Facts, inputs: Inputs = no_inputs) -> Iterator[RecordingWriter]:
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


class RecordedRun(NamedTuple):
    """A recording: at least one sample, in order of time."""

    samples: tuple[Sample, ...]
    facts: Facts


def read_samples(path: str) -> Iterator[tuple[Sample, Facts]]:
    """Iterate over the samples of a recording, each with the facts.

    :raises KcovdbgError: when it is not a recording, or cannot be read.
    """
    number = 0
    try:
        for row in _read_lines(path):
            number += 1
            yield _read_row(row)
    except OSError as error:
        raise KcovdbgError(f"could not read '{path}': {error.strerror or error}") from error
    except ValueError as error:
        where = f"row {number}: " if number else ""
        raise KcovdbgError(
            f"'{path}' is not a recording of monitor: {where}{error}", hint="monitor --record FILE writes one"
        ) from None
    if not number:
        raise KcovdbgError(f"'{path}' is empty", hint="monitor --record FILE writes a recording")


def read_run(path: str) -> RecordedRun:
    """Read a recording.

    :raises KcovdbgError: when it is not one, or cannot be read.
    """
    samples, facts = zip(*read_samples(path), strict=True)
    return RecordedRun(samples, facts[0])


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
