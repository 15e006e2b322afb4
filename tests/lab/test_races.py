# SPDX-License-Identifier: LGPL-2.1-or-later
"""Inconsistent state of a running kernel is read again: it is then consistent, still changing, or violated.

The guest runs, and between two reads its memory is changed through the GDB stub, as its own tasks would change it: so
met is the same each time.
"""

from __future__ import annotations

import functools
import io
import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest

from kcovdbg.check.runner import check
from kcovdbg.commands import COMMANDS
from kcovdbg.console.context import Workspace
from kcovdbg.console.kernel import Kernel
from kcovdbg.console.runner import run_line
from kcovdbg.console.terminal import Color, Painter, Terminal
from kcovdbg.target.opener import TargetOptions, open_target
from tests.lab.guest import Machine

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.lab.conftest import Booter
    from tests.lab.guest import Guest

pytestmark = pytest.mark.lab


class Asker:
    """Runs commands on a running guest, and changes its memory while `check` waits before reading again."""

    def __init__(self, guest: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
        symbols = guest.target()[3::2]
        self._target = open_target(TargetOptions(qemu=str(guest.sockets.debugger_qmp), symbols=symbols))
        assert self._target.live
        self._workspace = Workspace(COMMANDS, Kernel(lambda: self._target))
        self._meanwhile: Callable[[], None] = lambda: None
        self.pauses = 0
        monkeypatch.setattr("kcovdbg.check.command.check", functools.partial(check, pause=self._pause))

    def close(self) -> None:
        self._target.close()

    def _pause(self, _seconds: float) -> None:
        self.pauses += 1
        self._meanwhile()

    def ask(self, line: str, meanwhile: Callable[[], None] = lambda: None) -> tuple[int, list[dict[str, Any]], str]:
        self._meanwhile, self.pauses = meanwhile, 0
        out, err = io.StringIO(), io.StringIO()
        status = run_line(self._workspace, f"{line} --json", Terminal(out, err, 120, Painter(), Painter(), Color.NEVER))
        return status, json.loads(out.getvalue()), err.getvalue()


def write(guest: Guest, address: int, data: bytes) -> None:
    """Change memory and let the guest go on."""
    with guest.gdb() as stub:
        stub._expect_ok(f"M{address:x},{len(data):x}:{data.hex()}".encode())


def test_racing(boot: Booter, monkeypatch: pytest.MonkeyPatch) -> None:
    guest = boot(Machine(cpus=1))
    guest.wait_done()
    asker = Asker(guest, monkeypatch)
    try:
        assert asker.ask("check")[:2] == (0, [])
        assert asker.pauses == 0
        # The guest itself never changes this object.
        row = next(row for row in asker.ask("objects")[1] if (row["mode"], row["refcount"]) == ("INIT", 1))
        kcov = int(row["kcov"], 16)

        def refer(times: int) -> None:
            write(guest, kcov, times.to_bytes(4, "little"))

        # A reference that is taken but not linked yet at the first read, and dropped before the second one.
        refer(2)
        status, rows, said = asker.ask("check", lambda: refer(1))
        assert (status, rows) == (0, [])
        # The transient inconsistency is reported.
        assert "note: 1 " in said
        assert asker.pauses == 1

        # It keeps changing: each read finds another value.
        numbers = itertools.count(3)
        refer(2)
        status, rows, said = asker.ask("check", lambda: refer(next(numbers)))
        assert (status, [(row["rule"], row["severity"], row["object"]) for row in rows]) == (
            0,
            [("K1", "racing", f"kcov {kcov:#x}")],
        )
        assert rows[0]["reason"]
        assert rows[0]["causes"] == []
        # Reading again is bounded.
        assert asker.pauses == 4

        # A value that changed once and then stays has been seen to change.
        refer(2)
        status, rows, _ = asker.ask("check", lambda: refer(3))
        assert (status, [row["severity"] for row in rows]) == (0, ["racing"])

        # It stays: this is no race.
        status, rows, _ = asker.ask("check")
        assert (status, [(row["rule"], row["severity"], row["certainty"]) for row in rows]) == (1, [("K1", "error", "certain")])
        assert asker.pauses == 4
        refer(1)
        assert asker.ask("check")[:2] == (0, [])
        assert guest.qmp.running()
    finally:
        asker.close()
