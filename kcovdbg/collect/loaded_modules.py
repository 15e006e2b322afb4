# SPDX-License-Identifier: LGPL-2.1-or-later
"""The modules of the running kernel, by what it says about them in sysfs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from kcovdbg.elf.header import find_build_id, parse_notes
from kcovdbg.model.module_place import ModulePlace, is_code_section


def find_loaded_modules(folder: str | Path = "/sys/module") -> tuple[ModulePlace, ...] | None:
    """Return where the modules of the running kernel are; None if it hides them: reading them takes CAP_SYSLOG."""
    try:
        found = tuple(_read_modules(Path(folder)))
    except OSError:
        return None
    # Others read addresses as zeros (kernel/module/sysfs.c, module_sect_read()).
    return found if all(address for place in found for _, address in place.sections) else None


def _read_modules(folder: Path) -> Iterator[ModulePlace]:
    for module in sorted(folder.iterdir()):
        # What is built in has no size. A module may be unloaded meanwhile.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            size = int((module / "coresize").read_text())
            sections = tuple(
                (section.name, int(section.read_text(), 16))
                for section in sorted((module / "sections").iterdir())
                if is_code_section(section.name)
            )
            yield ModulePlace(module.name, _read_build_id(module), size, sections)


def _read_build_id(module: Path) -> str | None:
    try:
        notes = (module / "notes" / ".note.gnu.build-id").read_bytes()
    except OSError:
        return None
    return find_build_id(parse_notes(notes, "="))
