# SPDX-License-Identifier: LGPL-2.1-or-later
"""The table of commands: each module in it declares one, as its ``COMMAND``."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from kcovdbg.engine.command import Command, CommandTable

MODULES: Final = {
    "areas": "kcovdbg.commands.areas",
    "batch": "kcovdbg.commands.batch",
    "buffer": "kcovdbg.commands.buffer",
    "catch": "kcovdbg.commands.catch",
    "check": "kcovdbg.commands.check",
    "collect": "kcovdbg.commands.collect",
    "config": "kcovdbg.commands.config",
    "demo": "kcovdbg.commands.demo",
    "diff": "kcovdbg.commands.diff",
    "doctor": "kcovdbg.commands.doctor",
    "export": "kcovdbg.commands.export",
    "gdb": "kcovdbg.commands.gdb",
    "gdb-path": "kcovdbg.commands.gdb_path",
    "help": "kcovdbg.commands.help",
    "info": "kcovdbg.commands.info",
    "jobs": "kcovdbg.commands.jobs",
    "keep": "kcovdbg.commands.keep",
    "last": "kcovdbg.commands.last",
    "log": "kcovdbg.commands.log",
    "mcp": "kcovdbg.commands.mcp",
    "monitor": "kcovdbg.commands.monitor",
    "objects": "kcovdbg.commands.objects",
    "percpu": "kcovdbg.commands.percpu",
    "points": "kcovdbg.commands.points",
    "remote": "kcovdbg.commands.remote",
    "report": "kcovdbg.commands.report",
    "resume": "kcovdbg.commands.resume",
    "sites": "kcovdbg.commands.sites",
    "slice": "kcovdbg.commands.slice",
    "source": "kcovdbg.commands.source",
    "sym": "kcovdbg.commands.sym",
    "symbols": "kcovdbg.commands.symbols",
    "syzkaller": "kcovdbg.commands.syzkaller",
    "tasks": "kcovdbg.commands.tasks",
    "top": "kcovdbg.commands.top",
    "trace": "kcovdbg.commands.trace",
    "tree": "kcovdbg.commands.tree",
    "view": "kcovdbg.commands.view",
    "watch": "kcovdbg.commands.watch",
    "why": "kcovdbg.commands.why",
}
"""Where each command is declared. A tool without its line here, and without its folder, is not missed."""


def _import_command(module: str) -> Command:
    command: Command = import_module(module).COMMAND
    return command


def _load(name: str) -> Command | None:
    module = MODULES.get(name)
    return None if module is None else _import_command(module)


COMMANDS: Final = CommandTable(map(_import_command, MODULES.values()), _load)
"""Every command."""
