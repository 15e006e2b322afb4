# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs kcovdbg in a process of its own, as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from tests.lab.comparison import COMMANDS, parse_rows
from tests.lab.initramfs import Userland
from tests.lab.kernel import Kernel
from tests.support.fork_server import NEW_PROCESSES, Run, find_server

ROOT = Path(__file__).parent.parent.parent
Rows: TypeAlias = list[dict[str, Any]]


def run_kcovdbg(
    *arguments: str | Path,
    timeout: float = 300,
    status: int | None = None,
    cache: str | Path | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run it to its end, in a process that a server forks; with other options than it knows, and
    with --exhaustive, in a new one.

    :param status: the exit status that is expected; None: any.
    :param cache: the directory of its location tables, if not the user's.
    :param options: of :func:`subprocess.run`; of ``env``, the variables that differ.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
    if cache is not None:
        environment["XDG_CACHE_HOME"] = str(cache)
    run = Run([*map(str, arguments)], environment, str(options.pop("cwd", ROOT)))
    server = None
    if {"stdin", "input"}.issuperset(options) and NEW_PROCESSES not in environment:
        server = find_server(os.getpid(), threading.get_ident())
    if server is not None and run.is_like(server.environment):
        done = server.run(run, timeout, options.get("stdin"), options.get("input"))
    else:
        command = [sys.executable, "-m", "kcovdbg", *run.arguments]
        options = {"cwd": run.folder, "capture_output": True, "text": True, **options}
        done = subprocess.run(command, env=environment, check=False, timeout=timeout, **options)
    assert status in (None, done.returncode), done.stderr
    return done


def symbol_options(kernel: Kernel, userland: Userland) -> list[str]:
    """Return the options that name the debug info of a guest's kernel and of the module that stays
    loaded.
    """
    return symbols_of(
        kernel.vmlinux, *(path for path in userland.modules if path.stem == "kcovlab_keep")
    )


def symbols_of(*paths: Path) -> list[str]:
    return [word for path in paths for word in ("-s", str(path))]


def ask(
    target: Sequence[str | Path],
    *lines: str,
    status: int | None = 0,
    timeout: float = 600,
    **options: Any,
) -> list[Rows]:
    """Run commands on one opened target; return the rows of each.

    :param target: the options that name it and its debug info.
    :param options: of :func:`run_kcovdbg`.
    """
    words = [word for line in lines for word in ("-e", f"{line} --json")]
    done = run_kcovdbg(*target, *words, status=status, timeout=timeout, **options)
    answers = parse_rows(done.stdout)
    assert len(answers) == len(lines), done.stderr
    return answers


def run_lines(target: Sequence[str | Path], *lines: str, **options: Any) -> list[str]:
    """Run commands on one opened target; return what each writes to standard output.

    :param options: of :func:`run_kcovdbg`.
    """
    words = [word for line in lines for word in ("-e", line, "-e", "! echo @@@")]
    done = run_kcovdbg(*target, "-q", *words, **options)
    parts: list[str] = done.stdout.split("@@@\n")
    assert (len(parts), "Traceback" in done.stderr) == (len(lines) + 1, False), done.stderr
    return parts[:-1]


def ask_state(target: Sequence[str | Path]) -> dict[str, Rows]:
    """Run all commands that the comparison needs, on one opened target."""
    return dict(zip(COMMANDS, ask(target, *COMMANDS.values()), strict=True))
