# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command lines of Python processes that run a part of kcovdbg, or install one, and the script for GDB."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Final

ROOT: Final = str(Path(__file__).resolve().parents[1])
"""The directory that this package lies in."""

# Isolated (-I), an interpreter has neither the current directory nor PYTHONPATH in its search path while it starts. python -m
# and python -c would import from the current directory, and -P is as new as Python 3.11.
_START: Final = (
    "import sys; sys.path[:] = dict.fromkeys([*sys.argv.pop(1).split('\\n'), *sys.path]); "
    "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module of this kcovdbg, without importing from the current directory.

    The environment can stay as it is: what the process starts in its turn finds the user's ``PYTHONPATH`` unchanged.

    :param module: its name, as after ``python -m``.
    """
    return [sys.executable, "-I", "-c", _START, "\n".join(_search_path()), module, *arguments]


def find_install_command(extra: str) -> str:
    """Return the command that installs an extra beside this kcovdbg, be it a package or a checkout."""
    options = ["-e", f"{ROOT}[{extra}]"] if (Path(ROOT) / "pyproject.toml").is_file() else [f"kcovdbg[{extra}]"]
    return shlex.join([sys.executable, "-m", "pip", "install", *options])


def find_gdb_script() -> Path:
    """Return the file that GDB sources: in gdb/ of a checkout, which is a part of an installed package."""
    checkout = Path(ROOT, "gdb", "kcov.py")
    return checkout if checkout.is_file() else Path(ROOT, "kcovdbg", "gdb", "kcov.py")


def _search_path() -> list[str]:
    """Return this process's search path without the current directory, unless the user named that by its absolute path."""
    try:
        here = str(Path.cwd())
    except FileNotFoundError:
        here = ""
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    entries = (entry for entry in sys.path if entry.startswith("/") and (entry != here or entry in named))
    return [ROOT, *entries]
