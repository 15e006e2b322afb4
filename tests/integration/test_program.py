# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcovdbg`` as a process: streams, exit status and signals."""

import errno
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import kcovdbg
from tests.lab.kcovdbg_run import ROOT, run_kcovdbg
from tests.support.child_process import restore_signals
from tests.support.fork_server import NEW_PROCESSES


@pytest.fixture(autouse=True)
def start_interpreters(monkeypatch):
    monkeypatch.setenv(NEW_PROCESSES, "1")


def test_as_a_program():
    assert run_kcovdbg("--version").stdout == f"kcovdbg {kcovdbg.__version__}\n"
    result = run_kcovdbg("taks", status=2)
    assert (result.stdout, result.stderr.count("\n")) == ("", 2)
    assert run_kcovdbg(
        "--script", "-", input="help | head -1\n!echo x\n", status=0
    ).stdout.splitlines()[1:] == ["x"]
    run_kcovdbg(input="", status=0)


@pytest.mark.parametrize("lines", [["help"], ["-e", "help", "-e", "help tasks"]])
def test_a_closed_pipe_is_no_error(lines):
    read, write = os.pipe()
    os.close(read)
    try:
        assert (
            run_kcovdbg(
                *lines, capture_output=False, stdout=write, stderr=subprocess.PIPE, status=0
            ).stderr
            == ""
        )
    finally:
        os.close(write)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_one(unbuffered):
    environment = {"PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        result = run_kcovdbg(
            "help",
            env=environment,
            capture_output=False,
            stdout=full,
            stderr=subprocess.PIPE,
            status=2,
        )
    problem, *hints = result.stderr.splitlines()
    assert problem.startswith("kcovdbg: ")
    assert os.strerror(errno.ENOSPC) in problem
    assert len(hints) == 1


def test_a_locale_that_cannot_show_it():
    result = run_kcovdbg(
        "help", "tasks", env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}, status=0
    )
    assert "[PATTERN|TID\\u2026]" in result.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_terminated_program_removes_its_files(tmp_path, number):
    """A decompressed dump does not outlive the program, when its terminal is closed for
    instance.
    """
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "kcovdbg", "--demo"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, preexec_fn=restore_signals, **pipes) as process:
        process.stdin.write("info\n")
        process.stdin.flush()
        # It reads on in a pipe, so that it is there, and knows the dump, until it is ended.
        assert process.stdout.read(1)
        opened = [str(link.readlink()) for link in Path(f"/proc/{process.pid}/fd").iterdir()]
        assert [link for link in opened if link.startswith(str(tmp_path))]
        # They have no name, so that nothing that ends the process leaves them behind.
        assert list(tmp_path.iterdir()) == []
        process.send_signal(number)
        assert process.wait(60) == 128 + number
    assert list(tmp_path.iterdir()) == []


def test_an_ignored_signal_stays_ignored(tmp_path):
    """Under nohup the program survives its terminal."""
    command = [sys.executable, "-m", "kcovdbg", "--script", "-"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, preexec_fn=ignore_hangup, **pipes) as process:
        process.stdin.write("!echo started\n")
        process.stdin.flush()
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGHUP)
        out, _ = process.communicate("!echo alive\n", timeout=60)
    assert (process.returncode, out) == (0, "alive\n")


def ignore_hangup():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


HUGE = "9" * 23


@pytest.mark.parametrize(
    "line",
    [
        f"buffer kc-usb -n {HUGE}",
        f"view kc-usb --text --width {HUGE}",
        "view kc-usb --text --width 100000000",
        f"collect --buffer-size {HUGE} -- true",
        f"collect --buffer-size {HUGE}M -- true",
        f"batch --timeout {HUGE} -e tasks -o out none",
        f"why 0x{HUGE}",
        f"objects 0x{HUGE}",
        f"buffer kcov:0x{HUGE}",
        f"buffer area:{HUGE}",
        f"buffer fd:{HUGE}/{HUGE}",
        f"collect --remote common:0x{HUGE} -- true",
    ],
)
def test_numbers_have_bounds(opened_demo, line):
    _, errors = opened_demo.run(line, 125 if line.startswith("collect") else 2)
    assert "internal error" not in errors
    assert "0x0x" not in errors
    # The message, the line with a mark below it, and a hint.
    assert errors.startswith("kcovdbg: ")
    assert len(errors.splitlines()) <= 4


CLOSED = (("--version",), ("-e", "help"), ("-e", "help | cat"), ("collect", "--help"))


@pytest.mark.parametrize("words", CLOSED, ids=" ".join)
def test_a_closed_standard_output(words):
    command = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "kcovdbg", *words]
    result = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, stdin=subprocess.DEVNULL
    )
    assert result.returncode in (2, 125)
    message, _ = result.stderr.splitlines()
    assert message == "kcovdbg: standard output is closed"


def test_files_do_not_get_the_descriptors_of_closed_streams(tmp_path):
    """With standard output closed, a child would write to another open file."""
    (tmp_path / "script").write_text("! echo said\n! echo said >&2\nhelp > out\n")
    words = [sys.executable, "-m", "kcovdbg", "--script", str(tmp_path / "script")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for closed in (">&-", "<&- >&-", "<&- >&- 2>&-"):
        command = ["sh", "-c", f'exec "$@" {closed}', "sh", *words]
        result = subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, env=environment
        )
        assert (tmp_path / "script").read_text().startswith("! echo")
        assert "said" not in (tmp_path / "out").read_text()
        (tmp_path / "out").unlink()
        assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "module", ["kcovdbg.frontends.cli", "kcovdbg.console.runner", "kcovdbg.target.target_options"]
)
def test_an_interrupt_while_it_starts_shows_no_traceback(module):
    code = f"""
import os, signal, sys
from kcovdbg.__main__ import main
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
sys.argv = ["kcovdbg", "--demo", "info"]
sys.exit(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=restore_signals,
    )
    assert (done.returncode, done.stderr) in ((-signal.SIGINT, ""), (130, ""))


def test_an_interrupt_before_signals_are_set_shows_no_traceback():
    code = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "signal":
            os.kill(os.getpid(), {int(signal.SIGINT)})
sys.meta_path.insert(0, Interrupt())
import kcovdbg.__main__
"""
    # Without site, which may have imported the module.
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, preexec_fn=restore_signals
    )
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize(
    "words", [["-e", "points fs"], ["-e", "buffer 34 --raw"], ["-e", "view 34"], []], ids=" ".join
)
@pytest.mark.parametrize("least", [1, 40, 2000])
def test_a_terminal_that_closes_ends_it_as_its_signal(words, least):
    """As a shell has it: 128 and SIGHUP, whether a write, a read or the signal comes first."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "xterm"}
        # As users have it: what is left in a buffer is written when Python exits. A short answer
        # would be written whole before the terminal closes.
        if "buffer 34 --raw" in words:
            os.environ["PYTHONUNBUFFERED"] = "1"
        else:
            os.environ.pop("PYTHONUNBUFFERED", None)
        os.execv(sys.executable, [sys.executable, "-m", "kcovdbg", "--demo", *words])
    seen = 0
    # The shell writes its prompt alone.
    while seen < (min(least, 40) if not words else least):
        seen += len(os.read(terminal, 4096))
    os.close(terminal)
    # A shell shows 129 for both: the signal may come when the program has its handlers no more.
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) in (128 + signal.SIGHUP, -signal.SIGHUP)
