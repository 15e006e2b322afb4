# SPDX-License-Identifier: LGPL-2.1-or-later
"""The call tree of a real kernel's entry and exit records, compared with another reader of the
words that the guest printed.
"""

from __future__ import annotations

import bisect
import functools
import io
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import zstandard
from elftools.elf.elffile import ELFFile

from tests.lab.comparison import lines_of
from tests.lab.golden import DEBUG_INFO, DESTINATION, golden_target, read_truth
from tests.lab.kcovdbg_run import Rows, ask

ENTRY, EXIT, POINT = 0x0, 0x1, 0xF


@pytest.fixture(scope="module", params=["ext-records", "ext-format"])
def directory(request: pytest.FixtureRequest) -> Path:
    """Return a kept kernel of each posting."""
    return DESTINATION / str(request.param)


@pytest.fixture(scope="module")
def state(directory: Path) -> dict[str, Any]:
    """Return what the guest printed about the task that records types."""
    return dict(lines_of(read_truth(directory))["kc-ext"])


@pytest.fixture(scope="module")
def answers(directory: Path, state: dict[str, Any]) -> list[Rows]:
    """Return kcovdbg's answers about the trace: its words, and its tree."""
    what = state["tid"]
    return ask(golden_target(directory), f"buffer {what} --raw", f"trace {what}")


@pytest.fixture(scope="module")
def words(answers: list[Rows]) -> list[int]:
    return [int(row["pc"], 16) for row in answers[0]]


@functools.cache
def function_starts(directory: Path) -> list[tuple[int, int, str]]:
    image = zstandard.decompress((directory / DEBUG_INFO).read_bytes())
    found: dict[int, tuple[int, int, str]] = {}
    for symbol in ELFFile(io.BytesIO(image)).get_section_by_name(".symtab").iter_symbols():
        if symbol["st_info"]["type"] == "STT_FUNC":
            found.setdefault(
                symbol["st_value"], (symbol["st_value"], symbol["st_size"], symbol.name)
            )
    return sorted(found.values())


def function_at(directory: Path, pc: int) -> str:
    starts = function_starts(directory)
    start, size, name = starts[bisect.bisect_left(starts, (pc, 0, "")) - 1]
    assert start < pc <= start + size, hex(pc)
    return name


def read_calls(directory: Path, words: list[int]) -> list[tuple[str, int, int]]:
    """Return the calls in the order of their entries: function, index of the entry, index behind
    the exit.
    """
    stack: list[tuple[str, int]] = []
    deepest = 0
    spans: list[tuple[str, int, int]] = []
    for index, word in enumerate(words):
        function = function_at(directory, word | 0xFF << 56)
        if word >> 60 == ENTRY:
            stack.append((function, len(spans)))
            spans.append((function, index, len(words)))
        deepest = max(deepest, len(stack))
        if word >> 60 == EXIT:
            entered, call = stack.pop()
            # Where the hook for the exit is called last of all it is jumped to, and returns to the
            # caller.
            assert function == entered or not stack or function == stack[-1][0], (
                index,
                function,
                entered,
                stack,
            )
            spans[call] = (entered, spans[call][1], index + 1)
    assert deepest > 5
    return spans


def test_words_are_those_that_the_guest_saw(state: dict[str, Any], words: list[int]) -> None:
    hashed = [state["count"], *words]
    assert len(hashed) == state["hashed_words"] > 1000
    value = 0xCBF29CE484222325
    for byte in b"".join(word.to_bytes(8, "little") for word in hashed):
        value = (value ^ byte) * 0x100000001B3 & (1 << 64) - 1
    assert value == int(state["hash"], 16)
    # There are enough records of each kind for the comparison.
    kinds = Counter(word >> 60 for word in words)
    assert set(kinds) == {ENTRY, EXIT, POINT}
    assert min(kinds.values()) > 100


def test_calls(directory: Path, answers: list[Rows], words: list[int]) -> None:
    tree, calls = answers[1], read_calls(directory, words)
    assert [(row["function"], row["index"], row["last"] + 1) for row in tree] == calls
    # With those of the functions that it called.
    assert [row["records"] for row in tree] == [end - start for _, start, end in calls]
