# SPDX-License-Identifier: LGPL-2.1-or-later
"""Open files and mappings that lead to a ``struct kcov``. ``f_op`` of such a file is
``kcov_fops``, and ``private_data`` is the object.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

from kcovdbg.errors import MissingError, MissingTypeError, ReadError
from kcovdbg.model.kcov import KcovFile
from kcovdbg.model.task import TaskFields, find_holders
from kcovdbg.target.pointer import (
    Remarks,
    check_pointer,
    is_kernel_pointer,
    read_pointer,
    read_words,
    strip_tag,
)
from kcovdbg.target.struct_layout import BlockLayout
from kcovdbg.target.target import Target

# Sysctl fs.nr_open is below this in practice: a larger max_fds is damage.
_MAX_FDS: Final = 1 << 24
# Limit for unreadable files: the rest of such a table is left out.
_MAX_BAD_FILES: Final = 16


class FileWalk:
    """One walk over the file tables and mappings of tasks.

    :param operations: symbol of the ``struct file_operations`` of KCOV's files, or of a device's.
    """

    def __init__(self, target: Target, operations: str = "kcov_fops") -> None:
        self._target = target
        self._files: dict[int, int | None] = {}
        self.remarks = Remarks()
        self.unread = Remarks()
        """The remarks on missing memory, without those on damage."""
        self._fops: frozenset[int] = frozenset()
        self._has_tables = False
        self._bad = 0
        try:
            self._file = BlockLayout(target, "struct file", "f_op private_data").require()
            # Since v6.13 it is a file_ref_t.
            self._count = BlockLayout(
                target,
                "struct file",
                {"f_count": ("f_count.counter", "f_count"), "f_ref": ("f_ref.refcnt.counter",)},
            )
            self._fops = frozenset({target.symbol(operations).address})
        except MissingError as error:
            self.remarks.note(f"files of KCOV could not be recognized: {error}")
            return
        try:
            self._table = BlockLayout(target, "struct fdtable", "max_fds fd open_fds").require()
            self._fdt = target.member("struct files_struct", "fdt").offset
            self._files_of_task = target.member("struct task_struct", "files").offset
            self._has_tables = True
        except MissingTypeError as error:
            self.remarks.note(f"descriptors could not be listed: {error}")

    def for_each_descriptor(self, tasks: Iterable[TaskFields]) -> Iterator[KcovFile]:
        """Yield descriptors of KCOV's files; a shared table gives one for each process."""
        if not self._fops or not self._has_tables:
            return
        tasks = tuple(tasks)
        for holders, descriptors in self._for_each_table(tasks):
            pid, task = next(iter(holders.items()))
            self._bad = 0
            for fd, file in descriptors:
                what = f"descriptor {fd} of process {pid}"
                kcov = self.find_kcov(file, what, partial(self._has_file, task, fd, file))
                if kcov is not None:
                    for holder in holders:
                        yield KcovFile(holder, file, kcov, fd=fd, is_repeated=holder != pid)
                elif self._bad > _MAX_BAD_FILES:
                    self.remarks.note(
                        f"the file table of process {pid} is damaged: the rest of it is left out"
                    )
                    break
        unknown = sum(task.files is None for task in tasks)
        if unknown:
            self.remarks.note(
                f"the file tables of {unknown} tasks are unknown: descriptors of KCOV may be "
                f"missing"
            )

    def _for_each_table(
        self, tasks: Iterable[TaskFields]
    ) -> Iterator[tuple[Mapping[int | None, TaskFields], list[tuple[int, int]]]]:
        """Yield the tasks that have each file table, and its descriptors with their files."""
        for table, holders in find_holders(tasks, "files").items():
            try:
                yield holders, self._read_descriptors(table)
            except ReadError as error:
                pid, task = next(iter(holders.items()))
                if self._has_table(task):
                    self.remarks.note(f"the file table of process {pid} could not be read: {error}")

    def _has_table(self, task: TaskFields) -> bool:
        """Return whether a process still has the file table that was read. In a live kernel, it may
        have exited since.
        """
        if not self._target.live:
            return True
        try:
            return read_pointer(self._target, task.address + self._files_of_task) == task.files
        except ReadError:
            return False

    def _has_file(self, task: TaskFields, fd: int, file: int) -> bool:
        """Return whether a descriptor still leads to the file that was read. In a live kernel, it
        may have been closed since.
        """
        if not self._target.live:
            return True
        try:
            return self._has_table(task) and (fd, file) in self._read_descriptors(task.files or 0)
        except ReadError:
            return self._has_table(task)

    def for_each_file(
        self, tasks: Iterable[TaskFields], operations: Collection[int]
    ) -> Iterator[tuple[int, str, int]]:
        """Yield one descriptor of each file with some ``f_op``: the ``f_op``, the process and the
        descriptor as text, and ``private_data``.

        Unreadable files are left out: the walk over KCOV's own files reports them.
        """
        if not self._has_tables:
            return
        files: set[int] = set()
        for holders, descriptors in self._for_each_table(tasks):
            for fd, file in descriptors:
                if not file or file in files or not is_kernel_pointer(self._target, file):
                    continue
                files.add(file)
                try:
                    found, private = self._file.read(self._target, file)
                except ReadError:
                    continue
                if found in operations and private:
                    yield found, f"{next(iter(holders))}/{fd}", private

    def for_each_mapping(self, tasks: Iterable[TaskFields]) -> Iterator[KcovFile]:
        """Yield mappings of KCOV's files, whose descriptors may be closed; shared memory gives one
        for each process.
        """
        if not self._fops:
            return
        source = self._target.vmas
        if source is None:
            self.remarks.note(
                "this target cannot list mappings: objects that only a mapping refers to may "
                "be missing"
            )
            return
        tasks = tuple(tasks)
        for space, holders in find_holders(tasks, "mm").items():
            pid = next(iter(holders))
            try:
                check_pointer(self._target, space, "struct mm_struct")
                for vma in source.for_each_vma(space):
                    if not vma.file:
                        continue
                    what = f"the mapping at {vma.start:#x} of process {pid}"
                    kcov = self.find_kcov(vma.file, what)
                    if not kcov:
                        continue
                    for holder in holders:
                        yield KcovFile(
                            holder,
                            vma.file,
                            kcov,
                            start=vma.start,
                            end=vma.end,
                            pgoff=vma.pgoff,
                            is_repeated=holder != pid,
                        )
            except ReadError as error:
                self.remarks.note(f"the mappings of process {pid} could not be read: {error}")
        unknown = sum(task.mm is None for task in tasks)
        if unknown:
            self.remarks.note(
                f"the address spaces of {unknown} tasks are unknown: mappings of KCOV may be "
                f"missing"
            )

    def _read_descriptors(self, files: int) -> list[tuple[int, int]]:
        check_pointer(self._target, files, "struct files_struct")
        table = read_pointer(self._target, files + self._fdt)
        check_pointer(self._target, table, "struct fdtable")
        max_fds, array, open_fds = self._table.read(self._target, table)
        # The kernel rounds max_fds up to whole words of the bitmap.
        width = 8 * self._target.word_size
        if not 0 < max_fds <= _MAX_FDS or max_fds % width:
            raise ReadError(f"max_fds of struct fdtable at {table:#x} is {max_fds}", table)
        check_pointer(self._target, array, "fdtable.fd")
        check_pointer(self._target, open_fds, "fdtable.open_fds")
        fds: list[int] = []
        for index, word in enumerate(read_words(self._target, open_fds, max_fds // width)):
            while word:
                lowest = word & -word
                fds.append(index * width + lowest.bit_length() - 1)
                word ^= lowest
        if not fds:
            return []
        pointers = read_words(self._target, array, fds[-1] + 1)
        return [(fd, strip_tag(self._target, pointers[fd])) for fd in fds]

    def is_released(self, file: int) -> bool:
        """Return whether nothing holds a ``struct file`` any more: it will be freed, or is freed.

        A freed file may stay in memory: in KASAN's quarantine or, with CONFIG_SLUB_RCU_DEBUG, until
        a grace period is over.
        """
        try:
            count, reference = self._count.read(self._target, file)
        except ReadError:
            return False
        if reference is not None:
            # The two highest bits of a dead count are set (include/linux/file_ref.h).
            return bool(reference >> (8 * self._target.word_size - 2) & 3 == 3)
        return bool(count == 0)

    def find_kcov(
        self, file: int, what: str, is_current: Callable[[], bool] = lambda: True
    ) -> int | None:
        """Return the object of a ``struct file``, None if the file is not KCOV's.

        :param what: the name of the file in remarks.
        :param is_current: returns whether a descriptor still leads to the file; if not, an
            unreadable file gives no remark.
        """
        if not self._fops:
            return None
        if file in self._files:
            return self._files[file]
        kcov: int | None = None
        problem: str | None = None
        # A descriptor that is reserved but not yet installed has no file.
        if file and not is_kernel_pointer(self._target, file):
            problem = f"{file:#x} is not a struct file"
        elif file:
            try:
                operations, private = self._file.read(self._target, file)
                if operations in self._fops:
                    kcov = private
                elif operations and not is_kernel_pointer(self._target, operations):
                    problem = f"its f_op {operations:#x} is not a kernel address"
            except ReadError as error:
                problem = str(error)
                self.unread.note(f"{what}: {problem}")
        if problem is not None:
            if not is_current():
                return None
            self._bad += 1
            self.remarks.note(f"{what}: {problem}")
        self._files[file] = kcov
        return kcov
