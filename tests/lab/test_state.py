# SPDX-License-Identifier: LGPL-2.1-or-later
"""The answers have everything that the guest printed about its state, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.comparison import assert_agrees, lines_of
from tests.lab.conftest import DumpMaker, StateDumpMaker
from tests.lab.dump import FORMATS, truth_about
from tests.lab.golden import ask_all
from tests.lab.guest import Guest
from tests.lab.kcovdbg_run import ask_state, run_kcovdbg
from tests.lab.section import STATES
from tests.lab.situation import CRASHED, SITUATIONS

# All commands that show state, except `info`: it names the target, and is compared with what the
# guest printed.
SLICED = (
    *("tasks -a --json", "objects --json", "remote --json", "areas --json", "saved --json"),
    *("check --json", "last --all --json", "why usb:1 --json", "why common:0x4201 --json"),
)


@pytest.mark.parametrize("dump_format", sorted(set(FORMATS) - {"elf"}))
def test_standing_states(standing_dump: DumpMaker, dump_format: str) -> None:
    dump = standing_dump(dump_format)
    assert_agrees(dump.truth, ask_state(dump.target))


@pytest.mark.parametrize("name", SITUATIONS)
def test_situations(inflight_dump: StateDumpMaker, name: str) -> None:
    """All state is what the guest printed, or the stub read in a section; `check` has nothing to
    say, and no error is shown.
    """
    dump = inflight_dump(name)
    answers = ask_all(dump.target)
    assert answers.pop("check") == answers.pop("stderr") == []
    assert (dump.section is None) == (name not in STATES)
    # What crashed the kernel came after what the guest printed.
    if name != CRASHED:
        assert_agrees(dump.truth, answers)


def test_all_states_were_made(standing_dump: DumpMaker) -> None:
    """The comparison covers every state: this kernel can have all of them."""
    lines = standing_dump().lines
    missing = [line for line in lines if "missing" in line and "state" in line]
    assert not missing
    done = next(line for line in lines if line.get("done"))
    assert done["moved"] == done["unsettled"] == []
    assert len(lines_of(standing_dump().truth)) >= 49


@pytest.mark.parametrize("way", ["--qemu", "--gdb-remote"])
def test_running_guest(standing_guest: Guest, way: str) -> None:
    answers = ask_state(standing_guest.target(way))
    assert answers["info"][0]["live"] is (way == "--qemu")
    assert_agrees(truth_about(standing_guest), answers)
    # Reading does not leave the machine stopped.
    assert standing_guest.qmp.running()


@pytest.mark.parametrize(
    ("situation", "name"),
    [("standing", "slice.zst"), ("softirq-over-section", "slice"), ("crashed", "slice")],
)
def test_slice_answers_the_same(
    inflight_dump: StateDumpMaker, tmp_path: Path, situation: str, name: str
) -> None:
    """Answers are equal byte for byte, except for the target's name."""
    dump = inflight_dump(situation)
    run_kcovdbg(*dump.target, "slice", "-o", tmp_path / name, status=0)
    names = [
        f"kcov:{row['kcov']}" for row in ask_state(dump.target)["objects"] if row["area"] != "0x0"
    ]
    words = [word for line in SLICED for word in ("-e", line)]
    words += [word for what in names for word in ("-e", f"buffer {what} --raw --json")]
    whole = run_kcovdbg(*dump.target, *words)
    sliced = run_kcovdbg("-c", tmp_path / name, *dump.target[2:], *words)
    assert len(whole.stdout) > 100_000
    assert sliced.stdout == whole.stdout
    assert (tmp_path / name).stat().st_size < dump.path.stat().st_size / 10


def test_order_of_files_does_not_matter(standing_dump: DumpMaker) -> None:
    dump = standing_dump()
    first = run_kcovdbg(dump.kernel.vmlinux, dump.path, "tasks", "--json")
    second = run_kcovdbg(dump.path, dump.kernel.vmlinux, "tasks", "--json")
    assert first.returncode == second.returncode == 0
    assert first.stdout == second.stdout != "[]\n"
