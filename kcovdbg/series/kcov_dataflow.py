# SPDX-License-Identifier: LGPL-2.1-or-later
"""kcov_dataflow: a second device that records data flow, by Yunseong Kim, 2026 (kcov-abi.md 8.5).

The first posting is in kcov.c, later ones in a file of their own. The device, its objects and its records are not shown.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from kcovdbg.abi.structures import TASK
from kcovdbg.errors import MissingTypeError, ReadError
from kcovdbg.model.finding import Severity
from kcovdbg.model.object_names import name_task
from kcovdbg.model.rule import Hex, Violation, rule, values
from kcovdbg.model.state import Part, State
from kcovdbg.series.declaration import BufferReader, Detection, Series, SeriesMember, SeriesState, Variant
from kcovdbg.target.pointer import check_pointer
from kcovdbg.target.protocol import Target
from kcovdbg.target.struct_layout import BlockLayout, find_member

DATAFLOW: Final = "dataflow"
"""A second device beside this one."""

_STRUCT: Final = "struct kcov_dataflow"
# Members of a task, by the posting that has them first.
_OF_FILE: Final = ("kcov_df", "kcov_df_seq", "kcov_df_remote_depth")
_OF_BOTH: Final = ("kcov_dataflow_seq", "kcov_df_area", "kcov_df_size", "kcov_df_enabled")


class TaskDataflow(NamedTuple):
    """A task's part; None is a member that this kernel does not have."""

    df: int | None
    """``struct kcov_dataflow *``."""
    area: int | None
    size: int | None
    """In 64-bit words."""
    depth: int | None
    """Depth of remote sections: inside one the area is a scratch area."""


class Dataflow(NamedTuple):
    """``struct kcov_dataflow``."""

    task: int | None
    area: int | None
    size: int | None


def read_task_dataflow(target: Target, task: int) -> TaskDataflow:
    """Read a task's part.

    :param task: ``struct task_struct *``.
    :raises ReadError: if it cannot be read.
    """
    names = {"df": "kcov_df", "area": "kcov_df_area", "size": "kcov_df_size", "depth": "kcov_df_remote_depth"}
    return TaskDataflow(*BlockLayout(target, TASK, {name: (path,) for name, path in names.items()}).read(target, task))


def read_dataflow(target: Target, address: int) -> Dataflow:
    """Read an object.

    :param address: ``struct kcov_dataflow *``.
    :raises ReadError: if it cannot be read, or is no kernel address.
    :raises MissingTypeError: if the debug info lacks the type.
    """
    check_pointer(target, address, _STRUCT)
    # The first posting calls the task `task`.
    paths = {"task": ("t", "task"), "area": ("area",), "size": ("size",)}
    return Dataflow(*BlockLayout(target, _STRUCT, paths).read(target, address))


def _read(target: Target, state: State, read_buffer: BufferReader) -> SeriesState:
    """Read the tasks that trace data flow outside of remote sections, with their objects; by ``struct task_struct *``."""
    del read_buffer
    found: dict[int, tuple[TaskDataflow, Dataflow]] = {}
    for fields in state.task_fields:
        with contextlib.suppress(ReadError, MissingTypeError):
            mine = read_task_dataflow(target, fields.address)
            # In a remote section the area is a scratch area.
            if mine.df and mine.depth == 0:
                found[fields.address] = mine, read_dataflow(target, mine.df)
    return SeriesState(found)


@rule(
    "T14",
    Severity.ERROR,
    "the object that a task traces data flow for is enabled for the task, and has the task's area and size",
    since="posted series of 2026 with kcov_dataflow in its own file",
    guaranteed_by="kcov_dataflow's ioctl",
    consequence="Data flow is recorded into another task's buffer, or past its end.",
    needs=Part.SERIES | Part.TASKS,
    features=(DATAFLOW,),
    detail="Inside a remote section of that device the area is another one. Nothing else of that device is checked.",
)
def check_dataflow(state: State) -> Iterator[Violation]:
    """T14."""
    found: Mapping[int, tuple[TaskDataflow, Dataflow]] = state.series[DATAFLOW]
    for fields in state.task_fields:
        if fields.address not in found:
            continue
        mine, its = found[fields.address]
        df = mine.df or 0
        shown = values(kcov_df=Hex(df), kcov_df_area=Hex(mine.area or 0), kcov_df_size=mine.size)
        about, tasks = name_task(fields), (fields.address,)
        if its.task is not None and its.task != fields.address:
            message = f"its kcov_df {df:#x} is enabled for {its.task:#x}"
            yield Violation(about, message, (*shown, ("t", hex(its.task))), tasks=tasks)
            continue
        for name, one, other in (("area", mine.area, its.area), ("size", mine.size, its.size)):
            if one is not None and other is not None and one != other:
                message = f"its kcov_df_{name} is {one:#x}, but kcov_df {df:#x} has {other:#x}"
                yield Violation(about, message, (*shown, (name, hex(other))), tasks=tasks)


def _detect(target: Target, enumerators: Mapping[str, int]) -> Detection | None:
    del enumerators
    if find_member(target, TASK, _OF_FILE) is not None:
        return Detection(frozenset({DATAFLOW}), OWN_FILE)
    return None if find_member(target, TASK, _OF_BOTH) is None else Detection(frozenset({DATAFLOW}), IN_KCOV)


_NOT_SHOWN: Final = "its device, its objects, its records"
OWN_FILE: Final = Variant(
    "kcov_dataflow in its own file (2026; its own buffers aren't shown)",
    recognized_by="`kcov_df` in `task_struct`",
    also_shown="a task's copy of its object, by `check` (T14)",
    tested_on="imitation `d2`",
    not_shown=_NOT_SHOWN,
)
IN_KCOV: Final = Variant(
    "kcov_dataflow in kcov.c (2026; its own buffers aren't shown)",
    recognized_by="`kcov_dataflow_seq` in `task_struct`",
    also_shown="",
    tested_on="imitation `d1`",
    not_shown=_NOT_SHOWN,
)

SERIES: Final = Series(
    name="kcov_dataflow",
    feature=DATAFLOW,
    features=(DATAFLOW,),
    variants=(OWN_FILE, IN_KCOV),
    detect=_detect,
    members=tuple(SeriesMember(TASK, (name,), expected=False) for name in (*_OF_FILE, *_OF_BOTH)),
    read=_read,
    rules=(check_dataflow,),
)
