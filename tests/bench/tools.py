# SPDX-License-Identifier: LGPL-2.1-or-later
"""Calls of tools on a warm server, against the same commands as processes.

python -m tests.bench.tools [--rounds N] [--demo]

Each call runs its command again, on a target that is open.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from mcp import Client
from mcp.client.stdio import StdioServerParameters

from tests.bench.measure import at_most, show
from tests.lab import kernel as kernels
from tests.lab.initramfs import make_userland
from tests.lab.kcovdbg_run import ROOT
from tests.lab.recipe import RECIPES
from tests.lab.situation import STANDING, dump_of

SHARE: Final = 0.1
"""Of the time of a process, that a call may take."""
CALLS: Final[Sequence[tuple[str, dict[str, Any]]]] = (
    *(
        (name, {})
        for name in ("info", "tasks", "objects", "remote", "areas", "saved", "last", "check")
    ),
    *((name, {"what": "kc-full"}) for name in ("buffer", "trace", "top", "source")),
    ("diff", {"what": ["kc-full", "kc-pc"]}),
    ("points", {"place": "vfs_read"}),
    ("sym", {"pcs": ["ffffffff81000000"]}),
    ("why", {"subject": "kc-full"}),
)
"""Tools and what they are given; a command takes the same words."""


def find_target(*, demo: bool) -> list[str]:
    if demo:
        return ["--demo"]
    kernel = kernels.build(RECIPES["default"])
    dump = dump_of(kernel, make_userland(kernel), STANDING)
    return ["-c", str(dump.path), "-s", str(kernel.vmlinux)]


async def measure(target: Sequence[str], rounds: int) -> int:
    # An installed package has its modules compiled.
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    program = ["-m", "kcovdbg", *target]
    server = StdioServerParameters(
        command=sys.executable, args=[*program, "mcp"], cwd=ROOT, env=environment
    )
    status = 0
    async with Client(server) as client:
        for name, given in CALLS:
            words = [
                word
                for value in given.values()
                for word in (value if isinstance(value, list) else [value])
            ]
            line = " ".join((name, *words))
            processes: list[float] = []
            calls: list[float] = []
            for _ in range(rounds + 1):
                processes.append(run(program, line, environment))
                calls.append(await call(client, name, given))
            # The first round warms up.
            status |= show([at_most(line, min(calls[1:]), min(processes[1:]), "process", SHARE)])
    return status


def run(program: Sequence[str], line: str, environment: dict[str, str]) -> float:
    started = time.perf_counter()
    words = [sys.executable, *program, *line.split(), "--json"]
    done = subprocess.run(words, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=False)
    assert done.returncode in (0, 1), line
    return time.perf_counter() - started


async def call(client: Client, name: str, given: dict[str, Any]) -> float:
    started = time.perf_counter()
    answer = await client.call_tool(name, given)
    assert not answer.is_error, answer.content
    return time.perf_counter() - started


def main() -> int:
    """Print each pair; status 1 when a call takes longer than it may."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.tools")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--demo", action="store_true", help="measure on the demo instead of the lab's dump"
    )
    options = parser.parse_args()
    return asyncio.run(measure(find_target(demo=options.demo), options.rounds))


if __name__ == "__main__":
    sys.exit(main())
