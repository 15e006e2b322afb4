# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lists of executed addresses, read for the demo's kernel and for one without KCOV; llvm-symbolizer
says where each is.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess

import pytest

from kcovdbg.records.line_states import make_finder
from kcovdbg.symbols.table_cache import find_table_key, open_table
from tests.lab.kcovdbg_run import run_kcovdbg

OFFSET = 0x3600000
LOG = "Trace 0: 0x7f3c40000000 [0000000000000000/{:016x}/00004093/ff000000] \n"


def symbolize(image, addresses):
    """Return file and line of the frames of each address, innermost first."""
    if shutil.which("llvm-symbolizer") is None:
        pytest.skip("needs llvm-symbolizer")
    text = "".join(f"{address:#x}\n" for address in addresses)
    command = ["llvm-symbolizer", "-e", image, "--output-style=JSON"]
    answer = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    return [
        [(frame["FileName"], frame["Line"]) for frame in json.loads(line)["Symbol"]]
        for line in answer.splitlines()
    ]


def ask(image, *words):
    return json.loads(run_kcovdbg("-s", image, *words, "--json", status=0).stdout)


def is_same(found, truth):
    return found["line"] == truth[1] and truth[0].endswith(found["file"].removeprefix("./"))


@pytest.fixture(scope="module")
def starts(demo):
    """Some starts of blocks with source lines."""
    ask(demo.vmlinux, "points", "vfs_read")
    table = open_table(find_table_key(demo.vmlinux, None), None)
    base = table.blocks.base
    chosen = random.Random(7).sample(
        [base + start for start in make_finder(table).find_starts()], 400
    )
    truth = symbolize(demo.vmlinux, chosen)
    return {
        address: frames
        for address, frames in zip(chosen, truth, strict=True)
        if frames and frames[0][1]
    }


@pytest.mark.parametrize("offset", [0, OFFSET])
@pytest.mark.parametrize("is_log", [False, True])
def test_frames_are_those_of_the_address(demo, starts, tmp_path, offset, is_log):
    path = tmp_path / "list"
    path.write_text(
        "".join((LOG if is_log else "{:#x}\n").format(address + offset) for address in starts)
    )
    rows = ask(demo.vmlinux, "buffer", f"file:{path}", "--raw")
    assert [int(row["pc"], 16) for row in rows] == list(starts)
    assert [int(row["address"], 16) for row in rows] == list(starts)
    for row, truth in zip(rows, starts.values(), strict=True):
        assert len(row["frames"]) == len(truth)
        assert all(map(is_same, row["frames"], truth)), (row, truth)
        assert set(row["errors"]) <= {"init text"}
    tops = ask(demo.vmlinux, "top", f"file:{path}", "--by", "pc")
    assert {int(row["pc"], 16) for row in tops} == set(starts)
    for row in tops:
        assert is_same(row, starts[int(row["pc"], 16)][0])


def test_lines_of_addresses_are_executed(demo, starts, tmp_path):
    path, info = tmp_path / "list", tmp_path / "info"
    path.write_text("".join(f"{address:#x}\n" for address in starts))
    lines = {
        (row["file"].removeprefix("./"), row["line"]): row
        for row in ask(demo.vmlinux, "source", f"file:{path}")
    }
    by_end = {
        (file.rpartition("/")[2], line) for frames in starts.values() for file, line in frames[:1]
    }
    executed = {
        (file.rpartition("/")[2], line)
        for (file, line), row in lines.items()
        if row["state"] in ("executed", "partly")
    }
    # Others were moved: no statement of theirs begins there.
    unknown = {
        (file.rpartition("/")[2], line)
        for (file, line), row in lines.items()
        if row["reason"] is not None
    }
    assert by_end - executed <= unknown
    assert len(by_end & executed) > 0.8 * len(by_end)
    assert not any(row["state"] == "not-executed" for row in lines.values())
    run_kcovdbg("-s", demo.vmlinux, "export", "lcov", f"file:{path}", "-o", info, status=0)
    counted = info.read_text().splitlines()
    assert any(line.startswith("FNDA:") for line in counted)
    assert not any(line.startswith("DA:") and line.endswith(",0") for line in counted)


def test_nine_addresses(demo, starts, tmp_path):
    path = tmp_path / "list"
    chosen = list(starts)[:9]
    path.write_text("".join(f"{address:#x}\n" for address in chosen))
    rows = ask(demo.vmlinux, "buffer", f"file:{path}", "--raw")
    assert [
        is_same(row["frames"][0], starts[address][0])
        for row, address in zip(rows, chosen, strict=True)
    ] == [True] * 9
    rows = ask(demo.vmlinux, "sym", hex(chosen[0]), "--pc", "exact")
    assert is_same(rows[0]["frames"][0], starts[chosen[0]][0])
    assert run_kcovdbg(
        "-s", demo.vmlinux, "export", "hex", f"file:{path}", status=0
    ).stdout.split() == list(map(hex, chosen))


@pytest.mark.parametrize("words", ["export rawcover {}", "diff {} {}", "report {} -o {}.html"])
def test_what_needs_points(demo, starts, tmp_path, words):
    path = tmp_path / "list"
    path.write_text("".join(f"{address:#x}\n" for address in starts))
    run_kcovdbg("-s", demo.vmlinux, *words.format(*[f"file:{path}"] * 2).split(), status=2)


def test_points_of_executed_blocks(demo, tmp_path):
    points = ask(demo.vmlinux, "points", "vfs_read")
    (start,) = {int(row["address"], 16) for row in ask(demo.vmlinux, "sym", "vfs_read")} or {0}
    path = tmp_path / "log"
    path.write_text(LOG.format(start))
    rows = ask(demo.vmlinux, "points", "vfs_read", f"file:{path}")
    assert len(rows) == len(points)
    # What follows is unknown.
    assert {row["hits"] for row in rows if row["kind"] == "pc"} == {1, None}


SOURCE = """
static __attribute__((noinline)) int twice(int number) { return number * 2; }
__attribute__((noinline)) int plain(int number)
{
    if (number > 3)
        return twice(number);
    return number - 1;
}
volatile int input, output;
void _start(void) { for (;;) output = plain(input); }
"""


def test_kernel_without_kcov(tmp_path):
    (tmp_path / "k.c").write_text(SOURCE)
    image = tmp_path / "vmlinux"
    flags = [
        "-O2",
        "-g",
        "-nostdlib",
        "-static",
        "-fno-pic",
        "-no-pie",
        "-mcmodel=kernel",
        "-fcf-protection=none",
    ]
    flags += ["-Wl,--build-id", "-Wl,-Ttext=0xffffffff81000000"]
    subprocess.run(["gcc", *flags, "-o", image, "k.c"], cwd=tmp_path, check=True)
    symbols = subprocess.run(["nm", image], capture_output=True, text=True, check=True).stdout
    at = {name: int(address, 16) for address, _, name in map(str.split, symbols.splitlines())}
    path = tmp_path / "log"
    path.write_text(f"----------------\nIN: plain\n{at['plain']:#x}:  c3    ret\n")
    states = {row["line"]: row["state"] for row in ask(image, "source", f"file:{path}", "k.c")}
    assert states[5] == "executed"
    rows = ask(image, "points", "k.c", f"file:{path}", "--by", "function")
    assert {row["name"]: row["executed_functions"] for row in rows} == {
        "plain": 1,
        "twice": 0,
        "_start": 0,
    }
    run_kcovdbg("-s", image, "points", "plain", status=2)
