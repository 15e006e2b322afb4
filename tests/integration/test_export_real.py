# SPDX-License-Identifier: LGPL-2.1-or-later
"""Exports of entry and exit records of a real kernel, compared with another reader of the words that the guest printed."""

from __future__ import annotations

import bisect
import functools
import io
import json
import re
from collections import Counter
from typing import Any, NamedTuple

import pytest
import zstandard
from elftools.elf.elffile import ELFFile

from tests.lab.comparison import lines_of, parse_outputs
from tests.lab.golden import DEBUG_INFO, DESTINATION, SLICE, read_truth
from tests.lab.kcovdbg_run import run_kcovdbg

DIRECTORY = DESTINATION / "ext-records"
STATE = lines_of(read_truth(DIRECTORY))["kc-ext"]
ENTRY, EXIT, POINT = 0x0, 0x1, 0xF


class Reading(NamedTuple):
    """The trace as we read it."""

    words: list[int]
    stacks: Counter[tuple[str, ...]]
    """Records by the functions that they are in, outermost first."""
    spans: list[tuple[str, int, int]]
    """Calls in the order of their entries: function, index of the entry, index behind the exit."""
    outside: int
    """Records that are in none."""


class Answers(NamedTuple):
    """Return kcovdbg's answer about the trace."""

    buffer: list[dict[str, Any]]
    tree: list[dict[str, Any]]
    folded: str
    speedscope: dict[str, Any]
    chrome: dict[str, Any]


@pytest.fixture(scope="module")
def answers(tmp_path_factory) -> Answers:
    folder, what = tmp_path_factory.mktemp("exports"), STATE["tid"]
    formats = ("folded", "speedscope", "chrome")
    shown = {"buffer": f"buffer {what} --raw --json", "tree": f"tree {what} --json"}
    lines = [*shown.values(), *(f"export {name} {what} -o {folder / name} --json" for name in formats)]
    words = [word for line in lines for word in ("-e", line)]
    done = run_kcovdbg("-c", DIRECTORY / SLICE, "-s", DIRECTORY / DEBUG_INFO, *words)
    assert done.returncode == 0, done.stderr
    printed = parse_outputs(done.stdout, [*shown, *formats])
    folded, speedscope, chrome = ((folder / name).read_text() for name in formats)
    return Answers(printed["buffer"], printed["tree"], folded, json.loads(speedscope), json.loads(chrome))


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
    stacks: Counter[tuple[str, ...]] = Counter()
    spans: list[tuple[str, int, int]] = []
    for index, word in enumerate(words):
        function = function_at(word | 0xFF << 56)
        if word >> 60 == ENTRY:
            stack.append((function, len(spans)))
            spans.append((function, index, len(words)))
        stacks[tuple(name for name, _ in stack)] += 1
        if word >> 60 == EXIT:
            entered, call = stack.pop()
            # Where the hook for the exit is called last of all it is jumped to, and returns to the caller.
            assert function == entered or not stack or function == stack[-1][0], (index, function, entered, stack)
            spans[call] = (entered, spans[call][1], index + 1)
    return Reading(words, stacks, spans, stacks.pop((), 0))


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
    assert max(map(len, read.stacks)) > 5


def test_folded(answers: Answers, read: Reading) -> None:
    lines = [line.rpartition(" ") for line in answers.folded.splitlines()]
    written = Counter({tuple(stack.split(";")): int(count) for stack, _, count in lines})
    assert len(lines) == len(written)
    assert written.pop(("?",)) == read.outside > 0
    assert written == read.stacks


def nested(found: list[dict[str, Any]], kind: str, at: str, name: Any) -> list[tuple[str, int, int]]:
    """Calls out of opening and closing events, which must be balanced and never go back."""
    stack: list[tuple[str, int]] = []
    spans: list[tuple[str, int, int]] = []
    last = 0
    for event in found:
        assert event[at] >= last
        last = event[at]
        if event[kind] in ("O", "B"):
            stack.append((name(event), len(spans)))
            spans.append((name(event), last, -1))
        else:
            assert event[kind] in ("C", "E")
            entered, call = stack.pop()
            assert name(event) == entered
            spans[call] = (entered, spans[call][1], last)
    assert stack == []
    return spans


def test_speedscope(answers: Answers, read: Reading) -> None:
    (profile,) = answers.speedscope["profiles"]
    frames = [frame["name"] for frame in answers.speedscope["shared"]["frames"]]
    assert (profile["startValue"], profile["endValue"], profile["unit"]) == (0, len(read.words), "none")
    assert nested(profile["events"], "type", "at", lambda event: frames[event["frame"]]) == read.spans


def test_chrome(answers: Answers, read: Reading) -> None:
    written = answers.chrome["traceEvents"]
    assert {(event["pid"], event["tid"]) for event in written} == {(STATE["tgid"], STATE["tid"])}
    calls = [event for event in written if event["ph"] != "M"]
    assert nested(calls, "ph", "ts", lambda event: event["name"]) == read.spans
    # There are no source lines here, and readers show what stands there, if it is nothing.
    assert not any("args" in event for event in calls)


def test_tree(answers: Answers, read: Reading) -> None:
    assert [(row["function"], row["index"], row["last"] + 1) for row in answers.tree] == read.spans
    # Of whom a function called, too.
    assert [row["records"] for row in answers.tree] == [end - start for _, start, end in read.spans]


def test_without_entries_it_says_so() -> None:
    directory = DESTINATION / "mode-remote"
    task = lines_of(read_truth(directory))["kc-pc"]["tid"]
    formats = ("folded", "speedscope", "chrome")
    words = [word for name in formats for word in ("-e", f"export {name} {task}")]
    done = run_kcovdbg("-c", directory / SLICE, "-s", directory / DEBUG_INFO, *words)
    assert done.returncode == 2
    assert done.stdout == ""
    for name in formats:
        assert [line for line in done.stderr.splitlines() if {str(task), name} <= set(re.findall(r"\w+", line))]
