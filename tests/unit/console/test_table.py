# SPDX-License-Identifier: LGPL-2.1-or-later
import csv
import io
import json
from types import SimpleNamespace
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from kcovdbg.console.column import (
    ADDRESS,
    ANY,
    BOOL,
    COMM,
    DETAIL,
    HANDLE,
    LIST,
    NUMBER,
    PATH,
    PID,
    SHARE,
    WORD,
    Column,
)
from kcovdbg.console.renderable import Lines, Table, text_lines, wrap_line
from kcovdbg.console.terminal import Terminal
from kcovdbg.console.text import escape, escape_surrogates, text_width
from kcovdbg.console.writer import Format, write

anything = st.text(st.characters(exclude_categories=()), max_size=12)


def show(*renderables, format=Format.TEXT, width=None):  # noqa: A002
    stream, remarks = io.StringIO(), io.StringIO()
    write(renderables, Terminal(stream, remarks, width), format)
    show.remarks = remarks.getvalue()
    return stream.getvalue()


class Row(NamedTuple):
    pid: int
    comm: str | None
    area: int | None = 0xFFFFC90000200000


COLUMNS = (Column("pid", PID), Column("comm", COMM, elastic=4), Column("area", ADDRESS, priority=1))
ROWS = (Row(1, "init"), Row(12345, "日本"), Row(41, None, 0))


def test_text():
    assert show(Table(COLUMNS, ROWS)) == (
        "  PID  COMM  AREA\n    1  init  0xffffc90000200000\n12345  日本  0xffffc90000200000\n   "
        "41  -     0\n"
    )


def test_json():
    table = Table(
        COLUMNS,
        ROWS,
        remarks=["something is missing"],
        errors=lambda row: ["no name"] if row.comm is None else [],
    )
    assert json.loads(show(table, format=Format.JSON)) == [
        {"pid": 1, "comm": "init", "area": "0xffffc90000200000", "errors": []},
        {"pid": 12345, "comm": "日本", "area": "0xffffc90000200000", "errors": []},
        {"pid": 41, "comm": None, "area": "0x0", "errors": ["no name"]},
    ]
    assert show.remarks == "kcovdbg: note: something is missing\n"
    assert show(table, format=Format.JSON).isascii()
    assert (
        show(Table(COLUMNS, ()), format=Format.JSON)
        == show(Lines(()), format=Format.JSON)
        == "[]\n"
    )


def test_csv():
    table = Table(
        (*COLUMNS, Column("tags", LIST), Column("full", BOOL)),
        [SimpleNamespace(pid=1, comm='a,"b', area=None, tags=["x", "y"], full=True)],
    )
    assert (
        show(table, format=Format.CSV)
        == 'pid,comm,area,tags,full\n1,"a,""b",,"[""x"", ""y""]",true\n'
    )


def test_kinds():
    columns = (
        Column("mode", WORD),
        Column("handle", HANDLE),
        Column("share", SHARE),
        Column("live", BOOL),
        Column("list", ANY, items=(Column("start", ADDRESS), Column("n", NUMBER))),
    )
    row = {
        "mode": 0x40000002,
        "handle": 1 << 56 | 3,
        "share": 0.125,
        "live": False,
        "list": [{"start": 16, "n": None}],
    }
    shown = " ".join(show(Table(columns, [row])).splitlines()[1].split())
    assert shown == '0x40000002 usb:3 12.5% no [{"start": 16, "n": null}]'
    row |= {
        "mode": "0x40000002",
        "handle": "0x100000000000003",
        "list": [{"start": "0x10", "n": None}],
    }
    kept = {"mode": 0x40000002, "handle": 1 << 56 | 3, "list": [{"start": 16, "n": None}]}
    assert json.loads(show(Table(columns, [{**row, **kept}]), format=Format.JSON)) == [row]


def test_show_orders_the_text_only():
    table = Table(COLUMNS, ROWS[:1], show=("area", "pid"))
    assert show(table) == "AREA                PID\n0xffffc90000200000    1\n"
    assert list(json.loads(show(table, format=Format.JSON))[0]) == ["pid", "comm", "area"]


def test_json_only_and_text_only():
    table = Table((Column("a", json_only=True), Column("b", text_only=True)), [{"a": 1, "b": 2}])
    assert show(table) == "B\n2\n"
    assert json.loads(show(table, format=Format.JSON)) == [{"a": "1"}]
    assert show(table, format=Format.CSV) == "a\n1\n"


def test_hidden_where_there_is_nothing():
    columns = (Column("a"), Column("b", ADDRESS, hide_empty=True))
    assert show(Table(columns, [{"a": "x", "b": 0}, {"a": "y", "b": None}])) == "A\nx\ny\n"
    assert show(Table(columns, [{"a": "x", "b": 0}, {"a": "y", "b": 1}])) == "A  B\nx  0\ny  0x1\n"


def test_an_empty_table_says_so():
    assert (
        show(Table(COLUMNS, (), empty="nothing there", remarks=("unread",)))
        == "nothing there\nnote: unread\n"
    )
    assert show(Table(COLUMNS, ())) == "PID  COMM  AREA\n"


def test_narrow_terminal():
    table = Table(COLUMNS, [Row(1, "a-long-name-of-a-task")])
    assert all(text_width(line) <= 40 for line in show(table, width=40).splitlines())
    assert "…" in show(table, width=40)
    heading, row, *note = show(table, width=20).splitlines()
    assert (heading, row) == ("PID  COMM", "  1  a-long-name-of…")
    assert note[0].startswith("note: ")
    assert any("AREA" in line for line in note)
    assert all(text_width(line) <= 20 for line in note)
    assert show(table, width=5).splitlines()[1] == "  1  a-l…"
    assert show(table) == show(table, width=200)


def test_paths_lose_their_start():
    table = Table((Column("path", PATH, elastic=5),), [{"path": "fs/ext4/inode.c"}])
    assert show(table, width=8) == "PATH\n…inode.c\n"


def test_remarks_and_errors_come_after_the_rows():
    said = []

    def rows():
        yield Row(1, "a")
        said.append("cut here")

    table = Table(
        COLUMNS,
        rows(),
        remarks=said,
        errors=lambda _row: ("unreadable",),
        label=lambda row: f"task {row.pid}",
        details=lambda row: [(("", f"  more about {row.pid}"),)],
    )
    assert show(table).splitlines()[2:] == [
        "  more about 1",
        "note: cut here",
        "note: task 1: unreadable",
    ]


def test_many_errors_are_counted():
    table = Table(
        COLUMNS, [Row(pid, "a") for pid in range(100)], errors=lambda row: (f"bad {row.pid}",)
    )
    assert show(table).splitlines()[-1].startswith("note: 80 ")
    # A note that several rows share is given once.
    alike = Table(COLUMNS, [Row(pid, "a") for pid in range(100)], errors=lambda _row: ("bad",))
    assert [line for line in show(alike).splitlines() if line.startswith("note")] == ["note: bad"]


def test_record():
    record = Table(
        (
            Column("target", title="target"),
            Column("offset", WORD, title="KASLR offset"),
            Column("variants", LIST, title="variants", hide_empty=True),
        ),
        [{"target": "x\x1b", "offset": 16, "variants": []}],
        errors=lambda _row: ("no types",),
        is_record=True,
    )
    assert show(record) == "target        x\\x1b\nKASLR offset  0x10\nnote: no types\n"
    assert json.loads(show(record, format=Format.JSON)) == [
        {"target": "x\x1b", "offset": "0x10", "variants": [], "errors": ["no types"]}
    ]


def test_tables_are_one_array():
    table = Table((Column("a"),), [{"a": 1}])
    assert show(table, table) == "A\n1\nA\n1\n"
    assert show(table, table, format=Format.JSON) == '[\n{"a": "1"},\n{"a": "1"}\n]\n'
    assert json.loads(show(table, text_lines("between"), table, format=Format.JSON)) == [
        {"a": "1"},
        {"a": "1"},
    ]


def test_lines_with_data():
    lines = Lines(((("", "drawn"),),), data=Table((Column("a"),), [{"a": "x"}]), remarks=("note",))
    assert show(lines) == "drawn\nnote: note\n"
    assert json.loads(show(lines, format=Format.JSON)) == [{"a": "x"}]
    assert "note" in show.remarks


def test_many_rows_are_written_as_they_come():
    count = 20000
    written = io.StringIO()
    seen = []

    def rows():
        for number in range(count):
            if number == count - 1:
                seen.append(written.tell())
            yield {"n": number, "comm": "x" * (number % 7)}

    write([Table((Column("n", NUMBER), Column("comm", COMM)), rows())], Terminal(written, written))
    assert seen[0] > 0
    assert len(written.getvalue().splitlines()) == count + 1


@given(
    st.lists(
        st.tuples(st.integers(0, 1 << 22), anything, st.none() | st.integers(0, (1 << 64) - 1)),
        max_size=8,
    )
)
def test_json_round_trip(rows):
    rows = [Row(*row) for row in rows]
    parsed = json.loads(show(Table(COLUMNS, rows), format=Format.JSON))
    assert [(row["pid"], row["comm"], row["area"] and int(row["area"], 16)) for row in parsed] == [
        (row.pid, escape_surrogates(row.comm), row.area) for row in rows
    ]


@given(
    st.lists(
        st.tuples(st.integers(0, 1 << 22), anything, st.none() | st.integers(0, (1 << 64) - 1)),
        max_size=8,
    )
)
def test_csv_round_trip(rows):
    rows = [Row(*row) for row in rows]
    text = show(Table(COLUMNS, rows), format=Format.CSV)
    assert text.count("\n") == len(rows) + 1
    parsed = list(csv.reader(io.StringIO(text)))
    assert parsed[0] == ["pid", "comm", "area"]
    assert parsed[1:] == [
        [str(row.pid), escape(row.comm), "" if row.area is None else hex(row.area)] for row in rows
    ]


@given(
    st.lists(
        st.tuples(st.integers(0, 1 << 22), anything, st.integers(0, (1 << 64) - 1)),
        min_size=1,
        max_size=8,
    )
)
def test_a_table_has_a_line_per_row_and_fits_where_it_can(rows):
    rows = [Row(*row) for row in rows]
    table = Table(COLUMNS, rows)
    assert len(show(table).splitlines()) == len(rows) + 1
    for width in (16, 24, 40, 80):
        lines = show(table, width=width).partition("note: no room")[0].splitlines()
        assert len(lines) == len(rows) + 1
        assert all(text_width(line) <= width for line in lines)


@given(anything)
def test_json_is_safe_for_a_terminal(text):
    shown = show(Table((Column("comm"),), [{"comm": text}]), format=Format.JSON)
    assert all(character == "\n" or 0x20 <= ord(character) < 0x7F for character in shown)


words = st.lists(st.text("abcdef漢", min_size=1, max_size=9), min_size=1, max_size=20)


@given(words, st.integers(24, 60), st.integers(0, 4))
def test_prose_keeps_its_words_and_fits(said, width, indent):
    fragments = [("key", " " * indent + said[0]), *(("", f" {word}") for word in said[1:])]
    lines = ["".join(text for _, text in line) for line in wrap_line(fragments, width)]
    assert " ".join(lines).split() == said
    assert all(text_width(line) <= width for line in lines)
    assert all(line.startswith(" " * (indent + 2)) for line in lines[1:])
    assert list(wrap_line(fragments, None)) == [fragments]


def test_prose_keeps_its_styles():
    lines = wrap_line((("key", "K1 "), ("", "an object has a"), ("error", "b"), ("", " and c")), 18)
    assert list(lines) == [
        [("key", "K1 "), ("", "an object has")],
        [("", "  a"), ("error", "b"), ("", " and c")],
    ]


def test_remarks_and_fields_wrap_on_a_terminal_only():
    said = "one two three four five six seven eight nine ten"
    fields = Table(
        (Column("target", title="target"),), [{"target": said}], remarks=[said], is_record=True
    )
    assert show(fields, width=30).splitlines()[:3] == [
        "target  one two three four",
        "        five six seven eight",
        "        nine ten",
    ]
    assert all(text_width(line) <= 30 for line in show(fields, width=30).splitlines())
    assert show(fields) == f"target  {said}\nnote: {said}\n"
    assert (
        show(Lines(((("", said),),), is_prose=True), width=30)
        == "one two three four five six\n  seven eight nine ten\n"
    )
    assert show(Lines(((("", said),),)), width=30) == f"{said}\n"


def test_the_last_column_wraps():
    said = "one two three four five six seven eight nine ten"
    columns = (
        Column("rule"),
        Column("by", elastic=2, priority=DETAIL),
        Column("sentence", elastic=20, wraps=True),
    )
    lines = show(
        Table(columns, [{"rule": "K1", "by": "somebody", "sentence": said}]), width=34
    ).splitlines()
    assert lines[0] == "RULE  SENTENCE"
    assert lines[1:3] == ["K1    one two three four five six", "      seven eight nine ten"]
