# SPDX-License-Identifier: LGPL-2.1-or-later
"""Answers about each imitation agree with what it printed about itself, through drgn, also for
other machines.
"""

from __future__ import annotations

import pytest

from kcovdbg.target.drgn import programs
from kcovdbg.walk.layout import detect_layout
from tests.integration.imitations.build import (
    CROSS,
    KEPT,
    MACHINES,
    ROWS,
    Imitation,
    find_kept,
    make_imitation,
    source_digest,
)
from tests.integration.imitations.comparison import find_differences
from tests.support.kernels.asker import Asker

# Of each row: its generation, what the names of its variants begin with, and which features it has.
_COMPARED = {"comparisons", "ctxsw-flag"}
_REMOTE = _COMPARED | {"remote"}
_PER_CPU = _REMOTE | {"softirq", "saved-per-cpu", "irq-area-per-cpu"}
_IN_TASK = _REMOTE | {"softirq", "saved-in-task", "area-lists", "kcov-remote-member"}
RECOGNISED = {
    "e0": ("E0", (), {"32-bit-words", "vma-references"}),
    "e1": ("E1", (), set()),
    "e2-enum": ("E2", (), {"comparisons"}),
    "e2": ("E2", (), _COMPARED),
    "e3": ("E3", (), _REMOTE),
    "e4": ("E4", (), _PER_CPU),
    "e5": ("E5-E6", (), _PER_CPU),
    "p1": (
        "E7",
        ("KCOV_UNIQUE_ENABLE v1 (2025)",),
        _PER_CPU | {"mode-remote", "kcov-state", "unique-bitmap", "unique-enable-v1"},
    ),
    "k": ("E9b", (), _IN_TASK),
    "d2": (
        "E9b",
        ("kcov_dataflow in its own file (",),
        _IN_TASK | {"dataflow", "dataflow-objects"},
    ),
}
HOST = MACHINES["x86_64"]


def check_by_drgn(row: str, imitation: Imitation) -> None:
    target = programs.open_core(str(imitation.core), [str(imitation.program)])
    generation = detect_layout(target).generation
    era, variants, features = RECOGNISED[row]
    assert generation.era == era
    assert len(generation.variants) == len(variants)
    assert all(map(str.startswith, generation.variants, variants))
    assert set(generation.features) == features
    assert (generation.unrecognised, generation.missing) == ((), ())
    asker = Asker(target)

    def ask(command: str) -> list[dict]:
        rows, errors = asker.rows(command)
        assert "error" not in errors
        return rows

    assert find_differences(imitation, ask) == []


@pytest.mark.parametrize("row", ROWS)
def test_by_drgn(row, tmp_path):
    check_by_drgn(row, make_imitation(row, HOST, tmp_path))


@pytest.mark.parametrize("machine", CROSS, ids=[machine.name for machine in CROSS])
@pytest.mark.parametrize("row", ROWS)
def test_other_machines(row, machine):
    imitation = find_kept(row, machine)
    kernel = imitation.lines("kernel")[0]
    assert kernel["machine"] == machine.name
    assert kernel["word_size"] == machine.word
    check_by_drgn(row, imitation)


def test_kept_ones_are_of_these_sources():
    stale = {
        f"{row}-{machine.name}"
        for row in ROWS
        for machine in CROSS
        if find_kept(row, machine).truth[0]["sources"] != source_digest(row)
    }
    assert not stale, "make them anew: python -m tests.integration.imitations"
    assert len(list(KEPT.iterdir())) == 3 * len(ROWS) * len(CROSS)


def test_no_undefined_behaviour(tmp_path):
    # But that of pointers to where nothing is, which is what the process is made for.
    flags = ("-fsanitize=undefined", "-fno-sanitize=pointer-overflow", "-fno-sanitize-recover=all")
    assert make_imitation("p1", HOST, tmp_path, *flags).truth
