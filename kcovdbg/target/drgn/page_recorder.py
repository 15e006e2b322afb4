# SPDX-License-Identifier: LGPL-2.1-or-later
"""Records the pages that commands read, with the page tables that lead to them, for a slice.

Commands run on a second drgn Program, which is opened over an empty slice of the kernel and reads
the physical memory of the first one. So it reads the pages that a Program over the finished slice
will read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

import drgn

from kcovdbg.abi.address import PAGE_SIZE, page_align, page_align_down
from kcovdbg.elf.header import VMCOREINFO, make_note, parse_notes
from kcovdbg.errors import (
    KcovdbgError,
    MissingSymbolError,
    MissingTypeError,
    ReadError,
    TargetError,
)
from kcovdbg.target.drgn.program_memory import (
    SLICE_MACHINES,
    CachedMemory,
    copy_program,
    direct_map_start,
    physical_memory,
    translate,
)
from kcovdbg.target.drgn.target import DrgnTarget
from kcovdbg.target.dump_file import NOTE_INCONSISTENT, NOTE_NAME, NOTE_SLICE
from kcovdbg.target.pointer import is_kernel_pointer, read_pointer, read_word
from kcovdbg.target.slice_file import PageRun, build_slice, merge_pages
from kcovdbg.target.struct_layout import find_stack_size
from kcovdbg.target.target import Target

# Variables that debuggers read when they open a kernel: its release, command line and CPUs, and the
# layout of its memory.
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

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Recording:
    """The contents of a slice."""

    machine: int
    """``e_machine``."""
    notes: bytes
    pages: dict[int, bytes]
    """The pages by physical address."""
    direct_map: int | None
    mapped: tuple[PageRun, ...]
    is_consistent: bool
    """Whether the kernel was stopped while it was read."""

    def content(self) -> Iterator[bytes]:
        """Iterate over the content of the slice."""
        return build_slice(self.machine, self.notes, self.pages, self.direct_map, self.mapped)


class RecordingTarget(DrgnTarget):
    """A target that notes the virtual pages that are read. A slice maps these, for readers that do
    not walk page tables.
    """

    def __init__(self, prog: drgn.Program, name: str) -> None:
        super().__init__(prog, name, False)
        self.virtual_pages: set[int] = set()

    def read(self, address: int, size: int) -> bytes:
        """Read virtual memory of the kernel.

        :raises ReadError: when a part of it is unreadable.
        """
        data = super().read(address, size)
        self.virtual_pages.update(range(page_align_down(address), address + size, PAGE_SIZE))
        return data


def record(target: DrgnTarget, work: Callable[[Target], _Result]) -> tuple[Recording, _Result]:
    """Run a function on a target, with the kernel stopped if possible, and record what it reads.

    :param work: called with the recording target; its exceptions are passed on.
    :return: the recording, and the function's result.
    :raises TargetError: when there are no slices for kernels of this machine.
    """
    platform = target.prog.platform
    assert platform is not None
    machine = SLICE_MACHINES.get(platform.arch)
    if machine is None or target.word_size != 8:
        raise TargetError(
            f"cannot make slices of {target.machine} kernels", hint="take a whole dump"
        )
    with target.connection.pause() as is_stopped:
        notes = _find_notes(target, is_stopped)
        memory = CachedMemory(physical_memory(target.prog))
        prog = copy_program(target.prog, notes, memory.read)
        recorder = RecordingTarget(prog, target.name)
        _read_basics(recorder)
        result = work(recorder)
        direct_map, mapped = _find_mappings(recorder)
    pages = {number * PAGE_SIZE: data for number, data in memory.blocks.items()}
    return Recording(machine, notes, pages, direct_map, mapped, is_stopped), result


def record_stack(target: Target, task: int) -> None:
    """Read a task's kernel stack and the memory that unwinding reads, as far as these are readable.

    :param task: ``struct task_struct *``.
    """
    with contextlib.suppress(ReadError, MissingSymbolError, MissingTypeError):
        member = target.member("struct task_struct", "stack")
        stack = read_pointer(target, task + member.offset)
        # An exited task has no stack.
        if is_kernel_pointer(target, stack):
            target.read(stack, find_stack_size(target))
    with contextlib.suppress(KcovdbgError):
        # On arm64, interrupts run on these stacks; drgn reads them by physical addresses.
        for cpu in target.cpus():
            stack = read_pointer(target, target.per_cpu("irq_stack_ptr", cpu))
            if is_kernel_pointer(target, stack):
                target.read(stack, find_stack_size(target))
    with contextlib.suppress(KcovdbgError):
        if target.stacks is not None:
            target.stacks.stack_trace(task)


def _read_basics(target: RecordingTarget) -> None:
    """Read the variables that debuggers other than kcovdbg read when they open a kernel."""
    for name in _BASICS:
        with contextlib.suppress(KcovdbgError):
            symbol = target.symbol(name)
            target.read(symbol.address, max(symbol.size, target.word_size))
    with contextlib.suppress(KcovdbgError):
        address = read_pointer(target, target.symbol("vmcoreinfo_data").address)
        size = read_word(target, target.symbol("vmcoreinfo_size").address)
        target.read(address, min(size, PAGE_SIZE))


def _find_notes(target: DrgnTarget, is_stopped: bool) -> bytes:
    try:
        notes = target.read_notes()
    except TargetError:
        # The slice then lacks the registers by which running tasks are unwound.
        notes = b""
    order = ">" if target.big_endian else "<"
    names = {(note.name, note.type) for note in parse_notes(notes, order)}
    if not any(name == VMCOREINFO for name, _ in names):
        notes += make_note(VMCOREINFO, 0, target.prog["VMCOREINFO"].string_(), order)
    if (NOTE_NAME, NOTE_SLICE) not in names:
        notes += make_note(NOTE_NAME, NOTE_SLICE, b"1", order)
    if not is_stopped and (NOTE_NAME, NOTE_INCONSISTENT) not in names:
        notes += make_note(NOTE_NAME, NOTE_INCONSISTENT, b"", order)
    return notes


def _find_mappings(target: RecordingTarget) -> tuple[int | None, tuple[PageRun, ...]]:
    """Return the address of the direct map, and the mappings of the pages that were read outside of
    it.
    """
    prog = target.prog
    direct_map = direct_map_start(prog)
    runs = list(_find_image(target))
    image = [(run.vaddr, run.vaddr + run.size) for run in runs]
    pages = []
    # Translating reads page tables, which adds pages: iterate over a copy.
    for page in sorted(target.virtual_pages):
        if any(start <= page < end for start, end in image):
            continue
        physical = translate(prog, page)
        if physical is not None and (direct_map is None or direct_map + physical != page):
            pages.append((page, physical))
    runs += merge_pages(pages)
    return direct_map, tuple(runs)


def _find_image(target: RecordingTarget) -> Iterator[PageRun]:
    """Yield the mapping of the kernel's image, which is contiguous in physical memory."""
    try:
        start = page_align_down(target.symbol("_text").address)
        # drgn does not relocate _end, which is behind the image.
        end = target.symbol("__bss_stop").address
    except MissingSymbolError:
        return
    physical = translate(target.prog, start)
    if physical is not None:
        yield PageRun(start, physical, page_align(end - start))
