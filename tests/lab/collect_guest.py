# SPDX-License-Identifier: LGPL-2.1-or-later
"""A guest in which kcovdbg collects, run by the host's Python, and its traces as the host sees them."""

from __future__ import annotations

import gzip
import json
import shlex
import shutil
import subprocess
import sys
from bisect import bisect_right
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcovdbg.abi import record
from kcovdbg.records.trace_file import read_trace
from kcovdbg.symbols.table_cache import cache_folder
from tests.lab.kcovdbg_run import ROOT, run_kcovdbg

if TYPE_CHECKING:
    from kcovdbg.model.buffer import Buffer
    from tests.lab.guest import Guest
    from tests.lab.initramfs import Userland

PROGRAMS = Path(__file__).parent / "programs"
SHARED = "/tmp/exchange"


def put_programs(exchange: Path, userland: Userland) -> list[Path]:
    """Compile the programs to collect, and copy the scripts; the workload's own program is called tool."""
    made = []
    for source in PROGRAMS.glob("*.c"):
        made.append(exchange / source.stem)
        command = ["gcc", "-static", "-O2", "-Wall", "-Wextra", "-pthread", "-o", str(made[-1]), str(source)]
        subprocess.run(command, check=True)
    made += [Path(shutil.copy(script, exchange)) for script in PROGRAMS.glob("*.py")]
    made.append(Path(shutil.copy(userland.init, exchange / "tool")))
    return made


class Lab:
    """A guest in which kcovdbg collects."""

    def __init__(self, guest: Guest, exchange: Path) -> None:
        self.guest = guest
        self.exchange = exchange
        self.symbols = sorted(
            (int(address, 16), name)
            for address, kind, name in map(str.split, guest.kernel.system_map.read_text().splitlines())
            if kind in "tT"
        )
        self.addresses = [address for address, _ in self.symbols]

    def python(self, *words: str) -> str:
        folders = [f"PYTHONPATH={shlex.quote(str(ROOT))}", f"XDG_CACHE_HOME={shlex.quote(str(cache_folder().parent.parent))}"]
        return " ".join([*folders, shlex.quote(sys.executable), *words])

    def kcovdbg(self, words: str) -> str:
        """Return a shell command that runs kcovdbg in the guest, on the guest's kernel."""
        return self.python("-m kcovdbg -s", shlex.quote(str(self.guest.kernel.vmlinux)), words)

    def collect(self, words: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        return self.guest.run(self.kcovdbg(f"collect {words}"), timeout)

    def outside(self, *words: str) -> Any:
        """Return the answer of kcovdbg on the host, which reads the guest through QMP."""
        done = run_kcovdbg("--qemu", self.guest.sockets.debugger_qmp, "-s", self.guest.kernel.vmlinux, *words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def function(self, pc: int) -> str:
        return self.symbols[bisect_right(self.addresses, pc - 1) - 1][1]

    def functions(self, buffer: Buffer) -> Counter[str]:
        return Counter(self.function(pc) for pc in record.pc_words(buffer.words, buffer.encoding))

    def entries(self, buffer: Buffer, function: str) -> int:
        """Return how often the first point of a function is in a trace."""
        pcs = Counter(pc for pc in record.pc_words(buffer.words, buffer.encoding) if self.function(pc) == function)
        return pcs[min(pcs)] if pcs else 0

    def trace(self, name: str) -> Buffer:
        return read_trace(self.exchange / name)

    def fetch(self, *names: str) -> None:
        """Copy files out of a guest whose exchange directory the host cannot see."""
        packed = self.guest.run("cd /tmp/exchange && gzip -f1 " + " ".join(map(shlex.quote, names)))
        assert packed.returncode == 0, packed.stderr
        for name in names:
            (self.exchange / name).write_bytes(gzip.decompress(self.guest.fetch(f"{name}.gz").read_bytes()))

    def assert_nothing_is_left(self) -> None:
        words = ("-e", "tasks --json", "-e", "remote --json")
        done = run_kcovdbg("--qemu", self.guest.sockets.debugger_qmp, "-s", self.guest.kernel.vmlinux, *words)
        assert (done.returncode, done.stdout.split()) == (0, ["[]", "[]"]), done.stdout + done.stderr
