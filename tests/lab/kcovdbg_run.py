# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs kcovdbg in a process of its own, as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.lab.comparison import COMMANDS, parse_answers

if TYPE_CHECKING:
    from tests.lab.initramfs import Userland
    from tests.lab.kernel import Kernel

ROOT = Path(__file__).parent.parent.parent


def run_kcovdbg(*arguments: str | Path, timeout: float = 120, cache: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run it to its end.

    :param cache: the directory of its location tables, if not the user's.
    """
    command = [sys.executable, "-m", "kcovdbg", *map(str, arguments)]
    environment = os.environ if cache is None else os.environ | {"XDG_CACHE_HOME": cache}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=timeout)


def symbol_options(kernel: Kernel, userland: Userland) -> list[str]:
    """Return the options that name the debug info of a guest's kernel and of the module that stays loaded."""
    kept = [path for path in userland.modules if path.stem == "kcovlab_keep"]
    return [word for path in (kernel.vmlinux, *kept) for word in ("-s", str(path))]


def ask_state(target: Sequence[str | Path], symbols: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Run all commands that the comparison needs, on one opened target."""
    words = [word for line in COMMANDS.values() for word in ("-e", line)]
    done = run_kcovdbg(*target, *symbols, *words)
    assert done.returncode == 0, done.stderr
    return parse_answers(done.stdout)
