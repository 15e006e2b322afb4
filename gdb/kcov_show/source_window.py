# SPDX-License-Identifier: LGPL-2.1-or-later
"""Scroll the TUI's source window to the line of an instruction.

GDB has no call for this. ``list`` moves the window only at the next prompt. The commands ``+`` and
``-`` scroll at once, but from a position that GDB does not tell, and in the file that was listed
last.
"""

from __future__ import annotations

import contextlib
import time
from typing import Optional

import gdb

# Longer than any file with code: 2**19 - 1 lines.
_HIGHEST_BIT = 18
# Seconds after which the position is no longer trusted; a key that is held down repeats every 30
# ms.
_KEY_REPEATS = 0.5


class SourceWindow:
    """GDB's source window."""

    def __init__(self) -> None:
        self._top = 0
        self._moved = float("-inf")

    def forget(self) -> None:
        """Forget the position: GDB may have moved the window."""
        self._moved = float("-inf")

    def show(self, address: int, height: int) -> None:
        """Show the line of an instruction in the middle of the window; do nothing if the
        instruction has no line, or the layout has no such window.

        :param address: in GDB's symbols.
        :param height: of the window, in lines.
        """
        with contextlib.suppress(gdb.error):
            place = _outside_of_headers(address)
            if place is None:
                return
            line = gdb.find_pc_line(place).line
            above = max(0, min(height // 2, line - 2))
            _list(place, above)
            self._scroll(max(1, line - above))

    def _scroll(self, top: int) -> None:
        now = time.monotonic()
        if now - self._moved > _KEY_REPEATS:
            # Scroll to the first line from wherever the window is. Up to GDB 15, a step beyond the
            # first line does nothing, so take ever smaller steps.
            for bit in range(_HIGHEST_BIT, -1, -1):
                gdb.execute("- %d src" % (1 << bit), to_string=True)
            self._top = 1
        step = top - self._top
        if step:
            gdb.execute("%s %d src" % ("+" if step > 0 else "-", abs(step)), to_string=True)
        else:
            # The window may show another file, so scroll and return. A step of 0 lines would be a
            # page.
            gdb.execute("+ 1 src", to_string=True)
            gdb.execute("- 1 src", to_string=True)
        self._top = top
        self._moved = time.monotonic()


def _list(address: int, above: int) -> None:
    """Make a file and line current for scrolling, by ``list`` with its output discarded."""
    gdb.execute("with listsize %d -- list *%#x" % (max(2, 2 * above), address), to_string=True)
    if above:
        gdb.execute("with listsize 1 -- list -", to_string=True)


def _outside_of_headers(address: int) -> Optional[int]:
    """Return the address itself; if it is in an inline function of a header, the nearest address in
    the file that calls the function.

    To show a line of a file, GDB reads every compilation unit with code of that file. This is one
    unit for kernel/pid.c, and a thousand for rcupdate.h, which take half a minute and a gigabyte.
    """
    line = gdb.find_pc_line(address)
    if line.symtab is None or not line.symtab.filename.endswith(".h"):
        return address
    block = gdb.block_for_pc(address)
    while block is not None and block.superblock is not None and not block.superblock.is_static:
        block = block.superblock
    if block is None or block.function is None:
        return address
    table = block.function.symtab.linetable()
    inside = {entry.pc for entry in table if block.start <= entry.pc < block.end}
    # Addresses before the call come first, because more of them are on the call's line.
    for pc in sorted(inside, key=lambda pc: (pc > address, abs(pc - address))):
        found = gdb.find_pc_line(pc).symtab
        if found is not None and found.filename == block.function.symtab.filename:
            return pc
    return None
