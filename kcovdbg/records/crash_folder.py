# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names of the files in a crash directory of syzkaller, which identify it.

In syzkaller's source: pkg/manager/crash.go (files of a crash; in syz-manager/manager.go until
2024), pkg/manager/diff_store.go and tools/syz-crush (other names), syz-manager/manager.go (which
crash has a dump).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

CRASHES: Final = "crashes"
"""The directory of crashes in a manager's working directory."""
DESCRIPTION: Final = "description"
DUMP_NAME: Final = re.compile(r"vmcore.*|memory_dump(?P<number>\d+)")
LOG_NAME: Final = re.compile(r"log(?P<number>\d+)|repro\.log|patched_crash_log|\d+\.crash\.log")
REPORT_NAME: Final = re.compile(r"report(?P<number>\d+)|repro\.report|patched_report|base_report")
REPRODUCER_NAME: Final = re.compile(r"repro\.prog|reproducer\d+")


def is_workdir(folder: Path) -> bool:
    """Return whether a directory is a manager's working directory."""
    return (folder / CRASHES).is_dir()


def is_crash_folder(names: Iterable[str]) -> bool:
    """Return whether a directory with files of these names is the directory of a crash."""
    found = set(names)
    patterns = [LOG_NAME, REPORT_NAME, REPRODUCER_NAME]
    if DESCRIPTION in found:
        # Directories of kdump have dumps as well, and directories of Git have descriptions.
        patterns.append(DUMP_NAME)
    return found == {DESCRIPTION} or any(
        pattern.fullmatch(name) for name in found for pattern in patterns
    )
