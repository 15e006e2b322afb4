# SPDX-License-Identifier: LGPL-2.1-or-later
"""Facts about the kernel of this machine that it shows without debug info."""

from __future__ import annotations

import contextlib
import gzip
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from kcovdbg.elf.header import find_build_id, parse_notes

if TYPE_CHECKING:
    from kcovdbg.target.target import Target


def running_build_id(path: str | Path = "/sys/kernel/notes") -> str | None:
    """Return the build ID of the running kernel's image in hexadecimal; None if it is unknown."""
    try:
        notes = Path(path).read_bytes()
    except OSError:
        return None
    return find_build_id(parse_notes(notes, "="))


def has_loaded_module(build_id: str | None, folder: str | Path = "/sys/module") -> bool:
    """Return whether the running kernel has loaded the module with a build ID.

    :param build_id: hexadecimal; no module has an unknown one.
    """
    notes = Path(folder).glob("*/notes/.note.gnu.build-id")
    return build_id is not None and any(running_build_id(path) == build_id for path in notes)


def running_release() -> str:
    """Return the kernel release, as ``uname -r``."""
    return os.uname().release


def read_config() -> dict[str, str] | None:
    """Return the running kernel's configuration; None if it is not found."""
    for path in (Path("/proc/config.gz"), Path(f"/boot/config-{running_release()}")):
        with contextlib.suppress(OSError, EOFError):
            data = path.read_bytes()
            text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode(
                "utf-8", "replace"
            )
            return dict(
                line.split("=", 1)
                for line in text.splitlines()
                if line.startswith("CONFIG_") and "=" in line
            )
    return None


def is_this_machine(target: Target) -> bool:
    """Return whether a target is the kernel that runs on this machine."""
    if target.release != running_release():
        return False
    ours = running_build_id()
    return target.live and (
        ours is None or target.build_id is None or ours == target.build_id.lower()
    )


def running_kaslr_offset() -> int | None:
    """Return the KASLR offset of the running kernel; None if it is unknown.

    It is the value of KERNELOFFSET, hexadecimal without 0x, in the VMCOREINFO note that /proc/kcore
    has since Linux kernel commit 23c85094fe18 ("proc/kcore: add vmcoreinfo note to /proc/kcore")
    (in v4.19).
    """
    try:
        with Path("/proc/kcore").open("rb") as file:
            head = file.read(1 << 16)
    except OSError:
        return None
    found = re.search(rb"KERNELOFFSET=([0-9a-f]{1,16})\n", head)
    return None if found is None else int(found[1], 16)
