# SPDX-License-Identifier: LGPL-2.1-or-later
"""The words of an oops of the demo's kernel; nm and addr2line say what is right."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kcovdbg.target.dump_file import unpack
from kcovdbg.target.opener import find_demo
from tests.lab.kcovdbg_run import run_kcovdbg

pytest.importorskip("drgn")
pytestmark = pytest.mark.skipif(shutil.which("addr2line") is None, reason="needs binutils")

FUNCTION = "__do_sys_getppid"
MODULE = "kcovlab_keep"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("oops")
    for name in ("vmlinux", f"{MODULE}.ko"):
        shutil.copy(unpack(find_demo() / f"{name}.zst").path, folder / name)
    return folder


@cache
def read_symbols(path: Path) -> dict[str, list[tuple[int, int]]]:
    """Return the start and size of each function, by nm."""
    found: dict[str, list[tuple[int, int]]] = {}
    for line in subprocess.run(["nm", "-S", path], capture_output=True, text=True, check=True).stdout.splitlines():
        match = re.fullmatch(r"([0-9a-f]+) ([0-9a-f]+) [tT] (\S+)", line)
        if match:
            found.setdefault(match[3], []).append((int(match[1], 16), int(match[2], 16)))
    return found


@cache
def locate(path: Path, address: int) -> str:
    """Return file and line of the innermost frame, by addr2line, which misses others in the demo's compressed debug info."""
    done = subprocess.run(["addr2line", "-e", path, hex(address)], capture_output=True, text=True, check=True)
    return re.sub(r" \(disc.*", "", done.stdout.splitlines()[0]).rsplit("/", 1)[-1]


def place(row: dict[str, Any]) -> str:
    assert row["frames"][-1]["function"] == FUNCTION
    frame = row["frames"][0]
    return f"{frame['file'].rsplit('/', 1)[-1]}:{frame['line']}"


def ask(files: Path, *words: str, target: str = "-s") -> list[dict[str, Any]]:
    named = ["--demo"] if target == "--demo" else ["-s", str(files / "vmlinux"), "-s", str(files / f"{MODULE}.ko")]
    done = run_kcovdbg(*named, "sym", *words, "--json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("target", ["-s", "--demo"])
def test_words(files: Path, target: str) -> None:
    ((start, size),) = read_symbols(files / "vmlinux")[FUNCTION]
    call, exact = locate(files / "vmlinux", start + 4), locate(files / "vmlinux", start + 5)
    same = [f"{FUNCTION}+0x5/{size:#x}", f"{FUNCTION}+0x5,", f"{start + 5:x}", f"{start + 5}", f"{start + 5 - (1 << 64)}"]
    rows = ask(files, *same, f"[<{start + 5:x}>]", target=target)
    assert {row["pc"] for row in rows} == {hex(start + 5)}
    assert all(place(row) == call and row["errors"] == [] for row in rows)
    for words in (("RIP:", f"0010:{FUNCTION}+0x5/{size:#x}"), (f"{FUNCTION}+0x5", "--exact")):
        (row,) = ask(files, *words, target=target)
        assert (row["pc"], place(row)) == (hex(start + 5), exact)
    (row,) = ask(files, FUNCTION, target=target)
    assert (row["pc"], place(row)) == (hex(start), locate(files / "vmlinux", start))


def test_another_build(files: Path) -> None:
    ((_, size),) = read_symbols(files / "vmlinux")[FUNCTION]
    (row,) = ask(files, f"{FUNCTION}+0x5/{size + 0x20:#x}")
    assert len(row["errors"]) == 1
    assert hex(size) in row["errors"][0]
    # The kernel's sizes have the padding.
    (row,) = ask(files, f"{FUNCTION}+0x5/{-(-size // 16) * 16:#x}")
    assert row["errors"] == []


def test_names_that_several_have(files: Path) -> None:
    symbols = read_symbols(files / "vmlinux")
    name, starts = next(
        (name, starts)
        for name, starts in symbols.items()
        if len(starts) == 2 and starts[0][0] != starts[1][0] and abs(starts[0][1] - starts[1][1]) > 16 and "." not in name
    )
    rows = ask(files, f"{name}+0x1")
    assert {row["pc"] for row in rows} == {hex(start + 1) for start, _ in starts}
    assert all(row["errors"] for row in rows)
    for start, size in starts:
        (row,) = ask(files, f"{name}+0x1/{size:#x}")
        assert (row["pc"], row["errors"]) == (hex(start + 1), [])


def test_names_with_suffixes_and_labels(files: Path) -> None:
    symbols = read_symbols(files / "vmlinux")
    clone = next(name for name in symbols if name.endswith(".isra.0") and len(symbols[name]) == 1)
    (row,) = ask(files, f"{clone}+0x1/{symbols[clone][0][1]:#x}")
    assert (row["pc"], row["errors"]) == (hex(symbols[clone][0][0] + 1), [])
    (row,) = ask(files, "entry_SYSCALL_64_after_hwframe+0x4b/0x53")
    assert row["frames"][0]["file"].endswith("entry_64.S")


def test_modules(files: Path) -> None:
    symbols = read_symbols(files / f"{MODULE}.ko")
    name = next(name for name in symbols if name.startswith(MODULE) and not name.endswith("init"))
    size = symbols[name][0][1]
    (row,) = ask(files, name, f"[{MODULE}]")
    assert row["symbol"] == name
    assert row["errors"] == []
    done = run_kcovdbg("-s", files / "vmlinux", "sym", f"{name}+0x1/{size:#x}", f"[{MODULE}]")
    assert done.returncode == 2
    assert MODULE in done.stderr


def test_what_is_unknown(files: Path) -> None:
    words = ["no_such_function", "zz!", "no_such+0x1/0x2"]
    done = run_kcovdbg("-s", files / "vmlinux", *(part for word in words for part in ("-e", f"sym {word}")))
    assert (done.returncode, done.stdout) == (2, "")
    assert all(word.split("+")[0] in done.stderr for word in words)


def test_an_oops_on_standard_input(files: Path) -> None:
    ((start, size),) = read_symbols(files / "vmlinux")[FUNCTION]
    text = f"""[   12.3][ T101] RIP: 0010:{FUNCTION}+0x5/{size:#x}
[   12.3][ T101] Call Trace:
[   12.3][ T101]  ? {FUNCTION}+0x5/{size:#x}
[   12.3][ T101]  {FUNCTION}+0x5/{size + 0x20:#x}
[   12.3][ T101]  unknown_one+0x5/0x10 [other]\x1b[2J
"""
    words = [sys.executable, "-m", "kcovdbg", "-s", str(files / "vmlinux"), "sym", "-"]
    done = subprocess.run(words, input=text, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    given = text.splitlines()
    exact, call = locate(files / "vmlinux", start + 5), locate(files / "vmlinux", start + 4)
    assert re.findall(r"(\w+\.[ch]:\d+)", lines[0])[0] == exact
    assert re.findall(r"(\w+\.[ch]:\d+)", lines[2])[0] == call
    assert lines[0].startswith(f"[   12.3][ T101] RIP: 0010:{FUNCTION} (")
    assert lines[1] == given[1]
    # Of another build, and of an unknown module.
    assert lines[3] == given[3]
    assert lines[4].startswith("[   12.3][ T101]  unknown_one+0x5/0x10 [other]")
    assert "\x1b" not in done.stdout
    assert hex(size) in done.stdout.split("[other]")[1]
    rows = json.loads(
        subprocess.run([*words, "--json"], input=text, capture_output=True, text=True, timeout=120, check=True).stdout
    )
    assert [row["pc"] for row in rows] == [hex(start + 5)] * 3 + [None]
