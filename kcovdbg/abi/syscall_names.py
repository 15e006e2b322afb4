# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names of system calls by number, and how many arguments they take: the tables of
``syscalls.ini``.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from configparser import ConfigParser
from functools import cache
from importlib.resources import files
from typing import Final

_TABLES: Final = {
    "x86_64": "x86_64",
    "aarch64": "generic",
    "riscv64": "generic",
    "loongarch64": "generic",
}


@cache
def _read_tables() -> ConfigParser:
    tables = ConfigParser(interpolation=None)
    tables.read_string(files(__package__).joinpath("syscalls.ini").read_text("utf-8"))
    return tables


@cache
def _argument_counts() -> Mapping[str, int]:
    return {
        name: int(count)
        for count, names in _read_tables()["arguments"].items()
        for name in names.split()
    }


@cache
def _table(machine: str) -> Mapping[int, str]:
    found: dict[int, str] = {}
    if machine not in _TABLES:
        return found
    for table in (_TABLES[machine], "newer"):
        for first, names in _read_tables()[table].items():
            found.update(enumerate(names.split(), int(first)))
    return found


def syscall_name(number: int, machine: str | None = None) -> str:
    """Return the name of a system call; ``syscall_467`` for one without a name here.

    :param machine: as in ``uname -m``; this machine's by default.
    """
    names = _table(platform.machine() if machine is None else machine)
    return names.get(number, f"syscall_{number}")


def argument_count(name: str) -> int:
    """Return the number of a system call's arguments; 6, the maximum, for an unknown one."""
    return _argument_counts().get(name, 6)
