# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every generation of KCOV is recognized and walked: the walkers return the state of the
scenario.
"""

from functools import cache

import pytest

from kcovdbg.abi.handle import find_bucket
from kcovdbg.model.state import Part
from kcovdbg.walk.layout import detect_layout
from tests.support.kernels.build import Kernel
from tests.support.kernels.rows import ROWS
from tests.support.kernels.scenario import IRQ_WORDS

KINDS = {
    "": {},
    " 32-bit": {"word": 4},
    " big-endian": {"big_endian": True},
    " 32-bit big-endian": {"word": 4, "big_endian": True},
}
CASES = [pytest.param((row.name, kind), id=row.name + kind) for row in ROWS for kind in KINDS]


@cache
def build(row_name, kind):
    return Kernel(next(row for row in ROWS if row.name == row_name), **KINDS[kind])


@pytest.fixture
def kernel(request):
    return build(*request.param)


def over_all_rows(test):
    return pytest.mark.parametrize("kernel", CASES, indirect=True)(test)


def look(kernel, parts):
    reader = kernel.reader()
    return reader.layout, reader.read(parts)


def count_of(kernel, task):
    """Return the count in a task's buffer."""
    truth = kernel.truth
    if task.session is None or (task.session.area is None and task.session.kcov is None):
        return truth.objects[task.owns].count if task.owns else None
    return (
        truth.areas[task.session.area][1]
        if task.session.area
        else count_in(truth.objects[task.session.kcov])
    )


def count_in(kcov):
    return None if kcov.mode == "UNIQUE_PC" and not kcov.bitmap_words else kcov.count


def role_of(session, softirq=False):
    if session is None or session.mode == "REMOTE":
        return "none"
    if softirq:
        return "softirq-section"
    return "local" if session.area is None else "remote-section"


@over_all_rows
def test_recognised(kernel):
    row = kernel.row
    generation = detect_layout(kernel.target).generation
    assert generation.era == row.era
    assert len(generation.variants) == len(row.variants)
    for found, expected in zip(generation.variants, row.variants, strict=True):
        assert found.startswith(expected)
    assert generation.unrecognised == ()
    assert generation.missing == ()
    features = generation.features
    assert ("remote" in features) == row.has_remote
    assert ("comparisons" in features) == row.has_comparisons
    assert ("softirq" in features) == bool(row.saved)
    assert ("saved-per-cpu" in features) == ("irq-area-per-cpu" in features) == (row.saved == "cpu")
    assert ("saved-in-task" in features) == ("area-lists" in features) == (row.saved == "task")
    assert ("mode-remote" in features) == (row.owner == "mode")
    assert ("kcov-remote-member" in features) == (row.owner == "member")
    assert ("32-bit-words" in features) == ("vma-references" in features) == (row.name == "E0")


@over_all_rows
def test_tasks(kernel):
    layout, state = look(kernel, Part.TASKS | Part.ALL_TASKS)
    truth = kernel.truth
    found = {kernel_pid(kernel, task): task for task in state.all_tasks}
    assert state.notes == ()
    assert set(found) == set(truth.tasks) | {f"idle {cpu}" for cpu in range(1, truth.cpus)}
    for pid, expected in truth.tasks.items():
        task = found[pid]
        fields = task.fields
        session = expected.session
        assert (fields.pid, fields.tgid, fields.comm) == (pid, expected.tgid, expected.comm)
        assert task.role == role_of(session, expected.softirq), pid
        assert (task.beneath and task.beneath.value) == (
            role_of(expected.saved) if expected.saved else None
        ), pid
        assert task.owns_remote == (
            (expected.owns is not None) if kernel.row.has_remote else None
        ), pid
        assert task.count == count_of(kernel, expected), pid
        if session is not None:
            kcov = truth.objects[session.kcov]
            words = truth.areas[session.area][0] if session.area else kcov.size
            area = kernel.areas[session.area] if session.area else kernel.buffers[session.kcov]
            assert (fields.kcov, fields.kcov_area, fields.kcov_size) == (
                kernel.objects[session.kcov],
                area,
                words,
            )
            assert task.mode == kcov.mode, pid
            assert fields.kcov_sequence in (None, session.sequence or kcov.sequence)
            full = task.count is not None and task.count >= capacity_of(kernel, kcov, words)
            assert task.full == (None if task.count is None else full)
        elif expected.owns:
            assert task.mode == ("REMOTE" if kernel.row.owner == "mode" else "DISABLED")
        else:
            assert task.mode == "DISABLED"
        saved = expected.saved
        assert (task.saved is not None) == (saved is not None)
        if saved is not None:
            assert task.saved.kcov == kernel.objects[saved.kcov]
            assert task.saved.where == kernel.row.saved
            assert task.saved.cpu == expected.cpu
            assert task.saved.sequence == (0 if saved.mode else truth.objects[saved.kcov].sequence)
        if kernel.row.has_remote:
            assert fields.kcov_handle == expected.handle
        if "ctxsw-flag" in layout.generation.features:
            assert task.in_ctxsw == (expected.ran and not expected.running), pid
        else:
            assert task.in_ctxsw is None
        has_state = fields.address in state.tasks_with_state
        interesting = expected.session or expected.owns or expected.handle or expected.saved
        assert has_state == bool(interesting), pid
        if kernel.row.cpu != "stack" or has_state:
            assert fields.cpu == expected.cpu
        assert task.errors == () or expected.comm == "paused"


def kernel_pid(kernel, task):
    if task.fields.pid or task.fields.address == kernel.tasks[0]:
        return task.fields.pid
    return f"idle {task.fields.comm.removeprefix('swapper/')}"


def capacity_of(kernel, kcov, words):
    """Return how many records fit in a number of words."""
    if "CMP" in kcov.mode:
        return (words * kernel.buffer_word // 8 - 1) // 4
    return words - kcov.bitmap_words - 1


@over_all_rows
def test_objects(kernel):
    _, state = look(kernel, Part.OBJECTS)
    truth = kernel.truth
    found = state.objects
    assert set(found) == set(kernel.objects.values())
    for name, expected in truth.objects.items():
        kcov = found[kernel.objects[name]]
        fields = kcov.fields
        assert fields.refcount == kernel.references[name]
        assert kcov.counted == fields.refcount, (name, kcov.references)
        assert (kcov.mode, fields.size, fields.area) == (
            expected.mode or "DISABLED",
            expected.size,
            kernel.buffers.get(name, 0),
        )
        assert kcov.pid == expected.owner
        assert kcov.comm == (None if expected.owner is None else truth.tasks[expected.owner].comm)
        assert kcov.count == (count_in(expected) if name in kernel.buffers else None)
        if expected.size and not (expected.mode == "UNIQUE_PC" and not expected.bitmap_words):
            assert kcov.capacity == capacity_of(kernel, expected, expected.size)
        if kernel.row.has_remote:
            assert fields.remote == (expected.remote_size is not None)
            assert (fields.remote_size, fields.sequence) == (
                expected.remote_size or 0,
                expected.sequence,
            )
        else:
            assert fields.remote is fields.remote_size is fields.sequence is None
        assert kcov.errors == ()
        handles = {reference.handle for reference in kcov.references if reference.kind == "remote"}
        assert handles == {handle for handle, owner in truth.handles if owner == name}
        descriptors = {
            (reference.pid, reference.fd) for reference in kcov.references if reference.kind == "fd"
        }
        assert descriptors - {(0, None), (None, None)} == {
            (task.tgid, fd)
            for task in truth.tasks.values()
            if task.files
            for fd, file in truth.tables[task.files].items()
            if truth.files[file] == name
        }
    if not kernel.row.late_area or kernel.row.name == "E0":
        assert [remark for remark in state.notes if "remote handles" not in remark] == []


@over_all_rows
def test_handles(kernel):
    _, state = look(kernel, Part.REMOTE)
    if not kernel.row.has_remote:
        assert state.handles == ()
        # That this kernel has none is not that they could not be read.
        assert not state.unread(Part.REMOTE)
        return
    truth = kernel.truth
    assert {entry.handle: entry.kcov for entry in state.handles} == {
        handle: kernel.objects[name] for handle, name in truth.handles
    }
    for entry in state.handles:
        owner = truth.objects[dict(truth.handles)[entry.handle]].owner
        assert (entry.pid, entry.comm) == (owner, truth.tasks[owner].comm)
        assert (
            entry.bucket
            == kernel.find_bucket(entry.handle)
            == find_bucket(entry.handle, 4, kernel.word)
        )
        assert entry.errors == ()
    assert state.notes == ()


@over_all_rows
def test_areas(kernel):
    _, state = look(kernel, Part.AREAS)
    truth = kernel.truth
    cached = {
        (area, words, kind, "cached")
        for kind in kernel.cached
        for area, words in kernel.cached[kind]
    }
    # The size of an area that waits for its CPU is known by one that is in use.
    cached |= {(area, IRQ_WORDS, "irq", "cached") for area in kernel.irq_areas.values()}
    used = set()
    for task in truth.tasks.values():
        for session, use in ((task.session, "in-use"), (task.saved, "saved")):
            if session is not None and session.area is not None:
                kind = "irq" if session.area.startswith("irq") else "task"
                used.add((kernel.areas[session.area], truth.areas[session.area][0], kind, use))
    assert {area[:4] for area in state.areas} == cached | used
    assert state.notes == ()


@over_all_rows
def test_saved(kernel):
    _, state = look(kernel, Part.SAVED)
    expected = {
        (pid, task.cpu, kernel.objects[task.saved.kcov], kernel.session_mode(task, task.saved))
        for pid, task in kernel.truth.tasks.items()
        if task.saved is not None
    }
    assert {(saved.pid, saved.cpu, saved.kcov, saved.mode) for saved in state.saved} == expected
    assert all(saved.where == kernel.row.saved and saved.errors == () for saved in state.saved)
