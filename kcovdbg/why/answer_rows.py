# SPDX-License-Identifier: LGPL-2.1-or-later
"""Answers as rows: their columns, their evidence in words, and the lines of text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, get_args

from kcovdbg.console.column import (
    ADDRESS,
    ADDRESSES,
    ANY,
    BOOL,
    HANDLE,
    LIST,
    MODE,
    NUMBER,
    PATH,
    PID,
    SYMBOL,
    TEXT,
    WORD,
    Column,
)
from kcovdbg.console.renderable import Line
from kcovdbg.console.text import escape
from kcovdbg.why.missing_coverage import Answer, AnswerValue, Compared, Reason

if TYPE_CHECKING:
    from kcovdbg.why.code_question import UncoveredAnswers

# Evidence names a value by its title here, or by its key: "KASLR offset=0x23000000".
_VALUES: Final = (
    Column("address", ADDRESS, meaning="address of the function"),
    Column("area", ADDRESS, meaning="address of the area or buffer"),
    Column("bucket", NUMBER),
    Column("buffer", TEXT, meaning="name of the other buffer, as commands take it"),
    Column("buffers", NUMBER, meaning="number of other buffers", unit="buffers"),
    Column(
        "branches",
        NUMBER,
        meaning="number of branches that lead there and never went there",
        unit="branches",
    ),
    Column(
        "callers",
        NUMBER,
        meaning="number of functions that lead there by direct calls",
        unit="functions",
    ),
    Column("capacity", NUMBER),
    Column("certainty", TEXT, meaning="how certain the finding of `check` is"),
    Column("count", NUMBER),
    Column(
        "covered",
        NUMBER,
        meaning="number of the function's points that are in the buffer",
        unit="points",
    ),
    Column("device", TEXT, meaning="device of a posted series"),
    Column(
        "finding",
        LIST,
        items=(
            Column("name", value=itemgetter(0), meaning="name of the value"),
            Column("value", value=itemgetter(1), meaning="the value as text"),
        ),
        meaning="the values of the finding of `check`",
    ),
    Column("flags", WORD, meaning="`task_struct.flags`"),
    Column(
        "frames", LIST, title="frame", meaning="functions on the task's stack, the innermost first"
    ),
    Column("function", SYMBOL, meaning="name of the function that the answer is about"),
    Column(
        "functions",
        NUMBER,
        meaning="number of functions that did not run and have some of the lines",
        unit="functions",
    ),
    Column("generation", TEXT, meaning="generation of KCOV, as in docs/generations.md"),
    Column("handle", HANDLE),
    Column("handles", NUMBER, meaning="number of handles that lead to the object", unit="handles"),
    Column("instance", NUMBER),
    Column("kaslr_offset", WORD, title="KASLR offset"),
    Column("kcov", ADDRESS),
    Column(
        "kcovs", ADDRESSES, title="kcov", meaning="addresses of the objects that the answer names"
    ),
    Column("kcov_handle", HANDLE),
    Column("kcov_mode_raw", WORD, title="kcov_mode", meaning="`task_struct.kcov_mode` as stored"),
    Column("kcov_sequence", NUMBER, title="kcov sequence", meaning="`kcov.sequence`"),
    Column("kcov_softirq", NUMBER),
    Column(
        "lines",
        NUMBER,
        meaning="number of lines that did not run and cannot run unless this place does",
        unit="lines",
    ),
    Column("mode", MODE, meaning="mode of the task or the object, without prefix"),
    Column("object", TEXT, meaning="what the finding of `check` is about"),
    Column("objects", NUMBER, meaning="number of objects that were found", unit="objects"),
    Column("pid", PID, meaning="thread id of the task that the answer names"),
    Column("pids", LIST, title="pid", meaning="thread ids of the tasks that the answer names"),
    Column(
        "places",
        LIST,
        title="at",
        meaning="source lines that announce a remote handle, as file and line",
    ),
    Column("pointers", LIST, title="pointer", meaning="places that have the function's address"),
    Column("points", NUMBER, meaning="number of the function's points", unit="points"),
    Column("registered", NUMBER, meaning="number of handles that are registered", unit="handles"),
    Column("remote", BOOL),
    Column("remote_size", NUMBER),
    Column("rule", TEXT, meaning="rule of `check`"),
    Column("rules", LIST, title="rule", meaning="rules of `check` that the bug violates here"),
    Column(
        "saved_area", ADDRESS, title="saved area", meaning="saved address of the area or buffer"
    ),
    Column(
        "section_sequence",
        NUMBER,
        title="section sequence",
        meaning="sequence number that the section began with",
    ),
    Column("sequence", NUMBER, meaning="sequence number of the session or object"),
    Column(
        "sites",
        NUMBER,
        meaning="number of places in this kernel that announce a remote handle",
        unit="sites",
    ),
    Column("size", NUMBER),
    Column("sk_buffs", ADDRESSES, title="sk_buff", meaning="addresses of the `struct sk_buff`"),
    Column("t", ADDRESS),
    Column("tasks", ADDRESSES, title="task", meaning="addresses of the `task_struct`"),
    Column(
        "vhost_workers",
        ADDRESSES,
        title="vhost",
        meaning="addresses of the `struct vhost_worker`, or of the `struct vhost_dev`",
    ),
    Column("ways", NUMBER, meaning="number of ways that are not shown", unit="ways"),
)
_OPERANDS: Final = (
    Column("pc", WORD, meaning="PC of the comparison, as recorded"),
    Column(
        "size",
        NUMBER,
        value=lambda one: one.comparison.size,
        meaning="size of the operands",
        unit="bytes",
    ),
    Column(
        "const",
        BOOL,
        value=lambda one: one.comparison.const,
        meaning="whether `arg1` was a constant of the code",
    ),
    Column("arg1", WORD, value=lambda one: one.comparison.arg1, meaning="the first operand"),
    Column("arg2", WORD, value=lambda one: one.comparison.arg2, meaning="the second operand"),
)
_PLACE: Final = (
    Column("pc", WORD, meaning="address of its first instruction, as in the image"),
    Column("function", SYMBOL, meaning="function that it is in"),
    Column("file", PATH, meaning="source file, relative to the build root"),
    Column("line", NUMBER, meaning="line in the file"),
)
COLUMNS: Final = (
    Column("question", meaning="what was asked"),
    Column(
        "code",
        meaning=f"reason code of the answer: "
        f"{', '.join(f'`{reason}`' for reason in get_args(Reason))}",
    ),
    Column("answer", meaning="one answer, a sentence"),
    Column("evidence", LIST, meaning="the facts that it rests on"),
    Column(
        "values",
        ANY,
        members=_VALUES,
        meaning=(
            "the values that it rests on and names: those that are known, under the names of the "
            "kernel's members"
        ),
    ),
    Column(
        "guard",
        ANY,
        members=_PLACE,
        meaning="the first code that did not run and that is on every path to what was asked about",
        null="the answer names no branch, or a jump out of its function",
    ),
    Column(
        "path",
        LIST,
        meaning="functions that call each other, from a system call to what was asked about",
        null="the answer is not about code, or no direct calls lead there",
    ),
    Column(
        "operands",
        items=_OPERANDS,
        meaning="what was compared before the branch that never went there",
        null="the answer names no branch, or nothing was recorded there",
    ),
)
_TITLES: Final = {column.key: column.title or column.key for column in _VALUES}
_ENCODERS: Final = {column.key: column.kind.json for column in _VALUES}


@dataclass(frozen=True, slots=True)
class AnswerRow:
    """An answer, by the keys of :data:`COLUMNS`."""

    question: str
    code: str
    answer: str
    evidence: Sequence[str]
    values: Mapping[str, Any]
    guard: Mapping[str, object] | None
    path: Sequence[str] | None
    operands: Sequence[Compared] | None


@dataclass(frozen=True, slots=True)
class AnswerRows:
    """Answers as rows, each made when it is read."""

    question: str
    answers: Sequence[Answer]
    uncovered: UncoveredAnswers | None
    """Further answers."""

    def __len__(self) -> int:
        count = len(self.answers)
        return count if self.uncovered is None else count + len(self.uncovered.places)

    def __iter__(self) -> Iterator[AnswerRow]:
        for answer in self.answers:
            yield _make_row(self.question, answer)
        if self.uncovered is not None:
            for place in self.uncovered.places:
                yield _make_row(self.question, self.uncovered.explain(place))


def _make_row(question: str, answer: Answer) -> AnswerRow:
    values = {
        key: value for key, value in {**answer.values, **answer.named}.items() if value is not None
    }
    shown = [text for key, value in answer.values.items() for text in _word_value(key, value)]
    guard = None
    if answer.guard is not None:
        guard = answer.guard._asdict()
        if answer.guard.file is None:
            del guard["file"], guard["line"]
    return AnswerRow(
        question,
        answer.code,
        answer.answer,
        (*shown, *answer.notes),
        values,
        guard,
        answer.path or None,
        answer.operands or None,
    )


def _word_value(key: str, value: AnswerValue) -> Iterator[str]:
    """Yield the texts of a value in the evidence, one for each item of a list."""
    items: object = "unknown"
    if value is not None:
        items = _ENCODERS[key](value)
    if not isinstance(items, list):
        items = [items]
    for item in items:
        yield f"{_TITLES[key]}={item}"


def draw_rows(question: str, rows: Iterable[AnswerRow]) -> Iterator[Line]:
    """Yield a question and its answers as lines of text."""
    yield (("header", escape(question)),)
    for row in rows:
        yield (("", escape(f"- {row.answer}")),)
        if row.evidence:
            yield (("remark", escape(f"    {', '.join(_join_lists(row.evidence))}")),)
        if row.path:
            yield (("remark", escape(f"    path: {' > '.join(row.path)}")),)


def _join_lists(evidence: Iterable[str]) -> Iterator[str]:
    """Yield evidence with the name of a list before its first item only."""
    last = ""
    for text in evidence:
        name, equals, value = text.partition("=")
        yield value if equals and name == last else text
        last = name if equals else ""
