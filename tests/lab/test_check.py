# SPDX-License-Identifier: LGPL-2.1-or-later
"""`check` has nothing to say of healthy kernels, and finds damage on real ones."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.lab.asking import run_kcovdbg, symbol_options
from tests.lab.guest import Machine
from tests.lab.situation import SITUATIONS

if TYPE_CHECKING:
    from tests.lab.conftest import Booter, DumpMaker, StateDumpMaker
    from tests.lab.guest import Guest

pytestmark = pytest.mark.lab

STORM_SECONDS = int(os.environ.get("KCOVDBG_STORM_SECONDS", "40"))
STORM_LOOKS = max(4, STORM_SECONDS // 4)


@pytest.mark.parametrize("name", SITUATIONS)
def test_healthy_dumps(inflight_dump: StateDumpMaker, name: str) -> None:
    dump = inflight_dump(name)
    symbols = symbol_options(dump.kernel, dump.userland)
    done = run_kcovdbg("-c", dump.path, *symbols, "check", "--json")
    assert json.loads(done.stdout) == []
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("how", ["--qemu", "--gdb-remote"])
def test_healthy_guest(standing_guest: Guest, how: str) -> None:
    socket = standing_guest.sockets.debugger_qmp if how == "--qemu" else standing_guest.sockets.gdb_remote
    symbols = symbol_options(standing_guest.kernel, standing_guest.userland)
    done = run_kcovdbg(how, socket, *symbols, "check", "--json")
    assert json.loads(done.stdout) == []
    assert done.returncode == 0, done.stderr


def test_last_ends_in_the_faulting_function(crash_dump: DumpMaker) -> None:
    """The panic's own output went into the buffer, too: tens of thousands of records."""
    dump = crash_dump()
    symbols = symbol_options(dump.kernel, dump.userland)
    done = run_kcovdbg("-c", dump.path, *symbols, "last", "--json", "-n", "2000")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert {row["comm"] for row in rows} == {"kc-crash"}
    assert rows[-1]["symbol"] == "sysrq_handle_crash"
    assert rows[-1]["stack"] is not None
    met = {row["symbol"]: row["index"] for row in rows if row["stack"] is not None}
    path = ["ksys_write", "vfs_write", "proc_reg_write", "write_sysrq_trigger", "__handle_sysrq", "sysrq_handle_crash"]
    assert [name for name in path if name in met] == path
    assert [met[name] for name in path] == sorted(met[name] for name in path)
    text = run_kcovdbg("-c", dump.path, *symbols, "last").stdout
    assert "it crashed in sysrq_handle_crash()" in text
    report = run_kcovdbg("-c", dump.path, *symbols, "last", "--all")
    assert report.returncode == 0
    assert "FULL, so that this is not the last" in report.stdout
    assert report.stdout.count("\n  stack\n") >= 20


def test_no_false_alarm_in_a_storm(boot: Booter) -> None:
    """Many threads open, enable, disable and exit at random while the kernel is read; what disagrees is gone a moment later."""
    guest = boot(Machine(cpus=2))
    guest.wait_done()
    guest.send(f"storm {STORM_SECONDS}")
    guest.wait_truth(lambda line: line.get("state") == "storm" and line.get("running") is True)
    symbols = symbol_options(guest.kernel, guest.userland)
    words = [word for _ in range(STORM_LOOKS) for word in ("-e", "check --json")]
    done = run_kcovdbg("--qemu", guest.sockets.debugger_qmp, *symbols, *words, timeout=600)
    found = []
    decoder, text = json.JSONDecoder(), done.stdout
    while text := text.lstrip():
        rows, end = decoder.raw_decode(text)
        found += [row for row in rows if row["severity"] in ("error", "warning")]
        text = text[end:]
    assert found == []
    assert done.returncode == 0, done.stderr
    assert guest.alive


def test_damage_on_a_running_guest(boot: Booter) -> None:
    """User space overwrites a count; a reference is leaked and a list looped by writing the guest's memory."""
    guest = boot(Machine(cpus=1))
    guest.wait_done()
    symbols = symbol_options(guest.kernel, guest.userland)

    def ask(command: str) -> tuple[int, list[dict[str, Any]]]:
        done = run_kcovdbg("--qemu", guest.sockets.debugger_qmp, *symbols, "-e", f"{command} --json")
        return done.returncode, json.loads(done.stdout)

    assert ask("check") == (0, [])
    (bogus,) = [line for line in guest.ask("bogus") if line.get("state") == "kc-bogus"]
    status, rows = ask("check")
    assert (status, [row["rule"] for row in rows]) == (1, ["B1"])
    assert rows[0]["certainty"] == "likely"
    assert bogus["tid"]
    guest.ask("stop")
    _, objects = ask("objects")
    kcov = next(row for row in objects if row["mode"] == "INIT" and row["refcount"] == 1)
    _, areas = ask("areas")
    area = next(row["area"] for row in areas if row["list"] == "task" and row["state"] == "cached")
    with guest.paused():
        write(guest, int(kcov["kcov"], 16), (2).to_bytes(4, "little"))
        status, rows = ask("check")
        assert (status, [row["rule"] for row in rows]) == (1, ["K1"])
        assert rows[0]["object"] == f"kcov {kcov['kcov']}"
        assert "1 is leaked" in rows[0]["message"]
        write(guest, int(kcov["kcov"], 16), (1).to_bytes(4, "little"))
        before = read(guest, int(area, 16), 8)
        write(guest, int(area, 16), int(area, 16).to_bytes(8, "little"))
        status, rows = ask("check")
        assert status == 1
        assert "A1" in {row["rule"] for row in rows} <= {"A1", "X2"}
        write(guest, int(area, 16), before)
        assert ask("check") == (0, [])


def read(guest: Guest, address: int, size: int) -> bytes:
    with guest.gdb() as stub:
        data = stub.read(address, size)
        stub.leave_stopped()
        return data


def write(guest: Guest, address: int, data: bytes) -> None:
    with guest.gdb() as stub:
        stub._expect_ok(f"M{address:x},{len(data):x}:{data.hex()}".encode())
        stub.leave_stopped()
