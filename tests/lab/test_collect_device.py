# SPDX-License-Identifier: LGPL-2.1-or-later
"""Collecting with the device of kcov_dataflow in its guest, compared with what functions and their
caller say of each call.

The kernel is built by hand: python -m tests.lab build --recipe dataflow.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from kcovdbg.monitor.samples import TaskSample, read_samples
from tests.lab.collect_guest import SHARED, Lab, boot_packed
from tests.lab.conftest import built
from tests.lab.contents import account_of, calls_said, decode_dataflow, plain_function
from tests.lab.kcovdbg_run import ROOT

# As in values.c.
ROUNDS = 40
SIZE = 4096
PAUSE_US = 200_000
TERMINATED = 128 + signal.SIGTERM


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with boot("dataflow", tmp_path_factory.mktemp("exchange")) as lab:
        yield lab


def boot(name: str, exchange: Path) -> AbstractContextManager[Lab]:
    # The functions speak with pr_info().
    return boot_packed(*built(name), exchange, cpus=2, append="kcovlab.mode=none loglevel=7")


def calls_of_program(text: str) -> dict[int, list[list[Any]]]:
    """Return what each thread says that it passed: function, arguments, result; None for a result
    without a record.
    """
    found: dict[int, list[list[Any]]] = defaultdict(list)
    for line in text.splitlines():
        tid, which, who, result = map(int, line.split())
        found[tid].append(["getpriority", [which, who], None if result < 0 else result])
    return found


def fetch_trace(lab: Lab, name: str) -> list[tuple[str, str, int | None, list[str | None]]]:
    """Return a trace's records as the posting describes them, each with its function."""
    lab.fetch(name, f"{name}.json")
    words = array("Q", (lab.exchange / name).read_bytes())
    assert words[0] == len(words) - 1
    rows = decode_dataflow(words[1:])
    buffer = lab.trace(name)
    assert (buffer.count, len(buffer.words), buffer.full, buffer.mode) == (
        len(rows),
        words[0],
        False,
        "DATAFLOW",
    )
    functions = (plain_function(lab.function(int(row["pc"], 16))) for row in rows)
    return [
        (name, row["kind"], row["argument"], row["values"])
        for name, row in zip(functions, rows, strict=True)
    ]


def test_threads_and_children(lab: Lab) -> None:
    told = len(lab.guest.console())
    done = lab.collect(
        f"--mode dataflow --per-thread --buffer-size 4096 -o {SHARED}/d.kcov --json -- "
        f"{SHARED}/values {SHARED}/account",
        900,
    )
    files = {row["tid"]: row["file"].rpartition("/")[2] for row in json.loads(done.stdout)}
    lab.fetch("account")
    passed = calls_of_program((lab.exchange / "account").read_text())
    said: dict[int, list[Any]] = defaultdict(list)
    for tid, call in calls_said(lab.guest.console()[told:]):
        said[tid].append(call)
    assert [len(calls) for calls in passed.values()] == [ROUNDS] * 3
    assert set(files) == set(passed) == set(said)
    for tid, name in files.items():
        records = fetch_trace(lab, name)
        assert records == account_of(said[tid])
        # Libraries ask for limits before and after.
        assert [one for one in records if one[0] == "getpriority"] == account_of(passed[tid])
    lab.assert_nothing_is_left()


@pytest.mark.parametrize("is_inside", [False, True], ids=["outside", "inside"])
def test_monitor(lab: Lab, is_inside: bool) -> None:
    """Each task's words, as the traces have them in the end, and as many tasks and objects as there
    were.
    """
    collect = f"--mode dataflow --per-thread --buffer-size {SIZE} -o {SHARED}/m.kcov --json -- "
    collect += f"{SHARED}/values {SHARED}/account {PAUSE_US}"
    record = ("--interval", "0.2", "--cpu", "100", "--record")
    path = lab.exchange / "run.jsonl"
    if is_inside:
        looks = lab.kcovdbg(" ".join(("monitor", *record, f"{SHARED}/run.jsonl")))
        # The recording has another name until it is complete.
        begun = (
            f"{looks} >{SHARED}/monitor 2>&1 & until ls -A {SHARED} | grep -q kcovdbg-; do sleep "
            f"1; done"
        )
        done = lab.run(
            f"{begun}; {lab.kcovdbg(f'collect {collect}')} || exit; kill $!; wait $!; [ $? = "
            f"{TERMINATED} ]",
            900,
        )
        lab.fetch("run.jsonl")
    else:
        words = [sys.executable, "-m", "kcovdbg", *lab.target]
        with subprocess.Popen(
            [*words, "monitor", *record, path], cwd=ROOT, stdout=subprocess.DEVNULL
        ) as watching:
            done = lab.collect(collect, 900)
            watching.terminate()
            assert watching.wait(120) == TERMINATED
    files = {row["tid"]: row["file"].rpartition("/")[2] for row in json.loads(done.stdout)}
    lab.fetch("account")
    assert len(files) == 3
    assert set(files) == set(calls_of_program((lab.exchange / "account").read_text()))
    samples = list(read_samples(str(path)))
    seen: dict[int | None, list[TaskSample]] = defaultdict(list)
    for task in (task for sample in samples for task in sample.tasks if task.device is not None):
        seen[task.pid].append(task)
    assert set(seen) == set(files)
    for tid, name in files.items():
        assert {task.kcov_size for task in seen[tid]} == {SIZE}
        counts = [task.count for task in seen[tid] if task.count is not None]
        assert counts == sorted(counts)
        assert len(set(counts)) > 5
        lab.fetch(name)
        assert counts[-1] == array("Q", (lab.exchange / name).read_bytes())[0]
    objects = {
        found.kcov
        for sample in samples
        for found in sample.objects or ()
        if found.device is not None
    }
    expected = {task.kcov for tasks in seen.values() for task in tasks}
    assert len(expected) == 3
    # In a guest that is emulated, a look at all objects takes nearly as long as the program.
    assert objects <= expected if is_inside else objects == expected
    lab.assert_nothing_is_left()


def test_grows_until_all_fits(lab: Lab) -> None:
    told = len(lab.guest.console())
    done = lab.collect(
        f"--mode dataflow --buffer-size 512 --grow --json -- {SHARED}/values {SHARED}/account", 900
    )
    lab.fetch("account")
    passed = calls_of_program((lab.exchange / "account").read_text())
    expected = Counter(
        (kind, argument, tuple(values))
        for calls in passed.values()
        for _, kind, argument, values in account_of(calls)
    )
    rows = [row for row in json.loads(done.stdout) if "getpriority" in row["symbol"]]
    assert Counter((row["kind"], row["argument"], tuple(row["values"])) for row in rows) == expected
    # It ran more than once, with three tasks each time.
    assert len({tid for tid, _ in calls_said(lab.guest.console()[told:])}) > 3


def test_remote_sections_of_one_handle(lab: Lab) -> None:
    bus = lab.guest.make("traffic usb plug", "kc-plugging")["bus"]
    told = len(lab.guest.console())
    done = lab.collect(
        f"--mode dataflow --remote usb:{bus} -o {SHARED}/r.kcov --json -- sleep 3", 900
    )
    lab.guest.ask("stop", 300)
    (name,) = {
        row["file"].rpartition("/")[2] for row in json.loads(done.stdout) if "remote" in row["file"]
    }
    records = fetch_trace(lab, name)
    # The command's own tasks ask for limits, no section does.
    said = [
        call for _, call in calls_said(lab.guest.console()[told:]) if call[0] == "usb_control_msg"
    ]
    print(f"{len(records)} records in the trace, {len(said)} calls in the kernel's log")
    assert len(records) > 10
    # The log goes on after the collector's end, with what it did not wait for.
    assert records == account_of(said)[: len(records)]
    lab.assert_nothing_is_left()


def test_doctor(lab: Lab) -> None:
    done = lab.guest.run(lab.kcovdbg("doctor --json"), 600)
    found = {
        row["question"]: row
        for row in json.loads(done.stdout)
        if "kcov_dataflow" in row["question"]
    }
    mode = lab.guest.run("ls -l /sys/kernel/debug/kcov_dataflow", 60).stdout.split()[0]
    opened, enabled = found.values()
    assert (opened["ok"], opened["fix"], mode in opened["answer"]) == (True, None, True)
    # The arguments of getpriority() and what it returned, and a comparison between.
    words = int(re.search(r"(\d+) words", enabled["answer"])[1])  # type: ignore[index]
    assert (enabled["ok"], words) == (True, 4 + 4 + 5 + 4)
    lab.assert_nothing_is_left()


def test_one_handle_only(lab: Lab) -> None:
    lab.collect("--mode dataflow --remote usb:200,usb:201 -- true", 900, status=125)
    lab.assert_nothing_is_left()
