# SPDX-License-Identifier: LGPL-2.1-or-later
"""The page that ``report`` writes, as markup: its parts, its numbers, and that no name in it is
anything but text.
"""

import base64
import json
import re
import tempfile
import zlib
from array import array
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kcovdbg.abi.record import decode_record
from kcovdbg.check.runner import Report
from kcovdbg.console.column import Column
from kcovdbg.console.html import MAX_ROWS, PageSection, notes_markup, page_lines, table_markup
from kcovdbg.console.renderable import Table
from kcovdbg.console.runner import run_line
from kcovdbg.errors import KcovdbgError, TargetError, UsageError
from kcovdbg.model.finding import Cause, Certainty, Finding, Severity
from kcovdbg.model.location import Frame, Location
from kcovdbg.records.coverage import FileCoverage, LineCoverage, fill_lines
from kcovdbg.records.line_states import LineState
from kcovdbg.records.pc_locations import LocationCache
from kcovdbg.records.pc_shares import Share
from kcovdbg.records.side_file import side_path
from kcovdbg.report import command as report_command
from kcovdbg.report.listing import (
    SourceFile,
    chart_markup,
    findings_markup,
    legend_markup,
    listing_markup,
)
from kcovdbg.report.trace import Point, column_chunks, make_point, text_chunks, trace_markup
from kcovdbg.symbols.awaited_table import AwaitedTable
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.location_table import LocationTable, TextRange
from kcovdbg.symbols.symbolizer import Symbolizer
from tests.support.state import make_workspace, set_options
from tests.support.table_writer import TableWriter
from tests.support.traces import BASE, locate, make_buffer, names, pc

HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[31m'\"&\u202e"
VOID = {"meta", "link", "input", "img", "rect", "br", "wbr"}
TEXT = st.text(st.sampled_from("<>&\"'a \n\x1b/!-\u2028]\udc80"), max_size=12)


class Page(HTMLParser):
    """A page's elements; an element that is not closed where it should be is an error."""

    def __init__(self, markup):
        super().__init__()
        self.open = []
        self.elements = []
        self.texts = []
        self.feed(markup)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        assert not any(name.startswith("on") for name, _ in attributes)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}>"
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else None, data))

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    def text(self):
        return "".join(text for tag, text in self.texts if tag not in ("script", "style"))


def parse(lines):
    return Page("\n".join(lines))


def source_file(name, *traces):
    """Return a file of source: of each trace line -> state and hits."""
    sides = []
    for lines in traces:
        rows = {
            line: LineCoverage(name, line, state, hits, 1, 0)
            for line, (state, hits) in lines.items()
        }
        columns = list(zip(*(rows[line][1:] for line in sorted(rows)), strict=True))
        sides.append(FileCoverage(name, *columns))
    if len(sides) > 1:
        filled = fill_lines([[side] for side in sides], [LineState.NOT_EXECUTED] * len(sides))
        sides = [side for (side,) in filled]
    return SourceFile(name, sides)


RAN, PARTLY, NOT, MOVED = (
    (LineState.EXECUTED, 5),
    (LineState.PARTLY, 5),
    (LineState.NOT_EXECUTED, 0),
    (LineState.MOVED, 5),
)


@given(TEXT, TEXT, TEXT)
def test_names_are_text(first, second, third):
    hostile = LocationCache(lambda pcs: [Location(pc, (Frame(first, second, 1, 1),)) for pc in pcs])
    causes = (Cause(second, third, Certainty.LIKELY, first),)
    finding = Finding(
        "K1", Severity.ERROR, first, second, (("a", first),), Certainty.CERTAIN, third, causes
    )
    lines = [
        *chart_markup([Share(3, 0.5, 1, 5, 1)], hostile, third),
        *listing_markup(source_file(first, {2: RAN}), [second, third, "x"], [second]),
        *table_markup(Table((Column("a"),), [{"a": first}], remarks=[second]), third),
        *findings_markup(Report((finding,), 1, (), (third,))),
        *trace_markup(
            [first], text_chunks([Point(first, second, (third,))]), [array("I", [0])], ()
        ),
        *notes_markup([first]),
    ]
    page = parse(lines)
    known = (
        "div table caption thead tbody tr th td span svg rect details summary ul li article wbr p "
        "strong code label input h3"
    )
    assert {tag for tag, _ in page.elements} <= {*known.split(), "kbd", "noscript", "script"}
    (data,) = [text for tag, text in page.texts if tag == "script"]
    assert json.loads(data)["records"][0]["words"]
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u2028\udc80-\udfff]", "".join(lines))


def test_the_page_loads_nothing():
    markup = "\n".join(page_lines("title", "subtitle", [PageSection("a", "A", ["<p>x</p>"])]))
    page = Page(markup)
    (policy,) = [
        meta["content"]
        for meta in page.all("meta")
        if meta.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert not re.findall(r"(?:src|href)=\"(?!#|data:,)", markup)
    assert "http" not in re.sub(r"http-equiv", "", markup)
    assert "url(" not in markup
    assert len(page.all("h1")) == 1
    assert page.all("html")[0]["lang"] == "en"


def test_headings_and_captions_name_what_is_below():
    page = parse(page_lines("t", "s", [PageSection("a", "A", ()), PageSection("b", "B", ())]))
    assert [item["href"] for item in page.all("a")] == ["#main", "#a", "#b"]
    assert [section["aria-labelledby"] for section in page.all("section")] == ["a-title", "b-title"]


def test_long_tables_say_what_is_left_out():
    page = parse(
        table_markup(
            Table((Column("a"),), [{"a": str(number)} for number in range(MAX_ROWS + 3)]), "rows"
        )
    )
    assert len(page.all("tr")) == MAX_ROWS + 1
    assert "3 more rows" in page.text()


def rows_with_code(page):
    return [row["class"] for row in page.all("tr") if "class" in row]


def test_lines_of_source():
    file = source_file("a.c", {2: RAN, 3: PARTLY, 20: NOT, 21: MOVED})
    markup = [*listing_markup(file, [f"line {number};" for number in range(1, 30)], ["41"])]
    page = parse(markup)
    assert rows_with_code(page) == ["c-all", "c-part", "c-none", "c-unknown"]
    assert len(page.all("tbody")) == 2
    assert "line 23;" in page.text()
    assert "line 12;" not in page.text()
    assert "2 of 4 lines executed, 1 unknown" in page.text()
    # That a line was moved is all that its records say.
    assert "".join(markup).count('class="hits">5<') == 2


def test_text_that_ends_before_the_lines():
    """Of another version of the kernel."""
    page = parse(listing_markup(source_file("a.c", {9: RAN, 12: RAN}), ["x"] * 10, ["41"]))
    assert [row.get("class") for row in page.all("tr")[1:]] == [
        None,
        None,
        None,
        "c-all",
        None,
        None,
        "c-all",
    ]


def test_lines_of_two_traces():
    file = source_file("a.c", {1: RAN, 2: RAN, 4: NOT, 5: RAN, 6: MOVED}, {
        1: PARTLY, 2: NOT, 3: RAN, 5: MOVED, 6: NOT,
    })  # fmt: skip
    page = parse(listing_markup(file, [], ["A", "B"]))
    assert rows_with_code(page) == [
        "c-both",
        "c-left",
        "c-right",
        "c-none",
        "c-unknown",
        "c-unknown",
    ]
    for words in ("by A only", "by B only", "executed by A, unknown for B"):
        assert words in page.text()
    # Lines that one of the two is unknown for are no difference.
    assert file.order[0] == -2
    page = parse([legend_markup(["A", "B"])])
    assert page.text().count("?") == 1


@pytest.fixture
def workspace(named_workspace):
    named_workspace.inputs.kernel.memory.optional_target = None
    return named_workspace


def write_report(workspace, streams, path, *what):
    assert run_line(workspace, f"report {' '.join(what)} -o {path} --json") == 0
    (row,) = json.loads(streams.take()[0])
    assert row["bytes"] == path.stat().st_size
    return Page(path.read_text("utf-8"))


WORDS = [pc(number % 7, number % 5) for number in range(100)]


def test_two_traces(workspace, streams, trace, tmp_path):
    left, right = (
        trace("a", WORDS, comm=HOSTILE),
        trace("b", [*WORDS[:30], pc(9), pc(9, 1), *WORDS[33:]]),
    )
    page = write_report(workspace, streams, tmp_path / "r.html", left, right)
    data = json.loads(
        next(text for tag, text in page.texts if tag == "script" and text.startswith("{"))
    )
    # Little-endian words of as few bytes as hold them.
    assert [record["bits"] for record in data["records"]] == [8, 8]
    assert data["segments"] == [[0, 30, 0, 30, 1], [30, 3, 30, 2, 0], [33, 67, 32, 67, 1]]
    shown = [
        [data["points"][number][0] for number in base64.b64decode(record["words"])]
        for record in data["records"]
    ]
    assert shown[1][30:32] == ["fn_9", "fn_9"]
    assert len(shown[0]) == 100
    assert len(page.all("div")) > 10
    assert "\\x1b[31m" in page.text()
    # Without a kernel there is no state.
    assert "State" not in page.text()


def test_the_difference_comes_first(workspace, streams, trace, tmp_path):
    left, right = trace("a", WORDS), trace("b", [*WORDS, *[pc(9)] * 3, pc(30)])
    side = side_path(tmp_path / "a")
    side.write_text(
        json.dumps({**json.loads(side.read_text()), "pid": 41, "argv": ["./test", "a b"]})
    )
    page = write_report(workspace, streams, tmp_path / "r.html", left, right)
    assert next(section["id"] for section in page.all("section")) == "records"
    (heading,) = {text for tag, text in page.texts if tag == "h1"}
    assert "41" in heading
    assert "./test 'a b'" in heading
    markup = (tmp_path / "r.html").read_text("utf-8").replace("<wbr>", "")
    shown = re.findall('<summary><span class="path">(.*?)</span>', markup)
    # fn_30's file is covered by the right trace only; those with most records follow.
    assert shown[0] == names()[pc(30)].frames[0].file
    single = write_report(workspace, streams, tmp_path / "s.html", left)
    assert next(section["id"] for section in single.all("section")) == "summary"


def test_comparisons_and_calls(workspace, streams, trace, tmp_path):
    page = write_report(
        workspace,
        streams,
        tmp_path / "c.html",
        trace("c", [5, 0x2A, 0xFFFFFFFF, pc(1)], "TRACE_CMP"),
    )
    data = json.loads(
        next(text for tag, text in page.texts if tag == "script" and text.startswith("{"))
    )
    assert data["points"] == [
        [
            "fn_1",
            '32 bits, constant: 0x2a (42) "*", 0xffffffff (-1)  dir/file_0.c:100'.replace(
                ' "*"', ""
            ),
            f"{pc(1):#x}  32 bits, constant: 0x2a (42), 0xffffffff (-1)  fn_1 dir/file_0.c:100",
        ]
    ]
    page = write_report(
        workspace,
        streams,
        tmp_path / "e.html",
        trace("e", [pc(1) & (1 << 56) - 1, pc(2), 0], "TRACE_PC_EXT"),
    )
    data = json.loads(
        next(text for tag, text in page.texts if tag == "script" and text.startswith("{"))
    )
    assert [point[0].partition(":")[0] for point in data["points"]] == [
        "→ fn_1",
        "fn_2",
        "no address",
    ]


def unpack(markup, kind):
    """Return what the chunks of a page hold."""
    packed = re.findall(
        rf'<script type="application/zlib" id="{kind}-(\d+)">([^<]*)</script>', markup
    )
    assert [int(number) for number, _ in packed] == list(range(len(packed)))
    return [zlib.decompress(base64.b64decode(content)).decode() for _, content in packed]


def numbers_of(packed):
    """Return the numbers that are packed in a page."""
    return array(
        {8: "B", 16: "H", 32: "I", 64: "Q"}[packed["bits"]], base64.b64decode(packed["words"])
    )


def test_long_traces_are_cut_with_a_sentence(workspace, streams, trace, tmp_path, monkeypatch):
    monkeypatch.setattr("kcovdbg.report.trace._MAX_RECORDS", 50)
    page = write_report(workspace, streams, tmp_path / "r.html", trace("a", WORDS))
    assert "the first 50 of 100 records" in page.text()


def test_files_that_are_too_much_are_packed(workspace, streams, trace, tmp_path, monkeypatch):
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir/file_0.c").write_text("\tif (a < 3) // one\n" * 150)
    (tmp_path / "include").mkdir()
    (tmp_path / "include/helper.h").write_text("\tif (b < 3) // two\n" * 150)
    set_options(workspace.inputs.kernel, source_folders=(str(tmp_path),))
    name = trace("a", WORDS)
    whole = write_report(workspace, streams, tmp_path / "r.html", name)
    # The helper's file fits.
    monkeypatch.setattr(report_command, "MAX_LINES", 4)
    page = write_report(workspace, streams, tmp_path / "s.html", name)
    assert len(page.all("details")) == len(whole.all("details"))
    assert len(page.all("tr")) < len(whole.all("tr"))
    # Colors are for a page whose lines are all in it.
    assert 'class="s-source' in (tmp_path / "r.html").read_text("utf-8")
    assert 'class="s-source' not in (tmp_path / "s.html").read_text("utf-8")
    (folded,) = [details for details in page.all("details") if "data-chunk" in details]
    (content,) = unpack((tmp_path / "s.html").read_text("utf-8"), "source")
    assert folded["data-chunk"] == "source-0"
    name, ((first, last, text),), *packed, packed_hits = json.loads(content)
    lines, states, hits = map(numbers_of, [*packed, *packed_hits])
    rows = Page(one_file(tmp_path / "r.html", "dir/file_0.c")).all("tr")[1:]
    assert (name, first, last) == ("dir/file_0.c", max(1, lines[0] - 3), first + len(rows) - 1)
    assert text.split("\n") == ["        if (a < 3) // one"] * len(rows)
    kinds = json.loads(
        re.search('id="sources">([^<]*)<', (tmp_path / "s.html").read_text("utf-8"))[1]
    )[1]
    of_line = {line: f"c-{kinds[state][0]}" for line, state in zip(lines, states, strict=True)}
    assert [row.get("class") for row in rows] == [
        of_line.get(line) for line in range(first, last + 1)
    ]
    assert [hit > 0 for hit in hits] == [kinds[state][0] != "none" for state in states]


def one_file(path, file):
    """Return the markup of a file in a page."""
    parts = path.read_text("utf-8").split('<details class="file"')
    (part,) = [
        part for part in parts[1:] if file in part.partition("</summary>")[0].replace("<wbr>", "")
    ]
    return part.partition("</summary>")[2].partition("</details>")[0]


def test_many_points_are_packed(monkeypatch):
    monkeypatch.setattr("kcovdbg.report.trace._IN_CHUNK", 4000)
    points = [
        Point(f"fn_{number % 7}", f"a.c:{number}", (f"fn a.c:{number}", "g b.c"), f"{number:#x}  ")
        for number in range(9000)
    ]
    markup = "\n".join(trace_markup(["a"], text_chunks(points), [array("I", range(9000))], ()))
    data = json.loads(re.search('id="trace">([^<]*)<', markup)[1])
    assert "points" not in data
    read = [
        chunk["words"][str(number)]
        for chunk in map(json.loads, unpack(markup, "points"))
        for number in range(len(chunk["words"]))
    ]
    assert read == [
        [point.function, point.place, point.head + " ← ".join(point.frames)] for point in points
    ]


def read_chunk(chunk):
    """Yield its points as the page's script makes them."""
    frames, located = iter(chunk.frames), enumerate(zip(chunk.pcs, chunk.lengths, strict=True))
    for index in range(len(chunk.pcs) + len(chunk.texts)):
        if index in chunk.texts:
            yield chunk.texts[index]
            continue
        at, (pc, length) = next(located)
        numbers = [next(frames) for _ in range(length)]
        functions = [chunk.strings[chunk.functions[number]] or "?" for number in numbers]
        files = [chunk.strings[chunk.files[number]] for number in numbers]
        places = [
            f"{file}:{chunk.lines[n]}" if file and chunk.lines[n] else file
            for n, file in zip(numbers, files, strict=True)
        ]
        function = (
            functions[0] if functions[0] == functions[-1] else f"{functions[0]} ← {functions[-1]}"
        )
        head = (
            f"{pc:#x} at {pc + chunk.offset & (1 << 64) - 1:#x}  " if chunk.offset else f"{pc:#x}  "
        )
        texts = tuple(f"{name} {place}" for name, place in zip(functions, places, strict=True))
        yield Point(
            f"{function} (approximate)" if at in chunk.approximate else function,
            places[0],
            texts,
            head,
        )


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40
)
@given(
    words=st.sets(
        st.builds(pc, st.integers(0, 30), st.integers(0, 5))
        | st.sampled_from([0, 5, BASE + (1 << 30)])
    ),
    offset=st.sampled_from([0, 0x1200000]),
)
def test_points_of_plain_traces_are_those_of_their_records(words, offset):
    """Words made in bulk are those made for one record."""
    writer = TableWriter("00" * 20, [TextRange(BASE, BASE + 0x100000, ".text")])
    for location in locate(sorted(words)):
        if location.frames:
            # Some are recorded by tail calls, and some are unknown.
            kind = PointKind.TAIL if location.address % 3 == 0 else PointKind.PC
            writer.add_frames(
                location.address, kind, () if location.address % 7 == 0 else location.frames
            )
    with tempfile.TemporaryDirectory() as folder:
        writer.write(Path(folder) / "table")
        table = LocationTable(Path(folder) / "table")
        symbolizer = Symbolizer(offset, table=AwaitedTable(table))
        known = LocationCache(symbolizer.locate_all, lambda: table)
        buffer = make_buffer(sorted(words), kaslr_offset=offset)
        expected = [
            make_point(known, buffer, decode_record(buffer.words, index, buffer.encoding))
            for index in range(buffer.count)
        ]
        chunks = [
            list(read_chunk(chunk)) for chunk in column_chunks(known, buffer, buffer.words, 7)
        ]
        assert [point for chunk in chunks for point in chunk] == expected
        assert all(len(chunk) == 7 for chunk in chunks[:-1])


def test_standard_output_is_the_same_page(workspace, streams, trace, tmp_path):
    name = trace("a", WORDS)
    write_report(workspace, streams, tmp_path / "r.html", name)
    assert run_line(workspace, f"report {name} -o -") == 0
    assert streams.take()[0] == (tmp_path / "r.html").read_text("utf-8")


def test_what_it_needs(workspace, trace, tmp_path):
    with pytest.raises(UsageError, match="-o") as caught:
        run_line(workspace, f"report {trace('a', WORDS)}")
    assert "-o FILE" in caught.value.hint
    with pytest.raises(UsageError, match="two buffers"):
        run_line(
            workspace,
            f"report {trace('a', WORDS)} {trace('b', WORDS)} {trace('c', WORDS)} -o {tmp_path}/x",
        )
    set_options(workspace.inputs.kernel, open_target=None)
    with pytest.raises(KcovdbgError, match="no target"):
        run_line(workspace, f"report -o {tmp_path}/x")
    assert not (tmp_path / "x").exists()


def test_a_busy_socket(streams, monkeypatch, tmp_path):
    """The hint of the target's error explains that the socket has another client."""
    problem = TargetError("QMP at vm.qmp: no greeting within 5 s", hint="one client at a time")

    def fail():
        raise problem

    workspace = make_workspace(streams, monkeypatch)
    workspace.__dict__.pop("target", None)
    set_options(workspace.inputs.kernel, open_target=fail)
    with pytest.raises(KcovdbgError, match="no greeting within 5 s") as caught:
        run_line(workspace, f"report -o {tmp_path}/x")
    assert caught.value.hint == problem.hint
    assert not (tmp_path / "x").exists()


def test_the_state_of_a_kernel(streams, monkeypatch, tmp_path):
    workspace = make_workspace(streams, monkeypatch)
    finding = Finding("K1", Severity.ERROR, "kcov 0x1", HOSTILE)
    checked = Report((finding,), applied=48, skipped=(), remarks=("not checked: a list",))
    monkeypatch.setattr(report_command, "check", lambda *_args, **_options: checked)
    page = write_report(workspace, streams, tmp_path / "s.html")
    captions = {text for tag, text in page.texts if tag == "caption"}
    assert {
        "Kernel",
        "Tasks with KCOV state",
        "Every struct kcov and the references to it",
        "Remote handles",
    } <= captions
    assert "48 rules: 1 violation." in page.text()
    assert "evil\\x1b[2J\\u202e\\x0a" in page.text()
    assert checked.remarks[0] in page.text()
    # Findings in a report are no failure of the report.
    assert run_line(workspace, f"report -o {tmp_path}/s.html") == 0


def test_many_records_take_two_bytes_each(workspace, streams, trace, tmp_path):
    words = (WORDS * 2000)[: 1 << 17]
    path = tmp_path / "r.html"
    left, right = trace("a", words), trace("b", [*words[:50000], pc(9), *words[50001:]])
    assert run_line(workspace, f"report {left} {right} -o {path}") == 0
    # In base64, and twice.
    assert path.stat().st_size < 2 * len(words) * 2 * 4 / 3 + 100_000
