# SPDX-License-Identifier: LGPL-2.1-or-later
"""Samples of kernels of every generation, made in memory."""

import dataclasses
from functools import cache, partial
from itertools import count

import pytest

from kcovdbg.errors import ReadError
from kcovdbg.model.location import Frame, Location
from kcovdbg.model.state import Part
from kcovdbg.monitor import monitor_source
from kcovdbg.monitor.monitor_source import LiveSource
from kcovdbg.records.pc_locations import LocationCache
from kcovdbg.walk.layout import detect_layout
from kcovdbg.walk.state import read_state
from tests.support.clock import Clock
from tests.support.kernels.build import Kernel
from tests.support.kernels.device import HANDLE, LOCAL, WORKER, argument
from tests.support.kernels.rows import D2, ROWS

CASES = [pytest.param(row, id=row.name) for row in ROWS]


@cache
def build(name):
    return Kernel(next(row for row in ROWS if row.name == name))


def locate(pcs):
    return [Location(pc, (Frame(f"fn_{pc:x}", "kernel/kcov.c", 1, None),)) for pc in pcs]


def make_source(kernel, **options):
    return LiveSource(kernel.target, detect_layout(kernel.target), LocationCache(locate), **options)


def look(source):
    source.advance()
    return source.activity.sample


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """The second look of a test is a near one, however long the machine takes for the first."""
    clock = Clock()
    monkeypatch.setattr(monitor_source, "time", clock)
    return clock


@pytest.mark.parametrize("row", CASES)
def test_looks_agree_with_the_state(row, monkeypatch):
    kernel = build(row.name)
    source = make_source(kernel)
    whole = look(source)
    state = read_state(
        kernel.target, detect_layout(kernel.target), Part.TASKS | Part.OBJECTS | Part.REMOTE
    )
    objects = [found for found in whole.objects if found.device is None]
    assert {task.pid for task in whole.tasks if task.device is None} == {
        task.fields.pid for task in state.tasks
    }
    assert {found.kcov for found in objects} <= set(state.objects)
    assert {found.kcov: found.handles for found in objects} == {
        found.kcov: tuple(sorted(handle.handle for handle in state.handles_of.get(found.kcov, ())))
        for found in objects
    }
    near = look(source)
    assert near.objects is None
    assert near.tasks == whole.tasks
    # With many tasks, only those that are known are read again.
    monkeypatch.setattr(monitor_source, "_FEW_TASKS", 0)
    known = look(source)
    assert known.tasks == whole.tasks
    assert known.shares == ()


# Records of one format are read in one way.
@pytest.mark.parametrize("row", CASES[::3])
def test_records_are_sampled_where_buffers_grew(row):
    kernel = build(row.name)
    source = make_source(kernel)
    whole = look(source)
    grown = [
        task
        for task in whole.tasks
        if task.count
        and task.capacity
        and task.count <= task.capacity
        and task.role is not None
        and task.device is None
    ]
    source._last = {
        key: dataclasses.replace(task, count=0, full=False) for key, task in source._last.items()
    }
    near = look(source)
    total = sum(min(task.count, task.capacity) for task in grown)
    sampled = sum(share.records for share in near.shares)
    # A record that is not written yet has no location.
    assert sampled <= total * 1.01
    if near.shares:
        assert all(share.file == "kernel/kcov.c" for share in near.shares)


def test_a_device_is_sampled_beside_kcov(monkeypatch):
    kernel = Kernel(D2)
    device = kernel.device
    device.allocate_section()
    source = make_source(kernel)

    def of_device(items):
        return [item for item in items if item.device == "dataflow"]

    whole = look(source)
    tasks = {task.pid: task for task in of_device(whole.tasks)}
    assert {
        pid: (task.kcov, task.role, task.count, task.kcov_area) for pid, task in tasks.items()
    } == {
        LOCAL: (device.objects["local"], "local", 18, device.areas["local"]),
        WORKER: (device.objects["remote"], "remote-section", 4, device.areas["section"]),
    }
    assert {task.kcov_mode for task in tasks.values()} == {"DATAFLOW"}
    objects = {found.kcov: found for found in of_device(whole.objects)}
    assert {kcov: found.handles for kcov, found in objects.items()} == {
        device.objects["local"]: (),
        device.objects["remote"]: (HANDLE,),
        device.objects["idle"]: (),
    }
    # A near look of many tasks reads those that the device collected into before.
    monkeypatch.setattr(monitor_source, "_FEW_TASKS", 0)
    device.fill(device.areas["local"], argument(5, kernel.text, 0, 1) * 6)
    near = look(source)
    assert near.objects is None
    assert {task.pid: task.count for task in of_device(near.tasks)} == {LOCAL: 24, WORKER: 4}


def test_a_task_that_ended_is_left_out(monkeypatch):
    monkeypatch.setattr(monitor_source, "_FEW_TASKS", 0)
    kernel = Kernel(ROWS[-1])
    source = make_source(kernel)
    whole = look(source)
    gone = whole.tasks[0]
    read = kernel.target.read

    def read_without(address, size):
        if gone.task <= address < gone.task + 64:
            raise ReadError("gone", address)
        return read(address, size)

    monkeypatch.setattr(kernel.target, "read", read_without, raising=False)
    near = look(source)
    assert gone.pid not in {task.pid for task in near.tasks}
    assert {task.pid for task in near.tasks} == {task.pid for task in whole.tasks} - {gone.pid}


def test_whole_looks_come_as_often_as_the_budget_allows(monkeypatch, clock):
    kernel = build(ROWS[-1].name)
    monkeypatch.setattr(clock, "process_time", partial(next, count(0, 0.02)))
    source = make_source(kernel, share=0.04)
    kinds = []
    for _ in range(60):
        kinds.append(look(source).objects is not None)
        clock.now += 0.25
    # 20 ms for a whole look, of which a quarter of 4 % of a core is 2 s.
    assert [number for number, is_whole in enumerate(kinds) if is_whole] == [
        0,
        8,
        16,
        24,
        32,
        40,
        48,
        56,
    ]
