# SPDX-License-Identifier: LGPL-2.1-or-later
"""kcovdbg inside an arm64 guest: what collect records is looked at outside.

It takes the kernel (``python -m tests.lab build --recipe 6.12-arm64``), Debian's cross compiler, and in
``KCOVDBG_ARM64_ROOT`` a directory with that architecture's Python, as docs/machines.md says how to make it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from native.build_native import SOURCES, ffibuilder
from tests.lab.collect_guest import PROGRAMS, SHARED, Lab
from tests.lab.guest import Guest, Machine
from tests.lab.kcovdbg_initramfs import foreign_files, pack
from tests.lab.kcovdbg_run import ROOT
from tests.lab.test_arm64 import built

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.lab

COMPILER = "aarch64-linux-gnu-gcc"


class Inside(Lab):
    """The guest has a Python of its own, and no vmlinux."""

    def python(self, *words: str) -> str:
        return " ".join([f"PYTHONPATH={ROOT}", "python3", *words])

    def kcovdbg(self, words: str) -> str:
        return self.python("-m kcovdbg", words)


def compile_native(directory: Path) -> Path:
    """Compile the native module for arm64; it keeps to Python's stable ABI, whose headers are the same everywhere."""
    source = directory / "native.c"
    ffibuilder.emit_c_code(str(source))
    module = directory / "_native.abi3.so"
    folders = [f"-I{ROOT / 'native'}", f"-I{sysconfig.get_path('include')}"]
    sources = [str(ROOT / "native" / name) for name in SOURCES]
    command = [COMPILER, "-shared", "-fPIC", "-std=gnu11", "-O2", *folders, "-o", str(module), str(source), *sources]
    subprocess.run(command, check=True)
    return module


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    root = os.environ.get("KCOVDBG_ARM64_ROOT")
    if root is None:
        pytest.skip("KCOVDBG_ARM64_ROOT is not set: see docs/machines.md")
    kernel, userland = built("6.12-arm64")
    exchange = tmp_path_factory.mktemp("exchange")
    programs = []
    for source in PROGRAMS.glob("*.c"):
        programs.append(exchange / source.stem)
        subprocess.run([COMPILER, "-static", "-O2", "-pthread", "-o", str(programs[-1]), str(source)], check=True)
    archive = exchange / "packed.cpio"
    pack(archive, kernel, userland, programs, foreign_files(Path(root), compile_native(exchange)))
    machine = Machine(memory_mib=1024, cpus=2, append="kcovlab.mode=none", exchange=str(exchange), packed=str(archive))
    with Guest(kernel, userland, machine) as guest:
        guest.wait_done(400)
        yield Inside(guest, exchange)


def test_a_command(lab: Lab) -> None:
    done = lab.collect(f"-o {SHARED}/ls.kcov -- ls /usr")
    assert done.returncode == 0, done.stderr
    assert "lib" in done.stdout
    lab.fetch("ls.kcov")
    found = lab.functions(lab.trace("ls.kcov"))
    assert found["iterate_dir"]
    assert not [name for name in found if name.startswith(("__arm64_sys_execve", "kcov_", "ptrace_traceme"))]


def test_threads_and_children_each_have_their_own(lab: Lab) -> None:
    rounds = 100
    done = lab.collect(f"--per-thread -o {SHARED}/crowd.kcov --json -- {SHARED}/crowd {rounds}", 600)
    assert done.returncode == 0, done.stderr
    files = json.loads(done.stdout)
    wanted = {
        "t-getppid": "__arm64_sys_getppid",
        "t-getpgrp": "__arm64_sys_getpgid",
        "t-getsid": "__arm64_sys_getsid",
        "t-getuid": "__arm64_sys_getuid",
        "c-umask": "__arm64_sys_umask",
        "c-sync": "__arm64_sys_sync",
    }
    assert {row["comm"] for row in files} == {"crowd", *wanted}
    lab.fetch(*(Path(row["file"]).name for row in files))
    for row in files:
        found = lab.trace(Path(row["file"]).name)
        assert not row["full"]
        own = wanted.get(row["comm"])
        for function in wanted.values():
            # A function's first point is passed once a call: as often as it was called, and not once more or less.
            assert lab.entries(found, function) == (rounds if function == own else 0), (row["comm"], function)
    lab.assert_nothing_is_left()


def test_system_calls(lab: Lab) -> None:
    done = lab.collect("--syscall --json -- cat /proc/version", 400)
    assert done.returncode == 0, done.stderr
    calls = json.loads(done.stdout)
    assert {"openat", "read", "close", "mmap", "exit_group"} <= {call["name"] for call in calls}
    assert "/proc/version" in {call["text"] for call in calls}
