# SPDX-License-Identifier: LGPL-2.1-or-later
"""kcov_writing: a flag keeps interrupts from recording while a task does, posted in 2022 (kcov-abi.md 8.3).

Superseded by the count that is written first (v6.0).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Final

from kcovdbg.abi.structures import TASK
from kcovdbg.errors import ReadError
from kcovdbg.model.finding import Severity
from kcovdbg.model.object_names import name_task
from kcovdbg.model.rule import Violation, rule, values
from kcovdbg.model.state import Part, State
from kcovdbg.model.task import TaskFields
from kcovdbg.series.declaration import BufferReader, Detection, Series, SeriesMember, SeriesState, Variant
from kcovdbg.target.protocol import Target
from kcovdbg.target.struct_layout import find_member

WRITING: Final = "writing"

_RECORDING: Final = ("__sanitizer_cov_trace_", "write_comp_data")


def _read(target: Target, state: State, read_buffer: BufferReader) -> SeriesState:
    """Read which tasks have the flag, ``struct task_struct *``."""
    del read_buffer
    member = find_member(target, TASK, ("kcov_writing",))
    marked: set[int] = set()
    for fields in state.task_fields if member is not None else ():
        with contextlib.suppress(ReadError):
            if member is not None and any(target.read(fields.address + member.offset, member.size)):
                marked.add(fields.address)
    return SeriesState(frozenset(marked))


def _suspects(state: State) -> list[TaskFields]:
    """Return the tasks that are switched out with the flag: a running one may be about to clear it."""
    marked: frozenset[int] = state.series[WRITING]
    return [
        fields
        for fields in state.task_fields
        if fields.address in marked and not fields.on_cpu and fields.address not in state.running
    ]


@rule(
    "T13",
    Severity.ERROR,
    "a task is marked as recording while it records",
    since="posted series of 2022 with kcov_writing",
    guaranteed_by="__sanitizer_cov_trace_pc()",
    consequence=(
        "If the mark stays, the task records nothing; without it, an interrupt spoils the record that is being written."
    ),
    needs=Part.SERIES | Part.TASKS | Part.CURRENT,
    features=(WRITING,),
    stacks=lambda state: (fields.address for fields in _suspects(state)),
    detail="A task that was interrupted while it recorded, and switched out, has the function on its stack.",
)
def check_writing(state: State) -> Iterator[Violation]:
    """T13."""
    for fields in _suspects(state):
        stack = state.stack(fields.address)
        if stack and not any((frame.function or "").startswith(_RECORDING) for frame in stack):
            yield Violation(
                name_task(fields),
                "it is marked as recording, but is in no function that records: nothing is recorded any more",
                values(kcov_writing=1),
                tasks=(fields.address,),
            )


def _detect(target: Target, enumerators: Mapping[str, int]) -> Detection | None:
    del enumerators
    return None if find_member(target, TASK, ("kcov_writing",)) is None else Detection(frozenset({WRITING}), VARIANT)


VARIANT: Final = Variant(
    "kcov_writing (2022)",
    recognized_by="`kcov_writing` in `task_struct`",
    also_shown="a flag that was left set, by `check` (T13)",
    tested_on="in memory only",
    not_shown="the flag itself",
)

SERIES: Final = Series(
    name="kcov_writing",
    feature=WRITING,
    features=(WRITING,),
    variants=(VARIANT,),
    detect=_detect,
    members=(SeriesMember(TASK, ("kcov_writing",), expected=False),),
    read=_read,
    rules=(check_writing,),
)
