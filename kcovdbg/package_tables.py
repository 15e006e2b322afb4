# SPDX-License-Identifier: LGPL-2.1-or-later
"""Read the tables of facts about the kernel that are installed beside the code."""

from __future__ import annotations

from configparser import ConfigParser
from importlib.resources import files


def read_tables(package: str, name: str) -> ConfigParser:
    """Return the tables in an ``.ini`` file of a package."""
    tables = ConfigParser(interpolation=None)
    tables.read_string(files(package).joinpath(name).read_text("utf-8"))
    return tables
