# SPDX-License-Identifier: LGPL-2.1-or-later
"""Source lines of kernel modules by their debug info alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import drgn

from kcovdbg.errors import TargetError
from kcovdbg.model.location import Frame
from kcovdbg.model.module_place import ModulePlace
from kcovdbg.target.drgn.locations import frames_at


class ModuleLines:
    """Source lines of modules at the places where they were loaded.

    :param places: of the modules.
    :param files: their files with debug info, by build ID.
    :raises TargetError: when drgn cannot use one.
    """

    def __init__(self, places: Iterable[ModulePlace], files: Mapping[str, str]) -> None:
        self._prog = drgn.Program()
        for place in places:
            path = files.get(place.build_id or "")
            if path is not None and place.sections:
                add_module(self._prog, place, path)

    def frames_at(self, address: int) -> tuple[Frame, ...]:
        """Return the source location of an instruction; empty where debug info does not cover it."""
        return frames_at(self._prog, address)


def add_module(prog: drgn.Program, place: ModulePlace, path: str) -> None:
    """Add a module to a Program.

    :param place: where it is, or is taken to be.
    :param path: of its file with debug info.
    :raises TargetError: when drgn cannot use it.
    """
    module = prog.relocatable_module(place.name, place.span[0], create=True)
    for name, address in place.sections:
        module.section_addresses[name] = address
    module.address_range = place.span
    try:
        module.try_file(path, force=True)
    except Exception as error:
        # drgn raises bare Exceptions for damaged files.
        raise TargetError(f"{path}: {error}") from error
