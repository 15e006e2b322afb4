# SPDX-License-Identifier: LGPL-2.1-or-later
"""Points of two builds that are the same, on location tables made by hand."""

from array import array

import pytest

from kcovdbg.compare.build_match import BuildComparison, BuildFunctions, Unmatched, match_builds
from kcovdbg.model.location import Frame
from kcovdbg.records.pc_locations import LocationCache
from kcovdbg.symbols.awaited_table import AwaitedTable
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.location_table import FunctionSymbol, LocationTable, TextRange
from kcovdbg.symbols.symbolizer import Symbolizer
from tests.support.table_writer import TableWriter

BASE = 0xFFFFFFFF81000000


class Image:
    """A build made by hand: functions with their points, each a chain of frames."""

    def __init__(self, path, shift=0):
        self.path = path
        self.shift = shift
        self.at = BASE + shift
        self.points = {}
        self.writer = TableWriter("ab" * 20, [TextRange(BASE, BASE + (1 << 24), ".text")])

    def add(self, name, file, *chains, symbol=None):
        """Add a function; a chain is its line, or the frames that are inlined into it, innermost
        first, and its line.
        """
        start = self.at
        for chain in chains:
            *inlined, line = chain if isinstance(chain, tuple) else (chain,)
            self.at += 16
            frames = (*inlined, Frame(name, file, line, 1))
            self.writer.add_frames(self.at + 5, PointKind.PC, frames)
            self.points.setdefault((name, line), []).append(self.at + 5)
        self.at += 16
        self.writer.add_function(FunctionSymbol(symbol or name, start, self.at - start))
        return self

    def functions(self, recorded, text=None):
        self.path.write_bytes(self.writer.to_bytes())
        table = LocationTable(self.path)
        names = LocationCache(Symbolizer(table=AwaitedTable(table)).locate_all, lambda: table)
        texts = {} if text is None else text
        return BuildFunctions(
            names.columns(array("Q", sorted(recorded))), lambda file: texts.get(file, ())
        )

    def all(self):
        return [pc for pcs in self.points.values() for pc in pcs]


@pytest.fixture
def sides(tmp_path):
    return Image(tmp_path / "left"), Image(tmp_path / "right", 0x4000)


def match(left, right, texts=(None, None)):
    return match_builds(
        left.functions(left.all(), texts[0]), right.functions(right.all(), texts[1])
    )


def same(found, left, right):
    """Return whether two PCs have one number."""
    return found.sides[0].numbers[left] == found.sides[1].numbers[right]


def test_shifted_lines_are_paired_by_their_distances(sides):
    left, right = sides
    left.add("f", "a.c", 10, 12, 15, 20, 21)
    right.add("f", "./a.c", 30, 32, 33, 35, 40, 41)
    found = match(left, right)
    for here, there in ((10, 30), (12, 32), (20, 40), (21, 41)):
        assert same(found, left.points["f", here][0], right.points["f", there][0])
    assert list(found.sides[1].unmatched.values()) == [Unmatched.NO_POINT]
    assert not found.sides[0].unmatched
    assert (found.by_order, found.by_source) == (1, 0)


def test_distances_that_agree_by_chance_pair_nothing(sides):
    """As mas_walk() of 6.1 and of 6.12, whose lines have nothing in common but the first two."""
    left, right = sides
    left.add("f", "a.c", 1, 3, 6, 8, 11, 13, 14)
    right.add("f", "a.c", 1, 3, 8, 10, 12, 17)
    found = match(left, right)
    paired = {
        line for (_, line), (pc,) in left.points.items() if pc not in found.sides[0].unmatched
    }
    assert paired == {1, 3}


def test_functions_without_debug_info_in_one_build(sides):
    """Its objects have none, or are in assembly: there is only the name."""
    left, right = sides
    left.add("f", None, None, None).add("g", "a.c", 5, 6)
    right.add("f", "b.c", 10, 12).add("g", "a.c", 5, 6)
    found = match(left, right)
    assert found.same == 2
    assert not found.moved
    first, second = right.points["f", 10][0], right.points["f", 12][0]
    assert same(found, left.points["f", None][0], first)
    assert found.sides[1].unmatched == {second: Unmatched.NO_LINES}
    assert found.sides[0].unmatched == {left.points["f", None][1]: Unmatched.NO_LINES}


def test_sources_decide_where_they_are_at_hand(sides):
    left, right = sides
    left.add("f", "a.c", 1, 2, 4)
    right.add("f", "a.c", 1, 2, 4, 6)
    old = ["int f(int a)", "if (a)", "{", "return g(a);", "}"]
    new = ["int f(int a)", "if (b)", "{", "if (a)", "{", "return g(a);", "}"]
    found = match(left, right, ({"a.c": old}, {"a.c": new}))
    assert found.by_source == 1
    assert same(found, left.points["f", 2][0], right.points["f", 4][0])
    assert same(found, left.points["f", 4][0], right.points["f", 6][0])
    assert found.sides[1].unmatched == {right.points["f", 2][0]: Unmatched.NO_POINT}


def test_text_that_does_not_fit_the_build_is_not_used(sides):
    left, right = sides
    left.add("f", "a.c", 10, 12)
    right.add("f", "a.c", 20, 22)
    found = match(left, right, ({"a.c": ["too short"]}, {"a.c": ["too short"]}))
    assert (found.by_order, found.by_source) == (1, 0)
    assert not found.sides[0].unmatched


def test_one_text_of_two_compilers(sides):
    left, right = sides
    left.add("f", "a.c", 10, 12, 15, 17)
    right.add("f", "a.c", 10, 13, 15, 19)
    text = {"a.c": [f"line {number}" for number in range(40)]}
    found = match(left, right, (text, text))
    assert found.by_source == 1
    assert same(found, left.points["f", 15][0], right.points["f", 15][0])
    assert set(found.sides[0].unmatched) == {left.points["f", 12][0], left.points["f", 17][0]}


def test_functions_that_went_elsewhere(sides):
    left, right = sides
    left.add("moved", "a.c", 10, 11, 14)
    left.add("gone", "a.c", 40)
    left.add("suffixed", "a.c", 50, 51, symbol="suffixed.isra.0")
    right.add("moved", "b.c", 110, 111, 114)
    right.add("suffixed", "a.c", 150, 151, symbol="suffixed.constprop.0")
    found = match(left, right)
    assert found.moved == [("moved", "a.c", "b.c")]
    assert found.same == 1
    assert found.sides[0].unmatched == {left.points["gone", 40][0]: Unmatched.FUNCTION}
    assert not found.sides[1].unmatched


def test_stubs_are_not_moved_functions(sides):
    left, right = sides
    left.add("__x64_sys_swapon", "mm/swapfile.c", 10)
    right.add("__x64_sys_swapon", "kernel/sys_ni.c", 20)
    assert set(match(left, right).sides[0].unmatched.values()) == {Unmatched.FUNCTION}


def test_points_of_one_line(sides):
    left, right = sides
    left.add("f", "a.c", 10, 11, 11, 13).add("g", "a.c", 20, 21, 21)
    right.add("f", "a.c", 10, 11, 11, 13).add("g", "a.c", 20, 21)
    found = match(left, right)
    one, two = left.points["f", 11]
    # As many in the same order: one by one.
    assert found.sides[0].numbers[one] != found.sides[0].numbers[two]
    assert [found.sides[0].numbers[pc] for pc in (one, two)] == [
        found.sides[1].numbers[pc] for pc in right.points["f", 11]
    ]
    # Otherwise as one.
    assert {found.sides[0].numbers[pc] for pc in left.points["g", 21]} == {
        found.sides[1].numbers[right.points["g", 21][0]]
    }


def test_blocks_are_not_comparisons(sides):
    left, right = sides
    for image, kinds in (
        (left, (PointKind.CMP, PointKind.PC)),
        (right, (PointKind.PC, PointKind.CMP)),
    ):
        image.add("f", "a.c", 10, *[11] * 2)
        for pc, kind in zip(image.points["f", 11], kinds, strict=True):
            image.writer.add_frames(pc, kind, (Frame("f", "a.c", 11, 1),))
    found = match(left, right)
    assert same(found, left.points["f", 11][0], right.points["f", 11][1])
    assert same(found, left.points["f", 11][1], right.points["f", 11][0])
    assert not same(found, left.points["f", 11][0], right.points["f", 11][0])


def test_comparisons_that_are_not_recorded_change_nothing(sides):
    """Comparisons on a line between others, on which the order of the most points is not that of
    the blocks.
    """
    left, right = sides
    left.add("f", "a.c", 10, 11, 12, 12, 12, 11)
    right.add("f", "a.c", 10, 12, 12, 12, 11, 11)
    for image in (left, right):
        for pc in image.points["f", 12]:
            image.writer.add_frames(pc, PointKind.CMP, (Frame("f", "a.c", 12, 1),))
    blocks = [image.points["f", 11] for image in (left, right)]
    found = match_builds(left.functions(blocks[0]), right.functions(blocks[1]))
    assert [found.sides[0].numbers[pc] for pc in blocks[0]] == [
        found.sides[1].numbers[pc] for pc in blocks[1]
    ]
    assert len({found.sides[0].numbers[pc] for pc in blocks[0]}) == 2


def test_the_first_pc_of_inlined_copies_is_found(sides):
    """Of several copies, the lowest of those in the same function."""
    left, right = sides
    helper, middle = Frame("helper", "h.h", 5, 1), Frame("middle", "h.h", 8, 1)
    left.add("f", "a.c", 10, (helper, 12)).add("helper", "h.h", 5)
    right.add("other", "a.c", 30, (helper, 31)).add(
        "f", "a.c", 10, (helper, middle, 12), (helper, 13), (helper, 13)
    )
    inlined = left.points["f", 12][0]
    found = match_builds(left.functions([inlined]), right.functions(right.all()))
    assert found.pcs[found.sides[0].numbers[inlined]][1] == right.points["f", 12][0]


def test_inlining_differs(sides):
    left, right = sides
    helper = Frame("helper", "h.h", 5, 1)
    left.add("f", "a.c", 10, (helper, 12)).add("other", "a.c", 30, (helper, 31))
    right.add("f", "a.c", 10, 12).add("helper", "h.h", 5).add("other", "a.c", 30, 31)
    found = match(left, right)
    inlined, own = left.points["f", 12][0], right.points["helper", 5][0]
    assert same(found, inlined, own)
    assert same(found, left.points["other", 31][0], own)
    # A copy in another function is another one.
    alone = match_builds(
        left.functions([inlined]),
        Image(left.path.with_name("third")).add("f", "a.c", 10).functions([]),
    )
    assert alone.sides[0].unmatched == {inlined: Unmatched.FUNCTION}


def test_entries_are_the_same_whatever_line_a_compiler_gives_them(sides):
    left, right = sides
    left.add("f", "a.c", 11, 15)
    right.add("f", "a.c", 9, 15)
    found = match(left, right, ({"a.c": ["x"] * 20}, {"a.c": ["x"] * 20}))
    assert same(found, left.points["f", 11][0], right.points["f", 9][0])


def test_unknown_pcs_stay_apart(sides):
    left, right = sides
    left.add("f", "a.c", 10)
    right.add("f", "a.c", 10)
    wild = BASE + 0x900000
    found = match_builds(left.functions([wild, *left.all()]), right.functions([wild, *right.all()]))
    assert not same(found, wild, wild)
    assert found.sides[0].unmatched == found.sides[1].unmatched == {wild: Unmatched.LOCATION}
    assert list(BuildComparison(found).number_records(0, array("Q", [0, wild]))) == [
        0,
        found.sides[0].numbers[wild],
    ]
    assert BuildComparison(found).count(0, {wild: 3}) == {found.sides[0].numbers[wild]: 3}


def test_the_first_pc_of_a_point_need_not_be_recorded(sides):
    left, right = sides
    left.add("f", "a.c", 10, 11, 11)
    right.add("f", "a.c", 10, 11)
    first, second = left.points["f", 11]
    found = match_builds(left.functions([second]), right.functions(right.points["f", 11]))
    assert found.pcs[found.sides[0].numbers[second]][0] == first
    assert BuildComparison(found).counterpart(first, 0) == right.points["f", 11][0]


def test_lines_of_a_macro_are_no_function_of_its_header(sides):
    """A function with lines of a header, of which the other build has no point: it is the same
    function, and did not move.
    """
    left, right = sides
    left.add("f", "a.c", 10, 12, 14, (Frame("f", "macro.h", 3, 1), 15))
    right.add("f", "a.c", 10, 12, 14, (Frame("f", "other.h", 7, 1), 15))
    found = match(left, right)
    assert tuple(side.homes for side in found.sides) == (
        {("f", "macro.h"): ("f", "a.c")},
        {("f", "other.h"): ("f", "a.c")},
    )
    assert not found.moved
    assert not any(side.unrecorded for side in found.sides)
    # Each has a point on the line of a header that the other one has not.
    assert {*found.sides[0].unmatched.values(), *found.sides[1].unmatched.values()} <= {
        Unmatched.NO_POINT
    }


def test_a_function_of_the_header_is_one_where_the_source_has_its_name(sides):
    left, right = sides
    left.add("f", "a.c", 10, 12, 14).add("g", "a.c", (Frame("f", "b.h", 3, 1), 20))
    right.add("f", "a.c", 10, 12, 14).add("g", "a.c", 20)
    texts = {"a.c": ["f()"] * 30, "b.h": ["", "", "static inline int f(void)"]}
    assert not any(side.homes for side in match(left, right, (texts, texts)).sides)


@pytest.mark.parametrize("is_inlined", [False, True])
def test_functions_of_both_builds_that_one_did_not_record(sides, is_inlined):
    """Whether another function has a copy of it decides what is known of it."""
    left, right = sides
    left.add("f", "a.c", 10, 14).add("g", "a.c", 20)
    right.add("f", "a.c", 30, 34).add(
        "g", "a.c", *([(Frame("f", "a.c", 32, 1), 40)] if is_inlined else []), 40
    )
    recorded = right.points["g", 40][-1:]
    found = match_builds(left.functions(left.all()), right.functions(recorded))
    assert not found.sides[0].unrecorded
    span = found.sides[1].unrecorded["f", "a.c"]
    assert (span.name, span.file, span.lines, span.is_inlined) == (
        "f",
        "a.c",
        range(30, 35),
        is_inlined,
    )
