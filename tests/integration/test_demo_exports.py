# SPDX-License-Identifier: LGPL-2.1-or-later
"""Exports of the demo, read by the programs that they are for; and the page that shows each
format.
"""

import collections
import json
import re
from bisect import bisect_right
from collections import Counter
from pathlib import Path

import pytest

from kcovdbg.commands import COMMANDS
from kcovdbg.console.point_table import find_point_table
from kcovdbg.console.runner import find_command, make_context
from kcovdbg.inputs.buffer_sources import find_buffer, read_trace_records
from kcovdbg.records.line_states import LineState, Quality, make_finder, read_records
from kcovdbg.symbols.coverage_points import PointKind
from tests.support.programs import find_points, output_of
from tests.support.state import set_options
from tests.unit.export.test_export_formats import read_drcov, read_lcov

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tree(opened_demo, tmp_path):
    """Make a source tree whose files have enough lines; return the records of an export of
    lines.
    """
    out = tmp_path / "usb.info"
    opened_demo.run(f"export lcov kc-usb -o {out}")
    read = read_lcov(out.read_text().splitlines())
    for file, found in read.items():
        # Names that lead out of the tree are left out.
        path = (tmp_path / "tree" / file).resolve()
        assert path.is_relative_to(tmp_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text;\n" * max(found.lines, default=1))
    kernel = opened_demo.kernel
    set_options(kernel, source_folders=(str(tmp_path / "tree"),))
    kernel.__dict__.pop("source", None)
    yield read
    set_options(kernel, source_folders=())
    kernel.__dict__.pop("source", None)


def test_states_agree_with_points(opened_demo):
    """Lines whose points have records were executed, and most lines without points are decided."""
    rows = opened_demo.ask("source kc-usb")
    states = collections.Counter((row["state"], bool(row["points"])) for row in rows)
    assert all(row["covered"] == 0 for row in rows if row["state"] == "not-executed")
    assert all((row["reason"] is not None) == (row["state"] == "unknown") for row in rows)
    assert states["executed", False] + states["not-executed", False] > states["unknown", False]
    assert states["executed", True] + states["partly", True] > 1000


_OF_STYLE = {"all": "executed", "part": "partly", "none": "not-executed", "x": "not-instrumented"}


def read_page(path):
    """Return the style and the records of each marked line of a page, by file and line."""
    found = {}
    for part in path.read_text().split('<details class="file"')[1:]:
        head, _, body = part.partition("</summary>")
        name = re.search(r'class="path">(.*?)</span>', head)[1].replace("<wbr>", "")
        for style, cells in re.findall(r'<tr class="c-(\w+)">(.*?)</tr>', body):
            hits = re.findall(r'class="hits">(\d*)<', cells)
            line = int(re.search(r'class="line">(\d+)<', cells)[1])
            found[name, line] = style, [int(number or 0) for number in hits]
    return found


def test_report_has_the_states_of_source(opened_demo, tmp_path):
    """Of one trace its states; of two those of both, where both are known."""
    page = tmp_path / "page.html"
    states = {}
    for name in ("kc-pc", "kc-again"):
        opened_demo.run(f"report {name} -o {page}")
        rows = opened_demo.ask(f"source {name}")
        states[name] = {(row["file"], row["line"]): row["state"] for row in rows}
        shown = read_page(page)
        assert {
            place: _OF_STYLE.get(style, "unknown") for place, (style, _) in shown.items()
        } == states[name]
        for row in rows:
            _, (hits,) = shown[row["file"], row["line"]]
            assert hits == (row["hits"] if row["state"] in ("executed", "partly") else 0)
        # Lines without a point have states as well.
        assert any(row["state"] == "executed" and not row["points"] for row in rows)
        assert {"executed", "partly", "not-executed", "unknown"} <= {*states[name].values()}
    opened_demo.run(f"report kc-pc kc-again -o {page}")
    shown = read_page(page)
    left, right = states.values()
    assert {*left, *right} == shown.keys()
    answers = {"executed": True, "partly": True, "not-executed": False}
    expected = {
        (True, True): "both",
        (True, False): "left",
        (False, True): "right",
        (False, False): "none",
    }
    tally = Counter()
    for place in left.keys() & right.keys():
        pair = answers.get(left[place]), answers.get(right[place])
        assert shown[place][0] == expected.get(pair, "unknown"), place
        tally[shown[place][0]] += 1
    assert tally["both"] > 10


def test_diff_by_line_has_the_states_of_source(opened_demo):
    names = "kc-pc", "kc-again"
    states = []
    for name in names:
        rows = opened_demo.ask(f"source {name}")
        states.append({(row["file"], row["line"]): row["state"] for row in rows})
    rows = opened_demo.ask(f"diff --by line {' '.join(names)}", status=1)
    assert rows
    for row in rows:
        place = row["file"], row["line"]
        assert (row["left_runs"], row["right_runs"]) == (
            (1, 0) if row["side"] == "left" else (0, 1)
        )
        # A run that executed nothing of a function has no line of it.
        ran, other = states if row["side"] == "left" else states[::-1]
        assert ran[place] in ("executed", "partly")
        assert other.get(place, "not-executed") == "not-executed"
    assert opened_demo.ask("diff --by line kc-pc kc-pc") == []


def test_genhtml_shows_what_was_exported(tree, opened_demo, tmp_path):
    out = tmp_path / "usb.info"
    opened_demo.run(f"export lcov kc-usb --file lib -o {out}")
    printed = output_of("genhtml", out, "-o", tmp_path / "html")
    covered, total = map(
        int, re.search(r"lines\.+: *[\d.]+% \((\d+) of (\d+) lines\)", printed).groups()
    )
    hits = [
        count
        for file, found in tree.items()
        if file.startswith("lib/")
        for count in found.lines.values()
    ]
    assert (covered, total) == (sum(map(bool, hits)), len(hits))
    assert total > 1000
    # And in each file's page: how often each line was executed.
    page = next((tmp_path / "html").rglob("vsprintf.c.gcov.html")).read_text()
    shown = [
        int(hits)
        for hits in re.findall(r'class="(?:lineCov|tlaGNC|tlaUNC|lineNoCov)[^>]*>\s*(\d+) :', page)
    ]
    assert shown == list(tree["lib/vsprintf.c"].lines.values())


def test_module_offsets_against_the_symbol_table(opened_demo):
    names, start = {}, None
    for line in output_of("nm", opened_demo.kernel.target.lines.image).splitlines():
        address, kind, name = line.split()
        if kind in "tTwW":
            # The compiler's copies of a function have a suffix.
            names.setdefault(int(address, 16), set()).add(name.split(".")[0])
        if name == "_stext":
            start = int(address, 16)
    addresses = sorted(names)
    rows = opened_demo.ask("buffer kc-usb")
    expected = {int(row["pc"], 16) - 5: row["symbol"] for row in rows if row["symbol"]}
    lines = opened_demo.run("export modoff kc-usb")[0].splitlines()
    offsets = [int(line.removeprefix("vmlinux+"), 16) for line in lines]
    assert len(offsets) == len(expected) > 1000
    # A tail call's record is in its caller's code.
    elsewhere = {
        int(row["pc"], 16) - 5
        for row in rows
        if any("tail call" in error for error in row["errors"])
    }
    assert len(elsewhere) < len(offsets) // 10
    for offset in offsets:
        address = start + offset
        if address in elsewhere:
            continue
        assert expected[address] in names[addresses[bisect_right(addresses, address) - 1]], hex(
            address
        )


def test_modules_have_their_own_offsets(opened_demo):
    # That of kc-keep, which is disabled and has no task.
    (keep,) = [row["kcov"] for row in opened_demo.ask("objects") if row["size"] == 35 * 512]
    lines = opened_demo.run(f"export modoff kcov:{keep}")[0].splitlines()
    module = [line for line in lines if line.startswith("kcovlab_keep.ko+")]
    assert len(module) >= 10
    assert all(int(line.partition("+")[2], 16) < 0x1000 for line in module)
    assert all(int(line.partition("+")[2], 16) < 0x2000000 for line in lines)
    blocks = read_drcov(opened_demo.run(f"export drcov kcov:{keep}")[0].splitlines())
    assert [f"{name}+{offset:x}" for (name, _, _), offset, _ in blocks] == lines
    for (_, base, end), offset, size in blocks:
        assert base + offset + size <= end


def disassemble(image, *options):
    return output_of("objdump", "-d", "--no-show-raw-insn", *options, image)


def test_counts_of_points_agree(opened_demo):
    """funccover's sums are rawcover's lines, and its totals the calls that a disassembler sees."""
    functions = [
        line.rsplit(",", 2) for line in opened_demo.run("export funccover 41")[0].splitlines()[1:]
    ]
    assert sum(int(covered) for _, covered, _ in functions) == len(
        opened_demo.run("export rawcover 41")[0].splitlines()
    )
    (row,) = [row for row in functions if row[0].endswith(",__task_pid_nr_ns")]
    assert int(row[1]) > 0
    assert int(row[2]) == len(
        find_points(opened_demo.kernel.target.lines.image, "__task_pid_nr_ns")
    )


@pytest.mark.parametrize("function", ["vfs_read", "__task_pid_nr_ns", "do_sys_openat2"])
def test_kinds_of_points_are_those_that_a_disassembler_sees(opened_demo, function):
    listing = disassemble(opened_demo.kernel.target.lines.image, f"--disassemble={function}")
    calls = Counter(re.findall(r"call .*<__sanitizer_cov_trace_(pc|\w*cmp|switch)\d?>", listing))
    rows = opened_demo.ask(f"points {function} 41")
    kinds = Counter(row["kind"] for row in rows)
    assert kinds["pc"] == calls["pc"]
    assert kinds["cmp"] == calls.total() - calls["pc"] > 0
    # Of a PC trace the share is that of the points that it can have.
    assert all((row["hits"] is None) == (row["kind"] == "cmp") for row in rows)
    covered = sum(bool(row["hits"]) for row in rows)
    assert f"{covered} of {calls['pc']} points" in "".join(opened_demo.run(f"points {function} 41"))
    (evidence,) = [
        row["evidence"]
        for row in opened_demo.ask(f"why 41 {function}")
        if f"points={calls['pc']}" in row["evidence"]
    ]
    assert f"covered={covered}" in evidence


def test_uncovered_points_of_a_directory_are_those_that_several_buffers_lack(opened_demo):
    rows = opened_demo.ask("points lib kc-usb kc-remote")
    assert all(
        any(frame["file"].startswith(("lib/", "./lib/")) for frame in row["frames"]) for row in rows
    )
    apart = [
        [row["hits"] for row in opened_demo.ask(f"points lib {what}")]
        for what in ("kc-usb", "kc-remote")
    ]
    sums = [None if None in hits else sum(hits) for hits in zip(*apart, strict=True)]
    assert [row["hits"] for row in rows] == sums
    assert all(any(hits) for hits in apart)
    uncovered = opened_demo.ask("points lib/ kc-usb kc-remote --uncovered")
    assert uncovered == [row for row in rows if row["kind"] == "pc" and not row["hits"]]


@pytest.mark.parametrize("place", ["__sanitizer_cov_trace_pc", "kernel/kcov.c"])
def test_code_without_points_is_an_answer_with_a_reason(opened_demo, place):
    assert place in opened_demo.run(f"points {place}", 1)[0]
    output, errors = opened_demo.run(f"points {place} --json", 1)
    assert (json.loads(output), place in errors) == ([], True)
    opened_demo.run("points no_such_function", 2)
    opened_demo.run("points vfs_read --uncovered", 2)


@pytest.fixture(scope="module")
def code(opened_demo):
    """What a disassembler sees: calls by return address, and what each function jumps to, the
    callback among them.
    """
    function, call, calls, jumps = "", None, {}, {}
    for line in disassemble(opened_demo.kernel.target.lines.image).splitlines():
        address, _, text = line.partition(":")
        if line.endswith(">:"):
            function = line.split("<")[1][:-2]
            continue
        if call is not None and address.strip():
            calls[int(address, 16)], call = call, None
        if match := re.search(r"\tcall +(?:[0-9a-f]+ <([^>+]*)>)?", text):
            call = match[1] or "*"
        elif match := re.search(r"\tj\w+ +(?:[0-9a-f]+ <([^>]*)>)?", text):
            target = match[1] or "*"
            if "+" not in target and target != function:
                # A cold part is entered with its function's return address.
                jumps.setdefault(function.partition(".cold")[0], set()).add(
                    target.partition(".cold")[0]
                )
    return calls, jumps


def test_tail_calls_are_those_that_a_disassembler_sees(opened_demo, code):
    """Each call that leads to one function only that jumps to the callback is named after that
    function, and no other one.
    """
    calls, jumps = code
    callback = "__sanitizer_cov_trace_pc"

    def ends(function):
        reached, todo = set(), {function}
        while todo:
            name = todo.pop()
            reached.add(name)
            todo |= jumps.get(name, set()) - reached - {callback}
        is_open = any(
            name == "*" or name.startswith(("__x86_indirect_thunk", "__SCT__")) for name in reached
        )
        return None if is_open else {name for name in reached if callback in jumps.get(name, ())}

    table = opened_demo.kernel.names.table
    known = table.pcs(PointKind.TAIL_KNOWN)
    assert len(known) > 4000
    rows = dict(zip(known, table.get_rows(known), strict=True))
    (text,) = [text for text in table.text_ranges() if text.name == ".text"]
    in_text = {pc: row for pc, row in rows.items() if text.start < pc <= text.end}
    assert in_text.keys() <= calls.keys()
    wrong = {}
    for pc, (_, frames) in in_text.items():
        found = ends(calls[pc])
        name = frames[-1].function if frames else None
        if found is None or len(found) != 1 or name not in (None, next(iter(found)).split(".")[0]):
            wrong[pc] = calls[pc], found, name
    assert not wrong


def test_tail_calls_are_marked_and_counted_nowhere(opened_demo):
    rows = opened_demo.ask("buffer kc-usb")
    approximate = {
        row["pc"]: row["symbol"]
        for row in rows
        if any("approximate" in error for error in row["errors"])
    }
    assert approximate
    assert all(
        "approximate" not in error
        for row in rows
        if row["pc"] not in approximate
        for error in row["errors"]
    )
    pc, symbol = next(iter(approximate.items()))
    assert "approximate" in opened_demo.run(f"sym {pc}")[0]
    points = opened_demo.ask(f"points {symbol} kc-usb")
    assert pc not in {row["pc"] for row in points}


def test_the_page_has_every_format():
    text = (ROOT / "docs/exports.md").read_text()
    (formats,) = [
        argument.choices
        for argument in COMMANDS.find("export").arguments
        if argument.names == ("format",)
    ]
    assert [name for name in formats if f"\n## {name}\n" not in text] == []


def test_run_line_is_quiet_about_success(opened_demo):
    assert opened_demo.run("export hex 34 | head -1")[1] == ""


@pytest.mark.parametrize("tid", [34, 41, 43, 46, 56])
def test_place_of_a_task_decides_more(opened_demo, tid):
    """The stack of a task that sleeps in a system call says which calls did not return."""
    workspace = opened_demo.workspace
    command, args = find_command(workspace, ["export", "lcov", str(tid)])
    context = make_context(workspace, command, args, workspace.terminal(), workspace.format)
    buffer = find_buffer(context.inputs, str(tid))
    placed, alone = read_trace_records(context.inputs, buffer), read_records(buffer)
    assert placed.place is not None
    assert Quality.PLACED in placed.quality
    finder = make_finder(find_point_table(context))
    decided = {}
    for trace in (placed, alone):
        columns = finder.find_columns(trace)
        assert columns.contradictions == 0
        rows = zip(columns.line_file, columns.line, map(LineState, columns.line_state), strict=True)
        decided[trace is placed] = {
            (file, line): state.was_executed
            for file, line, state in rows
            if state.is_decided or state.was_executed
        }
    both = decided[True].keys() & decided[False].keys()
    assert {line: decided[True][line] for line in both} == {
        line: decided[False][line] for line in both
    }
    assert len(decided[True]) > len(decided[False])
