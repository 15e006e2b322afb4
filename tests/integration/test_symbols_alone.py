# SPDX-License-Identifier: LGPL-2.1-or-later
"""An image without debug info: functions and coverage points by its symbols, compared with nm and
with the whole image.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.integration.conftest import Demo
from tests.lab.kcovdbg_run import Rows, run_kcovdbg
from tests.support.programs import list_functions

FUNCTION = "ksys_read"
NOTE = "no debug info"


class Images:
    """The demo's image, and what objcopy left of it."""

    def __init__(self, whole: Path, plain: Path, cache: Path) -> None:
        self.whole = whole
        self.plain = plain
        self._cache = cache

    def ask(self, image: Path, *words: str | Path) -> Rows:
        done = run_kcovdbg("-s", image, *words, "--json", cache=self._cache / image.name, status=0)
        rows: Rows = json.loads(done.stdout)
        return rows

    def run(self, *words: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
        return run_kcovdbg(
            "-s", self.plain, *words, cache=self._cache / self.plain.name, status=status
        )


@pytest.fixture(scope="module")
def images(demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> Images:
    folder = tmp_path_factory.mktemp("symbols")
    plain = folder / "plain"
    subprocess.run(["objcopy", "--strip-debug", demo.vmlinux, plain], check=True)
    return Images(demo.vmlinux, plain, folder)


def test_points_are_those_of_the_whole_image(images: Images) -> None:
    whole, plain = (images.ask(image, "points", FUNCTION) for image in (images.whole, images.plain))
    (code,) = list_functions(images.whole)[FUNCTION]
    inside = {
        row["pc"]: row["kind"] for row in whole if code.start < int(row["pc"], 16) <= code.stop
    }
    assert {row["pc"]: row["kind"] for row in plain} == inside
    assert all(row["symbol"] == FUNCTION and row["frames"][-1]["line"] is None for row in plain)
    assert NOTE in images.run("points", FUNCTION).stdout


def test_a_trace_has_the_functions_of_nm(images: Images, tmp_path: Path) -> None:
    rows = images.ask(images.whole, "points", FUNCTION) + images.ask(
        images.whole, "points", "do_sys_poll"
    )
    trace = tmp_path / "pcs.txt"
    trace.write_text("".join(f"{row['pc']}\n" for row in rows))
    whole, plain = (
        images.ask(image, "buffer", f"file:{trace}", "--raw")
        for image in (images.whole, images.plain)
    )
    assert [row["pc"] for row in plain] == [row["pc"] for row in whole]
    # The function that the code was compiled into.
    assert [row["symbol"] for row in plain] == [row["symbol"] for row in whole]
    top = images.run("top", f"file:{trace}")
    assert FUNCTION in top.stdout
    assert NOTE in top.stdout
    raw = images.run("export", "rawcover", f"file:{trace}")
    assert len(raw.stdout.split()) == len(rows)
    assert NOTE in raw.stderr


def test_words_of_an_oops(images: Images) -> None:
    (code,) = list_functions(images.whole)[FUNCTION]
    (row,) = images.ask(images.plain, "sym", f"{FUNCTION}+0x9")
    assert (row["pc"], row["symbol"]) == (hex(code.start + 9), FUNCTION)


def test_files_are_unknown(images: Images) -> None:
    assert NOTE in images.run("points", "fs/read_write.c", status=2).stderr


def test_a_table_that_was_built_has_more(images: Images, tmp_path: Path) -> None:
    # As for a build of which no image is at hand.
    run_kcovdbg("symbols", "build", images.whole, cache=tmp_path, status=0)
    done = run_kcovdbg("-s", images.plain, "points", FUNCTION, "--json", cache=tmp_path, status=0)
    assert all(row["frames"][-1]["line"] for row in json.loads(done.stdout))
    assert (
        NOTE
        not in run_kcovdbg("-s", images.plain, "points", FUNCTION, cache=tmp_path, status=0).stdout
    )


def test_names_of_link_time_optimization(images: Images, tmp_path: Path) -> None:
    """clang appends .llvm. and a number to static functions that it makes global; kernels until
    v6.6 print them without it.
    """
    renamed = tmp_path / "renamed"
    symbol = f"{FUNCTION}.llvm.1234567890"
    subprocess.run(
        ["objcopy", "--redefine-sym", f"{FUNCTION}={symbol}", images.plain, renamed], check=True
    )
    expected = [row["pc"] for row in images.ask(images.plain, "points", FUNCTION)]
    for name in (FUNCTION, symbol):
        assert [row["pc"] for row in images.ask(renamed, "points", name)] == expected
        assert len(images.ask(renamed, "sym", f"{name}+0x9")) == 1


@pytest.mark.parametrize("named", [(), ("-c",)])
def test_a_dump_needs_debug_info(images: Images, demo: Demo, named: tuple[str, ...]) -> None:
    done = run_kcovdbg(images.plain, *named, demo.core, "-e", "tasks", status=2)
    assert NOTE in done.stderr
    assert done.stdout == ""


def test_no_symbols_either(images: Images, tmp_path: Path) -> None:
    stripped = tmp_path / "stripped"
    subprocess.run(["objcopy", "--strip-all", images.whole, stripped], check=True)
    done = run_kcovdbg("-s", stripped, "points", FUNCTION, status=2)
    assert NOTE in done.stderr
