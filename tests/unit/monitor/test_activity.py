# SPDX-License-Identifier: LGPL-2.1-or-later
"""Activity from samples of a running kernel: rates, full buffers, sections, objects, and the
summary of a recording.
"""

import pytest

from kcovdbg.monitor.activity import Activity
from kcovdbg.monitor.samples import ObjectSample, RecordShare
from kcovdbg.monitor.screen_state import OBJECTS, TASKS, totals_line
from kcovdbg.monitor.summary import exclusion, summarize
from tests.support.samples import KCOV, OTHER, USB, kcov, owner, sample, section, task


def run(*samples):
    activity = Activity()
    for one in samples:
        activity = activity.after(one)
    return activity


def only(activity):
    (found,) = activity.tasks
    return found


def test_rate_is_of_the_last_seconds():
    activity = run(sample(0, task(0)), sample(1, task(100)), sample(2, task(300)))
    assert only(activity).rate == (150.0, False)
    for number in range(3, 8):
        activity = activity.after(sample(number, task(300)))
    assert only(activity).rate == (0.0, False)


def test_rate_is_unknown_at_first_and_least_after_a_reset():
    assert only(run(sample(0, task(5)))).rate is None
    assert only(run(sample(0, task(100)), sample(1, task(40)))).rate == (40.0, True)


@pytest.mark.parametrize(
    ("counts", "overflows"),
    [
        ((0, 511, 511, 0, 511), 2),
        ((511, 511), 1),
        ((0, 10, 20), 0),
        ((510, 511, 0, 5, 511, 0, 511), 3),
        ((None, 511, None), 1),
    ],
)
def test_full_buffers_are_counted_each_time(counts, overflows):
    activity = run(*(sample(number, task(count)) for number, count in enumerate(counts)))
    assert only(activity).overflows == overflows == activity.overflows
    assert sum(event.text.startswith("FULL: ") for event in activity.events) == overflows


def test_count_written_by_user_space_makes_no_rate():
    activity = run(sample(0, task(0)), sample(1, task(1 << 60)))
    assert only(activity).rate == (511.0, False)


def test_loss_is_proved_by_another_system_call():
    full = [
        sample(number, task(511, syscall=call))
        for number, call in enumerate(["read(3)", "read(3)", "close(3)", "read(4)"])
    ]
    assert only(run(*full)).lost == 2
    # In user space nothing is recorded.
    assert only(run(*(sample(number, task(511)) for number in range(4)))).lost == 0


def test_records_of_a_section_do_not_fit_a_full_buffer():
    activity = run(sample(0, owner(511), section(33)), sample(1, owner(511)))
    assert only(activity).lost == 33
    assert only(run(sample(0, owner(500), section(33)), sample(1, owner(511)))).lost == 0


def test_sections_are_told_apart_by_their_counts():
    objects = (ObjectSample(KCOV, None, "TRACE_PC", 512, 1, 42, "usb", (USB,)),)
    counts = (None, 5, 9, 3, None, 4, 4)
    samples = [
        sample(number, *([] if count is None else [section(count)]))
        for number, count in enumerate(counts)
    ]
    activity = run(samples[0]._replace(objects=objects), *samples[1:])
    (found,) = activity.sections
    assert (found.kcov, found.handles, found.begun, found.in_flight) == (KCOV, (USB,), 3, 1)
    assert found.rate is not None
    assert found.rate.is_least


def test_sections_that_no_look_sees_show_in_the_owners_buffer():
    objects = (ObjectSample(KCOV, None, "TRACE_PC", 512, 1, 42, "usb", (USB, USB + 1)),)
    counts = (0, 10, 10, 15, 3)
    samples = [sample(number, owner(count), objects=objects) for number, count in enumerate(counts)]
    (found,) = run(*samples).sections
    assert (found.handle, found.handles, found.begun, found.in_flight) == (
        None,
        (USB, USB + 1),
        3,
        0,
    )
    # The records are from a section that a look has seen.
    (seen,) = run(sample(0, owner(0), section(5), objects=objects), sample(1, owner(5))).sections
    assert seen.begun == 1


def test_objects_come_and_go():
    first = ObjectSample(KCOV, None, "INIT", 512, 1, None, None)
    second = ObjectSample(OTHER, None, "INIT", 512, 1, None, None)
    looks = [(first,), None, (first, second), (second,)]
    activity = run(*(sample(number, objects=found) for number, found in enumerate(looks)))
    assert (activity.came, activity.went) == (1, 1)
    assert [(event.time, event.text) for event in activity.events] == [
        (2, f"+ kcov {OTHER:#x}, 512 words"),
        (3, f"- kcov {KCOV:#x}, 512 words"),
    ]


def test_state_of_the_machine_is_an_event():
    activity = run(sample(0), sample(1, state="stopped"), sample(2, state="gone"))
    assert [event.text for event in activity.events] == [
        "the machine is stopped",
        "the machine is gone",
    ]


def test_cost():
    activity = run(*(sample(number / 4) for number in range(9)))
    assert (activity.reads, activity.looks, round(activity.used, 3), activity.seconds) == (
        90,
        9,
        0.09,
        2,
    )


def test_summary_of_a_buffer_that_overflows():
    # 100 records a second; full for 2 s each time, until it is emptied.
    counts = [0, 100, 200, 300, 400, 500, 511, 511, 511] * 3
    samples = [sample(number, task(count)) for number, count in enumerate(counts)]
    (buffer,) = summarize(samples).buffers
    assert (buffer.kind, buffer.overflows, len(buffer.rounds), buffer.largest, buffer.size) == (
        "buffer",
        3,
        3,
        511,
        512,
    )
    assert buffer.full_seconds == 6
    assert buffer.rate is not None
    assert 80 < buffer.rate < 100
    # 511 records, and those of 2 s.
    assert buffer.needed is not None
    assert 511 + 160 < buffer.needed < 511 + 201
    assert buffer.needed_size == 1024
    assert buffer.lost_estimate == round(6 * buffer.rate)


def test_summary_of_comparisons_counts_their_words():
    counts = [0, 60, 120, 127, 127, 0]
    samples = [
        sample(number, task(count, capacity=127, kcov_size=512, kcov_mode="TRACE_CMP"))
        for number, count in enumerate(counts)
    ]
    (buffer,) = summarize(samples).buffers
    assert buffer.needed_size == 1024


def test_summary_takes_99_of_100_rounds():
    counts = [count for number in range(200) for count in (0, 400 if number == 0 else 100)]
    (buffer,) = summarize(
        [sample(number, task(count, capacity=1023)) for number, count in enumerate(counts)]
    ).buffers
    assert (len(buffer.rounds), buffer.largest, buffer.needed, buffer.needed_size) == (
        200,
        400,
        100,
        512,
    )


def test_summary_of_a_buffer_that_was_always_full_has_no_size():
    (buffer,) = summarize([sample(number, task(511)) for number in range(5)]).buffers
    assert (buffer.overflows, buffer.needed_size, buffer.lost_estimate) == (1, None, None)


def test_summary_tells_areas_from_buffers():
    objects = (ObjectSample(KCOV, None, "TRACE_PC", 4096, 1, 42, "usb", (USB,)),)
    samples = [
        sample(number, owner(count, capacity=4095), section(511), objects=objects)
        for number, count in enumerate((0, 9))
    ]
    found = {buffer.kind: buffer for buffer in summarize(samples).buffers}
    assert (found["buffer"].size, found["area"].size, found["area"].overflows) == (4096, 512, 1)


def test_summary_adds_shares_up():
    shares = (
        RecordShare("f", "kernel/fork.c", 60.0),
        RecordShare("g", "kernel/exit.c", 30.0),
        RecordShare("h", "./include/linux/list.h", 10.0),
    )
    summary = summarize([sample(0, shares=shares), sample(1, shares=shares[:1])])
    places = {
        by: [(place.function or place.file, place.records) for place in shares]
        for by, shares in summary.shares.items()
    }
    assert places == {
        "function": [("f", 120), ("g", 30), ("h", 10)],
        "file": [("kernel/fork.c", 120), ("kernel/exit.c", 30), ("include/linux/list.h", 10)],
        "directory": [("kernel/", 150), ("include/linux/*.h", 10)],
    }


def test_exclusion():
    assert exclusion("mm/slub.c") == ("mm/Makefile", "KCOV_INSTRUMENT_slub.o := n")
    assert exclusion("mm/") == ("mm/Makefile", "KCOV_INSTRUMENT := n")
    assert exclusion("include/linux/*.h") == exclusion("include/linux/list.h") == (None, None)
    assert exclusion("/usr/src/module.c") == exclusion(None) == (None, None)


def test_long_recordings_keep_their_peaks():
    samples = [sample(number / 4, task(511 if number == 3000 else 0)) for number in range(5000)]
    summary = summarize(samples)
    assert len(summary.points) <= 400
    assert max(point.fill for point in summary.points) == 1.0
    assert summary.points[-1].overflows == 1


def test_sections_count_for_a_handle_that_is_found_later():
    objects = (ObjectSample(KCOV, None, "TRACE_PC", 512, 1, 42, "usb", (USB,)),)
    (found,) = run(
        sample(0),
        sample(1, section(1)),
        sample(2, section(2), objects=objects),
        sample(3, objects=()),
    ).sections
    assert (found.handle, found.begun) == (USB, 1)


def test_summary_knows_the_size_once_the_object_is_found():
    objects = (ObjectSample(KCOV, None, "TRACE_PC", 4096, 1, 42, "usb", (USB,)),)
    counts = (0, 5, 9, 3)
    samples = [
        sample(number, owner(count, capacity=4095), objects=() if number < 2 else objects)
        for number, count in enumerate(counts)
    ]
    (buffer,) = summarize(samples).buffers
    assert (buffer.size, buffer.looks, len(buffer.rounds), buffer.records) == (4096, 4, 2, 12)


def test_a_device_and_kcov_in_one_task_are_apart():
    """Both may collect into a task at once; the device counts words."""
    ours, theirs = (
        task(10),
        task(100, kcov=OTHER, kcov_mode="DATAFLOW", capacity=511, device="dataflow"),
    )
    later = (
        task(30),
        task(511, kcov=OTHER, kcov_mode="DATAFLOW", capacity=511, full=True, device="dataflow"),
    )
    objects = (kcov(), kcov(OTHER)._replace(device="dataflow", mode="DATAFLOW"))
    activity = (
        Activity().after(sample(1.0, ours, theirs, objects=objects)).after(sample(2.0, *later))
    )
    rates = {found.task.device: found.rate.per_second for found in activity.tasks}
    assert rates == {None: 20, "dataflow": 411}
    assert {found.task.device: found.overflows for found in activity.tasks} == {
        None: 0,
        "dataflow": 1,
    }
    rows = TASKS.items(activity)
    assert {TASKS.buffer(row) for row in rows} == {"41", "dataflow:41"}
    assert len({TASKS.identity(row) for row in rows}) == 2
    assert {OBJECTS.buffer(row) for row in OBJECTS.items(activity)} == {
        f"kcov:{KCOV:#x}",
        f"dataflow:{OTHER:#x}",
    }
    line = "".join(text for _, text in totals_line(activity))
    # KCOV's records and the device's words are not added up.
    assert "20 records/s" in line
    assert "411 words/s" in line
