# SPDX-License-Identifier: LGPL-2.1-or-later
"""Guests boot, print their truth, and end with their owner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lab import __main__ as command_line
from tests.lab.errors import LabError
from tests.lab.guest import Guest, Machine, detached_guests, remove_left_over
from tests.lab.process import is_alive
from tests.lab.qmp import Qmp, QmpError

if TYPE_CHECKING:
    from tests.lab.conftest import Booter
    from tests.lab.initramfs import Userland
    from tests.lab.kernel import Kernel

pytestmark = pytest.mark.lab

ROOT = Path(__file__).parents[2]
# Boots a guest, prints where it is, and never ends it.
OWNER = """
import json, sys, time
from pathlib import Path
from tests.lab.guest import Guest
from tests.lab.initramfs import Userland
from tests.lab.kernel import Kernel

guest = Guest(Kernel.at(Path(sys.argv[1])), Userland(Path(sys.argv[2])))
guest.start()
print(json.dumps(guest.describe()), flush=True)
time.sleep(600)
"""


def test_all_states_stand(standing_guest: Guest) -> None:
    done = standing_guest.wait_done()
    assert done["missing"] == 0
    assert done["moved"] == []
    assert done["unsettled"] == []
    assert standing_guest.truth.damaged == []
    kernels = [line for line in standing_guest.truth.lines() if line.get("state") == "kernel"]
    assert kernels[0]["release"] == standing_guest.kernel.release


def test_nothing_is_wrong_in_the_kernel(standing_guest: Guest) -> None:
    console = standing_guest.console()
    assert "Call Trace" not in console
    assert "WARNING" not in console


def test_guest_answers_much_and_little(boot: Booter) -> None:
    guest = boot(Machine(append="kcovlab.mode=none"))
    guest.wait_done()
    # More than QEMU buffers for a client that does not read.
    for _ in range(5):
        assert guest.ask("tasks")[-1] == {"answer": "tasks", "done": True}
    with pytest.raises(LabError, match="unknown command"):
        guest.ask("nonsense")


def test_several_at_once(boot: Booter) -> None:
    guests = [boot(Machine(append="kcovlab.mode=none")) for _ in range(3)]
    for guest in guests:
        guest.wait_done()
    assert len({guest.sockets.gdb_port for guest in guests}) == 3
    # With KASLR, they cannot all be at the same address.
    places = {line["symbols"]["_stext"] for g in guests for line in g.truth.lines() if line.get("state") == "kernel"}
    assert len(places) > 1


def test_debugger_has_a_qmp_of_its_own(standing_guest: Guest) -> None:
    assert standing_guest.qmp.running()
    with Qmp(standing_guest.sockets.debugger_qmp) as debugger:
        assert debugger.running()
        with pytest.raises(QmpError, match="nonsense"):
            debugger.execute("nonsense")


def test_paused(standing_guest: Guest) -> None:
    with standing_guest.paused():
        assert not standing_guest.qmp.running()
    assert standing_guest.qmp.running()


def test_gdb_stub_lets_go(standing_guest: Guest) -> None:
    for _ in range(2):
        with standing_guest.gdb() as stub:
            assert not standing_guest.qmp.running()
            assert stub.registers()["pc"]
        assert standing_guest.qmp.running()


def test_shared_directory_is_offered(boot: Booter, tmp_path: Path) -> None:
    guest = boot(Machine(append="kcovlab.mode=none", shares=(("host", str(tmp_path)),)))
    guest.wait_done()
    assert any(device.get("qdev_id") is not None for bus in guest.qmp.execute("query-pci") for device in bus["devices"])


def test_a_dead_kernel_is_told_at_once(boot: Booter) -> None:
    guest = boot(Machine(append="kcovlab.mode=none rdinit=/none"))
    started = time.monotonic()
    with pytest.raises(LabError, match="kernel died"):
        guest.wait_truth(lambda _: False, timeout=60)
    assert time.monotonic() - started < 50


def test_killed_owner_takes_its_guest_along(kernel: Kernel, userland: Userland) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(kernel.directory), str(userland.directory)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert owner.stdout is not None
        guest = json.loads(owner.stdout.readline())
        assert is_alive(guest["pid"])
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        assert _gone(guest["pid"])
        # Its directory is removed when the next guest starts after the last of QEMU's threads has released the lock.
        deadline = time.monotonic() + 10
        while Path(guest["directory"]).exists() and time.monotonic() < deadline:
            remove_left_over()
            time.sleep(0.05)
        assert not Path(guest["directory"]).exists()
    finally:
        owner.kill()


def test_owner_that_ends_takes_its_guest_along(kernel: Kernel, userland: Userland) -> None:
    program = OWNER.replace("time.sleep(600)", "sys.exit(3)")
    done = subprocess.run(
        [sys.executable, "-c", program, str(kernel.directory), str(userland.directory)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    guest = json.loads(done.stdout)
    assert _gone(guest["pid"])
    assert not Path(guest["directory"]).exists()


def test_detached_guest_lives_until_stopped(kernel: Kernel, userland: Userland) -> None:
    guest = Guest(kernel, userland, Machine(append="kcovlab.mode=none"), detached=True)
    guest.start()
    try:
        again = Guest.attach(guest.sockets.directory)
        assert again.machine == guest.machine
        assert again.kernel == kernel
        again.wait_done()
        assert again.ask("ping")
        assert guest.pid in {running.pid for running in detached_guests()}
        again.stop()
        assert _gone(guest.pid)
        assert not again.sockets.directory.exists()
        with pytest.raises(LabError, match="no guest"):
            Guest.attach(guest.sockets.directory)
    finally:
        guest.stop()


def test_stop_ends_only_what_is_named(standing_guest: Guest, capsys: pytest.CaptureFixture[str]) -> None:
    """`stop` ends neither all guests when none is named, nor one that has an owner."""
    with pytest.raises(SystemExit) as usage:
        command_line.main(["stop"])
    assert usage.value.code == 2
    assert command_line.main(["stop", str(standing_guest.sockets.directory)]) == 1
    assert f"belongs to process {os.getpid()}" in capsys.readouterr().err
    assert standing_guest.pid not in {guest.pid for guest in detached_guests()}
    assert standing_guest.alive()


def _gone(pid: int, timeout: float = 10) -> bool:
    deadline = time.monotonic() + timeout
    while is_alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
