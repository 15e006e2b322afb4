# SPDX-License-Identifier: LGPL-2.1-or-later
"""`check` reports nothing on healthy kernels, and finds damage on real ones."""

from __future__ import annotations

import errno
import json
import os
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.lab.guest import Machine
from tests.lab.kcovdbg_run import run_kcovdbg, symbol_options
from tests.lab.observer import is_count_of_pcs
from tests.lab.section import kaslr_offset, read_layout
from tests.lab.situation import OOPSED, SITUATIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    """The panic's own output is in the buffer: tens of thousands of records."""
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
    (count,) = map(int, re.findall(r"^task .*: (\d+) records$", text, re.MULTILINE))
    # The records of the crash handling are counted where the function in which it began is named.
    assert f"sysrq_handle_crash(); {count - rows[-1]['index'] - 1} " in text
    report = run_kcovdbg("-c", dump.path, *symbols, "last", "--all")
    assert report.returncode == 0
    assert_full_ones_are_said(report.stdout, dump.states())
    assert report.stdout.count("\n  stack\n") >= 20


def assert_full_ones_are_said(text: str, states: Mapping[str, Mapping[str, Any]]) -> None:
    """Assert that a warning about a full buffer names each task whose buffer is full."""
    warnings = [line for line in text.splitlines() if "FULL" in line]
    for name in ("kc-full", "kc-over"):
        assert any(f"task {states[name]['tid']} ({name})" in line for line in warnings), warnings


def test_last_of_an_oops(inflight_dump: StateDumpMaker) -> None:
    """A module dereferences NULL three calls deep inside of a write()."""
    dump = inflight_dump(OOPSED)
    (module,) = [path for path in dump.userland.modules if path.stem == "kcovlab_oops"]
    symbols = [*symbol_options(dump.kernel, dump.userland), "-s", str(module)]
    done = run_kcovdbg("-c", dump.path, *symbols, "-e", "last --json -n 400", "-e", "last", "-e", "last --all")
    assert done.returncode == 0, done.stderr
    rows, end = json.JSONDecoder().raw_decode(done.stdout)
    assert {row["comm"] for row in rows} == {"kc-crash"}
    assert rows[-1]["symbol"] == "kcovlab_oops_inner"
    assert rows[-1]["stack"] is not None
    met = {row["symbol"]: row["index"] for row in rows if row["stack"] is not None}
    told = dump.states()["kc-crash"]["expect_functions"]
    path = ["ksys_write", "vfs_write", *told]
    assert told[-1] == "kcovlab_oops_inner"
    assert [name for name in path if name in met] == path
    assert [met[name] for name in path] == sorted(met[name] for name in path)
    text = done.stdout[end:]
    assert "kcovlab_oops_inner()" in text
    # The report on all tasks has the right remark for the crashed one, for full buffers, and for tasks without a buffer.
    assert_full_ones_are_said(text, dump.states())
    assert text.count("\n  stack\n") >= 20


def test_last_of_named_tasks(standing_dump: DumpMaker) -> None:
    dump = standing_dump()
    states = dump.states()
    wanted = {name: str(states[name]["tid"]) for name in ("kc-none", "kc-full", "kc-pc", "kc-usb")}
    symbols = symbol_options(dump.kernel, dump.userland)
    done = run_kcovdbg("-c", dump.path, *symbols, "last", *wanted.values(), "--json")
    assert done.returncode == 0, done.stderr
    notes = done.stderr.splitlines()
    for name in ("kc-none", "kc-usb"):
        assert [line for line in notes if f"task {wanted[name]} ({name}) had no coverage: " in line], done.stderr
    found = json.loads(done.stdout)
    assert {row["comm"]: row["full"] for row in found} == {"kc-full": True, "kc-pc": False}
    assert [line for line in notes if "FULL" in line and f"task {wanted['kc-full']} (kc-full)" in line], done.stderr
    rows = [row for row in found if row["pid"] == int(wanted["kc-pc"])]
    told = states["kc-pc"]
    records = told["records"] if "records" in told else told["tail"]
    assert [row["pc"] for row in rows][-10:] == records[-10:]


@pytest.mark.parametrize("state", ["softirq-over-local", "vhost-section"])
def test_last_of_sections(inflight_dump: StateDumpMaker, state: str) -> None:
    """The last records of a task in a section are the section's; those of the interrupted session are shown as well."""
    dump = inflight_dump(state)
    section = dump.section
    assert section is not None
    done = run_kcovdbg("-c", dump.path, *symbol_options(dump.kernel, dump.userland), "last", str(section["pid"]), "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    buffers = [name.partition(":")[0] for name in dict.fromkeys(row["buffer"] for row in rows)]
    assert buffers == (["saved", "area"] if state == "softirq-over-local" else [str(section["pid"])])
    count = section["buffers"]["kcov_area"]["count"]
    assert [row["index"] for row in rows if not row["buffer"].startswith("saved")][-1] == count - 1


def test_no_false_alarm_in_a_storm(boot: Booter) -> None:
    """Many threads open, enable, disable and exit at random while the kernel is read; no inconsistency lasts.

    They change from PCs to comparisons without resetting the count, which is an inconsistency where many PCs are recorded.
    """
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
        found += [row for row in rows if row["severity"] in ("error", "warning") and not is_count_of_pcs(row)]
        text = text[end:]
    assert found == []
    # 1 says that something was found.
    assert done.returncode in (0, 1), done.stderr
    assert guest.alive()


def test_damage_on_a_running_guest(boot: Booter) -> None:
    """User space overwrites a count; a write to the guest's memory leaks a reference, another one closes a list into a loop."""
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
        values = {value["name"]: value["value"] for value in rows[0]["values"]}
        assert int(values["refcount"]) == int(values["found"]) + 1
        write(guest, int(kcov["kcov"], 16), (1).to_bytes(4, "little"))
        before = read(guest, int(area, 16), 8)
        write(guest, int(area, 16), int(area, 16).to_bytes(8, "little"))
        status, rows = ask("check")
        assert status == 1
        assert "A1" in {row["rule"] for row in rows} <= {"A1", "X2"}
        write(guest, int(area, 16), before)
        assert ask("check") == (0, [])


def test_records_that_user_space_wrote(boot: Booter) -> None:
    """User space writes into the buffer of an enabled task; records of an earlier session are no finding."""
    guest = boot(Machine(cpus=1))
    guest.wait_done()
    symbols = symbol_options(guest.kernel, guest.userland)

    def ask(command: str) -> list[dict[str, Any]]:
        done = run_kcovdbg("--qemu", guest.sockets.debugger_qmp, *symbols, "-e", f"{command} --json")
        assert done.returncode < 2, done.stderr
        rows: list[dict[str, Any]] = json.loads(done.stdout)
        return rows

    (reuse,) = [line for line in guest.ask("reuse") if line.get("state") == "kc-reuse"]
    assert "missing" not in reuse
    assert ask("check B12") == []
    (told,) = [line for line in guest.ask("scribble") if line.get("state") == "kc-scribble"]
    (row,) = ask("check B12")
    values = {value["name"]: value["value"] for value in row["values"]}
    buffer = ask(f"buffer {told['tid']}")
    wrong, absurd = told["scribbled"]
    assert row["severity"] == "warning"
    assert row["message"].startswith("2 of ")
    assert values["records"] == f"{wrong}: {buffer[wrong]['pc']}, {absurd}: {0x4141414141414141:#x}"
    assert values["before"] == f"{wrong - 2}: {buffer[wrong - 2]['pc']}, {wrong - 1}: {buffer[wrong - 1]['pc']}"
    assert values["after"] == f"{wrong + 1}: {buffer[wrong + 1]['pc']}, {wrong + 2}: {buffer[wrong + 2]['pc']}"
    assert int(values["offset"], 16) == 8 * (1 + wrong)
    before = int(told["before"], 16)
    assert f"writable by task {told['pid']} (kc-scribble) at {before + 4096:#x}-{before + 5 * 4096:#x}" in values["mapped"]
    # The kernel may have joined the page with what is mapped before it.
    assert f"-{before + 4096:#x}), directly after it nothing" in values["mapped"]
    guest.ask("stop")
    assert ask("check B12") == []


def test_bugs_on_a_running_guest(boot: Booter) -> None:
    """A module imitates bugs: it leaks a reference, never ends a section, and clears an owner's pointer to its object."""
    guest = boot(Machine(cpus=1))
    guest.wait_done()
    symbols = symbol_options(guest.kernel, guest.userland)

    def ask(*commands: str) -> tuple[int, list[list[dict[str, Any]]]]:
        words = [word for command in commands for word in ("-e", f"{command} --json")]
        done = run_kcovdbg("--qemu", guest.sockets.debugger_qmp, *symbols, *words)
        answers, decoder, text = [], json.JSONDecoder(), done.stdout
        while text := text.lstrip():
            rows, end = decoder.raw_decode(text)
            answers.append(rows)
            text = text[end:]
        return done.returncode, answers

    def puzzle(name: str) -> dict[str, Any]:
        told: dict[str, Any] = next(line for line in guest.ask(f"puzzle {name}") if line.get("state"))
        assert "missing" not in told
        return told

    leak = puzzle("leak")
    status, (rows, objects) = ask("check", "objects")
    assert (status, [(row["rule"], row["certainty"]) for row in rows]) == (1, [("K1", "certain")])
    (leaking,) = [row for row in objects if (row["size"], row["refcount"]) == (leak["size"], leak["refcount"])]
    assert rows[0]["object"] == f"kcov {leaking['kcov']}"
    assert {"name": "references", "value": f"descriptor {leak['pid']}/{leak['fds'][0]}"} in rows[0]["values"]
    # The object was freed with its only holder; only its buffer is left.
    guest.ask("stop")
    status, (rows,) = ask("check")
    assert (status, {row["rule"] for row in rows}) == (1, {"K1"})

    section = puzzle("open")
    _, (rows, tasks) = ask("check T12 K1", "tasks")
    (never_ended,) = [row for row in rows if row["rule"] == "T12"]
    assert {"name": "stack", "value": "in worker_thread()"} in never_ended["values"]
    (worker,) = [row for row in tasks if row["comm"].startswith("kworker")]
    assert never_ended["object"] == f"task {worker['pid']} ({worker['comm']})"
    assert worker["kcov_sequence"] == section["sequence"]
    # The section's reference is counted.
    assert f"kcov {worker['kcov']}" not in {row["object"] for row in rows if row["rule"] == "K1"}

    left = puzzle("left")
    assert left["errno"] == errno.EEXIST
    status, (rows, answers, objects) = ask("check", f"why {left['left_handle']}", "objects")
    (kcov,) = [row["kcov"] for row in objects if row["size"] == left["size"]]
    # The memory of the task that is gone may be another's by now.
    assert {row["rule"] for row in rows if row["object"] == f"kcov {kcov}"} & {"K6", "T4"}
    assert_owner_is_gone(answers, kcov)

    # A section that cannot begin ends the session of the task itself, whose buffer is then on a list of free areas.
    nested = puzzle("nested")
    _, (rows, objects, areas, tasks) = ask("check", "objects", "areas", f"tasks -a {nested['tid']}")
    # The memory of an owner that is gone may be this task's by now.
    (lost,) = [row for row in objects if row["size"] == 57 * 512]
    found = {row["rule"]: row for row in rows if row["object"] in (f"kcov {lost['kcov']}", f"area {lost['area']}")}
    assert {"K1", "K10", "T1", "A2"} <= set(found)
    assert lost["area"] in {row["area"] for row in areas if row["state"] == "cached"}
    assert [row["kcov_mode"] for row in tasks] == ["DISABLED"]
    for rule in ("K10", "A2"):
        (cause,) = found[rule]["causes"]
        assert ("mac80211" in cause["bug"], cause["certainty"]) == (True, "likely")


def assert_owner_is_gone(why: list[dict[str, Any]], kcov: str) -> None:
    """Assert that `why` reports a handle as registered for an object whose owner is gone."""
    codes = {row["code"]: row["evidence"] for row in why}
    assert f"kcov={kcov}" in codes["handle-registered"]
    assert "owner-gone" in codes


def test_lost_remote_references(boot: Booter) -> None:
    """Softirqs interrupt the owner of a handle, which then exits: from v5.8 to v6.9 the handle stays for ever.

    KCOVDBG_LAB_RECIPE=saved-per-cpu has that bug. Other kernels unregister the handle, and there is nothing to find.
    """
    guest = boot(Machine(cpus=1))
    guest.wait_done()
    told = next(line for line in guest.ask("puzzle lost", timeout=120) if line.get("state"))
    assert "missing" not in told
    symbols = symbol_options(guest.kernel, guest.userland)
    words = ("info", "check", "objects", f"why {told['left_handle']}")
    done = run_kcovdbg(
        "--qemu", guest.sockets.debugger_qmp, *symbols, *(word for line in words for word in ("-e", f"{line} --json"))
    )
    answers, decoder, text = [], json.JSONDecoder(), done.stdout
    while text := text.lstrip():
        rows, end = decoder.raw_decode(text)
        answers.append(rows)
        text = text[end:]
    (info,), rows, objects, why = answers
    if info["generation"] not in ("E4", "E5-E6"):
        assert (told["errno"], rows, done.returncode) == (0, [], 0)
        assert "handle-not-registered" in {row["code"] for row in why}
        return
    assert (told["errno"], done.returncode) == (errno.EEXIST, 1)
    (lost,) = [f"kcov {row['kcov']}" for row in objects if row["size"] == told["size"]]
    # The memory of the task that is gone may be another's by now.
    found = [row for row in rows if row["object"] == lost and row["rule"] in ("K6", "T4")]
    assert found
    assert all("lost remote references" in row["cause"] for row in found)
    assert_owner_is_gone(why, lost.removeprefix("kcov "))


def test_damaged_memory_of_a_guest(boot: Booter) -> None:
    """Lists, saved state and handles of a stopped guest are overwritten, one at a time, and restored."""
    guest = boot(Machine(cpus=1))
    guest.wait_done()
    told = next(line for line in guest.ask("inflight vhost") if line.get("state"))
    symbols = symbol_options(guest.kernel, guest.userland)
    layout = read_layout(guest.kernel)
    offset = kaslr_offset(guest, layout.symbols)
    heads = layout.symbols["kcov_remote_areas"] + offset

    def ask(*commands: str) -> list[list[dict[str, Any]]]:
        words = [word for command in commands for word in ("-e", f"{command} --json")]
        done = run_kcovdbg("--qemu", guest.sockets.debugger_qmp, *symbols, *words)
        answers, decoder, text = [], json.JSONDecoder(), done.stdout
        while text := text.lstrip():
            rows, end = decoder.raw_decode(text)
            answers.append(rows)
            text = text[end:]
        return answers

    def damage(*changes: tuple[int, bytes]) -> dict[str, dict[str, Any]]:
        before = [(address, read(guest, address, len(data))) for address, data in changes]
        for address, data in changes:
            write(guest, address, data)
        (rows,) = ask("check")
        for address, data in before:
            write(guest, address, data)
        return {row["rule"]: row for row in rows}

    def word(value: int) -> bytes:
        return value.to_bytes(8, "little")

    with guest.paused():
        rows, tasks, areas = ask("check", "tasks -a", "areas")
        assert rows == []
        (stuck,) = [row for row in tasks if row["pid"] == told["workers"][0]]
        idle = next(row for row in tasks if row["comm"] == "kc-none")
        used, first = int(stuck["kcov_area"], 16), int.from_bytes(read(guest, heads, 8), "little")
        # An area in use is put on the list of free areas.
        found = damage(
            (heads, word(used)),
            (used, word(first) + word(heads) + stuck["kcov_size"].to_bytes(4, "little")),
            (first + 8, word(used)),
        )
        assert "A3" in found
        assert str(told["workers"][0]) in found["A3"]["message"]
        if "kcov_saved_mode" in layout.task:
            # The list of areas for tasks continues in the one for softirqs: their areas are on both.
            irq = [int(row["area"], 16) for row in areas if row["list"] == "irq" and row["state"] == "cached"]
            last = int.from_bytes(read(guest, heads + 8, 8), "little")
            found = damage((last, word(irq[0])))
            assert {"A1", "A4"} <= found.keys()
            # A session is saved without a softirq that would restore it.
            member = layout.task["kcov_saved_kcov"].offset
            found = damage((int(idle["task"], 16) + member, word(int(stuck["kcov"], 16))))
            assert "S4" in found
            assert found["S4"]["object"] == f"task {idle['pid']} (kc-none)"
        # A list is cut.
        found = damage((first, word(0)))
        assert "A1" in found
        # An entry of the hash has the back pointer of another one.
        entry = next(
            bucket for bucket in range(16) if any(read(guest, layout.symbols["kcov_remote_map"] + offset + 8 * bucket, 8))
        )
        node = int.from_bytes(read(guest, layout.symbols["kcov_remote_map"] + offset + 8 * entry, 8), "little")
        assert "R1" in damage((node + 8, word(heads)))
        # A task's copy of its buffer's address.
        assert damage((int(stuck["task"], 16) + layout.task["kcov_sequence"].offset, (7).to_bytes(4, "little"))).keys() == {
            "T6"
        }
        assert ask("check") == [[]]


def read(guest: Guest, address: int, size: int) -> bytes:
    with guest.gdb() as stub:
        data = stub.read(address, size)
        stub.leave_stopped()
        return data


def write(guest: Guest, address: int, data: bytes) -> None:
    with guest.gdb() as stub:
        stub._expect_ok(f"M{address:x},{len(data):x}:{data.hex()}".encode())
        stub.leave_stopped()
