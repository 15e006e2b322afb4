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
