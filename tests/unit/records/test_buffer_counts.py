# SPDX-License-Identifier: LGPL-2.1-or-later
"""Computations over buffers, compared with the simplest implementation of each."""

from array import array
from collections import Counter
from itertools import groupby

from hypothesis import given, settings
from hypothesis import strategies as st

from kcovdbg.model.buffer import Gap
from kcovdbg.model.location import Frame, Location
from kcovdbg.records.alignment import Mark, ViewRows, align_by_index, align_records
from kcovdbg.records.function_trace import find_runs, fold_runs, round_length
from kcovdbg.records.located_records import find_recorded_syscalls
from kcovdbg.records.pc_counts import PcCounts, count_pcs, pc_sequence
from kcovdbg.records.run_counts import DiffSide, RunCounts, compare_runs
from kcovdbg.series.trace_pc_ext import PC_EXT
from tests.support.traces import make_buffer, names, pc

POINTS = st.builds(pc, st.integers(0, 12), st.integers(0, 7))
TRACES = st.lists(POINTS, max_size=120)
SMALL = st.lists(st.integers(0, 4), max_size=40)
WORDS = st.lists(POINTS | st.integers(0, (1 << 64) - 1) | st.just(0), max_size=120)


# Counting.


@given(WORDS, st.integers(0, 100), st.integers(0, 50))
def test_counts(words, first, length):
    assert list(pc_sequence(make_buffer(words))) == words
    gap = Gap(min(first, len(words)), min(length, max(len(words) - first, 0)))
    buffer = make_buffer(words, gaps=(gap,) if gap.length else ())
    present = words[: gap.first] + words[gap.first + gap.length :]
    assert count_pcs(buffer) == Counter(word for word in present if word)


def test_counts_of_entries_and_exits():
    low = (1 << 56) - 1
    words = [pc(1) & low, pc(1), pc(1) & low | 1 << 60, 3 << 60 | 5, 0]
    buffer = make_buffer(words, codec=PC_EXT)
    assert count_pcs(buffer) == {pc(1): 3}
    assert list(pc_sequence(buffer)) == [pc(1)] * 3 + [0, 0]


# Runs and folds.


@given(TRACES)
def test_runs(words):
    key = names().symbol
    expected, position = [], 0
    for group, members in groupby(words, key):
        length = len(list(members))
        expected.append((position, length, group))
        position += length
    assert [tuple(run) for run in find_runs(words, key)] == expected


@given(SMALL)
def test_folds_give_back_all_runs(groups):
    runs = list(find_runs(groups, lambda value: value))
    folds = list(fold_runs(iter(runs)))
    unfolded = [run.group for fold in folds for _ in range(fold.rounds) for run in fold.runs]
    assert unfolded == [run.group for run in runs]
    assert sum(fold.length for fold in folds) == len(groups)
    position = 0
    for fold in folds:
        assert fold.first == position
        position += fold.length


def test_a_loop_over_functions_is_one_fold():
    groups = [9, *[1, 1, 2, 3] * 5, 8]
    folds = list(fold_runs(find_runs(groups, lambda value: value)))
    assert [(len(fold.runs), fold.rounds, fold.length) for fold in folds] == [
        (1, 1, 1),
        (3, 5, 20),
        (1, 1, 1),
    ]


@given(SMALL.filter(bool))
def test_rounds(words):
    def is_round(period):
        return all(word == words[index % period] for index, word in enumerate(words))

    expected = next(
        (period for period in range(1, len(words) // 2 + 1) if is_round(period)), len(words)
    )
    assert round_length(words) == expected


# Sets.


@given(st.lists(TRACES, min_size=1, max_size=4), st.lists(TRACES, min_size=1, max_size=4))
def test_differences(left, right):
    found = compare_runs(RunCounts(map(Counter, left)), RunCounts(map(Counter, right)))
    lefts, rights = [set(run) for run in left], [set(run) for run in right]
    everywhere = set.intersection(*lefts, *rights)
    only_left = set.intersection(*lefts) - set.union(*rights)
    only_right = set.intersection(*rights) - set.union(*lefts)
    by_side = {side: {row.pc for row in found.differences if row.side is side} for side in DiffSide}
    assert found.common == len(everywhere)
    assert by_side[DiffSide.LEFT] == only_left
    assert by_side[DiffSide.RIGHT] == only_right
    assert (
        by_side[DiffSide.FLICKER]
        == set.union(*lefts, *rights) - everywhere - only_left - only_right
    )
    for row in found.differences:
        assert row.records == sum(run.count(row.pc) for run in (*left, *right))
        assert row.left_runs == sum(row.pc in run for run in lefts)
        assert row.right_runs == sum(row.pc in run for run in rights)


# Rows.


@given(TRACES, TRACES)
def test_rows_by_index(left, right):
    rows = ViewRows(align_by_index(left, right))
    shown = [rows.row(number) for number in range(len(rows))]
    different = [row.mark is not Mark.EQUAL for row in shown]
    for number, row in enumerate(shown):
        assert row.left == (number if number < len(left) else None)
        assert row.right == (number if number < len(right) else None)
        assert different[number] == (left[number : number + 1] != right[number : number + 1])
    assert rows.find_differences() == find_starts(different)


def test_rows_of_comparisons_differ_by_their_operands():
    left = [5, 1, 2, pc(1)] * 3
    right = [*left[:5], 9, *left[6:]]
    rows = ViewRows(align_by_index(left, right, 4))
    assert [rows.row(number).mark for number in range(len(rows))] == [
        Mark.EQUAL,
        Mark.CHANGED,
        Mark.EQUAL,
    ]
    assert rows.find_differences() == [1]


def find_starts(different):
    return [
        number
        for number, is_different in enumerate(different)
        if is_different and (not number or not different[number - 1])
    ]


@settings(deadline=None)
@given(left=TRACES, right=TRACES)
def test_rows_by_content(left, right):
    rows = ViewRows(align_records(left, right))
    shown = [rows.row(number) for number in range(len(rows))]
    assert [row.left for row in shown if row.left is not None] == list(range(len(left)))
    assert [row.right for row in shown if row.right is not None] == list(range(len(right)))
    for number, row in enumerate(shown):
        if row.mark is Mark.EQUAL:
            assert left[row.left] == right[row.right]
        if row.left is not None:
            assert rows.find(row.left) == number
        if row.right is not None:
            assert rows.find(row.right, right=True) == number
    assert rows.find_differences() == find_starts([row.mark is not Mark.EQUAL for row in shown])
    folded = rows.fold_equal()
    assert sum(folded.row(number).rounds for number in range(len(folded))) == len(rows)
    rows = [folded.row(number) for number in range(len(folded))]
    assert not [row for row in rows if row.mark is not Mark.EQUAL and row.rounds > 1]
    assert folded.find_differences() == find_starts([row.mark is not Mark.EQUAL for row in rows])


@given(TRACES, st.integers(0, 12))
def test_filtered_and_grouped_rows(words, function):
    known = names()
    rows = ViewRows.of_one(len(words))
    wanted = [known.symbol(word) == f"fn_{function}" for word in words]
    found = rows.filter(lambda row: wanted[row.left])
    assert [found.row(number).left for number in range(len(found))] == [
        index for index, is_wanted in enumerate(wanted) if is_wanted
    ]
    groups = rows.fold_groups([int(known.symbol(word)[3:]) for word in words])
    expected = [(run.first, run.length) for run in find_runs(words, known.symbol)]
    assert [
        (groups.row(number).left, groups.row(number).rounds) for number in range(len(groups))
    ] == expected
    for run_number, (first, length) in enumerate(expected):
        assert all(groups.find(index) == run_number for index in range(first, first + length))


def test_recorded_system_calls():
    def located(*functions, approximate=False):
        frames = tuple(Frame(function, "kernel/sys.c", 1, None) for function in functions)
        return Location(0, frames, approximate=approximate)

    locations = [
        located("__rcu_read_lock", "__task_pid_nr_ns"),
        located("__do_sys_getppid", "__x64_sys_getppid"),
        located("__se_sys_ioctl.part.0"),
        located("__arm64_compat_sys_ppoll"),
        located("ksys_read"),
        located("__do_sys_getppid"),
        located("__x64_sys_close", approximate=True),
        located(None),
    ]
    assert find_recorded_syscalls(locations) == ("getppid", "ioctl", "ppoll")
    assert find_recorded_syscalls([]) == ()


def test_outside():
    """A PC is behind its call: it is of the code in front of it."""
    counts = PcCounts(array("Q", [0x100, 0x101, 0x1FF, 0x200, 0x201, 0x500]), array("Q", [1] * 6))
    code = [(0x300, 0x400), (0x100, 0x200)]
    assert list(counts.outside(code)) == [0x100, 0x201, 0x500]
    assert list(counts.outside([*code, (0x100, 0x210)])) == [0x100, 0x500]
    assert list(counts.outside([])) == list(counts.pcs)
