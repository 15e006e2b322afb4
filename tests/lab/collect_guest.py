# SPDX-License-Identifier: LGPL-2.1-or-later
"""A guest in which kcovdbg collects, run by the host's Python, and its traces as the host sees
them.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import shlex
import shutil
import subprocess
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import drgn

from kcovdbg.abi import record
from kcovdbg.model.buffer import Buffer
from kcovdbg.records.trace_reader import read_trace
from kcovdbg.symbols.table_cache import cache_folder
from tests.lab.guest import Guest, Machine
from tests.lab.initramfs import Userland
from tests.lab.kcovdbg_initramfs import pack
from tests.lab.kcovdbg_run import ROOT, ask, run_kcovdbg
from tests.lab.kernel import Kernel

# The threads and children of the program crowd, by the calls that they make.
CROWD = ("t-getppid", "t-getpgrp", "t-getsid", "t-getuid", "c-umask", "c-sync")
PROGRAMS = Path(__file__).parent / "programs"
SHARED = "/tmp/exchange"


@contextlib.contextmanager
def boot_shared(
    kernel: Kernel, userland: Userland, exchange: Path, **machine: Any
) -> Iterator[Lab]:
    """Boot a guest that runs the host's programs, with the programs to collect in its exchange
    directory.
    """
    put_programs(exchange, userland)
    # Python would compile these modules in every process of the guest, which cannot write caches.
    subprocess.run(
        [sys.executable, "-m", "compileall", "-q", ROOT / "kcovdbg", *drgn.__path__], check=True
    )
    machine = {"append": "kcovlab.mode=none", "shares": (("root", "/"),), **machine}
    with Guest(kernel, userland, Machine(exchange=str(exchange), **machine)) as guest:
        yield Lab(guest, exchange)


@contextlib.contextmanager
def boot_packed(
    kernel: Kernel,
    userland: Userland,
    exchange: Path,
    files: Mapping[Path, Path] | None = None,
    **machine: Any,
) -> Iterator[Lab]:
    """Boot a guest that has the programs in its own memory, as most kernels cannot mount the host's
    files.

    :param files: by their paths there, in place of the host's.
    """
    archive = exchange / "packed.cpio"
    pack(
        archive,
        kernel,
        userland,
        put_programs(exchange, userland, kernel.recipe.platform.tools),
        files,
    )
    machine = {"memory_mib": 1024, "append": "kcovlab.mode=none", **machine}
    with Guest(
        kernel, userland, Machine(exchange=str(exchange), packed=str(archive), **machine)
    ) as guest:
        yield Lab(guest, exchange)


def put_programs(exchange: Path, userland: Userland, tools: str = "") -> list[Path]:
    """Compile the programs to collect, and copy the scripts; the workload's own program is called
    tool.

    :param tools: the prefix of the guest's compiler.
    """
    made = []
    for source in PROGRAMS.glob("*.c"):
        made.append(exchange / source.stem)
        command = [
            f"{tools}gcc",
            "-static",
            "-O2",
            "-Wall",
            "-Wextra",
            "-pthread",
            "-o",
            str(made[-1]),
            str(source),
        ]
        subprocess.run(command, check=True)
    made += [Path(shutil.copy(script, exchange)) for script in PROGRAMS.glob("*.py")]
    made.append(Path(shutil.copy(userland.init, exchange / "tool")))
    return made


def compare_syscalls(told: Iterable[str], rows: Sequence[Mapping[str, Any]]) -> set[str]:
    """Compare the system calls of `tasks` with a guest's lines of a task's ID and its
    /proc/PID/syscall.

    :return: the names of those that are equal; some tasks wake up in between.
    """
    found = {row["pid"]: row["syscall"] for row in rows}
    names = set()
    for line in told:
        pid, number, *words = line.split()
        call = found.get(int(pid))
        if number == "running" or call is None or call["number"] != int(number):
            continue
        names.add(call["name"])
        assert [int(arg, 16) for arg in call["args"]] == [
            int(word, 16) for word in words[: len(call["args"])]
        ], line
    return names


class Lab:
    """A guest in which kcovdbg collects."""

    def __init__(self, guest: Guest, exchange: Path) -> None:
        self.guest = guest
        self.exchange = exchange
        self.is_always_spread = False
        self.symbols = sorted(
            (address, name) for address, kind, name in guest.kernel.symbols if kind in "tT"
        )
        self.addresses = [address for address, _ in self.symbols]
        self.target = ("--qemu", str(guest.sockets.debugger_qmp), "-s", str(guest.kernel.vmlinux))

    def python(self, *words: str) -> str:
        folders = [
            f"PYTHONPATH={shlex.quote(str(ROOT))}",
            f"XDG_CACHE_HOME={shlex.quote(str(cache_folder().parent.parent))}",
        ]
        return " ".join([*folders, shlex.quote(sys.executable), *words])

    def kcovdbg(self, words: str, *, is_spread: bool = False) -> str:
        """Return a shell command that runs kcovdbg in the guest, on the guest's kernel.

        :param is_spread: whether it and its command may run on several CPUs at a time. That takes
            QEMU half as long again, as each change of a mapping then stops the other CPUs.
        """
        image = shlex.quote(str(self.guest.kernel.vmlinux))
        command = self.python("-m kcovdbg -s", image, words)
        if is_spread or self.is_always_spread or self.guest.machine.cpus == 1:
            return command
        return f"taskset -c 0 env {command}"

    def run(
        self, script: str, timeout: float = 300, status: int = 0
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell script in the guest, which must exit with a status."""
        done = self.guest.run(script, timeout)
        assert done.returncode == status, done.stderr
        return done

    def collect(
        self, words: str, timeout: float = 300, status: int = 0, *, is_spread: bool = False
    ) -> subprocess.CompletedProcess[str]:
        return self.run(self.kcovdbg(f"collect {words}", is_spread=is_spread), timeout, status)

    def outside(self, *words: str) -> Any:
        """Return the answer of kcovdbg on the host, which reads the guest through QMP."""
        done = run_kcovdbg(*self.target, *words, "--json", status=0)
        return json.loads(done.stdout)

    def function(self, pc: int) -> str:
        return self.symbols[bisect_right(self.addresses, pc - 1) - 1][1]

    def functions(self, buffer: Buffer) -> Counter[str]:
        return Counter(self.function(pc) for pc in record.pc_words(buffer.words, buffer.encoding))

    def entries(self, buffer: Buffer, function: str) -> int:
        """Return how often the first point of a function is in a trace."""
        pcs = Counter(
            pc
            for pc in record.pc_words(buffer.words, buffer.encoding)
            if self.function(pc) == function
        )
        return pcs[min(pcs)] if pcs else 0

    def trace(self, name: str) -> Buffer:
        return read_trace(self.exchange / name)

    def hold(self, size: int, modes: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Have a process hold a buffer of each mode; return what it printed of each."""
        modes = list(modes)
        program = self.python(f"{SHARED}/hold.py", str(size), *modes)
        self.run(
            f'cd {SHARED}; ({program} >held 2>hold.log &)\nuntil [ "$(grep -c mode held)" = '
            f"{len(modes)} ]; do\n"
            "sleep 0.2; [ -s hold.log ] && cat hold.log >&2 && exit 1; done; true",
            600,
        )
        self.fetch("held")
        return {
            row["mode"]: row
            for row in map(json.loads, (self.exchange / "held").read_text().splitlines())
        }

    def fetch(self, *names: str) -> None:
        """Copy files out of a guest whose exchange directory the host cannot see; of others they
        are there.
        """
        if not self.guest.machine.packed:
            return
        self.run("cd /tmp/exchange && gzip -f1 " + " ".join(map(shlex.quote, names)))
        for name in names:
            (self.exchange / name).write_bytes(
                gzip.decompress(self.guest.fetch(f"{name}.gz").read_bytes())
            )

    def assert_each_has_its_own(self, files: Sequence[Mapping[str, Any]], rounds: int) -> None:
        """Assert that each trace of the program crowd has the system calls of its own thread or
        child, and no others.

        :param files: the rows of ``collect``.
        """
        calls = {comm: f"__x64_sys_{comm[2:]}" for comm in CROWD}
        if self.guest.kernel.recipe.architecture == "aarch64":
            # Its C library makes this one by getpgid().
            calls = {
                comm: f"__arm64_sys_{'getpgid' if comm == 't-getpgrp' else comm[2:]}"
                for comm in CROWD
            }
        self.fetch(*(Path(row["file"]).name for row in files))
        assert {row["comm"] for row in files} == {"crowd", *calls}
        assert len(files) == 1 + len(calls)
        for row in files:
            assert not row["full"]
            buffer = self.trace(Path(row["file"]).name)
            for comm, function in calls.items():
                # A function's first point is recorded once per call: exactly as often as it was
                # called.
                assert self.entries(buffer, function) == (rounds if comm == row["comm"] else 0), (
                    row["comm"],
                    function,
                )
        self.assert_nothing_is_left()

    def assert_nothing_is_left(self) -> None:
        assert ask(self.target, "tasks", "remote") == [[], []]
