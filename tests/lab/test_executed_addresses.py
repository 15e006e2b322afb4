# SPDX-License-Identifier: LGPL-2.1-or-later
"""The lines that a boot executed by QEMU's log of translated code, compared with each instruction
that a plugin saw executed.

The kernel's own callbacks of KCOV count for nothing here: the log has all code of the boot, before
KCOV and in interrupts.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from array import array
from pathlib import Path
from posixpath import normpath
from typing import NamedTuple

import pytest

from tests.lab.execution_truth import log_boot
from tests.lab.kcovdbg_run import run_kcovdbg
from tests.lab.kernel import Kernel

_OFFSET = re.compile(r"Kernel Offset: (0x[0-9a-f]+|disabled)")


class Boot(NamedTuple):
    log: Path
    offset: int
    """Of KASLR, as the kernel printed it when it panicked."""
    executed: frozenset[tuple[str, int]]
    """File and line of all frames of each instruction that was executed, by llvm-symbolizer."""


def read_lines(kernel: Kernel, addresses: list[int]) -> frozenset[tuple[str, int]]:
    text = "".join(f"{address:#x}\n" for address in addresses)
    command = ["llvm-symbolizer", "-e", str(kernel.vmlinux), "--output-style=JSON"]
    answer = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    frames = [json.loads(line)["Symbol"] for line in answer.splitlines()]
    return frozenset(
        (shorten(one["FileName"]), one["Line"]) for found in frames for one in found if one["Line"]
    )


def shorten(file: str) -> str:
    """Return a path below the kernel's source."""
    return normpath(re.sub(r".*/linux-source-[^/]*/", "", file))


@pytest.fixture(scope="module", params=[False, True], ids=["nokaslr", "kaslr"])
def boot(
    request: pytest.FixtureRequest, kernel: Kernel, tmp_path_factory: pytest.TempPathFactory
) -> Boot:
    if kernel.recipe.platform.name != "x86_64":
        pytest.skip("the log of instructions is of x86-64")
    if shutil.which("llvm-symbolizer") is None:
        pytest.skip("needs llvm-symbolizer")
    if not request.param and not request.config.getoption("exhaustive"):
        pytest.skip("takes two minutes: --exhaustive runs it")
    folder = tmp_path_factory.mktemp("boot")
    log = log_boot(kernel, folder, is_random=request.param)
    found = _OFFSET.search((folder / "console").read_text(errors="replace"))
    assert found is not None
    offset = 0 if found[1] == "disabled" else int(found[1], 16)
    every = array("Q", (folder / "every").read_bytes())
    return Boot(log, offset, read_lines(kernel, sorted({address - offset for address in every})))


def read_info(path: Path) -> dict[tuple[str, int], int]:
    lines: dict[tuple[str, int], int] = {}
    file = ""
    for line in path.read_text().splitlines():
        if line.startswith("SF:"):
            file = shorten(line.removeprefix("SF:"))
        elif line.startswith("DA:"):
            number, hits = map(int, line.removeprefix("DA:").split(",")[:2])
            lines[file, number] = hits
    return lines


def test_lines_of_a_boot(kernel: Kernel, boot: Boot, tmp_path: Path) -> None:
    info = tmp_path / "info"
    run_kcovdbg("-s", kernel.vmlinux, "export", "lcov", f"file:{boot.log}", "-o", info, status=0)
    lines = read_info(info)
    executed = {line for line, hits in lines.items() if hits}
    assert len(executed) > 30_000
    assert executed <= boot.executed
    assert not boot.executed & (lines.keys() - executed)
    # Statements that the compiler moved, and code that the kernel replaces.
    assert len(boot.executed - executed) < 0.02 * len(boot.executed)


# A suite of KUnit's, and what it tests.
SUITE = "list_sort"
SUITE_FILES = ("lib/list_sort.c", "lib/test_list_sort.c")


def test_lines_of_a_suite(kernel: Kernel, boot: Boot, tmp_path: Path) -> None:
    """KCOVDBG_LAB_RECIPE=kunit runs KUnit's tests at the end of the boot, without KCOV and GCOV."""
    if "CONFIG_KUNIT=y" not in kernel.recipe.configuration:
        pytest.skip("the kernel has no KUnit")
    console = (boot.log.parent / "console").read_text(errors="replace")
    assert re.search(rf"^.*\bok \d+ {SUITE}\b", console, re.MULTILINE)
    info = tmp_path / "info"
    files = [word for file in SUITE_FILES for word in ("--file", file)]
    run_kcovdbg(
        "-s", kernel.vmlinux, "export", "lcov", f"file:{boot.log}", *files, "-o", info, status=0
    )
    lines = read_info(info)
    assert {file for file, _ in lines} == {*SUITE_FILES}
    wrong = {line for line, hits in lines.items() if bool(hits) != (line in boot.executed)}
    assert wrong == set()
    ran = {line for line in boot.executed if line[0] in SUITE_FILES}
    assert len(ran) > 50
    unknown = ran - lines.keys()
    print(f"{len(lines)} lines, {sum(map(bool, lines.values()))} executed, {len(unknown)} unknown")
    assert len(unknown) <= 0.02 * len(ran)


def test_offset_of_kaslr(kernel: Kernel, boot: Boot) -> None:
    rows = json.loads(
        run_kcovdbg(
            "-s", kernel.vmlinux, "top", f"file:{boot.log}", "--by", "pc", "--json", status=0
        ).stdout
    )
    moved = {int(row["file_pc"], 16) - int(row["pc"], 16) for row in rows if row["frames"]}
    assert moved == {boot.offset}
