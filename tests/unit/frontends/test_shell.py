# SPDX-License-Identifier: LGPL-2.1-or-later
"""The shell with keys and streams of ours: its state, not its screen."""

import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from prompt_toolkit.enums import EditingMode
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from kcovdbg.commands import COMMANDS
from kcovdbg.console.command import Command
from kcovdbg.console.context import Frontend, Workspace
from kcovdbg.frontends.shell import pager, progress_word, run_interactively
from kcovdbg.frontends.shell.loop import read_plain_line
from kcovdbg.frontends.shell.pager import PagedStream, find_pager, paged
from kcovdbg.frontends.shell.prompt import find_editing_mode, open_history
from kcovdbg.inputs.kernel import Kernel as OpenKernel
from kcovdbg.inputs.kernel_memory import KernelOptions
from kcovdbg.inputs.user_inputs import UserInputs
from kcovdbg.user_folder import find_user_folder
from tests.support.kernels.build import Kernel
from tests.support.kernels.rows import E9A
from tests.support.state import Streams


@pytest.fixture
def streams():
    return Streams(width=120)


@pytest.fixture
def kernel():
    return Kernel(E9A)


@pytest.fixture
def workspace(streams, kernel):
    return Workspace(
        COMMANDS,
        UserInputs(OpenKernel(KernelOptions(lambda: kernel.target))),
        Frontend(streams.find),
    )


def run_keys(workspace, keys, *, quiet=True, environment=None):
    with create_pipe_input() as pipe:
        pipe.send_text(keys)
        return run_interactively(
            workspace,
            quiet=quiet,
            input=pipe,
            output=DummyOutput(),
            environment={"TERM": "xterm", **(environment or {})},
        )


def test_hostile_banner(workspace, streams, kernel):
    evil = "6.12\x1b]0;pwned\x07"
    kernel.target.release = kernel.target.name = evil
    kernel.target.notes = (evil,)
    run_keys(workspace, "\x04")
    assert streams.take()[0] == ""
    run_keys(workspace, "\x04", quiet=False)
    assert "\x1b" not in streams.take()[0]


def _break(_context, _args):
    raise RuntimeError("oops")


def test_tracebacks_are_for_those_who_ask(workspace, streams):
    workspace.commands = COMMANDS.with_commands(
        Command("break", "breaks", _break, needs=frozenset())
    )
    run_keys(workspace, "break\r\x04")
    assert "internal error: RuntimeError: oops" in streams.take()[1]
    workspace.debug = True
    run_keys(workspace, "break\r\x04")
    assert "Traceback" in streams.take()[1]


def test_progress_word_only_for_those_who_wait():
    class Tty(io.StringIO):
        def isatty(self):
            return True

    import time

    quick, slow, pipe = Tty(), Tty(), io.StringIO()
    with progress_word(quick, "reading", 5):
        pass
    with progress_word(slow, "reading", 0):
        time.sleep(0.2)
    with progress_word(pipe, "reading", 0):
        time.sleep(0.05)
    assert (quick.getvalue(), slow.getvalue(), pipe.getvalue()) == ("", "reading\r       \r", "")


def test_plain_reader_ends_its_lines(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", type("Tty", (io.StringIO,), {"isatty": lambda _self: True})())

    def end():
        raise EOFError

    with pytest.raises(EOFError):
        read_plain_line(end)
    # Standard output is no terminal here: it takes answers only.
    assert tuple(capsys.readouterr()) == ("", "kcovdbg> \n")
    assert read_plain_line(lambda: "tasks") == "tasks"


def test_a_dumb_terminal_needs_no_prompt_toolkit():
    code = (
        "import sys; from kcovdbg.frontends.shell import run_interactively; from "
        "tests.support.shell_process import *; "
        "sys.argv.append('-q'); main(); print('prompt_toolkit' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, input="remote\n", timeout=60
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("HANDLE")
    assert result.stdout.endswith("False\n")


# History.


def test_where_the_history_is(tmp_path):
    for place in ("/state", "relative"):
        found = find_user_folder("state", {"XDG_STATE_HOME": place, "HOME": "/h"}).path
        assert found == Path(
            "/state/kcovdbg" if place.startswith("/") else "/h/.local/state/kcovdbg"
        )
    (tmp_path / "file").touch()
    assert isinstance(open_history({"XDG_STATE_HOME": str(tmp_path / "file")}), InMemoryHistory)


def test_history_without_repetitions(workspace, tmp_path):
    run_keys(
        workspace, "help\rhelp\r remote\rtasks\r\x04", environment={"XDG_STATE_HOME": str(tmp_path)}
    )
    path = tmp_path / "kcovdbg" / "history"
    assert [line for line in path.read_text().splitlines() if line.startswith("+")] == [
        "+help",
        "+tasks",
    ]


def test_transcript_of_what_is_typed_and_shown(workspace, streams, tmp_path):
    path = tmp_path / "transcript"
    path.write_text("before\n")
    lines = (
        f"transcript {path}",
        "remote | cat",
        "taks",
        "transcript",
        "! echo $((40+2))",
        "transcript off",
        "saved",
        "exit",
    )
    assert run_keys(workspace, "".join(f"{line}\r" for line in lines)) == 0
    written = path.read_text()
    typed = [
        line.removeprefix("kcovdbg> ")
        for line in written.splitlines()
        if line.startswith("kcovdbg> ")
    ]
    assert typed == list(lines[1:6])
    assert written.startswith("before\nkcovdbg> remote | cat\nHANDLE")
    # Errors, the output of other programs, and the answer about itself; all of it was shown as
    # well.
    assert f"\n{path}\n" in written
    assert "\n42\n" in written
    assert "taks" in written.replace("kcovdbg> taks", "")
    shown, told = streams.take()
    assert f"\n{path}\n" in shown
    assert "taks" in told
    assert "internal error" not in told


def test_transcript_spares_inputs_and_needs_a_folder(workspace, streams, tmp_path):
    dump = tmp_path / "dump"
    dump.write_text("kept")
    workspace.inputs.named_files = (str(dump),)
    assert (
        run_keys(
            workspace, f"transcript {dump}\rtranscript {tmp_path}/no/where\rtranscript\rexit\r"
        )
        == 0
    )
    out, err = streams.take()
    assert out == "off\n"
    assert len([line for line in err.splitlines() if line.startswith("kcovdbg: ")]) == 2
    assert dump.read_text() == "kept"


@pytest.mark.parametrize("setting", [None, "less -R"])
def test_the_pager_is_switched_off_and_on(workspace, streams, setting):
    workspace.settings = replace(workspace.settings, pager=setting)
    used = []

    def run_probe(context, args):
        used.append(
            find_pager(
                {"TERM": "xterm", "PAGER": "cat", "PATH": "/bin:/usr/bin"},
                context.workspace.settings.pager,
            )
        )

    probe = Command(name="probe", summary="", run=run_probe, needs=frozenset())
    workspace.commands = workspace.commands.with_commands(probe)
    assert (
        run_keys(workspace, "probe\rpager off\rpager\rprobe\rpager on\rpager\rprobe\rexit\r") == 0
    )
    assert streams.take()[0] == "off\non\n"
    expected = find_pager({"TERM": "xterm", "PAGER": "cat", "PATH": "/bin:/usr/bin"}, setting)
    assert used == [expected, None, expected]


@pytest.mark.parametrize(
    ("environment", "mode"),
    [
        ({}, EditingMode.EMACS),
        ({"EDITOR": "vim -u NONE"}, EditingMode.VI),
        ({"EDITOR": "/usr/bin/nvim"}, EditingMode.VI),
        ({"VISUAL": "emacs", "EDITOR": "vi"}, EditingMode.EMACS),
        ({"EDITOR": "victor"}, EditingMode.EMACS),
    ],
)
def test_keys_of_the_users_editor(environment, mode):
    assert find_editing_mode(environment) is mode


# The pager.


class Process:
    def __init__(self):
        self.stdin = self
        self.got = ""
        self.waited = 0

    def write(self, text):
        self.got += text
        return len(text)

    def close(self):
        pass

    def wait(self):
        self.waited += 1
        if self.waited == 1:
            raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("answer", "is_paged"),
    [
        ("line\n" * 9, False),
        ("line\n" * 10, True),
        ("x" * 20 + "\n", False),
        ("x" * 21 + "\n", False),
        ("x" * 180 + "\n", False),
        ("x" * 181 + "\n", True),
        (("x" * 21 + "\n") * 2, True),
        ("\x1b[36m" + "x" * 20 + "\x1b[0m\n", False),
        ("漢" * 11 + "\n", False),
        (("漢" * 11 + "\n") * 2, True),
    ],
)
def test_pager_only_for_what_is_larger_than_the_terminal(answer, is_paged):
    stdout, process = io.StringIO(), Process()
    stream = PagedStream(stdout, 20, 10, lambda: process)
    for line in answer.splitlines(keepends=True):
        stream.write(line)
    stream.finish()
    assert (process.got, stdout.getvalue()) == ((answer, "") if is_paged else ("", answer))
    # The pager handles C-c itself.
    assert process.waited == (2 if is_paged else 0)


@pytest.mark.parametrize("lines", [1, 100])
def test_a_child_process_writes_after_what_was_written_before(tmp_path, lines):
    """As of ``why 41; buffer 41 | head``."""
    with (tmp_path / "terminal").open("w") as stdout:
        stream = PagedStream(stdout, 20, 10, lambda: pager._start("cat", stdout, os.environ))
        stream.write("first\n" * lines)
        subprocess.run(["echo", "second"], stdout=stream.fileno(), check=True)
        stream.write("third\n")
        stream.finish()
    assert (tmp_path / "terminal").read_text() == "first\n" * lines + "second\nthird\n"


def test_remarks_come_behind_the_pager(monkeypatch):
    streams, seen = Streams(width=20), []

    def start(*_):
        process = Process()
        process.close = lambda: seen.append(streams.stderr.getvalue())
        return process

    monkeypatch.setattr(pager, "_start", start)
    with paged(streams.find(), "less", {}) as terminal:
        terminal.stderr.write("note: a page can't be read\n")
        terminal.stdout.write("line\n" * 100)
        assert streams.stderr.getvalue() == ""
    assert seen == [""]
    assert streams.take() == ("", "note: a page can't be read\n")


def test_which_pager(tmp_path):
    (tmp_path / "less").write_text("#!/bin/sh\n")
    (tmp_path / "less").chmod(0o755)
    path = str(tmp_path)
    assert find_pager({"TERM": "xterm", "PATH": path}) == "less"
    assert find_pager({"TERM": "xterm", "PATH": path, "PAGER": "less -R"}) == "less -R"
    assert find_pager({"TERM": "xterm", "PATH": path, "PAGER": ""}) is None
    assert find_pager({"TERM": "xterm", "PATH": path, "PAGER": "most"}) is None
    assert find_pager({"TERM": "dumb", "PATH": path}) is None
