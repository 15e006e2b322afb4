# SPDX-License-Identifier: LGPL-2.1-or-later
"""Records of a buffer with their locations: the filters that choose among them, and the system
calls that they show.
"""

from __future__ import annotations

import posixpath
import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import islice
from typing import Final

from kcovdbg.abi import record
from kcovdbg.abi.address import address_of
from kcovdbg.elf.symbol_table import strip_clone_suffix
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.location import Frame, LocatedRecord, Location
from kcovdbg.records.pc_locations import LocationCache, PcColumns, is_pattern, name_matcher

FIRST_BATCH: Final = 64
"""Records that are looked up before the first line is written: few, so that it comes at once."""
BATCH: Final = 4096
"""Records that are looked up at a time after that."""
ASSEMBLY: Final = ".S"
"""The end of names of files with assembly, which is never instrumented."""
_IN_FUNCTION: Final = 1
_IN_FILE: Final = 2
_EXCLUDED: Final = 4


def locate_records(
    buffer: Buffer, names: LocationCache, indices: Iterable[int]
) -> Iterator[LocatedRecord]:
    """Iterate over records with their locations, looking up names in batches.

    :param indices: the indexes of the records.
    """
    remaining = iter(indices)
    size = FIRST_BATCH
    while batch := [buffer.decode(index) for index in islice(remaining, size)]:
        size = BATCH
        names.prefetch(
            found.pc for found in batch if found.pc is not None and found.partial is None
        )
        for found in batch:
            yield locate_record(buffer, names, found)


def locate_record(buffer: Buffer, names: LocationCache, found: record.Record) -> LocatedRecord:
    """Return a record with its location."""
    if found.pc is None:
        return LocatedRecord(found, None, None)
    location = names[found.pc] if found.partial is None else None
    address = address_of(found.pc - buffer.encoding.codec.lead, buffer.kaslr_offset)
    return LocatedRecord(found, address, location)


def find_indices(buffer: Buffer, wanted: PcFilter) -> Sequence[int]:
    """Return the indices of the records that were read and pass a filter, ascending."""
    words = _wanted_words(buffer, wanted)
    if words is None and not buffer.gaps:
        return range(buffer.count)
    missing = buffer.missing
    every = buffer.pc_words
    found = array("Q")
    for index, word in enumerate(every):
        if (words is None or word in words) and index not in missing:
            found.append(index)
    return found


def select_records(buffer: Buffer, indices: Sequence[int]) -> Buffer:
    """Return a buffer that holds only some records of another.

    :param indices: indexes of records that could be read, ascending.
    """
    words, starts = array(buffer.words.typecode), array("Q")
    for index in indices:
        starts.append(len(words))
        words.extend(record.record_words(buffer.words, index, buffer.encoding))
    encoding = buffer.encoding
    if encoding.starts is not None:
        # In some formats only the next record shows the end of one.
        encoding = replace(encoding, starts=starts)
    return replace(
        buffer, encoding=encoding, words=words, count=len(indices), gaps=(), file_words=None
    )


def _wanted_words(buffer: Buffer, wanted: PcFilter) -> set[int] | None:
    """Return the address words of the records that pass a filter; None where all do."""
    if wanted.passes_all:
        return None
    distinct = set(buffer.pc_words)
    pcs = record.pcs_of_words(distinct, buffer.encoding)
    passing = {word for word, pc in pcs.items() if wanted(pc)}
    if wanted.only_excludes:
        passing |= distinct - pcs.keys()
    return passing


def matches_function(pattern: str, frame: Frame) -> bool:
    """Return whether a frame's function has this name, or matches this pattern."""
    return frame.function is not None and name_matcher(pattern)(frame.function)


def matches_source_function(name: str, frame: Frame) -> bool:
    """Return whether a frame's function has this name, with or without the suffix of a clone, or
    matches this pattern.
    """
    return matches_function(name, frame) or (
        not is_pattern(name) and matches_function(strip_clone_suffix(name), frame)
    )


def matches_file(pattern: str, frame: Frame) -> bool:
    """Return whether a frame's file has this path or end of a path, is in this directory, or
    matches this pattern.
    """
    return frame.file is not None and matches_path(pattern, frame.file)


def matches_path(pattern: str, file: str) -> bool:
    """Return whether a file has this path or end of a path, is in this directory, or matches this
    pattern.
    """
    if is_pattern(pattern):
        return fnmatchcase(file, pattern)
    path = file.removeprefix("./")
    pattern = posixpath.normpath(pattern)
    return path == pattern or path.endswith("/" + pattern) or path.startswith(pattern + "/")


def is_file_name(text: str) -> bool:
    """Return whether this names a source file rather than a function."""
    return "/" in text or text.endswith((".c", ".h", ".S", ".rs"))


def matches_function_or_file(pattern: str, frame: Frame) -> bool:
    """Return whether a frame is in this function or file."""
    if is_file_name(pattern):
        return matches_file(pattern, frame)
    return matches_source_function(pattern, frame)


class PcFilter:
    """A test of PCs by function and by file.

    :param names: locations of the PCs.
    :param functions: names or patterns; any frame may match.
    :param files: paths, ends of paths, directories, or patterns; any frame may match.
    :param not_functions: names or patterns; no frame may match.
    """

    def __init__(
        self,
        names: LocationCache,
        functions: Collection[str] | None,
        files: Collection[str] | None = None,
        not_functions: Collection[str] | None = None,
    ) -> None:
        self._names = names
        self._not_functions = tuple(not_functions or ())
        self._functions = tuple(functions or ())
        self._files = tuple(files or ())
        self._known: dict[int, bool] = {}
        # Symbols have names that no frame has: names of clones, such as vfs_open.isra.0, and
        # aliases.
        self._code: list[tuple[range, int]] = []
        for flag, patterns in ((_IN_FUNCTION, functions), (_EXCLUDED, not_functions)):
            for pattern in patterns or ():
                self._code += ((code, flag) for code in names.find_code(pattern))

    @property
    def passes_all(self) -> bool:
        """Whether there is nothing to filter by."""
        return self.only_excludes and not self._not_functions

    @property
    def only_excludes(self) -> bool:
        """Whether a record that is in no function passes."""
        return not self._functions and not self._files

    def __call__(self, pc: int) -> bool:
        """Return whether a PC passes."""
        found = self._known.get(pc)
        if found is None:
            flags = 0
            for code, flag in self._code:
                # A PC is the address after a call.
                if pc - 1 in code:
                    flags |= flag
            for frame in self._names[pc].frames:
                flags |= self._flags(frame)
            found = self._known[pc] = self._passes(flags)
        return found

    def select(self, columns: PcColumns) -> bytes:
        """Return for each PC whether it passes, 0 or 1."""
        flags = bytearray(columns.find_flags(self._flags))
        for code, flag in self._code:
            # PCs whose calls are in the code: a PC is the address after a call.
            first = bisect_right(columns.pcs, code.start)
            for at in range(first, bisect_right(columns.pcs, code.stop)):
                flags[at] |= flag
        return bytes(flags.translate(bytes(self._passes(byte) for byte in range(256))))

    def wants_frame(self, frame: Frame) -> bool:
        """Return whether a frame alone passes all parts of the filter. In a clone, its function has
        the name without the suffix.
        """
        return self._passes(self._flags(frame, matches_source_function))

    def _flags(self, frame: Frame, matches: Callable[[str, Frame], bool] = matches_function) -> int:
        """Return which parts of the filter a frame matches."""
        flags = 0
        for flag, patterns, matches_one in (
            (_IN_FUNCTION, self._functions, matches),
            (_IN_FILE, self._files, matches_file),
            (_EXCLUDED, self._not_functions, matches),
        ):
            if any(matches_one(pattern, frame) for pattern in patterns):
                flags |= flag
        return flags

    def _passes(self, flags: int) -> bool:
        """Return whether frames that together match these parts of the filter pass."""
        return (
            (not self._functions or bool(flags & _IN_FUNCTION))
            and (not self._files or bool(flags & _IN_FILE))
            and not flags & _EXCLUDED
        )


# The functions that SYSCALL_DEFINE() and COMPAT_SYSCALL_DEFINE() make: include/linux/syscalls.h,
# and asm/syscall_wrapper.h of the architectures.
_FUNCTION: Final = re.compile(r"__(?:x64|ia32|arm64|riscv|s390x?|do|se)_(?:compat_)?sys_(\w+)$")


def find_recorded_syscalls(locations: Iterable[Location]) -> tuple[str, ...]:
    """Return the names of system calls in the order of their first records.

    A trace that began or ended within a call may have no record of the call's own functions, and a
    call without a branch may have none at all.

    :param locations: the records' locations, in order; repeated ones may be left out.
    """
    found: dict[str, None] = {}
    for location in locations:
        if location.approximate:
            continue
        for frame in location.frames:
            match = _FUNCTION.match((frame.function or "").split(".", 1)[0])
            if match is not None:
                found.setdefault(match[1])
    return tuple(found)
