# SPDX-License-Identifier: LGPL-2.1-or-later
"""kcov-show's JSON in GDB is kcovdbg's on the same guest or dump, byte for byte."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kcovdbg.symbols.table_builder import build_table_file
from kcovdbg.symbols.table_cache import find_table_key, open_table
from tests.lab import situation
from tests.lab.guest import Guest
from tests.lab.kcovdbg_run import run_kcovdbg
from tests.lab.kernel import Kernel
from tests.support.gdb_run import run_gdb
from tests.support.traces import write_trace

pytestmark = pytest.mark.lab

_LOW_56_BITS = (1 << 56) - 1

Rows = list[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Answers:
    """Return the output of each line; remarks go to standard error."""

    texts: dict[str, str]
    remarks: str

    def rows(self, line: str) -> Rows:
        return json.loads(self.texts[line])


def have_table(kernel: Kernel) -> None:
    """Build the kernel's location table in the user's cache, where kcovdbg itself would put it."""
    image = Path(kernel.vmlinux).resolve()
    if open_table(find_table_key(image)) is None:
        build_table_file(image)


def ask_kcovdbg(target: Sequence[str | Path], vmlinux: Path, lines: Sequence[str]) -> Answers:
    words = [word for line in lines for word in ("-e", f"{line} --json")]
    done = run_kcovdbg(*target, "-s", vmlinux, *words, timeout=300)
    # 1 says that check or diff have found something.
    assert done.returncode in (0, 1), done.stderr
    # Each is an array, whose last line is its end.
    texts = [
        text.strip() for text in re.findall(r"^\[.*?\]$", done.stdout, re.DOTALL | re.MULTILINE)
    ]
    return Answers(dict(zip(lines, texts, strict=True)), done.stderr)


def ask_gdb(
    target: Sequence[object], lines: Sequence[str], before: Sequence[str] = (), program: str = "gdb"
) -> Answers:
    asked = [f"kcov-show {line} --json" for line in lines]
    said = run_gdb(*target, before=list(before), ask=asked, timeout=300, program=program)
    assert "Traceback" not in said.stderr
    return Answers(dict(zip(lines, said.answers, strict=True)), said.stderr)


def extended_trace(directory: Path, pcs: Sequence[int]) -> str:
    """A trace with entries and exits, which this kernel's buffers have none of: each function calls
    the next.
    """
    inner = [
        *(pc & _LOW_56_BITS for pc in pcs),
        *(pc & _LOW_56_BITS | 1 << 60 for pc in reversed(pcs)),
    ]
    return write_trace(directory / "calls.kcov", inner, "TRACE_PC_EXT")


def lines_about(tasks: Rows, buffers: dict[int, Rows], directory: Path) -> list[str]:
    """Yield each command that reads state, for the tasks, objects and handles of the kernel."""
    covered = [row["pid"] for row in tasks if row["pid"] in buffers]
    first, second = [pid for pid in covered if buffers[pid][0]["kind"] == "pc"][:2]
    pcs = [int(row["pc"], 16) for row in buffers[first]]
    function = buffers[first][0]["symbol"]
    trace = extended_trace(directory, pcs[:4])
    owner = next((row["pid"] for row in tasks if row["owns_remote"] and row["count"]), None)
    handles = [
        f"why {row['kcov_handle']}" for row in tasks if row["kcov_handle"] not in (None, "0x0")
    ][:1]
    return [
        *(f"buffer {pid}{raw}" for pid in covered for raw in ("", " --raw", " --tail -n 7")),
        *([] if owner is None else [f"top {owner}", f"buffer {owner} --tail"]),
        *(f"top {first}{by}" for by in ("", " --by file", " --by pc", " --function '*ioctl*'")),
        f"source {first}",
        f"source {first} {function}",
        f"source {second} --all",
        f"diff {first} {second}",
        f"diff --ordered {first} {second}",
        f"trace {trace}",
        f"buffer {trace}",
        f"points {function} {first}",
        f"sym {' '.join(hex(pc) for pc in dict.fromkeys(pcs))}",
        f"sym {buffers[second][0]['address']} --address",
        f"why {first}",
        f"why {second}",
        *handles,
    ]


STATE = ("tasks -a", "objects", "areas", "remote", "percpu", "check", "check -a", "last -a")
# A healthy state has no findings, and not every one has areas or interrupted sessions.
MAYBE_NOTHING = ("areas", "percpu", "check")


def gather(
    ask: Callable[[Sequence[str]], Answers], directory: Path, compared: int = 5
) -> tuple[list[str], Answers]:
    """Return the lines, and what kcovdbg answers to them."""
    tasks = ask(["tasks"]).rows("tasks")
    # Of tasks that sleep: their buffers are the same whenever they are read.
    covered = [
        row["pid"]
        for row in tasks
        if row["count"] and row["role"] == "local" and row["beneath"] is None
    ][:compared]
    assert len(covered) == compared
    buffers = ask([f"buffer {pid}" for pid in covered])
    running = [
        row["pid"] for row in tasks if not row["in_ctxsw"] and row["kcov"] not in (None, "0x0")
    ]
    lines = [
        *STATE,
        *lines_about(tasks, {pid: buffers.rows(f"buffer {pid}") for pid in covered}, directory),
        *(f"last {pid}" for pid in covered),
        *(f"why {pid}" for pid in running),
    ]
    lines = list(dict.fromkeys(lines))
    return lines, ask(lines)


def check_same(
    lines: Sequence[str], in_gdb: Answers, outside: Answers, *, is_live: bool = False
) -> None:
    """Compare answers byte for byte.

    :param is_live: whether the kernel runs outside of GDB: the stacks of its tasks, which decide
        lines, are then not used.
    """
    for line in lines:
        if is_live and line.startswith("source"):
            found = [
                [{**row, "state": None, "reason": None, "hits": None} for row in one.rows(line)]
                for one in (in_gdb, outside)
            ]
            assert found[0] == found[1] != [], line
            continue
        assert line in MAYBE_NOTHING or outside.rows(line), (
            f"{line} answers nothing: it proves nothing"
        )
        assert in_gdb.texts[line] == outside.texts[line], line
    # Where part of an answer is missing, a remark says so.
    assert not any(part in in_gdb.remarks for part in ("mappings", "vmalloc", "slab", "stacks"))


@pytest.mark.parametrize("state", [situation.STANDING, "softirq-over-local"])
@pytest.mark.parametrize("dump_format", ["elf-paging", "elf"])
def test_on_a_dump(kernel, inflight_dump, state, dump_format, tmp_path):
    """With the kernel's addresses, and with physical ones only, of which GDB itself reads
    nothing.
    """
    have_table(kernel)
    path = inflight_dump(state, dump_format).path
    compared = 5 if state == situation.STANDING else 2
    lines, outside = gather(
        lambda asked: ask_kcovdbg(["-c", path], kernel.vmlinux, asked), tmp_path, compared
    )
    check_same(lines, ask_gdb([kernel.vmlinux, path], lines), outside)


def check_stub(guest: Guest, directory: Path, way: str = "--qemu", program: str = "gdb") -> None:
    """Compare on a guest, outside of GDB by one way in.

    :param way: the words of tasks that are stopped on a CPU are known to a debugger that has
        stopped them, and not to QMP.
    """
    vmlinux = guest.kernel.vmlinux
    have_table(guest.kernel)
    # GDB comes last: a stub that is left lets the guest run.
    with guest.paused():
        lines, outside = gather(
            lambda asked: ask_kcovdbg(guest.target(way)[:2], vmlinux, asked), directory
        )
        in_gdb = ask_gdb([vmlinux], lines, [f"target remote {guest.sockets.gdb_remote}"], program)
    check_same(lines, in_gdb, outside, is_live=True)


def check_slice(
    kernel: Kernel, dump: Path, directory: Path, compared: int = 5, program: str = "gdb"
) -> None:
    """Compare on a slice of a dump."""
    path = directory / "slice.elf"
    have_table(kernel)
    run_kcovdbg("-c", dump, "-s", kernel.vmlinux, "slice", "-o", path, status=0)
    lines, outside = gather(
        lambda asked: ask_kcovdbg(["-c", path], kernel.vmlinux, asked), directory, compared
    )
    check_same(lines, ask_gdb([kernel.vmlinux, path], lines, program=program), outside)


def test_through_the_stub(standing_guest, tmp_path):
    check_stub(standing_guest, tmp_path)


def test_on_a_slice(kernel, standing_dump, tmp_path):
    check_slice(kernel, standing_dump().path, tmp_path)
