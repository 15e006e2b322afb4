# SPDX-License-Identifier: LGPL-2.1-or-later
"""The full-screen view in a terminal that exists in memory only: what is on the screen after some
keys.
"""

import random
import re
from functools import partial

import pytest

from kcovdbg.buffers.trace_view import TracePane, TraceView
from kcovdbg.buffers.view_screen import KEYS, ViewScreen, footer
from kcovdbg.buffers.view_state import ViewState
from kcovdbg.errors import KcovdbgError
from kcovdbg.model.buffer import Gap
from kcovdbg.model.location import Frame, Location
from kcovdbg.records.line_states import CodeLine, LineState
from kcovdbg.records.pc_locations import LocationCache
from kcovdbg.symbols.source_tree import SourceTree
from tests.support.screen import KeyTerminal
from tests.support.traces import CountingWords, make_buffer, names, pc


def show(view, *size, **options):
    return KeyTerminal(partial(ViewScreen, view), *size, **options)


def make_trace(count, seed=1):
    chosen = random.Random(seed)
    words = []
    while len(words) < count:
        function = chosen.randrange(50)
        words += [pc(function, point) for point in range(chosen.randrange(1, 9))]
    return words[:count]


def single(words=1000, **values):
    words = make_trace(words) if isinstance(words, int) else words
    return TraceView(TracePane(make_buffer(words, **values), names()))


def two(left, right, **values):
    known = names()
    return TraceView(
        TracePane(make_buffer(left, "left"), known),
        TracePane(make_buffer(right, "right"), known),
        **values,
    )


def text(frame):
    return "\n".join(frame)


def test_first_screen():
    view = single()
    (frame,) = show(view).run("k")
    first = view.left.buffer.decode(0).pc
    assert frame[0].startswith("41, 1000 records")
    assert frame[1].split()[0] == "0"
    assert names()[first].frames[0].function in frame[1]
    assert "1/1000" in frame[-2]
    assert frame[-1].strip() == footer()
    assert all(line.strip() for line in frame)


@pytest.mark.parametrize(
    ("keys", "row"),
    [
        ("j", 1),
        ("jjjk", 2),
        ("\x1b[B\x1b[B\x1b[A", 1),
        ("G", 999),
        ("Gg", 0),
        ("G\x1b[H", 0),
        ("g\x1b[F", 999),
        ("\x1b[6~", 21),
        (" \x1b[5~", 0),
        ("\x04", 10),
        ("\x06\x15", 11),
        (":500\r", 500),
        (":50%\r", 499),
        (":nonsense\r", 0),
        ("jj:\x1b", 2),
    ],
)
def test_moving(keys, row):
    terminal = show(single())
    (frame,) = terminal.run(keys)
    state = terminal.shown.state
    assert state.row == row
    assert f"{row + 1}/1000" in frame[-2]
    # The cursor is on the screen, and the line there is its own.
    assert frame[1 + state.row - state.top].split()[0] == str(row)


def test_search_goes_around():
    words = make_trace(1000)
    words[700] = pc(77)
    terminal = show(single(words))
    frames = terminal.run(
        "/FN_77\r", "/fn_77\r", "n", "N", "/fn_[\r", "/nothing_like_it\r", "g/file_7\\.c\r"
    )
    assert "FN_77'" in text(frames[0])
    assert "701/1000" in text(frames[1])
    assert "fn_77" in text(frames[1])
    assert "wrapped" in text(frames[2])
    assert "701/1000" in text(frames[3])
    assert "not a regular expression" in text(frames[4])
    assert "no match for 'nothing_like_it'" in text(frames[5])
    assert "701/1000" in text(frames[6])


def test_both_spellings_of_an_address_are_found_and_shown():
    words = make_trace(300)
    words[250] = pc(990, 3)
    spellings = [
        f"{words[250] + offset:{form}}" for offset in (0, 0x1200000) for form in ("x", "#x", "X")
    ]
    frames = show(single(words, kaslr_offset=0x1200000), columns=100).run(
        *(f"g/{spelling}\r" for spelling in spellings)
    )
    for frame in frames:
        assert "251/300" in frame[-2]
        assert f"PC {words[250]:#x} at {words[250] + 0x1200000:#x}" in frame[-2]


def test_differences_and_equal_rows_have_four_colors():
    left = make_trace(60)
    right = [*left[:10], pc(90), *left[10:20], *left[21:30], pc(91), *left[31:]]
    terminal = show(two(left, right), columns=100, rows=40)
    colors = {}

    def look():
        screen = terminal.sink.screen
        for number, line in enumerate(screen.display[2:-2], 2):
            cells = [screen.buffer[number][column] for column in range(100)]
            colors.setdefault(line[49], set()).add(
                next(cell for cell in cells if cell.data.isalpha()).fg
            )

    terminal.run("j", look)
    assert set(colors) >= {"│", "<", ">", "|"}
    assert all(len(found) == 1 for found in colors.values())
    assert len(set.union(*colors.values())) == 4


def test_narrow_titles_keep_the_number_of_records():
    trace = make_trace(300)
    buffers = [
        make_buffer(trace, pid=41, comm="syz-executor", kcov=0xFFFF888003A51C00, mode="TRACE_PC")
        for _ in range(2)
    ]
    (frame,) = show(TraceView(*(TracePane(buffer, names()) for buffer in buffers)), columns=80).run(
        "j"
    )
    assert frame[0].count("300") == 2
    (frame,) = show(TraceView(TracePane(buffers[0], names())), columns=120).run("j")
    assert "0xffff888003a51c00" in frame[0]


def test_a_missing_source_takes_the_rows_of_its_message():
    terminal = show(single(300), rows=40)
    frames = terminal.run("s")
    assert "--source-dir" in frames[0][-3]
    assert len([line for line in frames[0] if "fn_" in line]) >= 35


def test_two_traces_are_aligned():
    left = make_trace(400)
    right = [*left[:100], *(pc(80, point) for point in range(5)), *left[100:200], *left[210:]]
    frames = show(two(left, right), columns=100).run("]", "]", "]", "[", "[")
    for frame, expected in zip(frames, (100, 205, 205, 100, 100), strict=True):
        assert f"{expected + 1}/405" in frame[-2]
    for frame, told in zip(
        frames, ("1 of 2", "2 of 2", "no further", "1 of 2", "no previous"), strict=True
    ):
        assert told in frame[-2]
    shown = [line for line in frames[0] if " > " in line]
    assert len(shown) == 5
    assert all(line[:48].strip() == "" and "fn_80" in line for line in shown)
    assert len([line for line in frames[1] if " < " in line]) == 10
    frames = show(two(right[100:], left[100:]), columns=100).run("G[[", "f", "G", "[")
    assert "1 of 2" in frames[0][-2]
    assert "2 of 2" in frames[3][-2]


def test_rows_of_both_sides_belong_together():
    left = make_trace(200)
    right = [*left[:50], pc(90), *left[50:]]
    terminal = show(two(left, right), columns=120)
    (frame,) = terminal.run(":120\r")
    rows = [line.split("│") for line in frame[1:-2] if "│" in line]
    assert rows
    for one, other in rows:
        a, b = one.split(), other.split()
        assert int(b[0]) == int(a[0]) + (int(a[0]) >= 50)
        assert a[1:] == b[1:]


def test_by_index():
    left = make_trace(300)
    right = list(left)
    right[33], right[150:153] = pc(60), [pc(61)] * 3
    terminal = show(two(left, right[:290], by_index=True))
    frames = terminal.run("]", "]", "]", "]", "[", "[")
    expected = (33, 150, 290, 290, 150, 33)
    assert [frame[-2].split()[0] for frame in frames] == [f"{row + 1}/300" for row in expected]
    assert "3 of 3" in frames[2][-2]


def test_fold_and_filter():
    left = make_trace(2000)
    right = [*left[:1000], pc(88), *left[1000:]]
    terminal = show(two(left, right), columns=100)
    frames = terminal.run("]", "f", "f", "&helper_3\r", "&\r")
    assert "1001/2001" in text(frames[0])
    assert "997 equal records from 0 and 0" in text(frames[1])
    assert "folded" in text(frames[1])
    assert "fn_88" in text(frames[1])
    assert "1001/2001" in text(frames[2])
    assert "only helper_3" in text(frames[3])
    assert "2001" not in frames[3][-2]
    assert "/2001" in frames[4][-2]


def test_runs_of_a_function_are_folded():
    words = [pc(1, point) for point in range(8)] * 4 + [pc(2)] * 10 + [pc(3)]
    terminal = show(single(words))
    (frame,) = terminal.run("f")
    assert "1/3" in frame[-2]
    assert ["×32" in frame[1], "×10" in frame[2], "×" in frame[3]] == [True, True, False]


def test_source_follows_the_cursor(tmp_path):
    path = tmp_path / "dir" / "file_0.c"
    path.parent.mkdir()
    path.write_text("".join(f"int line_{number};\n" for number in range(1, 200)))
    buffer = make_buffer([pc(1, 0), pc(1, 1), pc(25, 0)])
    terminal = show(TraceView(TracePane(buffer, names(), tree=SourceTree([tmp_path]))))
    frames = terminal.run("s", "j", "j", "s")
    assert "dir/file_0.c:100" in text(frames[0])
    assert "100 int line_100;" in text(frames[0])
    assert "dir/file_0.c:101" in text(frames[1])
    assert "no source text" in text(frames[2])
    assert "dir/file_2.c:100" not in "\n".join(frames[3][4:])


def test_source_has_the_marks_of_lines(tmp_path):
    """Of two traces of one build two of them; of two builds the one whose source it is."""
    path = tmp_path / "dir" / "file_0.c"
    path.parent.mkdir()
    path.write_text("".join(f"int line_{number};\n" for number in range(1, 200)))

    def states(*of_lines):
        lines = {99 + index: CodeLine(99 + index, of, 1) for index, of in enumerate(of_lines)}
        return lambda file: lines if file == "dir/file_0.c" else {}

    left = states(LineState.NOT_EXECUTED, LineState.EXECUTED)
    right = states(LineState.PARTLY, LineState.MOVED)
    tree = SourceTree([tmp_path])

    def pane(find_states):
        buffer = make_buffer([pc(1, 0)])
        return TracePane(buffer, names(), tree=tree, find_states=find_states)

    def gutters(view, keys=("s",)):
        frame = text(show(view).run(*keys)[-1])
        return re.findall(r"^(.*)(?:98|99|100) int", frame, re.MULTILINE)

    assert gutters(TraceView(pane(left))) == ["   ", "!  ", "+ "]
    assert gutters(TraceView(pane(left), pane(right))) == ["    ", "!~  ", "+? "]


def test_detail_help_and_unknown_keys():
    terminal = show(single([pc(1, 2)], kaslr_offset=0x1000))
    frames = terminal.run("d", "d", "?", "j", "z")
    assert "← fn_1" in text(frames[0])
    assert f"{pc(1, 2) + 0x1000:#x}" in text(frames[0])
    help_text = text(frames[2])
    for key in KEYS:
        assert key.label.split()[0] in help_text
        assert key.help.split()[0] in help_text
    assert "regular expression" not in text(frames[3])
    assert "? lists the keys" in text(frames[4])


def test_resize():
    terminal = show(single())
    frames = terminal.run("G", lambda: terminal.resize(60, 12), lambda: terminal.resize(120, 40))
    for frame, (columns, rows) in zip(frames, ((80, 24), (60, 12), (120, 40)), strict=True):
        assert len(frame) == rows
        assert len(frame[0]) == columns
        assert frame[rows - 3].split()[0] == "999"
        assert frame[rows - 1].strip()


@pytest.mark.parametrize("sides", [1, 2])
@pytest.mark.parametrize("count", [1_000, 1_000_000])
def test_a_frame_touches_what_it_shows(count, sides):
    known = names()
    buffers = [
        make_buffer(make_trace(count, seed), cls=CountingWords) for seed in range(1, sides + 1)
    ]
    view = TraceView(*(TracePane(buffer, known) for buffer in buffers), by_index=sides == 2)
    state = ViewState(view)
    state.resize(50)
    for step in (
        lambda: None,
        lambda: state.move(1),
        lambda: state.page(3),
        lambda: state.go_to(len(state.rows) - 1),
    ):
        step()
        CountingWords.touched = 0
        for number in range(state.top, state.top + state.height):
            assert state.line(number, 160)
        # Which rows differ is looked at beside what they hold.
        assert CountingWords.touched <= 3 * 50 * sides


def test_what_is_hostile_is_escaped():
    def locate(pcs):
        return [Location(value, (Frame("evil\x1b[2J\n", "a\x07b.c", 1, 1),)) for value in pcs]

    view = TraceView(
        TracePane(make_buffer([pc(1)], comm="x\x1b]0;y\x07", pid=3), LocationCache(locate))
    )
    terminal = show(view)
    (frame,) = terminal.run("k")
    assert "evil\\x1b[2J\\x0a" in text(frame)
    assert "\x1b[2J" not in terminal.sink.raw.replace("\x1b[2J", "", 1)


def test_empty_and_damaged_buffers():
    (frame,) = show(single([])).run("jGg]nfds")
    assert "0 records" in text(frame)
    buffer = make_buffer(
        [pc(1), 0, 1 << 63, 7, pc(2)], gaps=(Gap(3, 1),), remarks=("1 of 5 records can't be read",)
    )
    (frame,) = show(TraceView(TracePane(buffer, names()))).run("k")
    assert "no address" in frame[2]
    assert "no kernel text" in frame[3]
    assert "page is missing" in frame[4]
    assert "can't be read" in frame[-2]


def test_keys_are_told_apart():
    every = [name for key in KEYS for name in key.keys.split()]
    assert len(set(every)) == len(every)
    assert all(key.help and key.label for key in KEYS)
    assert len(footer()) <= 80


def test_what_is_alive_is_read_again():
    """A reader at the last row stays at the last row, any other one where they are; filter and
    search go on.
    """
    lengths = iter([5, 9, 200, 200, 150])

    def make():
        made = single(next(lengths))
        made.renew = make
        return made

    state = ViewState(make())
    state.resize(10)
    state.go_to(4)
    state.renew()
    assert (state.row, len(state.rows), state.looks) == (8, 9, 2)
    assert "read 2 times" in state.position()
    state.go_to(3)
    state.search(f"{pc(0):x}"[:6])
    state.renew()
    assert (state.row, state.top, len(state.rows)) == (state.row, state.top, 200)
    assert state.is_highlighted(199)
    state.set_filter(f"{state.view.left.buffer.decode(199).pc:x}")
    count = len(state.rows)
    assert 0 < count < 200
    state.renew()
    assert len(state.rows) == count
    state.set_filter("")
    state.go_to(199)
    state.renew()
    assert (state.row, len(state.rows)) == (149, 150)
    # When reading fails, the old content stays, with the reason.

    def gone():
        raise KcovdbgError("there is no process 41")

    state.view.renew = gone
    state.renew()
    assert (len(state.rows), state.ending) == (150, "not read again: there is no process 41")
    assert "there is no process 41" in state.position()


def test_the_screen_follows_by_itself(monkeypatch):
    monkeypatch.setattr("kcovdbg.buffers.view_screen._RENEW_WAIT", 0.02)
    lengths = iter(range(3, 1000, 3))

    def make():
        made = single(next(lengths))
        made.renew = make
        return made

    terminal = show(make())
    terminal.run("G", *[lambda: None] * 20, "q")
    assert terminal.shown.state.looks > 1
