# SPDX-License-Identifier: LGPL-2.1-or-later
"""A buffer as the process sees it that has it mapped: read through /proc, not through the kernel's own mapping."""

from __future__ import annotations

import os
from dataclasses import replace

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


def find_differences(user: Buffer, kernel: Buffer) -> list[str]:
    """Return what differs beyond the record in flight: it means corruption, or that these aren't the same instance.

    Both show the same pages. What was read later may hold more records, and the last one of what was read first may have been
    on its way (the kernel raises the count before it writes).

    :param user: read before or after the other.
    """
    width = kernel.encoding.record_words
    common = min(user.count, kernel.count)
    found = []
    differing = [
        index
        for index in range(common)
        if user.words[index * width : (index + 1) * width] != kernel.words[index * width : (index + 1) * width]
    ]
    if differing and differing != [common - 1]:
        where = ", ".join(map(str, differing[:5])) + (", …" if len(differing) > 5 else "")
        found.append(
            f"{len(differing)} of {common} records differ between the user's and the kernel's view (from record {where}): "
            "corruption, a reset in between, or another instance"
        )
    return found
