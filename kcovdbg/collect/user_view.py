# SPDX-License-Identifier: LGPL-2.1-or-later
"""A buffer as the process sees it that has it mapped: read through /proc, not through the kernel's own mapping."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from kcovdbg.abi import record
from kcovdbg.errors import KcovdbgError, ReadError
from kcovdbg.model.buffer import Buffer
from kcovdbg.target import Target
from kcovdbg.walk.census import Census
from kcovdbg.walk.files import FileWalk, KcovFile


def find_mapping(target: Target, census: Census, pid: int, kcov: int) -> KcovFile:
    """Find where a process has an instance's buffer mapped.

    :param pid: of the process.
    :param kcov: ``struct kcov *``.
    :raises KcovdbgError: when it hasn't.
    """
    walk = FileWalk(target)
    tasks = [task for task in census.by_address.values() if task.tgid == pid]
    for mapping in walk.for_each_mapping(tasks):
        if mapping.kcov == kcov and not mapping.pgoff:
            return mapping
    raise KcovdbgError(
        f"process {pid} has no mapping of kcov {kcov:#x}", hint=walk.remarks[0] if walk.remarks else "it collects blindly"
    )


def read_user_view(pid: int, mapping: KcovFile, kernel: Buffer) -> Buffer:
    """Read what the process sees of a buffer.

    :param kernel: the same buffer, read from the kernel's memory before.
    :raises ReadError: when the process is gone, or its memory can't be read.
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
            data = os.pread(descriptor, used * encoding.record_size, mapping.start + count_size) if used else b""
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ReadError(f"memory of process {pid} can't be read: {error.strerror}", mapping.start) from error
    words = record.decode_words(data, encoding)
    count = len(words) // encoding.record_words
    return replace(
        kernel,
        name=f"user:{pid}@{mapping.start:#x}",
        words=words,
        count=count,
        stored_count=stored,
        address=mapping.start,
        gaps=(),
        remarks=(),
    )


# Two traces of which each is there half of the time look like two views that differ, once in 2 ** 15 times.
_LOOKS: Final = 8
# More say nothing more.
_MOST: Final = 1000


class Comparison(NamedTuple):
    """What both see, and what of it can't be."""

    user: Buffer
    kernel: Buffer
    findings: tuple[str, ...]


def compare_views(
    read_user: Callable[[Buffer], Buffer], read_kernel: Callable[[], Buffer], *, looks: int = _LOOKS
) -> Comparison:
    """Find out whether user space sees what the kernel holds.

    Both views are of the same pages, but they are read one after the other, while the kernel may write the next record (it
    raises the count first) and user space may reset the count. So what differs is read again, several times: where the user's
    view stands still, the kernel's stands still, and they differ, no order of events explains it. It means corruption, a
    private mapping, or that these aren't the same instance.

    :param read_user: from the kernel's view, which says how the buffer is to be read.
    """
    kernel = read_kernel()
    user = read_user(kernel)
    standing = _differences(user, kernel)
    for look in range(looks - 1):
        if not standing:
            break
        # Now the one first, now the other, so that nobody who writes in turns falls in step.
        if look % 2:
            kernel = read_kernel()
            user = read_user(kernel)
        else:
            user = read_user(kernel)
            kernel = read_kernel()
        found = _differences(user, kernel)
        standing = {index: values for index, values in standing.items() if found.get(index) == values}
    return Comparison(user, kernel, tuple(_describe(standing, min(user.count, kernel.count))))


_COUNT: Final = -1


def _differences(user: Buffer, kernel: Buffer) -> dict[int, tuple[object, object]]:
    """Return the indices of records that differ, with both values; and the counts."""
    found: dict[int, tuple[object, object]] = {}
    if kernel.stored_count is not None and user.stored_count != kernel.stored_count:
        found[_COUNT] = user.stored_count, kernel.stored_count
    width = kernel.encoding.record_words
    common = min(user.count, kernel.count) * width
    left, right = user.words, kernel.words
    step = width << 10
    for start in range(0, common, step):
        end = min(start + step, common)
        if left[start:end].tobytes() == right[start:end].tobytes():
            continue
        for at in range(start, end, width):
            if left[at : at + width] != right[at : at + width]:
                found[at // width] = left[at : at + width].tobytes(), right[at : at + width].tobytes()
        if len(found) > _MOST:
            break
    return found


def _describe(standing: dict[int, tuple[object, object]], common: int) -> Iterator[str]:
    records = [index for index in standing if index != _COUNT]
    if records:
        where = ", ".join(map(str, records[:5])) + (", …" if len(records) > 5 else "")
        several = f"{'at least ' if len(records) >= _MOST else ''}{len(records)} of {common} records"
        yield f"{several} differ between the user's and the kernel's view (record {where}), and stay so"
    if _COUNT in standing:
        user, kernel = standing[_COUNT]
        yield f"the user sees a count of {user}, the kernel holds {kernel}, and they stay so"


def is_private(pid: int, mapping: KcovFile) -> bool | None:
    """Tell whether a process has a buffer mapped with MAP_PRIVATE; None where it can't be told."""
    try:
        with Path(f"/proc/{pid}/maps").open(encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                span, permissions = line.split(maxsplit=2)[:2]
                if int(span.partition("-")[0], 16) == mapping.start:
                    return permissions[3:4] == "p"
    except (OSError, ValueError):
        pass
    return None
