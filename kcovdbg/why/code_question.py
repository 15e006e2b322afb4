# SPDX-License-Identifier: LGPL-2.1-or-later
"""Questions about code, asked of the traces that they name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from kcovdbg.console.context import Context
from kcovdbg.console.point_table import find_point_table
from kcovdbg.errors import CapabilityError
from kcovdbg.inputs.buffer_sources import find_trace_buffers, read_trace_records
from kcovdbg.model.buffer import Buffer
from kcovdbg.records.joined_states import quality_text
from kcovdbg.records.line_states import TraceRecords
from kcovdbg.records.source_coverage import merge_traces
from kcovdbg.why.code_answers import CodeQuestion
from kcovdbg.why.code_name import CodeName
from kcovdbg.why.function_answers import explain_function
from kcovdbg.why.missing_coverage import Answer

# Limit for traces that are named.
_NAMED: Final = 3


class _Traces(NamedTuple):
    """The traces that code is asked about with."""

    merged: TraceRecords | None
    """All that tell what ran, together; None where there is none."""
    notes: Sequence[str]
    """What is known about each."""
    comparisons: Sequence[Buffer]
    remarks: Sequence[str]


def _read_traces(context: Context, names: Sequence[str]) -> _Traces:
    found = find_trace_buffers(context.inputs, names)
    remarks = list(found.remarks)
    comparisons = [buffer for buffer in found.buffers if buffer.encoding.codec.has_operands]
    traces = [buffer for buffer in found.buffers if not buffer.encoding.codec.has_operands]
    if comparisons and not traces:
        raise CapabilityError(
            f"why: {comparisons[0].name} has comparisons, which do not tell what ran",
            hint="name a trace of PCs of the same calls as well",
        )
    records: list[TraceRecords] = []
    notes: list[str] = []
    for buffer in traces:
        remarks += (f"{buffer.name}: {remark}" for remark in buffer.remarks)
        records.append(read_trace_records(context.inputs, buffer))
        notes.append(f"{buffer.name}: {quality_text(buffer, records[-1].quality)}")
    if len(notes) > _NAMED:
        notes[_NAMED:] = [f"{len(notes) - _NAMED} more traces"]
    merged = merge_traces(records) if records else None
    return _Traces(merged, notes, comparisons, remarks)


class ExplainedCode(NamedTuple):
    """What is said about code."""

    name: str
    """Of the code, in sentences."""
    answers: Sequence[Answer]
    remarks: Sequence[str] = ()

    @property
    def is_unknown(self) -> bool:
        """Whether nothing of it is known."""
        return all(answer.code == "unknown" for answer in self.answers)

    @property
    def has_run(self) -> bool:
        """Whether it ran."""
        return any(answer.code in ("code-executed", "function-covered") for answer in self.answers)


def _explain(context: Context, question: CodeName, traces: _Traces) -> ExplainedCode:
    """Return whether code ran, and what stood before it.

    :raises CapabilityError: when the kernel's code is not understood, and more than points would
        have to be known.
    """
    text, merged = question.text, traces.merged
    table = find_point_table(context)
    remarks: list[str] = []
    is_known = table.functions_named(text) or table.find(function=text)
    if is_known or not question.is_function:
        try:
            about = CodeQuestion(context, table, merged, traces.notes, traces.comparisons)
        except CapabilityError as error:
            if not question.is_function:
                raise
            remarks.append(f"what stands before {text}() is unknown: {error}")
        else:
            if question.is_all:
                return ExplainedCode(text, list(about.explain_uncovered(text)))
            code = about.find_subject(text, question.pc)
            return ExplainedCode(code.name, list(about.explain(code)))
    return ExplainedCode(f"{text}()", list(explain_function(context, text, merged)), remarks)


def explain_code(context: Context, question: CodeName, names: Sequence[str]) -> ExplainedCode:
    """Return whether code ran in some traces, and what stood before it.

    :param names: of the buffers.
    :raises CapabilityError: as :func:`_explain`.
    """
    traces = _read_traces(context, names)
    explained = _explain(context, question, traces)
    remarks = (*context.kernel.names.remarks, *traces.remarks, *explained.remarks)
    return explained._replace(remarks=remarks)
