# SPDX-License-Identifier: LGPL-2.1-or-later
"""A device of usbip carries the handle of the task that attached it, and `why` finds it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.lab.guest import Machine
from tests.lab.kcovdbg_run import run_kcovdbg
from tests.lab.usbip import find_modules

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lab.conftest import Booter
    from tests.lab.kernel import Kernel

pytestmark = pytest.mark.lab

ATTACH = """
import fcntl, os, socket, struct, time
kcov = os.open("/sys/kernel/debug/kcov", os.O_RDWR)
fcntl.ioctl(kcov, 0x80086301, 4096)
fcntl.ioctl(kcov, 0x40186366, struct.pack("IIIIQ", 0, 256, 0, 0, 0x5201))
near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
with open("/sys/devices/platform/vhci_hcd.0/attach", "w") as attach:
    attach.write(f"2 {near.fileno()} 65537 3")
with open("/tmp/exchange/ready", "w") as ready:
    ready.write(str(os.getpid()))
time.sleep(100000)
"""
SCRIPT = """
set -e
insmod {modules[0]}
insmod {modules[1]}
(setsid python3 /tmp/exchange/attach.py > /tmp/exchange/log 2>&1 &)
for i in $(seq 60); do sleep 0.5; test -e /tmp/exchange/ready && break; done
cat /tmp/exchange/log >&2
cat /tmp/exchange/ready
echo
cat /sys/devices/platform/vhci_hcd.0/status
"""


def test_usbip_device(boot: Booter, kernel: Kernel, tmp_path: Path) -> None:
    modules = find_modules(kernel)
    if not modules:
        pytest.skip("the modules aren't built: python -m tests.lab.usbip")
    (tmp_path / "attach.py").write_text(ATTACH)
    guest = boot(Machine(memory_mib=256, shares=(("root", "/"),), exchange=str(tmp_path), append="kcovlab.mode=none"))
    guest.wait_done()
    done = guest.run(SCRIPT.format(modules=modules), timeout=180)
    assert done.returncode == 0, done.stderr
    pid, *status = done.stdout.splitlines()
    # Only port 2 is in use: 4 is VDEV_ST_NULL.
    assert [line.split()[1] for line in status if line.split()[2] not in ("sta", "004")] == ["0002"]
    symbols = [word for path in (kernel.vmlinux, *modules) for word in ("-s", path)]
    words = ("-e", "why common:0x5201 --json", "-e", "why common:0x5202 --json")
    found = run_kcovdbg("--qemu", guest.sockets.debugger_qmp, *symbols, *words)
    assert found.returncode == 0, found.stderr
    decoder = json.JSONDecoder()
    rows, end = decoder.raw_decode(found.stdout)
    answers = {row["answer"]: row["evidence"] for row in rows}
    assert any(f"carried by task {pid} (python3)" in answer for answer in answers)
    assert len(answers["carried by 1 usbip device, port 2 of vhci_hcd.0 (hs)"]) == 1
    assert "usbip" not in found.stdout[end:]
