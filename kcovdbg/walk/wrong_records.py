# SPDX-License-Identifier: LGPL-2.1-or-later
"""The records of a buffer that no callback can have written, the buffer's mappings in user space,
and the mappings next to these.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from kcovdbg.errors import KcovdbgError, MissingTypeError, ReadError
from kcovdbg.model.kcov import KcovFile
from kcovdbg.model.memory import VmallocArea
from kcovdbg.model.state import (
    BufferContents,
    BufferMapping,
    NextMapping,
    PointProof,
    Source,
    WrongRecords,
)
from kcovdbg.target.pointer import check_pointer, read_pointer
from kcovdbg.target.struct_layout import read_string
from kcovdbg.target.target import Target, Vma
from kcovdbg.walk.structure_cache import StructureCache

# Limits for the wrong records of a buffer that are described, and for its mappings.
_DESCRIBED: Final = 4
_MAPPINGS: Final = 4
# Number of records that are shown before and after a wrong one.
_NEIGHBORS: Final = 2
# Limit for the distinct words of a buffer that are judged: a kernel records tens of thousands of
# points.
_JUDGED: Final = 1 << 17
# include/linux/mm.h.
_VM_WRITE: Final = 0x2
_VM_GROWSDOWN: Final = 0x100
# Limit for the bytes of a file's name.
_NAME: Final = 64


class WrongRecordWalk:
    """Finds the wrong records in one look at a kernel.

    :param proof: judges records by the kernel's code.
    """

    def __init__(self, cache: StructureCache, proof: PointProof) -> None:
        self._cache = cache
        self._target: Target = cache.target
        self._proof = proof

    def find(self, contents: BufferContents, *, is_reused: bool) -> WrongRecords | None:
        """Return the wrong records of a buffer, None when there are none.

        :param is_reused: whether earlier sessions may have left records of another mode in it.
            Such a buffer is not judged if it has a comparison's PC or a word of 0 among the wrong
            words: a comparison counts as one record but takes four words, so that a later session
            of PCs begins after words that no session has written.
        """
        buffer = contents.buffer
        codec = buffer.encoding.codec
        if not codec.has_plain_pcs or (is_reused and codec.has_operands):
            return None
        count, capacity = buffer.stored_count, buffer.capacity
        if count is not None and capacity is not None and count > capacity:
            # User space has written the count, and may have written the records.
            return None
        words = contents.written
        judged = tuple(islice(dict.fromkeys(words), _JUDGED))
        impossible, comparisons = self._proof.judge(judged, codec, self._target.read)
        if not impossible:
            return None
        missing = buffer.missing
        wrong: list[tuple[int, int]] = []
        for number, word in enumerate(words):
            if word in impossible and number not in missing:
                wrong.append((number, word))
        if not wrong:
            return None
        if is_reused and any(word == 0 or word in comparisons for _, word in wrong):
            return None
        first, first_word = wrong[0]
        near = range(max(first - _NEIGHBORS, 0), min(first + _NEIGHBORS + 1, len(words)))
        words_before = 1 + codec.pc_word + first * codec.record_words
        mappings, problems = self._find_mappings(contents)
        return WrongRecords(
            contents,
            count=len(wrong),
            first=tuple(wrong[:_DESCRIBED]),
            problem=impossible[first_word],
            neighbors={number: words[number] for number in near if number != first},
            offset=words_before * buffer.encoding.word_size,
            mappings=tuple(mappings),
            vmalloc=self._find_adjacent_areas(buffer.address or 0),
            problems=tuple(problems),
        )

    def _find_mappings(self, contents: BufferContents) -> tuple[list[BufferMapping], list[str]]:
        """Return the first mappings of a buffer in user space, and why some may be missing."""
        mappings: list[BufferMapping] = []
        problems: list[str] = []
        if contents.section is not None:
            return mappings, problems
        files = [file for file in self._cache.files.found if file.kcov == contents.kcov]
        for file in files[:_MAPPINGS]:
            if file.start is None:
                continue
            try:
                mappings.append(self._describe(file))
            except KcovdbgError as error:
                problems.append(f"the mappings of process {file.pid}: {error}")
        problems += self._cache.files.lacking[Source.FILES].lines
        return mappings, problems

    def _describe(self, file: KcovFile) -> BufferMapping:
        assert file.start is not None
        assert file.end is not None
        tasks = self._cache.tasks.found
        address_spaces = (task.mm for task in tasks if task.tgid == file.pid and task.mm)
        mm = next(address_spaces, None)
        walk = self._target.vmas
        if mm is None or walk is None:
            raise ReadError("they cannot be listed", file.start)
        before = own = after = None
        for vma in walk.for_each_vma(mm):
            if vma.end == file.start:
                before = vma
            elif vma.start == file.start:
                own = vma
            elif vma.start == file.end:
                after = vma
            if vma.start >= file.end:
                break
        return BufferMapping(
            file.pid,
            file.start,
            file.end,
            offset=(file.pgoff or 0) * self._target.page_size,
            writable=own is not None and bool(own.flags & _VM_WRITE),
            before=self._name(before),
            after=self._name(after),
        )

    def _name(self, vma: Vma | None) -> NextMapping | None:
        if vma is None:
            return None
        if vma.file:
            name = self._file_name(vma.file) or f"file {vma.file:#x}"
        elif vma.flags & _VM_GROWSDOWN:
            name = "stack"
        else:
            name = "anonymous"
        return NextMapping(vma.start, vma.end, bool(vma.flags & _VM_WRITE), name)

    def _file_name(self, file: int) -> str | None:
        """Return the name of a file, None when it is unreadable."""
        target = self._target
        try:
            path = target.member("struct file", "f_path.dentry")
            dentry = read_pointer(target, file + path.offset)
            check_pointer(target, dentry, "struct dentry")
            member = target.member("struct dentry", "d_name.name")
            return read_string(target, read_pointer(target, dentry + member.offset), _NAME)
        except (ReadError, MissingTypeError):
            return None

    def _find_adjacent_areas(self, address: int) -> tuple[VmallocArea | None, VmallocArea | None]:
        """Return the vmalloc areas before and after an address."""
        areas = self._cache.vmalloc_areas.found
        before = max((start for start in areas if start < address), default=0)
        after = min((start for start in areas if start > address), default=0)
        return areas.get(before), areas.get(after)
