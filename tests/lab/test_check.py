# SPDX-License-Identifier: LGPL-2.1-or-later
"""`check` reports nothing on a healthy kernel, and finds damage on real ones; test_state.py has
dumps of healthy ones.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import json
import re
import struct
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from kcovdbg.check.runner import check
from kcovdbg.target.target_options import TargetOptions, open_target
from tests.lab.conftest import Booter, DumpMaker, StateDumpMaker, built
from tests.lab.guest import Guest, Machine
from tests.lab.kcovdbg_run import Rows, ask, run_kcovdbg
from tests.lab.section import kaslr_offset, read_layout
from tests.lab.situation import OOPSED, Dump
from tests.support.kernels.asker import Asker


@pytest.mark.parametrize("how", ["--qemu", "--gdb-remote"])
def test_healthy_guest(standing_guest: Guest, how: str) -> None:
    assert ask(standing_guest.target(how), "check") == [[]]


def test_last_ends_in_the_faulting_function(crash_dump: DumpMaker) -> None:
    """The panic's own output is in the buffer: tens of thousands of records."""
    dump = crash_dump()
    (rows,) = ask(dump.target, "last -n 2000")
    path = [
        "ksys_write",
        "vfs_write",
        "proc_reg_write",
        "write_sysrq_trigger",
        "__handle_sysrq",
        "sysrq_handle_crash",
    ]
    assert_ends(rows, path)
    text = run_kcovdbg(*dump.target, "last").stdout
    (count,) = map(int, re.findall(r"^task .*: (\d+) records$", text, re.MULTILINE))
    # The records of the crash handling are counted where the function in which it began is named.
    assert f"sysrq_handle_crash(); {count - rows[-1]['index'] - 1} " in text
    assert_full_ones_are_said(dump)


def assert_ends(rows: Rows, path: list[str]) -> None:
    """Assert that the crashed task's records end on its stack, in these functions one after the
    other.
    """
    assert {row["comm"] for row in rows} == {"kc-crash"}
    assert rows[-1]["symbol"] == path[-1]
    met = {row["symbol"]: row["index"] for row in rows if row["stack"] is not None}
    assert rows[-1]["stack"] is not None
    assert [name for name in path if name in met] == path
    assert [met[name] for name in path] == sorted(met[name] for name in path)


def assert_full_ones_are_said(dump: Dump) -> None:
    """Assert that a warning about a full buffer names each task whose buffer is full, beside the
    stacks of all tasks.
    """
    report = run_kcovdbg(*dump.target, "last", "--all", status=0)
    warnings = [line for line in report.stdout.splitlines() if "FULL" in line]
    for name in ("kc-full", "kc-over"):
        assert any(f"task {dump.states()[name]['tid']} ({name})" in line for line in warnings), (
            warnings
        )
    assert report.stdout.count("\n  stack\n") >= 20


def test_last_of_an_oops(inflight_dump: StateDumpMaker) -> None:
    """A module dereferences NULL three calls deep inside of a write()."""
    dump = inflight_dump(OOPSED)
    (module,) = [path for path in dump.userland.modules if path.stem == "kcovlab_oops"]
    target = [*dump.target, "-s", str(module)]
    (rows,) = ask(target, "last -n 400")
    told = dump.states()["kc-crash"]["expect_functions"]
    assert told[-1] == "kcovlab_oops_inner"
    assert_ends(rows, ["ksys_write", "vfs_write", *told])
    assert "kcovlab_oops_inner()" in run_kcovdbg(*target, "last").stdout
    assert_full_ones_are_said(dump)


def test_last_of_named_tasks(standing_dump: DumpMaker) -> None:
    dump = standing_dump()
    states = dump.states()
    wanted = {name: str(states[name]["tid"]) for name in ("kc-none", "kc-full", "kc-pc", "kc-usb")}
    done = run_kcovdbg(*dump.target, "last", *wanted.values(), "--json", status=0)
    notes = done.stderr.splitlines()
    for name in ("kc-none", "kc-usb"):
        assert [
            line for line in notes if f"task {wanted[name]} ({name}) had no coverage: " in line
        ], done.stderr
    found = json.loads(done.stdout)
    assert {row["comm"]: row["full"] for row in found} == {"kc-full": True, "kc-pc": False}
    assert [
        line for line in notes if "FULL" in line and f"task {wanted['kc-full']} (kc-full)" in line
    ], done.stderr
    rows = [row for row in found if row["pid"] == int(wanted["kc-pc"])]
    told = states["kc-pc"]
    records = told["records"] if "records" in told else told["tail"]
    assert [row["pc"] for row in rows][-10:] == records[-10:]


@pytest.mark.parametrize("state", ["softirq-over-local", "vhost-section"])
def test_last_of_sections(inflight_dump: StateDumpMaker, state: str) -> None:
    """The last records of a task in a section are the section's; those of the interrupted session
    are shown as well.
    """
    dump = inflight_dump(state)
    section = dump.section
    assert section is not None
    (rows,) = ask(dump.target, f"last {section['pid']}")
    buffers = [name.partition(":")[0] for name in dict.fromkeys(row["buffer"] for row in rows)]
    assert buffers == (
        ["saved", "area"] if state == "softirq-over-local" else [str(section["pid"])]
    )
    count = section["buffers"]["kcov_area"]["count"]
    assert [row["index"] for row in rows if not row["buffer"].startswith("saved")][-1] == count - 1


@contextlib.contextmanager
def opened(guest: Guest) -> Iterator[Look]:
    """Ask a guest through a target that stays open: opening it takes most of the time."""
    target = open_target(TargetOptions(qemu=guest.target()[1], symbols=guest.target()[3::2]))
    yield Look(target)
    target.close()


class Look(Asker):
    said = ""
    """What was written beside the last answers."""

    def __call__(self, *lines: str) -> list[Rows]:
        answers, said = zip(*map(self.rows, lines), strict=True)
        self.said = "\n".join(said)
        assert not re.search(r"^(internal )?error: ", self.said, re.MULTILINE), said
        return list(answers)


# Each test repairs the damage that it does to the guest.
@pytest.fixture(scope="module")
def look(guest: Guest) -> Iterator[Look]:
    with opened(guest) as look:
        assert look("check") == [[]]
        yield look


def values_of(row: dict[str, Any]) -> dict[str, str]:
    return {value["name"]: value["value"] for value in row["values"]}


def test_damage_on_a_running_guest(guest: Guest, look: Look) -> None:
    """User space overwrites a count; a write to the guest's memory leaks a reference, another one
    closes a list into a loop.
    """
    assert guest.make("bogus", "kc-bogus")["tid"]
    (rows,) = look("check")
    assert [(row["rule"], row["certainty"]) for row in rows] == [("B1", "likely")]
    guest.ask("stop")
    objects, areas = look("objects", "areas")
    kcov = next(
        int(row["kcov"], 16) for row in objects if row["mode"] == "INIT" and row["refcount"] == 1
    )
    area = next(
        int(row["area"], 16) for row in areas if row["list"] == "task" and row["state"] == "cached"
    )
    with guest.paused():
        write(guest, kcov, (2).to_bytes(4, "little"))
        ((row,),) = look("check")
        assert (row["rule"], row["object"]) == ("K1", f"kcov {kcov:#x}")
        assert int(values_of(row)["refcount"]) == int(values_of(row)["found"]) + 1
        write(guest, kcov, (1).to_bytes(4, "little"))
        before = read(guest, area, 8)
        write(guest, area, area.to_bytes(8, "little"))
        (rows,) = look("check")
        # Rules that rest on the list cannot be judged then.
        assert "A1" in {row["rule"] for row in rows if row["severity"] != "unknown"} <= {"A1", "X2"}
        write(guest, area, before)
        assert look("check") == [[]]


def test_racing(guest: Guest, look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inconsistent state of a running guest is read again: it is then consistent, still changing,
    or violated.

    Its memory is changed through the stub between two reads, as its own tasks would do, so that the
    race is the same each time.
    """
    pauses: list[float] = []
    meanwhile: Iterator[int] = iter(())
    # The guest itself never changes this object.
    (objects,) = look("objects")
    kcov = next(
        int(row["kcov"], 16) for row in objects if (row["mode"], row["refcount"]) == ("INIT", 1)
    )

    def refer(times: int) -> None:
        write(guest, kcov, times.to_bytes(4, "little"), running=True)

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        for times in itertools.islice(meanwhile, 1):
            refer(times)

    def check_again(*, before: int, then: Iterable[int] = ()) -> Rows:
        nonlocal meanwhile
        refer(before)
        meanwhile = iter(then)
        pauses.clear()
        return look("check")[0]

    monkeypatch.setattr("kcovdbg.check.command.check", functools.partial(check, pause=pause))
    assert check_again(before=1) == []
    assert not pauses

    # A reference that is taken but not linked yet at the first read, and dropped before the second
    # one.
    assert check_again(before=2, then=[1]) == []
    # The transient inconsistency is reported.
    assert "note: 1 " in look.said
    assert len(pauses) == 1

    # It keeps changing: each read finds another value.
    (row,) = check_again(before=2, then=itertools.count(3))
    assert (row["rule"], row["severity"], row["object"]) == ("K1", "racing", f"kcov {kcov:#x}")
    assert row["reason"]
    assert row["causes"] == []
    # Reading again is bounded.
    assert len(pauses) == 4

    # A value that changed once and then stays has been seen to change.
    assert [row["severity"] for row in check_again(before=2, then=[3])] == ["racing"]

    # It stays: this is no race.
    (row,) = check_again(before=3)
    assert (row["rule"], row["severity"], row["certainty"]) == ("K1", "error", "certain")
    assert len(pauses) == 4
    assert check_again(before=1) == []
    assert guest.qmp.running()


def test_records_that_user_space_wrote(guest: Guest, look: Look) -> None:
    """User space writes into the buffer of an enabled task; records of an earlier session are no
    finding.
    """
    guest.make("reuse", "kc-reuse")
    assert look("check B12") == [[]]
    told = guest.make("scribble", "kc-scribble")
    (row,), buffer = look("check B12", f"buffer {told['tid']}")
    values = values_of(row)
    wrong, absurd = told["scribbled"]
    assert row["severity"] == "warning"
    assert row["message"].startswith("2 of ")
    assert values["records"] == f"{wrong}: {buffer[wrong]['pc']}, {absurd}: {0x4141414141414141:#x}"
    assert (
        values["before"]
        == f"{wrong - 2}: {buffer[wrong - 2]['pc']}, {wrong - 1}: {buffer[wrong - 1]['pc']}"
    )
    assert (
        values["after"]
        == f"{wrong + 1}: {buffer[wrong + 1]['pc']}, {wrong + 2}: {buffer[wrong + 2]['pc']}"
    )
    assert int(values["offset"], 16) == 8 * (1 + wrong)
    before = int(told["before"], 16)
    assert (
        f"writable by task {told['pid']} (kc-scribble) at {before + 4096:#x}-{before + 5 * 4096:#x}"
        in values["mapped"]
    )
    # The kernel may have joined the page with what is mapped before it.
    assert f"-{before + 4096:#x}), directly after it nothing" in values["mapped"]
    guest.ask("stop")
    assert look("check B12") == [[]]


def test_bugs_on_a_running_guest(boot: Booter) -> None:
    """A module imitates bugs: it leaks a reference, never ends a section, and clears an owner's
    pointer to its object.
    """
    guest = boot(Machine(cpus=1))
    with opened(guest) as look:
        check_bugs(guest, look)


def check_bugs(guest: Guest, look: Look) -> None:
    leak = guest.make("puzzle leak")
    rows, objects = look("check", "objects")
    assert [(row["rule"], row["certainty"]) for row in rows] == [("K1", "certain")]
    (leaking,) = [
        row for row in objects if (row["size"], row["refcount"]) == (leak["size"], leak["refcount"])
    ]
    assert rows[0]["object"] == f"kcov {leaking['kcov']}"
    assert {"name": "references", "value": f"descriptor {leak['pid']}/{leak['fds'][0]}"} in rows[0][
        "values"
    ]
    # The object was freed with its only holder; only its buffer is left.
    guest.ask("stop")
    (rows,) = look("check")
    assert {row["rule"] for row in rows} == {"K1"}

    section = guest.make("puzzle open")
    rows, tasks = look("check T12 K1", "tasks")
    (never_ended,) = [row for row in rows if row["rule"] == "T12"]
    assert {"name": "stack", "value": "in worker_thread()"} in never_ended["values"]
    (worker,) = [row for row in tasks if row["comm"].startswith("kworker")]
    assert never_ended["object"] == f"task {worker['pid']} ({worker['comm']})"
    assert worker["kcov_sequence"] == section["sequence"]
    # The section's reference is counted.
    assert f"kcov {worker['kcov']}" not in {row["object"] for row in rows if row["rule"] == "K1"}

    left = guest.make("puzzle left")
    assert left["errno"] == errno.EEXIST
    rows, answers, objects = look("check", f"why {left['left_handle']}", "objects")
    (kcov,) = [row["kcov"] for row in objects if row["size"] == left["size"]]
    # The memory of the task that is gone may be another's by now.
    assert {row["rule"] for row in rows if row["object"] == f"kcov {kcov}"} & {"K6", "T4"}
    assert_owner_is_gone(answers, kcov)

    # A section that cannot begin ends the session of the task itself, whose buffer is then on a
    # list of free areas.
    nested = guest.make("puzzle nested")
    rows, objects, areas, tasks = look("check", "objects", "areas", f"tasks -a {nested['tid']}")
    # The memory of an owner that is gone may be this task's by now.
    (lost,) = [row for row in objects if row["size"] == 57 * 512]
    found = {
        row["rule"]: row
        for row in rows
        if row["object"] in (f"kcov {lost['kcov']}", f"area {lost['area']}")
    }
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
    """Softirqs interrupt the owner of a handle, which then exits: from v5.8 to v6.9 the handle
    stays for ever.

    KCOVDBG_LAB_RECIPE=saved-per-cpu has that bug. Other kernels unregister the handle, and there is
    nothing to find.
    """
    guest = boot(Machine(cpus=1))
    told = guest.make("puzzle lost", timeout=120)
    (info,), rows, objects, why = ask(
        guest.target(), "info", "check", "objects", f"why {told['left_handle']}", status=None
    )
    if info["generation"] not in ("E4", "E5-E6"):
        assert (told["errno"], rows) == (0, [])
        assert "handle-not-registered" in {row["code"] for row in why}
        return
    assert told["errno"] == errno.EEXIST
    (lost,) = [f"kcov {row['kcov']}" for row in objects if row["size"] == told["size"]]
    # The memory of the task that is gone may be another's by now.
    found = [row for row in rows if row["object"] == lost and row["rule"] in ("K6", "T4")]
    assert found
    assert all("lost remote references" in row["cause"] for row in found)
    assert_owner_is_gone(why, lost.removeprefix("kcov "))


def test_lost_references_before_and_after_the_owner_exits() -> None:
    """On a kernel with that bug."""
    with Guest(*built("saved-per-cpu")) as guest:

        def check() -> list[dict[str, Any]]:
            return ask(guest.target(), "check", status=None)[0]

        # The bug may have hit an owner of the workload already.
        earlier = check()
        assert all(
            row["rule"] == "T4" and "lost remote references" in row["cause"] for row in earlier
        )
        lost = guest.make("lost", "kc-lost")
        (row,) = [row for row in check() if row not in earlier]
        assert row["rule"] == "T4"
        assert f"task {lost['tid']} (kc-lost)" in row["message"]
        guest.ask("stop")
        rows = {row["rule"]: row for row in check() if row not in earlier}
        # Nothing refers to the object any more, but its handle stays registered.
        assert set(rows) == {"K6", "X3"}
        for found in (row, *rows.values()):
            assert "lost remote references" in found["cause"]


def test_damaged_memory_of_a_guest(guest: Guest, look: Look) -> None:
    """Lists, saved state and handles of a stopped guest are overwritten, one at a time, and
    restored.
    """
    told = guest.make("inflight vhost")
    layout = read_layout(guest.kernel)
    offset = kaslr_offset(guest, layout.symbols)
    heads, buckets = (
        layout.symbols[name] + offset for name in ("kcov_remote_areas", "kcov_remote_map")
    )

    def damage(*changes: tuple[int, bytes]) -> dict[str, dict[str, Any]]:
        before = [(address, read(guest, address, len(data))) for address, data in changes]
        for address, data in changes:
            write(guest, address, data)
        (rows,) = look("check")
        for address, data in before:
            write(guest, address, data)
        return {row["rule"]: row for row in rows if row["severity"] != "unknown"}

    def word(value: int) -> bytes:
        return value.to_bytes(8, "little")

    with guest.paused():
        rows, tasks, areas = look("check", "tasks -a", "areas")
        assert rows == []
        # A kernel thread before v6.4, a thread of the owner since then.
        (stuck,) = [row for row in tasks if row["comm"] == f"vhost-{told['pid']}"]
        idle = next(row for row in tasks if row["comm"] == "kc-none")
        used, first = int(stuck["kcov_area"], 16), int.from_bytes(read(guest, heads, 8), "little")
        # An area in use is put on the list of free areas.
        found = damage(
            (heads, word(used)),
            (used, word(first) + word(heads) + stuck["kcov_size"].to_bytes(4, "little")),
            (first + 8, word(used)),
        )
        assert "A3" in found
        assert str(stuck["pid"]) in found["A3"]["message"]
        if (member := layout.task_offset("kcov_saved_kcov")) is not None:
            # The list of areas for tasks continues in the one for softirqs: their areas are on
            # both.
            irq = [
                int(row["area"], 16)
                for row in areas
                if row["list"] == "irq" and row["state"] == "cached"
            ]
            last = int.from_bytes(read(guest, heads + 8, 8), "little")
            found = damage((last, word(irq[0])))
            assert {"A1", "A4"} <= found.keys()
            # A session is saved without a softirq that would restore it.
            found = damage((int(idle["task"], 16) + member, word(int(stuck["kcov"], 16))))
            assert "S4" in found
            assert found["S4"]["object"] == f"task {idle['pid']} (kc-none)"
        # A list is cut.
        found = damage((first, word(0)))
        assert "A1" in found
        # An entry of the hash has the back pointer of another one.
        node = next(filter(None, struct.unpack("<16Q", read(guest, buckets, 16 * 8))))
        assert "R1" in damage((node + 8, word(heads)))
        # A task's copy of its buffer's address.
        sequence = int(stuck["task"], 16) + (layout.task_offset("kcov_sequence") or 0)
        assert damage((sequence, (7).to_bytes(4, "little"))).keys() == {"T6"}
        assert look("check") == [[]]


def test_count_of_comparisons_that_wraps(guest: Guest, look: Look) -> None:
    """The next comparison of an enabled task would be written in front of its buffer: kernels
    before autumn 2026, as that of KCOVDBG_LAB_RECIPE=6.1, do that when the task goes on.
    """
    told = guest.make("puzzle wrap")
    tid = told["enabled_tid"]
    (row,), (task,), objects, why = look("check", f"tasks {tid}", "objects", f"why {tid}")
    assert (row["rule"], row["severity"], row["certainty"]) == ("B2", "error", "likely")
    assert row["object"] == f"kcov {task['kcov']}"
    assert (task["kcov_mode"], task["count"], task["full"]) == ("TRACE_CMP", told["count"], True)
    (kcov,) = [row for row in objects if row["kcov"] == task["kcov"]]
    assert (kcov["count"], kcov["capacity"]) == (task["count"], task["capacity"])
    assert {"count-impossible", "known-bug"} <= {row["code"] for row in why}
    before = len(guest.console())
    guest.ask("stop")
    fault = re.search(r"page fault for address: (\w+)", guest.console()[before:])
    (rows,) = look("check")
    if fault is None:
        # A bound that does not wrap.
        assert rows == []
        return
    assert int(fault[1], 16) == int(task["kcov_area"], 16) - 3 * 8
    assert "RIP: 0010:write_comp_data+" in guest.console()[before:]
    # It went on in the buffer. The task may be gone.
    assert all(row["rule"] in ("B1", "B2") and "autumn 2026" in str(row) for row in rows)


def read(guest: Guest, address: int, size: int) -> bytes:
    with guest.gdb() as stub:
        data = stub.read(address, size)
        stub.leave_stopped()
        return data


def write(guest: Guest, address: int, data: bytes, *, running: bool = False) -> None:
    """Change memory.

    :param running: whether the guest goes on.
    """
    with guest.gdb() as stub:
        stub._expect_ok(f"M{address:x},{len(data):x}:{data.hex()}".encode())
        if not running:
            stub.leave_stopped()
