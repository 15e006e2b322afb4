# SPDX-License-Identifier: LGPL-2.1-or-later
"""``symbols build`` and ``symbols info``, the option --symbol-table, and builds that two processes
want at once.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from functools import partial

import pytest

from kcovdbg.elf.file import ElfFile
from kcovdbg.symbols.coverage_points import find_points
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.table_cache import TableBuild, find_table_key, open_table, table_path
from tests.lab.kcovdbg_run import run_kcovdbg
from tests.support.child_process import wait_for
from tests.support.compiled_image import compile_image
from tests.support.programs import split_image
from tests.support.screen import Screen


@pytest.fixture
def image(tmp_path):
    return compile_image(tmp_path)


@pytest.fixture
def run(tmp_path):
    # A table that another program left in either is found as well.
    return partial(run_kcovdbg, cache=tmp_path / "cache", env={"TMPDIR": str(tmp_path)})


def test_a_table_is_built_written_and_shown(image, tmp_path, run):
    output = tmp_path / "image.kcovsym"
    (row,) = json.loads(run("symbols", "build", image, "-o", output, "--json", status=0).stdout)
    with ElfFile(image) as elf:
        build_id = elf.build_id
    table = LocationTable(output, build_id)
    assert row["build_id"] == build_id
    assert row["points"] == len(table) > 5
    assert row["bytes"] == output.stat().st_size
    # In the cache as well, by its image, and as a file.
    for words in ((), (image,), (output,)):
        (shown,) = json.loads(run("symbols", "info", *words, "--json").stdout)
        assert shown["points"] == row["points"]


def test_debug_info_in_a_file_of_its_own(image, tmp_path, run):
    debug, stripped = split_image(image)
    run("symbols", "build", debug, status=2)
    run("symbols", "build", stripped, status=2)
    tables = []
    for files in ([image], [debug, stripped], [stripped, debug]):
        run("symbols", "build", *files, "-o", tmp_path / "table", status=0)
        tables.append((tmp_path / "table").read_bytes())
        (tmp_path / "table").unlink()
        shutil.rmtree(tmp_path / "cache")
    assert tables == tables[:1] * 3


def test_no_input_is_overwritten(image, run):
    before = image.read_bytes()
    run("symbols", "build", image, "-o", image, status=2)
    assert image.read_bytes() == before


def test_a_table_of_another_build_is_refused(image, tmp_path, run):
    run("symbols", "build", image, "-o", tmp_path / "table", status=0)
    wrong = run(
        "--symbol-table", tmp_path / "table", "--demo", "sym", "0xffffffff81000005", status=2
    )
    assert str(tmp_path / "table") in wrong.stderr
    assert "Traceback" not in wrong.stderr
    run("--symbol-table", image, "--demo", "sym", "0xffffffff81000005", status=2)
    run("symbols", "info", tmp_path / "none", status=2)


@contextlib.contextmanager
def unfinished_build(path):
    """A builder that holds the lock of a table until it is killed."""
    code = (
        "import sys, time; from pathlib import Path; from kcovdbg.symbols.table_builder import "
        "_only_builder\n"
        "with _only_builder(Path(sys.argv[1])): print('held', flush=True); time.sleep(100)"
    )
    with subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout.readline() == b"held\n"
            yield
        finally:
            holder.kill()


def test_two_at_once_build_one_table(image, tmp_path):
    """The one that comes second waits for the first; when that is killed, it goes on itself."""
    key = find_table_key(image)
    folder = tmp_path / "tables"
    builds = [TableBuild(image, key, folder) for _ in range(2)]
    tables = [wait_for(build.find) for build in builds]
    for build in builds:
        # The second one may have yet to find that the table is there.
        build.process.wait(30)
    assert tables[0].path == tables[1].path
    assert os.path.samestat(tables[0].path.stat(), table_path(key, folder).stat())
    table_path(key, folder).unlink()
    with unfinished_build(table_path(key, folder)):
        second = TableBuild(image, key, folder)
        with pytest.raises(subprocess.TimeoutExpired):
            second.process.wait(1)
        assert second.find() is None
    assert len(wait_for(second.find)) == len(tables[0])
    assert open_table(key, folder) is not None


def test_a_function_is_shown_before_the_table_is_built(image, tmp_path):
    """At a terminal, where the command waits only for moments."""
    with ElfFile(image) as elf:
        path = table_path(find_table_key(image), tmp_path / "cache/kcovdbg/symbols")
        function = elf.symbols.find("second")
        inside = [
            pc
            for pc in find_points(elf).pc
            if function.address < pc <= function.address + function.size
        ]
    path.parent.mkdir(parents=True)
    command = (sys.executable, "-m", "kcovdbg", "--image", image, "points", "second")
    with (
        unfinished_build(path),
        Screen(*command, columns=120, XDG_CACHE_HOME=str(tmp_path / "cache")) as screen,
    ):
        assert screen.end(60) == 0
        assert [pc for pc in inside if f"{pc:x}" not in screen.text] == []
        assert "src/second.c:" in screen.text


@pytest.mark.parametrize("line", ["buffer 26", "trace 26", "diff 41 34"])
def test_the_first_answer_is_that_of_a_built_table(run, line):
    """It waits for the table: without one, lines differ and no tail call is known."""
    first = run("--demo", "-q", "-e", f"{line} --json", status=int(line.startswith("diff")))
    assert json.loads(run("symbols", "info", "--json").stdout)
    assert run("--demo", "-q", "-e", f"{line} --json").stdout == first.stdout != "[]\n"


def test_another_kernels_list_beside_incomplete_debug_info(image, tmp_path, run):
    """The points of an image whose debug info has lines of few of them are found in its code."""
    folder = image.parent
    bare = "gcc -O2 -fno-pie -I. -fsanitize-coverage=trace-pc -c src/first.c".split()
    subprocess.run(bare, cwd=folder, check=True)
    linked = "gcc -fsanitize-coverage=trace-pc -no-pie -nostdlib -static -Wl,--build-id=sha1"
    objects = ["-o", str(image), "first.o", "second.o"]
    subprocess.run([*linked.split(), *objects], cwd=folder, check=True)
    assert "lines of only" in run("symbols", "build", image, status=2).stderr
    with ElfFile(image) as elf:
        points = find_points(elf).pc
    own, other = tmp_path / "own", tmp_path / "other"
    own.write_text("".join(f"{pc:#x}\n" for pc in points))
    # Too close for its own points, in the same functions.
    other.write_text("".join(f"{pc + 3:#x}\n{pc + 4:#x}\n" for pc in points))
    exported = run("-s", image, "export", "rawcover", f"file:{own}", status=0)
    assert len(exported.stdout.split()) == len(points)
    done = run("-s", image, "export", "rawcover", f"file:{other}", status=2)
    assert done.stdout == ""
    assert "-s VMLINUX" in done.stderr
