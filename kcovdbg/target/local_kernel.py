# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which kernel runs here, by what it says about itself without debug info."""

from __future__ import annotations

from pathlib import Path

from kcovdbg.elf.note import find_build_id, parse_notes


def running_build_id(path: str | Path = "/sys/kernel/notes") -> str | None:
    """Return the build ID of the running kernel's image in hexadecimal; None if it is unknown."""
    try:
        notes = Path(path).read_bytes()
    except OSError:
        return None
    return find_build_id(parse_notes(notes, "="))


def has_loaded_module(build_id: str | None, folder: str | Path = "/sys/module") -> bool:
    """Return whether the running kernel has loaded the module with a build ID, hexadecimal; an unknown one it has not."""
    notes = Path(folder).glob("*/notes/.note.gnu.build-id")
    return build_id is not None and any(running_build_id(path) == build_id for path in notes)
