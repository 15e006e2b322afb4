# SPDX-License-Identifier: LGPL-2.1-or-later
"""The address range of a kernel's image in a drgn Program."""

from __future__ import annotations

import drgn

from kcovdbg.abi.address import WORD_MASK
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.segment import PT_LOAD
from kcovdbg.errors import TargetError
from kcovdbg.target.dump_file import working_path
from kcovdbg.target.pointer import UPPER_HALF_START


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
