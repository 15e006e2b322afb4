# SPDX-License-Identifier: LGPL-2.1-or-later
"""A recording of ``monitor`` as counters over time, in Chrome's trace event format, which Perfetto reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from kcovdbg.model.sample import Sample
from kcovdbg.render.escape import escape

# The process that the kernel's own counters are shown under: process 0 is the idle task to readers, and -1 is none.
_KERNEL: Final = -1


class _Counter(NamedTuple):
    """What a counter is told apart by. Perfetto shows it as its name and unit, in this order."""

    pid: int
    name: str
    unit: str
    tid: int | None = None


# Not counted in every look.
_OBJECTS: Final = _Counter(_KERNEL, "kcov", "objects")


def timeline_lines(samples: Iterable[Sample], facts: Mapping[str, str | None]) -> Iterator[str]:
    """Iterate over the file's lines: one JSON object.

    A task's counters stand under its process and are 0 once it is gone. ``ts`` is in microseconds since the first look.

    :param samples: in order of time.
    :param facts: the target's name, release and build ID.
    """
    encode = json.JSONEncoder(ensure_ascii=True).encode
    began: float | None = None
    names = {_KERNEL: "KCOV"}
    before: set[_Counter] = set()
    yield f'{{"otherData": {encode({**facts, "exporter": "kcovdbg"})},'
    yield '"traceEvents": ['
    for sample in samples:
        began = sample.time if began is None else began
        at = round((sample.time - began) * 1e6)
        for task in sample.tasks:
            if task.tgid is not None:
                names.setdefault(task.tgid, escape(task.comm or ""))
        values = dict(_counters(sample))
        # What is missing is gone, unless it could not be read.
        present = {task.pid for task in sample.tasks}
        absent = () if sample.errors else before - values.keys() - {_OBJECTS}
        gone = [counter for counter in absent if counter.tid not in present]
        for counter, value in (*values.items(), *((counter, 0) for counter in sorted(gone))):
            event = {"ph": "C", "ts": at, "pid": counter.pid, "name": counter.name, "args": {counter.unit: value}}
            yield f"{encode(event)},"
        before = (before | values.keys()).difference(gone)
        for finding in sample.findings or ():
            arguments = {"object": escape(finding.object), "message": escape(finding.message)}
            event = {"ph": "i", "s": "p", "ts": at, "pid": _KERNEL, "tid": _KERNEL, "cat": finding.severity}
            yield f"{encode({**event, 'name': finding.rule, 'args': arguments})},"
    # At the end, as the names are known then; the last one has no comma behind it.
    last = len(names) - 1
    for number, (pid, name) in enumerate(names.items()):
        label = {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
        yield encode(label) + ("," if number < last else "")
    yield "]}"


def _counters(sample: Sample) -> Iterator[tuple[_Counter, float]]:
    for task in sample.tasks:
        if task.pid is None or task.tgid is None:
            continue
        who = f"{task.pid} {escape(task.comm or '')}" + (f" {task.device}" if task.device else "")
        if task.count is not None:
            yield _Counter(task.tgid, f"buffer of {who}", "words" if task.device else "records", task.pid), task.count
        if task.fill is not None:
            yield _Counter(task.tgid, f"fill of {who}", "%", task.pid), round(100 * task.fill, 2)
    if sample.objects is not None:
        yield _OBJECTS, len(sample.objects)
    for area in sample.areas:
        which = f"{area.device} " if area.device else ""
        yield _Counter(_KERNEL, f"{which}{area.list} {area.state}", "areas"), area.areas
