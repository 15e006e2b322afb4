# SPDX-License-Identifier: LGPL-2.1-or-later
"""The commands: each module of this package declares one, as its ``COMMAND``; with dashes, its name is the command's."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Final

from kcovdbg.engine.command import Command, CommandTable


def _find_commands() -> Iterator[Command]:
    for module in iter_modules(__path__):
        yield _import_command(module.name)


def _import_command(module: str) -> Command:
    command: Command = import_module(f"{__name__}.{module}").COMMAND
    return command


def _load(name: str) -> Command | None:
    module = name.replace("-", "_")
    is_module = module.isidentifier() and find_spec(f"{__name__}.{module}") is not None
    return _import_command(module) if is_module and "_" not in name else None


COMMANDS: Final = CommandTable(_find_commands(), _load)
"""Every command."""
