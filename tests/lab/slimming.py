# SPDX-License-Identifier: LGPL-2.1-or-later
"""Makes debug info small enough to be committed: types, symbols and what stacks unwind by, but no lines and no code."""

from __future__ import annotations

import struct
import subprocess
from typing import TYPE_CHECKING

import zstandard

if TYPE_CHECKING:
    from pathlib import Path

TOOLS = {"dwz": "dwz", "objcopy": "binutils"}
# Line tables, where variables live, how frames unwind without ORC, and how the image is relocated.
DROPPED = (
    *(".debug_line", ".debug_line_str", ".debug_loclists", ".debug_loc", ".debug_rnglists", ".debug_ranges"),
    *(".debug_aranges", ".debug_frame", ".comment", ".rela*"),
)
# What is read of the image itself; the rest of it is in the dump, or nobody's.
_KEPT = (b".notes", b".orc")
_SHT_NOBITS, _SHF_ALLOC = 8, 2
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")


def slim(vmlinux: Path, destination: Path) -> None:
    """Write what state commands ask of a vmlinux; every address in it stays."""
    compact = destination.with_name(f"{destination.name}.compact")
    # Before the line tables go: it tells types of one name apart by the files that they are from. No limits, as the kernel's
    # debug info is larger than it takes by default.
    subprocess.run(["dwz", "-L", "none", "-l", "none", "--odr", vmlinux, "-o", compact], check=True)
    subprocess.run(["objcopy", *(f"--remove-section={name}" for name in DROPPED), compact, destination], check=True)
    compact.unlink()
    blank_image(destination)


def blank_image(path: Path) -> None:
    """Turn the image's code and data into zeros, which compress to nothing.

    Without them, as `objcopy --only-keep-debug` leaves a file, drgn takes the addresses of per-CPU variables for the image's.
    """
    data = bytearray(path.read_bytes())
    header = _HEADER.unpack_from(data)
    start, entry_size, number, names = header[6], header[11], header[12], header[13]
    sections = [_SECTION.unpack_from(data, start + index * entry_size) for index in range(number)]
    strings = sections[names][4]
    for name, kind, flags, _, offset, size, *_ in sections:
        label = bytes(data[strings + name : data.index(b"\0", strings + name)])
        if flags & _SHF_ALLOC and kind != _SHT_NOBITS and not label.startswith(_KEPT):
            data[offset : offset + size] = bytes(size)
    path.write_bytes(data)


def compress(path: Path, destination: Path) -> Path:
    """Write FILE.zst, as small as zstd can; matches may be as far apart as the file is long."""
    parameters = zstandard.ZstdCompressionParameters.from_level(22, window_log=27, enable_ldm=True, threads=-1)
    packed = zstandard.ZstdCompressor(compression_params=parameters).compress(path.read_bytes())
    final = destination / f"{path.name}.zst"
    temporary = final.with_name(f".{final.name}")
    temporary.write_bytes(packed)
    return temporary.rename(final)
