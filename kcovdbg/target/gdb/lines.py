# SPDX-License-Identifier: LGPL-2.1-or-later
"""Source locations by GDB's line tables, which GDB reads for the compilation units asked about."""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter

import gdb
from kcovdbg.model.location import Frame


class LineTables:
    """GDB's line tables, cached for one command: their user may load or move symbols between commands."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int], list[tuple[int, int]]] = {}

    def frames_at(self, address: int) -> tuple[Frame, ...]:
        """Return the functions that an instruction is in, with the line of the innermost one.

        :param address: as in GDB's symbols.
        :return: innermost first; empty when debug info does not cover it.
        """
        try:
            line = gdb.find_pc_line(address)
            block = gdb.block_for_pc(address)
        except (gdb.error, OverflowError):
            return ()
        functions: list[gdb.Symbol] = []
        while block is not None and not block.is_static and not block.is_global:
            if block.function is not None:
                functions.append(block.function)
            block = block.superblock
        if not functions:
            return ()
        file, number = self._innermost_line(address, line, functions[0])
        inner = Frame(functions[0].linkage_name, file, number, None)
        return (inner, *(Frame(function.linkage_name, None, None, None) for function in functions[1:]))

    def _innermost_line(self, address: int, line: gdb.Symtab_and_line, function: gdb.Symbol) -> tuple[str | None, int | None]:
        if line.symtab is None:
            return None, line.line or None
        # GDB returns the start of a statement. Later rows of the line table, which start none, count as well, as for addr2line:
        # those of this file, and those of the file of the function inlined here.
        candidates = [line.symtab]
        if function.symtab is not None and function.symtab.filename != line.symtab.filename:
            candidates.append(function.symtab)
        best = (line.pc or 0, line.line, line.symtab.filename)
        for symtab in candidates:
            rows = self._rows_of(symtab)
            index = bisect_right(rows, address, key=itemgetter(0)) - 1
            if index >= 0 and rows[index][0] >= best[0]:
                best = (*rows[index], symtab.filename)
        return best[2], best[1] or None

    def _rows_of(self, symtab: gdb.Symtab) -> list[tuple[int, int]]:
        # A header has a table in each unit.
        key = (symtab.filename, symtab.global_block().start)
        found = self._rows.get(key)
        if found is None:
            found = self._rows[key] = sorted(((entry.pc, entry.line) for entry in symtab.linetable()), key=itemgetter(0))
        return found
