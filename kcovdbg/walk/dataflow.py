# SPDX-License-Identifier: LGPL-2.1-or-later
"""What ``kcov_dataflow`` in its own file (2026, posted) leaves in a task; its own device isn't walked (kcov-abi.md 8.5)."""

from __future__ import annotations

from typing import Final, NamedTuple

from kcovdbg.target import Target
from kcovdbg.walk.block import BlockLayout
from kcovdbg.walk.layout import TASK
from kcovdbg.walk.pointer import check_pointer

DATAFLOW: Final = "struct kcov_dataflow"


class TaskDataflow(NamedTuple):
    """A task's part; None is a member that this kernel doesn't have."""

    df: int | None
    """``struct kcov_dataflow *``."""
    area: int | None
    size: int | None
    """In 64-bit words."""
    depth: int | None
    """Of remote sections: in one the area is another one."""


class Dataflow(NamedTuple):
    """``struct kcov_dataflow``."""

    task: int | None
    area: int | None
    size: int | None


def read_task_dataflow(target: Target, task: int) -> TaskDataflow:
    """Read a task's part.

    :param task: ``struct task_struct *``.
    :raises ReadError: when it can't be read.
    """
    names = {"df": "kcov_df", "area": "kcov_df_area", "size": "kcov_df_size", "depth": "kcov_df_remote_depth"}
    return TaskDataflow(*BlockLayout(target, TASK, {name: (path,) for name, path in names.items()}).read(target, task))


def read_dataflow(target: Target, address: int) -> Dataflow:
    """Read an object.

    :param address: ``struct kcov_dataflow *``.
    :raises ReadError: when it can't be read, or is no kernel address.
    :raises MissingTypeError: when the debug info lacks the type.
    """
    check_pointer(target, address, DATAFLOW)
    # The first posting calls the task `task`.
    paths = {"task": ("t", "task"), "area": ("area",), "size": ("size",)}
    return Dataflow(*BlockLayout(target, DATAFLOW, paths).read(target, address))
