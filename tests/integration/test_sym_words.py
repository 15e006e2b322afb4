# SPDX-License-Identifier: LGPL-2.1-or-later
"""The words of an oops of the demo's kernel; nm and addr2line say what is right."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.integration.conftest import Demo
from tests.lab.kcovdbg_run import Rows, run_kcovdbg
from tests.support.programs import addr2line, list_functions

FUNCTION = "__do_sys_getppid"
MODULE = "kcovlab_keep"


def find_function(demo: Demo) -> tuple[int, int]:
    """Return where the function is and its size, by nm."""
    (code,) = list_functions(demo.vmlinux)[FUNCTION]
    return code.start, len(code)


def locate(demo: Demo, *addresses: int) -> list[str]:
    """Return file and line of the innermost frames, by addr2line, which misses others in the demo's compressed debug info."""
    return [f"{frames[0][1].rsplit('/', 1)[-1]}:{frames[0][2]}" for frames in addr2line(demo.vmlinux, addresses)]


def place(row: dict[str, Any]) -> str:
    assert row["frames"][-1]["function"] == FUNCTION
    frame = row["frames"][0]
    return f"{frame['file'].rsplit('/', 1)[-1]}:{frame['line']}"


def ask(demo: Demo, *words: str, target: str = "-s") -> Rows:
    named = ["--demo"] if target == "--demo" else ["-s", demo.vmlinux, "-s", demo.module]
    rows: Rows = json.loads(run_kcovdbg(*named, "sym", *words, "--json", status=0).stdout)
    return rows


@pytest.mark.parametrize("target", ["-s", "--demo"])
def test_words(demo: Demo, target: str) -> None:
    start, size = find_function(demo)
    call, exact, first = locate(demo, start + 4, start + 5, start)
    same = [f"{FUNCTION}+0x5/{size:#x}", f"{FUNCTION}+0x5,", f"{start + 5:x}", f"{start + 5}", f"{start + 5 - (1 << 64)}"]
    rows = ask(demo, *same, f"[<{start + 5:x}>]", target=target)
    assert {row["pc"] for row in rows} == {hex(start + 5)}
    assert all(place(row) == call and row["errors"] == [] for row in rows)
    for words in (("RIP:", f"0010:{FUNCTION}+0x5/{size:#x}"), (f"{FUNCTION}+0x5", "--exact")):
        (row,) = ask(demo, *words, target=target)
        assert (row["pc"], place(row)) == (hex(start + 5), exact)
    (row,) = ask(demo, FUNCTION, target=target)
    assert (row["pc"], place(row)) == (hex(start), first)


def test_another_build(demo: Demo) -> None:
    _, size = find_function(demo)
    (row,) = ask(demo, f"{FUNCTION}+0x5/{size + 0x20:#x}")
    assert len(row["errors"]) == 1
    assert hex(size) in row["errors"][0]
    # The kernel's sizes have the padding.
    (row,) = ask(demo, f"{FUNCTION}+0x5/{-(-size // 16) * 16:#x}")
    assert row["errors"] == []


def test_names_that_several_have(demo: Demo) -> None:
    name, two = next(
        (name, two)
        for name, two in list_functions(demo.vmlinux).items()
        if len(two) == 2 and two[0].start != two[1].start and abs(len(two[0]) - len(two[1])) > 16 and "." not in name
    )
    rows = ask(demo, f"{name}+0x1")
    assert {row["pc"] for row in rows} == {hex(code.start + 1) for code in two}
    assert all(row["errors"] for row in rows)
    for code in two:
        (row,) = ask(demo, f"{name}+0x1/{len(code):#x}")
        assert (row["pc"], row["errors"]) == (hex(code.start + 1), [])


def test_names_with_suffixes_and_labels(demo: Demo) -> None:
    symbols = list_functions(demo.vmlinux)
    clone = next(name for name in symbols if name.endswith(".isra.0") and len(symbols[name]) == 1)
    (row,) = ask(demo, f"{clone}+0x1/{len(symbols[clone][0]):#x}")
    assert (row["pc"], row["errors"]) == (hex(symbols[clone][0].start + 1), [])
    (row,) = ask(demo, "entry_SYSCALL_64_after_hwframe+0x4b/0x53")
    assert row["frames"][0]["file"].endswith("entry_64.S")


def test_modules(demo: Demo) -> None:
    symbols = list_functions(demo.module)
    name = next(name for name in symbols if name.startswith(MODULE) and not name.endswith("init"))
    (row,) = ask(demo, name, f"[{MODULE}]")
    assert (row["symbol"], row["errors"]) == (name, [])
    done = run_kcovdbg("-s", demo.vmlinux, "sym", f"{name}+0x1/{len(symbols[name][0]):#x}", f"[{MODULE}]", status=2)
    assert MODULE in done.stderr


def test_what_is_unknown(demo: Demo) -> None:
    words = ["no_such_function", "zz!", "no_such+0x1/0x2"]
    done = run_kcovdbg("-s", demo.vmlinux, *(part for word in words for part in ("-e", f"sym {word}")), status=2)
    assert done.stdout == ""
    assert all(word.split("+")[0] in done.stderr for word in words)


def test_an_oops_on_standard_input(demo: Demo) -> None:
    start, size = find_function(demo)
    text = f"""[   12.3][ T101] RIP: 0010:{FUNCTION}+0x5/{size:#x}
[   12.3][ T101] Call Trace:
[   12.3][ T101]  ? {FUNCTION}+0x5/{size:#x}
[   12.3][ T101]  {FUNCTION}+0x5/{size + 0x20:#x}
[   12.3][ T101]  unknown_one+0x5/0x10 [other]\x1b[2J
"""
    words = ("-s", demo.vmlinux, "sym", "-")
    done = run_kcovdbg(*words, input=text, status=0)
    lines = done.stdout.splitlines()
    given = text.splitlines()
    exact, call = locate(demo, start + 5, start + 4)
    assert re.findall(r"(\w+\.[ch]:\d+)", lines[0])[0] == exact
    assert re.findall(r"(\w+\.[ch]:\d+)", lines[2])[0] == call
    assert lines[0].startswith(f"[   12.3][ T101] RIP: 0010:{FUNCTION} (")
    assert lines[1] == given[1]
    # Of another build, and of an unknown module.
    assert lines[3] == given[3]
    assert lines[4].startswith("[   12.3][ T101]  unknown_one+0x5/0x10 [other]")
    assert "\x1b" not in done.stdout
    assert hex(size) in done.stdout.split("[other]")[1]
    rows = json.loads(run_kcovdbg(*words, "--json", input=text, status=0).stdout)
    assert [row["pc"] for row in rows] == [hex(start + 5)] * 3 + [None]
