# SPDX-License-Identifier: LGPL-2.1-or-later
"""Notes: of dumps (registers, VMCOREINFO), of images and of a running kernel (build IDs)."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

NT_PRSTATUS: Final = 1
NT_GNU_BUILD_ID: Final = 3
VMCOREINFO: Final = "VMCOREINFO"


class Note(NamedTuple):
    """A note: the name that defines its type, its type, its contents."""

    name: str
    type: int
    desc: bytes


def parse_notes(data: bytes, byte_order: str) -> Iterator[Note]:
    """Yield the notes of a segment or a section; one that is cut off at the end is left out.

    Each part of a note is padded to 4 bytes, as in all notes that kernels and their dumps have.

    :param byte_order: ``<``, ``>`` or ``=``, as for the struct module.
    """
    layout = struct.Struct(byte_order + "III")
    position = 0
    while position + layout.size <= len(data):
        name_size, size, kind = layout.unpack_from(data, position)
        name_start = position + layout.size
        start = name_start + (name_size + 3 & ~3)
        if start + size > len(data):
            return
        name = data[name_start : name_start + name_size].rstrip(b"\0").decode(errors="replace")
        yield Note(name, kind, data[start : start + size])
        position = start + (size + 3 & ~3)


def make_note(name: str, kind: int, desc: bytes, byte_order: str = "<") -> bytes:
    """Return the bytes of a note, padded to 4."""
    text = name.encode() + b"\0"
    head = struct.pack(byte_order + "III", len(text), len(desc), kind)
    return head + text + bytes(-len(text) % 4) + desc + bytes(-len(desc) % 4)


def find_build_id(notes: Iterable[Note]) -> str | None:
    """Return the build ID among notes, hexadecimal; None when there is none."""
    return next((note.desc.hex() for note in notes if note.name == "GNU" and note.type == NT_GNU_BUILD_ID), None)


def find_vmcoreinfo(notes: Iterable[Note]) -> dict[str, str]:
    """Return the lines ``KEY=value`` of the VMCOREINFO among notes; empty when there is none."""
    return next((parse_vmcoreinfo(note.desc) for note in notes if note.name == VMCOREINFO), {})


def parse_vmcoreinfo(text: bytes) -> dict[str, str]:
    """Return the lines ``KEY=value`` with which a kernel describes itself to readers of its memory."""
    lines = (line.partition("=") for line in text.rstrip(b"\0").decode("utf-8", "replace").splitlines())
    return {key: value for key, separator, value in lines if separator}


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
