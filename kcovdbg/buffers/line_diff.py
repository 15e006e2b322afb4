# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compare runs of two sides by lines of source: find the lines that only one side executed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from operator import add
from typing import Final, NamedTuple

from kcovdbg.buffers.trace_coverage import ExecutedCode, find_code_lines
from kcovdbg.compare.trace_builds import TraceBuilds
from kcovdbg.console.column import NUMBER, PATH, Column
from kcovdbg.console.context import Context
from kcovdbg.console.point_table import find_point_table
from kcovdbg.console.renderable import Drawing, Line, Lines, Table
from kcovdbg.console.text import TAB
from kcovdbg.inputs.buffer_sources import BufferCounts
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.records.line_states import CodeColumns, LineState, flag_states, make_finder
from kcovdbg.records.located_records import matches_path
from kcovdbg.records.run_counts import DiffSide

_EXECUTED: Final = flag_states(lambda state: state.was_executed)
_MISSED: Final = flag_states(lambda state: state is LineState.NOT_EXECUTED)
_SIGNS: Final = {
    DiffSide.LEFT: ("left", "<"),
    DiffSide.RIGHT: ("right", ">"),
    DiffSide.FLICKER: ("remark", "~"),
}


class DifferingLine(NamedTuple):
    """A line that some runs executed and others did not."""

    side: DiffSide
    file: str
    line: int
    left_runs: int
    right_runs: int
    hits: int
    text: str | None


LINE_COLUMNS: Final = (
    Column(
        "side",
        meaning=(
            "`left` if every run of the left side executed the line and none of the right side "
            "did, `right` for the reverse, `flicker` where runs of one side differ"
        ),
    ),
    Column("file", PATH, meaning="source file, relative to the build root"),
    Column("line", NUMBER, meaning="line in the file"),
    Column(
        "left_runs", NUMBER, meaning="runs of the left side that executed the line", unit="runs"
    ),
    Column(
        "right_runs", NUMBER, meaning="runs of the right side that executed the line", unit="runs"
    ),
    Column(
        "hits",
        NUMBER,
        meaning="largest number of records of its code in a run; 1 where it is inferred",
        unit="records",
    ),
    Column("text", meaning="the line's text", null="the source is not at hand"),
)

Runs = Callable[[], Iterable[BufferCounts]]
"""Reads the runs of a side, one after the other."""


class _SideStates:
    """How many runs of one side executed each line, and how many missed it.

    :param codes: the image and modules; their lines are the same for each run.
    :param runs: the runs of the side.
    """

    def __init__(self, codes: Sequence[ExecutedCode], runs: Runs) -> None:
        self.count = 0
        self.contradictions = 0
        self.executed: Sequence[int] = ()
        """Number of runs that executed each line."""
        self.missed: Sequence[int] = ()
        """Number of runs that did not."""
        self.hits: Sequence[int] = ()
        for counted in runs():
            lines, contradictions = find_code_lines(codes, counted.trace)
            self.contradictions += contradictions
            if not self.count:
                self.lines = lines
                self.executed = self.missed = self.hits = bytes(len(lines.lines))
            self.executed = list(map(add, self.executed, lines.states.translate(_EXECUTED)))
            self.missed = list(map(add, self.missed, lines.states.translate(_MISSED)))
            self.hits = list(map(max, self.hits, lines.hits))
            self.count += 1


def diff_lines(
    context: Context, sides: Sequence[Runs], builds: TraceBuilds, files: Collection[str]
) -> Iterator[Lines]:
    """Yield the lines that one side executed and the other did not.

    :param sides: two.
    :param builds: the builds of the sides, which are of one kernel.
    :param files: patterns of the files whose lines are wanted; none for all.
    :raises CapabilityError: when the blocks of the kernel's code are unknown.
    """
    kernel = builds.kernels[0]
    image = find_point_table(context, kernel)
    codes = {image: ExecutedCode(make_finder(image), image)}
    # Traces are read twice. The first reading collects the functions of all runs, since a run has
    # states of lines in functions that only other runs executed.
    remarks = [*builds.remarks]
    for runs in sides:
        for counted in runs():
            outside = kernel.points.find_outside([counted.trace])
            remarks += kernel.points.explain_modules(outside)
            for table in kernel.points.find_module_tables(outside):
                if table not in codes:
                    codes[table] = ExecutedCode(make_finder(table), table, is_module=True)
            for code in codes.values():
                code.add(counted.trace)
            remarks += counted.remarks
    left, right = (_SideStates([*codes.values()], runs) for runs in sides)
    rows, common, unknown = _find_rows(kernel, left, right, files)
    if unknown:
        remarks.append(f"{unknown} lines are not compared: unknown whether some run executed them")
    contradictions = left.contradictions + right.contradictions
    if contradictions:
        remarks.append(
            f"the records contradict the code of {contradictions} functions: are these traces of "
            f"another kernel?"
        )
    context.status = int(any(row.side is not DiffSide.FLICKER for row in rows))
    several = left.count + right.count > 2
    if context.status and not several:
        remarks.append("single runs vary; give several per side")
    everywhere = "in every run" if several else "on both sides"
    heading = f"{common} lines executed {everywhere}, {len(rows)} differ"
    drawing = Drawing(len(rows), partial(_draw, heading, rows, (left.count, right.count)))
    yield Lines(drawing, data=Table(LINE_COLUMNS, rows), remarks=list(dict.fromkeys(remarks)))


def _list_lines(lines: CodeColumns, files: Collection[str]) -> Iterator[tuple[str, int]]:
    """Yield the file of each line, and its index, of the files that match patterns."""
    for file, span in lines.spans.items():
        if file and (not files or any(matches_path(pattern, file) for pattern in files)):
            for index in span:
                yield file, index


def _find_rows(
    kernel: Kernel, left: _SideStates, right: _SideStates, files: Collection[str]
) -> tuple[list[DifferingLine], int, int]:
    """Return the lines that differ, how many all runs executed, and how many are unknown."""
    rows = []
    common = unknown = 0
    tree = kernel.sources.tree
    for file, index in _list_lines(left.lines, files):
        left_executed, right_executed = left.executed[index], right.executed[index]
        left_missed, right_missed = left.missed[index], right.missed[index]
        executed = left_executed + right_executed
        missed = left_missed + right_missed
        side = None
        if executed == left.count + right.count:
            common += 1
        elif left_executed == left.count and right_missed == right.count:
            side = DiffSide.LEFT
        elif left_missed == left.count and right_executed == right.count:
            side = DiffSide.RIGHT
        elif executed and missed:
            side = DiffSide.FLICKER
        else:
            # Some runs neither executed nor missed it, and the others agree.
            is_instrumented = left.lines.states[index] != LineState.NOT_INSTRUMENTED
            if is_instrumented and executed + missed < left.count + right.count:
                unknown += 1
        if side is None:
            continue
        line, hits = left.lines.lines[index], max(left.hits[index], right.hits[index])
        text = tree.read(file).line(line)
        rows.append(DifferingLine(side, file, line, left_executed, right_executed, hits, text))
    return sorted(rows, key=lambda row: (row.file, row.line)), common, unknown


def _draw(
    heading: str, rows: Sequence[DifferingLine], runs: tuple[int, int], most: int
) -> Iterator[Line]:
    """Yield the lines by file.

    :param runs: the number of runs of each side.
    """
    yield (("header", heading),)
    file = None
    for row in rows[:most]:
        if row.file != file:
            file = row.file
            yield ()
            yield (("path", file),)
        style, sign = _SIGNS[row.side]
        of_runs = ""
        if row.side is DiffSide.FLICKER:
            of_runs = f"  {row.left_runs}/{runs[0]}, {row.right_runs}/{runs[1]}"
        text = (row.text or "").expandtabs(TAB)
        yield ((style, f"{sign} {row.line:>6}{of_runs}  "), ("", text))
