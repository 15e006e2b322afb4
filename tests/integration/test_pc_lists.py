# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lists of PCs as tools write them, read for the demo's kernel; they hold what task 41 executed, and what others did."""

import random
from pathlib import Path

import pytest

from kcovdbg.commands import COMMANDS
from kcovdbg.console.argument import Value
from kcovdbg.console.buffer_sources import read_trace_file
from kcovdbg.records.pc_file import NotATraceError

LISTS = Path(__file__).parents[1] / "golden" / "pc_lists"
OFFSET = 0x22600000
TASKS = (41, 34, 42, 43, 36, 56)


@pytest.fixture(scope="module")
def recorded(opened_demo):
    """What the kernel's memory has of some tasks."""
    return {task: [int(row["pc"], 16) for row in opened_demo.ask(f"buffer {task} --raw")] for task in TASKS}


def read(demo, path):
    return read_trace_file(str(path), demo.kernel.trace_kernel)


CALLS = "100% of them are calls of coverage points"
RAW = "100% of them are return addresses of coverage points"
KINDS = {
    "bom.txt": (36, CALLS),
    "comma.txt": (36, CALLS),
    "cover.gz": (36, CALLS),
    "log.txt": (47, RAW),
    "m41.txt": (36, CALLS),
    "d41.log": (36, CALLS),
    "rcf41.csv": (108, CALLS),
    "pcm1.txt": (47, "100% of them are return addresses minus 1"),
    "double.txt": (36, "100% of them are calls minus 5: the call was subtracted twice"),
    "mix.txt": (83, "47 are return addresses of coverage points, 36 are calls of coverage points"),
    "kaslr.txt": (47, f"{RAW}, with the KASLR offset {OFFSET:#x} included"),
    "count.txt": (47, RAW),
    "dec.txt": (36, CALLS),
    "x.sancov": (36, CALLS),
    "modcall.txt": (81, CALLS),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind(opened_demo, recorded, name):
    count, remark = KINDS[name]
    buffer = read(opened_demo, LISTS / name)
    assert buffer.count == count
    assert buffer.remarks[0].endswith(remark)
    assert not any("in any convention" in other for other in buffer.remarks)
    assert any("1 line without an address skipped" in other for other in buffer.remarks) is (name == "log.txt")
    if name == "rcf41.csv":
        assert set(buffer.words) > set(recorded[41])
    elif name != "modcall.txt":
        assert set(buffer.words) == set(recorded[41])
        if count >= 47:
            assert list(buffer.words[:47]) == recorded[41]


def test_a_module_that_is_off_by_a_constant(opened_demo):
    right, shifted = (read(opened_demo, LISTS / name) for name in ("modcall.txt", "modshift.txt"))
    assert list(shifted.words) == list(right.words)
    assert any(remark.startswith("14 PCs in module kcovlab_keep are 0x18 too high") for remark in shifted.remarks)


READERS = [
    command.name
    for command in COMMANDS
    if command.name != "catch" and any(argument.value is Value.BUFFER for argument in command.arguments)
]


@pytest.mark.parametrize("name", ["html404.txt", "notready.txt", "l41.info"])
@pytest.mark.parametrize("command", READERS)
def test_every_command_refuses_what_is_no_trace(opened_demo, name, command, tmp_path):
    """With one status and one message."""
    path = f"file:{LISTS / name}"
    words = {
        "export": f"export lcov {path} -o {tmp_path / 'e'}",
        "keep": f"keep @x {path}",
        "points": f"points vfs_read {path}",
        "diff": f"diff {path} 41",
        "view": f"view --text {path}",
        "report": f"report {path} -o {tmp_path / 'e'}",
    }
    with pytest.raises(NotATraceError) as caught:
        read(opened_demo, LISTS / name)
    output, errors = opened_demo.run(words.get(command, f"{command} {path}"), 2)
    assert (output, errors.splitlines()[0]) == ("", f"kcovdbg: {caught.value}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", READERS)
def test_every_command_on_traces_takes_the_options(command):
    names = {name for argument in COMMANDS.find(command).arguments for name in argument.names}
    assert {"--format", "--pc", "--kaslr-offset"} <= names


@pytest.fixture
def cover_files(tmp_path):
    for folder in ("exec_a", "exec_b"):
        (tmp_path / folder).mkdir()
        for file in (LISTS / folder).iterdir():
            (tmp_path / folder / file.name).write_bytes(file.read_bytes())
    (tmp_path / "exec_a" / "cov_prog1.2").touch()
    return tmp_path


def test_directories_of_cover_files(opened_demo, cover_files):
    everything = [int(line, 16) for path in (cover_files / "exec_a").iterdir() for line in path.read_text().split()]
    assert sum(row["count"] for row in opened_demo.ask(f"top file:{cover_files}/exec_a/")) == len(everything)
    assert sum(row["count"] for row in opened_demo.ask(f"top 'file:{cover_files}/exec_a/*.1' --by pc")) == 16
    rows = opened_demo.ask(f"diff file:{cover_files}/exec_a/ file:{cover_files}/exec_b/", 1)
    right = {int(line, 16) for line in (cover_files / "exec_b" / "cov_prog1.0").read_text().split()}
    # The calls of a program are one run: nothing flickers.
    assert {(row["side"], int(row["pc"], 16) - 5) for row in rows} == {("left", pc) for pc in set(everything) - right}
    opened_demo.run(f"diff file:{cover_files}/exec_a/ file:{cover_files}/exec_a/")


def test_other_files_in_a_directory_are_left_out(opened_demo, cover_files):
    for name in ("a.html", "z.html"):
        (cover_files / "exec_b" / name).write_text("<html>")
    assert sum(row["count"] for row in opened_demo.ask(f"top file:{cover_files}/exec_b")) == 30
    assert opened_demo.ask(f"diff file:{cover_files}/exec_b file:{cover_files}/exec_b") == []
    (cover_files / "exec_b" / "cov_prog1.0").unlink()
    for line in (f"top file:{cover_files}/exec_b", f"diff file:{cover_files}/exec_b file:{cover_files}/exec_a"):
        opened_demo.run(line, 2)


def test_home_directories_are_expanded(opened_demo, cover_files, monkeypatch):
    monkeypatch.setenv("HOME", str(cover_files))
    assert sum(row["count"] for row in opened_demo.ask("top file:~/exec_b")) == 30
    assert sum(row["count"] for row in opened_demo.ask("top file:~/exec_b/cov_prog1.0")) == 30
    names = ("file:~/exec_b/cov_prog1.0", f"file:{cover_files}/exec_b/cov_prog1.0")
    by_home, by_path = (opened_demo.ask(f"points __do_sys_ppoll {name}") for name in names)
    assert by_home == by_path


FORMATS = ("hex", "rawcover", "rawcoverfiles", "jsonl", "modoff", "drcov")


@pytest.mark.parametrize("task", [41, 34, 43])
@pytest.mark.parametrize("name", FORMATS)
def test_exports_are_read_back(opened_demo, recorded, tmp_path, task, name):
    out = tmp_path / "x"
    opened_demo.run(f"export {name} {task} -o {out}")
    words = read(opened_demo, out).words
    found, wanted = set(words), {pc for pc in recorded[task] if pc}
    assert name != "hex" or list(words) == [pc for pc in recorded[task] if pc]
    if name in ("hex", "rawcover", "modoff", "drcov"):
        assert found == wanted
    # These have points of .text alone: none after tail calls.
    assert len(wanted - found) < 0.1 * len(wanted)
    assert found <= wanted or name == "rawcoverfiles"


@pytest.mark.parametrize(
    ("line", "kind"),
    [("export lcov", "lcov"), ("export cobertura", "cobertura"), ("export funccover", "funccover"), ("report", "html")],
)
def test_exports_without_pcs_are_refused(opened_demo, tmp_path, line, kind):
    opened_demo.run(f"{line} 41 -o {tmp_path}/x.html")
    with pytest.raises(NotATraceError) as caught:
        read(opened_demo, tmp_path / "x.html")
    assert kind in caught.value.found.lower()


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("correction", [0, 1, 5, 10])
@pytest.mark.parametrize("offset", [0, OFFSET, 0x1A00000])
def test_what_real_tasks_executed(opened_demo, recorded, tmp_path, task, correction, offset):
    pcs = [pc for pc in recorded[task] if pc]
    # Fewer than 20 do not decide what they are.
    pcs = pcs * 3 if len(set(pcs)) >= 20 else [*pcs, *recorded[41]]
    path = tmp_path / "t"
    path.write_text("".join(f"{pc - correction + offset:#x}\n" for pc in pcs))
    buffer = read(opened_demo, path)
    # Records that a damaged buffer has are no points, and left as they are.
    wrong = [word for word, pc in zip(buffer.words, pcs, strict=True) if word != pc]
    assert len(wrong) < 0.1 * len(pcs)
    assert not {*wrong}.intersection(opened_demo.kernel.names.table.pcs())


def test_random_addresses_of_code_are_damage(opened_demo, recorded, tmp_path):
    source = random.Random(3)
    points = {*opened_demo.kernel.names.table.pcs()}
    noise = [0xFFFFFFFF81000000 + source.randrange(0x7FFFFF) for _ in range(100)]
    noise = [pc for pc in noise if not any(pc + delta in points for delta in (0, 1, 5, 10))]
    path = tmp_path / "t"
    path.write_text("".join(f"{pc:#x}\n" for pc in recorded[41] * 5 + noise))
    buffer = read(opened_demo, path)
    named = ", ".join(map(str, range(235, 240)))
    assert any(f"{len(noise)} of {235 + len(noise)} PCs" in one and f"records {named}, …" in one for one in buffer.remarks)
    assert list(buffer.words) == recorded[41] * 5 + noise
