# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lists of PCs as tools write them, read for the demo's kernel; they hold what task 41 executed,
and what others did.
"""

import random
import re
from pathlib import Path

import pytest

from kcovdbg.commands import COMMANDS
from kcovdbg.console.argument import Value
from kcovdbg.inputs.buffer_sources import read_trace_file
from kcovdbg.records.pc_file import NotATraceError
from kcovdbg.symbols.coverage_points import PointKind
from tests.lab.kcovdbg_run import run_kcovdbg
from tests.support.programs import output_of

LISTS = Path(__file__).parents[1] / "golden" / "pc_lists"
OFFSET = 0x22600000
TASKS = (41, 34, 42, 43, 36, 56)


@pytest.fixture(scope="module")
def recorded(opened_demo):
    """What the kernel's memory has of some tasks."""
    return {
        task: [int(row["pc"], 16) for row in opened_demo.ask(f"buffer {task} --raw")]
        for task in TASKS
    }


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
    assert any("1 line without an address skipped" in other for other in buffer.remarks) is (
        name == "log.txt"
    )
    if name == "rcf41.csv":
        assert set(buffer.words) > set(recorded[41])
    elif name != "modcall.txt":
        assert set(buffer.words) == set(recorded[41])
        if count >= 47:
            assert list(buffer.words[:47]) == recorded[41]


def test_a_module_that_is_off_by_a_constant(opened_demo):
    right, shifted = (read(opened_demo, LISTS / name) for name in ("modcall.txt", "modshift.txt"))
    assert list(shifted.words) == list(right.words)
    assert any(
        remark.startswith("14 PCs in module kcovlab_keep are 0x18 too high")
        for remark in shifted.remarks
    )


READERS = [
    command.name
    for command in COMMANDS
    if command.name != "catch"
    and any(argument.value is Value.BUFFER for argument in command.arguments)
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
        "why": f"why vfs_read {path}",
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
    everything = [
        int(line, 16)
        for path in (cover_files / "exec_a").iterdir()
        for line in path.read_text().split()
    ]
    assert sum(row["count"] for row in opened_demo.ask(f"top file:{cover_files}/exec_a/")) == len(
        everything
    )
    assert (
        sum(row["count"] for row in opened_demo.ask(f"top 'file:{cover_files}/exec_a/*.1' --by pc"))
        == 16
    )
    rows = opened_demo.ask(f"diff file:{cover_files}/exec_a/ file:{cover_files}/exec_b/", 1)
    right = {int(line, 16) for line in (cover_files / "exec_b" / "cov_prog1.0").read_text().split()}
    # The calls of a program are one run: nothing flickers.
    assert {(row["side"], int(row["pc"], 16) - 5) for row in rows} == {
        ("left", pc) for pc in set(everything) - right
    }
    opened_demo.run(f"diff file:{cover_files}/exec_a/ file:{cover_files}/exec_a/")


def test_other_files_in_a_directory_are_left_out(opened_demo, cover_files):
    for name in ("a.html", "z.html"):
        (cover_files / "exec_b" / name).write_text("<html>")
    assert sum(row["count"] for row in opened_demo.ask(f"top file:{cover_files}/exec_b")) == 30
    assert opened_demo.ask(f"diff file:{cover_files}/exec_b file:{cover_files}/exec_b") == []
    (cover_files / "exec_b" / "cov_prog1.0").unlink()
    for line in (
        f"top file:{cover_files}/exec_b",
        f"diff file:{cover_files}/exec_b file:{cover_files}/exec_a",
    ):
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
    [
        ("export lcov", "lcov"),
        ("export cobertura", "cobertura"),
        ("export funccover", "funccover"),
        ("report", "html"),
    ],
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
    assert any(
        f"{len(noise)} of {235 + len(noise)} PCs" in one and f"records {named}, …" in one
        for one in buffer.remarks
    )
    assert list(buffer.words) == recorded[41] * 5 + noise


@pytest.fixture
def foreign(tmp_path):
    """A list of another build's PCs."""
    source = random.Random(5)
    path = tmp_path / "foreign.txt"
    path.write_text(
        "".join(f"{0xFFFFFFFF81000000 + source.randrange(0x7FFFFF):#x}\n" for _ in range(200))
    )
    return path


def test_lists_of_another_build(opened_demo, foreign, tmp_path):
    out = tmp_path / "out"
    lines = [
        f"export {name} file:{foreign} -o {out}"
        for name in (*FORMATS, "lcov", "cobertura", "funccover")
    ]
    for line in (*lines, f"report file:{foreign} -o {out}"):
        opened_demo.run(line, 2)
        assert not out.exists()
    opened_demo.run(f"{lines[1]} --force")
    assert len(out.read_text().split()) == 200
    for command in ("top", "buffer"):
        text = opened_demo.run(f"{command} file:{foreign}")[0].splitlines()
        assert text[1].startswith("note: PCs in the file: ")
        assert sum("PCs in the file" in line for line in text) == 1
        assert "PCs in the file" in opened_demo.run(f"{command} file:{foreign} --json")[1]


def test_few_pcs_are_exported_as_the_user_says(opened_demo, recorded, tmp_path):
    path, out = tmp_path / "few.txt", tmp_path / "out"
    pcs = sorted({pc for pc in recorded[41] if pc})[:12]
    path.write_text("".join(f"{pc - 5:#x}\n" for pc in pcs))
    assert "--pc call" in opened_demo.run(f"export lcov file:{path} -o {out}", 2)[1]
    opened_demo.run(f"export hex file:{path} --pc call -o {out}")
    assert [int(line, 16) for line in out.read_text().split()] == pcs


def test_top_has_the_address_as_in_the_file(opened_demo):
    for name, correction in (
        ("double.txt", 10),
        ("pcm1.txt", 1),
        ("kaslr.txt", -OFFSET),
        ("mix.txt", None),
    ):
        words = {int(line, 16) for line in (LISTS / name).read_text().split()}
        rows = opened_demo.ask(f"top file:{LISTS / name} --by pc")
        assert {int(row["file_pc"], 16) for row in rows} <= words
        assert correction is None or all(
            int(row["pc"], 16) - int(row["file_pc"], 16) == correction for row in rows
        )
    assert {row["file_pc"] for row in opened_demo.ask("top 41")} == {None}


def test_what_needs_an_order(opened_demo, recorded, tmp_path):
    """A list that is sorted has none: no call tree is drawn through it."""
    listed, ordered = tmp_path / "sorted.txt", tmp_path / "run.txt"
    pcs = [pc for pc in recorded[41] if pc]
    listed.write_text("".join(f"{pc:#x}\n" for pc in sorted(set(pcs))))
    ordered.write_text("".join(f"{pc:#x}\n" for pc in pcs))
    for line in (
        "trace {}",
        "trace {} --unique",
        "diff --ordered {} 41",
        "diff --ordered 41 {}",
        "trace 41 --against {}",
    ):
        opened_demo.run(line.format(f"file:{listed}"), 2)
        opened_demo.run(line.format(f"file:{ordered}"), None)
    for line in ("view --text {}", "buffer {} --tail"):
        assert "have no order" in opened_demo.run(line.format(f"file:{listed}"))[0]
        assert "have no order" not in opened_demo.run(line.format(f"file:{ordered}"))[0]
    for path, has_none in ((listed, True), (ordered, False)):
        opened_demo.run(f"report file:{path} -o {tmp_path}/page.html")
        assert ("have no order" in (tmp_path / "page.html").read_text()) is has_none


def test_pcs_and_comparisons_are_not_compared(opened_demo, tmp_path):
    """Task 35 records comparisons."""
    for line in (
        "diff 34 35",
        "diff --ordered 34 35",
        "diff 35 -- 34 41",
        "trace 34 --against 35",
        "view --text 34 35",
    ):
        error = opened_demo.run(line, 2)[1]
        assert {"TRACE_PC", "TRACE_CMP"} <= set(re.findall(r"\w+", error)), line
    opened_demo.run(f"report 34 35 -o {tmp_path}/x.html", 2)
    opened_demo.run("diff 35 35")


def test_hits_of_kinds_that_the_mode_does_not_record_are_unknown(opened_demo):
    for task, kind in ((34, "pc"), (35, "cmp")):
        rows = opened_demo.ask(f"points fs/select.c {task}")
        assert {row["kind"] for row in rows} >= {"pc", "cmp"}
        assert all((row["hits"] is None) == (row["kind"] != kind) for row in rows)
    rows = opened_demo.ask("points fs/select.c 34 35")
    assert all(row["hits"] is not None for row in rows)


@pytest.mark.parametrize(
    "command", ["top", "buffer", "trace", "source", "export hex", "points vfs_read", "view --text"]
)
def test_a_kernel_that_was_named_is_read(command, tmp_path):
    (tmp_path / "empty").touch()
    for name in ("missing", "empty"):
        run_kcovdbg("-s", tmp_path / name, "-e", f"{command} file:{LISTS / 'pcm1.txt'}", status=2)


def test_what_an_address_is(opened_demo, recorded):
    """A call and its return address are one point; --pc decides."""
    for pc in sorted({pc for pc in recorded[41] if pc})[:20]:
        (truth,) = opened_demo.ask(f"sym {pc:#x}")
        for convention, correction in (("raw", 0), ("call", 5), ("minus1", 1), ("twice", 10)):
            (named,) = opened_demo.ask(f"sym {pc - correction:#x} --pc {convention}")
            assert (named["pc"], named["frames"]) == (truth["pc"], truth["frames"])
            if convention != "twice":
                (found,) = opened_demo.ask(f"sym {pc - correction:#x}")
                assert (found["pc"], found["frames"]) == (truth["pc"], truth["frames"])
                assert any(convention in error for error in found["errors"]) is (
                    convention != "raw"
                )
        (exact,) = opened_demo.ask(f"sym {pc - 5:#x} --pc raw")
        assert exact["pc"] == hex(pc - 5)


def test_points_of_every_name_of_code(demo, opened_demo):
    """Names and code are those of nm and objdump: of a third name of a function, and of a label of
    assembly.
    """
    by_address = {}
    for line in output_of("nm", demo.vmlinux).splitlines():
        address, kind, name = line.split()
        if kind in "tTwW":
            by_address.setdefault(int(address, 16), []).append(name)
    names = next(names for names in by_address.values() if "compat_sys_epoll_pwait" in names)
    assert len(names) > 10
    start = next(address for address, its in by_address.items() if its is names)
    code = output_of(
        "objdump",
        "-d",
        f"--start-address={start:#x}",
        f"--stop-address={start + 16:#x}",
        demo.vmlinux,
    )
    calls = [
        int(at, 16) + 5
        for at in re.findall(r"^(\w+):.*call.*__sanitizer_cov_trace_pc", code, re.MULTILINE)
    ]
    assert calls
    for name in names:
        assert [int(row["pc"], 16) for row in opened_demo.ask(f"points {name}")] == calls, name
    assert opened_demo.ask("points startup_64", 1) == []
    opened_demo.run("points no_such_function", 2)


def test_points_that_syzkaller_leaves_out_are_named(demo, opened_demo, tmp_path):
    """Of other sections than .text, and of code without a symbol: they are points elsewhere."""
    table = opened_demo.kernel.names.table
    init = next(text for text in table.text_ranges() if text.name == ".init.text")
    points = table.pcs(PointKind.PC)
    inside = [pc for pc in points if init.start < pc <= init.end and table.function_at(pc - 5)][:40]
    nameless = [pc for pc in points if pc < init.start and table.function_at(pc - 5) is None][:10]
    text = [pc for pc in points if pc < init.start and table.function_at(pc - 5) is not None][
        1000:1100
    ]
    path, out = tmp_path / "list.txt", tmp_path / "out"
    path.write_text(
        "".join(f"{pc:#x}\n" for pc in random.Random(1).sample([*inside, *nameless, *text], 150))
    )
    for name in ("funccover", "jsonl", "rawcoverfiles"):
        said = opened_demo.run(f"export {name} file:{path} -o {out}")[0]
        found = re.findall(r"(\d+) of 150 PCs are .*syzkaller leaves out", said)
        assert sorted(map(int, found)) == [10, 40]
        assert re.search(r"40 of 150 PCs are in \.init\.text", said)
        assert "tail calls" not in said
    for name in ("lcov", "rawcover", "modoff"):
        assert "PCs are" not in opened_demo.run(f"export {name} file:{path} -o {out}")[0].replace(
            "PCs in the file", ""
        )


def test_an_image_without_code_does_not_vouch_for_a_list(demo, tmp_path, recorded):
    """It names the demo's PCs, although it is another kernel."""
    path = tmp_path / "list"
    path.write_text("".join(f"{pc:#x}\n" for pc in recorded[41]))
    image = demo.vmlinux.parent / "calls" / "vmlinux"
    for options in ((), ("--pc", "raw")):
        done = run_kcovdbg("-s", image, "top", f"file:{path}", *options, "--json", status=0)
        assert "of this kernel is unknown" in done.stderr
        done = run_kcovdbg("--demo", "top", f"file:{path}", *options, "--json", status=0)
        assert "is unknown" not in done.stderr
