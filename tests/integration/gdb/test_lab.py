# SPDX-License-Identifier: LGPL-2.1-or-later
"""kcov-show through QEMU's stub, KASLR on: packets, modes of the stub, C-c, conditions; GDB is as
it was after each.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Iterator, Sequence

import pytest

from kcovdbg.elf.file import ElfFile
from tests.integration.gdb.test_same_answers import ask_kcovdbg
from tests.lab.guest import Guest, Machine
from tests.lab.kernel import Kernel
from tests.support.gdb_run import Said, Session, run_gdb

pytestmark = pytest.mark.lab

_MODE = "maint packet qqemu.PhyMemMode"
_VIRTUAL = 'received: "0"'
_MARK = "=== packets ==="
_MARKED = f"python import sys; print('{_MARK}', file=sys.stderr, flush=True)"
# Called all the time.
_BUSY = "hrtimer_interrupt"


def ask_guest(kernel: Kernel, guest: Guest, *ask: str, before: Sequence[str] = ()) -> Said:
    """Connect GDB to a guest's stub, and run commands."""
    connect = f"target remote {guest.sockets.gdb_remote}"
    return run_gdb(kernel.vmlinux, before=[connect, *before], ask=[*ask])


def counted(line: str) -> list[str]:
    return [_MARKED, "set debug remote 1", line, "set debug remote 0", _MARKED]


def count_packets(stderr: str) -> list[int]:
    return [part.count("Sending packet:") for part in stderr.split(_MARK)[1::2]]


def test_two_cpus_and_packets(kernel, boot):
    guest = boot(Machine(cpus=2))
    lines = [
        "kcov-show tasks -a --json",
        "kcov-show tasks -a --json",
        "kcov-show last -a --json",
        "print $kcov_count(1)",
    ]
    with guest.paused():
        outside = ask_kcovdbg(
            ["--qemu", guest.sockets.debugger_qmp], kernel.vmlinux, ["tasks -a", "last -a", "info"]
        )
        asked = [
            *(word for line in lines for word in counted(line)),
            "thread",
            "info threads",
            _MODE,
        ]
        said = ask_guest(kernel, guest, *asked, before=["thread 2", "up"])
    answers = said.answers[2::5][: len(lines)]
    assert answers[0] == answers[1] == outside.texts["tasks -a"]
    assert answers[2] == outside.texts["last -a"]
    assert {row["cpu"] for row in outside.rows("tasks -a") if row["pid"] == 0} == {0, 1}
    # What was selected is selected; the machine stands, so nothing is read again.
    assert said.answers[-3].startswith("[Current thread is 2 ")
    assert _VIRTUAL in said.answers[-1]
    first, second, _, function = count_packets(said.stderr)
    assert second == 0 < first
    assert function < first / 4


def test_physical_mode_that_another_debugger_left(kernel, standing_guest):
    with standing_guest.paused():
        said = ask_guest(
            kernel,
            standing_guest,
            "kcov-show tasks --json",
            _MODE,
            "maint packet Qqemu.PhyMemMode:1",
            "kcov-show objects --json",
            _MODE,
            "maint packet Qqemu.PhyMemMode:0",
            before=["maint packet Qqemu.PhyMemMode:1"],
        )
    assert "physical memory" in said.stderr
    assert said.json(0)
    assert _VIRTUAL in said.answers[1]
    # What the user sets in this connection is the user's.
    assert said.json(3)
    assert 'received: "1"' in said.answers[4]


def test_running_target_is_refused(kernel, standing_guest):
    said = ask_guest(kernel, standing_guest, "kcov-show tasks", "interrupt", before=["continue &"])
    assert "the target is running" in said.stderr


def test_guest_goes_on(kernel, standing_guest):
    ask_guest(kernel, standing_guest, "kcov-show tasks", "kcov-show objects", "kcov-show bogus")
    assert standing_guest.qmp.running()


def test_names_where_the_kernel_is(kernel, standing_guest):
    stop = ("kcov-show symbols --apply", f"thbreak {_BUSY}", "continue", "bt 1")
    said = ask_guest(
        kernel, standing_guest, *stop, "kcov-show info --json", "kcov-show tasks --json"
    )
    assert f"#0  {_BUSY} " in said.answers[3]
    offset = said.json(4)[0]["kaslr_offset"]
    assert said.answers[0] == f"symbol-file {ElfFile(kernel.vmlinux.resolve()).path} -o {offset}"
    assert said.json(5)


# Counts how often a condition was asked, and lets it be true the fifth time.
_COUNTER = """
class Counter(gdb.Function):
    asked = 0
    values = []
    def invoke(self, value):
        Counter.asked += 1
        Counter.values.append(int(value))
        return Counter.asked == 5
Counter("fifth")
"""


def test_conditions(kernel, standing_guest):
    pid = next(line["pid"] for line in standing_guest.truth.lines() if line.get("comm") == "kc-cmp")
    said = ask_guest(
        kernel,
        standing_guest,
        f"break {_BUSY} if $fifth($kcov_count({pid}))",
        "continue",
        "python print(Counter.values)",
        f"print $kcov_count({pid}) == *$kcov_area({pid})",
        "info breakpoints",
        _MODE,
        before=["kcov-show symbols --apply", f"python exec({_COUNTER!r})"],
    )
    assert f"Breakpoint 1, {_BUSY} " in said.answers[1]
    values = [int(word) for word in re.findall(r"\d+", said.answers[2])]
    assert len(values) == 5
    assert min(values) > 0
    assert said.answers[3].endswith("= 1")
    assert "already hit 1 time" in said.answers[4]
    assert _VIRTUAL in said.answers[5]


def interrupt(session: Session, line: str, seconds: float) -> str:
    """Press C-c some time after a line; return what GDB wrote."""
    session.child.sendline(line)
    time.sleep(seconds)
    session.child.sendintr()
    session.child.expect_exact("(gdb) ")
    said = session.child.before
    # C-c may have come after the answer, and made further prompts.
    session.child.sendline("print 7777 * 3")
    session.child.expect_exact(" = 23331")
    session.child.expect_exact("(gdb) ")
    assert isinstance(said, str)
    return said


@pytest.fixture
def session(kernel, standing_guest) -> Iterator[Session]:
    connect = f"target remote {standing_guest.sockets.gdb_remote}"
    with standing_guest.paused(), Session(kernel.vmlinux) as made:
        for line in (
            "set width 0",
            "set height 0",
            "set style enabled off",
            "set confirm off",
            connect,
        ):
            made.ask(line)
        yield made
        made.ask("detach")


_SHOWN = ("info registers", "thread", "info frame", "info breakpoints", _MODE, "info display")


def test_interrupts_at_any_moment(session, request):
    """Whenever C-c comes, GDB and the stub are as they were, and later answers are right."""
    # The first answer also says where the kernel is.
    session.ask("kcov-show info")
    expected = session.ask("kcov-show tasks --json")
    before = [session.ask(line) for line in _SHOWN]
    restart = "python import kcov_show; kcov_show._installed[0]._end()"
    quits = 0
    durations = []
    for line in (restart, "kcov-show check", "kcov-show check"):
        start = time.monotonic()
        session.ask(line)
        durations.append(time.monotonic() - start)
    rounds = 30 if request.config.getoption("exhaustive") else 8
    for number in range(rounds):
        # A new process reads all over again.
        is_new = number % 2 == 0
        if is_new:
            session.ask(restart)
        quits += "Quit" in interrupt(
            session, "kcov-show check", random.random() * durations[1 if is_new else 2]
        )
        assert [session.ask(line) for line in _SHOWN] == before
        assert session.ask("kcov-show tasks --json").partition("kcovdbg: note")[0] == expected
    assert quits > 0


def test_a_process_that_is_killed_in_a_command(session):
    session.ask("kcov-show info")
    expected = session.ask("kcov-show tasks --json")
    before = [session.ask(line) for line in _SHOWN]
    pid = int(
        session.ask("python import kcov_show; print(kcov_show._installed[0]._child._process.pid)")
    )
    session.ask("python import kcov_show; kcov_show._installed[0]._generation += 1")
    session.child.sendline("kcov-show check")
    time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    session.child.expect_exact("(gdb) ")
    assert "has ended" in session.child.before
    assert [session.ask(line) for line in _SHOWN] == before
    assert session.ask("kcov-show tasks --json").partition("kcovdbg: note")[0] == expected
