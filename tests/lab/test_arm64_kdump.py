# SPDX-License-Identifier: LGPL-2.1-or-later
"""Dumps of an arm64 kernel by its second kernel, against what the guest printed before the crash.

It takes the kernel (``python -m tests.lab build --recipe 6.12-arm64``), and in
``KCOVDBG_ARM64_ROOT`` a directory with that architecture's makedumpfile, as docs/machines.md says
how to make it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.lab.conftest import built, find_built
from tests.lab.kcovdbg_run import ask
from tests.lab.kdump import FORMATS, KdumpCrash, crash_and_dump
from tests.lab.test_kdump import assert_tells_the_crash, find_printed
from tests.lab.test_sites import assert_sites, find_calls
from tests.support.programs import addr2line

KERNEL = "6.12-arm64"
# Of what the kernel prints. Behind a call that does not return, as in sysrq_handle_crash(), it
# names the next function.
STACK = ["panic", "__handle_sysrq", "write_sysrq_trigger"]


@pytest.fixture(scope="module")
def crash(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> KdumpCrash:
    # A plain copy takes emulated hardware half a minute, and minutes on a busy machine: each page
    # is mapped and unmapped.
    formats = (
        FORMATS
        if request.config.getoption("exhaustive")
        else [name for name in FORMATS if name != "copy"]
    )
    return dump_crash(tmp_path_factory.mktemp("kdump"), formats)


def dump_crash(directory: Path, formats: Sequence[str], how: str = "") -> KdumpCrash:
    return crash_and_dump(*built(KERNEL), directory, how, formats, timeout=3600, root=guest_root())


def guest_root() -> Path:
    root = os.environ.get("KCOVDBG_ARM64_ROOT")
    if root is None or not Path(root, "usr/bin/makedumpfile").exists():
        pytest.skip("KCOVDBG_ARM64_ROOT has no makedumpfile: see docs/machines.md")
    return Path(root)


def test_what_the_guest_printed(crash: KdumpCrash) -> None:
    for name in crash.dumps:
        assert_tells_the_crash(crash, name)
        assert [function for function in find_printed(crash, name) if function in STACK] == STACK


def test_the_system_call(crash: KdumpCrash) -> None:
    """The workload crashes the kernel by a write of one byte."""
    ((row,),) = ask(crash.target(), f"tasks {crash.states()['kc-crash']['tid']}")
    assert row["syscall"]["name"] == "write"
    assert int(row["syscall"]["args"][2], 16) == 1


def test_trace(crash: KdumpCrash) -> None:
    """Each function has as many records as addr2line finds PCs in it."""
    kernel = find_built(KERNEL)
    tid = crash.states()["kc-crash"]["tid"]
    records, steps = ask(crash.target(), f"buffer {tid}", f"trace {tid} --include all")
    pcs = Counter(int(row["pc"], 16) for row in records)
    places = addr2line(kernel.vmlinux, (pc - 1 for pc in pcs), kernel.recipe.platform.tools)
    expected: Counter[str] = Counter()
    for pc, frames in zip(pcs, places, strict=True):
        expected[frames[-1][0]] += pcs[pc]
    found: Counter[str] = Counter()
    for step in steps:
        found[step["function"]] += step["records"]
    assert len(found) > 50
    assert found == expected


def test_sites(crash: KdumpCrash) -> None:
    assert_sites(find_calls(find_built(KERNEL)), crash.target())


@pytest.mark.parametrize("how", ["oops", "warn"])
def test_other_crashes(request: pytest.FixtureRequest, tmp_path: Path, how: str) -> None:
    """A NULL dereference and a warning, in a module."""
    if not request.config.getoption("exhaustive"):
        pytest.skip("minutes each: --exhaustive runs it")
    assert_tells_the_crash(dump_crash(tmp_path, ["flattened"], how), "flattened")
