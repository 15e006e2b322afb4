# SPDX-License-Identifier: LGPL-2.1-or-later
"""A record with its place in the kernel."""

from __future__ import annotations

from typing import NamedTuple

from kcovdbg.abi.record import Record
from kcovdbg.model.location import Location


class LocatedRecord(NamedTuple):
    """A record with its address and location."""

    record: Record
    address: int | None
    """PC plus KASLR offset; None where the record has no PC."""
    location: Location | None
    """None where the record has no PC, or only the page of one."""

    @property
    def symbol(self) -> str | None:
        """The function that the code was compiled into."""
        return None if self.location is None else self.location.symbol
