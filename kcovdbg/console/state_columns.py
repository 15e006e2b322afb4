# SPDX-License-Identifier: LGPL-2.1-or-later
"""The columns of tasks and of objects, for every table and recording of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from kcovdbg.console.column import (
    ADDRESS,
    ANY,
    BOOL,
    COMM,
    CPU,
    DETAIL,
    HANDLE,
    MODE,
    NUMBER,
    PID,
    UNREAD,
    WORD,
    Column,
)
from kcovdbg.console.wording import count_text, reference_text, role_text
from kcovdbg.model.kcov import Kcov
from kcovdbg.model.task import Task
from kcovdbg.series.declaration import ObjectField
from kcovdbg.series.table import object_fields


def _kcov_text(task: Task) -> str | None:
    return None if task.fields.kcov is None else ADDRESS.text(task.fields.kcov)


def _object_text(task: Task) -> str | None:
    """Return the object with the buffer that COUNT counts. Since v7.2, ``kcov`` of a task that only
    owns remote coverage is NULL; then it is ``kcov_remote``.
    """
    remote = task.fields.kcov_remote
    if remote and task.owns_remote and task.fields.kcov == 0:
        return ADDRESS.text(remote)
    return _kcov_text(task)


_COUNT_COLUMNS: Final = (
    Column(
        "count",
        NUMBER,
        text=lambda row: count_text(row.count, row.capacity, row.full),
        wide_text=lambda row: count_text(row.count, row.capacity, row.full, is_whole=True),
        style=lambda row: "warning" if row.full else "number",
    ),
    Column("capacity", NUMBER),
    Column("full", BOOL),
)
TASK_COLUMNS: Final = (
    Column("pid", PID, value="fields.pid"),
    Column("tgid", PID, value="fields.tgid", priority=6, meaning="process id", null=UNREAD),
    Column("comm", COMM, value="fields.comm", elastic=8),
    Column(
        "task",
        ADDRESS,
        value="fields.address",
        priority=5,
        meaning="address of the `task_struct`",
    ),
    Column("cpu", CPU, value="fields.cpu", priority=3),
    Column(
        "kcov", ADDRESS, value="fields.kcov", text=_object_text, wide_text=_kcov_text, priority=1
    ),
    Column(
        "kcov_remote",
        ADDRESS,
        value="fields.kcov_remote",
        priority=2,
        hide_empty=True,
        meaning="`task_struct.kcov_remote`",
        null=UNREAD,
    ),
    Column(
        "kcov_mode",
        MODE,
        title="MODE",
        value="mode",
        meaning="mode of the task, without prefix and flags, such as `TRACE_PC`",
        null=UNREAD,
    ),
    Column(
        "kcov_mode_raw",
        WORD,
        value="fields.kcov_mode",
        meaning="`task_struct.kcov_mode` as stored",
        null=UNREAD,
    ),
    Column("in_ctxsw", BOOL, meaning="whether `KCOV_IN_CTXSW` is set in `kcov_mode`", null=UNREAD),
    Column(
        "kcov_size",
        NUMBER,
        title="SIZE",
        value="fields.kcov_size",
        priority=7,
        hide_empty=True,
        meaning="`task_struct.kcov_size`",
        null=UNREAD,
        unit="words",
    ),
    Column(
        "kcov_area",
        ADDRESS,
        title="AREA",
        value="fields.kcov_area",
        priority=4,
        hide_empty=True,
        meaning="`task_struct.kcov_area`",
        null=UNREAD,
    ),
    Column(
        "kcov_sequence",
        NUMBER,
        title="SEQUENCE",
        value="fields.kcov_sequence",
        priority=8,
        hide_empty=True,
        meaning="`task_struct.kcov_sequence`",
        null=UNREAD,
    ),
    Column(
        "kcov_handle",
        HANDLE,
        title="HANDLE",
        value="fields.kcov_handle",
        priority=2,
        hide_empty=True,
    ),
    Column("kcov_softirq", NUMBER, value="fields.kcov_softirq"),
    Column("role", text=role_text, elastic=12),
    Column(
        "beneath",
        meaning="role of the session that a softirq section interrupted",
        null="no session is interrupted, or its role is unclear",
    ),
    Column(
        "owns_remote",
        BOOL,
        meaning="whether the task is the owner of a `KCOV_REMOTE_ENABLE`",
        null=UNREAD,
    ),
    *_COUNT_COLUMNS,
)
"""The columns of a task."""


def _posted_column(field: ObjectField) -> Column:
    """Return the column of a field that a posted series adds to objects."""
    return Column(
        field.name,
        ADDRESS if field.is_address else NUMBER,
        title=field.title,
        value=lambda kcov: kcov.posted.get(field.name),
        priority=field.priority,
        hide_empty=True,
        meaning=field.meaning,
        null=field.null,
        unit=field.unit,
    )


def _of_object(name: str) -> Callable[[Kcov], Any]:
    return lambda kcov: None if kcov.fields is None else getattr(kcov.fields, name)


# Tasks are at most PID_MAX_LIMIT, 4,194,304; a saturated refcount_t is -1,073,741,824.
_IMPOSSIBLE_REFCOUNT: Final = 10**7


def _refcount_text(kcov: Kcov, *, is_whole: bool = False) -> str | None:
    """Return the refcount, and the number of references found if it differs. A refcount that no
    object can have is left out: ``…, found 2``.
    """
    refcount = None if kcov.fields is None else kcov.fields.refcount
    if refcount is None:
        return None
    text = str(refcount) if is_whole or abs(refcount) < _IMPOSSIBLE_REFCOUNT else "…"
    if refcount == kcov.counted:
        return text
    return f"{text}, found {kcov.counted}"


def _references_text(kcov: Kcov) -> str | None:
    by_kind: dict[str, list[str]] = {}
    for reference in kcov.references:
        # PID names the task that the object is enabled for.
        if reference.kind != "task" or reference.pid != kcov.pid:
            by_kind.setdefault(reference.kind, []).append(reference_text(reference, owner=kcov.pid))
    parts = []
    for kind, names in by_kind.items():
        noun = "handle" if kind == "remote" else kind
        # A KCOV_REMOTE_ENABLE can register 257 handles.
        parts.append(names[0] if len(names) == 1 else f"{len(names)} {noun}s")
    return ", ".join(parts) or (None if kcov.references else "nothing")


_REFERENCE_COLUMNS: Final = (
    Column("kind", meaning="`fd`, `vma`, `task`, `section`, `saved` or `remote`"),
    Column("counts", NUMBER, meaning="1 if the refcount counts it, otherwise 0", unit="references"),
    Column(
        "pid",
        PID,
        meaning="id of the process that has it, or thread id of the task",
        null="it is not a task's",
    ),
    Column("fd", NUMBER, meaning="file descriptor", null="it is not a descriptor"),
    Column("file", ADDRESS, meaning="address of the `struct file`", null="it is not a file's"),
    Column("start", ADDRESS, meaning="start address of the mapping", null="it is not a mapping"),
    Column("handle", HANDLE, meaning="remote handle", null="it is not a handle"),
    Column("cpu", CPU, meaning="CPU that keeps saved state", null="it is not saved state of a CPU"),
)
OBJECT_COLUMNS: Final = (
    Column(
        "kcov",
        ADDRESS,
        value="address",
        meaning="address of the object",
        null="only references to it are known, not its address",
    ),
    Column(
        "device",
        priority=3,
        hide_empty=True,
        meaning="device of a posted series that the object belongs to; then `count` and "
        "`capacity` are in words",
        null="it is a `struct kcov`",
    ),
    Column(
        "refcount",
        NUMBER,
        title="REFS",
        value=_of_object("refcount"),
        text=_refcount_text,
        wide_text=partial(_refcount_text, is_whole=True),
        style=lambda kcov: (
            "number" if _of_object("refcount")(kcov) in (None, kcov.counted) else "warning"
        ),
        meaning="reference count of the object",
        null=UNREAD,
        unit="references",
    ),
    Column(
        "counted",
        NUMBER,
        meaning="number of references found that the refcount counts",
        unit="references",
    ),
    Column("mode", MODE, meaning="`kcov.mode`, without prefix, such as `TRACE_PC`", null=UNREAD),
    Column("size", NUMBER, value=_of_object("size"), priority=4),
    Column(
        "area",
        ADDRESS,
        value=_of_object("area"),
        priority=3,
        meaning="`kcov.area`: address of the buffer that user space maps",
        null=UNREAD,
    ),
    Column("t", ADDRESS, value=_of_object("task")),
    Column(
        "pid",
        PID,
        meaning="thread id of the task that the object is enabled for",
        null="it is not enabled, or the task is unknown",
    ),
    Column(
        "comm",
        COMM,
        elastic=8,
        priority=1,
        meaning="name of that task",
        null="it is not enabled, or the task is unknown",
    ),
    Column("remote", BOOL, value=_of_object("remote"), priority=DETAIL, hide_empty=True),
    Column("remote_size", NUMBER, value=_of_object("remote_size"), priority=5, hide_empty=True),
    Column(
        "sequence",
        NUMBER,
        value=_of_object("sequence"),
        priority=6,
        meaning="sequence number of the object's remote sessions",
        null=UNREAD,
    ),
    *_COUNT_COLUMNS,
    *map(_posted_column, object_fields()),
    Column(
        "references",
        ANY,
        text=_references_text,
        items=_REFERENCE_COLUMNS,
        elastic=20,
        wraps=True,
        meaning="everything that refers to the object",
    ),
)
"""The columns of an object."""
