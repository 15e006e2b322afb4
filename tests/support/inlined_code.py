# SPDX-License-Identifier: LGPL-2.1-or-later
"""Images of assembly whose debug info says which code was inlined, as only some compilers write it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

BASE: Final = 0x10000
"""Where the code is linked to."""
# 1 is a unit; 2 a function that is inlined; 3 one with code; 4 an inlined copy with a list of ranges,
# whose children a zero ends; 5 one with a single range.
_ABBREVIATIONS: Final = """
    .section .debug_abbrev,"",@progbits
    .byte 1, 0x11, 1, 0x03, 0x08, 0x13, 0x0b, 0x10, 0x17, 0x11, 0x01, 0x12, 0x07, 0, 0
    .byte 2, 0x2e, 0, 0x03, 0x08, 0x20, 0x0b, 0, 0
    .byte 3, 0x2e, 1, 0x03, 0x08, 0x11, 0x01, 0x12, 0x07, 0, 0
    .byte 4, 0x1d, 1, 0x31, 0x13, 0x55, 0x17, 0x58, 0x0b, 0x59, 0x0b, 0, 0
    .byte 5, 0x1d, 0, 0x31, 0x13, 0x11, 0x01, 0x12, 0x07, 0x58, 0x0b, 0x59, 0x0b, 0, 0
    .byte 0
    .section .debug_line,"",@progbits
"""
_UNIT: Final = """
    .section .debug_info,"",@progbits
unit:
    .long unit_end - unit - 4
    .short 4
    .long 0
    .byte 8
    .byte 1; .string "file.c"; .byte 12; .long .debug_line; .quad _start; .quad end - _start
"""


def link_image(folder: Path, *, code: str, ranges: str, entries: str) -> Path:
    """Link an image of one unit.

    :param code: from ``_start`` to ``end``.
    :param ranges: the contents of ``.debug_ranges``.
    :param entries: those of the unit in ``.debug_info``, which count from ``unit``.
    """
    source, image = folder / "code.s", folder / "image"
    section = f'    .section .debug_ranges,"",@progbits\n{ranges}'
    parts = (code, section, _ABBREVIATIONS, _UNIT, entries, "unit_end:\n")
    source.write_text("".join(parts))
    place = f"-Wl,-Ttext={BASE:#x},--build-id"
    subprocess.run(["gcc", "-nostdlib", "-static", place, source, "-o", image], check=True)
    return image


def list_chain(image: Path, address: int) -> list[tuple[str, str]]:
    """Return the function and the line of each frame, innermost first, by addr2line."""
    command = ["addr2line", "-i", "-f", "-e", str(image), hex(address)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    lines = (place.rpartition(":")[2] for place in shown[1::2])
    return list(zip(shown[::2], lines, strict=True))
