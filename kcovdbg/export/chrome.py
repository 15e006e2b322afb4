# SPDX-License-Identifier: LGPL-2.1-or-later
"""Chrome's trace event format as a JSON object: Perfetto, chrome://tracing and speedscope read it.

The format has one axis, ``ts``, and readers label it as microseconds. KCOV has no clock: the values are ordinals of
records, and the file says so, in ``otherData`` and in the name of the thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from kcovdbg.records.call import Edge
from kcovdbg.model.location import Frame
from kcovdbg.console.escape import escape

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
