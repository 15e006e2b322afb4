# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every buffer of the guest, under each of its names, equals what user space printed, record by record."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from kcovdbg.symbols.symbolizer import TAIL_CALL, TAIL_KNOWN
from tests.lab.comparison import match_objects
from tests.lab.conftest import DumpMaker, StateDumpMaker
from tests.lab.dump import truth_about
from tests.lab.guest import Guest
from tests.lab.kcovdbg_run import ask, ask_state, run_kcovdbg
from tests.lab.situation import Dump


def words_of(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the words of records as the kernel laid them out."""
    words: list[int] = []
    for row in rows:
        if "arg1" in row:
            words += [int(row["type"], 16), int(row["arg1"], 16), int(row["arg2"], 16)]
        words.append(int(row["pc"], 16))
    return words


class Standing(NamedTuple):
    """A dump of the standing states, what the guest printed of their buffers, and the buffers' names."""

    dump: Dump
    truth: dict[str, list[int]]
    names: dict[str, list[str]]


@pytest.fixture(scope="module")
def standing(standing_dump: DumpMaker) -> Standing:
    dump = standing_dump()
    return Standing(dump, truth_of(dump), names_of(dump))


def truth_of(dump: Dump) -> dict[str, list[int]]:
    """Return the counted words of each state whose records the guest printed."""
    return {
        name: [int(word, 16) for word in line["records"]]
        for name, line in dump.states().items()
        if line.get("records") is not None and not line.get("bogus")
    }


def names_of(dump: Dump) -> dict[str, list[str]]:
    """Return the names of a state's buffer: its object, its descriptors, and its task where that collects into it."""
    answers = ask_state(dump.target)
    states = dump.states()
    objects = match_objects(states, answers["objects"])
    by_task = {row["pid"]: row for row in answers["tasks"]}
    names: dict[str, list[str]] = {}
    for name, line in states.items():
        if line.get("object") not in objects:
            continue
        row = objects[line["object"]]
        found = [f"kcov:{row['kcov']}"]
        found += [f"fd:{line['tgid']}/{fd}" for fd in (line.get("fds") or [])[:1]]
        if row["area"] not in (None, "0x0"):
            found.append(f"area:{row['area']}")
        task = by_task.get(line["tid"])
        if task is not None and row["kcov"] in (task["kcov"], task["kcov_remote"]):
            found.append(str(line["tid"]))
        names[name] = found
    return names


def test_each_buffer_by_each_name(standing: Standing) -> None:
    dump, truth, names = standing
    assert len(truth) >= 20
    asked = [(state, name) for state in truth for name in names.get(state, [])]
    assert {state for state, _ in asked} == set(truth)
    answers = ask(dump.target, *(f"buffer {name} --raw" for _, name in asked))
    wrong = []
    for (state, name), rows in zip(asked, answers, strict=True):
        if words_of(rows) != truth[state]:
            wrong.append(f"{state} by {name}: {len(words_of(rows))} words, the guest printed {len(truth[state])}")
        if [row["index"] for row in rows] != list(range(len(rows))):
            wrong.append(f"{state} by {name}: indices")
    assert not wrong, "\n".join(wrong)


def test_comparisons_are_among_them(standing: Standing) -> None:
    dump, truth, names = standing
    states = dump.states()
    compared = [name for name in truth if name.endswith("-cmp")]
    assert compared
    for state, rows in zip(compared, ask(dump.target, *(f"buffer {names[state][0]} --raw" for state in compared)), strict=True):
        assert len(rows) == min(states[state]["count"], states[state]["capacity"])
        for row in rows:
            assert row["kind"] == "cmp"
            assert row["size"] == 1 << (int(row["type"], 16) >> 1 & 3)
            assert row["const"] == bool(int(row["type"], 16) & 1)


def test_addresses_and_names(standing: Standing) -> None:
    """The address is the PC plus the offset of the guest's own symbols, and is in the named function."""
    dump = standing.dump
    offset = int(dump.states()["kernel"]["symbols"]["_text"], 16) - 0xFFFFFFFF81000000
    (rows,) = ask(dump.target, f"buffer {standing.names['kc-pc'][0]} --raw")
    symbols: dict[int, set[str]] = {}
    for line in dump.kernel.system_map.read_text().splitlines():
        address, kind, symbol = line.split()
        if kind in "tT":
            symbols.setdefault(int(address, 16), set()).add(symbol.split(".")[0])
    starts = sorted(symbols)
    assert rows
    for row in rows:
        pc = int(row["pc"], 16)
        assert int(row["address"], 16) == pc + offset
        # What a tail call recorded is an address of its caller's, and says so.
        if pc < 0xFFFFFFFFA0000000 and not {TAIL_CALL, TAIL_KNOWN}.intersection(row["errors"]):
            assert row["symbol"] in symbols[starts[bisect_left(starts, pc) - 1]], row


def test_full_and_hostile_buffers_say_so(standing: Standing) -> None:
    dump, _, names = standing
    for state in ("kc-full", "kc-over", "kc-over-cmp"):
        capacity = dump.states()[state]["capacity"]
        done = run_kcovdbg(*dump.target, "-e", f"buffer {names[state][0]} -n 3")
        title, *_ = done.stdout.splitlines()
        assert f"{capacity} of {capacity} records, FULL" in title
        assert [line for line in done.stdout.splitlines() if line.startswith("note: full:") and str(capacity) in line]


def test_running_guest(standing_guest: Guest) -> None:
    """Buffers that nothing writes to stay the same while the kernel runs."""
    states = {line["state"]: line for line in truth_about(standing_guest)["lines"] if "records" in line}
    chosen = [name for name in ("kc-pc", "kc-cmp", "kc-off", "kc-full") if states.get(name, {}).get("fds")]
    assert chosen
    shown = [f"fd:{states[name]['tgid']}/{states[name]['fds'][0]}" for name in chosen]
    for name, rows in zip(chosen, ask(standing_guest.target(), *(f"buffer {what} --raw" for what in shown)), strict=True):
        assert [hex(word) for word in words_of(rows)] == [hex(int(word, 16)) for word in states[name]["records"]], name


@pytest.mark.parametrize("state", ["hub-section", "softirq-over-local", "softirq-over-section"])
def test_section_in_flight(inflight_dump: StateDumpMaker, state: str) -> None:
    """A task in a section shows the section's area; the interrupted session has a name of its own."""
    dump = inflight_dump(state)
    section = dump.section
    assert section is not None
    buffers = section["buffers"]
    shown = [(str(section["pid"]), buffers["kcov_area"])]
    if buffers["saved_area"] is not None:
        shown += [(f"saved:t{section['pid']}", buffers["saved_area"]), (f"saved:{section['cpu']}", buffers["saved_area"])]
    for (name, truth), rows in zip(shown, ask(dump.target, *(f"buffer {name} --raw" for name, _ in shown)), strict=True):
        assert [hex(word) for word in words_of(rows)[: len(truth["first_words"])]] == truth["first_words"], name
        assert len(rows) == min(truth["count"], len(rows)), name
        assert re.fullmatch("pc|cmp", rows[0]["kind"])
