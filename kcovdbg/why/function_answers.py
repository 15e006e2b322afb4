# SPDX-License-Identifier: LGPL-2.1-or-later
"""Answers of ``why`` about a function: whether it can be covered, whether it is, and what else
executed it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kcovdbg.console.context import Context
from kcovdbg.console.point_table import find_point_table
from kcovdbg.elf.symbol_table import strip_clone_suffix
from kcovdbg.errors import KcovdbgError
from kcovdbg.inputs.buffer_sources import (
    BufferCounts,
    find_counts,
    find_unread_buffers,
    list_buffers,
)
from kcovdbg.inputs.code_names import check_code
from kcovdbg.model.state import State
from kcovdbg.model.task import Task
from kcovdbg.records.located_records import PcFilter
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.why.missing_coverage import Answer, AnswerValue, Reason, find_interrupt

# Limit for PCs of covered callees in an answer.
_CALLEES: Final = 5
# Limit for the other buffers that are read: a fuzzing machine has hundreds.
_LOOKED_AT: Final = 64


def explain_function(context: Context, function: str, what: str | None) -> Iterator[Answer]:
    """Yield whether a function can be covered, and whether it is."""
    table = find_point_table(context)
    found = (
        BufferCounts({}, (), frozenset({PointKind.PC, PointKind.ENTRY}))
        if what is None
        else find_counts(context.inputs, what)
    )
    for answer in _explain_counted(context, table, function, what, found):
        if answer.code == "function-not-covered" and found.is_incomplete:
            said = f"whether {function}() is covered is unknown: the buffer could not be read whole"
            yield Answer("unknown", said, named=answer.named, notes=found.remarks)
        else:
            yield answer


def _explain_counted(
    context: Context, table: LocationTable, function: str, what: str | None, found: BufferCounts
) -> Iterator[Answer]:
    named = {"function": function}
    counts, kinds = found.counts, found.kinds
    names = context.names
    check_code([names], [function])
    points = table.find(kinds, function=function)
    wanted = PcFilter(names, (function,))
    tail_calls = sum(wanted(pc) for pc in table.pcs(PointKind.TAIL_KNOWN) if pc in counts)
    others = [pc for pc, row in zip(counts, table.get_rows(counts), strict=True) if row is None]
    if not points:
        hits = sum(not names[pc].approximate and wanted(pc) for pc in others)
        if tail_calls:
            yield Answer(
                "function-covered",
                f"{function}() is covered: its tail calls of the callback recorded the return "
                f"addresses of its callers",
                {"covered": tail_calls},
                named,
            )
        elif hits:
            yield Answer(
                "function-covered",
                f"{function}() is covered; it is in a module",
                {"covered": hits},
                named,
            )
        elif table.functions_named(function):
            yield Answer(
                "function-not-instrumented",
                f"{function}() is not instrumented and cannot be covered (KCOV_INSTRUMENT, "
                f"noinstr, assembler)",
                {"points": 0},
                named,
            )
        elif (address := find_address(context, function)) is not None and what is None:
            yield _explain_module_function(context, function, address)
        elif address is not None:
            yield Answer(
                "function-not-covered",
                f"{function}() is in a module, and none of its points is in the buffer",
                {"covered": 0, "address": address},
                named,
            )
        else:
            yield Answer(
                "function-unknown",
                f"{function}() has no coverage point in the kernel image: it is inlined where "
                f"it is called, or in a module",
                {"points": 0},
                named,
            )
        return
    shown: dict[str, AnswerValue] = {"points": len(points)}
    if what is None:
        yield Answer("function-instrumented", f"{function}() is instrumented", shown, named)
        return
    covered = sum(pc in counts for pc in points)
    if tail_calls:
        shown["tail_calls"] = tail_calls
    if covered or tail_calls:
        yield Answer(
            "function-covered", f"{function}() is covered", {**shown, "covered": covered}, named
        )
        return
    answer = f"{function}() is instrumented, and none of its points is in the buffer"
    offset = context.target.kaslr_offset
    uncovered = {**shown, "covered": 0, "kaslr_offset": offset}
    callees = [pc for pc in table.pcs(PointKind.TAIL) if pc in counts and wanted(pc)]
    if offset and any(pc + offset in counts or pc - offset in counts for pc in points):
        answer += "; they are there shifted by the KASLR offset, which user space must have added"
    elif callees:
        yield Answer("function-not-covered", answer, uncovered, named)
        yield Answer(
            "callees-covered",
            f"functions that {function}() calls are covered: tail calls in them recorded "
            f"addresses in {function}()",
            {"pcs": callees[:_CALLEES]},
            named,
        )
        return
    elif any(map(wanted, others)):
        answer += ", but other addresses in it are: is the vmlinux another build's?"
    yield Answer("function-not-covered", answer, uncovered, named)


def _explain_module_function(context: Context, function: str, address: int) -> Answer:
    """Return whether a function outside of the image can be covered."""
    problem = "whose points are not known"
    found = None
    try:
        found = context.kernel.points.find_in_module(function)
    except KcovdbgError as error:
        problem = f"whose points are not known: {error}"
    if found is None:
        answer = (
            f"{function}() is in a module, {problem}; name a task to ask whether it was covered "
            f"there"
        )
        return Answer("function-unknown", answer, {"address": address}, {"function": function})
    module, its_points = found
    points = sum(point.kind in (PointKind.PC, PointKind.ENTRY) for point in its_points)
    is_instrumented = "is instrumented" if points else "is not instrumented and cannot be covered"
    code: Reason = "function-instrumented" if points else "function-not-instrumented"
    answer = f"{function}() of module {module} {is_instrumented}"
    return Answer(code, answer, {"points": points, "address": address}, {"function": function})


def find_address(context: Context, function: str) -> int | None:
    """Return the address of a function in the running kernel, None where there is no such
    symbol.
    """
    try:
        return context.target.symbol(function).address
    except KcovdbgError:
        return None


def explain_elsewhere(
    context: Context, state: State, function: str, task: Task | None, what: str
) -> Iterator[Answer]:
    """Yield what else executed a function that a buffer lacks: an interrupt on top of its task, a
    section, another task.
    """
    if task is not None:
        functions = [
            frame.function for frame in find_interrupt(state, task.fields.address) if frame.function
        ]
        function = function if function in functions else strip_clone_suffix(function)
        if function in functions:
            yield Answer(
                "function-in-interrupt",
                f"{function}() is running in an interrupt on top of the task, which KCOV does "
                f"not record",
                {"frames": functions[functions.index(function) :]},
                {"function": function},
            )
    table = find_point_table(context)
    others = (
        [other for other in list_buffers(state) if other[0] != what]
        if table.find(function=function)
        else []
    )
    unread = [*find_unread_buffers(state)]
    is_covered = False
    for name, whose in others[:_LOOKED_AT]:
        try:
            found = find_counts(context.inputs, name)
            covered = sum(pc in found.counts for pc in table.find(found.kinds, function=function))
        except KcovdbgError as error:
            unread.append(f"{name}: {error}")
            continue
        if found.is_incomplete:
            unread.append(f"{name} could not be read whole")
        if covered:
            is_covered = True
            yield Answer(
                "function-covered-elsewhere",
                f"{function}() is covered {whose}",
                {"buffer": name, "covered": covered},
                {"function": function},
            )
    if unread and not is_covered:
        answer = f"whether another buffer has {function}() is unknown: {unread[0]}"
        yield Answer(
            "unknown", answer, named={"function": function}, notes=tuple(unread[:_CALLEES])
        )
    if len(others) > _LOOKED_AT:
        yield Answer(
            "search-limited",
            f"only the first {_LOOKED_AT} other buffers were searched for {function}()",
            {"buffers": len(others)},
            {"function": function},
        )
