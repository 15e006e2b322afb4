# SPDX-License-Identifier: LGPL-2.1-or-later
"""Completion of lines, from the command table and the index."""

from types import SimpleNamespace

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from kcovdbg.check.runner import list_rules
from kcovdbg.commands import COMMANDS
from kcovdbg.console.command_line import parse_line, split_pieces, unquote
from kcovdbg.console.completion import (
    LIMIT,
    Cursor,
    CursorContext,
    complete_word,
    find_candidates,
    find_cursor,
)
from kcovdbg.console.completion_index import Candidate, CodeIndex, Harvest, Index
from kcovdbg.errors import KcovdbgError
from kcovdbg.inputs.input_commands import quote
from kcovdbg.model.location import Frame
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.location_table import FunctionSymbol, LocationTable, TextRange
from tests.support.kernels.asker import Asker
from tests.support.kernels.build import Kernel
from tests.support.kernels.rows import E9A
from tests.support.table_writer import TableWriter


@pytest.fixture
def kernel():
    return Kernel(E9A)


def harvest(kernel):
    found = Harvest(Asker(kernel.target).workspace)
    found.refresh()
    return found.index


@pytest.fixture
def index(kernel):
    return harvest(kernel)


def complete(line, index=Index()):  # noqa: B008
    return find_candidates(find_cursor(line), COMMANDS, index)


def texts(line, index=Index()):  # noqa: B008
    return [entry.text for entry in complete(line, index)]


def test_commands_with_their_summaries():
    assert texts("ta") == ["tasks"]
    assert complete("ta")[0].meta == COMMANDS.find("tasks").summary
    assert set(texts("")) == {command.name for command in COMMANDS}
    assert texts("per") == []


def test_options_with_their_help():
    assert {"--all", "--mode", "--json", "--csv", "--help"} <= set(texts("tasks --"))
    assert "-a" not in texts("tasks -")
    assert dict(complete("tasks --j"))["--json"] == "write one JSON array"
    assert texts("nonsense --") == []


def test_columns_and_keys_after_the_last_comma():
    assert {"pid", "comm", "mode"} <= set(texts("tasks --columns "))
    assert texts("tasks --columns pid,com") == ["pid,comm"]
    assert texts("tasks --fields=pid,com") == ["--fields=pid,comm"]
    assert texts("tasks --columns pid,p") == []
    assert texts("help --columns zz") == []


def test_values_by_what_they_are(kernel, index):
    assert set(texts("tasks 4", index)) == {"40", "41", "42", "43", "44", "45", "46"}
    assert dict(complete("tasks 4", index))["42"] == "executor/2  TRACE_PC  511 FULL"
    assert "executor" in texts("tasks exec", index)
    assert texts("tasks --mode trace", index) == ["trace-pc", "trace-cmp"]
    assert texts("tasks --mode=trace-p", index) == ["--mode=trace-pc"]
    assert set(texts("objects 0x", index)) == set(map(hex, kernel.objects.values()))
    assert (
        dict(complete("objects 0x", index))[hex(kernel.objects["local"])]
        == "TRACE_PC  17  40 executor"
    )
    assert texts("help rem", index) == ["remote"]


def test_buffers_by_all_their_names(kernel):
    workspace = Asker(kernel.target).workspace
    workspace.inputs.kept["@before"] = SimpleNamespace(source="41")
    harvest = Harvest(workspace)
    harvest.refresh()
    offered = texts("buffer ", harvest.index)
    assert {"41", "42", "7", "@before", "kcov:", "area:", "fd:", "saved:", "file:"} <= set(offered)
    assert "1" not in offered
    assert set(texts("buffer kcov:", harvest.index)) == {
        f"kcov:{address:#x}" for address in kernel.objects.values()
    }
    assert texts("buffer fd:40/7", harvest.index) == ["fd:40/70", "fd:40/71", "fd:40/7"]
    assert texts("buffer @", harvest.index) == ["@before"]


@pytest.fixture
def code(tmp_path):
    writer = TableWriter("00" * 20, [TextRange(0x1000, 0x9000, ".text")])
    files = {
        "vfs_read": "fs/read_write.c",
        "tcp_ack": "./net/ipv4/tcp.c",
        "tcp_v6": "net/ipv6/tcp_ipv6.c",
        "main": "init/main.c",
    }
    for number, (name, file) in enumerate(files.items()):
        address = 0x1000 + 0x100 * number
        writer.add_function(FunctionSymbol(name, address, 0x80))
        writer.add_frames(address + 8, PointKind.PC, [Frame(name, file, 1, None)])
    writer.write(tmp_path / "table")
    table = LocationTable(tmp_path / "table")
    return Index(code=CodeIndex(lambda: table))


def test_functions_and_source_files(code):
    for line in ("points ", "why 41 ", "source 41 ", "buffer 41 --function "):
        assert texts(f"{line}vf", code) == ["vfs_read"]
    assert texts("points n", code) == ["net/"]
    assert texts("points net/", code) == ["net/ipv4/", "net/ipv6/"]
    assert texts("points net/ipv4/t", code) == ["net/ipv4/tcp.c"]
    assert texts("points tcp", code) == [
        "tcp_ack",
        "tcp_v6",
        "net/ipv4/tcp.c",
        "net/ipv6/tcp_ipv6.c",
    ]
    assert texts("points tcp") == []
    assert texts("points _ac", code) == ["tcp_ack"]
    assert texts("points write", code) == ["fs/read_write.c"]
    # A short part is in too many names.
    assert texts("points ac", code) == []


def test_a_table_that_is_still_being_built_is_asked_for_again():
    asked = []
    index = Index(code=CodeIndex(lambda: asked.append(1)))
    assert texts("points vf", index) == texts("points fs/", index) == []
    assert len(asked) > 1


def test_rules_and_formats():
    names = [rule.name for rule in list_rules()]
    for line in ("check ", "check --explain ", "check --explain="):
        assert {text.removeprefix("--explain=") for text in texts(f"{line}k")} == {
            name for name in names if name[0] == "K"
        }
    assert texts("export cob") == ["cobertura"]
    assert texts("exp cob") == ["cobertura"]


def test_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.kcov").touch()
    (tmp_path / "runs").mkdir()
    (tmp_path / ".hidden").touch()
    (tmp_path / "evil\x1b[2J").touch()
    assert texts("tasks > r") == ["run.kcov", "runs/"]
    assert texts("tasks >> ") == ["run.kcov", "runs/"]
    assert texts("buffer file:run.") == ["file:run.kcov"]
    assert texts("tasks > .h") == [".hidden"]
    assert texts("tasks > /nonexistent/") == []
    assert texts("tasks | grep ") == []
    assert texts("! cat run.") == ["run.kcov"]


def test_programs_in_a_pipe(tmp_path, monkeypatch):
    for name, mode in (("jq-here", 0o755), ("jq-text", 0o644), ("other", 0o755)):
        (tmp_path / name).touch(mode)
    monkeypatch.setenv("PATH", f"/nowhere:{tmp_path}")
    assert texts("tasks --json | jq") == texts("! jq") == texts("tasks | cat | jq") == ["jq-here"]
    assert texts("tasks | ") == []


def test_hostile_names_are_never_inserted(kernel):
    kernel.put(kernel.tasks[44], "struct task_struct", comm=b"evil\x1b[2J".ljust(16, b"\0"))
    index = harvest(kernel)
    for line in ("tasks ", "tasks e", "buffer ", "objects "):
        assert all((entry.text + entry.meta).isprintable() for entry in complete(line, index))
    assert dict(complete("tasks 44", index))["44"].startswith("evil\\x1b[2J")


def test_menus_are_short_and_in_order():
    numbers = [Candidate(str(number)) for number in range(20000)]
    assert texts("tasks ", Index({"task": numbers})) == [str(number) for number in range(LIMIT)]
    assert texts("tasks 1999", Index({"task": numbers}))[:3] == ["1999", "19990", "19991"]
    names = [
        *map(Candidate, ("do_sys_openat2", "openat2_x", "close")),
        Candidate("openat2_x", "second"),
    ]
    assert complete("tasks openat2", Index({"task": names})) == [
        Candidate("openat2_x"),
        Candidate("do_sys_openat2"),
    ]


@pytest.mark.parametrize(
    ("text", "cursor"),
    [
        ("", Cursor(CursorContext.WORD, (), "", 0)),
        ("tasks", Cursor(CursorContext.WORD, (), "tasks", 0)),
        ("tasks ", Cursor(CursorContext.WORD, ("tasks",), "", 6)),
        ("tasks 'syz e", Cursor(CursorContext.WORD, ("tasks",), "syz e", 6)),
        ('tasks "a\\"b', Cursor(CursorContext.WORD, ("tasks",), 'a"b', 6)),
        ("tasks > out", Cursor(CursorContext.FILE, ("tasks",), "out", 8)),
        ("tasks >out -", Cursor(CursorContext.WORD, ("tasks",), "-", 11)),
        ("tasks | grep fi", Cursor(CursorContext.FILE, ("tasks",), "fi", 13)),
        ("tasks | gr", Cursor(CursorContext.PROGRAM, ("tasks",), "gr", 8)),
        ("tasks | grep a |so", Cursor(CursorContext.PROGRAM, ("tasks",), "so", 16)),
        ("tasks | grep ", Cursor(CursorContext.NONE, ("tasks",), "", 13)),
        ("! ls x", Cursor(CursorContext.FILE, (), "x", 5)),
        ("tasks -a; rem", Cursor(CursorContext.WORD, (), "rem", 10)),
        ("remote; tasks -", Cursor(CursorContext.WORD, ("tasks",), "-", 14)),
        ("< lo", Cursor(CursorContext.FILE, (), "lo", 2)),
        ("tasks # x", Cursor(CursorContext.NONE, ("tasks",), "", 9)),
    ],
)
def test_cursor(text, cursor):
    assert find_cursor(text) == cursor


@given(st.text(max_size=40))
def test_pieces_are_the_line(text):
    assert "".join(piece.text for piece in split_pieces(text)) == text
    find_cursor(text)


@given(
    st.text(min_size=1, max_size=20).filter(
        lambda text: "\0" not in text and not text.endswith("?")
    )
)
def test_quoted_words_are_read_back(text):
    assert unquote(quote(text)) == text
    assert [word.text for word in parse_line(f"tasks {quote(text)}").words] == ["tasks", text]


@given(st.text(alphabet="ab '\"\\$", max_size=12))
def test_finished_lines_are_read_as_commands_read_them(text):
    try:
        words = [word.text for word in parse_line(f"tasks {text} x").words]
    except KcovdbgError:
        reject()
    cursor = find_cursor(f"tasks {text} x")
    assert [*cursor.words, cursor.prefix] == words


@pytest.mark.parametrize("live", [False, True])
def test_a_running_kernel_is_looked_at_for_a_tenth_of_the_time(kernel, live):
    """A dump is looked at once."""
    now = [0.0]

    def clock():
        now[0] += 1
        return now[0]

    kernel.target.live = live
    harvest = Harvest(Asker(kernel.target).workspace, clock)
    harvest.refresh()
    kernel.put(kernel.tasks[44], "struct task_struct", comm=b"renamed".ljust(16, b"\0"))
    harvest.refresh()
    assert texts("tasks renamed", harvest.index) == []
    now[0] += 21
    harvest.refresh()
    assert texts("tasks renamed", harvest.index) == (["renamed"] if live else [])


def test_what_a_command_found_completes_next(kernel, monkeypatch):
    monkeypatch.setattr("kcovdbg.console.completion_index._FEW_TASKS", 0)
    asker = Asker(kernel.target)
    harvest = Harvest(asker.workspace)
    harvest.refresh()
    stopped = hex(kernel.objects["stopped"])
    assert stopped not in texts("objects ", harvest.index)
    asker.ask("objects")
    harvest.refresh()
    assert stopped in texts("objects ", harvest.index)


def test_a_kernel_that_cannot_be_walked_leaves_commands(kernel):
    del kernel.target.symbols["init_task"]
    index = harvest(kernel)
    assert (texts("tasks --mo", index), texts("tasks 4", index)) == (["--mode"], [])


def test_programs_that_replace_only_the_end_of_a_word(code):
    def complete_end(line, word):
        return complete_word(line, word, COMMANDS, code)

    assert complete_end("ta", "ta") == ["tasks"]
    assert complete_end("tasks --js", "js") == ["json", "jsonl"]
    # A word that begins otherwise replaces the typed one only if it is the only one.
    assert complete_end("points write", "write") == ["fs/read_write.c"]
    assert complete_end("points cp_", "cp_") == []
    assert complete_end("tasks --js", "other") == []
