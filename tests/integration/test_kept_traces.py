# SPDX-License-Identifier: LGPL-2.1-or-later
"""Traces of booted kernels that are kept: two boots of one kernel, and one of the same kernel after
a patch.

tests/lab/trace_samples.py makes them, with location tables of the functions in them. The patch and
the program that ran (tests/lab/generations/getpriority.patch, tests/lab/programs/priority.c) say
what is expected.
"""

import json
import shutil
import struct
from collections import Counter
from pathlib import Path

import pytest
import zstandard

from kcovdbg.records.line_states import (
    WHOLE,
    LineState,
    TraceRecords,
    find_code_columns,
    make_finder,
    select_code_records,
)
from kcovdbg.records.side_file import read_header
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.table_builder import make_module_table
from tests.integration.test_two_builds import ask, refuse

KEPT = Path(__file__).parent.parent / "golden" / "two_kernels"
MODULES = Path(__file__).parent.parent / "lab" / "modules"
MODULE = {"kcovlab_keep_write", "kcovlab_keep_outer", "kcovlab_keep_middle", "kcovlab_keep_inner"}


def options(files, *names):
    """Name the files of builds."""
    return [word for name in names for word in ("--other-vmlinux", files / name)]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    for path in KEPT.iterdir():
        (folder / path.stem).write_bytes(zstandard.decompress(path.read_bytes()))
    with pytest.MonkeyPatch.context() as patch:
        # Of tables that other tests made there is none.
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield folder


def test_kept_files_are_small():
    assert sum(path.stat().st_size for path in KEPT.iterdir()) < 250_000


def test_the_module_was_elsewhere(files):
    places = [read_header(files / f"default{boot}.kcov").recorded_modules for boot in range(2)]
    assert [place.name for (place,) in places] == ["kcovlab_keep", "kcovlab_keep"]
    assert places[0] != places[1]


def test_two_boots_of_one_kernel(files):
    traces = [f"file:{files / f'default{boot}.kcov'}" for boot in range(2)]
    named = options(files, "default.table", "kcovlab_keep.ko")
    _, rows = ask(*named, "diff", *traces, "--json")
    assert not MODULE & {frame["function"] for row in rows for frame in row["frames"]}
    _, rows = ask(*named, "trace", traces[1], "--against", traces[0], "--json")
    assert {
        row["function"]: row["side"] for row in rows if row["function"] in MODULE
    } == dict.fromkeys(MODULE, "both")


def test_a_module_without_its_file_is_compared_by_address(files):
    traces = [f"file:{files / f'default{boot}.kcov'}" for boot in range(2)]
    (place,) = read_header(files / "default0.kcov").recorded_modules
    _, rows = ask(*options(files, "default.table"), "diff", *traces, "--json")
    assert not [row for row in rows if place.span[0] < int(row["pc"], 0) <= place.span[1]]


def test_what_the_patch_adds(files):
    named = options(files, "default.table", "patched.table")
    executed, never = json.loads((files / "lines.json").read_text())
    _, rows = ask(
        *named,
        "diff",
        f"file:{files / 'default0.kcov'}",
        f"file:{files / 'patched0.kcov'}",
        "--json",
    )
    frames = [frame for row in rows for frame in row["frames"] if row["side"] == "right"]
    lines = {frame["line"] for frame in frames if frame["function"] == "__do_sys_getpriority"}
    # Lines are paired by their order here, and some of the old ones are not.
    assert executed in lines
    assert never not in lines
    # The patch renames it, so that it is gone and new.
    missing = {
        (row["side"], row["frames"][-1]["function"]): row["missing"]
        for row in rows
        if row["frames"]
    }
    assert missing["left", "override_release"] == missing["right", "release_override"] == "function"


@pytest.fixture
def anonymous(files, tmp_path):
    """The same traces, whose side files do not name their builds."""
    for path in files.glob("*.kcov"):
        shutil.copy(path, tmp_path)
        side = json.loads((files / f"{path.name}.json").read_text())
        del side["build_id"]
        (tmp_path / f"{path.name}.json").write_text(json.dumps(side))
    return tmp_path


def test_traces_that_do_not_name_their_build_are_of_the_builds_in_order(files, anonymous):
    named = options(files, "default.table", "patched.table")
    # Both name it, none, and one of them.
    answers = [
        ask(
            *named,
            "diff",
            f"file:{left / 'default0.kcov'}",
            f"file:{right / 'patched0.kcov'}",
            "--json",
        )[1]
        for left, right in ((files, files), (anonymous, anonymous), (files, anonymous))
    ]
    assert answers == answers[:1] * 3


def test_modules_of_traces_that_do_not_name_their_build(files, anonymous):
    named = options(files, "default.table", "kcovlab_keep.ko")
    traces = [f"file:{anonymous / f'default{boot}.kcov'}" for boot in range(2)]
    _, rows = ask(*named, "trace", traces[1], "--against", traces[0], "--json")
    assert {
        row["function"]: row["side"] for row in rows if row["function"] in MODULE
    } == dict.fromkeys(MODULE, "both")


def test_builds_of_which_nothing_is_known_are_not_compared(files):
    """Equal PCs of two builds mean nothing."""
    traces = [f"file:{files / name}" for name in ("default0.kcov", "patched0.kcov")]
    ids = [read_header(files / name).build_id for name in ("default0.kcov", "patched0.kcov")]
    for words, told in (
        (["diff", *traces], ids[0]),
        (["trace", traces[0], "--against", traces[1]], ids[1]),
        ([*options(files, "default.table"), "view", "--text", *traces], ids[1]),
    ):
        error, hint = refuse(*words).splitlines()
        assert told in error
        assert "--other-vmlinux" in hint
    # Of one build they are.
    assert ask("diff", traces[0], f"file:{files / 'default1.kcov'}")[0] == 1


def test_states_of_a_modules_lines(files):
    """The guest wrote a 3: its digit was right, and the kernel could read it."""
    (module,) = read_header(files / "default0.kcov").recorded_modules
    table = make_module_table(module, str(files / "kcovlab_keep.ko"))
    count, *words = (
        word for (word,) in struct.iter_unpack("<Q", (files / "default0.kcov").read_bytes())
    )
    trace = TraceRecords(Counter(words[:count]), WHOLE, frozenset({PointKind.PC}))
    own = select_code_records(trace, table)
    assert len(own.counts) > 10
    found = make_finder(table).find_columns(own)
    assert (found.contradictions, found.unknown_edges, found.unmatched) == (0, 0, 0)
    lines = find_code_columns(found, None).rows()["modules/kcovlab_keep.c"]
    text = (MODULES / "kcovlab_keep.c").read_text().splitlines()
    states = {text[line.line - 1].strip(): line.state for line in lines}
    assert not any(state.is_unknown for state in states.values())
    assert states["return 1;"] is states["return total;"] is LineState.EXECUTED
    assert states["sum += kcovlab_keep_inner(n);"] is LineState.EXECUTED
    assert states["while (n--)"] is LineState.EXECUTED
    assert states["return -EFAULT;"] is states["return -EINVAL;"] is LineState.NOT_EXECUTED
    assert states["debugfs_remove(directory);"] is LineState.NOT_EXECUTED
