# SPDX-License-Identifier: LGPL-2.1-or-later
"""Answers about a function by its coverage points alone: whether it can be covered, whether it is,
and which other buffers have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kcovdbg.console.context import Context
from kcovdbg.console.point_table import find_point_table
from kcovdbg.elf.symbol_table import strip_clone_suffix
from kcovdbg.errors import KcovdbgError
from kcovdbg.inputs.buffer_sources import find_counts, find_unread_buffers, list_buffers
from kcovdbg.inputs.code_names import check_code
from kcovdbg.model.state import State
from kcovdbg.model.task import Task
from kcovdbg.records.line_states import Quality, TraceRecords
from kcovdbg.records.located_records import PcFilter
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.why.code_name import find_address
from kcovdbg.why.missing_coverage import Answer, AnswerValue, Reason, Values, find_interrupt

PCS: Final = frozenset({PointKind.PC, PointKind.ENTRY})
"""The kinds of points of ordinary traces."""
# Limit for unread buffers in an answer.
_NAMED: Final = 5
# Limit for the other buffers that are read: a fuzzing machine has hundreds.
_LOOKED_AT: Final = 64


def explain_function(
    context: Context, function: str, trace: TraceRecords | None
) -> Iterator[Answer]:
    """Yield whether a function can be covered, and whether it is, by its points alone: for a
    function of a module whose file is missing, and a kernel whose code is not understood.

    :param trace: what ran; None where no trace is named.
    """
    table = find_point_table(context)
    check_code([context.names], [function])
    points = table.find(PCS if trace is None else trace.kinds, function=function)
    named = {"function": function}
    if points:
        yield _explain_points(function, points, trace)
    elif _is_in_image(context, table, function):
        answer = (
            f"{function}() is not instrumented and cannot be covered (KCOV_INSTRUMENT, noinstr, "
            f"assembler)"
        )
        yield Answer("function-not-instrumented", answer, {"points": 0}, named)
    elif trace is None:
        yield _explain_module_function(context, function)
    else:
        yield _explain_module_records(context, function, trace)


def _is_in_image(context: Context, table: LocationTable, function: str) -> bool:
    """Return whether the image has code of that name, also code whose symbol is of no function."""
    starts = [code.start for code in context.names.find_code(function)]
    return any(text.start <= start < text.end for text in table.text_ranges() for start in starts)


def _explain_points(function: str, points: Sequence[int], trace: TraceRecords | None) -> Answer:
    shown: dict[str, AnswerValue] = {"points": len(points)}
    named = {"function": function}
    if trace is None:
        return Answer("function-instrumented", f"{function}() is instrumented", shown, named)
    shown["covered"] = count_covered(points, trace)
    if shown["covered"]:
        return Answer("function-covered", f"{function}() is covered", shown, named)
    if not trace.quality & Quality.COMPLETE:
        return _doubt(function, shown)
    answer = f"{function}() is instrumented, and the trace has none of its points"
    return Answer("function-not-covered", answer, shown, named)


def count_covered(points: Iterable[int], trace: TraceRecords) -> int:
    """Return how many points have records in a trace."""
    return sum(trace.counts.get(pc, 0) > 0 for pc in points)


def _doubt(function: str, shown: Values) -> Answer:
    answer = f"whether {function}() is covered is unknown: the trace is incomplete"
    return Answer("unknown", answer, shown, {"function": function})


def _explain_module_records(context: Context, function: str, trace: TraceRecords) -> Answer:
    """Return whether a function outside of the image is covered."""
    named = {"function": function}
    names, wanted = context.names, PcFilter(context.names, (function,))
    rows = find_point_table(context).get_rows(trace.counts)
    covered = 0
    for pc, row in zip(trace.counts, rows, strict=True):
        is_outside = row is None
        # An approximate name is the caller's.
        if is_outside and not names[pc].approximate and wanted(pc):
            covered += 1
    if covered:
        answer = f"{function}() is covered; it is in a module"
        return Answer("function-covered", answer, {"covered": covered}, named)
    address = find_address(context, function)
    if address is None:
        return _explain_absent(function)
    shown: Values = {"covered": 0, "address": address}
    if not trace.quality & Quality.COMPLETE:
        return _doubt(function, shown)
    answer = f"{function}() is in a module, and the trace has none of its points"
    return Answer("function-not-covered", answer, shown, named)


def _explain_absent(function: str) -> Answer:
    answer = (
        f"{function}() has no coverage point in the kernel image: it is inlined where it is "
        f"called, or in a module"
    )
    return Answer("function-unknown", answer, {"points": 0}, {"function": function})


def _explain_module_function(context: Context, function: str) -> Answer:
    """Return whether a function outside of the image can be covered."""
    named = {"function": function}
    address = find_address(context, function)
    if address is None:
        return _explain_absent(function)
    problem = ""
    found = None
    try:
        found = context.kernel.points.find_in_module(function)
    except KcovdbgError as error:
        problem = f": {error}"
    if found is None:
        answer = (
            f"{function}() is in a module, whose points are not known{problem}; name a task to "
            f"ask whether it was covered there"
        )
        return Answer("function-unknown", answer, {"address": address}, named)
    module, its_points = found
    points = sum(point.kind in PCS for point in its_points)
    code: Reason = "function-instrumented"
    answer = f"{function}() of module {module} is instrumented"
    if not points:
        code = "function-not-instrumented"
        answer = f"{function}() of module {module} is not instrumented and cannot be covered"
    return Answer(code, answer, {"points": points, "address": address}, named)


def explain_elsewhere(
    context: Context, state: State, function: str, task: Task | None, what: str
) -> Iterator[Answer]:
    """Yield what else executed a function that a buffer lacks: an interrupt on top of its task, a
    remote section, another task.

    :param task: the task of the buffer, None where it has none.
    :param what: the name of the buffer.
    """
    if task is not None:
        frames = find_interrupt(state, task.fields.address)
        functions = [frame.function for frame in frames if frame.function]
        if function not in functions:
            function = strip_clone_suffix(function)
        if function in functions:
            yield Answer(
                "function-in-interrupt",
                f"{function}() is running in an interrupt on top of the task, which KCOV does "
                f"not record",
                {"frames": functions[functions.index(function) :]},
                {"function": function},
            )
    table = find_point_table(context)
    others: list[tuple[str, str]] = []
    if table.find(function=function):
        others = [other for other in list_buffers(state) if other[0] != what]
    unread = [*find_unread_buffers(state)]
    is_covered = False
    points: dict[frozenset[PointKind], Sequence[int]] = {}
    for name, where in others[:_LOOKED_AT]:
        try:
            found = find_counts(context.inputs, name)
            kinds = found.trace.kinds
            if kinds not in points:
                points[kinds] = table.find(kinds, function=function)
            covered = count_covered(points[kinds], found.trace)
        except KcovdbgError as error:
            unread.append(f"{name}: {error}")
            continue
        if found.is_incomplete:
            unread.append(f"{name} could not be read whole")
        if covered:
            is_covered = True
            yield Answer(
                "function-covered-elsewhere",
                f"{function}() was recorded {where}",
                {"buffer": name, "covered": covered},
                {"function": function},
            )
    if unread and not is_covered:
        answer = f"whether another buffer has {function}() is unknown: {unread[0]}"
        yield Answer("unknown", answer, named={"function": function}, notes=tuple(unread[:_NAMED]))
    if len(others) > _LOOKED_AT:
        yield Answer(
            "search-limited",
            f"only the first {_LOOKED_AT} other buffers were searched for {function}()",
            {"buffers": len(others)},
            {"function": function},
        )
