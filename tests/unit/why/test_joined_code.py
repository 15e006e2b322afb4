# SPDX-License-Identifier: LGPL-2.1-or-later
"""Code of an image and of a module as one: the calls are those of the same code that ld linked."""

import pytest

from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.placed_module import PlacedModule
from kcovdbg.model.location import LoadedModule
from kcovdbg.records.line_states import WHOLE, LineState, TraceRecords
from kcovdbg.symbols.blocks import read_linked
from kcovdbg.symbols.call_graph import CallGraph
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.table_builder import make_module_table, make_table
from kcovdbg.why.call_ways import WayFinder
from kcovdbg.why.joined_code import WholeCode
from kcovdbg.why.uncovered_code import Obstacle, UncoveredRanking
from tests.support.compiled_image import run

KERNEL = """
int total;
__attribute__((noinline)) int exported(int n)
{
    total += n;
    return n * 3;
}
int by_pointer(int n)
{
    return n * total;
}
int (*hook)(int);
int __x64_sys_read(int n)
{
    return hook ? hook(n) : exported(1) + 2;
}
void __sanitizer_cov_trace_pc(void)
{
}
"""
MODULE = """
extern int exported(int), by_pointer(int);
__attribute__((noinline)) static int inner(int n)
{
    if (n == 3)
        return exported(n) + 1;
    return n;
}
int entry(int n)
{
    return inner(n) * 2;
}
int unused(int n)
{
    return exported(n);
}
int (*const operations[])(int) = { entry, by_pointer };
"""
PLACES = ((".text", 0xFFFFFFFFC0001000),)
FLAGS = ["-g", "-O2", "-mcmodel=kernel", "-fno-pie", "-fno-pic", "-fcf-protection=none"]
FLAGS += ["-fno-stack-protector", "-fno-asynchronous-unwind-tables"]
COVERAGE = "-fsanitize-coverage=trace-pc"
LINK = ["ld", "--build-id=sha1", "-e0", "-Ttext=0xffffffff81000000"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("joined")
    (folder / "kernel.c").write_text(KERNEL)
    (folder / "module.c").write_text(MODULE)
    run(["gcc", *FLAGS, "-c", "kernel.c"], folder)
    run(["gcc", *FLAGS, COVERAGE, "-c", "module.c"], folder)
    run([*LINK, "-o", "image", "kernel.o"], folder)
    run(["ld", "-r", "--build-id=sha1", "-o", "module.ko", "module.o"], folder)
    run([*LINK, "-o", "linked", "kernel.o", "module.o"], folder)
    return folder


@pytest.fixture(scope="module")
def joined(folder):
    with ElfFile(folder / "image") as elf:
        image = LocationTable("image", contents=make_table(elf).to_bytes())
        calls = CallGraph(read_linked(elf, elf.symbols))
    table = make_module_table(LoadedModule("m", "00", 4096, PLACES), str(folder / "module.ko"))
    with PlacedModule(folder / "module.ko", dict(PLACES)) as elf:
        graph = CallGraph(read_linked(elf, elf.symbols), elf.externals)
    assert graph.fits(table.blocks)
    return WholeCode([image, table], [calls, graph])


def calls_of(graph):
    """Return the callers of each function, and how many places in data and in code have its
    address, by name.
    """
    found = {}
    for function in range(len(graph)):
        callers = {(graph.name(site.caller), site.is_tail) for site in graph.find_callers(function)}
        places = [
            None if place.function is None else graph.name(place.function)
            for place in graph.find_pointers(function)
        ]
        assert graph.has_pointers(function) is bool(places)
        found[graph.name(function)] = callers, places
    return found


def test_calls_are_those_of_the_linked_code(folder, joined):
    with ElfFile(folder / "linked") as elf:
        linked = CallGraph(read_linked(elf, elf.symbols))
    found = calls_of(joined)
    assert found == calls_of(linked)
    assert ("unused", True) in found["exported"][0]
    assert found["by_pointer"][1] == [None]


def number_of(code, name):
    (symbol,) = code.functions_named(name)
    return code.function_at(symbol.address)


def trace_without(code, text):
    """Return a trace of all points of the module's inner() but those of a line."""
    line = MODULE.splitlines().index(text) + 1
    points = code.find_points(function="inner")
    located = dict(code.find_located_points("module.c"))
    own = [pc for pc in points if located[pc][0].line != line]
    assert 0 < len(own) < len(points)
    return TraceRecords(dict.fromkeys(own, 1), WHOLE, frozenset({PointKind.PC}))


def test_a_branch_of_the_module_stands_before_code_of_the_image(joined):
    trace = trace_without(joined, "        return exported(n) + 1;")
    ways = WayFinder(joined, trace)
    found = ways.find_ways(number_of(joined, "exported")).ways
    names = [[joined.name(function) for function in way.path] for way in found]
    assert ["inner", "exported"] in names
    guard = found[names.index(["inner", "exported"])].guard
    assert [line for _, line in guard.first.lines] == [
        MODULE.splitlines().index("        return exported(n) + 1;") + 1
    ]


def test_lines_and_what_stands_before_them(joined):
    trace = trace_without(joined, "        return exported(n) + 1;")
    functions = [number_of(joined, name) for name in ("inner", "exported")]
    lines, _ = joined.find_lines(trace, functions)
    states = {(file, line.line): line.state for file, rows in lines.rows().items() for line in rows}
    assert states["module.c", 5] is LineState.EXECUTED
    assert states["module.c", 6] is LineState.NOT_EXECUTED
    assert states["kernel.c", 5] is LineState.NOT_INSTRUMENTED
    assert {*joined.files()} >= {"kernel.c", "module.c"}
    ranking = UncoveredRanking(joined, trace, WayFinder(joined, trace))
    ranked = {(one.obstacle, joined.name(one.function)) for one in ranking.rank(["module.c"])}
    assert (Obstacle.BRANCH, "inner") in ranked
    assert (Obstacle.NOTHING, "unused") in ranked
