# SPDX-License-Identifier: LGPL-2.1-or-later
"""A location table as a target."""

from __future__ import annotations

import platform

from kcovdbg.errors import MissingSymbolError
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.target.target import SourceLines, Symbol, Target


class TableTarget(Target):
    """A location table as a :class:`~kcovdbg.target.target.Target`: it has names and coverage
    points, and no types.

    :param name: its name in messages.
    :param machine: as ``uname -m`` prints it; None for this machine, as tables do not have it.
    :param lines: the modules in which traces have records, if any is known.
    :param kind: its description in messages, if the table was made of another file.
    """

    names_remark: str | None = None
    """A line on missing names and lines; None if none are missing."""
    word_size = 8
    big_endian = False
    release = "unknown"

    def __init__(
        self,
        table: LocationTable,
        name: str,
        *,
        machine: str | None = None,
        lines: SourceLines | None = None,
        kind: str = "a location table",
    ) -> None:
        self.name = name
        self.memory_problem = f"{name} is {kind}"
        self.kind = kind
        self.build_id = table.build_id
        self.machine = machine or platform.machine()
        self._lines = lines
        self.table = table
        """Its table."""

    @property
    def lines(self) -> SourceLines | None:
        """The modules in which traces have records, None if none is known."""
        return self._lines

    def symbol(self, name: str) -> Symbol:
        """Find a function by name.

        :raises MissingSymbolError: when the table has none.
        """
        for found in self.table.functions_named(name):
            if found.name == name:
                return Symbol(name, found.address, found.size)
        raise MissingSymbolError(f"{self.name} has no function {name}")

    def symbol_name(self, address: int) -> str | None:
        """Return the name of the function that contains an address, None when none does."""
        found = self.table.function_at(address)
        return None if found is None else found.name
