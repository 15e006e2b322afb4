# SPDX-License-Identifier: LGPL-2.1-or-later
"""Debug info that ``dwz -m`` shared between images: names, tables and points are those of the
original.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from kcovdbg.symbols.table_builder import build_table_file
from tests.integration.conftest import Demo
from tests.lab.kcovdbg_run import run_kcovdbg

FUNCTION = "ksys_read"
COMMON = "common.dwz"


@pytest.fixture(scope="module")
def shared(demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the demo's image after dwz, beside the file that it shares debug info with."""
    if shutil.which("dwz") is None:
        pytest.skip("no dwz")
    folder = tmp_path_factory.mktemp("dwz")
    for name in ("a", "b"):
        shutil.copy(demo.vmlinux, folder / name)
    subprocess.run(["dwz", "-m", COMMON, "a", "b"], cwd=folder, check=True)
    return folder / "a"


def test_the_table_is_the_same(demo: Demo, shared: Path, tmp_path: Path) -> None:
    built = [
        build_table_file(image, folder=tmp_path / image.name).read_bytes()
        for image in (demo.vmlinux, shared)
    ]
    assert built[0] == built[1]


def test_answers_are_the_same(demo: Demo, shared: Path, tmp_path: Path) -> None:
    for line in (f"sym {FUNCTION}+0x9", f"points {FUNCTION}"):
        # The images have one build ID, and so one table.
        answers = [
            json.loads(
                run_kcovdbg(
                    "-s", image, *line.split(), "--json", cache=tmp_path / image.name, status=0
                ).stdout
            )
            for image in (demo.vmlinux, shared)
        ]
        assert answers[0] == answers[1]


def test_the_common_file_is_missing(shared: Path, tmp_path: Path) -> None:
    alone = Path(shutil.copy(shared, tmp_path / "vmlinux"))
    done = run_kcovdbg("-s", alone, "sym", FUNCTION, status=2)
    assert COMMON in done.stderr
    # Another file of that name is none.
    shutil.copy(shared, tmp_path / COMMON)
    done = run_kcovdbg("-s", alone, "sym", FUNCTION, status=2)
    assert COMMON in done.stderr
