# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a line may become: the words at the cursor, the command table and the index together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcovdbg.commands import COMMANDS
from kcovdbg.commands.line import parse_line
from kcovdbg.errors import KcovdbgError, ReadError
from kcovdbg.frontends.completion import harvest as harvesting
from kcovdbg.frontends.completion.candidates import find_candidates
from kcovdbg.frontends.completion.choices import LIMIT, Choices, Entry
from kcovdbg.frontends.completion.cursor import Cursor, Place, find_cursor, quote, split_pieces, unquote
from kcovdbg.frontends.completion.harvest import Harvest
from kcovdbg.frontends.completion.index import Index
from kcovdbg.model.snapshot import Snapshot
from tests.unit.state import BUFFER, KCOV, OBJECTS, REMOTE_KCOV, TASKS, Streams, StubCensus, make_session, make_target


class Looks(StubCensus):
    """Stands for censuses, and counts them."""

    taken = 0
    problem = None

    def __init__(self, _target=None, _layout=None):
        super().__init__()
        type(self).taken += 1

    @property
    def task_fields(self):
        if self.problem is not None:
            raise self.problem
        return tuple(task.fields for task in TASKS)

    @property
    def by_address(self):
        return {fields.address: fields for fields in self.task_fields}

    def recall(self):
        return Snapshot(objects=self.objects, areas=self.areas)


@pytest.fixture
def looks(monkeypatch):
    fresh = type("Looks", (Looks,), {"taken": 0})
    monkeypatch.setattr(harvesting, "Census", fresh)
    return fresh


@pytest.fixture
def index(looks, monkeypatch):
    session = make_session(Streams(), monkeypatch)
    session.kept = {"@before": object()}
    session.latest = Looks()
    harvest = Harvest(session)
    harvest.refresh()
    return harvest.index


def complete(line, index=Index()):  # noqa: B008
    return find_candidates(find_cursor(line), COMMANDS, index)


def texts(line, index=Index()):  # noqa: B008
    return [entry.text for entry in complete(line, index)]


def test_commands_with_their_summaries():
    assert texts("ta") == ["tasks"]
    assert complete("ta")[0].meta == COMMANDS.find("tasks").summary
    assert set(texts("")) == {command.name for command in COMMANDS}
    assert texts("saved") == ["saved"]
    assert "saved" not in texts("")


def test_options_with_their_help():
    assert {"--all", "--mode", "--json", "--csv", "--help"} <= set(texts("tasks --"))
    assert "--mode" not in texts("tasks --mode trace-pc --")
    assert "-a" not in texts("tasks -")
    assert dict(complete("tasks --j"))["--json"] == "write one JSON array"
    assert texts("nonsense --") == []


def test_values_by_what_they_are(index):
    assert texts("tasks 4", index) == ["41", "42"]
    assert dict(complete("tasks 4", index))["41"] == "syz-executor  TRACE_PC  11"
    assert "syz-executor" in texts("tasks syz", index)
    assert texts("tasks --mode trace", index) == ["trace-pc", "trace-cmp"]
    assert texts("tasks --mode=trace-p", index) == ["--mode=trace-pc"]
    assert set(texts("objects 0x", index)) == {hex(KCOV), hex(REMOTE_KCOV)}
    assert dict(complete("objects 0x", index))[hex(KCOV)] == "TRACE_PC  11  41 syz-executor"
    assert texts("help rem", index) == ["remote"]
    assert texts("watch 2 tasks --mo", index) == ["--mode"]
    assert texts("watch 2 ta", index) == ["tasks"]
    assert texts("watch 2 tasks 4", index) == ["41", "42"]


def test_buffers_by_all_their_names(index):
    offered = texts("buffer ", index)
    assert {"41", "42", "7", "@before", "kcov:", "area:", "fd:", "saved:", "file:"} <= set(offered)
    assert "1" not in offered
    assert set(texts("buffer kcov:", index)) == {f"kcov:{KCOV:#x}", f"kcov:{REMOTE_KCOV:#x}"}
    assert f"area:{BUFFER:#x}" in texts("buffer area:0xffffc9", index)
    assert texts("buffer fd:", index) == ["fd:41/3"]
    assert texts("buffer saved:", index) == ["saved:1", "saved:0"]
    assert texts("buffer @", index) == ["@before"]


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


def test_hostile_names_are_never_inserted(index):
    for line in ("tasks ", "tasks e", "buffer ", "objects "):
        for entry in complete(line, index):
            assert (entry.text + entry.meta).isprintable()
    assert dict(complete("tasks 66", index))["66"].startswith("evil\\x1b[2J")


def test_nothing_behind_a_comment(index):
    assert texts("tasks # 4", index) == []


def test_menus_are_short_and_in_order():
    many = Choices(Entry(str(number)) for number in range(20000))
    assert [entry.text for entry in many.matching("")] == [str(number) for number in range(LIMIT)]
    assert [entry.text for entry in many.matching("1999")][:3] == ["1999", "19990", "19991"]
    assert len(many.matching("1")) == LIMIT
    assert many.matching("x") == []
    assert len(Choices([Entry("a", "first"), Entry("a", "second")])) == 1


@pytest.mark.parametrize(
    ("text", "cursor"),
    [
        ("", Cursor(Place.WORD, (), "", 0)),
        ("tasks", Cursor(Place.WORD, (), "tasks", 0)),
        ("tasks ", Cursor(Place.WORD, ("tasks",), "", 6)),
        ("tasks 'syz e", Cursor(Place.WORD, ("tasks",), "syz e", 6)),
        ('tasks "a\\"b', Cursor(Place.WORD, ("tasks",), 'a"b', 6)),
        ("tasks > out", Cursor(Place.FILE, ("tasks",), "out", 8)),
        ("tasks >out -", Cursor(Place.WORD, ("tasks",), "-", 11)),
        ("tasks | gr", Cursor(Place.SHELL, ("tasks",), "gr", 8)),
        ("! ls x", Cursor(Place.SHELL, (), "x", 5)),
        ("tasks # x", Cursor(Place.COMMENT, ("tasks",), "", 9)),
    ],
)
def test_cursor(text, cursor):
    assert find_cursor(text) == cursor


@given(st.text(max_size=40))
def test_pieces_are_the_line(text):
    assert "".join(piece.text for piece in split_pieces(text)) == text
    find_cursor(text)


@given(st.text(min_size=1, max_size=20).filter(lambda text: "\0" not in text and not text.endswith("?")))
def test_quoted_words_are_read_back(text):
    assert unquote(quote(text)) == text
    assert [word.text for word in parse_line(f"tasks {quote(text)}").words] == ["tasks", text]


@given(st.text(alphabet="ab '\"\\$", max_size=12))
def test_finished_lines_are_read_as_commands_read_them(text):
    try:
        words = [word.text for word in parse_line(f"tasks {text} x").words]
    except KcovdbgError:
        return
    cursor = find_cursor(f"tasks {text} x")
    assert [*cursor.words, cursor.prefix] == words


def test_a_dump_is_looked_at_once(looks, monkeypatch):
    harvest = Harvest(make_session(Streams(), monkeypatch))
    for _ in range(3):
        harvest.refresh()
    assert looks.taken == 1


def test_typing_reads_nothing(index, looks):
    before = looks.taken
    for line in ("tasks ", "buffer kcov:", "objects 0x"):
        complete(line, index)
    assert looks.taken == before


def test_a_running_kernel_is_looked_at_for_a_tenth_of_the_time(looks, monkeypatch):
    now = [0.0]

    class Slow(looks):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            now[0] += 2

    monkeypatch.setattr(harvesting, "Census", Slow)
    harvest = Harvest(make_session(Streams(), monkeypatch, target=make_target(live=True)), lambda: now[0])
    harvest.refresh()
    harvest.refresh()
    assert Slow.taken == 1
    now[0] += 21
    harvest.refresh()
    assert Slow.taken == 2


def test_what_a_command_found_completes_next(looks, monkeypatch):
    session = make_session(Streams(), monkeypatch)
    monkeypatch.setattr(harvesting, "_FEW_TASKS", 0)
    monkeypatch.setattr(looks, "tasks", lambda _self, *, all_tasks=False: ())
    monkeypatch.setattr(looks, "remote", ())
    harvest = Harvest(session)
    harvest.refresh()
    assert texts("objects ", harvest.index)[:1] != [hex(KCOV)]
    session.latest = Looks()
    harvest.refresh()
    assert texts("objects ", harvest.index)[: len(OBJECTS)] == [hex(address) for address in OBJECTS]


def test_a_kernel_that_cannot_be_walked_leaves_commands(looks, monkeypatch):
    monkeypatch.setattr(looks, "problem", ReadError("init_task can't be read", 0))
    harvest = Harvest(make_session(Streams(), monkeypatch))
    harvest.refresh()
    assert texts("tasks --mo", harvest.index) == ["--mode"]
    assert texts("tasks 4", harvest.index) == []
