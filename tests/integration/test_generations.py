# SPDX-License-Identifier: LGPL-2.1-or-later
"""Each generation of KCOV that the lab has built: answers from a committed slice agree with what
the guest printed.

Each directory under tests/golden/generations is tested; `python -m tests.lab generations` makes
them.
"""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import pytest

from tests.lab.comparison import COMMANDS
from tests.lab.contents import find_wrong_contents
from tests.lab.golden import (
    DESTINATION,
    LIMIT_OF_ALL,
    ask_golden,
    find_faults,
    golden_target,
    read_truth,
)
from tests.lab.kcovdbg_run import ask_state, run_kcovdbg
from tests.lab.recipe import GENERATIONS

DIRECTORIES = sorted(path.parent for path in DESTINATION.glob("*/truth.json.zst"))
NAMES = [path.name for path in DIRECTORIES]


@functools.cache
def answers_of(directory: Path) -> dict[str, list[dict[str, Any]]]:
    return ask_golden(directory)


def test_every_kernel_that_can_be_built_is_kept() -> None:
    assert set(NAMES) == {name for name, generation in GENERATIONS.items() if generation.kept}
    # Each row of the table that a kernel is there for has one that is kept.
    kept = {
        (generation.era, generation.variants)
        for generation in GENERATIONS.values()
        if generation.kept
    }
    assert kept == {(generation.era, generation.variants) for generation in GENERATIONS.values()}


@pytest.mark.parametrize("directory", DIRECTORIES, ids=NAMES)
def test_truth_is_the_answer(directory: Path) -> None:
    """Tasks, objects, handles, areas, saved state; info names the row; check is silent, and there
    are no errors.
    """
    assert find_faults(read_truth(directory), answers_of(directory)) == []


@pytest.mark.parametrize("directory", DIRECTORIES, ids=NAMES)
def test_buffers_hold_what_user_space_saw(directory: Path) -> None:
    """Record by record, in each format that the kernel has."""
    assert (
        find_wrong_contents(golden_target(directory), read_truth(directory), answers_of(directory))
        == []
    )


# drgn finds the direct map of other kernels by debug info that these lack.
@pytest.mark.parametrize("name", ["6.1-clang-fixed", "6.12-s390x"])
def test_a_slice_is_sliced_again(name: str, tmp_path: Path) -> None:
    target, kept = golden_target(DESTINATION / name), answers_of(DESTINATION / name)
    run_kcovdbg(*target, "slice", "-o", tmp_path / "again", status=0)
    found = ask_state(["-c", tmp_path / "again", *target[2:]])
    assert found | {"info": []} == {name: kept[name] for name in COMMANDS} | {"info": []}


@pytest.mark.parametrize("directory", DIRECTORIES, ids=NAMES)
def test_a_wrong_answer_is_noticed(directory: Path) -> None:
    """The comparison finds a change in any answer of each generation."""
    truth, answers = read_truth(directory), answers_of(directory)

    def changed(command: str, **members: Any) -> list[str]:
        wrong = copy.deepcopy(answers)
        wrong[command][-1].update(members)
        return find_faults(truth, wrong)

    assert changed("info", generation="E0")
    assert changed("info", kaslr_offset="0x1000")
    assert changed("objects", refcount=77)
    assert changed("areas", size=3)
    assert changed("remote", handle="0x7777")
    session = next(row for row in answers["tasks"] if row["role"] == "local")
    assert find_faults(
        truth, answers | {"tasks": [row for row in answers["tasks"] if row is not session]}
    )
    assert find_faults(truth, answers | {"check": [{"rule": "K1", "object": "", "message": ""}]})
    if answers["saved"]:
        assert changed("saved", saved_size=1)
        assert find_faults(truth, answers | {"saved": []})


def test_what_is_kept_is_small() -> None:
    sizes = {
        directory.name: sum(path.stat().st_size for path in directory.iterdir())
        for directory in DIRECTORIES
    }
    assert {name: size for name, size in sizes.items() if size > GENERATIONS[name].limit} == {}
    assert sum(sizes.values()) <= LIMIT_OF_ALL
