# SPDX-License-Identifier: LGPL-2.1-or-later
"""Makes examples/demo: a slice of a guest inside a remote section, and debug info small enough to
be committed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import zstandard

from kcovdbg.elf.file import ElfFile
from tests.lab import requirements
from tests.lab.dump import truth_about, write_dump
from tests.lab.errors import LabError
from tests.lab.guest import Guest
from tests.lab.initramfs import make_userland
from tests.lab.kcovdbg_run import run_kcovdbg, symbols_of
from tests.lab.kernel import Kernel
from tests.lab.section import stopped_in
from tests.lab.slim_debug_info import compress

DESTINATION = Path(__file__).parent.parent.parent / "examples" / "demo"
# A softirq section that interrupts a task with a local session: saved state, an area in use, and
# both kinds of session at once.
STATE = "softirq-over-local"
# A task that lost its session to a section in its own context: a violation that check finds, with
# the kernel bug behind it.
DAMAGE = "puzzle nested"
# The modules that are loaded at that time.
MODULES = ("kcovlab_keep", "kcovlab_damage")
TOOLS = {"dwz": "dwz", "objcopy": "binutils"}
# Locations of variables, call frame information and relocations: no command reads them.
DROPPED = (".debug_loclists", ".debug_frame", ".rela*")
LIMIT = 16 << 20


def make_demo(kernel: Kernel, destination: Path = DESTINATION) -> None:
    """Boot a guest, stop it inside the section, and write the slice with its images and modules."""
    requirements.ensure(TOOLS)
    userland = make_userland(kernel)
    destination.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kcovdbg-demo-") as directory:
        work = Path(directory)
        with Guest(kernel, userland) as guest, stopped_in(guest, STATE, say=[DAMAGE]) as section:
            truth = truth_about(guest, section)
            write_dump(guest, work / "dump", "elf")
        kept = [module for module in userland.modules if module.stem in MODULES]
        symbols = symbols_of(kernel.vmlinux, *kept)
        run_kcovdbg("-c", work / "dump", *symbols, "slice", "-o", work / "demo.slice", status=0)
        compress(work / "demo.slice", destination)
        if not _is_kept(kernel.vmlinux, destination, work):
            # The image is 13 MB: do not commit it again when only the compressor differs.
            compress(_strip(kernel.vmlinux, work), destination)
        for module in kept:
            compress(module, destination)
        (work / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")
        compress(work / "truth.json", destination)
    size = sum(path.stat().st_size for path in destination.iterdir())
    print(f"{destination}: {size / (1 << 20):.1f} MiB")
    if size > LIMIT:
        raise LabError(f"that is more than {LIMIT >> 20} MiB")


def _is_kept(vmlinux: Path, destination: Path, work: Path) -> bool:
    """Return whether the existing image is of this kernel."""
    kept = destination / "vmlinux.zst"
    if not kept.exists():
        return False
    with kept.open("rb") as packed, (work / "kept").open("wb") as plain:
        zstandard.ZstdDecompressor(max_window_size=1 << 31).copy_stream(packed, plain)
    with ElfFile(work / "kept") as old, ElfFile(vmlinux) as new:
        return old.build_id == new.build_id


def _strip(vmlinux: Path, work: Path) -> Path:
    """Leave out sections that no command reads, and store once what several compilation units
    repeat.
    """
    stripped, compact = work / "stripped", work / "vmlinux"
    shutil.copyfile(vmlinux, stripped)
    subprocess.run(
        ["objcopy", *(f"--remove-section={name}" for name in DROPPED), stripped], check=True
    )
    # No limits: the kernel's debug info is larger than dwz takes by default.
    subprocess.run(
        ["dwz", "-L", "none", "-l", "none", "--odr", stripped, "-o", compact], check=True
    )
    return compact
