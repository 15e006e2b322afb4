# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where tables are kept, and how one comes to be: in a process of its own, while the first answers come from debug info."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from kcovdbg.symbols.table import FORMAT, Table, TableError


def cache_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/kcovdbg/symbols``; it may not exist."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The specification: a relative path is as good as none.
    root = Path(base) if base.startswith("/") else Path.home() / ".cache"
    return root / "kcovdbg" / "symbols"


def table_path(build_id: str, folder: Path | None = None) -> Path:
    """Return the file of a build's table; it may not exist.

    :param build_id: hexadecimal.
    """
    return (folder or cache_folder()) / f"{build_id}.{FORMAT}"


def open_table(build_id: str, folder: Path | None = None) -> Table | None:
    """Open a build's table.

    A damaged one is as good as none: the next build replaces it.

    :param build_id: hexadecimal.
    """
    try:
        return Table(table_path(build_id, folder), build_id)
    except (OSError, TableError):
        return None


def _find_python() -> str | None:
    # Inside GDB sys.executable need not be Python.
    if sys.executable and Path(sys.executable).name.startswith("python"):
        return sys.executable
    return shutil.which("python3")


def start_build(image: str | os.PathLike[str], folder: Path | None = None) -> subprocess.Popen[bytes] | None:
    """Start building an image's table in the background, unless somebody is at it.

    The process outlives this one, has no terminal and is nice. It goes at once where the table exists or another process
    builds it.

    :param image: a kernel image with debug info.
    :return: the process, None where it can't be started.
    """
    python = _find_python()
    if python is None:
        return None
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    command = [python, "-m", "kcovdbg.symbols.build", "--nice"]
    if folder is not None:
        command += ["--folder", str(folder)]
    try:
        with Path(image).open("rb") as file:
            # Open in the child as well: an image that was decompressed goes with this process.
            return subprocess.Popen(
                [*command, "--", f"/proc/self/fd/{file.fileno()}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
                env={**os.environ, "PYTHONPATH": path},
                pass_fds=(file.fileno(),),
            )
    except OSError:
        return None
