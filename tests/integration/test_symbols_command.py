# SPDX-License-Identifier: LGPL-2.1-or-later
"""``symbols build`` and ``symbols info``, the option --symbol-table, and builds that two processes want at once."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from kcovdbg.console import coverage_points
from kcovdbg.console.terminal import Terminal
from kcovdbg.console.writer import Format
from kcovdbg.elf.file import ElfFile
from kcovdbg.model.location import Frame
from kcovdbg.symbols.coverage_points import find_points
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.symbolizer import Symbolizer
from kcovdbg.symbols.table_cache import TableBuild, open_table, table_path
from tests.support.compiled_image import compile_image


@pytest.fixture
def image(tmp_path):
    return compile_image(tmp_path)


@pytest.fixture
def run(tmp_path):
    # A table that another program left in either is found as well.
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}

    def run(*words):
        return subprocess.run(
            [sys.executable, "-m", "kcovdbg", *map(str, words)], env=environment, capture_output=True, text=True, check=False
        )

    return run


def test_a_table_is_built_written_and_shown(image, tmp_path, run):
    output = tmp_path / "image.kcovsym"
    built = run("symbols", "build", image, "-o", output, "--json")
    assert built.returncode == 0, built.stderr
    (row,) = json.loads(built.stdout)
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
    debug, stripped = tmp_path / "image.debug", tmp_path / "stripped"
    subprocess.run(["objcopy", "--only-keep-debug", image, debug], check=True)
    subprocess.run(["strip", "-o", stripped, image], check=True)
    assert run("symbols", "build", debug).returncode == 2
    assert run("symbols", "build", stripped).returncode == 2
    whole = run("symbols", "build", image, "-o", tmp_path / "whole")
    assert whole.returncode == 0
    for number, files in enumerate(((debug, stripped), (stripped, debug))):
        for path in (tmp_path / "cache/kcovdbg/symbols").iterdir():
            path.unlink()
        output = tmp_path / str(number)
        assert run("symbols", "build", *files, "-o", output).returncode == 0
        assert output.read_bytes() == (tmp_path / "whole").read_bytes()


def test_no_input_is_overwritten(image, run):
    before = image.read_bytes()
    assert run("symbols", "build", image, "-o", image).returncode == 2
    assert image.read_bytes() == before


def test_a_table_of_another_build_is_refused(image, tmp_path, run):
    assert run("symbols", "build", image, "-o", tmp_path / "table").returncode == 0
    wrong = run("--symbol-table", tmp_path / "table", "--demo", "sym", "0xffffffff81000005")
    assert wrong.returncode == 2
    assert str(tmp_path / "table") in wrong.stderr
    assert "Traceback" not in wrong.stderr
    assert run("--symbol-table", image, "--demo", "sym", "0xffffffff81000005").returncode == 2
    assert run("symbols", "info", tmp_path / "none").returncode == 2


def wait_for(build):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        table = build.find()
        if table is not None:
            return table
        time.sleep(0.05)
    raise TimeoutError


def test_two_at_once_build_one_table(image, tmp_path):
    """The one that comes second waits for the first; when that is killed, it goes on itself."""
    with ElfFile(image) as elf:
        build_id = elf.build_id
    folder = tmp_path / "tables"
    builds = [TableBuild(image, build_id, folder) for _ in range(2)]
    tables = [wait_for(build) for build in builds]
    for build in builds:
        # The second one may have yet to find that the table is there.
        build.process.wait(30)
    assert tables[0].path == tables[1].path
    assert os.path.samestat(tables[0].path.stat(), table_path(build_id, folder).stat())
    table_path(build_id, folder).unlink()
    # A builder that holds the lock and never ends.
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; from pathlib import Path; from kcovdbg.symbols.table_builder import _only_builder\n"
            "with _only_builder(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)",
            table_path(build_id, folder),
        ],
        stdout=subprocess.PIPE,
    )
    assert holder.stdout.readline() == b"held\n"
    second = TableBuild(image, build_id, folder)
    second.process.wait(30)
    assert second.find() is None
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    assert len(wait_for(second)) == len(tables[0])
    assert open_table(build_id, folder) is not None


def test_a_function_is_shown_before_the_table_is_built(image, monkeypatch):
    """At a terminal, the command waits only for moments; a script gets the whole answer."""
    monkeypatch.setattr(coverage_points, "_MOMENTS", 0)
    frames = (Frame("second", "src/second.c", 1, 1),)
    symbolizer = Symbolizer(find_table=lambda: None, fallback=lambda _: frames)
    kernel = SimpleNamespace(symbolizer=symbolizer, image=str(image), code=None)
    terminal = Terminal(io.StringIO(), io.StringIO(), error_width=80)
    context = SimpleNamespace(kernel=kernel, terminal=terminal, format=Format.TEXT)
    with ElfFile(image) as elf:
        function = elf.symbols.find("second")
        inside = [pc for pc in find_points(elf).pc if function.address < pc <= function.address + function.size]
    found = coverage_points.find_own_points(context, "second")
    assert [point.pc for point in found] == inside
    assert {point.frames for point in found} == {frames}
    assert not coverage_points.find_own_points(context, "twice")
    context.format = Format.JSON
    assert not coverage_points.find_own_points(context, "second")
    context.format = Format.TEXT
    context.terminal = Terminal(io.StringIO(), io.StringIO())
    assert not coverage_points.find_own_points(context, "second")


@pytest.mark.parametrize("line", ["buffer 26", "trace 26", "diff 41 34"])
def test_the_first_answer_is_that_of_a_built_table(run, line):
    """It waits for the table: without one, lines differ and no tail call is known."""
    first = run("--demo", "-q", "-e", f"{line} --json")
    assert first.returncode == run("symbols", "info").returncode + (line.startswith("diff")), first.stderr
    assert json.loads(run("symbols", "info", "--json").stdout)
    assert run("--demo", "-q", "-e", f"{line} --json").stdout == first.stdout != "[]\n"
