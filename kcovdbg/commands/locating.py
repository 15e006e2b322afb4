# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where a target's PCs are looked up."""

from __future__ import annotations

from collections.abc import Sequence

from kcovdbg.analysis.naming import Locate
from kcovdbg.model.location import Frame, Location
from kcovdbg.target import Target


def make_locate(target: Target | None) -> Locate:
    """Return the function from recorded PCs to locations.

    :param target: None where traces are looked at without a kernel: then nothing has a name.
    """
    if target is None:
        return lambda pcs: [Location(pc, ()) for pc in pcs]

    def locate(pcs: Sequence[int]) -> list[Location]:
        offset = target.kaslr_offset
        found: list[Location] = []
        for pc in pcs:
            # A PC is a return address: the call before it is what was executed.
            address = pc + offset & (1 << 64) - 1
            name = target.symbol_name(address - 1)
            frames = () if name is None else (Frame(name, None, None, None),)
            found.append(Location(address, frames, "outside of all code" if name is None else None))
        return found

    return locate
