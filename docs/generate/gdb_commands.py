# SPDX-License-Identifier: LGPL-2.1-or-later
"""The commands as GDB's help has them: what GDB sources shows it without starting kcovdbg's
process.
"""

from __future__ import annotations

import json

from kcovdbg.console.help_text import command_help
from kcovdbg.console.terminal import Painter
from kcovdbg.frontends.gdb.server import INSIDE


def write_gdb_commands() -> str:
    """Return gdb/kcov_show/commands.json: by command its aliases and help, whose first line GDB
    shows in lists.
    """
    plain = Painter()
    found = {}
    for command in sorted(INSIDE, key=lambda command: command.name):
        lines = [plain.paint(line) for line in command_help(command, None, "kcov-show ").lines]
        summary = f"{command.summary[0].upper()}{command.summary[1:]}."
        found[command.name] = {
            "aliases": list(command.aliases),
            "help": "\n".join([summary, *lines[1:]]),
        }
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"
