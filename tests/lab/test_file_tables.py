# SPDX-License-Identifier: LGPL-2.1-or-later
"""Threads with a file table of their own, processes that share memory and files, and a failed
request, on a real kernel.
"""

from __future__ import annotations

import errno
from typing import Any

import pytest

from tests.lab.guest import Guest
from tests.lab.kcovdbg_run import ask, run_kcovdbg


@pytest.fixture(scope="module")
def told(guest: Guest) -> dict[str, dict[str, Any]]:
    return {
        name: guest.make(f"puzzle {name}", f"kc-{name}")
        for name in ("unshared", "sharing", "vfork", "refused")
    }


def header(guest: Guest, name: str) -> str:
    """Return the line that names a buffer's object."""
    done = run_kcovdbg(*guest.target(), "buffer", name)
    return done.stdout.partition("\n")[0] if done.returncode == 0 else ""


def holders(row: dict[str, Any], kind: str) -> set[tuple[int, int | None]]:
    return {
        (reference["pid"], reference["fd"])
        for reference in row["references"]
        if reference["kind"] == kind
    }


def test_a_descriptor_belongs_to_a_table(guest: Guest, told: dict[str, dict[str, Any]]) -> None:
    line = told["unshared"]
    pid, tid, (fd,) = line["pid"], line["other_tid"], line["fds"]
    assert line["other_fd"] == fd
    objects, of_thread = ask(guest.target(), "objects", f"objects {tid}")
    by_size = {row["size"]: row for row in objects}
    own, threads = by_size[line["size"]], by_size[line["other_size"]]
    assert (holders(own, "fd"), holders(threads, "fd")) == ({(pid, fd)}, {(tid, fd)})
    assert own["kcov"] in header(guest, f"fd:{pid}/{fd}")
    assert threads["kcov"] in header(guest, f"fd:{tid}/{fd}")
    assert [row["kcov"] for row in of_thread] == [threads["kcov"]]


@pytest.mark.parametrize("name", ["sharing", "vfork"])
def test_processes_that_share(guest: Guest, told: dict[str, dict[str, Any]], name: str) -> None:
    line = told[name]
    pid, other, (fd,) = line["pid"], line["other_tid"], line["fds"]
    commands = ("objects", f"objects {other}", f"why {other}", f"why {pid}")
    objects, of_other, *reasons = ask(guest.target(), *commands)
    (row,) = [row for row in objects if row["size"] == line["size"]]
    assert holders(row, "fd") == {(pid, fd), (other, fd)}
    assert holders(row, "vma") == {(pid, None), (other, None)}
    assert row["refcount"] == row["counted"] == line["refcount"]
    assert [row["kcov"]] == [found["kcov"] for found in of_other]
    assert [{answer["code"] for answer in answers} for answers in reasons] == [
        {"never-enabled"}
    ] * 2


def test_a_failed_request_is_named(guest: Guest, told: dict[str, dict[str, Any]]) -> None:
    line = told["refused"]
    assert line["errno"] == errno.EEXIST
    objects, reasons = ask(guest.target(), "objects", f"why {line['pid']}")
    (row,) = [row for row in objects if row["size"] == line["size"]]
    # This is all that the kernel leaves of it.
    assert (row["mode"], row["sequence"], row["count"]) == ("INIT", 2, 0)
    answers = {answer["code"]: answer for answer in reasons}
    assert answers.keys() == {"not-enabled-now", "remote-enable-failed"}
    assert "common:0x4201" in answers["remote-enable-failed"]["answer"]
