# SPDX-License-Identifier: LGPL-2.1-or-later
"""Commands, census, walkers and a target together, on a kernel of two tasks."""

import json

import pytest

from kcovdbg.frontends.cli import main
from kcovdbg.target.protocol import Member, Symbol
from tests.support.memory_target import MemoryTarget, Structure

INIT, TASK, KCOV, BUFFER, REMOTE, MAP = (0xFFFF888000000000 + 0x100000 * number for number in range(1, 7))


def structure(*members):
    """Lay members out one after the other: (name, size, type)."""
    laid, offset = {}, 0
    for name, size, *rest in members:
        offset += -offset % min(size, 8)
        laid[name] = Member(offset, size, rest[0] if rest else "unsigned int", length=size if name == "comm" else None)
        offset += size
    return Structure(offset + -offset % 8, laid)


def make_kernel():
    pointers = ("mm", "files", "signal", "kcov_area", "kcov", "kcov_handle")
    types = {
        "struct list_head": structure(("next", 8), ("prev", 8)),
        "struct hlist_node": structure(("next", 8), ("pprev", 8)),
        "struct hlist_head": structure(("first", 8)),
        "struct task_struct": structure(
            *((name, 8) for name in pointers),
            ("tasks", 16, "struct list_head"),
            ("thread_node", 16, "struct list_head"),
            ("comm", 16),
            *((name, 4) for name in ("pid", "tgid", "flags", "cpu", "on_cpu", "kcov_mode", "kcov_size", "kcov_softirq")),
            ("kcov_sequence", 4, "int"),
        ),
        "struct kcov": structure(
            ("refcount", 4, "refcount_t"), ("lock", 4), ("mode", 4), ("size", 4), ("area", 8), ("t", 8),
            ("remote", 1, "_Bool"), ("remote_size", 4), ("sequence", 4, "int"),
        ),
        "refcount_t": structure(("refs", 4, "atomic_t")),
        "atomic_t": structure(("counter", 4, "int")),
        "struct kcov_remote": structure(("handle", 8), ("kcov", 8), ("hnode", 16, "struct hlist_node")),
    }  # fmt: skip
    target = MemoryTarget(
        types=types,
        enums={
            "enum kcov_mode": {"KCOV_MODE_DISABLED": 0, "KCOV_MODE_INIT": 1, "KCOV_MODE_TRACE_PC": 2, "KCOV_MODE_TRACE_CMP": 3}
        },
        symbols={"init_task": Symbol("init_task", INIT, 4096), "kcov_remote_map": Symbol("kcov_remote_map", MAP, 128)},
        variables={"kcov_remote_map": ("struct hlist_head", 16)},
        segments={start: bytearray(4096) for start in (INIT, TASK, KCOV, BUFFER, REMOTE, MAP)},
    )
    tasks = types["struct task_struct"].members["tasks"].offset
    for address, other, values in (
        (INIT, TASK, {"comm": b"swapper/0".ljust(16, b"\0"), "kcov_mode": 1 << 30}),
        (
            TASK,
            INIT,
            {"pid": 41, "tgid": 41, "comm": b"\x1b[2Jfuzz\xff".ljust(16, b"\0"), "kcov_mode": 1 << 30 | 2, "kcov": KCOV}
            | {"kcov_area": BUFFER, "kcov_size": 64, "kcov_sequence": 3},
        ),
    ):
        target.put(address, "struct task_struct", values)
        target.write(address + tasks, (other + tasks).to_bytes(8, "little") * 2)
    values = {"refcount": 2, "mode": 2, "size": 64, "area": BUFFER, "t": TASK, "sequence": 3}
    target.put(KCOV, "struct kcov", {name: value for name, value in values.items() if name != "refcount"})
    target.write(KCOV, (2).to_bytes(4, "little"))
    target.write(BUFFER, (11).to_bytes(8, "little"))
    target.put(REMOTE, "struct kcov_remote", {"handle": 1 << 56 | 1, "kcov": KCOV, "hnode.pprev": MAP})
    node = types["struct kcov_remote"].members["hnode"].offset
    target.write(MAP, (REMOTE + node).to_bytes(8, "little"))
    return target


@pytest.fixture
def cli(capsys):
    def cli(*words):
        target = cli.target
        status = main(words, open_target=lambda _options: target)
        out, cli.err = capsys.readouterr()
        assert status == 0, cli.err
        return json.loads(out) if "--json" in words else out

    cli.target = make_kernel()
    return cli


def test_tasks(cli):
    (row,) = cli("tasks", "--json")
    assert row["comm"] == "\x1b[2Jfuzz\\xff"
    assert (row["kcov_mode"], row["kcov_mode_raw"], row["in_ctxsw"]) == ("TRACE_PC", "0x40000002", True)
    assert (row["count"], row["full"], row["role"], row["kcov_remote"]) == (11, False, "local", None)
    text = cli("tasks")
    assert r"\x1b[2Jfuzz\xff  TRACE_PC  11/63  local  0xffff888000300000" in text
    assert "\x1b" not in text
    assert [row["pid"] for row in cli("tasks", "-a", "--json")] == [0, 41]


def test_a_missing_page_is_said(cli):
    del cli.target.segments[BUFFER]
    (row,) = cli("tasks", "--json")
    assert row["count"] is None
    assert "0xffff888000400000" in row["errors"][0]
    assert "note: task 41: buffer 0xffff888000400000" in cli("tasks")


def test_a_layout_that_is_not_the_kernels_is_said(cli):
    """As of GCC's RANDSTRUCT plugin, of which the debug info says nothing."""
    cli("tasks", "--json")
    assert "swapper" not in cli.err
    cli.target.put(INIT, "struct task_struct", {"comm": bytes(range(0x80, 0x90))})
    cli("tasks", "--json")
    assert "init_task is called" in cli.err
    assert "RANDSTRUCT" in cli.err


def test_objects(cli):
    (row,) = cli("objects", "--json")
    assert (row["kcov"], row["t"], row["pid"], row["refcount"], row["capacity"]) == (hex(KCOV), hex(TASK), 41, 2, 63)
    assert [reference["kind"] for reference in row["references"]] == ["task", "remote"]
    assert "files of KCOV" in cli.err
    assert "2, found 1" in cli("objects")


@pytest.mark.parametrize("command", ["info", "tasks", "objects", "remote", "areas", "percpu"])
def test_every_command_answers(cli, command):
    rows = cli(command, "--json")
    assert isinstance(rows, list)
    assert cli(command)
    assert cli(command, "--csv").count("\n") == len(rows) + 1


def test_remote(cli):
    (row,) = cli("remote", "--json")
    assert (row["handle"], row["subsystem"], row["instance"], row["pid"]) == ("0x100000000000001", "usb", 1, 41)


def test_a_kernel_without_kcov(capsys):
    target = make_kernel()
    members = target.types["struct task_struct"].members
    target.types["struct task_struct"] = Structure(
        256, {name: member for name, member in members.items() if not name.startswith("kcov")}
    )
    assert main(["tasks"], open_target=lambda _options: target) == 2
    message, hint = capsys.readouterr().err.splitlines()
    assert "struct task_struct" in message
    assert "CONFIG_KCOV=y" in hint
    assert main(["info", "--json"], open_target=lambda _options: target) == 0
    assert json.loads(capsys.readouterr().out)[0]["generation"] is None
