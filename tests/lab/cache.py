# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where built kernels and dumps are kept, and how two builders keep out of each other's way."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def root() -> Path:
    """The lab's directory in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kcovdbg" / "lab"


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold a named lock; the kernel drops it with the process, so a killed builder blocks nobody."""
    directory = root() / "locks"
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / name).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another process is making {name}; waiting for it", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make_whole(final: Path, fill: Callable[[Path], None]) -> Path:
    """Have a directory at `final`, filled by `fill` under another name, so that it is there whole or not at all."""
    if final.is_dir():
        return final
    with locked(final.name):
        if final.is_dir():
            return final
        final.parent.mkdir(parents=True, exist_ok=True)
        # Under the lock, whatever bears this prefix was left by someone who died.
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
