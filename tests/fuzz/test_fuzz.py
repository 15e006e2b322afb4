# SPDX-License-Identifier: LGPL-2.1-or-later
"""A reduced run of the fuzzer; ``python -m tests.fuzz`` runs more."""

import time

import pytest

from tests.fuzz import run
from tests.fuzz.run import Figures, Fuzzer

CASES = 200
# Seeds that found something.
FOUND = (
    20411,  # A maple tree's node of a type that drgn doesn't know.
)


@pytest.fixture(scope="module")
def fuzzer():
    return Fuzzer()


def test_damaged_memory(fuzzer):
    figures = fuzzer.run(range(1_000_000, 1_000_000 + CASES))
    assert figures.is_clean, "\n".join((*figures.crashes, *figures.hangs, *figures.raw))
    assert figures.cases == CASES
    # Else the damage was done where nobody looks.
    assert figures.violated > CASES // 3
    print(figures)


@pytest.mark.parametrize("seed", FOUND)
def test_what_was_found(fuzzer, seed):
    figures = fuzzer.run(range(seed, seed + 1))
    assert figures.is_clean, "\n".join((*figures.crashes, *figures.hangs, *figures.raw))


def crash(_session, _line, _terminal):
    return 1 / 0


def hang(_session, _line, _terminal):
    time.sleep(60)


def write_raw(_session, _line, terminal):
    terminal.stdout.write("\x1b[2J")
    return 0


@pytest.mark.parametrize(("behaviour", "noticed"), [(crash, "crashes"), (hang, "hangs"), (write_raw, "raw")])
def test_the_fuzzer_sees_what_it_looks_for(fuzzer, monkeypatch, behaviour, noticed):
    figures = Figures()
    monkeypatch.setattr(run, "run_line", behaviour)
    monkeypatch.setattr(run, "SECONDS", 0.3)
    fuzzer.case(1, figures)
    assert getattr(figures, noticed)
    assert not figures.is_clean
