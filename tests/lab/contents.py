# SPDX-License-Identifier: LGPL-2.1-or-later
"""Holds what kcovdbg shows of buffers against the words that user space saw in them, record by record."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.lab.comparison import lines_of, match_objects
from tests.lab.kcovdbg_run import run_kcovdbg

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

# The uppermost four bits of a record of KCOV_TRACE_PC_EXT.
_KINDS = {0xF: "pc", 0x0: "entry", 0x1: "exit"}


def find_wrong_contents(
    target: Sequence[str | Path],
    symbols: Sequence[str | Path],
    truth: Mapping[str, Any],
    answers: Mapping[str, Sequence[Mapping[str, Any]]],
) -> list[str]:
    """Read each buffer whose records the guest printed, by its object and by its task where it collects; return what is wrong.

    :param answers: what `objects` and `tasks` answered of the same target.
    """
    states = lines_of(truth)
    if truth.get("section"):
        states = {name: line for name, line in states.items() if not name.startswith("kc-traffic")}
    asked = list(_names(states, answers))
    words = [word for _, name, _ in asked for word in ("-e", f"buffer {name} --raw --json")]
    done = run_kcovdbg(*target, *symbols, *words, timeout=600)
    decoder, position = json.JSONDecoder(), 0
    found = [] if asked else ["no state's records were printed"]
    for state, name, key in asked:
        while position < len(done.stdout) and done.stdout[position].isspace():
            position += 1
        try:
            rows, position = decoder.raw_decode(done.stdout, position)
        except ValueError:
            return [*found, f"{state}: buffer {name} has no answer: {done.stderr.strip()}"]
        line = states[state]
        # Addresses and edges that are recorded at once are in one answer.
        both = [*line[key], *line["edges"]] if key == "records" and line.get("edges") else line[key]
        found += _disagreements(f"{state}: buffer {name}", line, both, rows)
    return found


def _names(
    states: Mapping[str, Mapping[str, Any]], answers: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Iterator[tuple[str, str, str]]:
    """Yield state, a buffer's name, and where in the state's line its records are."""
    objects = match_objects(states, answers["objects"])
    tasks = {row["pid"]: row for row in answers["tasks"]}
    moved = {"kc-usb", "kc-remote", "kc-remote2"}
    for state, line in states.items():
        row = objects.get(line.get("object") or "")
        if row is None or not line.get("records") or line["object"] in moved:
            continue
        yield state, f"kcov:{row['kcov']}", "records"
        task = tasks.get(line["tid"])
        if task is not None and task["role"] == "local" and task["kcov"] == row["kcov"]:
            yield state, str(line["tid"]), "records"
        if line.get("edges"):
            # No two objects are of one size: what else of this size was made for mapping is the edges' buffer.
            length = (line["size"] * 8 + 4095) // 4096 * 4096 + 4096
            made = {area["start"] for area in states["vmalloc"]["areas"] if area["user"] and area["size"] == length}
            yield state, f"area:{(made - {row['area']}).pop()}", "edges"


def _disagreements(
    what: str, line: Mapping[str, Any], expected: Sequence[str], rows: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    shown: list[int] = []
    for row in rows:
        if "arg1" in row:
            shown += [int(row[key], 16) for key in ("type", "arg1", "arg2")]
        shown.append(int(row["pc"], 16))
    wanted = [int(word, 16) for word in expected]
    if shown != wanted:
        at = next((index for index, pair in enumerate(zip(shown, wanted, strict=False)) if pair[0] != pair[1]), "the end")
        yield f"{what}: {len(shown)} words, the guest printed {len(wanted)}; they differ at {at}"
    if line.get("extended"):
        for word, row in zip(wanted, rows, strict=False):
            if row["kind"] != _KINDS[word >> 60]:
                yield f"{what}: record {row['index']} ({word:#x}) is said to be {row['kind']}"
                return
        kinds = {row["kind"] for row in rows}
        if kinds != set(_KINDS.values()):
            yield f"{what}: its records are of kinds {sorted(kinds)} only"
