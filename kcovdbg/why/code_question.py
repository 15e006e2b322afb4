# SPDX-License-Identifier: LGPL-2.1-or-later
"""Questions about code: reads the traces that the user named, joins the code of the image and of
modules, and returns the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from kcovdbg.console.context import Context
from kcovdbg.console.point_table import find_point_table
from kcovdbg.errors import CapabilityError
from kcovdbg.inputs.buffer_sources import (
    find_trace_buffers,
    name_remarks,
    read_trace_records,
    require_fit,
)
from kcovdbg.inputs.kernel_points import ModuleCode
from kcovdbg.model.buffer import Buffer
from kcovdbg.records.joined_states import quality_text
from kcovdbg.records.line_states import TraceRecords
from kcovdbg.records.located_records import matches_path
from kcovdbg.records.source_coverage import merge_traces
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.why.code_answers import CodeQuestion
from kcovdbg.why.code_name import LINE, CodeName
from kcovdbg.why.code_subject import SubjectFinder
from kcovdbg.why.function_answers import explain_function
from kcovdbg.why.joined_code import WholeCode
from kcovdbg.why.missing_coverage import Answer
from kcovdbg.why.uncovered_code import UncoveredCode

# Limit for traces that are named.
_NAMED: Final = 3
# The code of so many modules is read in no more time than the code of the image.
_MOST_MODULES: Final = 16
# Codes of answers that say nothing of what leads to the code.
_ENDING: Final = ("code-executed", "code-absent", "code-not-instrumented")


class _Traces(NamedTuple):
    """The traces that code is asked about with."""

    merged: TraceRecords | None
    """All traces of PCs together; None where there is none."""
    notes: Sequence[str]
    """A line on how complete each trace is."""
    comparisons: Sequence[Buffer]
    remarks: Sequence[str]


def _read_traces(context: Context, names: Sequence[str]) -> _Traces:
    found = find_trace_buffers(context.inputs, names)
    remarks = list(found.remarks)
    comparisons: list[Buffer] = []
    records: list[TraceRecords] = []
    notes: list[str] = []
    for buffer in found.buffers:
        if buffer.encoding.codec.has_operands:
            comparisons.append(buffer)
            continue
        require_fit(buffer, "why")
        remarks += name_remarks(buffer.name, buffer.remarks)
        records.append(read_trace_records(context.inputs, buffer))
        notes.append(f"{buffer.name}: {quality_text(buffer, records[-1].quality)}")
    if comparisons and not records:
        raise CapabilityError(
            f"why: {comparisons[0].name} has comparisons, which do not tell what ran",
            hint="name a trace of PCs of the same calls as well",
        )
    if len(notes) > _NAMED:
        notes[_NAMED:] = [f"{len(notes) - _NAMED} more traces"]
    merged = merge_traces(records) if records else None
    return _Traces(merged, notes, comparisons, remarks)


class UncoveredAnswers(NamedTuple):
    """Answers on the places before lines that did not run, the place with most lines first."""

    places: Sequence[UncoveredCode]
    explain: Callable[[UncoveredCode], Answer]
    """Returns the answer on a place. There may be thousands, and text shows a few."""


class ExplainedCode(NamedTuple):
    """The answers about code."""

    name: str
    """The code's name in sentences."""
    answers: Sequence[Answer]
    remarks: Sequence[str] = ()
    uncovered: UncoveredAnswers | None = None
    """The answers of a question about all code of files."""

    @property
    def codes(self) -> frozenset[str]:
        """The codes of the answers."""
        return frozenset(answer.code for answer in self.answers)

    @property
    def is_unknown(self) -> bool:
        """Whether all answers are that something is unknown."""
        if self.uncovered is not None:
            return not self.uncovered.places
        return self.codes <= {"unknown"}

    @property
    def has_run(self) -> bool:
        """Whether the code ran."""
        return not self.codes.isdisjoint(("code-executed", "function-covered"))


def _has_code(table: LocationTable, question: CodeName) -> bool:
    """Return whether the image or a module has code that a question names."""
    match = LINE.fullmatch(question.text)
    if match is None and question.pc is not None:
        place = question.pc - 1
        return any(text.start <= place < text.end for text in table.text_ranges())
    if match is not None or question.is_all:
        pattern = question.text if match is None else match["file"]
        files = () if table.blocks is None else table.blocks.files
        return any(matches_path(pattern, file) for file in files)
    text = question.text
    return bool(table.functions_named(text) or table.find(function=text))


def _join(context: Context, image: LocationTable, modules: Iterable[ModuleCode]) -> WholeCode:
    """Return the code of the image and of modules as one.

    :raises CapabilityError: when it is not understood.
    """
    code = context.kernel.code
    tables, graphs = [image], [code.call_graph]
    for module in modules:
        if module.table is not None:
            tables.append(module.table)
            graphs.append(code.make_module_graph(module.module))
    for table, graph in zip(tables, graphs, strict=True):
        if table.blocks is None or not graph.fits(table.blocks):
            raise CapabilityError(
                "the location table is of other code than the kernel image",
                hint="symbols build makes it anew",
            )
    return WholeCode(tables, graphs)


def _explain(context: Context, question: CodeName, traces: _Traces) -> ExplainedCode:
    """Return whether code ran, and what stood before it.

    :raises CapabilityError: when the kernel's code is not understood, and more than points would
        have to be known.
    """
    text, merged = question.text, traces.merged
    image = find_point_table(context)
    points = context.kernel.points
    recorded = [] if merged is None else [merged]
    remarks = points.explain_modules(recorded)
    # All modules matter, or of very many those with records.
    wanted: Sequence[TraceRecords] | None = None
    has_many = len(context.kernel.code.module_files) > _MOST_MODULES
    if has_many and not question.is_all and _has_code(image, question):
        wanted = recorded
    tables = (image, *points.find_module_tables(wanted))
    if question.is_function and not any(_has_code(table, question) for table in tables):
        return _explain_by_points(context, text, merged, remarks)
    try:
        code = _join(context, image, points.find_modules(wanted))
        about = CodeQuestion(context, code, merged, traces.notes, traces.comparisons)
    except CapabilityError as error:
        if not question.is_function:
            raise
        remarks.append(f"what stands before {text}() is unknown: {error}")
        return _explain_by_points(context, text, merged, remarks)
    if question.is_all:
        uncovered = UncoveredAnswers(about.rank_uncovered(text), about.explain_uncovered)
        return ExplainedCode(text, (), remarks, uncovered)
    subject = SubjectFinder(context, code).find(text, question.pc)
    found = ExplainedCode(subject.name, list(about.explain(subject)), remarks)
    if points.lacks_modules and found.codes.isdisjoint(_ENDING):
        remarks.append("calls and pointers of modules whose files are missing are unknown")
    return found


def _explain_by_points(
    context: Context, function: str, trace: TraceRecords | None, remarks: Sequence[str]
) -> ExplainedCode:
    answers = list(explain_function(context, function, trace))
    return ExplainedCode(f"{function}()", answers, remarks)


def explain_code(context: Context, question: CodeName, names: Sequence[str]) -> ExplainedCode:
    """Return whether code ran in some traces, and what stood before it.

    :param names: of the buffers.
    :raises CapabilityError: as :func:`_explain`.
    """
    traces = _read_traces(context, names)
    explained = _explain(context, question, traces)
    remarks = (*context.kernel.names.remarks, *traces.remarks, *explained.remarks)
    return explained._replace(remarks=remarks)
