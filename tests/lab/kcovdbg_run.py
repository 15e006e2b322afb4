# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs kcovdbg in a process of its own, as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from tests.lab.comparison import COMMANDS, parse_rows
from tests.lab.initramfs import Userland
from tests.lab.kernel import Kernel

ROOT = Path(__file__).parent.parent.parent
Rows: TypeAlias = list[dict[str, Any]]


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


def ask(target: Sequence[str | Path], *lines: str, status: int | None = 0, timeout: float = 600) -> list[Rows]:
    """Run commands on one opened target; return the rows of each.

    :param target: the options that name it and its debug info.
    :param status: the exit status that is expected; None: any.
    """
    words = [word for line in lines for word in ("-e", f"{line} --json")]
    done = run_kcovdbg(*target, *words, timeout=timeout)
    assert status in (None, done.returncode), done.stderr
    answers = parse_rows(done.stdout)
    assert len(answers) == len(lines), done.stderr
    return answers


def ask_state(target: Sequence[str | Path]) -> dict[str, Rows]:
    """Run all commands that the comparison needs, on one opened target."""
    return dict(zip(COMMANDS, ask(target, *COMMANDS.values()), strict=True))
