# SPDX-License-Identifier: LGPL-2.1-or-later
"""Check that a machine can run the tests: ``python -m tests.machine`` prints one line per problem;
status 2 when there is any.

A chroot or a container often lacks parts of /dev or /proc. Tests would fail on those one by one,
minutes later.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

# major and minor number; Documentation/admin-guide/devices.txt
DEVICES: Mapping[str, tuple[int, int]] = {
    "/dev/null": (1, 3),
    "/dev/zero": (1, 5),
    "/dev/full": (1, 7),
    "/dev/urandom": (1, 9),
}
# Kernels, dumps and packages of one run, beside what the lab's cache holds.
TEMPORARY_MIB = 3072
CACHE_MIB = 4096
# A lab guest, QEMU and the debug info that drgn loads.
MEMORY_MIB = 2048


def main() -> int:
    """Print the problems; return 2 when there are any."""
    problems = [problem for check in CHECKS for problem in check()]
    for problem in problems:
        print(f"tests: {problem}", file=sys.stderr)
    return 2 if problems else 0


def check_devices(devices: Mapping[str, tuple[int, int]] = DEVICES) -> Iterator[str]:
    """Yield the devices that are missing, are something else, or cannot be opened."""
    for path, (major, minor) in devices.items():
        try:
            found = Path(path).stat()
        except OSError as error:
            yield f"{path}: {error.strerror}; create it with: mknod -m 666 {path} c {major} {minor}"
            continue
        if not stat.S_ISCHR(found.st_mode) or (
            os.major(found.st_rdev),
            os.minor(found.st_rdev),
        ) != (major, minor):
            yield (
                f"{path}: not the character device {major}:{minor}; replace it with: mknod -m 666 "
                f"{path} c {major} {minor}"
            )
        elif not os.access(path, os.R_OK | os.W_OK):
            yield f"{path}: cannot be read and written by user {os.getuid()}; run: chmod 666 {path}"


def check_terminals(open_terminal: Callable[[], tuple[int, int]] = os.openpty) -> Iterator[str]:
    """Yield a problem when no pseudo-terminal can be opened."""
    try:
        ends = open_terminal()
    except OSError as error:
        mount = "mount -t devpts -o ptmxmode=0666 devpts /dev/pts"
        yield f"/dev/pts: cannot open a pseudo-terminal: {error.strerror}; run: {mount}"
        return
    for end in ends:
        os.close(end)


def check_proc(proc: Path = Path("/proc")) -> Iterator[str]:
    """Yield a problem when /proc is not mounted or hides this process."""
    if not (proc / "self/maps").exists():
        yield f"{proc}: not mounted; run: mount -t proc proc {proc}"


def check_shared_memory(folder: Path = Path("/dev/shm")) -> Iterator[str]:
    """Yield a problem when there is no shared memory: multiprocessing and browsers need it."""
    if not os.access(folder, os.W_OK):
        yield f"{folder}: not a writable directory; run: mount -t tmpfs tmpfs {folder}"


def check_space(needed: Mapping[Path, int] | None = None) -> Iterator[str]:
    """Yield the directories that lack space or cannot be written.

    :param needed: MiB by directory; the default is the temporary directory and the cache's.
    """
    if needed is None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        built = (cache / "kcovdbg").exists()
        needed = {Path(tempfile.gettempdir()): TEMPORARY_MIB, cache: 0 if built else CACHE_MIB}
    for folder, mib in needed.items():
        there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        if not os.access(there, os.W_OK):
            yield f"{there}: cannot be written by user {os.getuid()}"
        elif (free := shutil.disk_usage(there).free >> 20) < mib:
            yield f"{there}: {free} MiB free, {mib} MiB needed"


def check_memory(meminfo: Path = Path("/proc/meminfo"), needed: int = MEMORY_MIB) -> Iterator[str]:
    """Yield a problem when too little memory is available."""
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        # check_proc() reports it.
        return
    for line in lines:
        if line.startswith("MemAvailable:") and (free := int(line.split()[1]) >> 10) < needed:
            yield f"memory: {free} MiB available, {needed} MiB needed"


CHECKS: tuple[Callable[[], Iterator[str]], ...] = (
    check_devices,
    check_terminals,
    check_proc,
    check_shared_memory,
    check_space,
    check_memory,
)


if __name__ == "__main__":
    sys.exit(main())
