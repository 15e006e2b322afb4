# SPDX-License-Identifier: LGPL-2.1-or-later
"""Records what is read of a kernel's memory, page tables included, so that a slice can hold just that.

The recording target is a drgn Program over an empty slice of the same kernel, whose physical memory is that of the target
being recorded: it reads what a Program over the finished slice will read.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import drgn
from drgn.helpers.linux.mm import follow_phys, phys_to_virt

from kcovdbg.errors import KcovdbgError, MissingSymbolError, MissingTypeError, ReadError, TargetError
from kcovdbg.target import Target, elf, slices
from kcovdbg.target.bare import PHYSICAL_SIZE, open_bare
from kcovdbg.target.complaints import collect_warnings
from kcovdbg.target.drgn import DrgnTarget, refuse_user_addresses
from kcovdbg.target.slices import PAGE, Run

_MACHINES: Final = {
    drgn.Architecture.X86_64: 62,
    drgn.Architecture.AARCH64: 183,
    drgn.Architecture.RISCV64: 243,
    drgn.Architecture.PPC64: 21,
}
# Which kernel it is, its command line, its CPUs, where its memory is.
_BASICS: Final = (
    "linux_banner",
    "init_uts_ns",
    "saved_command_line",
    "__per_cpu_offset",
    "__cpu_possible_mask",
    "__cpu_online_mask",
    "vmcoreinfo_note",
    "phys_base",
    "page_offset_base",
    "vmemmap_base",
    "vmalloc_base",
)


@dataclass(frozen=True, slots=True)
class Recording:
    """What a slice is made of."""

    machine: int
    """``e_machine``."""
    notes: bytes
    pages: dict[int, bytes]
    """By physical address."""
    direct_map: int | None
    mapped: tuple[Run, ...]
    is_consistent: bool
    """Whether the kernel stood still meanwhile."""


class RecordedMemory:
    """Physical memory that remembers each page that was read.

    :param read: reads a page of the target being recorded.
    """

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self.pages: dict[int, bytes] = {}

    def read(self, address: int, count: int, offset: int = 0, physical: bool = True) -> bytes:
        """Read any span; what can't be read isn't recorded. The parameters are what drgn gives a reader."""
        del offset, physical
        pages = self.pages
        start = address & -PAGE
        parts = []
        for page in range(start, address + count, PAGE):
            if page not in pages:
                pages[page] = self._read(page)
            parts.append(pages[page])
        return b"".join(parts)[address - start : address - start + count]


class RecordingTarget(DrgnTarget):
    """A target that also remembers which virtual pages its walkers read, for those who know no page tables."""

    def __init__(self, prog: drgn.Program, name: str) -> None:
        super().__init__(prog, name, False)
        self.virtual_pages: set[int] = set()

    def read(self, address: int, size: int) -> bytes:
        """Read virtual memory of the kernel.

        :raises ReadError: when any of it can't be read.
        """
        data = super().read(address, size)
        self.virtual_pages.update(range(address & -PAGE, address + size, PAGE))
        return data


def record(target: DrgnTarget, work: Callable[[Target], None]) -> Recording:
    """Run something on a target and record all that it reads. The kernel stands still meanwhile where that can be had.

    :param work: called with a target that records; what it raises goes through.
    :raises TargetError: when this kind of kernel can't be sliced.
    """
    platform = target.prog.platform
    assert platform is not None
    machine = _MACHINES.get(platform.arch)
    if machine is None or target.word_size != 8 or target.big_endian:
        raise TargetError(f"slices of {target.machine} kernels can't be made", hint="take a whole dump")
    with target.origin.standstill() as stands_still:
        notes = _find_notes(target, stands_still)
        read = target.prog.read
        memory = RecordedMemory(lambda page: read(page, PAGE, True))
        prog = open_bare(machine, notes)
        prog.add_memory_segment(0, PHYSICAL_SIZE, memory.read, physical=True)
        refuse_user_addresses(prog)
        paths = [module.debug_file_path for module in target.prog.modules() if module.debug_file_path is not None]
        # Who opened the target has been told already.
        with collect_warnings([]), contextlib.suppress(drgn.MissingDebugInfoError):
            # As when the slice is opened, so that what this reads is in it.
            prog.load_debug_info(paths, default=True)
        recorder = RecordingTarget(prog, target.name)
        _read_basics(recorder)
        work(recorder)
        direct_map, mapped = _find_mappings(recorder)
    return Recording(machine, notes, memory.pages, direct_map, mapped, stands_still)


def record_stack(target: Target, task: int) -> None:
    """Read a task's kernel stack, and all that it takes to unwind it; what can't be read is passed over.

    :param task: ``struct task_struct *``.
    """
    with contextlib.suppress(ReadError, MissingTypeError):
        member = target.member("struct task_struct", "stack")
        order = "big" if target.big_endian else "little"
        stack = int.from_bytes(target.read(task + member.offset, target.word_size), order)  # type: ignore[arg-type]
        low, high = target.kernel_range
        # THREAD_SIZE; the stack of an exited task is gone.
        if low <= stack <= high:
            target.read(stack, target.type_size("union thread_union"))
    with contextlib.suppress(KcovdbgError):
        if target.stacks is not None:
            target.stacks.stack_trace(task)


def write_slice(path: str | os.PathLike[str], recording: Recording) -> int:
    """Write a slice: whole, or not at all.

    :param path: compressed with zstd when it ends in ``.zst``.
    :return: the size of the file in bytes.
    :raises TargetError: when it can't be written.
    """
    return slices.write_file(
        path,
        slices.build_slice(recording.machine, recording.notes, recording.pages, recording.direct_map, recording.mapped),
    )


def _read_basics(target: RecordingTarget) -> None:
    """Read what debuggers look at before anything else, so that others than ours can use the slice."""
    for name in _BASICS:
        with contextlib.suppress(KcovdbgError):
            symbol = target.symbol(name)
            target.read(symbol.address, max(symbol.size, target.word_size))
    with contextlib.suppress(KcovdbgError):
        words = (target.read(target.symbol(name).address, target.word_size) for name in ("vmcoreinfo_data", "vmcoreinfo_size"))
        address, size = (int.from_bytes(word, "little") for word in words)
        target.read(address, min(size, PAGE))


def _find_notes(target: DrgnTarget, stands_still: bool) -> bytes:
    try:
        notes = target.origin.read_notes()
    except TargetError:
        # Without registers, running tasks can't be unwound in the slice.
        notes = b""
    names = {(note.name, note.type) for note in elf.parse_notes(notes, "<")}
    if not any(name == "VMCOREINFO" for name, _ in names):
        notes += elf.make_note("VMCOREINFO", 0, target.prog["VMCOREINFO"].string_())
    if (slices.NOTE_NAME, slices.NOTE_SLICE) not in names:
        notes += elf.make_note(slices.NOTE_NAME, slices.NOTE_SLICE, b"1")
    if not stands_still and (slices.NOTE_NAME, slices.NOTE_INCONSISTENT) not in names:
        notes += elf.make_note(slices.NOTE_NAME, slices.NOTE_INCONSISTENT, b"")
    return notes


def _find_mappings(target: RecordingTarget) -> tuple[int | None, tuple[Run, ...]]:
    """Find where what was read lies in the direct map, in the image, and elsewhere, which is the vmalloc space."""
    prog = target.prog
    try:
        direct_map: int | None = int(phys_to_virt(prog, 0))
    except (LookupError, drgn.FaultError, NotImplementedError, ValueError):
        direct_map = None
    runs = list(_find_image(target))
    image = [(run.vaddr, run.vaddr + run.size) for run in runs]
    pages = []
    # What was read is in the slice now; a copy, as translating reads page tables.
    for page in sorted(target.virtual_pages):
        if any(start <= page < end for start, end in image):
            continue
        physical = _translate(prog, page)
        if physical is not None and (direct_map is None or direct_map + physical != page):
            pages.append((page, physical))
    runs += slices.merge_pages(pages)
    return direct_map, tuple(runs)


def _find_image(target: RecordingTarget) -> Iterator[Run]:
    """Yield the mapping of the kernel's image, which is one piece of physical memory."""
    try:
        start = target.symbol("_text").address & -PAGE
        end = target.symbol("_end").address
    except MissingSymbolError:
        return
    physical = _translate(target.prog, start)
    if physical is not None:
        yield Run(start, physical, -(-(end - start) // PAGE) * PAGE)


def _translate(prog: drgn.Program, address: int) -> int | None:
    """Return the physical address of a kernel's virtual one, None where it isn't mapped."""
    try:
        return int(follow_phys(prog["init_mm"].address_of_(), address))
    except (LookupError, drgn.FaultError, NotImplementedError, ValueError):
        return None
