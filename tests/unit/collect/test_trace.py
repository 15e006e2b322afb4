# SPDX-License-Identifier: LGPL-2.1-or-later
"""Coverage around a block: the order of calls, the records that are read, and the separation of
threads.
"""

import errno
import os
import threading

import pytest

import kcovdbg.collect
from kcovdbg.abi import record
from kcovdbg.collect.requests import EnableRefusal, Step, explain_errno, find_mode
from kcovdbg.errors import CollectError, UsageError
from tests.support.fake_kcov import ENABLE, INIT_TRACE, UNIQUE_ENABLE, FakeKcov, record_into

PCS = [0xFFFFFFFF81000005 + 16 * index for index in range(5)]


@pytest.fixture
def fake():
    return FakeKcov()


def make_trace(fake, mode="pc", **options):
    return kcovdbg.collect.Trace(
        mode, size=options.pop("size", 512), path="/fake", device=fake.device, **options
    )


def expect(step, number, **options):
    """Return the message for an errno of a call."""
    return str(explain_errno(step, number, **{"path": "/fake", "size": 512, **options}))


def names(fake):
    numbers = {
        INIT_TRACE: "INIT_TRACE",
        ENABLE: "ENABLE",
        0x6365: "DISABLE",
        UNIQUE_ENABLE: "UNIQUE_ENABLE",
    }
    return [(numbers[request], argument) for request, argument in fake.requests]


def test_a_block(fake):
    with make_trace(fake) as trace:
        record_into(trace.fd, PCS)
    assert names(fake) == [("INIT_TRACE", 512), ("ENABLE", 0), ("DISABLE", 0)]
    assert list(trace.pcs) == PCS
    assert (trace.buffer.count, trace.buffer.capacity, trace.buffer.mode, trace.full) == (
        5,
        511,
        "TRACE_PC",
        False,
    )
    with trace:
        pass
    assert list(trace.pcs) == []
    assert fake.open_count == 1
    trace.close()
    trace.close()
    assert fake.open_count == 0


def test_what_enabling_left_is_forgotten(fake):
    trace = make_trace(fake)
    trace.open()
    record_into(trace.fd, PCS)
    with trace:
        record_into(trace.fd, PCS[:2])
        trace.reset()
        record_into(trace.fd, PCS[:1])
    assert list(trace.pcs) == PCS[:1]


def test_a_full_buffer_says_so(fake):
    with make_trace(fake) as trace:
        record_into(trace.fd, [PCS[0]] * 511)
    assert trace.full
    assert "full" in trace.buffer.remarks[0]
    with trace:
        os.pwrite(trace.fd, b"\xff" * 8, 0)
    assert trace.buffer.count == 511
    assert "user space wrote it" in trace.buffer.remarks[0]


def test_comparisons(fake):
    with make_trace(fake, "cmp") as trace:
        record_into(trace.fd, [7, 1, 2, PCS[0]])
        os.pwrite(trace.fd, (1).to_bytes(8, "little"), 0)
    assert names(fake)[1] == ("ENABLE", 1)
    assert (trace.buffer.count, trace.buffer.capacity) == (1, 127)
    assert list(trace.pcs) == PCS[:1]


def test_a_second_buffer_of_edges(fake):
    with make_trace(fake, "uniq-edge", features={"unique-maps"}) as trace:
        record_into(trace.fd, PCS)
        os.pwrite(trace.fd, (1).to_bytes(8, "little") + PCS[3].to_bytes(8, "little"), 512 * 8)
    assert names(fake)[1] == ("ENABLE", 4)
    assert list(trace.pcs) == PCS
    assert list(trace.edges.words) == PCS[3:4]


def test_a_bitmap_before_the_count(fake):
    with make_trace(fake, "unique-pc", features={"unique-bitmap"}) as trace:
        os.pwrite(trace.fd, (1).to_bytes(8, "little") + PCS[2].to_bytes(8, "little"), 16 * 8)
    assert names(fake)[1] == ("UNIQUE_ENABLE", 16)
    assert list(trace.pcs) == PCS[2:3]
    assert trace.buffer.capacity == 512 - 16 - 1


def test_the_kernel_is_asked_to_forget(fake):
    with make_trace(fake, "unique-pc", features={"unique-bitmap"}) as trace:
        fake.requests.clear()
        trace.reset()
        assert not fake.requests
        trace.reset(by_kernel=True)
        assert fake.requests == [(0x6368, 0)]
        for number in (errno.ENOTTY, errno.EINVAL):
            fake.errors[0x6368] = number
            with pytest.raises(CollectError) as caught:
                trace.reset(by_kernel=True)
            assert str(caught.value) == expect(Step.RESET, number)
    # Where 104 may mean anything, the request is not made.
    with make_trace(fake) as trace:
        fake.requests.clear()
        with pytest.raises(CollectError) as caught:
            trace.reset(by_kernel=True)
        assert str(caught.value) == expect(Step.RESET, errno.ENOTTY)
        assert not fake.requests


@pytest.mark.parametrize(
    ("refused", "mode", "refusal"),
    [
        # The kernel's answers to KCOV_ENABLE by argument, and of one that was refused once only.
        ({1}, "cmp", EnableRefusal.MODE),
        ({0, 1}, "cmp", EnableRefusal.FILE),
        ({0}, "pc", EnableRefusal.FILE),
        ("once", "pc", EnableRefusal.OBJECT),
    ],
)
def test_why_enabling_is_invalid(fake, refused, mode, refusal):
    fake.refuse = refused
    with pytest.raises(CollectError) as caught, make_trace(fake, mode):
        pass
    assert str(caught.value) == expect(
        Step.ENABLE, errno.EINVAL, refusal=refusal, mode=find_mode(mode)
    )
    assert caught.value.hint
    assert {request for request, _ in fake.requests} <= {0x80086301, 0x6364, 0x6365}
    # Only the trace's own is still open.
    assert fake.open_count == 1


def test_a_bitmap_without_room(fake):
    fake.refuse = {1, 2}
    with (
        pytest.raises(CollectError) as caught,
        make_trace(fake, "unique-pc", features={"unique-bitmap"}, size=2),
    ):
        pass
    assert str(caught.value) == expect(
        Step.ENABLE,
        errno.EINVAL,
        refusal=EnableRefusal.PREFIX,
        size=2,
        mode=find_mode("unique-pc", {"unique-bitmap"}),
    )


@pytest.mark.parametrize(
    "mode", ["pc-ext", "uniq-pc", "uniq-edge", "uniq-pc-edge", "uniq-cmp", "unique-pc", "nonsense"]
)
@pytest.mark.parametrize("features", [None, set()])
def test_numbers_that_collide_are_never_tried(fake, mode, features):
    with pytest.raises(UsageError, match=mode):
        make_trace(fake, mode, features=features)
    assert fake.requests == []


ARGUMENTS = {
    "pc": (0x6364, 0, None),
    "cmp": (0x6364, 1, None),
    "pc-ext": (0x6364, 2, {"ext-records"}),
    "uniq-pc": (0x6364, 2, {"unique-maps"}),
    "uniq-edge": (0x6364, 4, {"unique-maps"}),
    "uniq-pc-edge": (0x6364, 6, {"unique-maps"}),
    "uniq-cmp": (0x6364, 8, {"unique-maps"}),
    "unique-pc": (0x40086367, 16, {"unique-bitmap"}),
}


@pytest.mark.parametrize("mode", ARGUMENTS)
def test_each_mode_asks_for_what_its_series_has(fake, mode):
    request, argument, features = ARGUMENTS[mode]
    with make_trace(fake, mode, features=features) as trace:
        pass
    assert [
        (number, value) for number, value in fake.requests if number in (0x6364, 0x40086367)
    ] == [(request, argument)]
    # Edges have a mapping of their own right behind the first.
    assert fake.mapped == [(0, 4096), (4096, 4096)][: 2 if "edge" in mode else 1]
    assert (trace.edges is not None) == ("edge" in mode)


def test_extended_records(fake):
    with make_trace(fake, "pc-ext", features={"ext-records"}) as trace:
        ip = 0x00FFFFFFFFFFFFFF
        record_into(trace.fd, [PCS[0] & ip, PCS[1], PCS[2] & ip | 1 << 60])
    assert trace.buffer.count == 3
    kinds = [
        record.decode_record(trace.buffer.words, index, trace.buffer.encoding) for index in range(3)
    ]
    assert [found.kind for found in kinds] == [
        record.RecordKind.ENTRY,
        record.RecordKind.PC,
        record.RecordKind.EXIT,
    ]
    assert [found.pc for found in kinds] == PCS[:3]


def test_other_threads_are_refused(fake):
    trace = make_trace(fake)
    trace.__enter__()
    problems = []

    def other():
        for action in (
            trace.reset,
            trace.close,
            lambda: trace.__exit__(None, None, None),
            trace.__enter__,
        ):
            try:
                action()
            except CollectError as error:
                problems.append(str(error))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert len(problems) == 4
    assert str(threading.get_native_id()) in problems[0]
    trace.__exit__(None, None, None)
    with pytest.raises(CollectError, match="reset"):
        trace.reset()


def test_a_block_within_a_block(fake):
    with make_trace(fake) as trace, pytest.raises(CollectError, match="collects already"):
        trace.__enter__()


@pytest.mark.parametrize(
    ("what", "number", "step"),
    [
        ("open", errno.EACCES, Step.OPEN),
        (0x80086301, errno.EINVAL, Step.INIT),
        (0x80086301, errno.ENOMEM, Step.INIT),
        ("map", errno.EINVAL, Step.MAP),
        (0x6364, errno.EBUSY, Step.ENABLE),
        (0x6364, 524, Step.ENABLE),
        (0x6365, errno.EINVAL, Step.DISABLE),
    ],
)
def test_errors(fake, what, number, step):
    fake.errors[what] = number
    with pytest.raises(CollectError) as caught, make_trace(fake):
        pass
    assert str(caught.value) == expect(step, number)
    # Not the message for an errno without an explanation of its own.
    assert caught.value.hint != explain_errno(step, errno.EIO).hint
    assert caught.value.hint
    assert caught.value.status == 125


def test_an_error_of_the_block_comes_first(fake):
    fake.errors[0x6365] = errno.EINVAL
    with pytest.raises(ZeroDivisionError), make_trace(fake):
        1 / 0  # noqa: B018
