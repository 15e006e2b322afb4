# SPDX-License-Identifier: LGPL-2.1-or-later
"""kcov-show on the kernel that GDB itself runs on: gdb VMLINUX /proc/kcore in the guest.

GDB takes minutes to start there, under software emulation: with KCOVDBG_LAB_KCORE=1 only.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from tests.integration.gdb.test_same_answers import ask_kcovdbg
from tests.lab.comparison import parse_rows
from tests.lab.guest import Machine
from tests.support.gdb_run import START

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(
        os.environ.get("KCOVDBG_LAB_KCORE") != "1",
        reason="takes minutes: KCOVDBG_LAB_KCORE=1 runs it",
    ),
]


def test_same_as_from_outside(kernel, boot, tmp_path: Path):
    guest = boot(Machine(memory_mib=1024, cpus=2, shares=(("root", "/"),), exchange=str(tmp_path)))
    ask = [
        "print init_task.tasks.next == &init_task.tasks",
        "kcov-show info --json",
        "kcov-show remote --json",
    ]
    words = [
        "gdb",
        *START,
        "-batch",
        str(kernel.vmlinux),
        "/proc/kcore",
        *(word for line in ask for word in ("-ex", line)),
    ]
    done = guest.run(shlex.join(words), 900)
    wrong, _, answers = done.stdout.partition("\n[\n")
    # GDB alone takes the list of tasks from the vmlinux file, where it is empty; or it reads what a
    # kernel that was placed near has at that address.
    assert wrong.endswith(("$1 = 1", "$1 = 0"))
    (info,), remote = parse_rows(f"[\n{answers}")
    assert info["live"] is True
    outside = ask_kcovdbg(
        ["--qemu", guest.sockets.debugger_qmp], kernel.vmlinux, ["info", "remote"]
    )
    assert info["kaslr_offset"] == outside.rows("info")[0]["kaslr_offset"] != "0x0"
    assert remote == outside.rows("remote") != []
