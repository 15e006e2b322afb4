# SPDX-License-Identifier: LGPL-2.1-or-later
"""The shell's screen on a real pseudo-terminal."""

import os
import shutil
import signal
import sys

import pytest

from kcovdbg.check.runner import list_rules
from tests.support.screen import Screen, open_shell

PROMPT = "kcovdbg>"


def at_prompt(screen):
    return screen.lines[screen.screen.cursor.y] == PROMPT


@pytest.fixture
def shell(tmp_path):
    with open_shell(tmp_path) as screen:
        screen.wait(at_prompt)
        yield screen


@pytest.mark.parametrize("keys", ["\x04", "exit\r", "quit\r", "q\r"])
def test_banner_and_leaving(tmp_path, keys):
    options = ("-q",) if keys == "q\r" else ()
    with open_shell(tmp_path, *options) as screen:
        screen.wait(at_prompt)
        if options:
            assert screen.lines[0] == PROMPT
        else:
            assert screen.lines[0].startswith("kcovdbg 0.")
            assert "vmcore, Linux 6.12.1 x86_64" in screen.lines[0]
        assert screen.end(keys=keys) == 0


def test_history_lists_what_was_typed(shell):
    shell.type("info\r", "release")
    shell.type("history 2\r", "1  info")
    shell.wait("2  history 2")


def test_completion_menu(shell):
    shell.type("ta", "tasks  list tasks")
    shell.type("\t", f"{PROMPT} tasks")
    shell.type(" --mode ", "trace-pc   TRACE_PC")
    shell.type("trace-c\t", f"{PROMPT} tasks --mode trace-cmp")
    shell.type("\x15buffer kcov:", "TRACE_PC  11  41 syz-executor")
    # Parts of names, and programs.
    shell.type("\x15remote | gre")
    shell.type("\t", "grep")


def test_tasks_and_buffers_of_a_dump_complete(tmp_path):
    with Screen(
        sys.executable, "-m", "kcovdbg", "--demo", "-q", columns=120, XDG_STATE_HOME=str(tmp_path)
    ) as screen:
        screen.wait(at_prompt, 60)
        screen.type("tasks 3", "kc-pc  TRACE_PC")
        screen.type(
            "\x15buffer kcov:0xff\t",
            lambda screen: sum("kcov:0xffff" in line for line in screen.lines) > 5,
        )
        screen.type("\x15buffer fd:34", "fd:34/")


def test_enter_takes_what_is_selected_and_then_runs(shell):
    shell.type("remo", "remote handles in")
    shell.type("\t")
    shell.type("\r", f"{PROMPT} remote")
    shell.settle()
    assert "HANDLE" not in shell.text
    shell.type("\r", "HANDLE")
    shell.wait("usb:1")


def test_commands_from_a_file(shell, tmp_path):
    (tmp_path / "look.k").write_text("info | grep release\nremote -n 1 --json; saved\n")
    shell.type("pager off\r", at_prompt)
    shell.type(f"< {tmp_path}/lo")
    # The path may end on the next row.
    shell.type("\t", lambda screen: "look.k" in "".join(screen.lines))
    shell.type("\r", "release")
    shell.wait("bucket")


def test_grey_suggestion(shell):
    shell.type("remote\r", "usb:1")
    shell.wait(at_prompt)
    shell.type("re", lambda screen: screen.lines[screen.screen.cursor.y] == f"{PROMPT} remote")
    assert shell.screen.cursor.x == len(f"{PROMPT} re")
    shell.type("\x1b[C", lambda screen: screen.screen.cursor.x == len(f"{PROMPT} remote"))


def test_history_is_searched_and_lasts(tmp_path):
    with open_shell(tmp_path, rows=70) as screen:
        screen.wait(at_prompt)
        screen.type("help tasks\r", "Usage:")
        # A line that begins with a blank is not saved.
        screen.type(" help remote\r", "remote - ")
        screen.wait(at_prompt)
        assert screen.end(keys="\x04") == 0
    path = tmp_path / "kcovdbg" / "history"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert "+help tasks" in path.read_text()
    assert "help remote" not in path.read_text()
    with open_shell(tmp_path, rows=70) as screen:
        screen.wait(at_prompt)
        screen.type("\x12TASK", "help tasks")
        screen.type("\r\r", "Usage:")


def test_interrupts(shell):
    """Of a line, and of a command."""
    shell.type("tasks --mo", "--mode")
    for line, shown in (("", PROMPT), ("slow\r", "working")):
        shell.type(line, shown)
        shell.settle()
        shell.type("\x03", at_prompt)
    shell.type("remote\r", "usb:1")
    shell.wait(at_prompt)
    assert shell.end(keys="\x04") == 0


def test_errors_point_at_their_place(shell):
    shell.type("tasks --bogus 41\r", "unknown option '--bogus'")
    shell.wait("usage: tasks")
    lines = shell.lines
    shown = lines.index("  tasks --bogus 41")
    assert lines[shown + 1] == "        ^"
    assert "Traceback" not in shell.text


@pytest.mark.skipif(shutil.which("less") is None, reason="no less here")
def test_pager(shell):
    """For what is too tall or too wide."""
    shell.type("tall\r", "line 20")
    shell.wait(lambda screen: screen.lines[-1] == ":")
    assert "line 30" not in shell.text
    shell.type(" ", "line 40")
    shell.type("q", at_prompt)
    shell.type("\x0cwide\r")
    # Chopped lines, and not a screen full of folded ones; it stays, so that one can scroll to the
    # right.
    shell.wait("(END)")
    assert sum(line.startswith("line ") for line in shell.lines) == 3
    shell.type("\x1b)" * 7, "|")
    shell.type("q", at_prompt)


def test_no_pager_for_what_fits(tmp_path):
    with open_shell(tmp_path, PAGER="sed s/^/PAGED/") as screen:
        screen.wait(at_prompt)
        for line, shown in (("remote", "usb:1"), ("tall | tail -1", "line 100")):
            screen.type(f"{line}\r", shown)
            screen.wait(at_prompt)
            assert "PAGED" not in screen.text
        screen.type("tall\r", "PAGEDline 100")


def test_a_pager_that_is_left_early_is_no_error(tmp_path):
    with open_shell(tmp_path, "-q", PAGER="head -3") as screen:
        screen.wait(at_prompt)
        screen.type("tall\r", "line 3")
        screen.wait(at_prompt)
        screen.settle()
        assert "line 4" not in screen.text
        assert "kcovdbg:" not in screen.text


def test_status_line_and_resize(tmp_path):
    with open_shell(tmp_path, answers_cursor=True, columns=110) as screen:
        screen.wait(at_prompt)
        screen.wait("F1 help")
        assert "vmcore  6.12.1  dump" in screen.text
        screen.type("\x1bOS", lambda screen: any(line.endswith(" vi") for line in screen.lines))
        screen.resize(24, 50)
        os.kill(screen.process.pid, signal.SIGWINCH)
        screen.wait(
            lambda screen: any(line.strip() == "vmcore  6.12.1  dump" for line in screen.lines)
        )
        screen.type("remote\r", "usb:1")


def test_help_by_key_keeps_the_line(shell):
    shell.type("tasks --js", "--json")
    shell.type("\x1bOP", "Usage:")
    # The help of a command is longer than the screen, so the pager holds it.
    shell.wait(lambda screen: screen.lines[-1] == ":")
    shell.type("q", f"{PROMPT} tasks --js")
    shell.type("\x15! echo $((6*7))\r", lambda screen: "42" in screen.lines)
    shell.type("tasks?\r", "Usage:")
    shell.type("q")
    # Pasted lines run one after the other.
    shell.type("\x1b[200~! echo one$((1))\n! echo two$((2))\n\x1b[201~\r", "one1")
    shell.wait("two2")


def colors(raw):
    return any(
        code in raw for code in (b"\x1b[0;36", b"\x1b[36m", b"\x1b[35m", b"\x1b[33m", b"\x1b[0;90")
    )


def test_colors_and_none(tmp_path):
    for environment, expected in (({}, True), ({"NO_COLOR": "1"}, False)):
        with open_shell(tmp_path, **environment) as screen:
            screen.wait(at_prompt)
            screen.type("objects --json | cat > /dev/null\r")
            screen.settle()
            screen.type("remote\r", "usb:1")
            screen.wait(at_prompt)
            assert colors(screen.raw) is expected


def test_dumb_terminal(tmp_path):
    with open_shell(tmp_path, TERM="dumb") as screen:
        screen.wait(PROMPT)
        screen.type("remote\r", "usb:1")
        screen.wait(lambda screen: screen.text.count(PROMPT) >= 2)
        screen.type("\x03", lambda screen: screen.text.count(PROMPT) >= 3)
        assert b"\x1b" not in screen.raw
        assert screen.end(keys="\x04") == 0


def test_answers_into_a_pipe_and_the_prompt_on_the_terminal(tmp_path):
    answers = tmp_path / "answers"
    command = f"{sys.executable} -m tests.support.shell_process -q | cat > {answers}"
    with Screen("sh", "-c", command, XDG_STATE_HOME=str(tmp_path)) as screen:
        screen.wait(at_prompt)
        for line in ("remote", "tall"):
            screen.type(f"{line}\r")
            screen.settle()
            screen.wait(at_prompt)
        assert screen.end(keys="\x04") == 0
        assert "HANDLE" not in screen.text
    text = answers.read_text()
    assert text.startswith("HANDLE")
    assert text.endswith("line 100                 |\n")
    assert "\x1b" not in text
    assert PROMPT not in text


@pytest.mark.parametrize("line", ["why 82", "check --explain T4", "why nobody"])
def test_prose_wraps_between_words(line):
    """Answers, rules and hints, of the demo."""
    wrapped, whole = (
        Screen(sys.executable, "-m", "kcovdbg", "--demo", "-e", line, rows=60, columns=w)
        for w in (64, 1000)
    )
    for screen in (wrapped, whole):
        with screen:
            screen.end(60)
    assert max(map(len, wrapped.lines)) <= 64 < max(map(len, whole.lines))
    # A word broken by the terminal would count as two.
    assert wrapped.text.split() == whole.text.split()


def test_the_list_of_rules_keeps_its_sentences():
    with Screen(
        sys.executable, "-m", "kcovdbg", "--demo", "-e", "check --list", rows=300, columns=64
    ) as screen:
        screen.end(60)
    assert max(map(len, screen.lines)) <= 64
    assert screen.lines[0].split() == ["RULE", "SEVERITY", "SENTENCE"]
    shown = " ".join(screen.text.split())
    assert all(
        f"{rule.name} {rule.severity.value} {rule.sentence}" in shown for rule in list_rules()
    )


def test_the_configuration_sets_keys_and_pager(tmp_path):
    (tmp_path / "kcovdbg").mkdir()
    (tmp_path / "kcovdbg" / "config.toml").write_text(
        'keys = "vi"\npager = "sed s/^/MINE/"\n[columns]\ntasks = ["comm", "pid"]\n'
    )
    options = {
        "XDG_CONFIG_HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path),
        "EDITOR": "emacs",
        "PAGER": "cat",
    }
    with Screen(
        sys.executable, "-m", "kcovdbg", "--demo", "-q", columns=120, answers_cursor=True, **options
    ) as screen:
        screen.wait(at_prompt, 60)
        screen.wait(lambda screen: screen.lines[-1].split()[-1:] == ["vi"])
        screen.type("tasks 82\r", "COMM        PID")
        screen.wait(at_prompt)
        screen.type("check --list --wid\t", "kcovdbg> check --list --wide")
        screen.type("\r", lambda screen: any(line.startswith("MINE") for line in screen.lines))
