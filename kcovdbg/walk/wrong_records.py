# SPDX-License-Identifier: LGPL-2.1-or-later
"""Records that no callback can have written, with who maps their buffer and what is mapped next to
it.
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
        if (
            buffer.stored_count is not None
            and buffer.capacity is not None
            and buffer.stored_count > buffer.capacity
        ):
            # User space has written the count: the kernel wrote none of these.
            return None
        words = contents.written
        impossible, comparisons = self._proof.judge(
            tuple(islice(dict.fromkeys(words), _JUDGED)), codec, self._target.read
        )
        if not impossible:
            return None
        missing = contents.buffer.missing
        numbers = [
            number
            for number, word in enumerate(words)
            if word in impossible and number not in missing
        ]
        if not numbers or (
            is_reused
            and any(not words[number] or words[number] in comparisons for number in numbers)
        ):
            return None
        number = numbers[0]
        near = range(max(number - _NEIGHBORS, 0), min(number + _NEIGHBORS + 1, len(words)))
        mappings: list[BufferMapping] = []
        problems: list[str] = []
        if contents.section is None:
            for file in islice(
                (file for file in self._cache.files.found if file.kcov == contents.kcov), _MAPPINGS
            ):
                if file.start is None:
                    continue
                try:
                    mappings.append(self._describe(file))
                except KcovdbgError as error:
                    problems.append(f"the mappings of process {file.pid}: {error}")
            problems += self._cache.files.lacking[Source.FILES].lines
        return WrongRecords(
            contents,
            len(numbers),
            tuple((wrong, words[wrong]) for wrong in numbers[:_DESCRIBED]),
            impossible[words[number]],
            {other: words[other] for other in near if other != number},
            # The count word is a word of a record.
            buffer.encoding.word_size * (1 + codec.pc_word + number * codec.record_words),
            tuple(mappings),
            self._vmalloc_around(buffer.address or 0),
            tuple(problems),
        )

    def _describe(self, file: KcovFile) -> BufferMapping:
        assert file.start is not None
        assert file.end is not None
        mm = next(
            (task.mm for task in self._cache.tasks.found if task.tgid == file.pid and task.mm), None
        )
        source = self._target.vmas
        if mm is None or source is None:
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
        if not vma.file:
            name = "stack" if vma.flags & _VM_GROWSDOWN else "anonymous"
        else:
            try:
                name = self._file_name(vma.file)
            except (ReadError, MissingTypeError):
                name = f"file {vma.file:#x}"
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
        areas = sorted(self._cache.vmalloc_areas.found.values(), key=lambda area: area.start)
        before = [area for area in areas if area.start < address]
        after = [area for area in areas if area.start > address]
        return before[-1] if before else None, after[0] if after else None
