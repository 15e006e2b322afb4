# SPDX-License-Identifier: LGPL-2.1-or-later
"""The manual page, the command reference and the shells' completions: up to date, and accepted by
man and the shells.
"""

from __future__ import annotations

import html
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pexpect
import pytest

from docs.generate import picture
from docs.generate.__main__ import DOCS, FILES
from docs.generate.manpage import escape
from kcovdbg.commands import COMMANDS
from kcovdbg.frontends.options import OPTIONS
from tests.lab.kcovdbg_run import run_lines

MANPAGE = DOCS / "man/kcovdbg.1"


def run(*command: str, stdin: str = "") -> str:
    """Run a program that the test needs; return what it prints."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"needs {command[0]}")
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("name", FILES)
def test_is_current(name: str) -> None:
    assert (DOCS / name).read_text() == FILES[name](), "run python -m docs.generate"


def test_manpage_without_warnings() -> None:
    run("groff", "-ww", "-z", "-man", str(MANPAGE))


def test_manpage_tells_of_every_option_and_command() -> None:
    text = run("groff", "-man", "-Tascii", "-P-cbou", str(MANPAGE))
    words = set(text.replace(",", " ").split())
    assert {name for option in OPTIONS for name in option.names} <= words
    for command in COMMANDS:
        assert f"\n   {command.name}\n" in text
        for argument in command.arguments:
            if argument.is_option:
                assert set(argument.names) <= words, command.name


def test_roff_shows_text_as_it_is() -> None:
    text = ".TH 'a' \\fB -n ~ ^ ` \\n(x"
    assert (
        run("groff", "-man", "-Tascii", "-P-cbou", stdin=f".TH X 1\n{escape(text)}\n")
        .splitlines()[4]
        .strip()
        == text
    )


def complete_with_bash(*words: str) -> set[str]:
    script = (
        'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_kcovdbg; printf '
        '"%s\\n" "${COMPREPLY[@]}"'
    )
    return set(
        run("bash", "-c", script, "bash", str(DOCS / "completions/kcovdbg.bash"), *words).split()
    )


def complete_with_fish(*words: str) -> set[str]:
    script = (
        f"source {DOCS / 'completions/kcovdbg.fish'}; complete -C {shlex.quote(' '.join(words))}"
    )
    lines = run("fish", "--no-config", "-c", script).splitlines()
    return {line.split("\t")[0] for line in lines}


def complete_with_zsh(*words: str) -> set[str]:
    """Press Tab in a zsh process; return the completed word."""
    if shutil.which("zsh") is None:
        pytest.skip("needs zsh")
    shell = pexpect.spawn(
        "zsh", ["-f"], env={**os.environ, "TERM": "dumb"}, encoding="utf-8", timeout=20
    )
    shell.setwinsize(100, 200)
    shell.sendline(
        f"fpath=({DOCS / 'completions'} $fpath); autoload -U compinit && compinit -D -u; print "
        f"rea''dy"
    )
    shell.expect("\r\nready")
    # To the beginning of the line, so that it is printed instead of being run.
    shell.send(" ".join(words) + "\t\x01print -r 'comple''ted:' \r")
    shell.expect("\r\ncompleted: ([^\r]*)\r")
    completed = shell.match[1].split()
    shell.close(force=True)
    return {completed[-1]}


@pytest.mark.parametrize("complete", [complete_with_bash, complete_with_fish, complete_with_zsh])
def test_completion(complete, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert complete("kcovdbg", "ta") == {"tasks"}
    assert complete("kcovdbg", "--demo", "tasks", "--m") == {"--mode"}
    assert complete("kcovdbg", "--demo", "top", "3", "--by", "fu") == {"function"}
    (tmp_path / "vmcore.one").touch()
    assert complete("kcovdbg", "-c", str(tmp_path / "vmco")) == {str(tmp_path / "vmcore.one")}


def test_the_picture_is_what_the_view_shows() -> None:
    assert picture.draw_view() == (DOCS / "view.svg").read_text(), (
        "run python -m docs.generate.picture"
    )


def test_the_first_minute_is_what_the_commands_answer() -> None:
    shown = re.findall(r"<text[^>]*>([^<]*)</text>", (DOCS / "first-minute.svg").read_text())
    answers = run_lines(["--demo"], *(line for line, _ in picture.LINES))
    printed = re.findall(r"0x[0-9a-f]+|\w+/\w[\w/.]+\.c:\d+|\d+/\d+", "".join(answers))
    text = html.unescape(" ".join(shown))
    assert printed
    assert [word for word in printed if word not in text] == [], (
        "run python -m docs.generate.picture"
    )
