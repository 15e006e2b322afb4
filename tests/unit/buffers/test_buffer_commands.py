# SPDX-License-Identifier: LGPL-2.1-or-later
"""The commands that look at buffers, as a user types them; buffers are trace files, names are made
up.
"""

import json
import re
import struct
from dataclasses import replace

import pytest

from kcovdbg.console.runner import run_line, run_reporting
from kcovdbg.errors import CapabilityError, KcovdbgError, UsageError
from kcovdbg.model.location import Frame
from kcovdbg.records.pc_locations import LocationCache
from kcovdbg.symbols.awaited_table import AwaitedTable
from kcovdbg.symbols.symbolizer import Symbolizer
from kcovdbg.symbols.table_cache import TableBuild
from tests.support.state import set_options
from tests.support.stub import make_stub
from tests.support.traces import BASE, locate, pc

OFFSET = 0x1200000


@pytest.fixture
def workspace(named_workspace):
    return named_workspace


@pytest.fixture
def ask(workspace, streams):
    """Run a line; return what it wrote: rows of JSON, or lines of text."""

    def asked(line, status=0):
        assert run_line(workspace, line) == status
        output, _ = streams.take()
        return json.loads(output) if "--json" in line else output.splitlines()

    return asked


WORDS = [pc(1, 0), pc(1, 1), pc(1, 2), *[pc(2, 0), pc(3, 0)] * 10, pc(25, 0), 0, 0x1234]


def test_buffer_rows(trace, ask):
    rows = ask(f"buffer {trace('a.kcov', WORDS)} --raw --json")
    assert [row["index"] for row in rows] == list(range(len(WORDS)))
    assert [int(row["pc"], 16) for row in rows] == WORDS
    keys = {"index", "pc", "address", "kind", "symbol", "frames", "errors"}
    assert all(set(row) == keys for row in rows)
    assert rows[2] == {
        "index": 2,
        "pc": hex(pc(1, 2)),
        "address": hex(pc(1, 2) + OFFSET),
        "kind": "pc",
        "symbol": "fn_1",
        "frames": [
            {"function": "helper_1", "file": "include/helper.h", "line": 3, "column": 2},
            {"function": "fn_1", "file": "dir/file_0.c", "line": 102, "column": 1},
        ],
        "errors": [],
    }
    assert (rows[-2]["address"], rows[-2]["symbol"], rows[-2]["errors"]) == (
        None,
        None,
        ["no address"],
    )
    assert (rows[-1]["pc"], rows[-1]["symbol"], rows[-1]["errors"]) == (
        "0x1234",
        None,
        ["no kernel text"],
    )
    # Folded or not, records are records.
    assert ask(f"buffer {trace('a.kcov', WORDS)} --json") == rows


def test_buffer_text(trace, ask):
    lines = ask(f"buffer {trace('a.kcov', WORDS)}")
    assert lines[0].endswith("TRACE_PC, 26 of 125 records")
    assert lines[2].split() == ["0", "3", "fn_1", "dir/file_0.c:100-102"]
    assert lines[3].split()[:6] == ["3", "20", "loop", "over", "2", "functions"]
    assert "10 rounds" in lines[3]
    assert [line.split()[:3] for line in lines[4:8]] == [
        ["3", "1", "fn_2"],
        ["4", "1", "fn_3"],
        ["23", "1", "fn_25"],
        ["24", "1", "no"],
    ]
    raw = ask(f"buffer {trace('a.kcov', WORDS)} --raw")
    assert len([line for line in raw if line[:5].strip().isdecimal()]) == len(WORDS)
    assert "helper_1 ← fn_1" in raw[4]
    assert f"{pc(1, 2):#x}" in raw[4]
    assert f"{pc(1, 2) + OFFSET:#x}" in raw[4]


@pytest.mark.parametrize(
    ("options", "indexes"),
    [
        ("-n 2", [0, 1]),
        ("--tail -n 2", [24, 25]),
        ("--function helper_1", [2]),
        ("--function 'fn_[23]' -n 2", [3, 4]),
        ("--file dir/file_2.c", [23]),
        ("--file include", [2]),
        ("--not-function 'fn_[23]'", [0, 1, 2, 23, 24, 25]),
        # Inlined functions count as well.
        ("--not-function helper_1", [0, 1, *range(3, 26)]),
    ],
)
def test_parts_of_a_buffer(trace, ask, options, indexes):
    assert [
        row["index"] for row in ask(f"buffer {trace('a.kcov', WORDS)} --json {options}")
    ] == indexes


def test_first_and_last_lines(trace, ask):
    name = trace("a.kcov", WORDS)
    assert ask(f"buffer {name} -n 1")[2].split()[2] == "fn_1"
    assert ask(f"buffer {name} --tail -n 2")[2].split()[2] == "no"


def test_comparisons(trace, ask):
    words = [5, 0x2A, 0xFFFFFFFF, pc(1), 4, 0x74736574, 7, pc(2)]
    name = trace("c.kcov", words, "TRACE_CMP")
    rows = ask(f"buffer {name} --json")
    assert [
        (row["kind"], row["size"], row["const"], row["arg1"], row["arg2"], row["pc"])
        for row in rows
    ] == [
        ("cmp", 4, True, "0x2a", "0xffffffff", hex(pc(1))),
        ("cmp", 4, False, "0x74736574", "0x7", hex(pc(2))),
    ]
    lines = ask(f"buffer {name}")
    assert "0xffffffff (-1)" in lines[2]
    assert "0x2a (42)" in lines[2]
    assert '0x74736574 (1953719668) "test"' in lines[3]


def test_top(trace, ask):
    name = trace("a.kcov", [pc(1)] * 6 + [pc(2)] * 3 + [pc(25, 1)])
    rows = ask(f"top {name} --json")
    assert [(row["function"], row["count"], row["share"], row["repeats"]) for row in rows] == [
        ("fn_1", 6, 0.6, 5),
        ("fn_2", 3, 0.3, 2),
        ("fn_25", 1, 0.1, 0),
    ]
    assert [(row["file"], row["count"]) for row in ask(f"top {name} --by file --json")] == [
        ("dir/file_0.c", 9),
        ("dir/file_2.c", 1),
    ]
    assert [row["pc"] for row in ask(f"top {name} --by pc --json")] == [
        hex(pc(1)),
        hex(pc(2)),
        hex(pc(25, 1)),
    ]
    lines = ask(f"top {name} -n 1")
    assert "60.0%" in lines[2]
    assert any("2 more lines with 4 records" in line for line in lines)
    assert any("7 of 10 records (70%)" in line for line in lines)


def test_diff(trace, ask):
    left, right = trace("a", [pc(1), pc(2), pc(2), pc(3)]), trace("b", [pc(3), pc(1), pc(4)])
    rows = ask(f"diff {left} {right} --json", 1)
    assert [
        (row["side"], row["pc"], row["count"], row["frames"][0]["function"]) for row in rows
    ] == [
        ("left", hex(pc(2)), 2, "fn_2"),
        ("right", hex(pc(4)), 1, "fn_4"),
    ]
    lines = ask(f"diff {left} {right}", 1)
    assert lines[0] == "2 points on both sides"
    assert any(" -- " in line for line in lines)
    assert ask(f"diff {left} {left} --json") == []


def test_diff_of_several_runs(trace, ask, tmp_path):
    """A directory stands for the runs in it, a pattern for those that match: the answer is the same
    as with all their names.
    """
    for side in "ab":
        (tmp_path / side).mkdir()
    words = {"a/1": [1, 2, 5], "a/2": [1, 2, 6], "b/1": [1, 3, 5], "b/2": [1, 3], "b/.hidden": [2]}
    runs = {
        name: trace(name, [pc(number) for number in numbers]) for name, numbers in words.items()
    }
    line = f"diff {runs['a/1']} {runs['a/2']} -- {runs['b/1']} {runs['b/2']}"
    rows = ask(f"{line} --json", 1)
    assert [(row["side"], row["pc"], row["left_runs"], row["right_runs"]) for row in rows] == [
        ("left", hex(pc(2)), 2, 0),
        ("right", hex(pc(3)), 0, 2),
        ("flicker", hex(pc(5)), 1, 1),
        ("flicker", hex(pc(6)), 1, 0),
    ]
    assert not any(" -- " in text for text in ask(line, 1))
    # A point that flickers on one side only is no difference.
    assert ask(f"diff {runs['a/1']} {runs['a/1']} -- {runs['a/1']} {runs['a/1']} --json") == []
    folder = f"file:{tmp_path}"
    assert ask(f"diff {folder}/a {folder}/b --json", 1) == rows
    assert ask(f"diff {folder}/a/* -- {runs['b/1']} '{folder}/b/[2-9]' --json", 1) == rows
    # A remark that all traces have is given once.
    for number in range(3):
        trace(f"b/full{number}", [pc(1), pc(3)], size=3)
    assert [
        line
        for line in ask(f"diff {folder}/a {folder}/b", 1)
        if "of 5 traces" in line and "3 of" in line
    ]


def test_diff_in_order(trace, ask):
    words = [pc(number % 7, number % 5) for number in range(100)]
    left, right = trace("a", words), trace("b", [*words[:30], pc(9), pc(9, 1), *words[33:]])
    rows = ask(f"diff --ordered {left} {right} --json", 1)
    assert [(row["side"], row["index"]) for row in rows] == [
        ("left", 30),
        ("left", 31),
        ("left", 32),
        ("right", 30),
        ("right", 31),
    ]
    lines = ask(f"diff --ordered {left} {right}", 1)
    assert lines[0] == "97 records in both, 3 only left, 2 only right"
    assert ">       30      ×2  fn_9" in "\n".join(lines)
    assert ask(f"diff --ordered {left} {left} --json") == []


def test_keep(trace, ask, workspace):
    a, b = trace("a", [pc(1), pc(2)]), trace("b", [pc(2), pc(3)])
    assert ask(f"keep @a {a} --json")[0]["count"] == 2
    ask(f"keep @b {b}")
    assert [row["name"] for row in ask("keep --json")] == ["@a", "@b"]
    assert ask(f"diff @a {a} --json") == []
    assert [row["pc"] for row in ask("buffer @b --json")] == [hex(pc(2)), hex(pc(3))]
    ask("keep @a --delete")
    with pytest.raises(KcovdbgError, match="@a"):
        run_line(workspace, "buffer @a")


def test_trace_of_calls(trace, ask, workspace):
    low = (1 << 56) - 1
    words = [pc(1) & low, pc(1, 1), pc(2) & low, pc(2, 1), pc(2, 2) & low | 1 << 60, pc(3) & low]
    name = trace("t", words, "TRACE_PC_EXT")
    rows = ask(f"trace {name} --json")
    assert [
        (row["depth"], row["kind"], row["function"], row["index"], row["last"]) for row in rows
    ] == [
        (0, "unfinished", "fn_1", 0, 5),
        (1, "call", "fn_2", 2, 4),
        (1, "unfinished", "fn_3", 5, 5),
    ]
    assert [(row["records"], row["points"], row["rounds"]) for row in rows] == [
        (6, 1, 1),
        (3, 1, 1),
        (1, 0, 1),
    ]
    assert next((row["file"], row["line"], row["class"]) for row in rows) == (
        "dir/file_0.c",
        100,
        None,
    )
    assert [row["function"] for row in ask(f"trace {name} --depth 1 --json")] == ["fn_1"]
    assert [row["function"] for row in ask(f"trace {name} --function fn_2 --json")] == ["fn_2"]
    assert [row["function"] for row in ask(f"trace {name} --offset 1 -n 1 --json")] == ["fn_2"]
    assert [row["kind"] for row in ask(f"buffer {name} --raw --json")] == [
        "entry",
        "pc",
        "entry",
        "pc",
        "exit",
        "entry",
    ]
    with pytest.raises(UsageError, match="tree") as caught:
        run_line(workspace, f"tree {name}")
    assert "trace" in caught.value.hint


def test_trace_without_entries_in_a_format_that_may_have_them(trace, ask):
    points = [pc(1, 1), pc(2, 1), pc(2, 2)]
    name = trace("t", points, "TRACE_PC_EXT")
    assert ask(f"trace {name} --json") == ask(f"trace {trace('p', points)} --json") != []


def test_long_traces_of_calls_are_cut_in_text(trace, ask):
    low, end = (1 << 56) - 1, 1 << 60
    words = [
        word
        for number in range(120)
        for word in (pc(number % 20) & low, pc(number % 20) & low | end)
    ]
    name = trace("t", [pc(1) & low, *words, pc(1) & low | end], "TRACE_PC_EXT")
    assert len(ask(f"trace {name} --json")) == 121
    text = ask(f"trace {name}")
    assert len([line for line in text if "fn_" in line]) == 100
    assert len([line for line in ask(f"trace {name} -n 121") if "fn_" in line]) == 121


def test_depth_of_an_inferred_trace(trace, ask):
    name = trace("t", [pc(1, 0), pc(2, 0), pc(3, 0)])
    assert [row["depth"] for row in ask(f"trace {name} --json")] == [0, 1, 2]
    assert [row["function"] for row in ask(f"trace {name} --depth 2 --json")] == ["fn_1", "fn_2"]


def test_calls_tell_inlined_functions_from_recursion(trace, ask):
    low, end = (1 << 56) - 1, 1 << 60
    # fn_4 calls an inlined function without a name, one that debug info names, and itself.
    inner = (pc(4, 1), pc(4, 2), pc(4))
    words = [
        pc(4) & low,
        *(word for point in inner for word in (point & low, point & low | end)),
        pc(4) & low | end,
    ]
    name = trace("t", words, "TRACE_PC_EXT")
    *_, outer, unnamed, named, itself = ask(f"trace {name}")
    assert [line.split()[2] for line in (outer, unnamed, named, itself)] == [
        "fn_4",
        "fn_4",
        "helper_4",
        "fn_4",
    ]
    assert [len(line.split()) for line in (outer, named, itself)] == [len(outer.split())] * 3
    assert len(unnamed.split()) > len(outer.split())
    assert {row["function"] for row in ask(f"trace {name} --json")} == {"fn_4"}


def test_view_as_text(trace, ask, workspace, streams, monkeypatch):
    left, right = trace("a", WORDS), trace("b", [*WORDS[:5], pc(9), *WORDS[5:]])
    lines = ask(f"view {left} {right} --text --width 100")
    assert all(len(line) <= 100 for line in lines)
    assert sum(" > " in line for line in lines) == 1
    assert len([line for line in lines if "│" in line]) == len(WORDS) + 1
    # In a pipe from a terminal.
    streams.error_width = 90
    assert {len(line) for line in ask(f"view {left} {right} --text") if "│" in line} <= set(
        range(91)
    )
    assert ask(f"view {left} {right} --text") == ask(f"view {left} {right} --text --width 90")
    streams.error_width = None
    folded = ask(f"view {left} {right} --text --fold --width 100")
    assert any("equal records" in line for line in folded)
    assert len(ask(f"view {left} --text")) >= len(WORDS)
    with pytest.raises(KcovdbgError, match="view") as caught:
        run_line(workspace, f"view {left}")
    assert "--text" in caught.value.hint
    shown = []
    workspace.frontend = replace(workspace.frontend, has_screen=True)
    monkeypatch.setattr("kcovdbg.buffers.view_screen.show_view", shown.append)
    streams.width = 80
    run_line(workspace, f"view {left} {right}")
    assert len(shown) == 1


@pytest.mark.parametrize("tail", ["", " --tail"])
@pytest.mark.parametrize("count", range(1, 6))
def test_as_many_lines_as_were_asked_for(trace, ask, tail, count):
    """A loop that does not fit is one line, and the note says how many records are not shown."""
    name = trace("loops", [*[pc(2, 0), pc(3, 0)] * 10, pc(25, 0), *[pc(4, 0), pc(5, 0)] * 10])
    lines = [line.split() for line in ask(f"buffer {name} -n {count}{tail}")[2:]]
    notes = [" ".join(words) for words in lines if words[0] == "note:"]
    lines = [words for words in lines if words[0] != "note:"]
    assert 1 <= len(lines) <= count
    # The lines of a loop's first round follow the line of the loop.
    inner = 2 * sum(words[-2:] == ["the", "first:"] for words in lines)
    shown = sum(int(words[1]) for words in lines) - inner
    assert notes == (
        [f"note: {41 - shown} {'earlier' if tail else 'more'} records"] if shown < 41 else []
    )


def test_sym(ask, workspace):
    shifted = pc(1, 2) + OFFSET
    rows = ask(f"sym {pc(1, 2):x} {BASE + 0x1000000:#x} {shifted:x} --json")
    assert [(row["symbol"], row["errors"]) for row in rows] == [
        ("fn_1", []),
        (None, ["no kernel text"]),
        (None, [f"its KASLR offset is included: sym --address {shifted:#x}"]),
    ]
    assert ask(f"sym --address {shifted:x} --json")[0]["pc"] == hex(pc(1, 2))
    assert "inlined into fn_1" in "\n".join(ask(f"sym {pc(1, 2):x}"))
    # The table knows an address that nm prints.
    workspace.inputs.kernel.names.symbolizer = make_stub(
        Symbolizer, function_starting_at=lambda _pc: "fn_1"
    )
    (row,) = ask(f"sym {BASE + 0x1000000:#x} --json")
    assert row["errors"] == ["start of fn_1(), which is not a return address"]


def test_sym_of_what_is_no_code(ask, workspace):
    """The status is that of all words; each has a row nevertheless."""
    outside = f"{BASE + 0x1000000:#x}"
    for words in ([outside], ["no_such"], [outside, "no_such"]):
        line = f"sym {' '.join(words)}"
        rows = ask(f"{line} --json", status=1)
        assert [row["input"] for row in rows] == words
        assert all(row["symbol"] is None and row["errors"] for row in rows)
        with pytest.raises(KcovdbgError, match=words[0]) as caught:
            run_line(workspace, line)
        assert caught.value.status == 1
    shown = "\n".join(ask(f"sym {outside} {pc(1, 2):x}"))
    assert "1 of 2" in shown


def test_source_without_points(trace, ask, tmp_path, workspace):
    set_options(workspace.inputs.kernel, source_folders=(str(tmp_path),))
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "file_0.c").write_text(
        "".join(f"line_{number};\n" for number in range(1, 130))
    )
    name = trace("a", [pc(1, 0), pc(1, 0), pc(1, 2), pc(25)])
    rows = ask(f"source {name} --json")
    assert [(row["file"], row["line"], row["hits"], row["text"]) for row in rows] == [
        ("dir/file_0.c", 100, 2, "line_100;"),
        ("dir/file_0.c", 102, 1, "line_102;"),
        ("dir/file_2.c", 100, 1, None),
        ("include/helper.h", 3, 1, None),
    ]
    # Without a table nothing follows from records.
    assert {(row["state"], row["reason"]) for row in rows} == {("executed", None)}
    text = "\n".join(ask(f"source {name} fn_1"))
    assert "2 + 100  line_100;" in text
    assert "       97  line_97;" in text
    assert "file_2" not in text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("buffer", "WHAT"),
        ("buffer fd:3", "fd:PID/FD"),
        ("buffer nonsense", "nonsense"),
        ("buffer file:/none", "/none"),
        ("diff @a", "diff A B"),
        ("diff file:/usr file:/usr", "'/usr'"),
        ("diff 'file:/usr/*.kcov' file:/usr", r"'/usr/\*\.kcov'"),
        ("diff @a -- ", "--"),
        ("diff --ordered @a -- @b @c", "--ordered"),
        ("keep a 41", "@"),
        ("keep @a", "keep @a WHAT"),
        ("view file:/x --text --width 3", "--width 3"),
        ("points vfs_read", "coverage points|image"),
        ("top file:/none --by nothing", "nothing.*function, file, pc"),
    ],
)
def test_errors_are_one_line_with_a_hint(line, message, workspace, streams):
    assert run_reporting(workspace, line).status == 2
    output, errors = streams.take()
    assert output == ""
    assert re.search(message, errors)
    assert "Traceback" not in errors
    assert "internal error" not in errors


def test_damaged_files_give_what_there_is(ask, workspace, streams, tmp_path):
    (tmp_path / "x").write_bytes(struct.pack("<5Q", (1 << 64) - 1, 0, pc(1), 5, pc(1)) + b"\1\2\3")
    rows = ask(f"buffer file:{tmp_path / 'x'} --json")
    assert [row["symbol"] for row in rows] == [None, "fn_1", None, "fn_1"]
    assert run_reporting(workspace, f"top file:{tmp_path / 'x'}").status == 0
    assert "0xffffffffffffffff" in streams.take()[0]


def test_points_that_are_still_being_found(workspace, streams, monkeypatch):
    """On a slow machine the table takes long: the message does not blame the vmlinux."""
    monkeypatch.setattr("kcovdbg.console.point_table._PATIENCE", 0)
    problem = CapabilityError("disk full", hint="free some")
    for state, told in (
        ({"build": make_stub(TableBuild, find=lambda: None, progress=lambda: None)}, "being built"),
        ({}, "vmlinux"),
        ({"problem": problem}, "disk full.*free some"),
    ):
        workspace.inputs.kernel.names.awaited_table = AwaitedTable(**state)
        assert run_reporting(workspace, "points vfs_read").status == 2
        error = streams.take()[1]
        assert re.search(told, error, re.DOTALL)
        assert ("vmlinux" in error) is (told == "vmlinux")


NESTED = [
    pc(1, 0),
    *[pc(2, 0), pc(3, 0), pc(2, 1), pc(3, 0)] * 5,
    pc(1, 1),
    pc(4, 0),
    pc(1, 3),
    pc(4, 0),
]


def test_trace_chain_folds_loops(trace, ask):
    name = trace("n.kcov", NESTED)
    rows = ask(f"trace {name} --json")
    assert set(rows[0]) == {
        "depth",
        "function",
        "file",
        "line",
        "records",
        "rounds",
        "class",
        "values",
        "errors",
    }
    assert [(row["function"], row["depth"], row["records"], row["rounds"]) for row in rows] == [
        ("fn_1", 0, 3, 1),
        ("fn_2", 1, 10, 5),
        ("fn_3", 2, 10, 10),
        ("fn_4", 1, 2, 2),
    ]
    assert (rows[3]["file"], rows[3]["line"], rows[3]["class"]) == ("dir/file_0.c", 100, None)
    lines = ask(f"trace {name}")
    assert lines[4].index("fn_3") == lines[2].index("fn_1") + 4


def test_trace_unique_and_pages(trace, ask):
    name = trace("n.kcov", [pc(3), pc(1), pc(3), pc(2), pc(1), 0])
    rows = ask(f"trace {name} --unique --json")
    assert [(row["function"], row["depth"], row["records"]) for row in rows] == [
        ("fn_3", 0, 2),
        ("fn_1", 0, 2),
        ("fn_2", 0, 1),
    ]
    assert [row["function"] for row in ask(f"trace {name} --unique --json --offset 1 -n 1")] == [
        "fn_1"
    ]
    assert [row["function"] for row in ask(f"trace {name} --unique --json --offset 2")] == ["fn_2"]
    assert ask(f"trace {name} --unique --json --offset 9") == []
    assert [
        row["function"] for row in ask(f"trace {name} --unique --json --not-function 'fn_[13]'")
    ] == ["fn_2"]


def test_trace_of_system_calls_begins_anew(workspace, trace, ask):
    workspace.inputs.kernel.names.locations = _named(
        {1: "__x64_sys_read", 2: "vfs_read", 3: "__x64_sys_write", 4: "vfs_write"}
    )
    rows = ask(f"trace {trace('s.kcov', [pc(1), pc(2), pc(3), pc(4), pc(1), pc(2)])} --json")
    assert [(row["function"], row["depth"], row["rounds"]) for row in rows] == [
        ("__x64_sys_read", 0, 2),
        ("vfs_read", 1, 2),
        ("__x64_sys_write", 0, 1),
        ("vfs_write", 1, 1),
    ]


def test_trace_leaves_out_classes(workspace, trace, ask):
    workspace.inputs.kernel.names.locations = _named(
        {
            1: "vfs_read",
            2: "mutex_lock",
            3: "kmem_cache_alloc_noprof",
            4: "__do_sys_clock_nanosleep",
            5: "ktime_get",
        },
        {4: "kernel/time/posix-timers.c", 5: "kernel/time/timekeeping.c"},
    )
    name = trace("c.kcov", [pc(number) for number in (4, 1, 2, 3, 5)])

    def functions(options):
        return [(row["function"], row["class"]) for row in ask(f"trace {name} --json {options}")]

    own = [("__do_sys_clock_nanosleep", None), ("vfs_read", None)]
    assert functions("") == own
    assert functions("--include locking") == [*own, ("mutex_lock", "locking")]
    assert functions("--include all") == [
        *own,
        ("mutex_lock", "locking"),
        ("kmem_cache_alloc_noprof", "memory-allocation"),
        ("ktime_get", "time"),
    ]
    assert any(
        "locking 1" in line and "memory-allocation 1" in line for line in ask(f"trace {name}")
    )
    with pytest.raises(UsageError):
        ask(f"trace {name} --include nonsense")
    with pytest.raises(UsageError):
        ask("trace")


def test_trace_of_a_long_buffer_fits_on_two_screens(trace, ask):
    # 400 functions, each calling the next ones in loops.
    words = [pc(number, point) for number in range(400) for point in (0, 1, 2) for _ in range(34)]
    name = trace("l.kcov", words)
    assert len(words) > 40000
    assert len(ask(f"trace {name}")) <= 105
    assert len(ask(f"trace {name} --unique")) <= 105
    assert len(ask(f"trace {name} --json")) == 400
    shown = ask(f"trace {name} -n 150 --offset 10")
    assert len([line for line in shown if "dir/file_" in line]) == 150


def _named(functions, files=()):
    """Return names with these functions in place of made-up ones."""

    def locate_named(pcs):
        found = []
        for location in locate(pcs):
            number = (location.address - BASE) // 0x100
            file = dict(files).get(number, "fs/read_write.c")
            found.append(location._replace(frames=(Frame(functions[number], file, 1, 1),)))
        return found

    return LocationCache(locate_named)


def test_not_function(trace, ask):
    name = trace("a.kcov", WORDS)
    assert [row["function"] for row in ask(f"top {name} --json --not-function 'fn_*'")] == [None]
    other = trace("b.kcov", [pc(1, 0), pc(1, 1), pc(5, 0)])
    rows = ask(f"diff {name} {other} --json --not-function 'fn_[235]*'", status=1)
    assert {row["frames"][-1]["function"] for row in rows if row["frames"]} == {"fn_1"}
    left, right = trace("c.kcov", [pc(2), pc(1), pc(3)]), trace("d.kcov", [pc(1), pc(2), pc(4)])
    ordered = ask(f"diff --ordered {left} {right} --json --not-function fn_2", status=1)
    assert [(row["side"], row["index"]) for row in ordered] == [("left", 2), ("right", 2)]
    assert ask(f"diff --ordered {left} {right} --json --not-function 'fn_[234]'") == []
    view = ask(f"view {name} --text --not-function 'fn_[23]'")
    assert [line.split()[0] for line in view[1:7]] == ["0", "1", "2", "23", "24", "25"]
    assert len([line for line in view if "fn_" in line]) == 4


def test_a_story_of_random_records_ends(trace, ask, monkeypatch):
    """It would not fit into memory; a note says where it ends."""
    from kcovdbg.buffers import trace_command

    words = [pc(number % 97, number % 7) for number in range(3000)]
    name = trace("r.kcov", words)
    whole = ask(f"trace {name} --json")
    monkeypatch.setattr(trace_command, "_MOST_STEPS", 50)
    rows = ask(f"trace {name} --json")
    assert len(whole) > 90
    assert 0 < len(rows) <= 50
    assert any(
        "note: the first " in line and "of 3000 records" in line for line in ask(f"trace {name}")
    )
