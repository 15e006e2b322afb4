# SPDX-License-Identifier: LGPL-2.1-or-later
"""The call tree of a real kernel's entry and exit records, compared with another reader of the words that the guest printed."""

from __future__ import annotations

import bisect
import functools
import io
from collections import Counter
from typing import Any, NamedTuple

import pytest
import zstandard
from elftools.elf.elffile import ELFFile

from tests.lab.comparison import lines_of
from tests.lab.golden import DEBUG_INFO, DESTINATION, golden_target, read_truth
from tests.lab.kcovdbg_run import ask, run_kcovdbg

DIRECTORY = DESTINATION / "ext-records"
STATE = lines_of(read_truth(DIRECTORY))["kc-ext"]
ENTRY, EXIT, POINT = 0x0, 0x1, 0xF


class Reading(NamedTuple):
    """The trace as we read it."""

    words: list[int]
    spans: list[tuple[str, int, int]]
    """Calls in the order of their entries: function, index of the entry, index behind the exit."""


class Answers(NamedTuple):
    """Return kcovdbg's answer about the trace."""

    buffer: list[dict[str, Any]]
    tree: list[dict[str, Any]]


@pytest.fixture(scope="module")
def answers() -> Answers:
    what = STATE["tid"]
    return Answers(*ask(golden_target(DIRECTORY), f"buffer {what} --raw", f"tree {what}"))


@functools.cache
def function_starts() -> list[tuple[int, int, str]]:
    image = zstandard.decompress((DIRECTORY / DEBUG_INFO).read_bytes())
    found: dict[int, tuple[int, int, str]] = {}
    for symbol in ELFFile(io.BytesIO(image)).get_section_by_name(".symtab").iter_symbols():
        if symbol["st_info"]["type"] == "STT_FUNC":
            found.setdefault(symbol["st_value"], (symbol["st_value"], symbol["st_size"], symbol.name))
    return sorted(found.values())


def function_at(pc: int) -> str:
    starts = function_starts()
    start, size, name = starts[bisect.bisect_left(starts, (pc, 0, "")) - 1]
    assert start < pc <= start + size, hex(pc)
    return name


@pytest.fixture(scope="module")
def read(answers: Answers) -> Reading:
    words = [int(row["pc"], 16) for row in answers.buffer]
    stack: list[tuple[str, int]] = []
    deepest = 0
    spans: list[tuple[str, int, int]] = []
    for index, word in enumerate(words):
        function = function_at(word | 0xFF << 56)
        if word >> 60 == ENTRY:
            stack.append((function, len(spans)))
            spans.append((function, index, len(words)))
        deepest = max(deepest, len(stack))
        if word >> 60 == EXIT:
            entered, call = stack.pop()
            # Where the hook for the exit is called last of all it is jumped to, and returns to the caller.
            assert function == entered or not stack or function == stack[-1][0], (index, function, entered, stack)
            spans[call] = (entered, spans[call][1], index + 1)
    assert deepest > 5
    return Reading(words, spans)


def test_words_are_those_that_the_guest_saw(read: Reading) -> None:
    words = [STATE["count"], *read.words]
    assert len(words) == STATE["hashed_words"] > 1000
    value = 0xCBF29CE484222325
    for byte in b"".join(word.to_bytes(8, "little") for word in words):
        value = (value ^ byte) * 0x100000001B3 & (1 << 64) - 1
    assert value == int(STATE["hash"], 16)
    # There are enough records of each kind for the comparison.
    kinds = Counter(word >> 60 for word in read.words)
    assert set(kinds) == {ENTRY, EXIT, POINT}
    assert min(kinds.values()) > 100


def test_tree(answers: Answers, read: Reading) -> None:
    assert [(row["function"], row["index"], row["last"] + 1) for row in answers.tree] == read.spans
    # Of whom a function called, too.
    assert [row["records"] for row in answers.tree] == [end - start for _, start, end in read.spans]


def test_without_entries_it_says_so() -> None:
    directory = DESTINATION / "mode-remote"
    task = lines_of(read_truth(directory))["kc-pc"]["tid"]
    done = run_kcovdbg(*golden_target(directory), "-e", f"tree {task}", status=2)
    assert done.stdout == ""
    assert f"{task} has no entry and exit records" in done.stderr
