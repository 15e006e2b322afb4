# SPDX-License-Identifier: LGPL-2.1-or-later
"""arm64 kernels with tagged pointers, with larger pages, and with 52-bit addresses on CPUs that
have them and that have not.

Built by hand: ``python -m tests.lab build --recipe 6.12-arm64-tags``, and ``6.12-arm64-52bit``.
"""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kcovdbg.target.target_options import TargetOptions, open_target
from tests.integration.gdb.test_same_answers import check_slice, check_stub
from tests.lab.comparison import assert_agrees
from tests.lab.conftest import built
from tests.lab.contents import find_wrong_contents
from tests.lab.dump import truth_about, write_dump
from tests.lab.guest import Guest, Machine
from tests.lab.kcovdbg_run import ask, ask_state
from tests.lab.test_arm64 import have_gdb

TOP_BYTE = 0xFF << 56


class Boot(NamedTuple):
    """A kernel, and the machine that it boots on."""

    recipe: str
    page_size: int
    cpu: str = ""
    options: tuple[str, ...] = ()
    tag: int = 0
    """The bits of pointers that are a tag."""


BOOTS = {
    "tags": Boot("6.12-arm64-tags", 16384, tag=TOP_BYTE),
    "52-bit": Boot("6.12-arm64-52bit", 65536),
    # It has addresses of 48 bits.
    "48-bit CPU": Boot("6.12-arm64-52bit", 65536, cpu="cortex-a72"),
    "memory tagging": Boot(
        "6.12-arm64-52bit", 65536, options=("-machine", "mte=on"), tag=0x0F << 56
    ),
}


@pytest.fixture(scope="module", params=BOOTS)
def boot(request: pytest.FixtureRequest) -> Boot:
    return BOOTS[request.param]


@pytest.fixture(scope="module")
def guest(boot: Boot) -> Iterator[Guest]:
    kernel, userland = built(boot.recipe)
    if boot.options:
        said = subprocess.run(
            [kernel.recipe.platform.qemu, "--version"], capture_output=True, text=True, check=True
        ).stdout
        if "version 7." in said:
            pytest.skip(
                "QEMU 7.2 mixes up memory tags: the kernel dies while it boots; 10.0 does not"
            )
    with Guest(kernel, userland, Machine(cpus=2, cpu=boot.cpu, options=boot.options)) as running:
        yield running


@pytest.fixture(scope="module")
def dump(guest: Guest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dumps") / "elf"
    with guest.paused():
        write_dump(guest, path, "elf")
        write_dump(guest, path.with_name("kdump"), "kdump")
    return path


@pytest.mark.parametrize("way", ["--qemu", "--gdb-remote", "elf", "kdump"])
def test_state(guest: Guest, dump: Path, way: str) -> None:
    target = guest.target(way)
    if not way.startswith("--"):
        target[:2] = ["-c", str(dump.with_name(way))]
    truth, answers = truth_about(guest), ask_state(target)
    assert_agrees(truth, answers)
    assert find_wrong_contents(target, truth, answers) == []
    assert ask(target, "check") == [[]]
    assert answers["info"][0]["kaslr_offset"] != "0x0"
    assert guest.qmp.running()


def test_pages_and_tags(boot: Boot, guest: Guest, dump: Path) -> None:
    """The kernel is what it was built as: what is stored has tags, and answers have none."""
    target = open_target(TargetOptions(core=str(dump), symbols=[str(guest.kernel.vmlinux)]))
    assert target.pointer_tag == boot.tag
    vmcoreinfo = dump.read_bytes()[: 1 << 20]
    assert f"PAGESIZE={boot.page_size}\n".encode() in vmcoreinfo
    (rows,) = ask(["-c", dump, "-s", guest.kernel.vmlinux], "objects")
    objects = [row for row in rows if row["t"] not in (None, "0x0")]
    offset = target.member("struct kcov", "t").offset
    stored = [
        struct.unpack("<Q", target.read(int(row["kcov"], 16) + offset, 8))[0] for row in objects
    ]
    assert [word | boot.tag for word in stored] == [int(row["t"], 16) for row in objects]
    assert any(word & boot.tag != boot.tag for word in stored) == bool(boot.tag)


def test_in_gdb(guest: Guest, dump: Path, tmp_path: Path) -> None:
    """Through the stub, and on a slice: the same answers."""
    check_stub(guest, tmp_path, "--gdb-remote", have_gdb())
    check_slice(guest.kernel, dump, tmp_path, 2, have_gdb())
