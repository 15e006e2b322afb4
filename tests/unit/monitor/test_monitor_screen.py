# SPDX-License-Identifier: LGPL-2.1-or-later
"""The monitor's screen in a terminal that exists in memory only, its sources, and its
recordings.
"""

import contextlib
import json
from functools import partial

import pytest

from kcovdbg.errors import GoneError, KcovdbgError, TargetError
from kcovdbg.model.state import State
from kcovdbg.model.task import Role
from kcovdbg.monitor import monitor_source
from kcovdbg.monitor.monitor_source import make_task_samples
from kcovdbg.monitor.samples import RecordShare, open_recording, read_samples
from kcovdbg.monitor.screen import KEYS, MonitorScreen
from kcovdbg.monitor.screen_state import EVENTS, MonitorState, bar_text
from kcovdbg.monitor.summary import handles_text, short_number, syzkaller_size
from kcovdbg.target.watchpoints import RunEnd
from tests.support.clock import Clock
from tests.support.samples import (
    OTHER,
    USB,
    FakeMachine,
    FakeSource,
    kcov,
    owner,
    sample,
    section,
    task,
)
from tests.support.screen import KeyTerminal
from tests.support.state import make_task

CALLS = ("read(3, 0x7f0000001000, 512)", "close(3)")


def sequence(count=40):
    """Samples of a task that fills its buffer in ten looks and empties it, of an idle one, and of a
    section now and then.
    """
    for number in range(count):
        filled = min(number % 12 * 60, 511)
        tasks = [
            task(filled, syscall=CALLS[number % 2]),
            owner(100 + number, kcov=OTHER),
            task(5, pid=77, comm="idle"),
        ]
        if number % 4 == 1:
            tasks.append(section(9, kcov=OTHER))
        objects = (kcov(), kcov(OTHER, 42, (USB,))) if number % 5 == 0 else None
        if number >= 20 and objects is not None:
            objects = objects[:1]
        yield sample(
            1_700_000_000 + number / 2,
            *tasks,
            objects=objects,
            shares=(RecordShare("do_read", "fs/read_write.c", 40.0), RecordShare(None, None, 2.5)),
        )


def show(state, *size):
    return KeyTerminal(partial(MonitorScreen, state), *size)


def paused(count=40, at=0):
    """The state after a number of looks, with no other look for an hour."""
    source = FakeSource(*sequence(count), interval=3600)
    for _ in range(at + 1):
        source.advance()
    return MonitorState(source)


def text(frame):
    return "\n".join(frame)


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (100, 30), (132, 50), (40, 10), (20, 5)])
def test_screens_of_all_sizes(columns, rows):
    (frame,) = show(paused(at=10), columns, rows).run("N")
    assert len(frame) == rows
    assert "kcovdbg monitor" in frame[0]
    if columns >= 80:
        assert "3 tracing" not in frame[1]
        assert any("RECORDS" in line for line in frame) is (columns >= 100)
        heading = next(line for line in frame if "PID" in line)
        assert (
            heading.index("PID")
            < heading.index("COMM")
            < heading.index("MODE")
            < heading.index("FILL")
        )
        row = next(line for line in frame if " 41  syz-executor" in line)
        assert "FULL" in row
        assert "TRACE_PC" in row
        assert "F1Help" in frame[-1]
        assert frame[-1].rstrip().endswith("Quit")


@pytest.mark.parametrize(
    ("keys", "column", "is_reversed"),
    [
        ("", "REC/S", True),
        ("I", "REC/S", False),
        (">", "FULL", True),
        ("<", "FILL", True),
        (">>>>", "PID", False),
        ("\x1b[17~", "FULL", True),
    ],
)
def test_sorting(keys, column, is_reversed):
    terminal = show(paused(at=9))
    (frame,) = terminal.run(keys)
    state = terminal.shown.state
    assert (state.sort.column.heading, state.sort.is_reversed) == (column, is_reversed)
    orders = [state.sort.column.reader()(row) for row in state.rows]
    known = [order for order in orders if order is not None]
    assert orders == known + [None] * (len(orders) - len(known))
    assert known == sorted(known, reverse=is_reversed)
    assert "▽" in text(frame) or "△" in text(frame)


def test_filter():
    terminal = show(paused(at=9))
    frames = terminal.run("/", "IDL", "\r", "\x1b", "\x1bOS", "zzz", "\x7f\x7f\x7f", "\x7f")
    assert "Filter:" in frames[0][-1]
    assert "idle" in text(frames[1])
    assert "syz-executor" not in "\n".join(line for line in frames[1] if "FULL" not in line)
    assert "filter 'IDL': 1 rows" in text(frames[2])
    assert "syz-executor" in text(frames[3])
    assert "Filter:" in frames[4][-1]
    assert "nothing matches 'zzz'" in text(frames[5])
    assert terminal.shown.state.filter == ""


def test_lists():
    terminal = show(paused(at=39))
    frames = terminal.run("\t", "\t", "\t", "\t", "\x1b[Z")
    assert "usb:1" in text(frames[0])
    assert "HANDLES" in text(frames[1])
    assert "- kcov 0xffff888003a51d00" in text(frames[2])
    assert "SYSCALL" in text(frames[3])
    assert terminal.shown.state.shown is EVENTS


def test_the_cursor_stays_with_its_row():
    state = paused(at=1)
    state.go_to(next(number for number, row in enumerate(state.rows) if row.task.comm == "idle"))
    for _ in range(28):
        state.advance()
        assert state.rows[state.row].task.comm == "idle"


def test_moving():
    tasks = [task(pid, pid=pid) for pid in range(1, 101)]
    state = MonitorState(live(sample(0, *tasks), interval=3600))
    terminal = show(state)
    for keys, cursor in (
        ("G", 99),
        ("g", 0),
        ("jjk", 1),
        ("\x1b[6~", None),
        ("\x1b[F", 99),
        ("\x1b[H", 0),
    ):
        (frame,) = terminal.run(keys)
        if cursor is not None:
            assert state.row == cursor
        assert f" {state.rows[state.row].task.pid}  syz-executor" in text(frame)


def test_help_names_every_key_and_any_key_closes_it():
    terminal = show(paused())
    frames = terminal.run("?", ">", "\x1bOP", ">", "x")
    assert "F1 lists the keys" in text(frames[4])
    for key in KEYS:
        if key.help:
            assert key.help in text(frames[0])
    assert "show this help" not in text(frames[1])
    assert "show this help" in text(frames[2])
    assert "show this help" not in text(frames[3])
    # The key that closed help did nothing else.
    assert terminal.shown.state.sort.column.key == "rate"


# A running kernel.


def live(*answers, interval=0.01, share=1.0, **values):
    source = FakeSource(*answers, interval=interval, share=share, **values)
    with contextlib.suppress(GoneError):
        source.advance()
    return source


def test_live_screen_advances():
    samples = list(sequence(6))
    source = live(*samples)
    terminal = show(MonitorState(source))
    frames = terminal.run("N", "N", "N")
    assert source.activity.looks > 3
    assert "limit 100%" in text(frames[-1])


def test_frozen_screen_reads_nothing_unless_it_records(tmp_path):
    source = live(*sequence(3))
    terminal = show(MonitorState(source))
    terminal.run(" ")
    looks = source.looks
    terminal.run("N", "N")
    assert source.looks == looks
    with open_recording(str(tmp_path / "a.jsonl")) as record:
        source = live(*sequence(3), record=record)
        terminal = show(MonitorState(source))
        frames = terminal.run(" ", "N", "N")
        shown = terminal.shown.state.activity.looks
        assert source.activity.looks > shown
        assert "FROZEN" in frames[-1][0]
        assert "REC" in frames[-1][0]


@pytest.mark.parametrize("machine", [None, FakeMachine(GoneError("QEMU guest at /run/qmp"))])
def test_a_machine_that_ends_stays_on_the_screen(machine):
    first, *_ = sequence(1)
    source = live(first, GoneError("QEMU guest at /run/qmp"), machine=machine)
    terminal = show(MonitorState(source))
    frames = terminal.run("N", "N", "\t", "q")
    assert "GONE" in frames[1][0]
    assert "is gone" in text(frames[1])
    assert "syz-executor" in text(frames[1])
    assert source.activity.sample.state == "gone"
    assert source.pause is None


def test_a_look_that_fails_is_named_and_repeated():
    first, second = sequence(2)
    source = live(first, TargetError("could not read"), second)
    terminal = show(MonitorState(source))
    frames = terminal.run("N")
    assert "could not read" in text(frames[0])
    source._began = 0
    frames = terminal.run("N", "N")
    assert "could not read" not in text(frames[-1])
    assert source.activity.looks >= 2


def test_errors_of_the_recording_end_the_screen():
    def fail(_sample):
        raise OSError(28, "No space left on device")

    source = live(*sequence(2))
    source._record = fail
    with pytest.raises(OSError, match="No space left"):
        show(MonitorState(source)).run("N", "N")


def test_enter_names_the_buffer_to_view():
    first, *_ = sequence(2)
    state = MonitorState(live(first, interval=60))
    state.set_filter("41")
    terminal = show(state)
    terminal.run("g\r")
    assert terminal.result == "41"
    # An idle task has none.
    state = MonitorState(live(sample(0), interval=60))
    frames = show(state).run("\r")
    assert "no buffer to view" in text(frames[0])


def test_names_from_the_kernel_are_escaped():
    evil = task(1, comm="evil\x1b[2J\u202e\n", syscall="x\x1b]0;y\x07")
    state = MonitorState(
        live(sample(0, evil, objects=(kcov()._replace(comm="\x1b[31m"),)), interval=60)
    )
    terminal = show(state, 140, 30)
    terminal.run("\t", "\t", "\t")
    assert "\x1b[2J\u202e" not in terminal.sink.raw
    assert "\x1b]0;y" not in terminal.sink.raw


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(monitor_source, "time", clock)
    return clock


def test_all_that_a_look_leads_to_is_of_the_budget(clock):
    def record(_sample):
        clock.used += 0.03

    near = [one._replace(objects=None, seconds=0.0) for one in sequence(3)]
    assert live(*near, interval=0.25, share=0.04).pause == 0.25
    source = live(*near, share=0.04, record=record)
    assert source.pause == pytest.approx(1.0)
    # Drawing.
    clock.used += 0.03
    assert source.pause == pytest.approx(2.0)


def test_a_machine_is_stopped_for_a_share_of_the_time(clock):
    near = next(sequence())._replace(objects=None)
    source = live(
        lambda: clock.sleep(0.03) or near, interval=0.25, share=0.04, machine=FakeMachine()
    )
    # 2 % of it, whole looks included.
    assert source.pause == pytest.approx(1.97)


def test_a_machine_that_is_stopped_for_each_look_runs_between_them():
    first, second = sequence(2)
    machine = FakeMachine(*[RunEnd.TIME] * 4, RunEnd.OTHER)
    source = live(first, second, machine=machine)
    terminal = show(MonitorState(source))
    # Also while the screen is frozen.
    frames = terminal.run(" ", "N", "N", " ", "N")
    assert len(machine.runs) == 5
    assert all(0 <= seconds <= 0.2 for seconds in machine.runs)
    assert "has stopped by itself" in text(frames[-1])
    assert source.activity.sample.state == "stopped"
    assert source.pause is None


def test_a_count_that_no_section_can_have_is_unknown():
    in_section = make_task(
        7, role=Role.REMOTE_SECTION, count=0xFFFF888003A51C00, capacity=511, full=True
    )
    # User space can write its own.
    local = make_task(8, count=1 << 60, capacity=511, full=True)
    found = make_task_samples(State(None, {"tasks": (in_section, local), "device_sessions": ()}))
    assert [(sample.count, sample.full) for sample in found] == [(None, None), (1 << 60, True)]


# Recordings.


def record(path, samples):
    with open_recording(str(path)) as add:
        for one in samples:
            add(one)


def test_a_recording_is_what_was_seen(tmp_path):
    path = tmp_path / "a.jsonl"
    of_device = task(3, kcov=OTHER, kcov_mode="DATAFLOW", device="dataflow")
    samples = [
        *sequence(300),
        sample(1e6, task(7), of_device, objects=(kcov(OTHER)._replace(device="dataflow"),)),
    ]
    record(path, samples)
    assert list(read_samples(str(path))) == samples


@pytest.mark.parametrize("key", ["device", "kcov_remote"])
def test_a_recording_of_another_version_is_refused(tmp_path, key):
    path = tmp_path / "a.jsonl"
    record(path, sequence(3))
    path.write_text(path.read_text().replace(f'"{key}"', '"other"'))
    with pytest.raises(KcovdbgError, match=f"version.*'{key}'"):
        list(read_samples(str(path)))


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, KcovdbgError])
def test_what_ends_a_recording_keeps_it(tmp_path, error):
    path = tmp_path / "a.jsonl"
    samples = list(sequence(3))

    def run():
        with open_recording(str(path)) as add:
            for one in samples:
                add(one)
                # No incomplete recording has the final name.
                assert not path.exists()
            raise error("now")

    with pytest.raises(error):
        run()
    assert list(read_samples(str(path))) == samples
    assert [file.name for file in tmp_path.iterdir()] == ["a.jsonl"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not json\n",
        b"[]\n",
        b"{}\n",
        b'{"time": "now"}\n',
        b"\x00\xff\xfe",
        b"[" * 100_000,
        b'{"time": 1e999',
    ],
)
def test_what_is_no_recording(tmp_path, content):
    path = tmp_path / "a"
    path.write_bytes(content)
    with pytest.raises(KcovdbgError):
        list(read_samples(str(path)))


@pytest.mark.parametrize(
    "change", [{"pid": "41"}, {"kcov": "zz"}, {"full": 1}, {"count": True}, {"comm": []}]
)
def test_rows_with_wrong_values_are_refused(tmp_path, change):
    path = tmp_path / "a.jsonl"
    record(path, sequence(1))
    row = json.loads(path.read_text())
    row["tasks"][0].update(change)
    path.write_text(json.dumps(row))
    with pytest.raises(KcovdbgError):
        list(read_samples(str(path)))


def test_names_in_a_recording_survive(tmp_path):
    path = tmp_path / "a.jsonl"
    record(path, [sample(0, task(1, comm="evil\x1b[2J\u202e\\x80\n"))])
    assert next(read_samples(str(path))).tasks[0].comm == "evil\x1b[2J\u202e\\x80\n"


# Words.


def test_bars():
    assert bar_text(0.0, False) == "[        0%]"
    assert bar_text(0.5, False) == "[|||||  50%]"
    assert bar_text(1.0, True) == "[|||FULL|||]"
    assert bar_text(0.9999, False) == "[|||||||99%]" or len(bar_text(0.9999, False)) == 12
    assert bar_text(None, None) == ""


def test_numbers_and_handles():
    numbers = (0, 999, 1000, 12_345, 999_400, 4.5e6, 2e9)
    assert " ".join(map(short_number, numbers)) == "0 999 1.0k 12.3k 999k 4.5M 2.0G"
    assert (syzkaller_size(1 << 19), syzkaller_size(512)) == ("512 << 10", "512")
    assert handles_text((USB,)) == "usb:1"
    assert handles_text(range(USB, USB + 9)).endswith("usb:6 and 3 more")
