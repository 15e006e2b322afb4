# SPDX-License-Identifier: LGPL-2.1-or-later
"""A kernel that drgn reads: a crash dump, /proc/kcore, a QEMU guest, or memory that a reader of
kcovdbg reads for drgn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Final, TypeVar

import drgn

from kcovdbg.abi.address import ReadMemory, word_mask
from kcovdbg.abi.mode import bit_numbers
from kcovdbg.elf.header import NT_PRSTATUS, parse_notes
from kcovdbg.errors import GoneError, MissingSymbolError, MissingTypeError, ReadError
from kcovdbg.input_file import parse_number
from kcovdbg.target.connection import Connection
from kcovdbg.target.drgn.drgn_messages import WALK_ERRORS, walking
from kcovdbg.target.drgn.program_memory import UPPER_HALF, exclude_per_cpu_data, vmcoreinfo_of
from kcovdbg.target.drgn.program_types import ProgramTypes
from kcovdbg.target.dump_file import working_path
from kcovdbg.target.pointer import (
    UPPER_HALF_START,
    find_pointer_tag,
    is_kernel_pointer,
    read_pointer,
    read_word,
    strip_tag,
)
from kcovdbg.target.target import PageRange

# Most commands need one of these or none: they are imported on first use.
if TYPE_CHECKING:
    from kcovdbg.target.drgn.lines import DrgnLines
    from kcovdbg.target.drgn.stacks import DrgnStacks
    from kcovdbg.target.mappings import MappingWalk, VmallocWalk
    from kcovdbg.target.slab_memory import SlabWalk

_Walk = TypeVar("_Walk")
# Physical addresses have at most 52 bits, on x86_64 and arm64; a section of memory has at least 27.
_MAX_SECTIONS: Final = 1 << 52 - 27
# include/linux/mmzone.h: SECTION_MARKED_PRESENT, and SUBSECTION_SHIFT.
_SECTION_PRESENT: Final = 1
_SUBSECTION_BITS: Final = 21
# drgn raises these for the memory or the QMP connection of a QEMU that has ended.
_GONE_ERRORS: Final = (ProcessLookupError, ConnectionError)


class DrgnTarget(ProgramTypes):
    """A :class:`~kcovdbg.target.target.Target` over a drgn Program.

    Types and symbols are cached. Only one thread at a time may use it, as with any Program.

    :param prog: with the kernel's debug info loaded.
    :param connection: the connection to a machine.
    :param read_notes: returns the ELF notes of a dump, with PRSTATUS and VMCOREINFO; empty when
        there are none.
    :param code: path of the stripped image that has the kernel's code, None if the image with debug
        info has it.
    :param files: the dump and the debug info that the user named or that were found.
    """

    def __init__(
        self,
        prog: drgn.Program,
        name: str,
        live: bool,
        notes: Sequence[str] = (),
        connection: Connection | None = None,
        *,
        read_notes: Callable[[], bytes] = bytes,
        code: str | None = None,
        files: Sequence[str] = (),
    ) -> None:
        super().__init__(prog)
        platform = prog.platform
        assert platform is not None
        self.name = name
        self.live = live
        self.notes = tuple(notes)
        self.connection = connection or Connection()
        self.read_notes = read_notes
        self.code = code
        exclude_per_cpu_data(prog)
        self.kaslr_offset = parse_number(vmcoreinfo_of(prog).get("KERNELOFFSET", ""), 16) or 0
        self.page_size = int(prog["PAGE_SIZE"])
        self.kernel_range = (
            UPPER_HALF_START if platform.arch in UPPER_HALF else self.page_size,
            word_mask(self.word_size),
        )
        self.release = prog["UTS_RELEASE"].string_().decode(errors="backslashreplace")
        self.machine = _find_machine(prog, platform)
        self.build_id = _find_build_id(prog)
        self._files = files
        self.read_count: int = 0
        # Called most often by the walkers.
        self._read: ReadMemory = prog.read
        self._per_cpu: dict[tuple[str, int], int] = {}
        self._cpus: tuple[int, ...] | None = None
        self._tasks: dict[int, int] = {}

    @property
    def files(self) -> Iterator[str]:
        """The dump, and the debug info of the kernel and of modules."""
        yield from self._files
        if self.prog.core_dump_path is not None:
            yield self.prog.core_dump_path
        for module in self.prog.modules():
            paths = (module.debug_file_path, module.loaded_file_path)
            yield from filter(None, map(working_path, paths))

    @cached_property
    def stacks(self) -> DrgnStacks:
        """The stacks of tasks."""
        from kcovdbg.target.drgn.stacks import DrgnStacks

        return DrgnStacks(self, self.read_notes)

    @cached_property
    def lines(self) -> DrgnLines:
        """The names of PCs by the debug info."""
        from kcovdbg.target.drgn.lines import DrgnLines

        return DrgnLines(self.prog)

    @cached_property
    def pointer_tag(self) -> int:
        """The bits of a pointer that hold a tag; 0 in kernels without tags."""
        return find_pointer_tag(self)

    @cached_property
    def vmas(self) -> MappingWalk | None:
        """The mappings of user address spaces."""
        from kcovdbg.target.mappings import MappingWalk

        return _unless_missing(lambda: MappingWalk(self))

    @cached_property
    def vmalloc(self) -> VmallocWalk | None:
        """The vmalloc areas."""
        from kcovdbg.target.mappings import VmallocWalk

        return _unless_missing(lambda: VmallocWalk(self))

    @cached_property
    def slab(self) -> SlabWalk | None:
        """The slab caches."""
        from kcovdbg.target.page_array import PageArray
        from kcovdbg.target.slab_memory import SlabWalk

        return _unless_missing(lambda: SlabWalk(self, PageArray(self)))

    def forget(self) -> None:
        """Drop memory that was kept, as the machine has run."""
        vars(self).pop("slab", None)

    def close(self) -> None:
        """Close the connection, also done at exit. A machine behind a GDB stub continues."""
        self.connection.close()

    def read(self, address: int, size: int) -> bytes:
        self.read_count += 1
        try:
            return self._read(address, size)
        except drgn.FaultError as error:
            raise ReadError(f"could not read {size} bytes at {address:#x}", error.address) from None
        except _GONE_ERRORS:
            raise GoneError(self.name) from None
        except (OverflowError, ValueError, MemoryError):
            # No address space has this size or address.
            raise ReadError(f"could not read {size} bytes at {address:#x}", address) from None

    def cpus(self) -> Sequence[int]:
        if self._cpus is None:
            with walking("the mask of possible CPUs"):
                words = self.prog["__cpu_possible_mask"].bits.value_()
                self._cpus = tuple(bit_numbers(self._join_words(words)))
        return self._cpus

    def assume_cpus(self) -> str | None:
        """If the mask of possible CPUs is missing, assume the CPUs whose registers are in the dump,
        and return a line that says so.
        """
        try:
            self.cpus()
            return None
        except ReadError:
            pass
        count = 0
        for note in parse_notes(self.read_notes(), ">" if self.big_endian else "<"):
            if note.type == NT_PRSTATUS and note.name == "CORE":
                count += 1
        self._cpus = tuple(range(count))
        return (
            f"the mask of possible CPUs is missing: assuming {count}, by the registers in the dump"
        )

    def page_ranges(self) -> Iterator[PageRange]:
        prog, size = self.prog, self.type_size("struct page")
        with walking("the array of pages"):
            if "mem_section" not in prog:
                from drgn.helpers.linux.mm import for_each_valid_page_range

                for first, end, array in for_each_valid_page_range(prog):
                    yield PageRange(first, end - first, int(array) + first * size)
                return
            frames = (1 << prog["SECTION_SIZE_BITS"].value_()) // self.page_size
            for number, section in self._list_sections():
                first = number * frames
                # The section's array, minus the offset of its first element from page frame 0. The
                # bits below a page are flags.
                base = section.section_mem_map.value_() // self.page_size * self.page_size
                array = base + first * size & word_mask(self.word_size)
                # A damaged section has no elements.
                if is_kernel_pointer(self, array):
                    for start, length in self._find_present(section):
                        yield PageRange(first + start, length, array + start * size)

    def _list_sections(self) -> Iterator[tuple[int, drgn.Object]]:
        """Yield the number and the ``struct mem_section`` of each section of memory that is
        present.
        """
        highest = self.symbol("__highest_present_section_nr").address
        count = read_word(self, highest) + 1
        if count > _MAX_SECTIONS:
            raise ReadError("__highest_present_section_nr is out of range", highest)
        roots = self.prog["mem_section"]
        per_root = self.prog["SECTIONS_PER_ROOT"].value_()
        for first in range(0, count, per_root):
            root = roots[first // per_root]
            # Without CONFIG_SPARSEMEM_EXTREME, a root is an array.
            if root.type_.kind == drgn.TypeKind.POINTER and not root:
                continue
            for number in range(first, min(first + per_root, count)):
                section = root[number - first]
                if section.section_mem_map.value_() & _SECTION_PRESENT:
                    yield number, section

    def _find_present(self, section: drgn.Object) -> Iterator[tuple[int, int]]:
        """Yield the spans of pages that a section has elements for: the first page of each, and its
        number of pages. Memory that was added to a machine may be a part of a section.

        :param section: ``struct mem_section``.
        """
        count = int(1 << self.prog["SECTION_SIZE_BITS"] - _SUBSECTION_BITS)
        present = 0
        # Since Linux kernel commit f46edbd1b151 ("mm/sparsemem: add helpers track active portions
        # of a section at boot") (in v5.3).
        with suppress(AttributeError, drgn.FaultError):
            usage = drgn.Object(self.prog, section.usage.type_, strip_tag(self, int(section.usage)))
            present = self._join_words(usage.subsection_map.value_())
        if not present:
            # The map is unknown: elements that never existed are then reported as missing.
            present = (1 << count) - 1
        frames = (1 << _SUBSECTION_BITS) // self.page_size
        for is_present, numbers in groupby(range(count), lambda number: present >> number & 1):
            if is_present:
                first, *others = numbers
                yield first * frames, (len(others) + 1) * frames

    def _join_words(self, words: Iterable[int]) -> int:
        """Return a bitmap as one number."""
        return sum(word << 8 * self.word_size * index for index, word in enumerate(words))

    def per_cpu(self, name: str, cpu: int) -> int:
        try:
            return self._per_cpu[name, cpu]
        except KeyError:
            pass
        try:
            variable = self.prog.variable(name)
        except LookupError:
            raise MissingSymbolError(f"the kernel has no per-CPU variable {name}") from None
        if variable.absent_:
            raise MissingSymbolError(
                f"the kernel has no per-CPU variable {name}: it takes no space"
            )
        with walking(f"the offset of CPU {cpu}"):
            address = int(variable.address_of_())
            # Kernels for a single CPU have no offsets.
            if "__per_cpu_offset" in self.prog:
                address += self.prog["__per_cpu_offset"][cpu].value_()
                address &= word_mask(self.word_size)
        self._per_cpu[name, cpu] = address
        return address

    def find_task(self, tid: int) -> int:
        """Look a thread up in the kernel's table of thread ids.

        :return: its ``struct task_struct *``, 0 when there is no such thread.
        :raises ReadError: when the table is unreadable.
        """
        known = self._tasks.get(tid, 0)
        if known and self._is_thread(known, tid):
            return known
        # Importing a helper of drgn's imports all of them, which few commands need.
        from drgn.helpers.linux.pid import find_task

        with walking(f"the task of thread {tid}"):
            found = self._tasks[tid] = int(find_task(self.prog, tid))
        return found

    def _is_thread(self, task: int, tid: int) -> bool:
        """Return whether the thread still has this task: the kernel clears ``thread_pid`` when a
        thread ends.
        """
        try:
            pid = self.member("struct task_struct", "pid")
            if read_word(self, task + pid.offset, pid.size) != tid:
                return False
            entry = self.member("struct task_struct", "thread_pid")
            return read_pointer(self, task + entry.offset) != 0
        except (MissingTypeError, ReadError):
            return False


def _unless_missing(make: Callable[[], _Walk]) -> _Walk | None:
    """Return a walk, None when the kernel lacks a type or a symbol that it needs."""
    try:
        return make()
    except (MissingTypeError, MissingSymbolError):
        return None


def _find_machine(prog: drgn.Program, platform: drgn.Platform) -> str:
    try:
        machine: str = prog["init_uts_ns"].name.machine.string_().decode(errors="backslashreplace")
    except WALK_ERRORS:
        machine = ""
    return machine or platform.arch.name.lower()


def _find_build_id(prog: drgn.Program) -> str | None:
    try:
        build_id = prog.main_module().build_id
    except LookupError:
        build_id = None
    if build_id is not None:
        return bytes(build_id).hex()
    return vmcoreinfo_of(prog).get("BUILD-ID")
