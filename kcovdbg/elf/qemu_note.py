# SPDX-License-Identifier: LGPL-2.1-or-later
"""QEMU's own notes in a dump: the registers of each x86-64 CPU that PRSTATUS lacks."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from kcovdbg.elf.note import Note

QEMU: Final = "QEMU"
# QEMUCPUState (target/i386/arch_dump.c): version and size, 18 general registers, ten segments of 24 bytes of which the base is
# the last word, cr0 to cr4. Version 1 has had kernel_gs_base behind them since QEMU 3.0.
_HEADER: Final = struct.Struct("<II")
_VERSION: Final = 1
_IDT_BASE: Final = _HEADER.size + 18 * 8 + 9 * 24 + 16
_CONTROL: Final = struct.Struct("<5Q")
_CONTROL_OFFSET: Final = _IDT_BASE + 8


class QemuCpu(NamedTuple):
    """The registers by which a CPU's tables are found."""

    idt: int
    cr3: int
    cr4: int


def find_qemu_cpus(notes: Iterable[Note]) -> Iterator[QemuCpu]:
    """Yield the CPUs among the notes of an x86 guest's dump, in their order."""
    for note in notes:
        if note.name != QEMU or len(note.desc) < _CONTROL_OFFSET + _CONTROL.size:
            continue
        if _HEADER.unpack_from(note.desc)[0] != _VERSION:
            continue
        control = _CONTROL.unpack_from(note.desc, _CONTROL_OFFSET)
        yield QemuCpu(int.from_bytes(note.desc[_IDT_BASE : _IDT_BASE + 8], "little"), control[3], control[4])
