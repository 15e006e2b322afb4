# SPDX-License-Identifier: LGPL-2.1-or-later
"""The commands: each module of this package declares one, as its ``COMMAND``."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from kcovdbg.engine.command import Command, CommandTable


def _find_commands() -> Iterator[Command]:
    for module in iter_modules(__path__):
        command: Command = import_module(f"{__name__}.{module.name}").COMMAND
        yield command


COMMANDS: Final = CommandTable(_find_commands())
"""Every command."""
