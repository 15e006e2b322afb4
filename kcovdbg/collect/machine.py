# SPDX-License-Identifier: LGPL-2.1-or-later
"""Facts about the running kernel that need no debug info."""

from __future__ import annotations

import contextlib
import gzip
import os
import struct
from pathlib import Path
from typing import Final

from kcovdbg.target import Target

_NT_GNU_BUILD_ID: Final = 3


def running_release() -> str:
    """Return what uname -r says."""
    return os.uname().release


def read_config() -> dict[str, str] | None:
    """Return the running kernel's configuration, None where it can't be found."""
    for path in (Path("/proc/config.gz"), Path(f"/boot/config-{running_release()}")):
        with contextlib.suppress(OSError, EOFError):
            data = path.read_bytes()
            text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8", "replace")
            return dict(line.split("=", 1) for line in text.splitlines() if line.startswith("CONFIG_") and "=" in line)
    return None


def running_build_id(path: str | Path = "/sys/kernel/notes") -> str | None:
    """Return the build-id of the running kernel's image, hexadecimal; None where the kernel doesn't tell."""
    try:
        notes = Path(path).read_bytes()
    except OSError:
        return None
    order = "=III"
    at = 0
    while at + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from(order, notes, at)
        name_end = at + 12 + (name_size + 3) // 4 * 4
        if kind == _NT_GNU_BUILD_ID and notes[at + 12 : at + 12 + name_size] == b"GNU\0":
            return notes[name_end : name_end + size].hex()
        at = name_end + (size + 3) // 4 * 4
    return None


def is_this_machine(target: Target) -> bool:
    """Tell whether a target is the kernel that runs here: then a name of its is a name of ours."""
    if target.release != running_release():
        return False
    ours = running_build_id()
    return target.live and (ours is None or target.build_id is None or ours == target.build_id.lower())


def running_kaslr_offset(path: str | Path = "/proc/kcore") -> int | None:
    """Return what the running kernel's image is shifted by; None where it can't be told.

    /proc/kcore has VMCOREINFO among its notes since Linux kernel commit 23c85094fe18 ("proc/kcore: add vmcoreinfo note to
    /proc/kcore") (in v4.19); the line is KERNELOFFSET, hexadecimal without 0x.
    """
    try:
        with Path(path).open("rb") as file:
            head = file.read(1 << 16)
    except OSError:
        return None
    at = head.find(b"KERNELOFFSET=")
    if at < 0:
        return None
    text = head[at + len(b"KERNELOFFSET=") : at + 64].split(b"\n")[0]
    try:
        return int(text, 16)
    except ValueError:
        return None
