# SPDX-License-Identifier: LGPL-2.1-or-later
"""Collecting on a kernel with KCOV: kcovdbg runs in a guest, with the host's Python; its traces are
read on the host.
"""

from __future__ import annotations

import errno
import json
import re
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kcovdbg.abi import record
from kcovdbg.records.side_file import read_header
from kcovdbg.records.trace_reader import read_trace
from kcovdbg.symbols.table_builder import build_table_file
from tests.lab.collect_guest import SHARED, Lab, boot_shared, compare_syscalls
from tests.lab.initramfs import Userland
from tests.lab.kcovdbg_run import run_kcovdbg
from tests.lab.kernel import Kernel
from tests.support.programs import addr2line, find_points


@pytest.fixture(scope="module")
def lab(
    kernel: Kernel,
    userland: Userland,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Lab]:
    # It takes seconds here, and minutes of each test in the guest.
    build_table_file(kernel.vmlinux)
    with boot_shared(
        kernel, userland, tmp_path_factory.mktemp("exchange"), memory_mib=1024, cpus=2
    ) as lab:
        lab.is_always_spread = request.config.getoption("exhaustive")
        yield lab


def test_real_commands(lab: Lab) -> None:
    done = lab.collect(f"-o {SHARED}/ls.kcov -- ls /etc")
    assert "passwd" in done.stdout
    found = lab.functions(lab.trace("ls.kcov"))
    assert found["iterate_dir"]
    # The command's own exec and the collector itself are not recorded.
    assert not [
        name for name in found if name.startswith(("__x64_sys_execve", "kcov_", "ptrace_traceme"))
    ]
    header = read_header(lab.exchange / "ls.kcov")
    assert header is not None
    assert (header.mode, header.comm, header.argv) == ("TRACE_PC", "ls", ("ls", "/etc"))
    assert header.release == lab.guest.kernel.release
    kernel = next(line for line in lab.outside("info"))
    assert header.build_id == kernel["build_id"]
    assert f"{header.kaslr_offset:#x}" == kernel["kaslr_offset"]


def test_exit_statuses(lab: Lab) -> None:
    # The task of a running command is read as well, besides its coverage.
    words = {"/nonexistent": 127, "/etc/passwd": 126}
    script = "\n".join(
        f"{lab.kcovdbg(f'collect -o {SHARED}/s.kcov -- {command}')}; echo status $?"
        for command in words
    )
    script += f"\n{lab.kcovdbg('collect --nonsense -- true')}; echo status $?"
    done = lab.guest.run(script, 300)
    assert [
        int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("status ")
    ] == [*words.values(), 125]
    assert all(command in done.stderr for command in words)


def test_a_command_that_uses_kcov_itself(lab: Lab) -> None:
    command = f"{SHARED}/byhand 65536 true"
    lab.run(command, 60)
    # Its child could not enable KCOV.
    done = lab.collect(f"-o {SHARED}/own.kcov -- {command}", status=125)
    assert "EBUSY" in done.stdout
    assert "/sys/kernel/debug/kcov" in done.stdout


def test_a_command_that_closes_its_kcov(lab: Lab) -> None:
    """Since 7.2 a task may own remote coverage beside the local one that the collector has
    enabled.
    """
    done = lab.collect(f"-o {SHARED}/own.kcov -- {sys.executable} -S {SHARED}/own_kcov.py")
    has_both = lab.guest.kernel.recipe.package >= "linux-source-7.2"
    assert done.stdout.splitlines()[0] == f"{errno.EBUSY} {0 if has_both else errno.EBUSY}"
    # A file that is closed before the exit is seen by fanotify only.
    has_fanotify = "CONFIG_FANOTIFY=y" in lab.guest.kernel.config.read_text()
    assert ("/sys/kernel/debug/kcov" in done.stderr + done.stdout) == has_fanotify
    lab.assert_nothing_is_left()


def test_threads_and_children_each_have_their_own(lab: Lab) -> None:
    rounds = 200
    done = lab.collect(
        f"--per-thread -o {SHARED}/crowd.kcov --json -- {SHARED}/crowd {rounds}",
        900,
        is_spread=True,
    )
    lab.assert_each_has_its_own(json.loads(done.stdout), rounds)


def test_two_hundred_children_and_sixteen_threads(lab: Lab, request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("exhaustive"):
        pytest.skip("minutes: --exhaustive runs it")
    done = lab.collect(
        f"--per-thread -o {SHARED}/many.kcov --json -- {SHARED}/crowd 20 16 200", 900
    )
    files = json.loads(done.stdout)
    assert Counter(row["comm"] for row in files) == {
        **dict.fromkeys(("t-getppid", "t-getpgrp", "t-getsid", "t-getuid"), 4),
        **dict.fromkeys(("c-umask", "c-sync"), 100),
        "crowd": 1,
    }
    calls = {
        "t-getppid": "__x64_sys_getppid",
        "t-getuid": "__x64_sys_getuid",
        "c-umask": "__x64_sys_umask",
    }
    for row in files:
        if row["comm"] in calls:
            assert lab.entries(lab.trace(Path(row["file"]).name), calls[row["comm"]]) == 20
    lab.assert_nothing_is_left()


def test_a_setuid_program(lab: Lab) -> None:
    prepare = (
        "mkdir -p /run/suid && mount -t tmpfs none /run/suid && cp /usr/bin/id /run/suid/id && "
        "chmod 4755 /run/suid/id"
    )
    lab.run(prepare, 60)
    command = "setpriv --reuid 65534 --clear-groups /run/suid/id"
    alone = lab.guest.run(command, 60)
    assert "uid=65534" in alone.stdout
    assert "euid=0" in alone.stdout
    # It runs with the same rights, and its coverage goes on over the change.
    done = lab.collect(f"-o {SHARED}/suid.kcov -- {command}")
    assert done.stdout.startswith(alone.stdout)
    found = lab.functions(lab.trace("suid.kcov"))
    assert found["__x64_sys_setresuid"] or found["__x64_sys_setreuid"] or found["__x64_sys_setuid"]
    assert found["__x64_sys_geteuid"]
    lab.assert_nothing_is_left()


def test_coverage_of_a_kernel_test(lab: Lab, tmp_path: Path) -> None:
    """A kselftest with some 200 children, most of which live for a moment; its lines in lcov's
    format are addr2line's.
    """
    recipe = lab.guest.kernel.recipe
    tests = "tools/testing/selftests"
    wanted = [f"*/{tests}/{name}" for name in ("core/close_range_test.c", "clone3/*.h", "*.h")]
    extract = [
        "tar",
        "-xf",
        recipe.tarball,
        "-C",
        tmp_path,
        "--strip-components=1",
        "--wildcards",
        *wanted,
    ]
    subprocess.run(extract, check=True)
    source = tmp_path / tests / "core/close_range_test.c"
    # 30 s are too few for a case with 100 children where QEMU shares a processor.
    harness = tmp_path / tests / "kselftest_harness.h"
    harness.write_text(
        harness.read_text().replace("TEST_TIMEOUT_DEFAULT 30", "TEST_TIMEOUT_DEFAULT 300")
    )
    # kselftest_harness.h is found from the tests' directory since 7.0.
    headers = ("-I", tmp_path / tests)
    subprocess.run(
        ["gcc", "-static", "-O2", *headers, "-o", lab.exchange / source.stem, source], check=True
    )
    words = f"--buffer-size 4M -o {SHARED}/test.kcov -- {SHARED}/{source.stem}"
    done = lab.collect(words, 600, is_spread=True)
    assert re.search(r"^# Totals: pass:[1-9]\d* fail:0 .* error:0$", done.stdout, re.MULTILINE)
    assert "was full" not in done.stderr

    # 7.3 has no __close_range(), and the call's own function is inlined.
    is_inlined = "__close_range" not in {name for _, name in lab.symbols}
    symbols = {"dup_fd": "dup_fd", "expand_files": "expand_files"}
    symbols |= (
        {"__do_sys_close_range": "__x64_sys_close_range"}
        if is_inlined
        else {"__close_range": "__close_range"}
    )
    buffer = lab.trace("test.kcov")
    recorded = set(record.pc_words(buffer.words, buffer.encoding))
    vmlinux = lab.guest.kernel.vmlinux
    all_missed = set()
    for function, symbol in symbols.items():
        info = tmp_path / f"{function}.info"
        trace = f"file:{lab.exchange}/test.kcov"
        words = ("export", "lcov", trace, "--function", function, "-o", info)
        run_kcovdbg("-s", vmlinux, "--source-dir", lab.guest.kernel.tree, *words, status=0)
        counted = re.finditer(r"^DA:(\d+),(\d+)$", info.read_text(), re.MULTILINE)
        hits = {int(line): int(count) for line, count in map(re.Match.groups, counted)}
        # Records by tail calls of functions that the function calls are not its points.
        points = find_points(vmlinux, symbol)
        executed = find_own_lines(vmlinux, function, points & recorded)
        missed = find_own_lines(vmlinux, function, points - recorded) - executed
        # Lines without points follow from others.
        assert executed <= {line for line, count in hits.items() if count}
        assert missed <= {line for line, count in hits.items() if not count}
        assert len(points & recorded) > 5
        all_missed |= missed
    assert all_missed


def find_own_lines(vmlinux: Path, function: str, points: set[int]) -> set[int]:
    """Return the lines of a function that have points; inlined code is of other functions."""
    places = addr2line(vmlinux, (point - 1 for point in points))
    innermost = [frames[0] for frames in places if frames]
    return {line for name, _, line in innermost if name == function}


def test_system_calls(lab: Lab) -> None:
    done = lab.collect("--syscall --json -- cat /etc/hostname")
    calls = json.loads(done.stdout)
    names = {call["name"] for call in calls}
    assert {"openat", "read", "close", "mmap", "exit_group"} <= names
    opened = [call for call in calls if "do_sys_openat2" in call["functions"]]
    assert {call["name"] for call in opened} == {"openat"}
    assert len(opened) == sum(call["name"] == "openat" for call in calls)
    assert "/etc/hostname" in {call["text"] for call in opened}
    for call in calls:
        assert not any("ptrace" in function for function in call["functions"]), " ".join(
            call["functions"]
        )


@pytest.fixture(scope="module")
def held(lab: Lab) -> Iterator[dict[str, Any]]:
    """A process has a buffer of each mode, which another process reads."""
    told = lab.hold(1 << 14, ("pc", "cmp"))
    yield told
    lab.guest.run(f"kill {told['pc']['pid']}")


@pytest.mark.parametrize("mode", ["pc", "cmp"])
def test_user_space_sees_what_the_kernel_holds(lab: Lab, held: dict[str, Any], mode: str) -> None:
    told = held[mode]
    user = lab.trace(f"{mode}.kcov")
    assert user.words.tolist() == told["words"]
    assert user.count > 10
    rows = lab.outside("buffer", f"fd:{told['pid']}/{told['fd']}", "--raw")
    words = record.pc_words(user.words, user.encoding)
    assert [row["pc"] for row in rows[: user.count]] == [f"{word:#x}" for word in words]
    if mode == "cmp":
        assert [row["arg1"] for row in rows[: user.count]] == [
            f"{word:#x}" for word in user.words[1::4]
        ]
    # Disabling is recorded as well, after the records of the block, and so is whatever else the
    # task is made to run meanwhile.
    assert len(rows) - user.count < 1000
    # The guest's trace file beside the guest's memory, read on the host.
    beside = run_kcovdbg(
        *(*lab.target, "view", "--text", "--by-index", "--width", "100"),
        *(f"file:{lab.exchange}/{mode}.kcov", f"fd:{told['pid']}/{told['fd']}"),
        status=0,
    )
    assert " | " not in "".join(beside.stdout.splitlines()[1 : user.count])


def test_both_views_in_the_guest(lab: Lab, held: dict[str, Any]) -> None:
    """Compare the views of a buffer at rest, of one that changes all the time, and of one that is
    mapped privately.

    The kernel accepts such a mapping, and user space then sees other memory than the kernel. All in
    one process of kcovdbg: starting one takes most of the time.
    """
    where = f"fd:{held['pc']['pid']}/{held['pc']['fd']}"
    view = "view --text --width 100"
    # The JSON of jobs, which is empty, separates the answers of view.
    between = '-e "jobs --json"'
    words = " ".join(
        [
            f'-e "{view} {where}"',
            between,
            *[f'-e "{view} $busy"'] * 5,
            between,
            f'-e "{view} $private"',
        ]
    )
    script = f"""
{SHARED}/busy >{SHARED}/busy.json & first=$!
{SHARED}/private >{SHARED}/private.json & second=$!
for name in busy private; do
    until grep -q fd {SHARED}/$name.json; do sleep 0.2; [ $((tries += 1)) = 100 ] && exit 1; done
done
fd_of() {{ sed -E 's|.*"pid": ([0-9]+), "fd": ([0-9]+).*|fd:\\1/\\2|' {SHARED}/$1.json; }}
busy=$(fd_of busy)
private=$(fd_of private)
{lab.kcovdbg(f"-q {words}")}; status=$?
kill $first $second
exit $status
"""
    done = lab.run(script, 300)
    assert json.loads((lab.exchange / "private.json").read_text())["count"] == 0
    standing, changing, mapped = re.split(r"^\[\s*\]$", done.stdout, flags=re.MULTILINE)
    assert not [
        line for line in standing.splitlines() if " | " in line or " < " in line or " > " in line
    ]
    shown = done.stdout + done.stderr
    assert "FINDING" not in standing + changing
    findings = [line for line in shown.splitlines() if "FINDING" in line]
    assert len(findings) == 2, shown
    # The counts in the user's and the kernel's view.
    assert re.findall(r"\d+", findings[0])[0] == "0", findings
    assert "MAP_PRIVATE" in findings[1]
    # Each answer covers both views: without a finding they are equal.
    assert [view.count("user:") for view in (standing, changing, mapped)] == [1, 5, 1], shown


def test_the_shell_watches_while_it_collects(lab: Lab) -> None:
    """On a terminal: `collect … &`, then tasks, buffer and view of the running collector, its end;
    then another one.
    """
    terminals = (
        "mkdir -p /dev/pts; mountpoint -q /dev/pts || mount -t devpts -o ptmxmode=0666 devpts "
        "/dev/pts\n"
    )
    shell = lab.kcovdbg("-q").split(sys.executable, 1)[1]
    done = lab.run(
        terminals + lab.python(f"{SHARED}/at_terminal.py", sys.executable, shell, f"{SHARED}/tick"),
        900,
    )
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["name"].startswith(f"fd:{seen['collector']}/")
    row = next(line for line in seen["tasks"].splitlines() if " tick " in line)
    assert "TRACE_PC" in row
    assert "kernel/sys.c" in seen["buffer"]
    assert f"user:{seen['name'].removeprefix('fd:')}" in seen["view"]
    assert "FINDING" not in seen["view"]
    assert seen["grew"] > 0
    assert re.search(r"\[1\] .* 143", seen["end"])
    assert "@collect1" in seen["kept"]
    assert seen["status"] == 0
    # Its collector was ended, with or without records.
    assert re.search(r"\[2\] .*( 143\b| signal 15\b)", seen["last"])
    lab.assert_nothing_is_left()


def test_a_buffer_grows_until_everything_fits(lab: Lab) -> None:
    done = lab.collect(
        f"--buffer-size 4K --grow -o {SHARED}/grown.kcov --json -- sh -c 'cd /etc; echo *; exit 3'",
        status=3,
    )
    told = [line for line in done.stderr.splitlines() if "was full" in line]
    assert told, done.stderr
    # Each message names the size that was too small and the next one.
    sizes = [list(map(int, re.findall(r"\d+", line))) for line in told]
    assert sizes == [[4096 * 4**number, 4096 * 4 ** (number + 1)] for number in range(len(told))]
    buffer = lab.trace("grown.kcov")
    assert buffer.size == 4096 * 4 ** len(told)
    assert 4095 * 4 ** (len(told) - 1) <= buffer.count < buffer.size - 1


def test_text_for_other_tools(lab: Lab) -> None:
    """With the points of the real kernel, `auto` distinguishes raw PCs from addresses of calls."""
    done = lab.collect(f"--format syzkaller -o {SHARED}/call.txt --json -- cat /etc/hostname")
    calls = [int(line, 16) for line in (lab.exchange / "call.txt").read_text().splitlines()]
    (lab.exchange / "raw.txt").write_text("".join(f"{pc + 5:#x}\n" for pc in calls))
    for name, noun in (("raw.txt", "return addresses of"), ("call.txt", "calls of")):
        done = run_kcovdbg(
            *lab.target, "buffer", f"file:{lab.exchange / name}", "--raw", "--json", status=0
        )
        assert f"{noun} coverage points" in done.stderr
        shown = [int(row["pc"], 16) for row in json.loads(done.stdout)]
        wrong = [pc for pc, call in zip(shown, calls, strict=True) if pc != call + 5]
        # The record of a tail call, less 5, may be a point or nothing: what fits no convention is
        # damage, and stays as it is.
        assert len(wrong) <= 0.02 * len(calls), list(map(hex, wrong))


def test_comparisons(lab: Lab) -> None:
    lab.collect(
        f"--mode cmp -o {SHARED}/cmp.kcov --buffer-size 2M -- sh -c 'cd /etc; kill -9 $$'",
        status=137,
    )
    buffer = lab.trace("cmp.kcov")
    assert buffer.count > 1000
    decoded = [
        record.decode_record(buffer.words, index, buffer.encoding) for index in range(buffer.count)
    ]
    for one in decoded:
        assert one.comparison is not None
        assert one.comparison.type <= 7
        assert max(one.comparison.arg1, one.comparison.arg2) < 1 << 8 * one.comparison.size
    assert any(lab.function(one.word).startswith("do_") for one in decoded)


def test_remote_with_a_common_handle(lab: Lab) -> None:
    lab.collect(f"--remote common:auto -o {SHARED}/vhost.kcov -- {SHARED}/tool vhost 3")
    found = lab.functions(lab.trace("vhost.remote.kcov"))
    assert any(name.startswith(("handle_tx", "vhost_")) for name in found), found
    assert not [
        name for name in lab.functions(lab.trace("vhost.kcov")) if name.startswith("handle_tx")
    ]
    lab.assert_nothing_is_left()


def test_remote_usb(lab: Lab) -> None:
    bus = lab.guest.make("traffic usb plug", "kc-plugging")["bus"]
    try:
        lab.collect(f"--remote usb:{bus} -o {SHARED}/usb.kcov -- sleep 3", 400)
    finally:
        lab.guest.ask("stop")
    lab.fetch("usb.remote.kcov", "usb.kcov")
    assert lab.functions(lab.trace("usb.remote.kcov"))["hub_event"]
    assert not lab.functions(lab.trace("usb.kcov"))["hub_event"]
    lab.assert_nothing_is_left()


def test_a_handle_that_is_taken(lab: Lab) -> None:
    script = f"""
{lab.kcovdbg(f"collect --remote usb:61 -o {SHARED}/first.kcov -- sleep 1000")} >/dev/null & first=$!
until [ -n "$(pidof sleep)" ]; do sleep 0.2; done
{lab.kcovdbg("collect --remote usb:61,common:auto -- true")}; echo status $?
kill -TERM $first; wait $first; echo first $?
"""
    done = lab.guest.run(script, 300)
    told = [line for line in done.stdout.splitlines() if line.startswith(("status", "first"))]
    assert told == ["status 125", "first 143"], done.stderr
    assert re.search(r"usb:61: task \d+ ", done.stderr), done.stderr
    # SIGTERM ended the command; its coverage was written.
    assert lab.trace("first.kcov").count > 100
    lab.assert_nothing_is_left()


def test_killed_in_the_middle(lab: Lab) -> None:
    script = f"""
{lab.kcovdbg(f"collect --remote common:auto -o {SHARED}/killed.kcov -- sh -c 'sleep 1000 & sleep 1001'")} & collector=$!
until [ "$(pidof sleep | wc -w)" = 2 ]; do sleep 0.2; done
kill -KILL $collector
wait $collector
sleep 0.5
echo left: $(pidof sleep)
"""
    done = lab.guest.run(script, 300)
    assert done.stdout.splitlines()[-1] == "left:", done.stderr
    assert not list(lab.exchange.glob("*killed*"))
    lab.assert_nothing_is_left()


NOBODY = 65534
# A user who can read Python and kcovdbg, which may lie in a home directory of root, but may neither
# open KCOV nor read the kernel's memory.
AS_NOBODY = (
    f"setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups --inh-caps=+dac_read_search "
    f"--ambient-caps=+dac_read_search"
)


def test_doctor(lab: Lab) -> None:
    done = lab.run(lab.kcovdbg("doctor --json"), 300)
    assert [row for row in json.loads(done.stdout) if row["ok"] is not True] == []
    other = lab.run(f"{AS_NOBODY} env {lab.kcovdbg('doctor --json')}", 300, 1)
    rows = json.loads(other.stdout)
    assert len(rows) == len(json.loads(done.stdout))
    refused = [row for row in rows if row["ok"] is False]
    assert refused
    assert all(row["fix"] for row in refused)
    assert "Traceback" not in other.stderr


@pytest.fixture(scope="module")
def secret(lab: Lab) -> str:
    """Make a file of root's, and a set-user-ID program; return the file's path."""
    words = (
        "echo secret > /tmp/secret; chmod 600 /tmp/secret; cp /tmp/exchange/rights /tmp/suid; "
        "chmod 4755 /tmp/suid"
    )
    lab.run(words, 60)
    return "/tmp/secret"


def rights_of(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def test_a_set_user_id_program_gains_nothing_for_an_ordinary_user(lab: Lab, secret: str) -> None:
    lines = (
        "chmod o+x /sys/kernel/debug; chmod 666 /sys/kernel/debug/kcov",
        f"mkdir /tmp/theirs && chown {NOBODY} /tmp/theirs",
        f"{AS_NOBODY} /tmp/suid {secret}",
        f"{AS_NOBODY} env "
        f"{lab.kcovdbg(f'collect --per-thread -o /tmp/theirs/s.kcov -- /tmp/suid {secret}')}; "
        f"status=$?",
        "chmod 600 /sys/kernel/debug/kcov; chmod o-x /sys/kernel/debug; exit $status",
    )
    done = lab.run("\n".join(lines), 300)
    alone, traced = (rights_of(done.stdout)[index : index + 2] for index in (0, 2))
    assert [(row["user"], row["write"]) for row in alone] == [(0, 0)] * 2
    assert [(row["user"], row["write"]) for row in traced] == [(NOBODY, errno.EACCES)] * 2
    assert [(row["descriptors"], row["mappings"]) for row in traced] == [(0, 0)] * 2
    written = lab.guest.run("stat -c '%u %a' /tmp/theirs/*", 60).stdout.splitlines()
    assert written == [f"{NOBODY} 600"] * 4


def test_a_command_that_gives_up_its_rights_keeps_no_way_to_kcov(lab: Lab, secret: str) -> None:
    done = lab.collect(
        f"--per-thread -o {SHARED}/dropped.kcov -- {SHARED}/rights {secret} {NOBODY}"
    )
    for row in rights_of(done.stdout):
        assert (row["user"], row["write"], row["device"]) == (NOBODY, errno.EACCES, errno.EACCES)
        assert (row["descriptors"], row["mappings"]) == (0, 0)
    traces = sorted(lab.exchange.glob("dropped*.kcov"))
    # The child is another user's from its start.
    assert len(traces) == 2
    assert all(lab.functions(read_trace(trace)) for trace in traces)
    written = [path.stat() for path in lab.exchange.glob("dropped*")]
    assert {(found.st_uid, stat.S_IMODE(found.st_mode)) for found in written} == {(0, 0o600)}


def test_system_calls_are_as_the_guest_says(lab: Lab) -> None:
    """Compare with /proc/PID/syscall, which the kernel reads from registers of blocked tasks; some
    wake up in between.
    """
    script = """
mkfifo /tmp/blocked
cat < /tmp/blocked > /dev/null & reader=$!
sleep 1000 > /tmp/blocked & sleeper=$!
# read() and clock_nanosleep() of x86-64
for want in $reader:0 $sleeper:230; do
    until [ "$(cut -d' ' -f1 /proc/${want%:*}/syscall)" = ${want#*:} ]; do sleep 0.2; done
done
for task in /proc/[0-9]*; do
    [ -e $task/exe ] && echo ${task#/proc/} $(cat $task/syscall)
done
"""
    done = lab.guest.run(script, 120)
    names = compare_syscalls(done.stdout.splitlines(), lab.outside("tasks", "-a"))
    assert {"clock_nanosleep", "read"} <= names, done.stdout
