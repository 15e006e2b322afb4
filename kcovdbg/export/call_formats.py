# SPDX-License-Identifier: LGPL-2.1-or-later
"""Formats of calls, from records of entries and exits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from kcovdbg.console.text import escape
from kcovdbg.model.location import Frame
from kcovdbg.records.call_tree import Call, Edge, own_records

DEEPEST: Final = 512
"""Records of deeper calls are counted for the caller at this depth. A kernel stack of 16 KiB has no room for so many frames; a
damaged trace that holds entries only would otherwise need space quadratic in its length."""


class Stacks:
    """Records of calls, summed up by call stack.

    :param calls: from :func:`~kcovdbg.records.call_tree.build_calls`.
    :param name_of: returns the function's name for a call's PC.
    """

    def __init__(self, calls: Iterable[Call], name_of: Callable[[int], str]) -> None:
        # A node is identified by its parent's number and its name; -1 is the root.
        self._nodes: dict[tuple[int, str], int] = {}
        self._keys: list[tuple[int, str]] = []
        self._records: list[int] = []
        self.records = 0
        """Number of records in all calls."""
        self.cut = 0
        """Number of calls deeper than :data:`DEEPEST`."""
        path: list[int] = []
        names: dict[int, str] = {}
        for call in calls:
            own = own_records(call)
            self.records += own
            if call.depth >= DEEPEST:
                self.cut += 1
                self._records[path[DEEPEST - 1]] += own
                continue
            del path[call.depth :]
            name = names.get(call.pc)
            if name is None:
                name = names[call.pc] = name_of(call.pc)
            key = (path[-1] if path else -1, name)
            node = self._nodes.get(key)
            if node is None:
                node = self._nodes[key] = len(self._keys)
                self._keys.append(key)
                self._records.append(0)
            self._records[node] += own
            path.append(node)

    def __iter__(self) -> Iterator[tuple[tuple[str, ...], int]]:
        """Iterate over stacks: names, outermost first, and the number of records of the innermost call itself."""
        for node, records in enumerate(self._records):
            names: list[str] = []
            while node >= 0:
                node, name = self._keys[node]
                names.append(name)
            yield tuple(reversed(names)), records


def folded_lines(stacks: Iterable[tuple[Sequence[str], int]]) -> Iterator[str]:
    """Iterate over the lines.

    :param stacks: names of functions, outermost first, and how many records are that stack's own.
    """
    known: dict[str, str] = {}
    for stack, records in stacks:
        yield f"{';'.join([known.get(name) or known.setdefault(name, _frame(name)) for name in stack])} {records}"


def _frame(name: str) -> str:
    return escape(name).replace(";", "\\x3b").replace(" ", "\\x20")


SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"


def speedscope_lines(name: str, edges: Iterable[Edge], end: int, frame_of: Callable[[int], Frame]) -> Iterator[str]:
    """Iterate over the file's lines.

    :param name: of the profile.
    :param edges: where calls open and close: balanced, in order.
    :param end: the axis runs from 0 to here: the number of records.
    :param frame_of: from a call's PC to the frame that stands for its function.
    """
    encode = json.JSONEncoder(ensure_ascii=True).encode
    title = encode(escape(name))
    indices: dict[int, int] = {}
    frames: dict[tuple[str, str | None], int] = {}
    shown: list[dict[str, object]] = []

    def index_of(pc: int) -> int:
        """Return the frames by function and file; a function has several PCs."""
        found = indices.get(pc)
        if found is None:
            frame = frame_of(pc)
            function = frame.function or f"{pc:#x}"
            found = indices[pc] = frames.setdefault((function, frame.file), len(frames))
            if found == len(shown):
                shown.append({"name": escape(function)} | _place(frame))
        return found

    yield f'{{"$schema": {encode(SCHEMA)}, "exporter": "kcovdbg", "name": {title}, "activeProfileIndex": 0,'
    yield f'"profiles": [{{"type": "evented", "name": {title}, "unit": "none", "startValue": 0, "endValue": {end}, "events": ['
    comma = ""
    open_frames: list[int] = []
    for edge in edges:
        # A call closes the frame that it opened: its entry and exit may differ in their PCs, its frame may not.
        if edge.is_open:
            open_frames.append(index_of(edge.call.pc))
        number = open_frames[-1] if edge.is_open else open_frames.pop()
        yield f'{comma}{{"type": "{"O" if edge.is_open else "C"}", "frame": {number}, "at": {edge.at}}}'
        comma = ","
    yield "]}],"
    yield f'"shared": {{"frames": {encode(shown)}}}}}'


def _place(frame: Frame) -> dict[str, object]:
    place: dict[str, object] = {}
    if frame.file is not None:
        place["file"] = escape(frame.file)
        if frame.line is not None:
            place["line"] = frame.line
    return place


ORDINALS: Final = "ordinals of records, not time: KCOV has no clock"


def chrome_lines(
    name: str, edges: Iterable[Edge], frame_of: Callable[[int], Frame], *, pid: int = 0, comm: str | None = None
) -> Iterator[str]:
    """Iterate over the file's lines.

    :param name: of the trace.
    :param edges: where calls open and close: balanced, in order.
    :param frame_of: from a call's PC to the frame that stands for its function.
    :param pid: of the task; process and thread are one here.
    :param comm: its name.
    """
    encode = json.JSONEncoder(ensure_ascii=True).encode
    other = {"ts": ORDINALS, "trace": escape(name), "exporter": "kcovdbg"}
    yield f'{{"otherData": {encode(other)},'
    yield '"traceEvents": ['
    for kind, text in (("process_name", comm or name), ("thread_name", f"by ordinal of the record, not time: {name}")):
        yield encode({"ph": "M", "name": kind, "pid": pid, "tid": pid, "args": {"name": escape(text)}}) + ","
    known: dict[int, tuple[str, str]] = {}
    place = f'"pid": {pid}, "tid": {pid}'
    for edge in edges:
        pc = edge.call.pc
        found = known.get(pc)
        if found is None:
            frame = frame_of(pc)
            arguments: dict[str, str | int] = {} if frame.file is None else {"file": escape(frame.file)}
            if frame.line is not None:
                arguments["line"] = frame.line
            # speedscope writes empty ones behind the name.
            shown = f', "args": {encode(arguments)}' if arguments else ""
            found = known[pc] = encode(escape(frame.function or f"{pc:#x}")), shown
        function, shown = found
        if edge.is_open:
            kind = json.dumps(edge.call.kind.value)
            yield (f'{{"ph": "B", "ts": {edge.at}, {place}, "name": {function}, "cat": {kind}{shown}}},')
        else:
            yield f'{{"ph": "E", "ts": {edge.at}, {place}, "name": {function}}},'
    # The list ends in an event without a comma: one that names the axis once more.
    yield encode({"ph": "M", "name": "process_labels", "pid": pid, "tid": pid, "args": {"labels": "ts: ordinals of records"}})
    yield "]}"
