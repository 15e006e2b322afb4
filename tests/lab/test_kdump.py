# SPDX-License-Identifier: LGPL-2.1-or-later
"""Dumps by a second kernel, as syzkaller and distributions take them, agree with what the guest
printed before the crash.

One crash and syzkaller's format are the main case. ``--exhaustive`` adds the others; hung tasks,
soft lockups and KASAN's reports need the recipe ``lockups``, and those of syzbot's kernel the
recipe ``syzbot-gcc``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import drgn
import pytest

from kcovdbg.errors import TargetError
from kcovdbg.target.dump_file import unpack_dump
from tests.lab import requirements
from tests.lab.comparison import find_differences
from tests.lab.conftest import built, find_built
from tests.lab.initramfs import Userland
from tests.lab.kcovdbg_run import ask, ask_state, run_kcovdbg
from tests.lab.kdump import FORMATS, MEMORY_MIB, KdumpCrash, crash_and_dump
from tests.lab.kernel import Kernel

SYZKALLER = "flattened"
FILTERED = "filtered"
PAGE = 4096


@pytest.fixture(scope="module")
def crash(
    kernel: Kernel, userland: Userland, tmp_path_factory: pytest.TempPathFactory
) -> KdumpCrash:
    """A crash by sysrq, dumped as by syzkaller."""
    if requirements.missing(requirements.FILTER):
        pytest.skip(requirements.remedy(["makedumpfile"]))
    return crash_and_dump(kernel, userland, tmp_path_factory.mktemp("kdump"), formats=[SYZKALLER])


def printed_trace(crash: KdumpCrash) -> list[str]:
    """Return the functions on the panicked task's stack as the kernel printed them, without its
    guesses.
    """
    # arm64 prints no registers of user space, but which CPUs it stops.
    text = re.split(
        "RIP: 0033|SMP: stopping|Code: ", re.split("Call [Tt]race:", crash.console, maxsplit=1)[-1]
    )[0]
    return re.findall(r"\]\s+([a-z_]\w*)\+0x", text)


def assert_tells_the_crash(crash: KdumpCrash, name: str) -> None:
    told = crash.states()["kc-crash"]
    answers = ask_state(crash.target(name))
    (crashed,) = (row for row in answers["tasks"] if row["pid"] == told["tid"])
    # This task was created after the guest had printed everything else, and its buffer was empty at
    # that time.
    own = (str(told["tid"]), "kc-crash", crashed["kcov_area"])
    differences = [
        line
        for line in find_differences(crash.truth, answers)
        if not any(word in line for word in own)
    ]
    assert not differences, "\n".join(differences)
    assert crashed["comm"] == "kc-crash"
    assert crashed["kcov_mode"] == told["mode"]

    (module,) = [path for path in crash.userland.modules if path.stem == "kcovlab_oops"]
    target = [*crash.target(name), "-s", str(module)]
    last, findings, reasons = ask(
        target, f"last {told['tid']} -n 4000", "check", f"why {told['tid']}"
    )
    assert findings == []
    assert reasons
    assert {row["comm"] for row in last} == {"kc-crash"}
    innermost = [name for name in told["expect_functions"] if name != "panic"][-1]
    assert innermost in {row["symbol"] for row in last}


def test_what_the_guest_printed(crash: KdumpCrash) -> None:
    assert_tells_the_crash(crash, SYZKALLER)


def find_printed(crash: KdumpCrash, name: str) -> list[str]:
    """Return the functions that both `last` and the panic show on the stack, and assert that their
    order is the same.
    """
    shown = run_kcovdbg(*crash.target(name), "last").stdout
    frames = re.findall(r"#\d+\s+(\w+)", shown.partition("stack\n")[2])
    printed = [name for name in printed_trace(crash) if name in frames]
    assert [name for name in frames if name in printed] == printed
    return printed


def test_the_printed_stack(crash: KdumpCrash) -> None:
    assert find_printed(crash, SYZKALLER)[:3] == ["panic", "sysrq_handle_crash", "__handle_sysrq"]


def test_the_log(crash: KdumpCrash) -> None:
    """What the first kernel printed on its console is in the log, in the same order."""
    shown = run_kcovdbg(*crash.target(SYZKALLER), "-q", "-e", "log", "-e", "info --json")
    log = [line.rstrip() for line in shown.stdout.splitlines()]
    lines = [line.strip("\r") for line in crash.console.splitlines()]
    printed = [line.rstrip() for line in lines if re.match(r"\[ *\d+\.\d{6}\] ", line)]
    # The second kernel's log begins anew.
    (panic,) = (
        index for index, line in enumerate(printed) if "Kernel panic - not syncing: " in line
    )
    assert panic > 1
    assert [line for line in log if line in printed[: panic + 1]] == printed[: panic + 1]
    (info,) = json.loads(shown.stdout[shown.stdout.index("\n[\n") :])
    assert info["panic"] == printed[panic].partition("not syncing: ")[2]


@pytest.mark.parametrize("share", [0.2, 0.6, 0.95])
def test_a_capture_that_was_cut(crash: KdumpCrash, tmp_path: Path, share: float) -> None:
    """A dump cut by a full disk or a watchdog: each page is complete or an error, and missing ones
    are counted.
    """
    whole = crash.dumps[SYZKALLER]
    cut = tmp_path / "vmcore"
    with whole.open("rb") as stream:
        cut.write_bytes(stream.read(int(whole.stat().st_size * share)))
    dump = unpack_dump(cut)
    expected, found = drgn.Program(), drgn.Program()
    expected.set_core_dump(unpack_dump(whole).path)
    found.set_core_dump(dump.path)
    missing = count_missing(found, expected, MEMORY_MIB)
    assert f" {missing:,} of " in dump.notes[-1]

    done = run_kcovdbg("-c", cut, *crash.symbols, "-e", "tasks -a --json", "-e", "info")
    assert "Traceback" not in done.stderr
    assert (
        sum(
            f" {missing:,} of " in line
            for line in done.stderr.splitlines() + done.stdout.splitlines()
        )
        <= 2
    )
    if share > 0.9 and done.returncode == 0:
        tids = {row["pid"] for row in json.loads(done.stdout[: done.stdout.index("\n]\n") + 2])}
        assert crash.states()["kc-crash"]["tid"] in tids


def count_missing(cut: drgn.Program, whole: drgn.Program, mib: int) -> int:
    """Return how many pages only the whole dump has; assert that all others are equal."""

    def read_page(program: drgn.Program, address: int) -> bytes | None:
        try:
            return program.read(address, PAGE, True)
        except drgn.FaultError:
            return None

    pages = [
        (read_page(cut, address), read_page(whole, address))
        for address in range(0, mib << 20, PAGE)
    ]
    assert all(page in (None, expected) for page, expected in pages)
    return sum(page is None and expected is not None for page, expected in pages)


def test_a_capture_without_pages(crash: KdumpCrash, tmp_path: Path) -> None:
    with crash.dumps[SYZKALLER].open("rb") as stream:
        (tmp_path / "vmcore").write_bytes(stream.read(6000))
    with pytest.raises(TargetError, match="truncated"):
        unpack_dump(tmp_path / "vmcore")


@pytest.mark.parametrize(
    ("recipe", "how", "formats"),
    [
        ("default", "", FORMATS),
        ("default", "oops", (SYZKALLER,)),
        ("default", "warn", (SYZKALLER,)),
        ("lockups", "kasan", (SYZKALLER, FILTERED)),
        ("lockups", "hung", (SYZKALLER,)),
        ("lockups", "lockup", (SYZKALLER,)),
        # What distributions keep of a guest with two gigabytes.
        ("syzbot-gcc", "kasan", (FILTERED,)),
        ("syzbot-gcc", "hung", (FILTERED,)),
        ("syzbot-gcc", "lockup", (FILTERED,)),
    ],
)
def test_other_crashes(
    request: pytest.FixtureRequest, tmp_path: Path, recipe: str, how: str, formats: tuple[str, ...]
) -> None:
    if not request.config.getoption("exhaustive"):
        pytest.skip("minutes each: --exhaustive runs it")
    crash = crash_and_dump(*built(recipe), tmp_path, how, formats, 1800, find_built("default"))
    for name in formats:
        assert_tells_the_crash(crash, name)
        # After a hung task, khungtaskd panicked.
        (rows,) = ask(crash.target(name), "last")
        assert {row["pid"] for row in rows} == {crash.states()["kc-crash"]["tid"]}
