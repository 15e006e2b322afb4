# SPDX-License-Identifier: LGPL-2.1-or-later
"""Threads with a file table of their own, processes that share memory and files, and a failed request, on a real kernel."""

from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.lab.guest import Guest, Machine
from tests.lab.kcovdbg_run import run_kcovdbg, symbol_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.initramfs import Userland
    from tests.lab.kernel import Kernel

pytestmark = pytest.mark.lab

_PUZZLES = ("unshared", "sharing", "vfork", "refused")


@pytest.fixture(scope="module")
def guest(kernel: Kernel, userland: Userland) -> Iterator[Guest]:
    with Guest(kernel, userland, Machine(cpus=1)) as guest:
        guest.wait_done()
        for name in _PUZZLES:
            guest.ask(f"puzzle {name}")
        yield guest


@pytest.fixture(scope="module")
def told(guest: Guest) -> dict[str, dict[str, Any]]:
    states = {line["state"]: line for line in guest.truth.lines() if line.get("state")}
    found = {name: states[f"kc-{name}"] for name in _PUZZLES}
    assert not [line for line in found.values() if "missing" in line]
    return found


def ask(guest: Guest, command: str) -> Any:
    symbols = symbol_options(guest.kernel, guest.userland)
    done = run_kcovdbg("--qemu", guest.sockets.debugger_qmp, *symbols, "-e", f"{command} --json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def header(guest: Guest, name: str) -> str:
    """Return the line that names a buffer's object."""
    done = run_kcovdbg("--qemu", guest.sockets.debugger_qmp, *symbol_options(guest.kernel, guest.userland), "buffer", name)
    return done.stdout.partition("\n")[0] if done.returncode == 0 else ""


def holders(row: dict[str, Any], kind: str) -> set[tuple[int, int | None]]:
    return {(reference["pid"], reference["fd"]) for reference in row["references"] if reference["kind"] == kind}


def test_a_descriptor_belongs_to_a_table(guest: Guest, told: dict[str, dict[str, Any]]) -> None:
    line = told["unshared"]
    pid, tid, (fd,) = line["pid"], line["other_tid"], line["fds"]
    assert line["other_fd"] == fd
    by_size = {row["size"]: row for row in ask(guest, "objects")}
    own, threads = by_size[line["size"]], by_size[line["other_size"]]
    assert (holders(own, "fd"), holders(threads, "fd")) == ({(pid, fd)}, {(tid, fd)})
    assert own["kcov"] in header(guest, f"fd:{pid}/{fd}")
    assert threads["kcov"] in header(guest, f"fd:{tid}/{fd}")
    assert [row["kcov"] for row in ask(guest, f"objects {tid}")] == [threads["kcov"]]


@pytest.mark.parametrize("name", ["sharing", "vfork"])
def test_processes_that_share(guest: Guest, told: dict[str, dict[str, Any]], name: str) -> None:
    line = told[name]
    pid, other, (fd,) = line["pid"], line["other_tid"], line["fds"]
    (row,) = [row for row in ask(guest, "objects") if row["size"] == line["size"]]
    assert holders(row, "fd") == {(pid, fd), (other, fd)}
    assert holders(row, "vma") == {(pid, None), (other, None)}
    assert row["refcount"] == row["counted"] == line["refcount"]
    assert [row["kcov"]] == [found["kcov"] for found in ask(guest, f"objects {other}")]
    codes = {answer["code"] for answer in ask(guest, f"why {other}")}
    assert codes == {answer["code"] for answer in ask(guest, f"why {pid}")} == {"never-enabled"}


def test_a_failed_request_is_named(guest: Guest, told: dict[str, dict[str, Any]]) -> None:
    line = told["refused"]
    assert line["errno"] == errno.EEXIST
    (row,) = [row for row in ask(guest, "objects") if row["size"] == line["size"]]
    # This is all that the kernel leaves of it.
    assert (row["mode"], row["sequence"], row["count"]) == ("INIT", 2, 0)
    answers = {answer["code"]: answer for answer in ask(guest, f"why {line['pid']}")}
    assert answers.keys() == {"not-enabled-now", "remote-enable-failed"}
    assert "common:0x4201" in answers["remote-enable-failed"]["answer"]
