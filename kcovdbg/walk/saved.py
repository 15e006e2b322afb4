# SPDX-License-Identifier: LGPL-2.1-or-later
"""The saved state of sessions that softirq sections interrupted, which the kernel keeps per CPU or
in the task; and whether a task serves a softirq.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

from kcovdbg.abi.generations import Feature
from kcovdbg.errors import KcovdbgError, MissingError, MissingSymbolError, ReadError
from kcovdbg.model.state import Reading, Source
from kcovdbg.model.task import SavedState, TaskFields
from kcovdbg.target.pointer import read_pointer, read_word
from kcovdbg.target.struct_layout import find_member
from kcovdbg.target.target import Target
from kcovdbg.walk.layout import Layout

# SOFTIRQ_OFFSET of include/linux/preempt.h: the bit is set while a softirq is served; higher bits
# count local_bh_disable().
_SERVING_SOFTIRQ: Final = 0x100
# On PREEMPT_RT, softirqs run in tasks that can be preempted, and the task has the count: Linux
# kernel commit 728b478d2d35 ("softirq: Add RT specific softirq accounting") (in v5.13). It has the
# same bits as the preemption count.
_TASK_COUNT: Final = "softirq_disable_cnt"


def read_per_cpu(target: Target, layout: Layout) -> Reading[Mapping[int, SavedState]]:
    """Read ``kcov_percpu_data`` of every possible CPU, if this kernel keeps state there."""
    if layout.percpu is None or not layout.generation.has(Feature.SAVED_PER_CPU):
        return Reading.of(Source.PER_CPU, {})
    found: dict[int, SavedState] = {}
    remarks: list[str] = []
    for cpu in target.cpus():
        try:
            address = target.per_cpu("kcov_percpu_data", cpu)
            irq_area, mode, size, area, kcov, sequence, flag = layout.percpu.read(target, address)
        except (MissingSymbolError, ReadError) as error:
            remarks.append(f"kcov_percpu_data of CPU {cpu} could not be read: {error}")
            continue
        found[cpu] = SavedState(
            where="cpu",
            cpu=cpu,
            task=None,
            pid=None,
            comm=None,
            mode=mode,
            size=size,
            area=area,
            kcov=kcov,
            sequence=sequence,
            irq_area=irq_area,
            mode_flag=flag,
        )
    return Reading.of(Source.PER_CPU, found, remarks)


def find_saved(
    layout: Layout,
    tasks: Iterable[TaskFields],
    per_cpu: Mapping[int, SavedState],
    current: Mapping[int, int],
) -> tuple[SavedState, ...]:
    """Return the sessions that are saved now.

    :param per_cpu: as :func:`read_per_cpu` returns it.
    """
    if layout.generation.has(Feature.SAVED_IN_TASK):
        in_tasks = map(saved_in_task, tasks)
        return tuple(saved for saved in in_tasks if not saved.is_empty)
    by_address = {task.address: task for task in tasks}
    found: list[SavedState] = []
    for cpu, saved in per_cpu.items():
        # On some kernels the saved mode stays when a session is restored, but not the object.
        is_restored = layout.traits.leaves_saved_state and not saved.kcov
        if saved.is_empty or is_restored:
            continue
        task = by_address.get(current.get(cpu, 0))
        if task is None:
            error = f"the current task of CPU {cpu} could not be read"
            found.append(saved._replace(errors=(error,)))
        else:
            found.append(saved._replace(task=task.address, pid=task.pid, comm=task.comm))
    return tuple(found)


def saved_in_task(task: TaskFields) -> SavedState:
    """Return the saved state in ``task_struct.kcov_saved_*`` (August 2026 and later)."""
    return SavedState(
        where="task",
        cpu=task.cpu,
        task=task.address,
        pid=task.pid,
        comm=task.comm,
        mode=task.saved_mode,
        size=task.saved_size,
        area=task.saved_area,
        kcov=task.saved_kcov,
        sequence=task.saved_sequence,
    )


def is_serving_softirq(target: Target, task: int, cpu: int | None) -> bool | None:
    """Return whether a softirq is served in a task or on top of it; None if the debug info lacks
    the count.

    :param task: ``struct task_struct *``.
    :param cpu: the CPU whose current task it is; None on PREEMPT_RT, where each task has a count.
    :raises ReadError: when the count is unreadable.
    """
    try:
        if cpu is None:
            count = _find_task_count(target, task, _TASK_COUNT)
        else:
            count = _find_preempt_count(target, cpu, task)
    except MissingError:
        return None
    if count is None:
        return None
    return bool(read_word(target, *count) & _SERVING_SOFTIRQ)


def _find_task_count(target: Target, task: int, *paths: str) -> tuple[int, int] | None:
    """Return address and size of a count in a task."""
    member = find_member(target, "struct task_struct", paths)
    return None if member is None else (task + member.offset, member.size)


def _find_preempt_count(target: Target, cpu: int, task: int) -> tuple[int, int] | None:
    """Return address and size of a CPU's preemption count."""
    # On x86 it is a per-CPU variable, and in pcpu_hot from "x86/percpu: Move preempt_count next to
    # current_task" (in v6.2) until "x86/preempt: Move preempt count to percpu hot section" (in
    # v6.15). On s390 it is in the lowcore, elsewhere in thread_info.
    with suppress(KcovdbgError):
        return target.per_cpu("__preempt_count", cpu), 4
    hot = find_member(target, "struct pcpu_hot", ("preempt_count",))
    if hot is not None:
        return target.per_cpu("pcpu_hot", cpu) + hot.offset, hot.size
    lowcore = find_member(target, "struct lowcore", ("preempt_count",))
    if lowcore is not None:
        # Each CPU has a lowcore.
        pointers = target.symbol("lowcore_ptr").address
        own_lowcore = read_pointer(target, pointers + cpu * target.word_size)
        return own_lowcore + lowcore.offset, lowcore.size
    return _find_task_count(target, task, "thread_info.preempt.count", "thread_info.preempt_count")
