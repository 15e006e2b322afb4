# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compares what kcovdbg shows of buffers with the words that user space saw in them, record by
record.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.lab.comparison import (
    MOVED_BY_TRAFFIC,
    areas_of,
    find_disagreements,
    lines_of,
    match_objects,
)
from tests.lab.kcovdbg_run import ask

# The uppermost four bits of a record of KCOV_TRACE_PC_EXT.
_KINDS = {0xF: "pc", 0x0: "entry", 0x1: "exit"}


def find_wrong_contents(
    target: Sequence[str | Path],
    truth: Mapping[str, Any],
    answers: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    every_name: bool = False,
) -> list[str]:
    """Read each buffer whose records the guest printed, by its object and by its task where it
    collects; return what is wrong.

    :param target: the options that name it and its debug info.
    :param answers: what `objects` and `tasks` answered of the same target.
    :param every_name: read it by its descriptor and by its area as well.
    """
    states = lines_of(truth)
    if truth.get("section"):
        states = {
            name: line
            for name, line in states.items()
            if not name.startswith("kc-traffic") and line.get("object") not in MOVED_BY_TRAFFIC
        }
    asked = list(_names(states, answers, every_name=every_name))
    found = [] if asked else ["no state's records were printed"]
    shown = ask(target, *(f"buffer {name} --raw" for _, name, _ in asked))
    for (state, name, key), rows in zip(asked, shown, strict=True):
        line = states[state]
        # Addresses and edges that are recorded at once are in one answer.
        both = [*line[key], *line["edges"]] if key == "records" and line.get("edges") else line[key]
        found += _disagreements(f"{state}: buffer {name}", line, both, rows)
    return found + list(_wrong_device_contents(target, states, answers))


_DATAFLOW_KINDS = {0xC: "cmp", 0xE: "argument", 0xF: "return"}
_UNREADABLE = 0xBADADD85
# Which arguments of the functions are recorded.
_ARGUMENTS = {"getpriority": (0, 1), "do_prlimit": (1, 2), "usb_control_msg": (2, 4)}
_SAID = re.compile(r"kcov_df (\d+) (\w+) (\S.*)")


def decode_dataflow(words: Sequence[int]) -> list[dict[str, Any]]:
    """Decode records of kcov_dataflow as the posting describes them."""
    found, at = [], 0
    while at < len(words):
        head, pc, third = words[at : at + 3]
        values = words[at + 3 : at + 3 + (head >> 32 & 0xFFFF)]
        found.append(_record(head >> 28 & 0xF, pc, head >> 56, third, values))
        at += 3 + len(values)
    return found


def _record(
    kind: int, pc: int, argument: int, pointer: int, values: Sequence[int]
) -> dict[str, Any]:
    name = _DATAFLOW_KINDS[kind]
    return {
        "pc": hex(pc),
        "kind": name,
        "argument": argument if name == "argument" else None,
        "pointer": None if name == "cmp" else hex(pointer),
        "values": [None if value == _UNREADABLE else hex(value) for value in values],
    }


def calls_said(log: str) -> list[tuple[int, list[Any]]]:
    """Return calls as the functions told the kernel's log, each with its task: function, arguments,
    result.
    """
    found: list[tuple[int, list[Any]]] = []
    last: dict[int, list[Any]] = {}
    for task, function, said in _SAID.findall(log):
        tid = int(task)
        numbers = [int(number) for number in re.findall(r"=(-?\d+)", said)]
        if said.startswith("return="):
            # Only one of them returns a long.
            last[tid][2] = numbers[0] % (1 << 64 if function == "getpriority" else 1 << 32)
            continue
        last[tid] = [
            function,
            [numbers[0], numbers[1:] or [None, None]] if function == "do_prlimit" else numbers,
            None,
        ]
        found.append((tid, last[tid]))
    return found


def account_of(
    passed: Sequence[Sequence[Any]],
) -> list[tuple[str, str, int | None, list[str | None]]]:
    """Return function, kind, argument and values of each record that calls must leave."""
    found: list[tuple[str, str, int | None, list[str | None]]] = []
    for function, arguments, result in passed:
        for number, value in zip(_ARGUMENTS[function], arguments, strict=True):
            values = value if isinstance(value, list) else [value]
            found.append(
                (
                    function,
                    "argument",
                    number,
                    [None if one is None else hex(one) for one in values],
                )
            )
        if function == "getpriority":
            found.append((function, "cmp", None, ["0x2", hex(arguments[0])]))
        if result is not None:
            found.append((function, "return", None, [hex(result)]))
    return found


def _wrong_device_contents(
    target: Sequence[str | Path],
    states: Mapping[str, Mapping[str, Any]],
    answers: Mapping[str, Sequence[Mapping[str, Any]]],
) -> Iterator[str]:
    """Read each buffer of kcov_dataflow, and yield what is not as the guest saw it, or not what it
    passed.
    """
    by_descriptor = {
        (ref["pid"], ref["fd"]): row["kcov"]
        for row in answers["objects"]
        if row.get("device")
        for ref in row["references"]
        if ref["kind"] == "fd"
    }
    for state, line in states.items():
        if "words" not in line.get("dataflow", ()):
            continue
        name = f"dataflow:{by_descriptor[line['tgid'], line['dataflow']['fd']]}"
        (rows,) = ask(target, f"buffer {name}")
        account = account_of(line["passed"]) if "passed" in line else None
        words = [int(word, 16) for word in line["dataflow"]["words"]]
        expected = decode_dataflow(words)
        shown = [
            {key: row[key] for key in ("pc", "kind", "argument", "pointer", "values")}
            for row in rows
        ]
        if line["dataflow"]["handle"] != "0x0":
            # Sections go on while the guest speaks.
            shown = shown[: len(expected)]
        if shown != expected:
            yield f"{state}: buffer {name} has {shown}, the guest printed {expected}"
        if not expected:
            yield f"{state}: nothing was recorded"
        found = [
            (plain_function(row["symbol"]), row["kind"], row["argument"], row["values"])
            for row in rows
        ]
        if account is not None and found != account:
            yield f"{state}: buffer {name} has {found}, the guest passed {account}"


def plain_function(symbol: str) -> str:
    return symbol.removeprefix("__x64_sys_").removeprefix("__do_sys_").split(".")[0]


def _names(
    states: Mapping[str, Mapping[str, Any]],
    answers: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    every_name: bool,
) -> Iterator[tuple[str, str, str]]:
    """Yield state, a buffer's name, and where in the state's line its records are."""
    objects = match_objects(states, answers["objects"])
    tasks = {row["pid"]: row for row in answers["tasks"]}
    for state, line in states.items():
        row = objects.get(line.get("object") or "")
        if row is None or line.get("records") is None or line.get("bogus"):
            continue
        yield state, f"kcov:{row['kcov']}", "records"
        task = tasks.get(line["tid"])
        is_local = task is not None and (task["role"], task["kcov"]) == ("local", row["kcov"])
        if is_local or (
            every_name and task is not None and row["kcov"] in (task["kcov"], task["kcov_remote"])
        ):
            yield state, str(line["tid"]), "records"
        if every_name:
            yield from ((state, f"fd:{line['tgid']}/{fd}", "records") for fd in line["fds"][:1])
            if row["area"] not in (None, "0x0"):
                yield state, f"area:{row['area']}", "records"
        if line.get("edges"):
            # No two objects are of one size: what else of this size was made for mapping is the
            # edges' buffer.
            page = states["kernel"]["page_size"]
            length = (-(-line["size"] * 8 // page) + 1) * page
            made = {
                area["start"]
                for area in areas_of(states)
                if area["user"] and area["size"] == length
            }
            yield state, f"area:{(made - {row['area']}).pop()}", "edges"


def words_of(rows: Iterable[Mapping[str, Any]]) -> list[int]:
    """Return the words of records as the kernel laid them out."""
    words: list[int] = []
    for row in rows:
        if "arg1" in row:
            words += [int(row[key], 16) for key in ("type", "arg1", "arg2")]
        words.append(int(row["pc"], 16))
    return words


def _disagreements(
    what: str, line: Mapping[str, Any], expected: Sequence[str], rows: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    shown, wanted = words_of(rows), [int(word, 16) for word in expected]
    if shown != wanted:
        at = next(
            (
                index
                for index, pair in enumerate(zip(shown, wanted, strict=False))
                if pair[0] != pair[1]
            ),
            "the end",
        )
        yield f"{what}: {len(shown)} words, the guest printed {len(wanted)}; they differ at {at}"
    for index, row in enumerate(rows):
        # Those of edges follow.
        told: dict[str, Any] = {} if line.get("edges") else {"index": index}
        if "arg1" in row:
            kind = int(row["type"], 16)
            told |= {"kind": "cmp", "size": 1 << (kind >> 1 & 3), "const": bool(kind & 1)}
        if line.get("extended") and index < len(wanted):
            told["kind"] = _KINDS[wanted[index] >> 60]
        yield from find_disagreements(f"{what}: record {index}", row, told)
    if line.get("extended") and {row["kind"] for row in rows} != set(_KINDS.values()):
        yield f"{what}: there are not records of all kinds"
