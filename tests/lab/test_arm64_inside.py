# SPDX-License-Identifier: LGPL-2.1-or-later
"""kcovdbg inside an arm64 guest: what collect records is looked at outside, and its answers are
compared with the guest's.

It takes the kernel (``python -m tests.lab build --recipe 6.12-arm64``), Debian's cross compiler,
and in ``KCOVDBG_ARM64_ROOT`` a directory with that architecture's Python, as docs/machines.md says
how to make it. The running kernel's state takes drgn in that directory as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from native.build_native import SOURCES, ffibuilder
from tests.lab.collect_guest import SHARED, Lab, boot_packed, compare_syscalls
from tests.lab.comparison import COMMANDS, assert_agrees, lines_of, parse_outputs
from tests.lab.conftest import built
from tests.lab.dump import truth_about
from tests.lab.kcovdbg_initramfs import foreign_files
from tests.lab.kcovdbg_run import ROOT
from tests.lab.test_collect import test_remote_usb, test_threads_and_children_each_have_their_own

# The same, by the fixture of this file.
__all__ = ["test_remote_usb", "test_threads_and_children_each_have_their_own"]

COMPILER = "aarch64-linux-gnu-gcc"

# Where the guest has the kernel's debug info.
VMLINUX = Path("/usr/lib/debug/vmlinux")


class Inside(Lab):
    """The guest has a Python of its own."""

    def python(self, *words: str) -> str:
        return " ".join([f"PYTHONPATH={ROOT}", "python3", *words])

    def kcovdbg(self, words: str) -> str:
        """Return a shell command that runs kcovdbg in the guest without debug info."""
        return self.python("-m kcovdbg", words)

    def ask(self, words: str, timeout: float = 400) -> subprocess.CompletedProcess[str]:
        """Run kcovdbg in the guest with debug info of its kernel."""
        return self.run(self.python("-m kcovdbg -s", str(VMLINUX), words), timeout)


def compile_native(directory: Path) -> Path:
    """Compile the native module for arm64; it keeps to Python's stable ABI, whose headers are the
    same everywhere.
    """
    source = directory / "native.c"
    ffibuilder.emit_c_code(str(source))
    module = directory / "_native.abi3.so"
    folders = [f"-I{ROOT / 'native'}", f"-I{sysconfig.get_path('include')}"]
    sources = [str(ROOT / "native" / name) for name in SOURCES]
    command = [
        COMPILER,
        "-shared",
        "-fPIC",
        "-std=gnu11",
        "-O2",
        *folders,
        "-o",
        str(module),
        str(source),
        *sources,
    ]
    subprocess.run(command, check=True)
    return module


def have_root() -> Path:
    root = os.environ.get("KCOVDBG_ARM64_ROOT")
    if root is None:
        pytest.skip("KCOVDBG_ARM64_ROOT is not set: see docs/machines.md")
    return Path(root)


@contextlib.contextmanager
def booted(exchange: Path, files: dict[Path, Path], append: str = "") -> Iterator[Inside]:
    """Boot a guest with kcovdbg and what else it shall have.

    :param files: by their paths there.
    """
    kernel, userland = built("6.12-arm64")
    foreign = foreign_files(have_root(), compile_native(exchange)) | files
    with boot_packed(
        kernel, userland, exchange, foreign, memory_mib=1280, cpus=2, append=append
    ) as lab:
        yield Inside(lab.guest, exchange)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    with booted(tmp_path_factory.mktemp("exchange"), {}, "kcovlab.mode=none") as inside:
        yield inside


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    """A guest whose states stand, with drgn and the kernel's debug info in it."""
    folder = Path("usr/lib/python3/dist-packages")
    if not (have_root() / folder / "drgn").is_dir():
        pytest.skip("KCOVDBG_ARM64_ROOT has no drgn: see docs/machines.md")
    with booted(
        tmp_path_factory.mktemp("standing"), {VMLINUX: built("6.12-arm64")[0].vmlinux}
    ) as inside:
        yield inside


def test_a_command(lab: Inside) -> None:
    done = lab.collect(f"-o {SHARED}/ls.kcov -- ls /usr")
    assert "lib" in done.stdout
    lab.fetch("ls.kcov")
    found = lab.functions(lab.trace("ls.kcov"))
    assert found["iterate_dir"]
    assert not [
        name for name in found if name.startswith(("__arm64_sys_execve", "kcov_", "ptrace_traceme"))
    ]


def test_system_calls(lab: Inside) -> None:
    done = lab.collect("--syscall --json -- cat /proc/version", 400)
    calls = json.loads(done.stdout)
    assert {"openat", "read", "close", "mmap", "exit_group"} <= {call["name"] for call in calls}
    assert "/proc/version" in {call["text"] for call in calls}


def test_doctor_without_debug_info(lab: Inside) -> None:
    done = lab.guest.run(lab.kcovdbg("doctor --json"), 400)
    rows = {row["question"]: row for row in json.loads(done.stdout)}
    (problem,) = [question for question, row in rows.items() if row["ok"] is False]
    assert problem == "does the debug info match?"
    assert done.returncode == 1
    assert rows["can threads and children be followed?"]["ok"] is True


def test_doctor(standing: Inside) -> None:
    done = standing.ask("doctor --json")
    assert [row for row in json.loads(done.stdout) if row["ok"] is not True] == []


def test_state_through_kcore(standing: Inside) -> None:
    """The running kernel's state, read in the guest, is what the guest printed."""
    done = standing.ask(" ".join(f"-e '{line} --json'" for line in COMMANDS.values()), 600)
    truth, answers = truth_about(standing.guest), parse_outputs(done.stdout, COMMANDS)
    # kcovdbg and the shell that runs it came after all that the guest printed.
    newest = max(tid for tid, *_ in lines_of(truth)["tasks"]["tids"])
    answers["tasks"] = [row for row in answers["tasks"] if row["pid"] <= newest]
    assert_agrees(truth, answers)


def test_check_through_kcore(standing: Inside) -> None:
    assert json.loads(standing.ask("check --json", 600).stdout) == []


def test_system_calls_are_as_the_guest_says(standing: Inside) -> None:
    """Compare with /proc/PID/syscall, from inside and from outside."""
    script = """
for task in /proc/[0-9]*/task/[0-9]*; do
    [ -e $task/exe ] && echo ${task##*/} $(cat $task/syscall)
done
"""
    told = set(standing.guest.run(script, 120).stdout.splitlines())
    live = json.loads(standing.ask("tasks -a --json").stdout)
    outside = standing.outside("tasks", "-a")
    # The first process waits for another shell each time.
    told &= set(standing.guest.run(script, 120).stdout.splitlines())
    for rows in (live, outside):
        assert len(compare_syscalls(told, rows)) >= 3, told
