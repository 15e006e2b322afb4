# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which task crashed, and where, from data made by hand."""

from kcovdbg.crash.crash_summary import (
    CrashedTask,
    CrashSummary,
    find_crashed_task,
    summarize_crash,
)
from kcovdbg.model.crash_evidence import CrashEvidence, TaskStack
from kcovdbg.model.memory import StackFrame
from kcovdbg.model.state import State
from kcovdbg.model.task import TaskSyscall
from tests.support.state import make_task


def stack(*functions):
    return TaskStack(
        [StackFrame(0, function, f"{function}.c", 7, None, False) for function in functions]
    )


def evidence_of(task, *others, functions=("panic", "do_crash", "do_write")):
    state = State(None, {"all_tasks": (task, *others), "current": {}})
    return CrashEvidence(task.fields.address, stack=stack(*functions), state=state)


def test_no_task_crashed():
    assert find_crashed_task(CrashEvidence()) == CrashedTask(None)
    assert find_crashed_task(CrashEvidence(error="unreadable")) == CrashedTask(None, "unreadable")
    for crashed in (CrashedTask(None), CrashedTask(None, "unreadable")):
        summary = summarize_crash(crashed, TaskStack(), None)
        assert summary == CrashSummary(errors=summary.errors)
        assert len(summary.errors) == 1


def test_where_it_crashed():
    task = make_task(7)
    evidence = evidence_of(task, make_task(8))
    crashed = find_crashed_task(evidence)
    assert (crashed.task, crashed.reporter) == (task, None)
    summary = summarize_crash(crashed, evidence.stack, TaskSyscall(None))
    assert (summary.pid, summary.function, summary.file, summary.line) == (
        7,
        "do_crash",
        "do_crash.c",
        7,
    )
    assert not summary.errors


def test_what_is_missing_is_named():
    crashed = find_crashed_task(evidence_of(make_task(7)))
    summary = summarize_crash(
        crashed, TaskStack(error="no registers"), TaskSyscall(None, "no stack")
    )
    assert (summary.pid, summary.function, summary.errors) == (
        7,
        None,
        ["no registers", "no stack"],
    )
    assert summarize_crash(crashed, stack("schedule"), TaskSyscall(None)).errors
