# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the monitor records of a guest is what the guest says that it did."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

from kcovdbg.monitor.samples import read_samples
from kcovdbg.monitor.summary import exclusion, summarize
from tests.lab.collect_guest import SHARED, boot_shared
from tests.lab.initramfs import Userland
from tests.lab.kcovdbg_run import ROOT
from tests.lab.kernel import Kernel

FULL, SECTIONS = 4, 3
# Seconds.
LAST = 5
# 128 plus SIGTERM.
TERMINATED = 143
MODULE = "kcovlab_sections.ko"
HANDLE = 0x5EC7


def test_counts_are_those_of_the_guest(kernel: Kernel, userland: Userland, tmp_path: Path) -> None:
    (module,) = [path for path in userland.modules if path.name == MODULE]
    shutil.copy(module, tmp_path)
    path = tmp_path / "run.jsonl"
    with boot_shared(kernel, userland, tmp_path, memory_mib=256) as lab:
        # As often as the machine can: what is asked for is whether anything is missed.
        words = ("monitor", "--record", path, "--interval", "0.1", "--cpu", "100")
        with subprocess.Popen(
            [sys.executable, "-m", "kcovdbg", *lab.target, *words], cwd=ROOT
        ) as watching:
            # The recording has another name until it is complete.
            while not list(tmp_path.glob("*kcovdbg-*")):
                assert watching.poll() is None
                time.sleep(0.1)
            told = lab.guest.run(
                f"insmod {SHARED}/{MODULE} && sleep 3 && {SHARED}/rounds {FULL} {SECTIONS}\n", 300
            ).stdout
            # What was made is gone, and the last whole look of a second ago need not have seen
            # that.
            time.sleep(LAST)
            watching.terminate()
            assert watching.wait(120) == TERMINATED
    truth = json.loads(told)
    assert truth["status"] == 0
    summary = summarize(read_samples(str(path)))
    (filled,) = [
        buffer
        for buffer in summary.buffers
        if list(buffer.tasks) == [f"rounds-fill ({truth['pid']})"]
    ]
    assert filled.size == truth["words"]
    assert filled.overflows == truth["full"]
    assert 0.5 * 1.2 * FULL < filled.full_seconds < 1.5 * 1.2 * FULL
    (sections,) = [found for found in summary.activity.sections if found.handle == HANDLE]
    assert sections.begun == truth["sections"]
    areas = [
        buffer
        for buffer in summary.buffers
        if buffer.kind == "area" and "rounds-run" in next(iter(buffer.tasks))
    ]
    assert sum(len(area.rounds) for area in areas) == truth["sections"]
    # Both objects came and went.
    assert summary.activity.came >= 2
    assert summary.activity.went >= 2
    # What excludes a place from KCOV is in a Makefile that there is.
    excluded = [
        place.file
        for place in (*summary.shares["file"], *summary.shares["directory"])
        if exclusion(place.file)[0] is not None
    ]
    assert len(excluded) >= 4
    for file in excluded:
        assert file is not None
        if not file.startswith("modules/"):
            assert (kernel.tree / file).exists(), file
