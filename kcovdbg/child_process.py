# SPDX-License-Identifier: LGPL-2.1-or-later
"""Processes that kcovdbg starts: their environment and their end, command lines of Python processes
that run or install a part of kcovdbg, and the script for GDB.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kcovdbg.user_folder import find_home, find_stranger

ROOT: Final = str(Path(__file__).resolve().parents[1])
"""The directory that this package lies in."""

# Isolated (-I), an interpreter has neither the current directory nor PYTHONPATH in its search path
# while it starts. python -m and python -c would import from the current directory, and -P is as new
# as Python 3.11.
_START: Final = (
    "import sys; sys.path[:] = dict.fromkeys([*sys.argv.pop(1).split('\\n'), *sys.path]); "
    "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)

# include/uapi/linux/prctl.h
_PR_SET_PDEATHSIG: Final = 1

# Variables that name directories and files from which less, GDB, readline, a shell and debuginfod's
# client take commands, or which they write to.
_PLACES: Final = """
    XDG_CACHE_HOME XDG_CONFIG_HOME XDG_CONFIG_DIRS XDG_DATA_HOME XDG_RUNTIME_DIR XDG_STATE_HOME
    LESSKEY LESSKEYIN LESSKEY_SYSTEM LESSKEYIN_SYSTEM LESSHISTFILE
    BASH_ENV DEBUGINFOD_CACHE_PATH ENV GDBHISTFILE HISTFILE INPUTRC
""".split()


def child_environment(environment: Mapping[str, str] = os.environ, **more: str) -> dict[str, str]:
    """Return the environment of a child.

    It is this process's environment, unless root has another user's home directory, as with
    ``sudo -E``: less, GDB and shells run commands from files there. Then HOME is root's own, and
    variables that name other places of that user are left out.

    :param more: further variables; the user's own values go before them.
    """
    found = {**more, **environment}
    home = find_home(environment)
    if found.get("HOME") not in (None, home):
        found["HOME"] = home
        # less then also runs no command from a file of keys that is named by a relative path.
        found["LESSSECURE"] = "1"
    for name in _PLACES:
        places = found.get(name, "").split(os.pathsep)
        if any(place and find_stranger(Path(place).absolute()) is not None for place in places):
            del found[name]
    temporary = found.get("TMPDIR")
    if temporary and find_stranger(Path(temporary).absolute(), may_be_sticky=True) is not None:
        del found["TMPDIR"]
    return found


def end_with_parent(parent: int, number: int) -> bool:
    """Have the kernel send this process a signal when its parent ends; return whether the parent is
    still there.

    :param parent: process id of the parent.
    :param number: the signal.
    """
    # Most processes have no parent to end with.
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    # The parent may have ended before the call.
    return os.getppid() == parent


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module of this kcovdbg, without importing from the
    current directory.

    The environment stays unchanged, so that children of the process have the user's ``PYTHONPATH``.

    :param module: the module's name, as after ``python -m``.
    """
    return [sys.executable, "-I", "-c", _START, "\n".join(_search_path()), module, *arguments]


def find_install_command(extra: str) -> str:
    """Return the command that installs an extra of this package or checkout."""
    options = [f"kcovdbg[{extra}]"]
    if (Path(ROOT) / "pyproject.toml").is_file():
        options = ["-e", f"{ROOT}[{extra}]"]
    return shlex.join([sys.executable, "-m", "pip", "install", *options])


def find_gdb_script() -> Path:
    """Return the file that GDB sources: in gdb/ of a checkout, which is a part of an installed
    package.
    """
    checkout = Path(ROOT, "gdb", "kcov.py")
    return checkout if checkout.is_file() else Path(ROOT, "kcovdbg", "gdb", "kcov.py")


def _search_path() -> list[str]:
    """Return this process's search path without the current directory, unless the user named that
    by its absolute path.
    """
    try:
        here = str(Path.cwd())
    except FileNotFoundError:
        here = ""
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    places = (entry for entry in sys.path if entry.startswith("/"))
    return [ROOT, *(entry for entry in places if entry != here or entry in named)]
