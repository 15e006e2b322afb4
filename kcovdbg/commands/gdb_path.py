# SPDX-License-Identifier: LGPL-2.1-or-later
"""``gdb-path``: the file to source in GDB."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from kcovdbg.child_process import find_gdb_script
from kcovdbg.console.command import Command, Example
from kcovdbg.console.context import Context
from kcovdbg.console.renderable import Lines, text_lines


def _run(context: Context, args: Namespace) -> Lines:  # noqa: ARG001
    return text_lines(str(find_gdb_script()))


COMMAND: Final = Command(
    name="gdb-path",
    summary="print the path of the file to source in GDB for kcov-show",
    run=_run,
    examples=(Example("gdb-path", "for ~/.config/gdb/gdbinit: source PATH"),),
    needs=frozenset(),
)
