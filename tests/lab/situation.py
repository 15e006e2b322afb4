# SPDX-License-Identifier: LGPL-2.1-or-later
"""Dumps that are made once and kept: of the standing states, of a crashed kernel, inside each kind
of section.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.lab import cache
from tests.lab.comparison import lines_of
from tests.lab.dump import FORMATS, convert, truth_about, write_dump
from tests.lab.errors import LabError
from tests.lab.guest import Guest, Machine
from tests.lab.initramfs import Userland
from tests.lab.kcovdbg_run import symbol_options
from tests.lab.kernel import Kernel
from tests.lab.section import STATES, stopped_in

STANDING = "standing"
CRASHED = "crashed"
OOPSED = "oopsed"
# The situations that every reader of dumps is tested on; an oops is another way to crash.
SITUATIONS = (STANDING, CRASHED, *STATES)
# Besides kernel and userland, the key of a dump.
_MAKERS = ("dump.py", "guest.py", "section.py", "situation.py")
# A set of dumps takes about 300 MB; one that was not used for so long is removed.
_KEEP_SECONDS = 7 * 86400


@dataclasses.dataclass(frozen=True)
class Dump:
    """A dump in one format, with what the guest printed."""

    path: Path
    format: str
    situation: str
    kernel: Kernel
    userland: Userland
    truth: dict[str, Any]

    @property
    def target(self) -> list[str]:
        """kcovdbg's options that name the dump and its debug info."""
        return ["-c", str(self.path), *symbol_options(self.kernel, self.userland)]

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What the workload printed before it was taken."""
        lines: list[dict[str, Any]] = self.truth["lines"]
        return lines

    @property
    def section(self) -> dict[str, Any] | None:
        """The remote section that the guest was stopped in, as read from raw memory."""
        section: dict[str, Any] | None = self.truth["section"]
        return section

    def states(self) -> dict[str, Mapping[str, Any]]:
        return lines_of(self.truth)


def machine_for(situation: str) -> Machine:
    """Two CPUs, so that per-CPU data has two instances; one CPU to stop inside a section."""
    return Machine(cpus=1 if situation in STATES else 2)


def dump_of(kernel: Kernel, userland: Userland, situation: str, dump_format: str = "elf") -> Dump:
    """Return the kept dump of a situation; make it if there is none.

    All formats of one situation are of the same instant.
    """
    if situation not in (*SITUATIONS, OOPSED):
        raise LabError(f"no situation {situation!r}; there are: {', '.join(SITUATIONS)}")
    digest = hashlib.sha256(f"{kernel.key} {userland.key} {situation}".encode())
    for name in _MAKERS:
        digest.update((Path(__file__).parent / name).read_bytes())
    prefix = f"dump-{kernel.recipe.name}-{situation}-"
    directory = cache.root() / f"{prefix}{digest.hexdigest()[:16]}"
    cache.make_whole(directory, lambda work: _fill(kernel, userland, situation, work))
    os.utime(directory)
    _forget_old(prefix)
    truth = json.loads((directory / "truth.json").read_text())
    return Dump(_in_format(directory, dump_format), dump_format, situation, kernel, userland, truth)


def _fill(kernel: Kernel, userland: Userland, situation: str, work: Path) -> None:
    with (
        Guest(kernel, userland, machine_for(situation)) as guest,
        _brought_about(guest, situation) as section,
    ):
        truth = truth_about(guest, section)
        for wanted in FORMATS.values():
            # QEMU writes every mapping, and shadow memory has too many.
            if wanted.makedumpfile is None and not (
                wanted.paging and kernel.recipe.has_shadow_memory
            ):
                write_dump(guest, work / wanted.name, wanted.name)
    (work / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")


@contextlib.contextmanager
def _brought_about(guest: Guest, situation: str) -> Iterator[dict[str, Any] | None]:
    if situation in STATES:
        with stopped_in(guest, situation) as section:
            yield section
        return
    if situation in (CRASHED, OOPSED):
        guest.crash("oops" if situation == OOPSED else "")
    with guest.paused():
        yield None


def _in_format(directory: Path, dump_format: str) -> Path:
    """Files by makedumpfile are made from the ELF file on first use."""
    path = directory / dump_format
    if not path.exists():
        with cache.locked(f"{directory.name}-{dump_format}"):
            if not path.exists():
                convert(directory / "elf", path, dump_format)
    return path


def _forget_old(prefix: str) -> None:
    for path in cache.root().glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < time.time() - _KEEP_SECONDS:
                shutil.rmtree(path)
