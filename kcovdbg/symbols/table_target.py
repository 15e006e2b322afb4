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

    :param name: what messages call it.
    :param machine: as of uname -m; None for this machine's, as tables do not say it.
    :param lines: the modules that traces have records in, None where none is known.
    :param kind: what it is, where the table was made of another file.
    """

    names_remark: str | None = None
    """What is missing of its names, a line; None where nothing is."""
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
        """Modules that traces have records in, None where none is known."""
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
        """Return the name of the function that an address is in, None when it is in none."""
        found = self.table.function_at(address)
        return None if found is None else found.name
