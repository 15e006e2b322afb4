# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compares answers of kcovdbg with what an imitation printed about itself; differences are returned
as sentences.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tests.integration.imitations.build import Imitation
from tests.lab.comparison import find_disagreements

Row = Mapping[str, Any]
Ask = Callable[[str], Sequence[Row]]
"""Answers a command by the rows of its ``--json``."""

_TASK_KEYS = (
    "task tgid comm cpu kcov kcov_remote kcov_mode kcov_size kcov_area kcov_handle "
    "kcov_sequence kcov_softirq in_ctxsw role "
    "beneath owns_remote count full"
).split()
_differ = functools.partial(find_disagreements, source="the program says")
_IDLE_CPUS = 2
_PRINTED = 40


def find_differences(imitation: Imitation, ask: Ask) -> list[str]:
    """Return all differences between truth and answers; empty if there is none."""
    objects = {line["object"]: line for line in imitation.lines("object")}
    return [
        *_compare_kernel(imitation.lines("kernel")[0], ask("info")),
        *_compare_tasks(imitation.lines("task"), ask("tasks -a")),
        *_compare_objects(objects, ask("objects")),
        *_compare_handles(objects, ask("remote")),
        *_compare_areas(imitation, ask("areas")),
        *_compare_saved(imitation.lines("saved"), ask("percpu")),
        *(f"check: {row['rule']} {row['object']}: {row['message']}" for row in ask("check")),
        *_compare_buffers(imitation, ask),
    ]


def _compare_kernel(kernel: Row, rows: Sequence[Row]) -> Iterator[str]:
    (info,) = rows
    yield from _differ(
        "info",
        info,
        {key: kernel[key] for key in ("release", "machine", "build_id", "kaslr_offset")},
    )
    yield from (f"info: {error}" for error in info["errors"])


def _compare_tasks(truth: Sequence[Row], rows: Sequence[Row]) -> Iterator[str]:
    tasks = {row["task"]: row for row in rows}
    if len(rows) != len(tasks):
        yield "a task is listed twice"
    idle = [
        row
        for row in rows
        if row["pid"] == 0 and row["task"] not in {line["task"] for line in truth}
    ]
    if [(row["comm"], row["role"], row["kcov"]) for row in idle] != [
        (f"swapper/{1 + cpu}", "none", "0x0") for cpu in range(_IDLE_CPUS)
    ]:
        yield f"idle tasks are {idle}"
    if len(rows) != len(truth) + _IDLE_CPUS:
        yield (
            f"{len(rows)} tasks are listed, the program has {len(truth)} and {_IDLE_CPUS} idle ones"
        )
    for line in truth:
        row = tasks.get(line["task"])
        if row is None:
            yield f"task {line['pid']} is missing"
            continue
        yield from _differ(f"task {line['pid']}", row, {key: line[key] for key in _TASK_KEYS})
        if line["paused"] != any("bit 29" in error for error in row["errors"]):
            yield (
                f"task {line['pid']} is{'' if line['paused'] else ' not'} paused, and "
                f"{row['errors']} is said"
            )
        yield from (
            f"task {line['pid']}: {error}" for error in row["errors"] if "bit 29" not in error
        )


# What build_dataflow() of imitation.c makes: the task has a session for it, and holds a reference.
_DEVICE_OBJECT = {"device": "dataflow", "refcount": 2, "counted": 2, "pid": 44, "count": 0}


def _compare_objects(truth: Mapping[str, Row], rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        if row["device"] is not None:
            yield from _differ("the device's object", row, _DEVICE_OBJECT)
    found = {row["kcov"]: row for row in rows if row["device"] is None}
    if len(found) != len(truth):
        yield f"{len(found)} objects are listed, the program has {len(truth)}"
    for name, line in truth.items():
        row = found.get(line["kcov"])
        if row is None:
            yield f"object {name} is missing"
            continue
        expected = {
            key: line[key]
            for key in (
                "refcount",
                "size",
                "area",
                "t",
                "comm",
                "remote",
                "remote_size",
                "sequence",
            )
        }
        expected |= {
            "mode": line["kcov_mode"],
            "pid": line["owner_tid"],
            "count": line["count"],
            "full": line["full"],
        }
        expected["counted"] = line["refcount"]
        if line["capacity"] is not None:
            expected["capacity"] = line["capacity"]
        yield from _differ(f"object {name}", row, expected)
        yield from (f"object {name}: {error}" for error in row["errors"])
        references = row["references"]
        sharers = [line["tgid"], line["sharer"]] if line["sharer"] else [line["tgid"]]
        descriptors = {
            (ref["pid"], ref["fd"])
            for ref in references
            if ref["kind"] == "fd" and ref["fd"] is not None
        }
        if descriptors != {(pid, fd) for pid in sharers for fd in line["fds"]}:
            yield (
                f"object {name}: descriptors are {sorted(descriptors)}, the program has "
                f"{line['fds']} in {sharers}"
            )
        mappings = {(ref["pid"], ref["start"]) for ref in references if ref["kind"] == "vma"}
        if mappings != {(pid, line["map_start"]) for pid in sharers if line["mapped"]}:
            yield (
                f"object {name}: mappings are {mappings}, the program has {line['map_start']} in "
                f"{sharers}"
            )


def _compare_handles(objects: Mapping[str, Row], rows: Sequence[Row]) -> Iterator[str]:
    expected = {
        (entry["handle"], entry["bucket"], line["kcov"], line["owner_tid"], line["comm"])
        for line in objects.values()
        for entry in line["handles"]
    }
    found = {(row["handle"], row["bucket"], row["kcov"], row["pid"], row["comm"]) for row in rows}
    if found != expected or len(rows) != len(expected):
        yield f"handles are {sorted(found)}, the program has {sorted(expected)}"


def _compare_areas(imitation: Imitation, rows: Sequence[Row]) -> Iterator[str]:
    def sort_key(area: tuple[Any, ...]) -> str:
        return str(area[0])

    expected = {
        (line["area"], line["size"], line["list"], line["how"], line["pid"], line["cpu"])
        for line in imitation.lines("area")
    }
    found = {
        (row["area"], row["size"], row["list"], row["state"], row["pid"], row["cpu"])
        for row in rows
    }
    if found != expected or len(rows) != len(expected):
        yield (
            f"areas are {sorted(found, key=sort_key)}, the program has "
            f"{sorted(expected, key=sort_key)}"
        )
    private = {area["start"] for area in imitation.lines("vmalloc")[0]["areas"] if not area["user"]}
    if private != {row["area"] for row in rows}:
        yield (
            f"areas are at {sorted(row['area'] for row in rows)}, the program allocated "
            f"{sorted(private)}"
        )


def _compare_saved(truth: Sequence[Row], rows: Sequence[Row]) -> Iterator[str]:
    found = {row["pid"]: row for row in rows}
    if set(found) != {line["pid"] for line in truth}:
        yield f"saved sessions are {rows}, the program has {truth}"
        return
    for line in truth:
        yield from _differ(
            f"saved session of {line['pid']}",
            found[line["pid"]],
            {key: line[key] for key in line if key != "state"},
        )


def _list_buffers(imitation: Imitation) -> Iterator[tuple[str, Sequence[Row]]]:
    """Yield the name of each buffer and its records."""
    for line in imitation.lines("task"):
        if "records" in line:
            yield str(line["pid"]), line["records"]
    for line in imitation.lines("object"):
        if line["count"] is not None:
            yield f"kcov:{line['kcov']}", line["records"]
    for line in imitation.lines("saved"):
        records = next(
            kcov["records"]
            for kcov in imitation.lines("object")
            if kcov["kcov"] == line["saved_kcov"]
        )
        yield f"saved:{line['cpu']}", records


def _compare_buffers(imitation: Imitation, ask: Ask) -> Iterator[str]:
    for name, records in _list_buffers(imitation):
        yield from _compare_records(name, records, ask(f"buffer {name}"))


def _compare_records(name: str, truth: Sequence[Row], rows: Sequence[Row]) -> Iterator[str]:
    # The program prints the first ones of a long buffer.
    if len(rows) < len(truth) or (len(truth) < _PRINTED and len(rows) != len(truth)):
        yield f"buffer {name} has {len(rows)} records, the program wrote {len(truth)}"
        return
    for line, row in zip(truth, rows, strict=False):
        expected = {key: line[key] for key in line if key != "function"} | {
            "symbol": line["function"]
        }
        different = list(_differ(f"buffer {name}, record {row['index']}", row, expected))
        if not different and not row["frames"][0]["file"].endswith("imitation.c"):
            different.append(f"buffer {name}, record {row['index']}: it is in {row['frames'][0]}")
        if different:
            # The others are wrong in the same way.
            yield from different
            return
