# SPDX-License-Identifier: LGPL-2.1-or-later
import json
import os
import stat
from pathlib import Path

import pytest

from kcovdbg.commands import COMMANDS
from kcovdbg.commands.argument import EXPLANATIONS, Argument, Count, Value, WordError
from kcovdbg.commands.command import Command, CommandTable, Example, Need
from kcovdbg.commands.parse import parse_arguments
from kcovdbg.commands.run import run_line, run_reporting, run_words
from kcovdbg.errors import KcovdbgError, LineError, UsageError
from kcovdbg.render.column import Column
from kcovdbg.render.renderable import Lines, Table, text_lines
from kcovdbg.render.theme import Color
from tests.unit.state import Streams, make_session, make_target


def make_command(run=lambda _context, _args: None, name="probe", needs=frozenset(), **values):
    return Command(name=name, summary="a probe", run=run, needs=needs, **values)


@pytest.fixture
def streams():
    return Streams()


@pytest.fixture
def session(streams, monkeypatch):
    def many(_context, _args):
        yield Table((Column("n"),), ({"n": number} for number in range(100_000)))

    def half(_context, _args):
        yield text_lines("half of it")
        raise KcovdbgError("the other half can't be read")

    def say(_context, args):
        return text_lines(" ".join(args.words or ["nothing"]))

    def violated(context, _args):
        context.status = 1

    words = Argument(("words",), Value.TEXT, "to say", count=Count.ANY)
    return make_session(
        streams,
        monkeypatch,
        commands=COMMANDS.with_commands(
            make_command(many, "many"),
            make_command(half, "half"),
            make_command(say, "say", arguments=(words,)),
            make_command(violated, "violated"),
            make_command(lambda _context, _args: 1 // 0, "broken"),
            make_command(name="living", needs=frozenset({Need.LIVE})),
            make_command(name="drawing", needs=frozenset({Need.TERMINAL})),
        ),
    )


def test_a_line(session, streams):
    assert run_line(session, "say hello 'you there' # really") == 0
    assert streams.take() == ("hello you there\n", "")
    assert run_line(session, "   # nothing") == 0
    assert run_line(session, "violated") == 1
    assert run_words(session, ["say", "a b", "| c"]) == 0
    assert streams.take() == ("a b | c\n", "")


def test_a_pipeline(session, streams):
    assert run_line(session, "say one two | tr a-z A-Z | cat") == 0
    assert streams.take() == ("ONE TWO\n", "")


def test_a_pipeline_that_has_seen_enough_is_no_error(session, streams):
    assert run_line(session, "many | head -2") == 0
    assert streams.take() == ("N\n0\n", "")


def test_grep_that_finds_nothing_is_no_error(session):
    assert run_line(session, "say one | grep two") == 0


def test_a_pipeline_that_cannot_start(session):
    with pytest.raises(KcovdbgError, match="status 127"):
        run_line(session, "say one | no-such-command-anywhere 2>/dev/null")


def test_an_error_before_a_pipeline(session, streams):
    with pytest.raises(KcovdbgError, match="other half"):
        run_line(session, "half | cat")
    assert streams.take()[0] == "half of it\n"


def test_the_shell(session, streams):
    assert run_line(session, "!echo hi; echo there") == 0
    assert streams.take()[0] == "hi\nthere\n"
    assert run_line(session, "! exit 3") == 2


def test_redirection(session, streams, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out file"
    assert run_line(session, "say one > 'out file'") == 0
    assert run_line(session, "say two >> 'out file'") == 0
    assert out.read_text() == "one\ntwo\n"
    assert run_line(session, f"say three > '{out}'") == 0
    assert out.read_text() == "three\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out file"]
    assert streams.take() == ("", "")


def test_a_failed_command_leaves_the_old_file(session, tmp_path):
    out = tmp_path / "out"
    out.write_text("old")
    with pytest.raises(KcovdbgError):
        run_line(session, f"half > {out}")
    assert out.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_file_keeps_its_permissions_and_a_link_its_target(session, tmp_path):
    out, link = tmp_path / "out", tmp_path / "link"
    out.write_text("old")
    out.chmod(0o640)
    link.symlink_to("out")
    run_line(session, f"say new > {link}")
    assert link.is_symlink()
    assert out.read_text() == "new\n"
    assert stat.S_IMODE(out.stat().st_mode) == 0o640


def test_a_new_file_has_the_permissions_that_the_umask_leaves(session, tmp_path):
    old = os.umask(0o027)
    try:
        run_line(session, f"say x > {tmp_path / 'out'}")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o640


def test_devices_are_written_in_place(session):
    assert run_line(session, "say x > /dev/null") == 0
    assert Path("/dev/null").is_char_device()


def test_a_file_that_cannot_be_written(session, tmp_path):
    with pytest.raises(KcovdbgError, match="no/such can't be written: No such file or directory"):
        run_line(session, f"say x > {tmp_path}/no/such")
    with pytest.raises(KcovdbgError, match="can't be written: Is a directory"):
        run_line(session, f"say x > {tmp_path}")
    if Path("/dev/full").exists():
        with pytest.raises(KcovdbgError, match="No space left"):
            run_line(session, "many > /dev/full")


def test_colours_go_to_files_only_when_told(monkeypatch, tmp_path):
    out = tmp_path / "out"
    for color, colored in ((Color.AUTO, False), (Color.ALWAYS, True)):
        session = make_session(Streams(80, color), monkeypatch)
        run_line(session, f"tasks > {out}")
        assert ("\x1b[" in out.read_text()) is colored


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("taks", "kcovdbg: no command is called taks\n  taks\n  ^\n  did you mean tasks?\n"),
        ("xyzzy", "kcovdbg: no command is called xyzzy\n  xyzzy\n  ^\n  help lists the commands\n"),
        ("tasks --jsn", "kcovdbg: tasks has no option --jsn\n  tasks --jsn\n        ^\n  did you mean --json?\n"),
        ("objects ff zz", "kcovdbg: zz is no address\n  objects ff zz\n             ^\n"),
        ("info 1 ", "kcovdbg: info can't do anything with 1\n  info 1\n       ^\n  usage: info\n"),
        ("tasks --mode", "kcovdbg: argument --mode: expected one argument\n  tasks --mode\n              ^\n"),
        ("watch", "kcovdbg: the following arguments are required: N, COMMAND\n"),
        ("tasks --json --csv", "kcovdbg: --json and --csv exclude each other\n  tasks --json --csv\n               ^\n"),
        ("half", "kcovdbg: the other half can't be read\n"),
        (
            "broken",
            "kcovdbg: internal error: ZeroDivisionError: integer division or modulo by zero\n"
            "  --debug shows where; please report it with the command\n",
        ),
        ("living", "kcovdbg: living needs a running kernel; vmcore isn't one\n"),
        ("drawing", "kcovdbg: drawing needs a terminal\n"),
        ("help xyzzy", "kcovdbg: no command is called xyzzy\n  help lists the commands\n"),
        ("say 'x", "kcovdbg: this quote isn't closed: '\n  say 'x\n      ^\n"),
        ("watch 1 watch 1 info", "kcovdbg: watch can't watch itself\n"),
    ],
)
def test_errors(session, streams, line, expected):
    assert run_reporting(session, line) == 2
    said = streams.take()[1]
    assert said.startswith(expected) if line == "watch" else said == expected


def test_errors_say_which_line_of_a_script(session, streams):
    run_reporting(session, "half", "script:3")
    assert streams.take()[1] == "kcovdbg: script:3: the other half can't be read\n"


def test_debug_shows_where_errors_come_from(session, streams):
    session.debug = True
    run_reporting(session, "broken")
    assert "Traceback" in streams.take()[1]


def test_hostile_words_are_escaped(session, streams):
    run_reporting(session, "\x1b[2J")
    assert "\x1b" not in streams.take()[1]


def test_help(session, streams):
    for line in ("help", "?"):
        run_line(session, line)
        said, _ = streams.take()
        assert all(command.name in said and command.summary in said for command in COMMANDS)
    said = set()
    for line in ("help tasks", "tasks?", "?tasks", "tasks --help", "tasks -h", "tasks --mode --help"):
        run_line(session, line)
        said.add(streams.take()[0])
    assert len(said) == 1
    assert "Usage: tasks [-a] [--mode M] [PATTERN|TID…]" in said.pop()
    run_line(session, "help --json")
    assert [entry["command"] for entry in json.loads(streams.take()[0])] == [command.name for command in session.commands]
    run_line(session, "saved? | head -1")
    assert streams.take()[0] == "percpu - saved state of sessions that a softirq section interrupted\n"


@pytest.mark.parametrize("command", list(COMMANDS), ids=lambda command: command.name)
def test_commands_are_documented(command, session, streams):
    assert command.summary
    assert "\n" not in command.summary
    assert len(command.name) + len(command.summary) < 76
    assert not command.summary.endswith(".")
    assert command.examples
    assert isinstance(command.run, object)
    assert all(example.line.split()[0] in command.names for example in command.examples)
    assert len({argument.attribute for argument in command.arguments}) == len(command.arguments)
    run_line(session, f"help {command.name}")
    lines = streams.take()[0].splitlines()
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize("command", list(COMMANDS), ids=lambda command: command.name)
def test_examples_can_be_read(command):
    from kcovdbg.commands.line import parse_line

    for example in command.examples:
        words = [word.text for word in parse_line(example.line).words]
        parse_arguments(COMMANDS.find(words[0]), words[1:])


def test_names_are_unique():
    assert len(COMMANDS.names) == sum(len(command.names) for command in COMMANDS)


def test_arguments():
    command = make_command(
        arguments=(
            Argument(("-n", "--lines"), Value.NUMBER, "n"),
            Argument(("--handle",), Value.HANDLE, "h", count=Count.ANY),
            Argument(("--by",), Value.CHOICE, "b", choices=("file", "pc"), default="file"),
            Argument(("--raw",), Value.FLAG, "r"),
            Argument(("what",), Value.BUFFER, "w"),
            Argument(("pcs",), Value.PC, "p", count=Count.ANY),
        )
    )
    assert command.usage == "probe [-n LINES] [--handle HANDLE]… [--by file|pc] [--raw] WHAT [PCS…]"
    args = parse_arguments(command, ["-n", "5", "41", "ff", "--raw", "--handle", "usb:1", "0x10", "--handle=2", "--by", "pc"])
    assert (args.lines, args.handle, args.by, args.raw, args.what, args.pcs) == (
        5,
        [1 << 56 | 1, 2],
        "pc",
        True,
        "41",
        [255, 16],
    )
    defaults = parse_arguments(command, ["41"])
    assert (defaults.lines, defaults.handle, defaults.by, defaults.raw, defaults.pcs) == (None, None, "file", False, [])
    for words, wrong in (
        (["-n", "x", "41"], "x"),
        (["-n", "-1", "41"], "-1"),
        (["--by", "files", "41"], "files"),
        (["--handle", "usb:", "41"], "usb:"),
        (["--line", "1", "41"], "--line"),
        ([], None),
    ):
        with pytest.raises(WordError) as caught:
            parse_arguments(command, words)
        assert caught.value.word == wrong
    with pytest.raises(WordError) as caught:
        parse_arguments(command, ["--handle", "usb:", "41"])
    assert caught.value.hint == EXPLANATIONS[Value.HANDLE]


def test_the_rest_belongs_to_another_command():
    command = make_command(
        arguments=(
            Argument(("-o",), Value.FILE, "o"),
            Argument(("line",), Value.COMMAND, "c", count=Count.REST),
        )
    )
    for words in (["-o", "f", "--", "ls", "--json", "-l"], ["-o", "f", "ls", "--json", "-l"]):
        args = parse_arguments(command, words)
        assert (args.o, args.line, args.json) == ("f", ["ls", "--json", "-l"], False)
    assert parse_arguments(command, ["--json", "ls", "--", "x"]).line == ["ls", "--", "x"]
    assert parse_arguments(command, ["-h"]).help


def test_watch(session, streams, monkeypatch):
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", sleep)
    assert run_line(session, "watch 0.5 say x") == 130
    assert streams.take() == ("x\nx\nx\n", "")
    assert slept == [0.5] * 3
    slept.clear()
    streams.width = 80
    assert run_line(session, "watch 2 tasks --mode disabled") == 130
    said = streams.take()[0]
    assert said.count("\x1b[2J") == 3
    assert said.count("every 2 s: tasks --mode disabled") == 3
    slept.clear()
    assert run_line(session, "watch --json 1 info") == 130
    decoder, text = json.JSONDecoder(), streams.take()[0]
    for _ in range(3):
        value, end = decoder.raw_decode(text)
        assert len(value) == 1
        text = text[end:].lstrip()
    assert not text


def test_no_target(session, streams):
    session._open_target = None
    assert run_reporting(session, "info") == 2
    assert streams.take()[1].startswith("kcovdbg: no target\n  kcovdbg -c VMCORE")


def test_a_target_is_opened_when_needed_and_once(streams, monkeypatch):
    opened = []
    session = make_session(streams, monkeypatch)
    session._open_target = lambda: opened.append(1) or make_target()
    run_line(session, "help")
    assert not opened
    run_line(session, "info")
    run_line(session, "info")
    assert opened == [1]


def test_table():
    table = CommandTable((make_command(aliases=("p",)),))
    assert table.find("p").name == "probe"
    assert "p" in table
    with pytest.raises(UsageError, match="no command is called q"):
        table.find("q")
    assert Example("a", "b").line == "a"
    assert isinstance(text_lines("x"), Lines)


def test_line_errors_are_usage_errors(session):
    with pytest.raises(LineError):
        run_line(session, "nothing-like-it")
