# SPDX-License-Identifier: LGPL-2.1-or-later
import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcovdbg.console.command_line import Redirection, find_outputs, parse_line, split_commands
from kcovdbg.errors import LineError


def words(source):
    return [word.text for word in parse_line(source).words]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("", []),
        ("   ", []),
        ("# only a comment", []),
        ("tasks --json", ["tasks", "--json"]),
        ("tasks # who", ["tasks"]),
        ("tasks a#b", ["tasks", "a#b"]),
        ("tasks 'a b' \"c | d\" e\\ f", ["tasks", "a b", "c | d", "e f"]),
        ("tasks ''", ["tasks", ""]),
        (r'tasks "a\"b\n" \"', ["tasks", r'a"b\n', '"']),
        ("tasks --mode=trace-pc 'syz*'", ["tasks", "--mode=trace-pc", "syz*"]),
        ("tasks (a) $b `c`", ["tasks", "(a)", "$b", "`c`"]),
        ("?", ["help"]),
        ("?tasks", ["help", "tasks"]),
        ("? tasks", ["help", "tasks"]),
        ("tasks?", ["help", "tasks"]),
        ("tasks? ", ["help", "tasks"]),
        ("tasks 'a?'", ["tasks", "a?"]),
        ("tasks a?", ["tasks", "a?"]),
    ],
)
def test_words(source, expected):
    line = parse_line(source)
    assert [word.text for word in line.words] == expected
    assert line.pipeline is line.redirection is line.shell is None


@pytest.mark.parametrize(
    ("source", "commands"),
    [
        ("", [""]),
        ("tasks; objects", ["tasks", "objects"]),
        ("tasks 'a;b'; sym \"c;\" d\\;e", ["tasks 'a;b'", 'sym "c;" d\\;e']),
        ("tasks > out; remote | cat; ls", ["tasks > out", "remote | cat; ls"]),
        ("info; ! ls; pwd", ["info", "! ls; pwd"]),
        ("! ls; pwd", ["! ls; pwd"]),
        ("tasks # a; b", ["tasks # a; b"]),
        ("collect -- true & ; jobs;", ["collect -- true &", "jobs", ""]),
    ],
)
def test_semicolons_separate_commands(source, commands):
    assert [command.strip() for command in split_commands(source)] == commands


def test_a_script_stands_alone():
    assert parse_line(" < 'a b'").script.text == "a b"
    for wrong in ("<", "< a b", "tasks < a"):
        with pytest.raises(LineError):
            parse_line(wrong)


def test_columns():
    assert [word.column for word in parse_line("  tasks 'a b' c").words] == [2, 8, 14]


def test_the_shell_gets_the_rest_as_it_is():
    line = parse_line("buffer 41 | grep 'a|b' > \"x y\" # z; w &")
    assert [word.text for word in line.words] == ["buffer", "41"]
    assert line.pipeline == "grep 'a|b' > \"x y\" # z; w &"
    assert parse_line("tasks | # x").pipeline == "# x"
    assert parse_line("! ls 'unclosed | x").shell == "ls 'unclosed | x"
    assert parse_line(" !").shell == ""


@pytest.mark.parametrize(
    ("source", "redirection"),
    [
        ("tasks > out.txt", Redirection("out.txt", append=False, column=8)),
        ("tasks>out.txt --json", Redirection("out.txt", append=False, column=6)),
        ("tasks >> 'my file'", Redirection("my file", append=True, column=9)),
    ],
)
def test_redirection(source, redirection):
    line = parse_line(source)
    assert line.redirection == redirection
    assert line.words[0].text == "tasks"


@pytest.mark.parametrize(
    ("source", "column"),
    [
        ("tasks 'a", 6),
        ('tasks "a', 6),
        ("tasks a\\", 7),
        ("tasks |", 7),
        ("| grep x", 0),
        ("tasks >", 7),
        ("tasks > | cat", 7),
        ("tasks > a > b", 10),
        ("tasks > a | cat", 10),
        ("tasks 2> a", 6),
        ("tasks < a", 6),
        ("tasks; info", 5),
        ("tasks & remote", 6),
        ("tasks && info", 6),
        ("> a", 0),
    ],
)
def test_errors_point_at_the_place(source, column):
    with pytest.raises(LineError) as caught:
        parse_line(source)
    assert caught.value.column == column
    assert caught.value.line == source


@given(
    st.lists(
        st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0")).map(
            shlex.quote
        ),
        max_size=4,
    )
)
def test_words_quoted_for_a_shell_come_back(quoted):
    assert words(" ".join(["tasks", *quoted])) == [
        "tasks",
        *(shlex.split(word)[0] for word in quoted),
    ]


@given(st.text())
def test_any_line_is_read_or_refused(source):
    try:
        columns = [word.column for word in parse_line(source).words]
    except LineError as error:
        columns = [error.column]
    assert all(0 <= column <= len(source) for column in columns)


@pytest.mark.parametrize(
    "pipeline",
    [
        "sort",
        "sort > a",
        "sort>a",
        "sort >> a | cat 2>b",
        "(sort; cat)>a",
        "sort > 'a b' && true > \"c\"",
        "sort >| a",
        "sort 2>&1 >a",
        "sort < in > a",
    ],
)
def test_outputs_of_a_pipeline(pipeline, tmp_path):
    """They include the files that sh makes."""
    (tmp_path / "in").touch()
    subprocess.run(["sh", "-c", pipeline], cwd=tmp_path, input=b"", check=False)
    made = {path.name for path in tmp_path.iterdir()} - {"in"}
    assert made <= set(find_outputs(pipeline))


@pytest.mark.parametrize(
    "pipeline",
    ["sort", "awk '$1 > t'", 'grep "> t"', "sort < t", "sort -o t", "cat\\>t", "sort > 'a"],
)
def test_pipelines_without_outputs(pipeline):
    assert find_outputs(pipeline) == []
