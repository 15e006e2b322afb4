# SPDX-License-Identifier: LGPL-2.1-or-later
"""The user of each remote and softirq area: a list, a CPU, a section, an interrupted section, or nobody."""

from __future__ import annotations

from collections.abc import Iterator

from kcovdbg.abi.address import PAGE_SIZE
from kcovdbg.abi.generations import Feature
from kcovdbg.model.remote import AREA_ALLOCATORS, IRQ_LIST, TASK_LIST, Area
from kcovdbg.model.state import Source
from kcovdbg.model.task import Role
from kcovdbg.target.pointer import is_kernel_pointer
from kcovdbg.walk.sessions import SessionWalk
from kcovdbg.walk.structure_cache import StructureCache


def find_areas(cache: StructureCache, sessions: SessionWalk) -> tuple[Area, ...]:
    """Return the remote and softirq areas: on a list, idle on their CPU, in use, of an interrupted section, or unclaimed.

    :param cache: the structures of one look at a kernel.
    :param sessions: its sessions.
    """
    used = {area.address: area for area in _of_sections(cache, sessions)}
    listed = [Area(area.address, area.size, area.list, "cached") for area in cache.cached_areas]
    claimed = (*listed, *_of_cpus(cache, used), *used.values())
    return (*claimed, *_unlisted(cache, sessions, {area.address for area in claimed}))


def _of_sections(cache: StructureCache, sessions: SessionWalk) -> Iterator[Area]:
    for task in sessions.with_state:
        fields, saved = task.fields, task.saved
        if task.role in (Role.REMOTE_SECTION, Role.SOFTIRQ_SECTION) and fields.kcov_area:
            kind = IRQ_LIST if task.role is Role.SOFTIRQ_SECTION else TASK_LIST
            yield Area(fields.kcov_area, fields.kcov_size, kind, "in-use", fields.pid, fields.cpu)
        if saved is not None and task.beneath is Role.REMOTE_SECTION and saved.area:
            yield Area(saved.area, saved.size, TASK_LIST, "saved", fields.pid, saved.cpu)
    for saved, session in sessions.unattributed:
        if saved.area and session.certain_role is Role.REMOTE_SECTION:
            yield Area(saved.area, saved.size, TASK_LIST, "saved", None, saved.cpu, saved.errors)
    of_cpus = {state.irq_area for state in cache.per_cpu}
    for task in sessions.with_state:
        # A CPU's area is in use by the task that has it, even where the task's role is unknown.
        fields = task.fields
        if task.role is None and fields.kcov_area and fields.kcov_area in of_cpus:
            yield Area(fields.kcov_area, fields.kcov_size, IRQ_LIST, "in-use", fields.pid, fields.cpu, task.errors)


def _of_cpus(cache: StructureCache, used: dict[int, Area]) -> Iterator[Area]:
    """Yield the idle areas of CPUs."""
    known = {area.size for area in used.values() if area.list == IRQ_LIST}
    state = "cached" if _sees_tasks(cache) else None
    for of_cpu in cache.per_cpu:
        area = of_cpu.irq_area
        if area and area not in used:
            # An idle area does not hold its size; all CPUs' areas have the same.
            size = next(iter(known), None) or cache.allocated_words(area)
            is_buffer = is_kernel_pointer(cache.target, area, PAGE_SIZE)
            errors = () if is_buffer else ("irq_area is not the address of a buffer",)
            yield Area(area, size, IRQ_LIST, state, cpu=of_cpu.cpu, errors=errors)


def _unlisted(cache: StructureCache, sessions: SessionWalk, claimed: set[int]) -> Iterator[Area]:
    """Yield the allocated areas that no list, CPU or section has."""
    unclaimed = "unclaimed" if _sees_all_users(cache, sessions) else None
    holders = {fields.kcov_area: fields.pid for fields in cache.task_fields if fields.kcov_area}
    for area in cache.kcov_areas:
        sections = AREA_ALLOCATORS.get(area.allocator)
        if sections is None or area.start in claimed:
            continue
        words = area.size // cache.layout.buffer_word
        if area.start in holders:
            # In use, or left behind; not unclaimed in either case.
            pid = holders[area.start]
            yield Area(area.start, words, sections, None, pid, errors=(f"task {pid} has it outside of any section",))
        else:
            yield Area(area.start, words, sections, unclaimed)


def _sees_all_users(cache: StructureCache, sessions: SessionWalk) -> bool:
    """Return whether every task, list and CPU that may have an area was read."""
    return (
        _sees_tasks(cache)
        and not cache.lacking.get(Source.AREAS)
        and not cache.lacking.get(Source.PER_CPU)
        and all(task.role is not None for task in sessions.with_state)
        and (sessions.sees_saved or not cache.layout.generation.has(Feature.SOFTIRQ))
        and all(task.interrupted is None or task.beneath is not None for task in sessions.with_state)
        and all(session.certain_role is not None for _, session in sessions.unattributed)
    )


def _sees_tasks(cache: StructureCache) -> bool:
    """Return whether every task that may have an area was read."""
    return not cache.lacking.get(Source.TASKS) and all(task.kcov_area is not None for task in cache.task_fields)
