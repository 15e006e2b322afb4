# SPDX-License-Identifier: LGPL-2.1-or-later
"""Records that no callback can have written, the mappings of their buffer, and the neighbors of
these mappings.
"""

from __future__ import annotations

from contextlib import suppress
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
from kcovdbg.target.target import Target, Vma
from kcovdbg.walk.structure_cache import StructureCache

# Limits for the records of a buffer that are described, and for the mappings of it.
_DESCRIBED: Final = 4
_MAPPINGS: Final = 4
# Records before and after a wrong one.
_NEIGHBORS: Final = 2
# Limit for the distinct words of a buffer that are judged: a kernel records tens of thousands of
# points.
_JUDGED: Final = 1 << 17
# include/linux/mm.h.
_VM_WRITE: Final = 0x2
_VM_GROWSDOWN: Final = 0x100
_NAME: Final = 64


class WrongRecordWalk:
    """The wrong records in one look at a kernel."""

    def __init__(self, cache: StructureCache, proof: PointProof) -> None:
        self._cache = cache
        self._target: Target = cache.target
        self._proof = proof

    def find(self, contents: BufferContents, *, is_reused: bool) -> WrongRecords | None:
        """Return the wrong records of a buffer, None when there are none.

        :param is_reused: whether earlier sessions may have left records of another mode in it; what
            shows that they did is not judged. Left comparisons show it, and so do words of 0: a
            comparison counts as one record but takes four words, so a session of PCs may start
            behind words that none has written.
        """
        buffer = contents.buffer
        codec = buffer.encoding.codec
        if not codec.has_plain_pcs or (is_reused and codec.has_operands):
            return None
        count, capacity = buffer.stored_count, buffer.capacity
        if count is not None and capacity is not None and count > capacity:
            # User space has written the count: the kernel wrote none of these.
            return None
        words = contents.written
        judged = tuple(islice(dict.fromkeys(words), _JUDGED))
        impossible, comparisons = self._proof.judge(judged, codec, self._target.read)
        missing = buffer.missing
        if not impossible:
            return None
        numbers = [
            number
            for number, word in enumerate(words)
            if word in impossible and number not in missing
        ]
        if not numbers:
            return None
        wrong = [words[number] for number in numbers]
        if is_reused and any(not word or word in comparisons for word in wrong):
            return None
        first = numbers[0]
        near = range(max(first - _NEIGHBORS, 0), min(first + _NEIGHBORS + 1, len(words)))
        mappings, problems = self._find_mappings(contents)
        return WrongRecords(
            contents,
            len(numbers),
            tuple(zip(numbers[:_DESCRIBED], wrong, strict=False)),
            impossible[wrong[0]],
            {number: words[number] for number in near if number != first},
            # The count word is a word of a record.
            buffer.encoding.word_size * (1 + codec.pc_word + first * codec.record_words),
            tuple(mappings),
            self._vmalloc_around(buffer.address or 0),
            tuple(problems),
        )

    def _find_mappings(self, contents: BufferContents) -> tuple[list[BufferMapping], list[str]]:
        """Return the first mappings of a buffer in user space, and why others may be missing."""
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
        mm = 0
        for task in self._cache.tasks.found:
            if task.tgid == file.pid:
                mm = mm or task.mm or 0
        source = self._target.vmas
        if not mm or source is None:
            raise ReadError("they cannot be listed", file.start)
        before = own = after = None
        for vma in source.for_each_vma(mm):
            if vma.end == file.start:
                before = vma
            elif vma.start == file.start:
                own = vma
            elif vma.start >= file.end:
                after = vma if vma.start == file.end else None
                break
        return BufferMapping(
            file.pid,
            file.start,
            file.end,
            (file.pgoff or 0) * self._target.page_size,
            own is not None and bool(own.flags & _VM_WRITE),
            self._name(before),
            self._name(after),
        )

    def _name(self, vma: Vma | None) -> NextMapping | None:
        if vma is None:
            return None
        name = "stack" if vma.flags & _VM_GROWSDOWN else "anonymous"
        if vma.file:
            name = f"file {vma.file:#x}"
            with suppress(ReadError, MissingTypeError):
                name = self._file_name(vma.file)
        return NextMapping(vma.start, vma.end, bool(vma.flags & _VM_WRITE), name)

    def _file_name(self, file: int) -> str:
        target = self._target
        dentry = read_pointer(target, file + target.member("struct file", "f_path.dentry").offset)
        check_pointer(target, dentry, "struct dentry")
        name = read_pointer(target, dentry + target.member("struct dentry", "d_name.name").offset)
        # Names are aligned inside of a dentry or of their own allocation: they do not cross into a
        # missing page early.
        return target.read(name, _NAME).split(b"\0")[0].decode("utf-8", "backslashreplace")

    def _vmalloc_around(self, address: int) -> tuple[VmallocArea | None, VmallocArea | None]:
        areas = self._cache.vmalloc_areas.found
        before = max((start for start in areas if start < address), default=0)
        after = min((start for start in areas if start > address), default=0)
        return areas.get(before), areas.get(after)
