# SPDX-License-Identifier: LGPL-2.1-or-later
"""The saved state of sessions that a softirq section interrupted, wherever this kernel keeps it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kcovdbg.abi.generations import Feature
from kcovdbg.errors import MissingSymbolError, ReadError
from kcovdbg.model.task import CpuState, SavedState, TaskFields
from kcovdbg.target.protocol import Target
from kcovdbg.walk.layout import Layout


def read_per_cpu(target: Target, layout: Layout) -> tuple[tuple[CpuState, ...], tuple[str, ...]]:
    """Read ``kcov_percpu_data`` of every possible CPU.

    :return: an instance per CPU, and remarks. Where the kernel keeps nothing there the symbol may be absent altogether: that
        is no remark.
    """
    features = layout.generation
    if layout.percpu is None or not (features.has(Feature.SAVED_PER_CPU) or features.has(Feature.IRQ_AREA_PER_CPU)):
        return (), ()
    found: list[CpuState] = []
    remarks: list[str] = []
    for cpu in target.cpus():
        try:
            address = target.per_cpu("kcov_percpu_data", cpu)
            irq_area, mode, size, area, kcov, sequence = layout.percpu.read(target, address)
        except (MissingSymbolError, ReadError) as error:
            remarks.append(f"kcov_percpu_data of CPU {cpu} could not be read: {error}")
            continue
        found.append(CpuState(cpu, irq_area, SavedState("cpu", cpu, None, None, None, mode, size, area, kcov, sequence)))
    return tuple(found), tuple(remarks)


def find_saved(
    layout: Layout, tasks: Iterable[TaskFields], per_cpu: Iterable[CpuState], current: Mapping[int, int]
) -> tuple[SavedState, ...]:
    """Return the sessions that are saved now.

    :param per_cpu: as :func:`read_per_cpu` returns it.
    :param current: each CPU's current task.
    """
    if layout.generation.has(Feature.SAVED_IN_TASK):
        return tuple(saved for task in tasks if not (saved := saved_in_task(task)).is_empty)
    by_address = {task.address: task for task in tasks}
    found: list[SavedState] = []
    for instance in per_cpu:
        saved = instance.saved
        # If the saved mode stays when a session is restored, the object says whether one is saved.
        stale = layout.traits.leaves_saved_state and not saved.kcov
        if saved.is_empty or stale:
            continue
        task = by_address.get(current.get(instance.cpu, 0))
        if task is None:
            found.append(saved._replace(errors=(f"the current task of CPU {instance.cpu} could not be read",)))
        else:
            found.append(saved._replace(task=task.address, pid=task.pid, comm=task.comm))
    return tuple(found)


def saved_in_task(task: TaskFields) -> SavedState:
    """Return what ``task_struct.kcov_saved_*`` hold (August 2026 and later)."""
    return SavedState(
        "task",
        task.cpu,
        task.address,
        task.pid,
        task.comm,
        task.saved_mode,
        task.saved_size,
        task.saved_area,
        task.saved_kcov,
        task.saved_sequence,
    )
