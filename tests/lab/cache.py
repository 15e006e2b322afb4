# SPDX-License-Identifier: LGPL-2.1-or-later
"""The cache of built kernels and dumps, with locks between builders."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path


def root() -> Path:
    """Return the lab's directory in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kcovdbg" / "lab"


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold a named lock.

    The kernel releases it when the process ends, so a killed builder blocks nobody.
    """
    directory = root() / "locks"
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / name).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another process that makes {name}", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make_whole(final: Path, fill: Callable[[Path], None]) -> Path:
    """Fill a directory under a temporary name and rename it to `final`, so that it exists only when
    complete.
    """
    if final.is_dir():
        return final
    with locked(final.name):
        if final.is_dir():
            return final
        final.parent.mkdir(parents=True, exist_ok=True)
        # Under the lock, anything with this prefix was left by a builder that was killed.
        prefix = f".{final.name}."
        for stale in final.parent.glob(f"{prefix}*"):
            shutil.rmtree(stale, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=prefix, dir=final.parent))
        try:
            fill(work)
            work.chmod(0o755)
            work.rename(final)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
    return final
