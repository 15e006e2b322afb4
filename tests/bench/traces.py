# SPDX-License-Identifier: LGPL-2.1-or-later
"""Real traces: recorded in a guest of the lab, taken out of its dump, kept in the lab's cache."""

from __future__ import annotations

import hashlib
import sys
import tempfile
from array import array
from pathlib import Path

from tests.lab import cache, dump
from tests.lab.guest import Guest, Machine
from tests.lab.initramfs import make_userland
from tests.lab.kernel import Kernel

GUEST = Path(__file__).parent / "guest"
NAMES = ("tcp-a", "tcp-b", "vfs-a", "vfs-b", "proc", "mixed-a", "mixed-b")


def record(kernel: Kernel) -> dict[str, array[int]]:
    """The traces of a kernel, by name: recorded PCs in order."""
    sources = b"".join(path.read_bytes() for path in sorted(GUEST.iterdir()))
    key = hashlib.sha256(kernel.key.encode() + sources).hexdigest()[:16]
    folder = cache.make_whole(cache.root() / f"traces-{key}", lambda work: _record(kernel, work))
    traces = {}
    for name in NAMES:
        words = array("Q", (folder / name).read_bytes())
        if sys.byteorder == "big":
            words.byteswap()
        traces[name] = words
    return traces


def _record(kernel: Kernel, work: Path) -> None:
    import drgn
    from drgn.helpers.linux.pid import for_each_task

    with tempfile.TemporaryDirectory() as nothing, tempfile.TemporaryDirectory() as scratch:
        userland = make_userland(kernel, GUEST, Path(nothing))
        core = Path(scratch) / "core"
        with Guest(kernel, userland, Machine(memory_mib=256)) as guest:
            dump.write_dump(guest, core)
        program = drgn.Program()
        program.set_core_dump(core)
        program.load_debug_info([kernel.vmlinux])
        for task in for_each_task(program):
            name = task.comm.string_().decode()
            if name in NAMES and task.kcov:
                area = task.kcov_area.value_()
                count = min(program.read_word(area), task.kcov_size.value_() - 1)
                (work / name).write_bytes(program.read(area + 8, 8 * count))
