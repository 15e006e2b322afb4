# SPDX-License-Identifier: LGPL-2.1-or-later
"""The table of commands: each module in it declares one, as its ``COMMAND``."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from kcovdbg.console.command import Command, CommandTable

MODULES: Final = {
    "areas": "kcovdbg.commands.areas",
    "batch": "kcovdbg.farm.batch_command",
    "buffer": "kcovdbg.buffers.buffer_command",
    "catch": "kcovdbg.catch.command",
    "check": "kcovdbg.check.command",
    "collect": "kcovdbg.collect.command",
    "config": "kcovdbg.commands.config",
    "demo": "kcovdbg.commands.demo",
    "diff": "kcovdbg.buffers.diff_command",
    "doctor": "kcovdbg.collect.doctor_command",
    "export": "kcovdbg.export.command",
    "gdb": "kcovdbg.commands.gdb",
    "help": "kcovdbg.commands.help",
    "info": "kcovdbg.commands.info",
    "jobs": "kcovdbg.collect.jobs_command",
    "keep": "kcovdbg.buffers.keep_command",
    "last": "kcovdbg.crash.command",
    "log": "kcovdbg.commands.log",
    "mcp": "kcovdbg.commands.mcp",
    "monitor": "kcovdbg.monitor.command",
    "objects": "kcovdbg.commands.objects",
    "patch": "kcovdbg.patch.command",
    "points": "kcovdbg.buffers.points_command",
    "remote": "kcovdbg.commands.remote",
    "report": "kcovdbg.report.command",
    "resume": "kcovdbg.catch.resume_command",
    "saved": "kcovdbg.commands.saved",
    "sites": "kcovdbg.commands.sites",
    "slice": "kcovdbg.commands.slice",
    "source": "kcovdbg.buffers.source_command",
    "sym": "kcovdbg.buffers.sym_command",
    "symbols": "kcovdbg.commands.symbols",
    "syzkaller": "kcovdbg.farm.syzkaller_command",
    "tasks": "kcovdbg.commands.tasks",
    "top": "kcovdbg.buffers.top_command",
    "trace": "kcovdbg.buffers.trace_command",
    "view": "kcovdbg.buffers.view_command",
    "why": "kcovdbg.why.command",
}
"""The module of each command. Whoever deletes the folder of a tool deletes its line here."""


def _import_command(module: str) -> Command:
    command: Command = import_module(module).COMMAND
    return command


def _load(name: str) -> Command | None:
    module = MODULES.get(name)
    if module is None:
        return None
    return _import_command(module)


COMMANDS: Final = CommandTable(map(_import_command, MODULES.values()), _load)
"""Every command."""
