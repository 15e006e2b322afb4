# SPDX-License-Identifier: LGPL-2.1-or-later
"""Debug info that ``dwz -m`` shared between images: names, tables and points are those of the
original.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.shared_debug_info import find_shared_file, find_shared_link
from kcovdbg.symbols.table_builder import build_table_file
from kcovdbg.symbols.table_cache import TableBuild, find_table_key, open_table, table_path
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


def test_a_table_is_of_the_common_file_as_well(shared: Path, tmp_path: Path) -> None:
    """Whoever makes a common file that claims the build ID of another gets a table of its own."""
    folder = tmp_path / "tables"
    genuine, changed = tmp_path / "genuine", tmp_path / "changed"
    for place in (genuine, changed):
        place.mkdir()
        for name in (shared.name, COMMON):
            shutil.copy(shared.with_name(name), place / name)
    with ElfFile(changed / COMMON) as elf:
        section = elf.section(".debug_str")
        names = elf.read_section(section)
    with (changed / COMMON).open("r+b") as file:
        file.seek(section.offset + names.index(FUNCTION.encode()))
        file.write(b"x")
    paths = [build_table_file(place / shared.name, folder=folder) for place in (changed, genuine)]
    assert paths == [
        table_path(find_table_key(place / shared.name), folder) for place in (changed, genuine)
    ]
    assert paths[0] != paths[1]
    # The process that builds it is told which file that is.
    link = tmp_path / "link"
    link.symlink_to(genuine / shared.name)
    shutil.move(genuine / COMMON, tmp_path / COMMON)
    key = find_table_key(link)
    paths[1].unlink()
    assert TableBuild(link, key, folder).process.wait() == 0
    assert open_table(key, folder) is not None


def test_a_common_file_of_another_user_is_not_used(shared: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    for name in (shared.name, COMMON):
        shutil.copy(shared.with_name(name), tmp_path / name)
    with ElfFile(tmp_path / shared.name) as elf:
        link = find_shared_link(elf)
        assert find_shared_file(elf, link) == tmp_path / COMMON
        os.chown(tmp_path / COMMON, 65534, 65534)
        assert find_shared_file(elf, link) is None


def test_the_name_of_the_common_file_is_hostile(shared: Path) -> None:
    with ElfFile(shared) as elf:
        link = find_shared_link(elf)
        for name in ("x" * 5000, "a\nb", "/", "", "..", "\udcff"):
            assert find_shared_file(elf, link._replace(name=name)) is None
