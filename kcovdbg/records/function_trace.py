# SPDX-License-Identifier: LGPL-2.1-or-later
"""Summarize a trace by its functions: runs of records of one function, loops over several, and
functions in order or as a chain of calls.

A PC trace does not record calls. Runs follow the order of records. The chain infers calls: a
function that appears while it is in the chain was returned to. Any other function was called by the
function before it, unless only the kernel's entry code calls it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from itertools import groupby
from typing import Final, NamedTuple

from kcovdbg.model.location import Frame
from kcovdbg.package_tables import read_tables
from kcovdbg.records.located_records import matches_path

# Longest loop body in functions: longer ones are rare, and each further function adds the same cost
# again.
_LONGEST_BODY: Final = 16
# Longest round of a loop within one function, in records.
_LONGEST_ROUND: Final = 256
# Runs that may be kept in memory once they are folded.
_KEPT: Final = 4096


class FunctionRun(NamedTuple):
    """Consecutive records of one function, or of another group."""

    first: int
    """Index of its first record."""
    length: int
    group: object
    """The function, or whatever else the records have in common."""


class Fold(NamedTuple):
    """One or more runs, and how often they are repeated."""

    runs: tuple[FunctionRun, ...]
    """The runs of the first round."""
    rounds: int
    first: int
    """Index of the first record."""
    length: int
    """Number of records in all rounds."""


def find_runs(
    sequence: Sequence[int],
    group_of: Callable[[int], object],
    start: int = 0,
    end: int | None = None,
) -> Iterator[FunctionRun]:
    """Iterate over the runs of a sequence, in order.

    :param sequence: PCs, or words that stand for them.
    :param group_of: returns the group of an element; called only where an element differs from the
        one before.
    """
    end = len(sequence) if end is None else end
    if start >= end:
        return
    first, previous = start, sequence[start]
    group = group_of(previous)
    for index in range(start + 1, end):
        element = sequence[index]
        if element == previous:
            continue
        previous = element
        other = group_of(element)
        if other != group:
            yield FunctionRun(first, index - first, group)
            first, group = index, other
    yield FunctionRun(first, end - first, group)


def fold_runs(runs: Iterator[FunctionRun]) -> Iterator[Fold]:
    """Fold loops over several functions: the same functions in the same order, whatever the length
    of each run.

    Of the possible folds at a run, the one that covers the most runs is chosen. Runs are read ahead
    to the end of a loop.
    """
    ahead: list[FunctionRun] = []
    position = 0

    def look(count: int) -> bool:
        """Read ahead up to a number of runs; return whether there are so many."""
        while len(ahead) < count:
            run = next(runs, None)
            if run is None:
                return False
            ahead.append(run)
        return True

    def count_rounds(body: int) -> int:
        """Return how many rounds of so many runs begin at the position."""
        rounds = 1
        while look(position + (rounds + 1) * body):
            for first in range(position, position + body):
                if ahead[first].group != ahead[first + rounds * body].group:
                    return rounds
            rounds += 1
        return rounds

    while look(position + 1):
        body = rounds = 1
        for longer in range(2, _LONGEST_BODY + 1):
            if not look(position + 2 * longer):
                break
            # Most bodies differ in their first runs already.
            if ahead[position].group == ahead[position + longer].group:
                found = count_rounds(longer)
                if found > 1 and found * longer > rounds * body:
                    body, rounds = longer, found
        used = ahead[position : position + body * rounds]
        length = used[-1].first + used[-1].length - used[0].first
        yield Fold(tuple(used[:body]), rounds, used[0].first, length)
        position += len(used)
        if position > _KEPT:
            del ahead[:position]
            position = 0


def round_length(part: Sequence[int]) -> int:
    """Return the length of the first round of a loop within a run; the run's length if it is not a
    loop.

    The last round may be incomplete.

    :param part: the records of the run.
    """
    words = part if isinstance(part, array) else array("Q", part)
    data, width = words.tobytes(), words.itemsize
    first = words[0] if words else 0
    for period in range(1, min(len(words) // 2, _LONGEST_ROUND) + 1):
        if words[period] == first and data[period * width :] == data[: -period * width]:
            return period
    return len(words)


@dataclass(slots=True, eq=False)
class TraceStep:
    """A function at one place of the trace."""

    depth: int
    """The levels above it in the chain, 0 for the outermost."""
    group: object
    """The function."""
    first: int
    """Position in the sequence of its first record."""
    records: int = 0
    """Its own records."""
    total: int = 0
    """Its records and the records of the steps below it."""
    rounds: int = 0
    """How often it was entered from the step above."""
    below: dict[object, TraceStep] = field(default_factory=dict)
    """The steps that were entered from it, by function."""


_HEADER: Final = ".h"


def group_by_function(frames: Mapping[int, Frame]) -> dict[int, object]:
    """Return the function that each PC is in: its name and file, or the PC itself if the name is
    unknown.

    Where compilers merge statements, a function has lines of headers without an inlined frame.
    Such a point gets the file of a point next to it: the first of this name outside of headers.

    :param frames: PC -> its outermost frame.
    """
    groups: dict[int, object] = {}
    for name, points in groupby(sorted(frames), key=lambda pc: frames[pc].function):
        pcs = list(points)
        if name is None:
            groups.update((pc, pc) for pc in pcs)
            continue
        files = {pc: frames[pc].file for pc in pcs}
        own = next((file for file in files.values() if file and not file.endswith(_HEADER)), None)
        for pc, file in files.items():
            if own is not None and (file is None or file.endswith(_HEADER)):
                file = own
            groups[pc] = (name, file)
    return groups


def list_functions(runs: Iterable[FunctionRun]) -> list[TraceStep]:
    """Return each function once, in the order of first appearance; its rounds are its runs."""
    found: dict[object, TraceStep] = {}
    for run in runs:
        step = found.setdefault(run.group, TraceStep(0, run.group, run.first))
        step.records += run.length
        step.total += run.length
        step.rounds += 1
    return list(found.values())


class Chain(NamedTuple):
    """The steps of a trace."""

    steps: list[TraceStep]
    """Each step comes before the steps below it."""
    end: int | None = None
    """If there were too many steps, the position of the first record that is in none of them."""


def chain_functions(
    runs: Iterable[FunctionRun],
    is_entry: Callable[[int], bool],
    is_outermost: Callable[[object], bool],
    limit: int,
) -> Chain:
    """Return the steps of a trace as an indented chain, each before the steps below it.

    A step that is entered again from the same step above is not repeated: its rounds count, so that
    loops are folded.

    :param is_entry: returns whether the record at a position is the first point of its function, so
        that the function was entered there and not returned to.
    :param is_outermost: returns whether a group is a function that user space enters.
    :param limit: for the number of steps: a trace of random records has too many for memory.
    """
    path = [TraceStep(-1, None, 0)]
    count, end = 0, None
    for run in runs:
        if count == limit:
            end = run.first
            break
        level = next(
            (level for level in range(len(path) - 1, 0, -1) if path[level].group == run.group), None
        )
        is_returned_to = level is not None and not is_entry(run.first)
        if level is None:
            if is_outermost(run.group):
                del path[1:]
        elif is_returned_to:
            del path[level + 1 :]
        else:
            # The function is entered again, so its last call has ended.
            del path[level:]
        if not is_returned_to:
            above = path[-1]
            step = above.below.get(run.group)
            if step is None:
                step = above.below[run.group] = TraceStep(len(path) - 1, run.group, run.first)
                count += 1
            step.rounds += 1
            path.append(step)
        path[-1].records += run.length
    steps: list[TraceStep] = []
    pending = [path[0]]
    while pending:
        steps.append(pending.pop())
        pending += reversed(steps[-1].below.values())
    for step in reversed(steps):
        step.total = step.records + sum(below.total for below in step.below.values())
    return Chain(steps[1:], end)


class FunctionClass(NamedTuple):
    """A named class of functions."""

    name: str
    summary: str
    functions: tuple[str, ...]
    """Patterns of names."""
    files: tuple[str, ...]
    """Paths, directories, or patterns; functions of inlined headers count as the file that they
    were compiled into.
    """


def _read_classes() -> tuple[FunctionClass, ...]:
    tables = read_tables(__package__, "function_classes.ini")
    classes = []
    for name in tables.sections():
        table = tables[name]
        functions, paths = tuple(table["functions"].split()), tuple(table["files"].split())
        classes.append(FunctionClass(name, table["summary"], functions, paths))
    return tuple(classes)


CLASSES: Final = _read_classes()
"""The classes of ``function_classes.ini``; a function is in the first one that matches."""

OUTERMOST: Final = (
    "__x64_sys_*",
    "__ia32_sys_*",
    "__ia32_compat_sys_*",
    "__arm64_sys_*",
    "__riscv_sys_*",
    "*exit_to_user_mode*",
)
"""Patterns of functions that only the kernel's entry code calls."""
# A trace without its system call could not be recognized: clock_nanosleep() is in kernel/time, for
# instance.
_SYSTEM_CALLS: Final = (
    "__*_sys_*",
    "__se_sys_*",
    "__do_sys_*",
    "ksys_*",
    "do_sys_*",
    "*_syscall_*",
    "do_syscall*",
)


@cache
def find_class(function: str | None, file: str | None) -> str | None:
    """Return the name of the class that a function is in; None if it is in no class, or is a
    function of a system call.

    There are hundreds of patterns, and a function has many PCs: answers are cached.

    :param file: the file that it was compiled from.
    """
    if function is None or _matches_any(function, _SYSTEM_CALLS):
        return None
    for one in CLASSES:
        is_in_file = file is not None and any(matches_path(path, file) for path in one.files)
        if is_in_file or _matches_any(function, one.functions):
            return one.name
    return None


def _matches_any(function: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(function, pattern) for pattern in patterns)
