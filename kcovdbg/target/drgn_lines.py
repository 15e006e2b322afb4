# SPDX-License-Identifier: LGPL-2.1-or-later
"""Source lines of a running kernel, by drgn: what names a PC while, or where, the table of the build doesn't."""

from __future__ import annotations

from typing import Final

import drgn

from kcovdbg.model.location import Frame
from kcovdbg.target.drgn_source import frames_at

# How far from the kernel's text its modules may lie: calls between them have 32-bit displacements.
_MODULE_REACH: Final = 1 << 31


class DrgnLines:
    """Locates instructions.

    :param prog: with the kernel's debug info loaded.
    """

    def __init__(self, prog: drgn.Program) -> None:
        self._prog = prog

    @property
    def image(self) -> str | None:
        """Path of the kernel's image with debug info."""
        try:
            module = self._prog.main_module()
        except LookupError:
            return None
        path: str | None = module.debug_file_path or module.loaded_file_path
        return path

    def frames_at(self, address: int) -> tuple[Frame, ...]:
        """Locate an instruction; empty where debug info doesn't cover it."""
        return frames_at(self._prog, address)

    def name_at(self, address: int) -> str | None:
        """Name the loaded module whose code an address lies in."""
        try:
            module = self._prog.module(address)
        except LookupError:
            return None
        return None if isinstance(module, drgn.MainModule) else module.name

    def code_at(self, address: int) -> tuple[str, int] | None:
        """Return the name of the loaded module whose code an address lies in, and where its section ``.text`` is."""
        try:
            module = self._prog.module(address)
        except LookupError:
            return None
        if isinstance(module, drgn.MainModule):
            return None
        sections = getattr(module, "section_addresses", {})
        return (module.name, int(sections[".text"])) if ".text" in sections else None

    def may_hold(self, address: int) -> bool:
        """Tell whether modules are put where this address is."""
        try:
            text = int(self._prog.symbol("_stext").address)
        except LookupError:
            return False
        return abs(address - text) < _MODULE_REACH
