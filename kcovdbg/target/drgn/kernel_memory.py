# SPDX-License-Identifier: LGPL-2.1-or-later
"""The virtual memory of a kernel in a drgn Program, where drgn alone reads too much of it or nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import drgn
from drgn.helpers.linux.mm import follow_phys, phys_to_virt

from kcovdbg.abi.address import WORD_MASK
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import PT_LOAD, parse_vmcoreinfo
from kcovdbg.errors import ReadError, TargetError
from kcovdbg.target.dump_file import working_path
from kcovdbg.target.end_signals import holds_signals
from kcovdbg.target.pointer import UPPER_HALF_START
from kcovdbg.target.riscv_pages import PageTables, find_direct_map, find_page_tables

UPPER_HALF: Final = frozenset({drgn.Architecture.X86_64, drgn.Architecture.AARCH64, drgn.Architecture.RISCV64})
"""Architectures whose kernels are in the upper half of the address space."""
_ERRORS: Final = (LookupError, drgn.FaultError, NotImplementedError, ValueError)


def add_kernel_memory(prog: drgn.Program) -> None:
    """Add memory segments that read what the kernel has at an address. For Programs that kcovdbg made, before they are read.

    The virtual addresses in a QEMU dump without paging are the physical ones: NULL would read as memory of the firmware.
    Addresses that no kernel has fault.

    :raises TargetError: when the kernel's page tables cannot be found.
    """
    assert prog.platform is not None
    if prog.platform.arch in UPPER_HALF:
        prog.add_memory_segment(0, UPPER_HALF_START, _refuse)
    if is_walked(prog):
        prog.add_memory_segment(UPPER_HALF_START, (1 << 64) - UPPER_HALF_START, _make_reader(_page_tables(prog)))


def is_walked(prog: drgn.Program) -> bool:
    """Return whether kcovdbg walks the page tables, as drgn does not for this machine."""
    return prog.platform is not None and prog.platform.arch == drgn.Architecture.RISCV64


def translate(prog: drgn.Program, address: int) -> int | None:
    """Return the physical address of a virtual one of the kernel, None when it is not mapped."""
    try:
        if is_walked(prog):
            return _page_tables(prog).translate(address)
        return int(follow_phys(prog["init_mm"].address_of_(), address))
    except _ERRORS:
        return None


def direct_map_start(prog: drgn.Program) -> int | None:
    """Return the virtual address of physical address 0, None where the kernel has no direct map, or it is unknown."""
    if is_walked(prog):
        return find_direct_map(parse_vmcoreinfo(prog["VMCOREINFO"].string_()))
    try:
        return int(phys_to_virt(prog, 0))
    except _ERRORS:
        return None


def _page_tables(prog: drgn.Program) -> PageTables:
    return find_page_tables(
        parse_vmcoreinfo(prog["VMCOREINFO"].string_()), lambda address, size: prog.read(address, size, True)
    )


def _make_reader(tables: PageTables) -> Callable[[int, int, int, bool], bytes]:
    @holds_signals
    def answer(address: int, count: int, offset: int, physical: bool) -> bytes:
        del offset, physical
        try:
            return tables.read(address, count)
        except ReadError as error:
            raise drgn.FaultError(str(error), error.address) from None

    return answer


def _refuse(address: int, count: int, offset: int, physical: bool) -> bytes:
    del count, offset, physical
    raise drgn.FaultError("not a kernel address", address)


def exclude_per_cpu_data(prog: drgn.Program) -> None:
    """Take per-CPU data out of the address range of the kernel's image.

    The addresses of per-CPU symbols are offsets that start at 0, and KASLR does not move them. drgn adds the KASLR offset to
    what is in the range of the image; in debug files as objcopy --only-keep-debug writes them, the segment of per-CPU data has
    no contents, and drgn includes it.
    """
    try:
        main = prog.main_module()
    except LookupError:
        return
    path, bias = working_path(main.debug_file_path), main.debug_file_bias
    # As drgn has it, with the segment at address 0.
    if path is None or not bias or not main.address_ranges or main.address_ranges[0][0] != bias:
        return
    try:
        with ElfFile(path) as image:
            segments = [segment for segment in image.segments if segment.type == PT_LOAD and segment.vaddr >= UPPER_HALF_START]
    except TargetError:
        return
    if segments:
        start = min(segment.vaddr for segment in segments)
        end = max(segment.vaddr + segment.memsz for segment in segments)
        main.address_ranges = [(start + bias & WORD_MASK, end + bias & WORD_MASK)]
