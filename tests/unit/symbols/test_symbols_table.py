# SPDX-License-Identifier: LGPL-2.1-or-later
"""Location tables: reading returns what was written, and incomplete tables are refused."""

import errno
import io
import os
import time
from array import array
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcovdbg.console.table_progress import wait_for_table
from kcovdbg.console.terminal import Terminal
from kcovdbg.errors import CapabilityError
from kcovdbg.model.location import Frame
from kcovdbg.symbols import table_cache as cache
from kcovdbg.symbols.awaited_table import AwaitedTable
from kcovdbg.symbols.coverage_points import POINT_KINDS, PointKind
from kcovdbg.symbols.location_table import FunctionSymbol, LocationTable, TableError, TextRange
from kcovdbg.symbols.table_cache import Progress
from kcovdbg.symbols.table_rows import LocationArrays, LocationError, Locations
from tests.support.table_writer import TableWriter

BUILD_ID = "0123456789abcdef0123456789abcdef01234567"
BASE = 0xFFFFFFFF81000000
TEXT = TextRange(BASE, BASE + 0x10000, ".text")

FRAMES = st.builds(
    Frame,
    st.none() | st.sampled_from(["f", "g", "ünï"]),
    st.none() | st.sampled_from(["a.c", "./b.h"]),
    st.none() | st.integers(1, 2**32 - 1),
    st.none() | st.integers(1, 2**16 - 1),
)
ROWS = st.dictionaries(
    st.integers(BASE, BASE + 0x10001),
    st.tuples(st.sampled_from(PointKind), st.lists(FRAMES, max_size=4).map(tuple)),
    max_size=60,
)


def write(path, rows, build_id=BUILD_ID):
    writer = TableWriter(build_id, [TEXT])
    for pc, (kind, frames) in rows.items():
        writer.add_frames(pc, kind, frames)
    writer.add_function(FunctionSymbol("f", BASE + 0x10, 0x20))
    writer.add_function(FunctionSymbol("alias", BASE + 0x10, 0x20))
    writer.add_function(FunctionSymbol("g", BASE + 0x40, 0))
    writer.write(path)


def test_a_column_that_has_no_room_is_unknown(tmp_path):
    chain = (Frame("f", "a.c", 1, 65536), Frame("g", "a.c", 2, 65535))
    write(tmp_path / "table", {BASE: (PointKind.PC, chain)})
    ((_, found),) = LocationTable(tmp_path / "table").get_rows([BASE])
    assert found == (chain[0]._replace(column=None), chain[1])


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, others=st.lists(st.integers(0, 2**64 - 1), max_size=10))
def test_round_trip(tmp_path_factory, rows, others):
    path = tmp_path_factory.mktemp("t") / "table"
    write(path, rows)
    table = LocationTable(path, BUILD_ID)
    assert len(table) == len(rows)
    assert list(table.pcs()) == sorted(rows)
    for kind in PointKind:
        assert list(table.pcs(kind)) == sorted(pc for pc in rows if rows[pc][0] == kind)
    asked = [*rows, *others, BASE - 1, BASE + 0x10002]
    assert table.get_rows(asked) == [rows.get(pc) for pc in asked]
    for function, file in (("f", None), (None, "b.h"), ("g", None), ("nosuch", None)):
        names = {file, f"./{file}"}
        files = [file] if file else ()
        found = table.find(function=function, files=files)
        assert list(found) == sorted(
            pc
            for pc, (kind, frames) in rows.items()
            if kind in POINT_KINDS
            and (
                # In the code of the symbol f.
                (function == "f" and 0x10 < pc - BASE <= 0x30)
                or any(
                    (function in (None, frame.function)) and (file is None or frame.file in names)
                    for frame in frames
                )
            )
        )
    assert table.files() == sorted(
        {frame.file for _, frames in rows.values() for frame in frames if frame.file}
    )


def test_the_rest_of_a_table(tmp_path):
    write(tmp_path / "t", {BASE: (PointKind.PC, ())})
    table = LocationTable(tmp_path / "t")
    assert table.text_ranges() == (TEXT,)
    assert [symbol.name for symbol in table.functions()] == ["f", "g"]
    assert [symbol.name for symbol in table.functions_named("f")] == ["f"]
    assert table.functions_named("nosuch") == []
    assert (
        table.function_at(BASE + 0x10)
        == table.function_at(BASE + 0x2F)
        == FunctionSymbol("f", BASE + 0x10, 0x20)
    )
    assert table.function_at(BASE + 0x30) is table.function_at(BASE) is table.function_at(0) is None
    assert table.build_id == BUILD_ID


def test_damage_is_noticed(tmp_path):
    path = tmp_path / "t"
    write(path, {BASE + i: (PointKind.PC, (Frame("f", "a.c", i + 1, 1),)) for i in range(50)})
    whole = path.read_bytes()
    for damaged in (
        b"",
        whole[:40],
        whole[:-1],
        whole + b"\0",
        b"X" + whole[1:],
        whole[:8] + b"\xff" + whole[9:],
    ):
        path.write_bytes(damaged)
        with pytest.raises(TableError):
            LocationTable(path)
    for at in range(96, len(whole), 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(TableError):
            LocationTable(path, BUILD_ID)
    path.write_bytes(whole)
    with pytest.raises(TableError, match="another build"):
        LocationTable(path, "ff" * 20)


def test_cache_takes_damage_for_absence(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = cache.table_path(BUILD_ID)
    assert path.parent == tmp_path / "kcovdbg" / "symbols"
    assert cache.open_table(BUILD_ID) is None
    path.parent.mkdir(parents=True)
    write(path, {})
    assert cache.open_table(BUILD_ID) is not None
    path.write_bytes(path.read_bytes()[:-3])
    assert cache.open_table(BUILD_ID) is None
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache.cache_folder().is_absolute()


def test_a_reader_keeps_the_old_file(tmp_path):
    path = tmp_path / "t"
    write(path, {BASE: (PointKind.PC, (Frame("old", None, None, None),))})
    table = LocationTable(path)
    write(path, {BASE: (PointKind.PC, (Frame("new", None, None, None),))})
    assert table.get_rows((BASE,))[0][1][0].function == "old"
    assert LocationTable(path).get_rows((BASE,))[0][1][0].function == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["t"]


def test_a_cache_that_cannot_be_used(tmp_path, monkeypatch):
    """The table goes to a directory of our own under TMPDIR, and the user is told."""
    (tmp_path / "file").touch()
    (tmp_path / "spare").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "spare"))
    found = cache.find_usable_cache()
    own = tmp_path / "spare" / f"kcovdbg-{os.geteuid()}"
    assert found.folder == own
    assert os.strerror(errno.ENOTDIR) in found.problem
    assert str(own) in found.note
    assert "XDG_CACHE_HOME" in found.note
    assert own.stat().st_mode & 0o077 == 0
    write(cache.table_path(BUILD_ID, own), {})
    assert cache.open_table(BUILD_ID) is not None
    # Others could have put a table there.
    own.chmod(0o777)
    assert cache.open_table(BUILD_ID) is None
    assert cache.find_usable_cache().folder != own
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert cache.find_usable_cache() == (tmp_path / "cache" / "kcovdbg" / "symbols", None)
    assert cache.find_usable_cache().note is None

    def full(_descriptor, _start, _length):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    # A full disk is noticed before anything is built.
    monkeypatch.setattr(os, "posix_fallocate", full)
    found = cache.find_usable_cache()
    assert found.folder is None
    assert os.strerror(errno.ENOSPC) in found.problem


def test_a_build_that_fails_says_so(tmp_path):
    """The kernel's table is returned at once, without waiting for it."""
    (tmp_path / "image").write_bytes(b"no ELF")
    build = cache.TableBuild(tmp_path / "image", BUILD_ID, tmp_path / "tables")

    def wait():
        end = time.monotonic() + 60
        while time.monotonic() < end:
            assert build.find() is None
            time.sleep(0.05)

    with pytest.raises(CapabilityError) as caught:
        wait()
    assert str(caught.value)
    table = AwaitedTable(build=build)
    assert table.found is None
    assert not table.is_awaited
    assert str(table.problem) == str(caught.value)


@pytest.mark.parametrize("width", [100, None])
def test_a_build_is_waited_for_with_a_progress_bar(width):
    stream = io.StringIO()
    steps = iter((None, Progress(8, 20), Progress(10, 20), Progress(20, 20)))

    class Built(SimpleNamespace):
        @property
        def is_awaited(self):
            return not self.ended

        def progress(self):
            progress = next(steps)
            self.ended = progress == Progress(20, 20)
            return progress

    built = Built(ended=width is None, note=None)
    wait_for_table(Terminal(io.StringIO(), stream, error_width=width), built, 60)
    shown = stream.getvalue().split("\r")
    assert ["50 %" in text and " s left" in text for text in shown] == [
        number == 3 for number in range(len(shown))
    ]
    assert len(shown) == (7 if width else 1)


def test_lines_that_ascend_are_found_at_once():
    """Each set of locations has a key of its own; with one of thirty, ascending lines collided."""
    count = 1 << 14
    frames = array("I")
    for line in range(count):
        frames.extend((1, 1, line, 0))
    given = LocationArrays(
        b"a.c\0", frames, array("I", range(1, count + 1)), array("I", range(count))
    )
    for _ in range(200):
        made = Locations()
        made.add(given)
        assert made.probes < 4 * count


def test_locations_are_numbered():
    made = Locations()
    numbers = made.add_frames(
        [
            (),
            (Frame("f", "a.c", 1, 2), Frame("g", "b.h", None, None)),
            (Frame(None, "a.c", 7, None),),
            (),
        ]
    )
    assert list(numbers) == [0, 1, 2, 0]
    arrays = made.arrays()
    other = Locations()
    assert list(other.add(arrays)) == list(other.add(arrays)) == list(range(3))
    assert other.arrays() == arrays
    twice = Locations()
    assert list(twice.add(arrays)) == list(range(3))
    assert list(twice.add(arrays, are_new=True)) == list(range(3, 6))
    assert list(twice.add(arrays)) == list(range(3))
    assert twice.arrays().frames == arrays.frames
    same, nothing, outer, empty = other.common([(1, 1), (1, 2), (0, 1), (0, 0)])
    assert (same, empty) == (1, 0)
    ends, frames = other.arrays().chain_ends, other.arrays().chain_frames
    assert ends[nothing] == (ends[nothing - 1] if nothing else 0)
    assert other.arrays().strings()[other.arrays().frames[4 * frames[ends[outer] - 1]] - 1] == "g"
    with pytest.raises(LocationError):
        other.common([(1, 77)])
    for damaged in (
        arrays._replace(text=b"x"),
        arrays._replace(chain_frames=array("I", [9] * len(arrays.chain_frames))),
        arrays._replace(chain_ends=array("I", [5, 1, 2])),
        arrays._replace(frames=array("I", [77] * len(arrays.frames))),
        arrays._replace(frames=arrays.frames[:-1]),
    ):
        with pytest.raises(LocationError):
            other.add(damaged)
