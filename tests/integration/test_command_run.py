# SPDX-License-Identifier: LGPL-2.1-or-later
"""Commands are followed, on any kernel: KCOV_ENABLE is replaced by a request that every file
takes.
"""

import errno
import os
import platform
import re
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from kcovdbg.collect.command_run import Request, TaskKind, collect_command
from kcovdbg.collect.requests import find_mode
from kcovdbg.errors import CollectError
from tests.lab.kcovdbg_run import ROOT
from tests.support.child_process import children_of, is_alive, restore_signals, wait_for
from tests.support.fake_kcov import FakeKcov, accepted


@pytest.fixture
def run():
    fake = FakeKcov()

    def run(*argv, errors=None, find_holder=None, **options):
        fake.errors = errors or {}
        try:
            return fake.collect_command(Request(argv, size=1024, **options), find_holder)
        finally:
            assert fake.open_count == 0

    return run


@pytest.mark.parametrize(
    ("command", "status"),
    [("exit 0", 0), ("exit 3", 3), ("kill -TERM $$", 143), ("kill -9 $$", 137)],
)
def test_the_status_is_the_commands(run, command, status):
    assert run("sh", "-c", command).status == status


def can_watch_opens():
    """Return whether fanotify is built in, and this process has CAP_SYS_ADMIN (21)."""
    capabilities = re.search(
        r"^CapEff:\s*(\w+)$", Path("/proc/self/status").read_text(), re.MULTILINE
    )
    return Path("/proc/sys/fs/fanotify").exists() and int(capabilities[1], 16) >> 21 & 1


needs_fanotify = pytest.mark.skipif(
    not can_watch_opens(), reason="needs fanotify and CAP_SYS_ADMIN"
)


@pytest.mark.parametrize(
    ("script", "uses"),
    [
        ("os.open(path, 0)", [True]),
        ("os.stat(path)", [False]),
        pytest.param(
            "os.fork() or os.close(os.open(path, 0))", [False, True], marks=needs_fanotify
        ),
        pytest.param(
            "t = threading.Thread(target=lambda: os.close(os.open(path, 0))); t.start(); t.join()",
            [False, True],
            marks=needs_fanotify,
        ),
        (
            "fd = os.open(path, 0); m = mmap.mmap(fd, 4096, prot=1); os.close(fd); os._exit(0)",
            [True],
        ),
        ("os.open(path, 0); os.kill(os.getpid(), 15)", [True]),
        ("os.fork() or os.open(path, 0)", [False, True]),
    ],
)
def test_a_command_that_uses_kcov_itself(tmp_path, script, uses):
    """The kernel refuses its KCOV_ENABLE, as it is enabled already."""
    path = tmp_path / "kcov"
    path.write_bytes(bytes(4096))
    fake = FakeKcov()
    argv = (sys.executable, "-c", f"import mmap, os, threading; path = {str(path)!r}\n{script}")
    collected = collect_command(
        Request(argv, accepted(find_mode("pc")), size=1024, path=str(path), device=fake.device)
    )
    assert [task.uses_kcov for task in collected.tasks] == uses
    assert sum(str(path) in remark for remark in collected.remarks) == sum(uses)


def test_what_cannot_be_run(run, tmp_path):
    with pytest.raises(CollectError, match="/nonexistent") as caught:
        run("/nonexistent")
    assert caught.value.status == 127
    path = tmp_path / "file"
    path.write_text("text")
    with pytest.raises(CollectError, match=re.escape(str(path))) as caught:
        run(str(path))
    assert caught.value.status == 126


def test_who_holds_a_handle_beside_a_random_one(run):
    bus = 1 << 56 | 1
    asked = []

    def find_holder(handle):
        asked.append(handle)
        return "task 7 (fuzzer) holds it"

    errors = {0x40186366: errno.EEXIST}
    with pytest.raises(CollectError, match=r"usb:1: task 7 \(fuzzer\)"):
        run("true", handles=(bus,), common_handle=0, errors=errors, find_holder=find_holder)
    assert asked == [bus]
    with pytest.raises(CollectError, match=r"usb:1, common:0x.*\(EEXIST\)"):
        run("true", handles=(bus,), common_handle=0, errors=errors)


def test_children_are_followed(run):
    # A family tree, with a child that outlives its parent.
    collected = run(
        "sh", "-c", "(exit 1); (sh -c 'sleep 0.2; exit 5' & exit 2); exec sh -c 'sleep 0.4; exit 7'"
    )
    assert collected.status == 7
    tasks = collected.tasks
    assert {task.problem for task in tasks} == {None}
    assert [task.kind for task in tasks] == [TaskKind.COMMAND] + [TaskKind.PROCESS] * (
        len(tasks) - 1
    )
    assert sorted(os.waitstatus_to_exitcode(task.status) for task in tasks) == [0, 0, 1, 2, 5, 7]
    assert tasks[0].parent == 0
    assert {task.parent for task in tasks[1:]} <= {task.tid for task in tasks}


def test_an_end_is_the_same_for_pidfd_and_wait(run):
    """A parent that polls a pidfd, and then does not block in wait(), finds the status: as without
    a tracer.
    """
    code = """
        import os, select, sys
        for number in range(100):
            pid = os.fork()
            if not pid:
                os._exit(number)
            descriptor = os.pidfd_open(pid)
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.poll()
            os.close(descriptor)
            if os.waitpid(pid, os.WNOHANG) != (pid, number << 8):
                sys.exit(1)
        """
    collected = run(sys.executable, "-c", textwrap.dedent(code))
    assert collected.status == 0
    assert [os.waitstatus_to_exitcode(task.status) for task in collected.tasks] == [0, *range(100)]


def test_threads_are_followed(run):
    code = """
        import os, subprocess, threading
        def work(): os.getppid()
        threads = [threading.Thread(target=work) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        # vfork, which shares memory and has its parent wait
        subprocess.run(["true"])
        """
    collected = run(sys.executable, "-c", textwrap.dedent(code))
    assert collected.status == 0
    assert [task.kind for task in collected.tasks].count(TaskKind.THREAD) == 4
    assert [task.comm for task in collected.tasks].count("true") == 1
    assert {task.problem for task in collected.tasks} == {None}


def test_exec_in_a_thread_that_is_not_the_first(run):
    code = """
        import os, threading, time
        threading.Thread(target=lambda: os.execvp("sh", ["sh", "-c", "exit 9"])).start()
        time.sleep(5)
        """
    collected = run(sys.executable, "-c", textwrap.dedent(code))
    assert [os.waitstatus_to_exitcode(task.status) for task in collected.tasks].count(9) == 1
    assert len(collected.tasks) == 2


def test_the_command_notices_nothing(run, tmp_path):
    """Descriptors, signals and memory of a child that was made to enable KCOV are as they would
    be.
    """
    code = """
        import os, signal, sys
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        pid = os.fork()
        if not pid:
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, set())
            os.kill(os.getppid(), 0)
            with open(sys.argv[1], "w") as told:
                print(sorted(os.listdir("/proc/self/fd")), sorted(mask), signal.getsignal(signal.SIGPIPE), file=told)
            os._exit(0)
        os.waitpid(pid, 0)
        """
    command = (sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "told"))
    subprocess.run(command, check=True, close_fds=False)
    plain = (tmp_path / "told").read_text()
    assert {task.problem for task in run(*command).tasks} == {None}
    assert (tmp_path / "told").read_text() == plain


def test_what_following_adds_is_said(run):
    """A trace begins with what the kernel does after the stop at the end of exec."""
    collected = run("true")
    assert [task.stops for task in collected.tasks] == [1]
    (remark,) = collected.remarks
    assert "ptrace" in remark
    collected = run("sh", "-c", "/bin/true; :")
    (remark,) = collected.remarks
    assert f"{sum(task.stops for task in collected.tasks)} times" in remark


def test_what_a_kernels_map_keeps_back_is_said(run):
    mode = find_mode("uniq-pc", {"unique-maps"})
    assert mode.request.remark
    assert mode.request.remark in run("true", mode=mode).remarks
    assert mode.request.remark not in run("true").remarks


def test_signals_and_stops_pass(run, tmp_path):
    on = tmp_path / "on"
    stopped = (
        f"sh -c 'kill -STOP $$; : > {on}; exit 4' & child=$!; sleep 0.3; [ -e {on} ] && exit 9"
    )
    # A signal that comes before the child has stopped itself is lost.
    stopped += "; while kill -CONT $child 2>/dev/null; do sleep 0.1; done & wait $child"
    script = f"trap 'echo got' USR1; kill -USR1 $$; {stopped}"
    assert run("sh", "-c", script).status == 4


def test_system_calls(run):
    collected = run("cat", "/etc/hostname", syscalls=True)
    texts = {call.text for call in collected.calls}
    assert "/etc/hostname" in texts
    assert collected.calls[-1].result is None
    assert all(call.result is not None for call in collected.calls[:-1])


WITHOUT_CALLS = """
import ctypes, struct, sys
from kcovdbg.collect.command_run import Request
from tests.support.fake_kcov import FakeKcov
# process_vm_readv() and process_vm_writev() as without CONFIG_CROSS_MEMORY_ATTACH: load the number, compare, answer.
rules = [(0x20, 0, 0, 0), (0x15, 1, 0, 310), (0x15, 0, 1, 311), (6, 0, 0, 0x50026), (6, 0, 0, 0x7FFF0000)]
program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
libc = ctypes.CDLL(None, use_errno=True)
assert not libc.prctl(38, 1, 0, 0, 0)
assert not libc.prctl(22, 2, ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(rules), ctypes.addressof(program))), 0, 0)
assert libc.process_vm_readv(1, None, 0, None, 0, 0) == -1 and ctypes.get_errno() == 38
request = Request(("sh", "-c", "cat /etc/hostname | cat; true"), size=1024, syscalls=True, stdout=2)
collected = FakeKcov().collect_command(request)
problems = {task.problem for task in collected.tasks}
print(len(collected.tasks), problems, "/etc/hostname" in {call.text for call in collected.calls})
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter knows numbers of x86-64")
def test_a_kernel_that_reads_no_other_processes_memory():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_CALLS], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "3 {None} True\n"), done.stderr


def test_programs_are_found_as_the_shell_finds_them(run, tmp_path, monkeypatch):
    script = tmp_path / "script"
    script.write_text("exit $1")
    script.chmod(0o755)
    forbidden = tmp_path / "forbidden"
    forbidden.mkdir()
    (forbidden / "script").write_text("exit 1")
    # A script without an interpreter is the shell's; what may not be run is passed over, if there
    # is another.
    assert run(str(script), "3").status == 3
    monkeypatch.setenv("PATH", f"{forbidden}:/nonexistent:{script}:{tmp_path}")
    assert run("script", "4").status == 4
    monkeypatch.setenv("PATH", str(forbidden))
    with pytest.raises(CollectError) as caught:
        run("script")
    assert caught.value.status == 126
    # An empty folder is the current one.
    monkeypatch.setenv("PATH", "/nonexistent:")
    monkeypatch.chdir(tmp_path)
    assert run("script", "5").status == 5
    monkeypatch.delenv("PATH")
    assert run("true").status == 0


def test_no_handler_runs_in_the_command(run):
    """The child's handlers are reset before it runs, while it still shares this process's
    memory.
    """
    got = []
    before = signal.signal(signal.SIGUSR1, lambda *_: got.append(os.getpid()))
    try:
        # It ends by it: the handler isn't there, nor is the signal ignored or blocked.
        assert run("sh", "-c", "kill -USR1 $$; exit 1").status == 128 + signal.SIGUSR1
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        assert run("sh", "-c", "kill -USR1 $$; exit 1").status == 1
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert got == []


def test_in_another_thread_than_the_first(run):
    results = []
    thread = threading.Thread(target=lambda: results.append(run("sh", "-c", "exit 6").status))
    thread.start()
    thread.join()
    assert results == [6]


OWNER = """
import sys
from kcovdbg.collect.command_run import Request
from tests.support.fake_kcov import FakeKcov

print("status", FakeKcov().collect_command(Request(tuple(sys.argv[1:]), size=1024)).status, flush=True)
"""


def is_sleep(pid):
    return Path(f"/proc/{pid}/comm").read_text() == "sleep\n"


@pytest.fixture
def sleeper():
    # The sleep in the background outlives the shell, unless it is killed.
    command = [sys.executable, "-c", OWNER, "sh", "-c", "sleep 100 & sleep 101; exit 0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, preexec_fn=restore_signals
    ) as owner:
        command = wait_for(lambda: children_of(owner.pid))[0]
        # Forked isn't enough: until its exec a child of the shell's takes signals as the shell
        # does.
        pids = wait_for(
            lambda: len(found := [command, *filter(is_sleep, children_of(command))]) == 3 and found
        )
        yield owner, pids
        owner.kill()


def test_killed(sleeper):
    owner, pids = sleeper
    owner.kill()
    wait_for(lambda: not any(map(is_alive, pids)))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_told_to_end(sleeper, number):
    owner, pids = sleeper
    owner.send_signal(number)
    # The command at once, and what it has left in the background when patience has run out.
    wait_for(lambda: not is_alive(pids[0]))
    wait_for(lambda: not any(map(is_alive, pids)))
    assert owner.stdout.read() == f"status {128 + number}\n"
    assert owner.wait(20) == 0
