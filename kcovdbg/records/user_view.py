# SPDX-License-Identifier: LGPL-2.1-or-later
"""Read a buffer as the process sees it, through /proc/PID/mem, and compare it with the kernel's
view.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Final, NamedTuple

from kcovdbg.abi import record
from kcovdbg.errors import KcovdbgError, ReadError
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.kcov import KcovFile
from kcovdbg.model.task import TaskFields
from kcovdbg.records.alignment import align_by_index
from kcovdbg.target.target import Target
from kcovdbg.walk.files import FileWalk


def find_mapping(target: Target, tasks: Iterable[TaskFields], pid: int, kcov: int) -> KcovFile:
    """Return the mapping of an object's buffer in a process.

    :param tasks: all tasks.
    :param pid: process ID.
    :param kcov: ``struct kcov *``.
    :raises KcovdbgError: when there is none.
    """
    walk = FileWalk(target)
    for mapping in walk.for_each_mapping([task for task in tasks if pid in (task.pid, task.tgid)]):
        if mapping.kcov == kcov and not mapping.pgoff:
            return mapping
    raise KcovdbgError(
        f"process {pid}: kcov {kcov:#x} is not mapped",
        hint=walk.remarks[0] if walk.remarks else "without a mapping it cannot see its coverage",
    )


def read_user_view(pid: int, mapping: KcovFile, kernel: Buffer) -> Buffer:
    """Return a buffer as the process sees it.

    :param kernel: the same buffer, as read from the kernel's memory.
    :raises ReadError: when the process has exited, or its memory could not be read.
    """
    assert mapping.start is not None
    assert mapping.end is not None
    encoding = kernel.encoding
    count_size = encoding.records_offset
    try:
        descriptor = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            head = os.pread(descriptor, count_size, mapping.start)
            stored = record.decode_word(head[encoding.count_offset :], encoding)
            room = (mapping.end - mapping.start - count_size) // encoding.record_size
            used = min(stored, room if kernel.capacity is None else min(room, kernel.capacity))
            data = b""
            if used:
                length = used * encoding.record_size
                data = os.pread(descriptor, length, mapping.start + count_size)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ReadError(
            f"memory of process {pid}: could not be read: {error.strerror}", mapping.start
        ) from error
    words = record.decode_words(data, encoding)
    words, encoding = record.split_records(words, encoding)
    return replace(
        kernel,
        encoding=encoding,
        name=f"user:{pid}@{mapping.start:#x}",
        words=words,
        count=record.count_records(words, encoding),
        stored_count=stored,
        address=mapping.start,
        gaps=(),
        remarks=(),
    )


# Reads of both views. A record that alternates between two values seems to differ steadily once in
# 2 ** 15 times.
_READS: Final = 8
# Differing records are not counted beyond this number.
_MAX_DIFFERENCES: Final = 1000


class ViewComparison(NamedTuple):
    """Both views of a buffer, and where they differ."""

    user: Buffer
    kernel: Buffer
    findings: tuple[str, ...]
    """Differences that no order of events explains."""


def compare_views(
    read_user: Callable[[Buffer], Buffer], read_kernel: Callable[[], Buffer]
) -> ViewComparison:
    """Compare a buffer as user space sees it with the same buffer as the kernel holds it.

    Both views are of the same pages, but they are read one after the other; meanwhile the kernel
    may write a record (it raises the count first) and user space may reset the count. Differences
    are therefore read again several times. One that persists, while neither view changes, means
    corruption, a private mapping, or two different objects.

    :param read_user: reads the user's view; takes the kernel's view, which has the encoding.
    :param read_kernel: reads the kernel's view.
    """
    kernel = read_kernel()
    user = read_user(kernel)
    standing = _differences(user, kernel)
    for number in range(_READS - 1):
        if not standing:
            break
        # The order alternates, so that a writer cannot fall into step with the reads.
        if number % 2:
            kernel = read_kernel()
            user = read_user(kernel)
        else:
            user = read_user(kernel)
            kernel = read_kernel()
        found = _differences(user, kernel)
        standing = {
            index: values for index, values in standing.items() if found.get(index) == values
        }
    return ViewComparison(user, kernel, tuple(_describe(standing, min(user.count, kernel.count))))


_COUNT: Final = -1


def _differences(user: Buffer, kernel: Buffer) -> dict[int, tuple[object, object]]:
    """Return both values of each record that differs, by index; and under :data:`_COUNT` both
    counts if they differ.
    """
    found: dict[int, tuple[object, object]] = {}
    if kernel.stored_count is not None and user.stored_count != kernel.stored_count:
        found[_COUNT] = user.stored_count, kernel.stored_count
    width = kernel.encoding.record_words
    common = min(len(user.words), len(kernel.words))
    parts = align_by_index(user.words[:common], kernel.words[:common], width).parts()
    differing = chain.from_iterable(part.left for part in parts if not part.is_common)
    for index in islice(differing, _MAX_DIFFERENCES):
        record_words = slice(index * width, (index + 1) * width)
        found[index] = user.words[record_words].tobytes(), kernel.words[record_words].tobytes()
    return found


def _describe(standing: dict[int, tuple[object, object]], common: int) -> Iterator[str]:
    records = [index for index in standing if index != _COUNT]
    if records:
        where = ", ".join(map(str, records[:5]))
        if len(records) > 5:
            where += ", …"
        least = "at least " if len(records) >= _MAX_DIFFERENCES else ""
        yield (
            f"{least}{len(records)} of {common} records differ persistently between the user's "
            f"and the kernel's view (record {where})"
        )
    if _COUNT in standing:
        user, kernel = standing[_COUNT]
        yield f"the counts differ persistently: {user} in the user's view, {kernel} in the kernel's"


def is_private(pid: int, mapping: KcovFile) -> bool | None:
    """Return whether a process has mapped a buffer with MAP_PRIVATE; None if it is unknown."""
    try:
        with Path(f"/proc/{pid}/maps").open(encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                span, permissions = line.split(maxsplit=2)[:2]
                if int(span.partition("-")[0], 16) == mapping.start:
                    return permissions[3:4] == "p"
    except (OSError, ValueError):
        pass
    return None
