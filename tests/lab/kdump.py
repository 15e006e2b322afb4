# SPDX-License-Identifier: LGPL-2.1-or-later
"""Dumps by kdump: when the kernel panics, a second one starts and writes /proc/vmcore to a file.

syzkaller's ``"memory_dump": true`` does so by ``makedumpfile -F -c -d 0``.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.lab import requirements
from tests.lab.comparison import lines_of
from tests.lab.dump import truth_about
from tests.lab.errors import LabError
from tests.lab.guest import Guest, Machine
from tests.lab.initramfs import Userland, write_initramfs
from tests.lab.kcovdbg_initramfs import foreign_libraries, libraries
from tests.lab.kcovdbg_run import symbol_options
from tests.lab.kernel import Kernel

# The same as in the workload's capture.c.
FORMATS = ("flattened", "filtered", "copy")
# Memory of the second kernel. It must be contiguous, and the first kernel's image may be in the
# middle of the machine's memory.
RESERVED_MIB = 64
MEMORY_MIB = 128 + RESERVED_MIB + 32


@dataclasses.dataclass(frozen=True)
class KdumpCrash:
    """A guest that crashed and was dumped."""

    dumps: dict[str, Path]
    truth: dict[str, Any]
    console: str
    """Everything that both kernels printed."""
    userland: Userland
    symbols: list[str]

    def target(self, name: str = "") -> list[str]:
        """Return kcovdbg's options that name a dump, the first one unless it is named, and its
        debug info.
        """
        return ["-c", str(self.dumps[name or next(iter(self.dumps))]), *self.symbols]

    def states(self) -> dict[str, Mapping[str, Any]]:
        return lines_of(self.truth)


def crash_and_dump(
    kernel: Kernel,
    userland: Userland,
    directory: Path,
    how: str = "",
    formats: Iterable[str] = FORMATS,
    timeout: float = 600,
    capture: Kernel | None = None,
    root: Path | None = None,
) -> KdumpCrash:
    """Boot a guest with the standing states, crash it, and wait until its second kernel has written
    the dumps.

    :param directory: where the dumps go.
    :param how: as for the workload's command ``crash``.
    :param capture: the second kernel, by default the same: one with KASAN does not fit into what is
        reserved for it.
    :param root: has makedumpfile for the guest's architecture, where that is not the host's.
    """
    formats = tuple(formats)
    shutil.copyfile((capture or kernel).image, directory / "kernel")
    _pack(directory / "capture.cpio", userland, root)
    machine = Machine(
        cpus=2,
        memory_mib=MEMORY_MIB,
        append=f"crashkernel={RESERVED_MIB}M",
        exchange=str(directory),
    )
    with Guest(kernel, userland, machine) as guest:
        arguments = f"console={kernel.recipe.platform.console} loglevel=4 nr_cpus=1 reset_devices"
        try:
            # The kernel copies the second one and computes its checksum, which takes one with KASAN
            # a minute.
            guest.ask(f"kdump {arguments} kcovlab.capture={','.join(formats)}", timeout)
        except LabError:
            print(guest.truth.lines()[-2:], guest.console()[-1500:])
            raise
        crash = f"crash {how}".strip()
        guest.ask(crash, timeout)
        truth = truth_about(guest)
        deadline = time.monotonic() + timeout
        # The second kernel reboots when it is done, which ends QEMU.
        while guest.alive():
            if time.monotonic() > deadline:
                raise LabError(f"no dump within {timeout} s\n{guest.console()[-4000:]}")
            time.sleep(0.1)
        console = guest.console()
    for name in formats:
        status = directory / f"{name}.status"
        said = json.loads(status.read_text()) if status.exists() else None
        if said is None or said["status"]:
            raise LabError(f"no dump {name}: {said}\n{console[-4000:]}")
    dumps = {name: directory / name for name in formats}
    return KdumpCrash(dumps, truth, console, userland, symbol_options(kernel, userland))


def _pack(path: Path, userland: Userland, root: Path | None) -> None:
    """Write the second kernel's initramfs: the workload's init, and makedumpfile with its
    libraries.
    """
    if root is None:
        program = requirements.find_program("makedumpfile")
        if program is None:
            raise LabError("makedumpfile is not installed")
        found = {library: library for library in libraries([program])}
    else:
        program = str(root / "usr/bin/makedumpfile")
        found = foreign_libraries(root, Path(program))
    files = {"makedumpfile": Path(program)} | {
        str(name).lstrip("/"): library for name, library in found.items()
    }
    with path.open("wb") as stream:
        write_initramfs(
            stream,
            userland.init.read_bytes(),
            {name: source.read_bytes() for name, source in files.items()},
        )
