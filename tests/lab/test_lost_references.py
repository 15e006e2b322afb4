# SPDX-License-Identifier: LGPL-2.1-or-later
"""The lost remote references of 5.8 to 6.9, on a kernel with that bug: answers of check about the task, and after its exit."""

from __future__ import annotations

from typing import Any

from tests.lab.conftest import built
from tests.lab.guest import Guest
from tests.lab.kcovdbg_run import ask


def test_found_before_and_after_the_owner_exits() -> None:
    with Guest(*built("saved-per-cpu")) as guest:
        guest.wait_done()

        def check() -> list[dict[str, Any]]:
            return ask(guest.target(), "check", status=None)[0]

        # The bug may have hit an owner of the workload already.
        earlier = check()
        assert all(row["rule"] == "T4" and "lost remote references" in row["cause"] for row in earlier)
        lost = guest.make("lost", "kc-lost")
        (row,) = [row for row in check() if row not in earlier]
        assert row["rule"] == "T4"
        assert f"task {lost['tid']} (kc-lost)" in row["message"]
        guest.ask("stop")
        rows = {row["rule"]: row for row in check() if row not in earlier}
        # Nothing refers to the object any more, but its handle stays registered.
        assert set(rows) == {"K6", "X3"}
        for found in (row, *rows.values()):
            assert "lost remote references" in found["cause"]
