# SPDX-License-Identifier: LGPL-2.1-or-later
"""kcov-show on a terminal, shown as GDB's own commands: paging, colors, pipes; and what a session
changes in GDB.
"""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from tests.support.gdb_run import PROMPT, Session

_PAGER = "--Type <RET> for more"
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[1-9][0-9;]*m")


@pytest.fixture
def session(demo) -> Iterator[Session]:
    with Session(demo.vmlinux, demo.core) as made:
        yield made


def test_colours_follow_gdbs_own_setting(session):
    assert _COLOUR.search(session.ask("kcov-show tasks"))
    plain = session.ask("with style enabled off -- kcov-show tasks")
    assert not _COLOUR.search(plain)
    assert "kc-pc" in plain
    session.ask("set style enabled off")
    assert not _COLOUR.search(session.ask("kcov-show tasks"))
    session.ask("set style enabled on")
    coloured = session.ask("kcov-show tasks")
    assert _COLOUR.search(coloured)
    assert _ESCAPES.sub("", coloured).split() == _ESCAPES.sub("", plain).split()
    # The user's setting for kcov-show comes first; a reader of a pipe gets no colors.
    session.ask("set kcov color never")
    assert not _COLOUR.search(session.ask("kcov-show tasks"))
    session.ask("set kcov color auto")
    assert not _COLOUR.search(session.ask("| kcov-show tasks | cat"))
    assert not _COLOUR.search(session.ask("kcov-show tasks | cat"))


def test_gdbs_pager(session):
    session.ask("set height 4")
    session.child.sendline("kcov-show tasks")
    session.child.expect_exact(_PAGER)
    assert "kc-usb" in session.child.before
    session.child.sendline("q")
    session.child.expect_exact(PROMPT)
    assert "Traceback" not in session.child.before
    assert "kc-traffic" not in session.child.before
    # All of it, when asked for.
    session.child.sendline("kcov-show tasks")
    session.child.expect_exact(_PAGER)
    session.child.sendline("c")
    session.child.expect_exact(PROMPT)
    assert "kc-traffic" in session.child.before
    # Output to a program is not paged.
    assert int(session.ask("| kcov-show tasks --json | wc -l")) > 5


def test_pipes_and_files(session, tmp_path: Path):
    assert "kc-traffic" not in session.ask("| kcov-show tasks | grep kc-pc")
    assert "kc-pc" in session.ask("pipe kcov-show tasks | grep kc-pc")
    assert session.ask("kcov-show tasks | grep -c kc-pc").strip() == "1"
    session.ask(f"kcov-show tasks --json > {tmp_path}/tasks")
    assert (tmp_path / "tasks").read_text().startswith("[")


def test_a_pager_in_a_pipe_has_the_terminal(session):
    session.child.sendline("kcov-show tasks -a | less -P READY")
    session.child.expect_exact("READY")
    session.child.send("q")
    session.child.expect_exact(PROMPT)
    assert "kc-pc" in session.ask("kcov-show tasks 34")


# Nobody else's program has this argument.
_SLEEP = "86398"


def is_asleep() -> bool:
    return (
        subprocess.run(
            ["pgrep", "-f", f"^sleep {_SLEEP}"], stdout=subprocess.DEVNULL, check=False
        ).returncode
        == 0
    )


def wait_until_asleep(*, is_wanted: bool) -> None:
    deadline = time.monotonic() + 30
    while is_asleep() != is_wanted:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    "line",
    [
        f"kcov-show tasks | sleep {_SLEEP}",
        f"python gdb.execute('kcov-show tasks | sleep {_SLEEP}', to_string=True)",
    ],
)
def test_programs_of_a_pipe_end_with_interrupts_and_with_gdb(session, line):
    session.child.sendline(line)
    wait_until_asleep(is_wanted=True)
    session.child.sendintr()
    session.child.expect_exact(PROMPT)
    wait_until_asleep(is_wanted=False)
    session.child.sendline(line)
    wait_until_asleep(is_wanted=True)
    session.child.kill(signal.SIGKILL)
    wait_until_asleep(is_wanted=False)


def assert_answers(session: Session) -> None:
    """Ask until GDB answers: with C-c, which may come late, it throws away what was typed."""
    for _ in range(6):
        session.child.sendline("print 7777 * 3")
        if session.child.expect_exact(["23331", pexpect.TIMEOUT], timeout=20) == 0:
            break
    else:
        pytest.fail(f"GDB does not answer: {session.child.before!r}")
    session.child.expect_exact(PROMPT)


def test_interrupts_of_a_cold_process_print_no_traceback(session):
    """C-c comes while drgn logs and imports, at any moment of the first second."""
    for number in range(12):
        session.ask("python import kcov_show; kcov_show._installed[0]._end()")
        session.child.sendline("kcov-show check")
        time.sleep(0.1 * number)
        session.child.sendintr()
        # GDB that is interrupted while it shows a prompt shows only a part of it.
        session.child.expect_exact([PROMPT, pexpect.TIMEOUT], timeout=30)
        before = session.child.before
        assert_answers(session)
        assert "Traceback" not in before
    assert "kc-pc" in session.ask("kcov-show tasks 34")


def test_an_empty_line_repeats_nothing(session):
    session.ask("kcov-show tasks")
    assert "kc-pc" not in session.ask("")


def test_tab_completes(session):
    session.child.send("kcov-show tas\t")
    session.child.expect_exact("kcov-show tasks ")
    session.child.send("--mode=trace-p\t")
    session.child.expect_exact("c")
    session.child.sendline(" --json")
    session.child.expect_exact(PROMPT)
    assert '"pid": 34' in _ESCAPES.sub("", session.child.before)


_SHOWN = (
    "show",
    "info breakpoints",
    "info display",
    "show prompt",
    "info threads",
    "info frame",
    "info source",
    "output $pc",
    "info files",
    "info signals",
    "list",
)
# What was typed, convenience variables (GDB makes some when they are looked at), and the numbers of
# windows' lines.
_VOLATILE = ("history", "convenience", "$", "width:", "height:")
_USED = (
    "kcov-show tasks",
    "kcov-show objects --json",
    "kcov-show buffer 34",
    "kcov-show top 34 --by file",
    "kcov-show source 34",
    "kcov-show check",
    "kcov-show last 34",
    "kcov-show view 34 --text",
    "kcov-show bogus",
    "output $kcov_count(34)",
    "complete kcov-show tasks 3",
    "| kcov-show tasks | cat",
)


def test_a_session_leaves_everything_as_it_was(demo):
    """The prompt, settings, breakpoints, displays, where the target stands and what is selected."""

    def state(*commands: str) -> dict[str, str]:
        set_up = ("-ex", "break kcov_ioctl", "-ex", "tbreak vfs_read", "-ex", "set listsize 3")
        with Session(demo.vmlinux, demo.core, *set_up) as session:
            for line in ("set height 0", "set width 0", "set confirm off", "display 1", *commands):
                session.ask(line)
            return {line: session.ask(line) for line in _SHOWN}

    asked, left = state(*_USED), state()
    for line in _SHOWN:
        # Numbers of processes, and places that differ from one to the next; what was typed is in
        # the history.
        same = [
            re.sub(r"0x[0-9a-f]{9,}|(process|LWP) \d+", "N", _ESCAPES.sub("", said[line]))
            for said in (asked, left)
        ]
        rows = [[row for row in one.splitlines() if not row.startswith(_VOLATILE)] for one in same]
        assert rows[0] == rows[1], line
        assert rows[0] != [], line
