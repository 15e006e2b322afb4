# SPDX-License-Identifier: LGPL-2.1-or-later
"""`check` on damaged memory of the demo's kernel: it finds the damage, and nothing else."""

import warnings

import drgn
import pytest

from kcovdbg.abi.handle import find_bucket
from kcovdbg.check.runner import check
from kcovdbg.errors import PointerError
from kcovdbg.helpers import for_each_kcov_remote, kcov_count, kcov_words
from kcovdbg.model.finding import Severity
from kcovdbg.model.state import Part
from kcovdbg.model.task import Role
from kcovdbg.walk.layout import detect_layout
from kcovdbg.walk.state import StateReader, read_state
from tests.fuzz.damaged_target import PAGE, open_damaged

KCOV, TASK, REMOTE, AREA = (
    "struct kcov",
    "struct task_struct",
    "struct kcov_remote",
    "struct kcov_remote_area",
)


@pytest.fixture(scope="module")
def opened():
    target = open_damaged()
    layout = detect_layout(target)
    return target, layout, read_state(target, layout, ~Part.NOTHING)


@pytest.fixture
def demo(opened):
    target, layout, snapshot = opened
    target.heal()
    yield target, layout, snapshot
    target.heal()


def look(target, layout):
    """Return what check finds, without the rules that it cannot judge: the demo is a slice, which
    lacks some pages.
    """
    report = check(StateReader(target, layout), pause=lambda _seconds: None)
    findings = tuple(
        finding for finding in report.findings if finding.severity is not Severity.UNKNOWN
    )
    return report._replace(findings=findings)


def an_object(snapshot, **wanted):
    """The first object with these members, and in use by somebody but the section in flight."""
    busy = {task.fields.kcov for task in snapshot.all_tasks if task.role is Role.SOFTIRQ_SECTION}
    busy |= {saved.kcov for saved in snapshot.saved}
    return next(
        kcov.fields
        for kcov in snapshot.objects.values()
        if kcov.address not in busy
        and all(getattr(kcov.fields, name) == value for name, value in wanted.items())
    )


def a_task(snapshot, comm):
    return next(task.fields for task in snapshot.all_tasks if task.fields.comm == comm)


def test_healthy(demo):
    target, layout, _ = demo
    report = look(target, layout)
    assert report.findings == ()
    # Of a CPU's preemption count, which the demo's slice lacks.
    assert len(report.remarks) == 1


def leaked_reference(target, snapshot):
    kcov = an_object(snapshot, mode=1)
    target.put(kcov.address, KCOV, "refcount.refs.counter", kcov.refcount + 1)
    return {"K1"}


def lost_reference(target, snapshot):
    kcov = an_object(snapshot, mode=2, remote=False, refcount=2)
    target.put(kcov.address, KCOV, "refcount.refs.counter", 0)
    # Each of its holders is one too many.
    return {"X1"}


def owner_exited(target, snapshot):
    """In 5.8 to 6.9, an owner whose state is lost leaves its handles registered."""
    kcov = an_object(snapshot, remote=True)
    target.write_word(kcov.address + target.member(KCOV, "t").offset, 0)
    # Its task still says that it is the owner, and its reference is there no more.
    return {"K1", "K5", "K7", "R5", "T1", "T5"}


def task_forgets(target, snapshot):
    task = a_task(snapshot, "kc-pc")
    for path in ("kcov", "kcov_area", "kcov_size"):
        target.put(task.address, TASK, path, 0)
    target.put(task.address, TASK, "kcov_mode", 1 << 30)
    return {"T1"}


def count_by_user_space(target, snapshot):
    kcov = an_object(snapshot, mode=2, sequence=1, remote=False)
    target.write_word(kcov.area, 1 << 40)
    return {"B1"}


def count_that_wraps(target, snapshot):
    kcov = an_object(snapshot, mode=3, sequence=1, remote=False)
    target.write_word(kcov.area, (1 << 59) - 1)
    return {"B2"}


def list_cut(target, snapshot):
    area = next(area for area in snapshot.areas if area.list == "task" and area.state == "cached")
    target.write_word(area.address, 0)
    # Entries after the damage are not found any more.
    return {"A1"}


def list_looped(target, snapshot):
    area = next(area for area in snapshot.areas if area.list == "task" and area.state == "cached")
    target.write_word(area.address, area.address)
    return {"A1"}


def chain_looped(target, snapshot):
    entry = snapshot.handles[0]
    node = target.member(REMOTE, "hnode").offset
    target.write_word(entry.address + node, entry.address + node)
    return {"R1"}


def wrong_bucket(target, snapshot):
    entry = next(entry for entry in snapshot.handles if entry.handle >> 56)
    other = next(
        n for n in range(1 << 20, 1 << 21) if find_bucket(1 << 56 | n, 4, 8) != entry.bucket
    )
    target.put(entry.address, REMOTE, "handle", 1 << 56 | other)
    return {"R2"}


def registered_twice(target, snapshot):
    by_bucket = {}
    for entry in snapshot.handles:
        if entry.bucket in by_bucket:
            target.put(entry.address, REMOTE, "handle", by_bucket[entry.bucket].handle)
            return {"R3"}
        by_bucket[entry.bucket] = entry
    raise AssertionError


def left_over_session(target, snapshot):
    task = a_task(snapshot, "kc-pc")
    target.put(task.address, TASK, "kcov_saved_kcov", task.kcov)
    target.put(task.address, TASK, "kcov_saved_mode", 2)
    return {"S4", "S3"}


def area_in_use_and_free(target, snapshot):
    task = next(task.fields for task in snapshot.all_tasks if task.role is Role.SOFTIRQ_SECTION)
    free = next(area for area in snapshot.areas if area.state == "cached")
    target.put(task.address, TASK, "kcov_area", free.address)
    # The area that it really uses is lost, and this one isn't of its size.
    return {"A3", "T6", "T7", "A5", "X2"}


DAMAGES = (
    leaked_reference,
    lost_reference,
    owner_exited,
    task_forgets,
    count_by_user_space,
    count_that_wraps,
    list_cut,
    list_looped,
    chain_looped,
    wrong_bucket,
    registered_twice,
    left_over_session,
    area_in_use_and_free,
)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damage_is_found(demo, damage):
    target, layout, snapshot = demo
    expected = damage(target, snapshot)
    report = look(target, layout)
    found = {
        finding.rule for finding in report.findings if finding.severity is not Severity.TRANSIENT
    }
    assert expected & found
    assert found <= expected | {"X2"} | ({"B4"} if "B1" in expected or "B2" in expected else set())
    assert report.violations


def test_helpers_warn_of_what_they_could_not_read(demo):
    """An iteration that finds nothing is not one that there is nothing to find in."""
    target, _, snapshot = demo
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = {handle.value_() for handle in for_each_kcov_remote(target.prog)}
    assert found == {handle.address for handle in snapshot.handles}
    page = target.physical(target.symbol("kcov_remote_map").address) & -PAGE
    target.memory.removed.add(page)
    with pytest.warns(UserWarning, match="kcov_remote_map"):
        assert not list(for_each_kcov_remote(target.prog))


def test_helpers_read_no_buffer_inside_of_a_page(demo):
    target, _, snapshot = demo
    kcov = an_object(snapshot, mode=2, sequence=1, remote=False)
    target.put(kcov.address, KCOV, "area", kcov.area + 8)
    found = drgn.Object(target.prog, f"{KCOV} *", kcov.address)
    for read in (kcov_count, kcov_words):
        with pytest.raises(PointerError):
            read(found)
