# SPDX-License-Identifier: LGPL-2.1-or-later
"""The server for programs on a running guest, on one that ends, and without one."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import mcp
from mcp.client.stdio import StdioServerParameters

from kcovdbg.frontends.mcp.tools import TOOLS
from tests.lab.kcovdbg_run import ROOT, ask
from tests.lab.situation import STANDING, machine_for
from tests.support.escaped_rows import escape_all

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lab.conftest import Booter

# Registers and the guest's time change; what its tasks wait for does not.
STILL = ("objects", "remote", "areas", "saved")


def test_a_guest_from_its_life_to_its_end(boot: Booter, tmp_path: Path) -> None:
    guest = boot(machine_for(STANDING))
    answers = dict(zip(STILL, ask(guest.target(), *STILL), strict=True))
    environment = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("XDG_", "PYTHON", "TMPDIR"))
    }
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "kcovdbg", *guest.target(), "mcp", "-o", str(tmp_path)],
        cwd=ROOT,
        env=environment,
    )

    async def live(client: Any) -> None:
        (info,) = (await client.call_tool("info", {})).structured_content["rows"]
        assert info["live"] is True
        for name, rows in answers.items():
            assert (await client.call_tool(name, {})).structured_content["rows"] == escape_all(rows)
        tasks = (await client.call_tool("tasks", {})).structured_content["rows"]
        (full,) = (row["pid"] for row in tasks if row["comm"] == "kc-full")
        (why,) = (await client.call_tool("why", {"subject": full})).structured_content["rows"]
        assert why["code"] == "buffer-full"
        first = (await client.call_tool("buffer", {"what": full, "limit": 5})).structured_content
        second = (
            await client.call_tool("buffer", {"what": full, "limit": 5, "next": first["next"]})
        ).structured_content
        assert [row["index"] for row in first["rows"] + second["rows"]] == list(range(10))
        made = await client.call_tool("slice", {"output": "guest.zst"})
        assert made.structured_content["rows"][0]["consistent"] is True
        assert guest.qmp.running()

    async def dead(client: Any) -> None:
        given: dict[str, dict[str, Any]] = {
            **{name: {"what": 1} for name in ("buffer", "trace", "top", "source")},
            "diff": {"what": [1, 2]},
            "points": {"place": "vfs_read"},
            "patch": {"change": "--- a\n+++ a\n@@ -0,0 +1 @@\n+a\n", "what": [1]},
            "sym": {"pcs": ["ffffffff81000000"]},
            "why": {"subject": 1},
        }
        for name in TOOLS:
            answer = await client.call_tool(name, given.get(name, {}))
            # The description of the target stays available.
            assert answer.is_error is (name != "info"), name
        assert (await client.call_tool("slice", {"output": "dead.zst"})).is_error
        assert len((await client.list_tools()).tools) == len(TOOLS) + 1
        (rule,) = (await client.call_tool("check", {"explain": "T4"})).structured_content["rows"]
        assert rule["rule"] == "T4"

    async def run() -> None:
        async with mcp.Client(server) as client:
            await live(client)
            os.kill(guest.pid, signal.SIGKILL)
            while guest.alive():
                await asyncio.sleep(0.01)
            await dead(client)
        async with mcp.Client(server) as client:
            for _ in range(2):
                answer = await client.call_tool("tasks", {})
                assert answer.is_error
                assert "Traceback" not in answer.content[0].text

    asyncio.run(run())
    assert [path.name for path in tmp_path.iterdir()] == ["guest.zst"]
