# SPDX-License-Identifier: LGPL-2.1-or-later
"""The lines of the window that shows a buffer in GDB's TUI."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kcovdbg.console.runner import find_command, make_context
from kcovdbg.console.text import elide, elide_start, escape, pad
from kcovdbg.console.wording import buffer_title, record_text
from kcovdbg.inputs.buffer_sources import find_buffer
from kcovdbg.records.located_records import locate_records

if TYPE_CHECKING:
    from kcovdbg.console.context import Workspace
    from kcovdbg.frontends.gdb.link import Fields


class BufferWindow:
    """The lines of a buffer for GDB's window.

    :param what: the buffer's name.
    :raises KcovdbgError: when there is no such buffer.
    """

    def __init__(self, workspace: Workspace, what: str) -> None:
        command, args = find_command(workspace, ["buffer", what])
        context = make_context(workspace, command, args, workspace.terminal(), workspace.format)
        self._names = context.names
        self._buffer = find_buffer(context.inputs, what)

    def draw(self, request: Fields) -> Fields:
        """Return the lines around the selected record, its position, and the address of its
        instruction.
        """
        buffer, height, shift = self._buffer, request["height"], request["shift"]
        selected = max(0, min(request["selected"], buffer.count - 1))
        top = max(0, min(request["top"], buffer.count - height))
        top = max(min(top, selected), selected - height + 1, 0)
        indices = range(top, min(top + height, buffer.count))
        digits = len(str(buffer.count - 1))
        lines = []
        for row in locate_records(buffer, self._names, indices):
            text = record_text(row)
            function = escape(f"{text.sign} {text.function}" if text.sign else text.function)
            number = f"{row.record.number:>{digits}} "
            lines.append(_line(number, function, escape(text.place), request["width"], shift))
        return {
            "title": escape(buffer_title(buffer)),
            "count": buffer.count,
            "selected": selected,
            "top": top,
            "lines": lines or ["no records"],
            "address": self._find_address(selected),
        }

    def _find_address(self, selected: int) -> int | None:
        """Return the address of a record's call in the running kernel; None without a PC."""
        if not self._buffer.count:
            return None
        found = self._buffer.decode(selected)
        return None if found.pc is None else found.pc + self._buffer.kaslr_offset - 1


def _line(number: str, what: str, where: str, width: int, shift: int) -> str:
    if shift:
        return pad(elide(f"{number}{what}  {where}"[shift:], width), width)
    room = width - len(number)
    # The function comes first. A place that is too long loses its start.
    left = min(len(what), max(room - 1 - len(where), room // 2))
    right = elide_start(where, max(0, room - left - 1))
    return number + pad(elide(what, left), room - len(right)) + right
