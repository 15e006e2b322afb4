# SPDX-License-Identifier: LGPL-2.1-or-later
"""The words of an oops of the demo's kernel; nm and addr2line say what is right."""

from __future__ import annotations

import functools
import gzip
import itertools
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Demo
from tests.lab.kcovdbg_run import Rows, run_kcovdbg
from tests.support.programs import addr2line, list_functions

FUNCTION = "__do_sys_getppid"
MODULE = "kcovlab_keep"


@functools.cache
def find_function(demo: Demo) -> tuple[int, int]:
    """Return where the function is and its size, by nm."""
    (code,) = list_functions(demo.vmlinux)[FUNCTION]
    return code.start, len(code)


@functools.cache
def locate(demo: Demo) -> dict[int, str]:
    """Return file and line of the innermost frame of each address of the function, by addr2line,
    which misses others in the demo's compressed debug info.
    """
    start, size = find_function(demo)
    addresses = range(start, start + size)
    # Once: it reads all of the debug info.
    chains = addr2line(demo.vmlinux, addresses)
    return {
        address: f"{frames[0][1].rsplit('/', 1)[-1]}:{frames[0][2]}"
        for address, frames in zip(addresses, chains, strict=True)
    }


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
    places = locate(demo)
    call, exact, first = places[start + 4], places[start + 5], places[start]
    same = [
        f"{FUNCTION}+0x5/{size:#x}",
        f"{FUNCTION}+0x5,",
        f"{start + 5:x}",
        f"{start + 5}",
        f"{start + 5 - (1 << 64)}",
    ]
    rows = ask(demo, *same, f"[<{start + 5:x}>]", target=target)
    assert {row["pc"] for row in rows} == {hex(start + 5)}
    assert all(place(row) == call and row["errors"] == [] for row in rows)
    lines = (
        f"RIP: 0010:{FUNCTION}+0x5/{size:#x}",
        f"  ERA: 9000000000223d3c {FUNCTION}+0x5/{size:#x}",
        f"TPC: <{FUNCTION}+0x5/{size:#x}>",
    )
    for words in (*(line.split() for line in lines), (f"{FUNCTION}+0x5", "--pc", "exact")):
        (row,) = ask(demo, *words, target=target)
        assert (row["pc"], place(row)) == (hex(start + 5), exact)
    (row,) = ask(demo, FUNCTION, target=target)
    assert (row["pc"], place(row)) == (hex(start), first)


def test_another_build(demo: Demo) -> None:
    _, size = find_function(demo)
    room = find_rooms(demo)[FUNCTION]
    (row,) = ask(demo, f"{FUNCTION}+0x5/{size + 0x20:#x}")
    assert len(row["errors"]) == 1
    assert hex(room) in row["errors"][0]
    # The kernel's sizes have the padding; others print those of the symbols.
    for known in (room, size):
        (row,) = ask(demo, f"{FUNCTION}+0x5/{known:#x}")
        assert row["errors"] == []


def test_sizes_as_the_kernel_prints_them(demo: Demo) -> None:
    """Up to the next symbol, whatever lies between: alignment, data, functions that lost their
    names.
    """
    functions = list_functions(demo.vmlinux)
    rooms = find_rooms(demo)
    larger = [
        name
        for name, (first, *others) in functions.items()
        if not others and name in rooms and rooms[name] - len(first) >= 32 and "." not in name
    ]
    assert larger
    text = "".join(f" {name}+0x1/{rooms[name]:#x}\n" for name in larger[:40])
    done = run_kcovdbg("-s", demo.vmlinux, "sym", "-", input=text, status=0)
    assert done.stderr == ""
    assert "note" not in done.stdout
    assert all(
        f" {name} (" in line for name, line in zip(larger, done.stdout.splitlines(), strict=False)
    )


@functools.cache
def find_rooms(demo: Demo) -> dict[str, int]:
    """Return the distance of each symbol of code to the next one, by nm."""
    done = subprocess.run(["nm", "-n", demo.vmlinux], capture_output=True, text=True, check=True)
    rows = [line.split() for line in done.stdout.splitlines()]
    code = [(int(row[0], 16), row[2]) for row in rows if len(row) == 3 and row[1] in "tTwW"]
    starts = sorted({address for address, _ in code})
    after = dict(itertools.pairwise(starts))
    return {name: after[address] - address for address, name in code if address in after}


def test_names_that_several_have(demo: Demo) -> None:
    name, two = next(
        (name, two)
        for name, two in list_functions(demo.vmlinux).items()
        if len(two) == 2
        and two[0].start != two[1].start
        and abs(len(two[0]) - len(two[1])) > 16
        and "." not in name
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
    done = run_kcovdbg(
        "-s", demo.vmlinux, "sym", f"{name}+0x1/{len(symbols[name][0]):#x}", f"[{MODULE}]", status=1
    )
    assert MODULE in done.stderr


def test_what_is_unknown(demo: Demo) -> None:
    outside = "0xdeadbeef"
    for word, status in (
        ("no_such_function", 1),
        ("no_such+0x1/0x2", 1),
        (outside, 1),
        ("zz!", 2),
    ):
        done = run_kcovdbg("-s", demo.vmlinux, "sym", word, status=status)
        assert done.stdout == ""
        assert word.split("+")[0] in done.stderr
    done = run_kcovdbg("-s", demo.vmlinux, "sym", "no_such", FUNCTION, status=0)
    assert re.search(r"1 of 2", done.stdout)
    for text, status in (
        (f" no_such+0x1/0x2\n {FUNCTION}+0x5\n", 0),
        (" no_such+0x1/0x2\n", 1),
        ("nothing\n", 1),
        (f" RAX: {outside}\n {FUNCTION}+0x5\n", 0),
        (f"{outside}\n {FUNCTION}+0x5\n", 0),
    ):
        run_kcovdbg("-s", demo.vmlinux, "sym", "-", input=text, status=status)


def test_a_place_that_is_null(demo: Demo) -> None:
    """kernel/sched/core.c: print_preempt_disable_ip() prints a 0 where preemption is enabled."""
    lines = ["Preemption disabled at:", "[<0000000000000000>] 0x0", f" {FUNCTION}+0x5"]
    words = ("-s", demo.vmlinux, "sym")
    done = run_kcovdbg(*words, "-", input="\n".join(lines), status=0)
    assert done.stdout.splitlines()[:2] == lines[:2]
    rows = json.loads(run_kcovdbg(*words, "[<0000000000000000>]", "--json", status=1).stdout)
    assert [(row["frames"], len(row["errors"])) for row in rows] == [([], 1)]
    done = run_kcovdbg(*words, "[<0000000000000000>]", status=1)
    assert "internal" not in done.stderr


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
    exact, call = locate(demo)[start + 5], locate(demo)[start + 4]
    assert re.findall(r"(\w+\.[ch]:\d+)", lines[0])[0] == exact
    assert re.findall(r"(\w+\.[ch]:\d+)", lines[2])[0] == call
    assert lines[0].startswith(f"[   12.3][ T101] RIP: 0010:{FUNCTION} (")
    assert lines[1] == given[1]
    # Of another build, and of an unknown module.
    assert lines[3] == given[3]
    assert lines[4].startswith("[   12.3][ T101]  unknown_one+0x5/0x10 [other]")
    assert "\x1b" not in done.stdout
    assert hex(find_rooms(demo)[FUNCTION]) in done.stdout.split("[other]")[1]
    rows = json.loads(run_kcovdbg(*words, "--json", input=text, status=0).stdout)
    assert [row["pc"] for row in rows] == [hex(start + 5)] * 3 + [None]


def test_code_of_a_module_that_is_freed(demo: Demo) -> None:
    """addr2line reads the module's file; the size ends at the page."""
    name, (code, *_) = next(
        (name, found)
        for name, found in list_functions(demo.module).items()
        if name.endswith("_init")
    )
    for offset, exact in ((0x20, ()), (0x1F, ("--pc", "exact"))):
        (frames,) = addr2line(demo.module, [code.start + 0x1F], section=".init.text")
        for word in (f"{name}+{offset:#x}/0x1000", f"{name}+{offset:#x}"):
            (row,) = ask(demo, word, f"[{MODULE}]", *exact)
            assert (row["pc"], row["errors"]) == (None, [])
            assert (row["frames"][0]["file"].rsplit("/", 1)[-1], row["frames"][0]["line"]) == (
                frames[0][1].rsplit("/", 1)[-1],
                frames[0][2],
            )


LOGS = {
    "tabs": "\tffffffff811dc419 {0}+0x5 ([kernel.kallsyms])\n",
    "colors": "\x1b[32m[   12.345678] \x1b[0m\x1b[1m{0}+0x5/{1:#x}\x1b[0m\n",
    "color in a word": "\x1b[01;31m\x1b[K{0}\x1b[m\x1b[K+0x5/{1:#x}\n",
    "image": " {0}+0x5 [kernel]\n",
    "end of DOS": " {0}+0x5/{1:#x}\r\n",
}


@pytest.mark.parametrize("text", LOGS.values(), ids=LOGS)
@pytest.mark.parametrize(
    "encode", [lambda text: text.encode(), lambda text: gzip.compress(text.encode("utf-16"))]
)
def test_logs(demo: Demo, text: str, encode: Callable[[str], bytes], tmp_path: Path) -> None:
    start, size = find_function(demo)
    call = locate(demo)[start + 4]
    given = text.format(FUNCTION, size)
    done = run_kcovdbg("-s", demo.vmlinux, "sym", "-", input=encode(given), text=False, status=0)
    shown = re.sub(r"\\x1b\[[0-9;]*[mK]", "", done.stdout.decode())
    before, after = re.split(r"\([^()]*\)", shown, maxsplit=1)
    plain = re.sub("\x1b\\[[0-9;]*[mK]", "", given).expandtabs().rstrip("\r\n")
    assert plain.startswith(before.rstrip())
    assert call in shown
    assert plain.endswith(after.rstrip("\n"))


def test_words_that_have_their_source_line(demo: Demo) -> None:
    _, size = find_function(demo)
    word = f"{FUNCTION}+0x5/{size:#x}"
    lines = [
        f" {word} kernel/sys.c:1",
        f" {word} (kernel/sys.c:1)",
        f" {word} [mod] (kernel/sys.c:1)",
        "#1  0xffffffff81000000 in f () at a.c:5",
    ]
    done = run_kcovdbg("-s", demo.vmlinux, "sym", "-", input="\n".join(lines), status=0)
    assert done.stdout.splitlines()[: len(lines)] == lines


def test_words_that_another_cpu_cut_off(demo: Demo) -> None:
    _, size = find_function(demo)
    whole = f"{FUNCTION}+0x5/{size:#x}"
    torn = [
        f" {FUNCTION}+0x5[   12.3][   C1] BUG: x",
        f" {FUNCTION}+0xBUG: x",
        f" {FUNCTION}+0x5/",
        f"[   12.3][   T1]  {FUNCTION}+0x5",
    ]
    done = run_kcovdbg(
        "-s", demo.vmlinux, "sym", "-", input="\n".join([*torn, f" {whole}"]), status=0
    )
    lines = done.stdout.splitlines()
    assert lines[: len(torn)] == torn
    assert f"{FUNCTION} (" in lines[len(torn)]
    assert lines[-1].endswith(str(len(torn)))


def test_a_warning_that_is_a_call(demo: Demo) -> None:
    """Where WARN() traps, its place is an instruction; where it calls a function, as on arm, a
    return address.
    """
    start, size = find_function(demo)
    exact = {address - start: found for address, found in locate(demo).items()}
    offset = next(offset for offset in range(2, size) if exact[offset] != exact[offset - 1])
    for place in (exact[offset], exact[offset - 1]):
        line = f"WARNING: CPU: 1 PID: 6 at kernel/{place} {FUNCTION}+{offset:#x}/{size:#x}"
        done = run_kcovdbg("-s", demo.vmlinux, "sym", "-", input=line, status=0)
        assert done.stdout.count(place) == 2
