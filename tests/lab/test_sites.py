# SPDX-License-Identifier: LGPL-2.1-or-later
"""`sites` finds the calls that objdump finds, with the functions and lines that addr2line names."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import pytest

from tests.lab.conftest import Booter, DumpMaker
from tests.lab.guest import Guest, Machine
from tests.lab.kcovdbg_run import ask
from tests.lab.kernel import Kernel
from tests.support.programs import addr2line, output_of


def find_calls(kernel: Kernel) -> dict[int, list[tuple[str, int]]]:
    """Return function and line of each frame, innermost first, by the address after each call."""
    tools = kernel.recipe.platform.tools
    text = output_of(f"{tools}objdump", "-d", "--no-show-raw-insn", kernel.vmlinux)
    pattern = r"^ *([0-9a-f]+):\t(?:call|jmp|bl?)\s.*<kcov_remote_start[\w.]*>\n *([0-9a-f]+):"
    calls = [
        (int(address, 16), int(following, 16))
        for address, following in re.findall(pattern, text, re.MULTILINE)
    ]
    places = addr2line(kernel.vmlinux, (address for address, _ in calls), tools)
    return {
        following: [(name, line) for name, _, line in frames]
        for (_, following), frames in zip(calls, places, strict=True)
    }


@pytest.fixture(scope="module")
def calls(kernel: Kernel) -> dict[int, list[tuple[str, int]]]:
    return find_calls(kernel)


def test_sites(calls: dict[int, list[tuple[str, int]]], standing_dump: DumpMaker) -> None:
    assert_sites(calls, standing_dump().target)


def assert_sites(calls: dict[int, list[tuple[str, int]]], target: list[str]) -> None:
    (info,), rows, handles = ask(target, "info", "sites", "remote")
    offset = int(info["kaslr_offset"], 16)
    assert {int(row["address"], 16) - offset for row in rows} == calls.keys()
    assert len(calls) >= 3
    for row in rows:
        frames = calls[int(row["address"], 16) - offset]
        outer = [frame for frame in frames if not frame[0].startswith("kcov_remote_start")]
        assert (row["function"], row["line"]) == outer[0]
        assert (
            row["wrapper"]
            == [name for name, _ in frames if name.startswith("kcov_remote_start")][-1]
        )
    contexts = {row["function"]: (row["subsystem"], row["context"]) for row in rows}
    assert contexts["hub_event"] == ("usb", "task")
    assert contexts["__usb_hcd_giveback_urb"] == ("usb", "softirq")
    # A row for each registered handle of its subsystem, as printed by the guest.
    registered = {(entry["handle"], entry["pid"]) for entry in handles}
    usb = {(row["handle"], row["pid"]) for row in rows if row["function"] == "hub_event"}
    assert usb == {entry for entry in registered if int(entry[0], 16) >> 56 == 1}
    assert all(row["registered"] for row in rows)


class Ring(NamedTuple):
    """A guest whose workload had a worker of io_uring execute a request, which waits for a writer
    of a FIFO.
    """

    guest: Guest
    told: dict[str, Any]
    worker: dict[str, Any]

    def ask(self, command: str) -> list[dict[str, Any]]:
        return ask(self.guest.target(), command)[0]


def start_ring(boot: Booter, command: str) -> Ring:
    guest = boot(Machine(cpus=1))
    told = guest.make(command, "kc-uring")
    tasks = Ring(guest, told, {}).ask("tasks -a")
    (worker,) = [
        row for row in tasks if row["tgid"] == told["pid"] and row["comm"].startswith("iou-wrk-")
    ]
    return Ring(guest, told, worker)


def announces(calls: dict[int, list[tuple[str, int]]]) -> bool:
    """Whether this kernel's workers of io_uring announce handles, as they do from 7.3 on."""
    return any(
        name.startswith(("io_worker_handle_work", "io_sq_thread"))
        for frames in calls.values()
        for name, _ in frames
    )


def test_workers_of_io_uring(calls: dict[int, list[tuple[str, int]]], boot: Booter) -> None:
    """Their work is not recorded where the ring has no handle: on kernels up to 7.2 none ever
    has.
    """
    ring = start_ring(boot, "uring")
    assert ring.worker["role"] == "none"
    answers = {row["code"]: row for row in ring.ask(f"why {ring.worker['pid']}")}
    if announces(calls):
        assert "io-uring-not-announced" not in answers
        assert answers["at-site"]["values"]["function"] == "io_worker_handle_work"
        contexts = {row["function"]: row["context"] for row in ring.ask("sites")}
        assert contexts["io_worker_handle_work"] == contexts["io_sq_thread"] == "task"
        return
    assert "io-uring-not-announced" in answers
    # Before v6.4 it had another name.
    (function,) = {"io_wq_worker", "io_wqe_worker"} & {
        *answers["outside-sites"]["values"]["frames"]
    }
    answers = {row["code"]: row for row in ring.ask(f"why {function}")}
    assert answers["outside-sites"]["values"]["pids"] == [ring.worker["pid"]]


def test_worker_of_io_uring_in_a_section(
    calls: dict[int, list[tuple[str, int]]], boot: Booter
) -> None:
    """A ring has the common handle of the task that set it up, and its worker collects for the
    handle's owner.
    """
    if not announces(calls):
        pytest.skip("nothing in io_uring announces a handle on this kernel")
    ring = start_ring(boot, "uring owner")
    (owned,) = [
        row for row in ring.ask("objects") if row["pid"] == ring.told["tid"] and row["remote"]
    ]
    assert (ring.worker["role"], ring.worker["kcov"]) == ("remote-section", owned["kcov"])
    sections = [ref for ref in owned["references"] if ref["kind"] == "section"]
    assert [(ref["pid"], ref["counts"]) for ref in sections] == [(ring.worker["pid"], 1)]
    assert owned["refcount"] == owned["counted"]
    # Its records are in an area until the section ends.
    assert "io_openat2" in {
        frame["function"]
        for row in ring.ask(f"buffer {ring.worker['pid']}")
        for frame in row["frames"]
    }
    assert ring.ask("check") == []
