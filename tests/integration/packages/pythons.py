# SPDX-License-Identifier: LGPL-2.1-or-later
"""The Python interpreters of this machine that kcovdbg supports."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

OLDEST = (3, 10)


def find_pythons() -> dict[str, Path]:
    """Return an interpreter of the oldest version and one of the newest; all other tests run on another one."""
    found = {_version(sys.version_info[:2]): Path(sys.executable)}
    for path in _candidates():
        version = _ask(path)
        if version is not None and version >= OLDEST:
            found.setdefault(_version(version), path)
    versions = sorted(found, key=lambda version: tuple(map(int, version.split("."))))
    return {version: found[version] for version in (versions[0], versions[-1])}


def _candidates() -> Iterator[Path]:
    for minor in range(OLDEST[1], 30):
        path = shutil.which(f"python3.{minor}")
        if path is not None:
            yield Path(path)
    # pyenv's commands in the path run only the versions that it is told to.
    yield from sorted(Path.home().glob(".pyenv/versions/*/bin/python3"))


def _ask(path: Path) -> tuple[int, int] | None:
    try:
        done = subprocess.run(
            [path, "-c", "import sys, venv, ensurepip; print(*sys.version_info[:2])"],
            capture_output=True,
            text=True,
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.fullmatch(r"(\d+) (\d+)\n", done.stdout)
    return (int(match[1]), int(match[2])) if done.returncode == 0 and match else None


def _version(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
