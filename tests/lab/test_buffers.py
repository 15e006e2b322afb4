# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every buffer of the guest, under each of its names, equals what user space printed, record by
record.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from typing import NamedTuple

import pytest

from kcovdbg.symbols.symbolizer import TAIL_CALL, TAIL_KNOWN
from tests.lab.comparison import lines_of, match_objects
from tests.lab.conftest import DumpMaker, StateDumpMaker
from tests.lab.contents import find_wrong_contents, words_of
from tests.lab.dump import truth_about
from tests.lab.guest import Guest
from tests.lab.kcovdbg_run import Rows, ask, ask_state, run_kcovdbg
from tests.lab.situation import Dump


class Standing(NamedTuple):
    """A dump of the standing states, and what is answered about it."""

    dump: Dump
    answers: Mapping[str, Rows]

    def name(self, state: str) -> str:
        """Return the name of a state's buffer."""
        states = self.dump.states()
        return f"kcov:{match_objects(states, self.answers['objects'])[states[state]['object']]['kcov']}"


@pytest.fixture(scope="module")
def standing(standing_dump: DumpMaker) -> Standing:
    dump = standing_dump()
    return Standing(dump, ask_state(dump.target))


def test_each_buffer_by_each_name(standing: Standing) -> None:
    dump = standing.dump
    told = {
        name: line
        for name, line in dump.states().items()
        if line.get("records") is not None and not line.get("bogus")
    }
    assert len(told) >= 20
    assert any(name.endswith("-cmp") and line["records"] for name, line in told.items())
    assert told.keys() <= {state for state, line in dump.states().items() if line.get("object")}
    assert find_wrong_contents(dump.target, dump.truth, standing.answers, every_name=True) == []


def test_addresses_and_names(standing: Standing) -> None:
    """The address is the PC plus the offset of the guest's own symbols, and is in the named
    function.
    """
    dump = standing.dump
    offset = int(dump.states()["kernel"]["symbols"]["_text"], 16) - 0xFFFFFFFF81000000
    (rows,) = ask(dump.target, f"buffer {standing.name('kc-pc')} --raw")
    symbols: dict[int, set[str]] = {}
    for address, kind, symbol in dump.kernel.symbols:
        if kind in "tT":
            symbols.setdefault(address, set()).add(symbol.split(".")[0])
    starts = sorted(symbols)
    assert rows
    for row in rows:
        pc = int(row["pc"], 16)
        assert int(row["address"], 16) == pc + offset
        # What a tail call recorded is an address of its caller's, and says so.
        if pc < 0xFFFFFFFFA0000000 and not {TAIL_CALL, TAIL_KNOWN}.intersection(row["errors"]):
            assert row["symbol"] in symbols[starts[bisect_left(starts, pc) - 1]], row


def test_full_and_hostile_buffers_say_so(standing: Standing) -> None:
    for state in ("kc-full", "kc-over", "kc-over-cmp"):
        capacity = standing.dump.states()[state]["capacity"]
        done = run_kcovdbg(*standing.dump.target, "-e", f"buffer {standing.name(state)} -n 3")
        title, *_ = done.stdout.splitlines()
        assert f"{capacity} of {capacity} records, FULL" in title
        assert [
            line
            for line in done.stdout.splitlines()
            if line.startswith("note: full:") and str(capacity) in line
        ]


def test_running_guest(standing_guest: Guest) -> None:
    """Buffers that nothing writes to stay the same while the kernel runs."""
    states = lines_of(truth_about(standing_guest))
    chosen = [
        name
        for name in ("kc-pc", "kc-cmp", "kc-off", "kc-full")
        if states[name].get("records") and states[name]["fds"]
    ]
    assert chosen
    shown = [f"fd:{states[name]['tgid']}/{states[name]['fds'][0]}" for name in chosen]
    for name, rows in zip(
        chosen,
        ask(standing_guest.target(), *(f"buffer {what} --raw" for what in shown)),
        strict=True,
    ):
        assert [hex(word) for word in words_of(rows)] == [
            hex(int(word, 16)) for word in states[name]["records"]
        ], name


@pytest.mark.parametrize("state", ["hub-section", "softirq-over-local", "softirq-over-section"])
def test_section_in_flight(inflight_dump: StateDumpMaker, state: str) -> None:
    """A task in a section shows the section's area; the interrupted session has a name of its
    own.
    """
    dump = inflight_dump(state)
    section = dump.section
    assert section is not None
    buffers = section["buffers"]
    shown = [(str(section["pid"]), buffers["kcov_area"])]
    if buffers["saved_area"] is not None:
        shown += [
            (f"saved:t{section['pid']}", buffers["saved_area"]),
            (f"saved:{section['cpu']}", buffers["saved_area"]),
        ]
    for (name, truth), rows in zip(
        shown, ask(dump.target, *(f"buffer {name} --raw" for name, _ in shown)), strict=True
    ):
        assert [hex(word) for word in words_of(rows)[: len(truth["first_words"])]] == truth[
            "first_words"
        ], name
        assert len(rows) == min(truth["count"], len(rows)), name
        assert re.fullmatch("pc|cmp", rows[0]["kind"])
