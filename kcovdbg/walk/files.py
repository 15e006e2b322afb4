# SPDX-License-Identifier: LGPL-2.1-or-later
"""Open files and mappings that lead to a ``struct kcov``: ``f_op == &kcov_fops``, ``private_data`` is the object."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from kcovdbg.errors import MissingSymbolError, MissingTypeError, ReadError
from kcovdbg.model.task import TaskFields
from kcovdbg.target import Target
from kcovdbg.walk.block import BlockLayout
from kcovdbg.walk.pointer import check_pointer, is_kernel_pointer, read_word

# sysctl fs.nr_open can't be raised above this on 64-bit kernels in practice; an absurd max_fds is damage.
_MAX_FDS: Final = 1 << 24
_BITS: Final = [[bit for bit in range(8) if byte >> bit & 1] for byte in range(256)]


class KcovFile(NamedTuple):
    """A descriptor of a process, or a mapping of it, whose file belongs to KCOV."""

    pid: int
    """Process: the tgid of the tasks that share the file table or the address space."""
    file: int
    """``struct file *``."""
    kcov: int
    """``file->private_data``."""
    fd: int | None = None
    start: int | None = None
    end: int | None = None
    pgoff: int | None = None


class FileWalk:
    """One walk over the file tables and mappings of tasks.

    :param target: the kernel.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._files: dict[int, int | None] = {}
        self.remarks: list[str] = []
        self._fops: frozenset[int] = frozenset()
        try:
            self._fops = frozenset({target.symbol("kcov_fops").address})
            self._file = BlockLayout(target, "struct file", {"f_op": ("f_op",), "private_data": ("private_data",)})
            self._table = BlockLayout(
                target, "struct fdtable", {"max_fds": ("max_fds",), "fd": ("fd",), "open_fds": ("open_fds",)}
            )
            self._fdt = target.member("struct files_struct", "fdt").offset
        except (MissingSymbolError, MissingTypeError) as error:
            self.remarks.append(f"files of KCOV can't be recognised: {error}")
            self._fops = frozenset()

    def for_each_descriptor(self, tasks: Iterable[TaskFields]) -> Iterator[KcovFile]:
        """Yield descriptors of KCOV's files; a table that tasks share is read once, for its first task."""
        if not self._fops:
            return
        seen: set[int] = set()
        for task in tasks:
            if not task.files or task.files in seen:
                continue
            seen.add(task.files)
            try:
                descriptors = self._read_descriptors(task.files)
            except ReadError as error:
                self.remarks.append(f"the file table of process {task.tgid} can't be read: {error}")
                continue
            for fd, file in descriptors:
                kcov = self.find_kcov(file, f"descriptor {fd} of process {task.tgid}")
                if kcov is not None:
                    yield KcovFile(task.tgid, file, kcov, fd=fd)

    def for_each_mapping(self, tasks: Iterable[TaskFields]) -> Iterator[KcovFile]:
        """Yield mappings of KCOV's files, whose descriptor may be closed."""
        if not self._fops:
            return
        source = self._target.vmas
        if source is None:
            self.remarks.append("this target can't list mappings: objects that only a mapping refers to may be missing")
            return
        seen: set[int] = set()
        for task in tasks:
            if not task.mm or task.mm in seen:
                continue
            seen.add(task.mm)
            try:
                for vma in source.for_each_vma(task.mm):
                    kcov = self.find_kcov(vma.file, f"the mapping at {vma.start:#x} of process {task.tgid}")
                    if kcov is not None:
                        yield KcovFile(task.tgid, vma.file, kcov, start=vma.start, end=vma.end, pgoff=vma.pgoff)
            except ReadError as error:
                self.remarks.append(f"the mappings of process {task.tgid} can't be read: {error}")

    def _read_descriptors(self, files: int) -> list[tuple[int, int]]:
        check_pointer(self._target, files, "struct files_struct")
        table = read_word(self._target, files + self._fdt)
        check_pointer(self._target, table, "struct fdtable")
        max_fds, array, open_fds = self._table.read(self._target, table)
        if not 0 < max_fds <= _MAX_FDS:
            raise ReadError(f"max_fds of struct fdtable at {table:#x} is {max_fds}", table)
        check_pointer(self._target, array, "fdtable.fd")
        check_pointer(self._target, open_fds, "fdtable.open_fds")
        bitmap = self._target.read(open_fds, (max_fds + 7) // 8)
        word = self._target.word_size
        if self._target.big_endian:
            # The bitmap is made of unsigned longs: bit 0 is in a word's last byte.
            bitmap = b"".join(bitmap[i : i + word][::-1] for i in range(0, len(bitmap), word))
        fds = [8 * index + bit for index, byte in enumerate(bitmap) if byte for bit in _BITS[byte]]
        if not fds:
            return []
        pointers = self._target.read(array, (fds[-1] + 1) * word)
        order = "big" if self._target.big_endian else "little"
        return [(fd, int.from_bytes(pointers[fd * word : (fd + 1) * word], order)) for fd in fds]  # type: ignore[arg-type]

    def find_kcov(self, file: int, what: str) -> int | None:
        """Return the object behind a ``struct file``, None where it isn't one of KCOV's.

        :param what: whose file it is, for the remark where it can't be read.
        """
        if file in self._files:
            return self._files[file]
        kcov: int | None = None
        # A descriptor that was reserved and not yet installed has no file.
        if file and not is_kernel_pointer(self._target, file):
            self.remarks.append(f"{what}: {file:#x} is no struct file")
        elif file:
            try:
                operations, private = self._file.read(self._target, file)
                if operations in self._fops:
                    kcov = private
            except ReadError as error:
                self.remarks.append(f"{what}: {error}")
        self._files[file] = kcov
        return kcov
