# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compare runs of two sides by lines of source: find the lines that only one side executed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from operator import add
from typing import Final, NamedTuple

from kcovdbg.compare.trace_builds import TraceBuilds
from kcovdbg.console.column import NUMBER, PATH, Column
from kcovdbg.console.context import Context
from kcovdbg.console.point_table import find_point_table
from kcovdbg.console.renderable import Drawing, Line, Lines, Table
from kcovdbg.console.text import TAB
from kcovdbg.inputs.buffer_sources import BufferCounts
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.records.code_states import CodeStates
from kcovdbg.records.line_states import NO_CODE_LINES, CodeColumns, LineState, flag_states
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


class _SideStates(NamedTuple):
    """How many runs of one side executed each line, and how many missed it."""

    runs: int
    """Number of the runs."""
    lines: CodeColumns
    """The lines, with their states by the last run."""
    executed: Sequence[int]
    """Number of runs that executed each line."""
    missed: Sequence[int]
    """Number of runs that are known not to have executed it."""
    hits: Sequence[int]
    """The largest number of hits of each line in a run."""
    contradictions: int
    """Functions whose records contradict their edges, in all runs."""


def _count_runs(code: CodeStates, functions: Sequence[int], runs: Runs) -> _SideStates:
    """Read the runs of a side.

    :param functions: the functions whose lines are compared; these are the same for each run.
    """
    count = contradictions = 0
    lines = NO_CODE_LINES
    executed: list[int] = []
    missed: list[int] = []
    hits: list[int] = []
    for counted in runs():
        lines, contradicted = code.find_lines(counted.trace, functions)
        if not count:
            executed, missed, hits = ([0] * len(lines.lines) for _ in range(3))
        executed = list(map(add, executed, lines.states.translate(_EXECUTED)))
        missed = list(map(add, missed, lines.states.translate(_MISSED)))
        hits = list(map(max, hits, lines.hits))
        contradictions += contradicted
        count += 1
    return _SideStates(count, lines, executed, missed, hits, contradictions)


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
    tables = {find_point_table(context, kernel): None}
    # Traces are read twice. The first reading collects the PCs of all runs, since a run has states
    # of lines in functions that only other runs executed.
    recorded: set[int] = set()
    remarks = [*builds.remarks]
    for runs in sides:
        for counted in runs():
            remarks += kernel.points.explain_modules([counted.trace])
            tables |= dict.fromkeys(kernel.points.find_module_tables([counted.trace]))
            recorded.update(counted.trace.counts)
            remarks += counted.remarks
    code = CodeStates([*tables])
    functions = code.find_executed(recorded)
    left, right = (_count_runs(code, functions, runs) for runs in sides)
    rows, common, unknown = _find_rows(kernel, left, right, files)
    if unknown:
        remarks.append(f"{unknown} lines are not compared: unknown whether some run executed them")
    contradictions = left.contradictions + right.contradictions
    if contradictions:
        remarks.append(
            f"the records contradict the code of {contradictions} functions: are these traces of "
            f"another kernel?"
        )
    has_difference = any(row.side is not DiffSide.FLICKER for row in rows)
    context.status = int(has_difference)
    everywhere = "in every run"
    if left.runs + right.runs == 2:
        everywhere = "on both sides"
        if has_difference:
            remarks.append("single runs vary; give several per side")
    heading = f"{common} lines executed {everywhere}, {len(rows)} differ"
    drawing = Drawing(len(rows), partial(_draw, heading, rows, (left.runs, right.runs)))
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
    runs = left.runs + right.runs
    for file, index in _list_lines(left.lines, files):
        executed = left.executed[index] + right.executed[index]
        missed = left.missed[index] + right.missed[index]
        if executed == runs:
            common += 1
        elif executed and missed:
            line = left.lines.lines[index]
            row = DifferingLine(
                _choose_side(left, right, index),
                file,
                line,
                left.executed[index],
                right.executed[index],
                max(left.hits[index], right.hits[index]),
                kernel.sources.tree.read(file).line(line),
            )
            rows.append(row)
        elif missed < runs and left.lines.states[index] != LineState.NOT_INSTRUMENTED:
            # No two runs contradict each other, and some say nothing.
            unknown += 1
    return sorted(rows, key=lambda row: (row.file, row.line)), common, unknown


def _choose_side(left: _SideStates, right: _SideStates, index: int) -> DiffSide:
    """Return which side executed a line that some runs executed and others did not."""
    if left.executed[index] == left.runs and right.missed[index] == right.runs:
        return DiffSide.LEFT
    if left.missed[index] == left.runs and right.executed[index] == right.runs:
        return DiffSide.RIGHT
    return DiffSide.FLICKER


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
