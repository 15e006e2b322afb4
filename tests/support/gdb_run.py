# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs GDB with kcov-show, and returns its output."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pexpect
from typing_extensions import Self

ROOT = Path(__file__).resolve().parents[2]
LOADER = ROOT / "gdb" / "kcov.py"
# Of the package gdb-for-pwndbg, for x86-64 and arm64.
NEWEST_GDB = Path(sysconfig.get_path("scripts")) / "gdb"
_MARK = "=== answer ==="
# Without the user's settings, and with kcov-show.
PLAIN = ("-nx", "-iex", "set auto-load no", "-iex", "set debuginfod enabled off")
START = (*PLAIN, "-iex", f"source {LOADER}")
# What readline tells the terminal before it reads a line tells the prompt from its own mention.
PROMPT = "\x1b[?2004h(gdb) "


@dataclasses.dataclass(frozen=True)
class Said:
    """The output of each command, and everything on standard error."""

    answers: list[str]
    stderr: str
    status: int
    output: str = ""

    @property
    def text(self) -> str:
        return "\n".join(self.answers)

    def json(self, index: int = -1) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self.answers[index])
        return rows


class Session:
    """GDB at a prompt, on a terminal."""

    def __init__(self, *arguments: object) -> None:
        self.child: pexpect.spawn[str] = pexpect.spawn(
            "gdb",
            [*START, "-q", *map(str, arguments)],
            dimensions=(100, 200),
            env={
                "TERM": "xterm-256color",
                "PATH": os.environ["PATH"],
                "HOME": os.environ["HOME"],
                "LC_ALL": "C.UTF-8",
            },
            timeout=300,
            encoding="utf-8",
            codec_errors="replace",
        )
        self.child.expect_exact(PROMPT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # With its own patience pexpect gives up on a busy machine.
        self.child.kill(signal.SIGKILL)
        self.child.wait()
        self.child.close()

    def ask(self, line: str) -> str:
        """Return the output between a line and the next prompt."""
        self.child.sendline(line)
        self.child.expect_exact(PROMPT)
        assert isinstance(self.child.before, str)
        return self.child.before.partition("\n")[2].removeprefix("\x1b[?2004l\r")


def have_gdb() -> bool:
    return shutil.which("gdb") is not None


def run_gdb(
    *arguments: object,
    ask: list[str],
    before: list[str] | None = None,
    loader: Path = LOADER,
    environment: dict[str, str] | None = None,
    timeout: float = 300,
    program: str = "gdb",
    directory: Path | None = None,
) -> Said:
    """Start GDB without the user's settings, and run commands in it.

    :param arguments: the program, a core.
    :param program: one for other architectures, for instance.
    :param directory: the working directory; None for this process's.
    :param before: commands whose output doesn't matter.
    :param ask: commands; each has its own answer.
    """
    command = [program, *PLAIN, "-iex", f"source {loader}", "-batch", *map(str, arguments)]
    for line in before or []:
        command += ["-ex", line]
    for line in ask:
        command += ["-ex", f"echo {_MARK}\\n", "-ex", line]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="backslashreplace",
        timeout=timeout,
        check=False,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "LC_ALL": "C.UTF-8", **(environment or {})},
    )
    answers = [answer.strip("\n") for answer in done.stdout.split(f"{_MARK}\n")[1:]]
    if answers:
        # GDB prints this when it detaches from a target.
        answers[-1] = "\n".join(
            line for line in answers[-1].splitlines() if not line.startswith("[Inferior 1")
        )
    return Said(answers, done.stderr, done.returncode, done.stdout)
