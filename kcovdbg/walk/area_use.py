# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who has each remote and softirq area: a list, a CPU, a section, a section that was interrupted, or nobody."""

from __future__ import annotations

from kcovdbg.abi.era import Feature
from kcovdbg.model.area import Area
from kcovdbg.model.task import Role
from kcovdbg.walk.areas import IRQ_LIST, TASK_LIST
from kcovdbg.walk.objects import PAGE
from kcovdbg.walk.pointer import is_kernel_pointer
from kcovdbg.walk.readings import AREA_CALLERS, Readings, plain_name
from kcovdbg.walk.sessions import Sessions


def find_areas(readings: Readings, sessions: Sessions) -> tuple[Area, ...]:
    """Find the remote and softirq areas: on a list, idle on their CPU, in use, of an interrupted section, or unclaimed.

    :param readings: what was read.
    :param sessions: what it means.
    """
    found = [Area(area.address, area.size, area.list, "cached") for area in readings.cached_areas]
    used: dict[int, Area] = {}
    for task in sessions.tasks():
        fields = task.fields
        if task.role in (Role.REMOTE_SECTION, Role.SOFTIRQ_SECTION) and fields.kcov_area:
            kind = IRQ_LIST if task.role is Role.SOFTIRQ_SECTION else TASK_LIST
            used[fields.kcov_area] = Area(fields.kcov_area, fields.kcov_size, kind, "in-use", fields.pid, fields.cpu)
        saved = task.saved
        if saved is not None and task.beneath is Role.REMOTE_SECTION and saved.area:
            used[saved.area] = Area(saved.area, saved.size, TASK_LIST, "saved", fields.pid, saved.cpu)
    for saved in sessions.saved:
        if saved.task is None and saved.area and sessions.saved_role(saved, []) is Role.REMOTE_SECTION:
            used[saved.area] = Area(saved.area, saved.size, TASK_LIST, "saved", None, saved.cpu, saved.errors)
    of_cpus = {instance.irq_area for instance in readings.per_cpu}
    for task in sessions.tasks():
        # Whatever else isn't known of it, a CPU's area is used by whom has it.
        fields = task.fields
        if task.role is None and fields.kcov_area and fields.kcov_area in of_cpus:
            used[fields.kcov_area] = Area(
                fields.kcov_area, fields.kcov_size, IRQ_LIST, "in-use", fields.pid, fields.cpu, task.errors
            )
    known = {area.size for area in used.values() if area.list == IRQ_LIST}
    idle = "cached" if _sees_tasks(readings) else None
    for instance in readings.per_cpu:
        if instance.irq_area and instance.irq_area not in used:
            # What isn't in use doesn't say its size; all CPUs' areas have the same.
            size = next(iter(known), None) or readings.vmalloc_words(instance.irq_area)
            errors: tuple[str, ...] = ()
            if not is_kernel_pointer(readings.target, instance.irq_area, PAGE):
                errors = ("this is no buffer's address",)
            found.append(Area(instance.irq_area, size, IRQ_LIST, idle, cpu=instance.cpu, errors=errors))
    found.extend(used.values())
    claimed = {area.address for area in found}
    # Nobody's is an area only when everybody is known who could have it.
    unclaimed = "unclaimed" if _sees_all_areas(readings, sessions) else None
    holders = {fields.kcov_area: fields.pid for fields in readings.task_fields if fields.kcov_area}
    for area in readings.kcov_areas:
        sections = AREA_CALLERS.get(plain_name(area.caller))
        if sections is None or area.start in claimed:
            continue
        words = area.size // readings.layout.buffer_word
        if area.start in holders:
            # A task has it without being in a section: used or left behind, but not nobody's.
            doubt = (f"task {holders[area.start]} has it, and is in no section",)
            found.append(Area(area.start, words, sections, None, holders[area.start], errors=doubt))
        else:
            found.append(Area(area.start, words, sections, unclaimed))
    return tuple(found)


def _sees_all_areas(readings: Readings, sessions: Sessions) -> bool:
    """Tell whether every task, list and CPU was read that could have an area."""
    return (
        _sees_tasks(readings)
        and not readings.lacking.get("areas")
        and not readings.lacking.get("per-cpu")
        and all(task.role is not None for task in sessions.tasks())
        and (sessions.sees_saved or not readings.layout.generation.has(Feature.SOFTIRQ))
        and all(sessions.saved_role(saved, []) is not None for saved in sessions.saved)
    )


def _sees_tasks(readings: Readings) -> bool:
    """Tell whether every task was read that could have an area."""
    return not readings.lacking.get("tasks") and all(task.kcov_area is not None for task in readings.task_fields)
