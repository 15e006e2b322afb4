# SPDX-License-Identifier: LGPL-2.1-or-later
import json
import os
import re
import stat
import string
from types import SimpleNamespace

import pytest

from kcovdbg.commands import COMMANDS
from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.column import Column, RowType
from kcovdbg.console.command import OUTPUT_OPTIONS, Command, CommandTable, parse_arguments
from kcovdbg.console.command_line import parse_line
from kcovdbg.console.help_text import command_help
from kcovdbg.console.renderable import Table, text_lines
from kcovdbg.console.runner import run_line, run_reporting, run_script, run_words
from kcovdbg.console.terminal import Color, Painter
from kcovdbg.errors import KcovdbgError, UsageError, WordError
from kcovdbg.inputs.code_names import unknown_function
from tests.support.state import Streams, make_target, make_workspace, set_options


def make_command(run=lambda _context, _args: None, name="probe", needs=frozenset(), **values):
    return Command(name=name, summary="a probe", run=run, needs=needs, **values)


@pytest.fixture
def streams():
    return Streams()


@pytest.fixture
def workspace(streams, monkeypatch):
    def many(_context, _args):
        yield Table((Column("n"),), ({"n": number} for number in range(100_000)))

    def half(_context, _args):
        yield text_lines("half of it")
        raise KcovdbgError("the other half can't be read")

    def say(_context, args):
        return text_lines(" ".join(args.words or ["nothing"]))

    def violated(context, _args):
        context.status = 1

    words = Argument("words [WORDS…]", Value.TEXT, "to say")
    return make_workspace(
        streams,
        monkeypatch,
        commands=COMMANDS.with_commands(
            make_command(many, "many"),
            make_command(half, "half"),
            make_command(say, "say", arguments=(words,)),
            make_command(violated, "violated"),
            make_command(lambda _context, _args: 1 // 0, "broken"),
        ),
    )


def test_a_line(workspace, streams):
    assert run_line(workspace, "say hello 'you there' # really") == 0
    assert streams.take() == ("hello you there\n", "")
    assert run_line(workspace, "   # nothing") == 0
    assert run_line(workspace, "violated") == 1
    assert run_words(workspace, ["say", "a b", "| c"]) == 0
    assert streams.take() == ("a b | c\n", "")


def test_a_pipeline(workspace, streams):
    assert run_line(workspace, "say one two | tr a-z A-Z | cat") == 0
    assert streams.take() == ("ONE TWO\n", "")
    # It has seen enough.
    assert run_line(workspace, "many | head -2") == 0
    assert streams.take() == ("N\n0\n", "")
    with pytest.raises(KcovdbgError, match="status 127"):
        run_line(workspace, "say one | no-such-command-anywhere 2>/dev/null")
    with pytest.raises(KcovdbgError, match="other half"):
        run_line(workspace, "half | cat")
    assert streams.take()[0] == "half of it\n"


@pytest.mark.parametrize(
    ("pipeline", "status"),
    [
        ("grep two", 1),
        ("(cat; exit 5)", 5),
        ("(cat >&2; exit 5) | cat", 5),
        ("cat | (cat; exit 5)", 5),
    ],
)
def test_a_failed_part_of_a_pipe_is_its_status(workspace, streams, pipeline, status):
    assert run_line(workspace, f"say one | {pipeline}") == status
    assert "pipeline" not in streams.take()[1]


def test_the_shell(workspace, streams):
    assert run_line(workspace, "!echo hi; echo there") == 0
    assert streams.take()[0] == "hi\nthere\n"
    assert run_line(workspace, "! exit 3") == 2


def test_redirection(workspace, streams, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out file"
    assert run_line(workspace, "say one > 'out file'") == 0
    assert run_line(workspace, "say two >> 'out file'") == 0
    assert out.read_text() == "one\ntwo\n"
    assert run_line(workspace, f"say three > '{out}'") == 0
    # A failed command leaves the old file.
    with pytest.raises(KcovdbgError):
        run_line(workspace, f"half > '{out}'")
    assert out.read_text() == "three\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out file"]
    assert streams.take() == ("", "")


def test_an_old_file_keeps_its_permissions_and_a_new_one_has_those_that_the_umask_leaves(
    workspace, tmp_path
):
    (tmp_path / "old").touch()
    (tmp_path / "old").chmod(0o604)
    umask = os.umask(0o027)
    try:
        run_line(workspace, f"say x > {tmp_path / 'old'}; say x > {tmp_path / 'new'}")
    finally:
        os.umask(umask)
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {
        "old": 0o604,
        "new": 0o640,
    }


def test_colours_go_to_files_only_when_told(monkeypatch, tmp_path):
    out = tmp_path / "out"
    for color, colored in ((Color.AUTO, False), (Color.ALWAYS, True)):
        workspace = make_workspace(Streams(80, color), monkeypatch)
        run_line(workspace, f"tasks > {out}")
        assert ("\x1b[" in out.read_text()) is colored


# A line, the word that the message quotes, the column of the caret (None: there is none), and the
# hint.
ERRORS = (
    ("taks", "'taks'", 0, "did you mean tasks?"),
    ("xyzzy", "'xyzzy'", 0, "help lists the commands"),
    ("tasks --jsn", "'--jsn'", 6, "did you mean --json or --jsonl?"),
    ("buffer 38 --last 5", "'--last'", 10, "did you mean --tail or -n?"),
    ("top 38 --limit=5", "'--limit'", 7, "did you mean -n?"),
    ("objects ff zz", "'zz'", 11, "objects"),
    ("info 1 ", "'1'", 5, "usage: info"),
    ("saved 1", "saved", 6, "usage: saved"),
    ("saved 1", "'1'", 6, "usage: saved"),
    ("export 26 -o 'a b' lcov", "'26'", 7, "usage: export FORMAT WHAT"),
    ("export 26 27", "'26'", 7, "usage: export FORMAT WHAT"),
    ("tasks --mode", "--mode", 12, None),
    ("tasks --mode nonsense", "'NONSENSE'", 6, "its modes: DISABLED"),
    ("tasks --mode=nonsense", "'NONSENSE'", 6, "its modes: DISABLED"),
    ("check --explain X9", "'X9'", 16, "check --list"),
    ("diff 1 2 3", "3 given", 10, "diff A B"),
    ("bt", "'bt'", 0, "last TID"),
    ("info threads", "'threads'", 5, "tasks -a"),
    ("watch 2 tasks", "'watch'", 0, "monitor --print"),
    ("tasks -n -5", "'-5' is negative", 9, None),
    ("tasks --sort nonsense", "'nonsense'", None, "columns: "),
    ("tasks --json --csv", "--csv", 13, None),
    ("half", "the other half", None, None),
    ("broken", "ZeroDivisionError", None, "--debug"),
    ("help xyzzy", "'xyzzy'", 5, "help lists the commands"),
    ("say 'x", "'", 4, None),
)


@pytest.mark.parametrize(
    ("line", "quoted", "column", "hint"), ERRORS, ids=[error[0] for error in ERRORS]
)
def test_errors(workspace, streams, line, quoted, column, hint):
    assert run_reporting(workspace, line).status == 2
    first, *rest = streams.take()[1].splitlines()
    assert first.startswith("kcovdbg: ")
    assert quoted in first
    if column is not None:
        assert rest[:2] == [f"  {line.rstrip()}", f"  {' ' * column}^"]
        rest = rest[2:]
    assert len(rest) == (hint is not None)
    assert hint is None or hint in rest[0]


def test_debug_shows_where_errors_come_from(workspace, streams):
    workspace.debug = True
    run_reporting(workspace, "broken")
    assert "Traceback" in streams.take()[1]


def test_hostile_words_are_escaped(workspace, streams):
    run_reporting(workspace, "\x1b[2J")
    assert "\x1b" not in streams.take()[1]


def test_several_commands_in_a_line(workspace, streams):
    assert run_line(workspace, "help tasks --json; help remote --json") == 0
    first, second = streams.take()[0].strip().split("]\n[")
    assert ('"tasks"' in first, '"remote"' in second) == (True, True)
    with pytest.raises(UsageError):
        run_line(workspace, "taks; help remote")
    assert streams.take()[0] == ""


def test_commands_in_a_file(workspace, streams, tmp_path):
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    inner.write_text(f"help remote --json\n< {outer}\n")
    outer.write_text(f"#!/usr/bin/env kcovdbg\n# a comment\n\ntaks\n< {inner}\nhelp tasks --json\n")
    assert run_line(workspace, f"< {outer}") == 2
    out, err = streams.take()
    assert [name in out for name in ('"remote"', '"tasks"')] == [True, True]
    # A line that fails does not end the file, which does not run itself.
    assert f"{outer}:4: " in err
    assert f"{inner}:2: " in err
    assert workspace.scripts == []
    assert run_line(workspace, f"help tasks > /dev/null; < {inner}") == 2
    with pytest.raises(OSError, match="missing"):
        run_line(workspace, f"< {tmp_path}/missing")


def test_a_script_without_ends_of_lines_ends(workspace, streams):
    # As /dev/zero.
    class Endless:
        def readline(self, size):
            return "\0" * size

    assert run_script(workspace, Endless(), "zero") == 2
    assert len(streams.take()[1].splitlines()) == 2


@pytest.mark.parametrize("name", ["sym", "points", "why", "demo", "buffer", "source", "tasks"])
def test_an_empty_word_is_refused(name):
    with pytest.raises(WordError):
        parse_arguments(COMMANDS.find(name), [""])


def test_another_program_gets_empty_words():
    assert parse_arguments(COMMANDS.find("collect"), ["--", "echo", ""]).command == ["echo", ""]


def test_help(workspace, streams):
    for line in ("help", "?"):
        run_line(workspace, line)
        said, _ = streams.take()
        assert all(command.name in said and command.summary in said for command in COMMANDS)
    said = set()
    for line in (
        "help tasks",
        "tasks?",
        "?tasks",
        "tasks --help",
        "tasks -h",
        "tasks --mode --help",
    ):
        run_line(workspace, line)
        said.add(streams.take()[0])
    assert len(said) == 1
    assert "Usage: tasks [-a] [--mode M] [PATTERN|TID…]" in said.pop()
    run_line(workspace, "help --json")
    assert [entry["command"] for entry in json.loads(streams.take()[0])] == [
        command.name for command in workspace.commands
    ]
    run_line(workspace, "saved? | head -1")
    assert streams.take()[0].startswith("saved - ")


def test_help_has_examples_before_options_and_the_shared_options_in_one_place(workspace, streams):
    run_line(workspace, "help tasks")
    said = streams.take()[0]
    first, second, *others = (
        said.index(f"\n    {example.line}\n") for example in COMMANDS.find("tasks").examples
    )
    assert first < second < said.index("--mode M  ") < min(others)
    assert not any(option.help in said for option in OUTPUT_OPTIONS)
    run_line(workspace, "help output")
    said = " ".join(streams.take()[0].split())
    assert all(f"{option.heading} {option.help}" in said for option in OUTPUT_OPTIONS)
    run_line(workspace, "help output --json")
    assert [row["names"] for row in json.loads(streams.take()[0])] == [
        list(option.names) for option in OUTPUT_OPTIONS
    ]


@pytest.mark.parametrize("command", list(COMMANDS), ids=lambda command: command.name)
def test_commands_are_documented(command, workspace, streams):
    assert command.summary
    assert "\n" not in command.summary
    assert len(command.name) + len(command.summary) < 76
    assert not command.summary.endswith(".")
    assert command.examples
    assert all(example.line.split()[0] in command.names for example in command.examples)
    assert len({argument.attribute for argument in command.arguments}) == len(command.arguments)
    run_line(workspace, f"help {command.name}")
    lines = streams.take()[0].splitlines()
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize("command", list(COMMANDS), ids=lambda command: command.name)
def test_examples_can_be_read(command):
    for example in command.examples:
        words = [word.text for word in parse_line(example.line).words]
        parse_arguments(COMMANDS.find(words[0]), words[1:])


def test_names_are_unique():
    names = [name for command in COMMANDS for name in (*command.names, *command.former_names)]
    assert sorted(COMMANDS.names) == sorted(names)
    assert COMMANDS.find("percpu") is COMMANDS.find("saved")
    assert "percpu" not in COMMANDS.find("saved").names


def test_arguments():
    command = make_command(
        arguments=(
            Argument("-n, --lines", Value.NUMBER, "n"),
            Argument("--time …", Value.SECONDS, "t"),
            Argument("--by", Value.CHOICE, "b", choices=("file", "pc"), default="file"),
            Argument("--raw", Value.FLAG, "r"),
            Argument("what WHAT", Value.BUFFER, "w"),
            Argument("pcs [PCS…]", Value.ADDRESS, "p"),
        )
    )
    assert command.usage == "probe [-n LINES] [--time TIME]… [--by file|pc] [--raw] WHAT [PCS…]"
    args = parse_arguments(
        command,
        ["-n", "5", "41", "ff", "--raw", "--time", "2m", "0x10", "--time=2", "--by", "pc"],
    )
    assert (args.lines, args.time, args.by, args.raw) == (5, [120, 2], "pc", True)
    assert (args.what, args.pcs) == ("41", [255, 16])
    defaults = parse_arguments(command, ["41"])
    assert (defaults.lines, defaults.time, defaults.by, defaults.raw, defaults.pcs) == (
        None,
        None,
        "file",
        False,
        [],
    )
    for words, wrong in (
        (["-n", "x", "41"], "x"),
        (["-n", "-1", "41"], "-1"),
        (["--by", "files", "41"], "files"),
        (["--time", "2x", "41"], "2x"),
        (["--line", "1", "41"], "--line"),
        ([], None),
    ):
        with pytest.raises(WordError) as caught:
            parse_arguments(command, words)
        assert caught.value.word == wrong


def test_the_rest_belongs_to_another_command():
    command = make_command(
        arguments=(
            Argument("-o", Value.FILE, "o"),
            Argument("line LINE…", Value.COMMAND, "c", takes_rest=True),
        )
    )
    for words in (["-o", "f", "--", "ls", "--json", "-l"], ["-o", "f", "ls", "--json", "-l"]):
        args = parse_arguments(command, words)
        assert (args.o, args.line, args.json) == ("f", ["ls", "--json", "-l"], False)
    assert parse_arguments(command, ["--json", "ls", "--", "x"]).line == ["ls", "--", "x"]
    assert parse_arguments(command, ["-h"]).help


def test_no_target(workspace, streams):
    set_options(workspace.inputs.kernel, open_target=None)
    assert run_reporting(workspace, "info").status == 2
    assert streams.take()[1].startswith("kcovdbg: no target\n  kcovdbg -c VMCORE")


def test_a_target_is_opened_when_needed_and_once(streams, monkeypatch):
    opened = []
    workspace = make_workspace(streams, monkeypatch)
    set_options(workspace.inputs.kernel, open_target=lambda: opened.append(1) or make_target())
    run_line(workspace, "help")
    assert not opened
    run_line(workspace, "info")
    run_line(workspace, "info")
    assert opened == [1]


def test_unique_prefixes_are_commands(workspace, streams):
    table = CommandTable(
        (
            make_command(name="probe"),
            make_command(name="print", aliases=("x", "look")),
            make_command(name="pr"),
        )
    )
    assert table.find("prob").name == "probe"
    assert table.find("lo").name == "print"
    assert table.find("pr").name == "pr"
    assert "prob" not in table
    with pytest.raises(UsageError, match="'p'") as refused:
        table.find("p")
    assert {"probe", "print", "pr"} <= set(re.findall(r"\w+", refused.value.hint))
    assert run_line(workspace, "inf") == 0
    assert streams.take()[0] == (run_line(workspace, "info"), streams.take()[0])[1]


def test_json_lines_come_one_by_one(workspace, streams):
    seen = []

    def rows():
        for number in range(3):
            yield {"n": number}
            # As read at the other end of a pipe.
            seen.append((streams.stdout.getvalue().count("\n"), flushed.count))

    class Flushed(type(streams.stdout)):
        count = 0

        def flush(self):
            self.count += 1

    flushed = streams.stdout = Flushed()
    slow = make_command(
        lambda _context, _args: Table((Column("n"),), rows()),
        "slow",
        row_types=(RowType((Column("n"),)),),
    )
    workspace.commands = workspace.commands.with_commands(slow)
    run_line(workspace, "slow --jsonl")
    assert seen == [(1, 1), (2, 2), (3, 3)]


def test_required_options_are_marked(workspace, streams):
    run_line(workspace, "help slice")
    shown = " ".join(streams.take()[0].split())
    (required,) = [
        argument for argument in COMMANDS.find("slice").arguments if argument.is_required
    ]
    usage = shown.partition("Usage: ")[2]
    assert f" {required.names[0]} {required.placeholder}" in usage
    assert f"[{required.names[0]} " not in usage
    assert f"{required.help}; required" in shown


def test_a_prefix_stands_once_before_the_command_in_usage_and_examples():
    command = COMMANDS.find("buffer")
    plain = Painter()
    lines = [plain.paint(line) for line in command_help(command, 60, "kcov-show ").lines]
    usage = " ".join("\n".join(lines).partition("Usage: ")[2].partition("\n\n")[0].split())
    assert usage == f"kcov-show {command.usage}"
    examples = [line.strip() for line in lines[lines.index("Examples:") + 1 :]]
    assert {f"kcov-show {example.line}" for example in command.examples} <= set(examples)


def test_a_refused_permission_has_a_hint(workspace, streams):
    def refuse(_context, _args):
        raise PermissionError(13, "Permission denied", "/sys/kernel/debug/kcov")

    workspace.commands = workspace.commands.with_commands(make_command(refuse, "refused"))
    assert run_reporting(workspace, "refused").status == 2
    first, hint = streams.take()[1].splitlines()
    assert "/sys/kernel/debug/kcov" in first
    assert hint.startswith("  ")


def test_similar_names_come_in_the_same_order_in_each_run():
    table = SimpleNamespace(
        function_names=lambda: {f"vfs_{letter}" for letter in string.ascii_lowercase}
    )
    assert unknown_function([table], "vfs_").hint == "did you mean vfs_a or vfs_b or vfs_c?"


def test_rows_are_sorted_by_any_column(workspace, streams):
    """Numbers by their value, texts by theirs; unknown values come last in either order."""

    def ask(line):
        run_line(workspace, line)
        return json.loads(streams.take()[0])

    rows = ask("tasks -a --json")
    for column in ("pid", "comm", "count"):
        for sign in ("", "-"):
            values = [row[column] for row in ask(f"tasks -a --json --sort={sign}{column}")]
            known = [value for value in values if value is not None]
            assert values == [*known, *[None] * (len(values) - len(known))]
            assert known == sorted(known, reverse=bool(sign))
            assert len(values) == len(rows)
    assert [row["pid"] for row in ask("tasks -a --json --sort=-PID -n 2")] == sorted(
        row["pid"] for row in rows
    )[:-3:-1]


@pytest.mark.parametrize(
    ("name", "option"),
    [
        (command.name, argument.names[0])
        for command in COMMANDS
        for argument in command.arguments
        if argument.is_required
    ],
)
def test_a_required_option_is_asked_for(name, option):
    """batch without -o ended in an internal error."""
    command = COMMANDS.find(name)
    words = ["file"] if name == "batch" else []
    for argument in command.arguments:
        if argument.is_required and argument.names[0] != option:
            words += [argument.names[0], "value"]
    with pytest.raises(WordError) as caught:
        parse_arguments(command, words)
    assert option in str(caught.value)
    assert command.usage in caught.value.hint
