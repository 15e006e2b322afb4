# SPDX-License-Identifier: LGPL-2.1-or-later
"""``export`` as a user types it; buffers are trace files, names are made up."""

import csv
import json
import stat

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kcovdbg.console.runner import find_command, make_context, run_line
from kcovdbg.errors import KcovdbgError, MissingSymbolError
from kcovdbg.export.command import EXPORTERS, ExportSource
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.records.pc_options import ReadingOptions
from kcovdbg.records.trace_reader import read_trace
from kcovdbg.symbols.awaited_table import AwaitedTable
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.location_table import FunctionSymbol, LocationTable, TextRange
from kcovdbg.target.drgn.lines import DrgnLines
from kcovdbg.target.target import Symbol
from tests.support.state import make_target, set_options
from tests.support.stub import make_stub
from tests.support.table_writer import TableWriter
from tests.support.traces import BASE, locate, pc
from tests.unit.export.test_export_formats import read_drcov


def find_symbol(name):
    if name != "_stext":
        raise MissingSymbolError(f"no {name}")
    return Symbol(name, BASE + 0x1200000, 0)


@pytest.fixture
def workspace(named_workspace):
    set_options(named_workspace.inputs.kernel, open_target=lambda: make_target(symbol=find_symbol))
    return named_workspace


@pytest.fixture
def ask(workspace, streams):
    def asked(line):
        assert run_line(workspace, line) == 0
        output, said = streams.take()
        return output.splitlines(), said

    return asked


WORDS = [pc(2, 0), pc(1, 1), pc(1, 2), *[pc(2, 0), pc(3, 0)] * 3, 0]


def test_hex_keeps_order_and_rounds_trip(trace, ask, tmp_path):
    lines, _ = ask(f"export hex {trace('a.kcov', WORDS)}")
    assert [int(line, 16) for line in lines] == WORDS[:-1]
    out = tmp_path / "a.txt"
    ask(f"export hex {tmp_path}/a.kcov -o {out}".replace("hex ", "hex file:"))
    assert list(read_trace(out, options=ReadingOptions(pc="raw")).words) == WORDS[:-1]


def test_rawcover_rounds_trip(trace, ask, tmp_path):
    out = tmp_path / "raw"
    ask(f"export rawcover {trace('a.kcov', WORDS)} -o {out}")
    assert [int(line, 16) for line in out.read_text().splitlines()] == sorted(
        {word - 5 for word in WORDS if word}
    )
    again, _ = ask(f"export rawcover file:{out} --pc call")
    assert again == out.read_text().splitlines()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(words=st.lists(st.integers(1 << 63, (1 << 64) - 1), min_size=1, max_size=50))
def test_any_words_round_trip(trace, ask, tmp_path, words):
    out = tmp_path / "a.txt"
    ask(f"export hex {trace('a.kcov', words)} -o {out}")
    assert list(read_trace(out, options=ReadingOptions(pc="raw")).words) == words


@pytest.fixture
def points(workspace, tmp_path):
    """Four functions with four points each, the third of each inlined."""
    writer = TableWriter("00" * 20, [TextRange(BASE, BASE + 0x1000, ".text")])
    for location in locate([pc(function, point) for function in range(1, 5) for point in range(4)]):
        writer.add_frames(location.address, PointKind.PC, location.frames)
    for number in range(1, 5):
        writer.add_function(
            FunctionSymbol(
                f"fn_{number}.part.0", pc(number) - 5, 0x100, f"alias_{number}", "dir/file_0.c"
            )
        )
    writer.write(tmp_path / "table")
    table = LocationTable(tmp_path / "table")
    workspace.inputs.kernel.names.awaited_table = AwaitedTable(table)


def test_points_of_syzkallers_tables(trace, ask, points):
    name = trace("a.kcov", [*WORDS, pc(2, 3) + 1])
    lines, said = ask(f"export rawcoverfiles {name}")
    rows = list(csv.DictReader(lines))
    # All points of functions that were executed in part.
    assert [int(row["PC"], 16) for row in rows if row["Inline"] == "false"] == [
        pc(function, point) - 5 for function in range(1, 4) for point in range(4)
    ]
    assert rows[2] == {
        "PC": hex(pc(1, 2) - 5),
        "Module": "",
        "Offset": hex(pc(1, 2) - 5),
        "Filename": "dir/file_0.c",
        "Inline": "false",
        "StartLine": "102",
        "EndLine": "102",
    }
    assert (rows[3]["PC"], rows[3]["Filename"], rows[3]["Inline"]) == (
        hex(pc(1, 2) - 5),
        "include/helper.h",
        "true",
    )
    # One of the PCs is no point.
    assert "1 of 5 PCs" in said
    objects = [json.loads(line) for line in ask(f"export jsonl {name}")[0]]
    assert [(row["func_name"], row["hit_count"], row["inline"]) for row in objects][:5] == [
        ("alias_1", 0, False),
        ("alias_1", 1, False),
        ("helper_1", 1, True),
        ("alias_1", 1, False),
        ("alias_1", 0, False),
    ]
    assert {row["func_name"] for row in objects if not row["hit_count"]} >= {"alias_4", "helper_4"}
    assert {row["pc"] for row in objects if row["hit_count"]} == {
        word - 5 for word in WORDS if word
    }


def test_modoff(trace, ask, workspace):
    name = trace("a.kcov", [*WORDS, 0x1234])
    lines, said = ask(f"export modoff {name}")
    assert [int(line.removeprefix("vmlinux+"), 16) + BASE + 5 for line in lines] == sorted(
        {word for word in WORDS if word}
    )
    assert "1 of 5 points are left out" in said


@pytest.mark.parametrize("name", ["modoff", "drcov"])
def test_offsets_need_a_kernel(name, trace, workspace):
    workspace.inputs.kernel.memory.optional_target = None
    with pytest.raises(KcovdbgError, match=name):
        run_line(workspace, f"export {name} {trace('a.kcov', WORDS)}")


def test_drcov_agrees_with_modoff(trace, ask, workspace):
    start = 0xFFFFFFFFC1200000
    workspace.inputs.kernel.target.lines = make_stub(
        DrgnLines,
        code_at=lambda address: ("kcov,lab", start) if address >= start else None,
        code_ranges=lambda: (
            ("kcov,lab", start, start + 0x1000),
            ("kcov,lab", start + 0x2000, start + 0x3000),
        ),
    )
    table = make_stub(LocationTable, text_ranges=lambda: [TextRange(BASE, BASE + 0x1000000, "")])
    workspace.inputs.kernel.names.awaited_table = AwaitedTable(table)
    name = trace("a.kcov", [*WORDS, 0xFFFFFFFFC0000045, 0x1234])
    read = read_drcov(ask(f"export drcov {name}")[0])
    modoff, said = ask(f"export modoff {name}")
    assert [f"{file}+{offset:x}" for (file, _, _), offset, _ in read] == [
        line.replace(",", "\\x2c") for line in modoff
    ]
    assert "1 of 6 points are left out" in said
    assert {"vmlinux+110", "kcov,lab.ko+40"} <= {*modoff}
    offset = workspace.inputs.kernel.target.kaslr_offset
    assert {module for module, _, _ in read} == {
        ("vmlinux", BASE, BASE + 0x1000000),
        ("kcov\\x2clab.ko", start - offset, start - offset + 0x3000),
    }
    assert {size for _, _, size in read} == {5}


def test_code_ends_where_that_of_the_traces_build_does(workspace):
    """The command's kernel is that of the traces it names; the workspace's may be another."""
    command, args = find_command(workspace, ["export", "drcov", "41"])
    context = make_context(workspace, command, args, workspace.terminal(), workspace.format)
    source = ExportSource(context, args)
    table = make_stub(LocationTable, text_ranges=lambda: [TextRange(BASE, BASE + 0x1000, "")])
    context.inputs.kernel = Kernel(workspace.inputs.kernel.options)
    context.kernel.names.awaited_table = AwaitedTable(table)
    assert source.find_code_ends() == {None: BASE + 0x1000}


def test_funccover(trace, ask, points):
    lines, _ = ask(f"export funccover {trace('a.kcov', WORDS)}")
    assert lines == [
        "Module,Filename,Function,Covered PCs,Total PCs",
        ",dir/file_0.c,fn_1.part.0,2,4",
        ",dir/file_0.c,fn_2.part.0,1,4",
        ",dir/file_0.c,fn_3.part.0,1,4",
        ",dir/file_0.c,fn_4.part.0,0,4",
    ]
    assert (
        ask(f"export funccover {trace('a.kcov', WORDS)} --function 'fn_[34]*'")[0][1:] == lines[3:]
    )


def test_only_some(trace, ask):
    name = trace("a.kcov", WORDS)
    assert [int(line, 16) for line in ask(f"export hex {name} --function fn_3")[0]] == [pc(3)] * 3
    assert [int(line, 16) for line in ask(f"export rawcover {name} --function 'fn_[23]'")[0]] == [
        pc(2) - 5,
        pc(3) - 5,
    ]


def test_where_it_was_written(trace, ask, tmp_path):
    name, out = trace("a.kcov", WORDS), tmp_path / "a.txt"
    rows = json.loads("\n".join(ask(f"export hex {name} -o {out} --json")[0]))
    assert rows == [{"file": str(out), "format": "hex", "lines": len(WORDS) - 1}]
    assert ask(f"export hex {name} -o -") == ask(f"export hex {name}")


@pytest.mark.parametrize(
    ("words", "mode", "said"),
    [
        ("hex {} --json", "TRACE_PC", "standard output"),
        ("ldrcov {}", "TRACE_PC", "ldrcov"),
        ("hex {} -o /nowhere/at/all", "TRACE_PC", "/nowhere/at/all"),
        ("hex {}", "TRACE_UNIQ_EDGE", "edges"),
        ("funccover {}", "TRACE_PC", "coverage points"),
    ],
)
def test_refusals(trace, workspace, words, mode, said):
    with pytest.raises(KcovdbgError, match=said):
        run_line(workspace, f"export {words.format(trace('a.kcov', WORDS, mode))}")


def test_whole_or_not_at_all(trace, ask, workspace, tmp_path, monkeypatch):
    out = tmp_path / "kept"
    out.write_text("before\n")
    out.chmod(0o600)

    def fail(_source):
        yield "half"
        raise KcovdbgError("the page is gone")

    monkeypatch.setitem(
        EXPORTERS, "jsonl", EXPORTERS["jsonl"]._replace(export=lambda source: (fail(source), ()))
    )
    with pytest.raises(KcovdbgError, match="the page is gone"):
        run_line(workspace, f"export jsonl {trace('a.kcov', WORDS)} -o {out}")
    assert out.read_text() == "before\n"
    ask(f"export hex file:{tmp_path}/a.kcov -o {out}")
    assert len(out.read_text().splitlines()) == len(WORDS) - 1
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.kcov", "a.kcov.json", "kept"]


def test_a_machine_whose_calls_are_unknown(trace, workspace):
    workspace.inputs.kernel.target.machine = "vax"
    with pytest.raises(KcovdbgError, match="vax"):
        run_line(workspace, f"export rawcover {trace('a.kcov', WORDS)}")
    assert (
        run_line(workspace, f"export hex file:{trace('b.kcov', WORDS).removeprefix('file:')}") == 0
    )
