# SPDX-License-Identifier: LGPL-2.1-or-later
"""``patch``: the state of each line that a change adds."""

from __future__ import annotations

import os
import re
from argparse import Namespace
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Final

from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.buffer_arguments import TRACE_OPTIONS
from kcovdbg.console.column import NUMBER, PATH, TEXT, Column, RowType
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.point_table import find_point_table
from kcovdbg.console.renderable import Drawing, Line, Lines, Table
from kcovdbg.errors import CapabilityError, KcovdbgError, WordError
from kcovdbg.inputs.buffer_sources import (
    find_trace_buffers,
    name_remarks,
    read_trace_records,
    require_fit,
)
from kcovdbg.inputs.task_names import ALL
from kcovdbg.inputs.trace_paths import STDIN, read_argument
from kcovdbg.model.kcov import amount_text, name_some
from kcovdbg.patch.change import decode_diff, find_one_sided, read_diff
from kcovdbg.patch.changed_lines import (
    REASONS,
    BuiltFiles,
    ChangeState,
    PatchFile,
    PatchLine,
    PlacedChange,
    count_states,
    judge_change,
    place_change,
)
from kcovdbg.patch.git_diff import git_diff
from kcovdbg.records.code_states import CodeStates
from kcovdbg.records.joined_states import NamedTrace, join_states, name_trace
from kcovdbg.symbols.build_option import BuildOptions
from kcovdbg.symbols.location_table import LocationTable

_UNCOMMITTED: Final = "HEAD"
# What begins the name of a buffer; a task may be named by any word.
_BUFFER: Final = re.compile(r"(file|kcov|area|fd|saved|user):|@|\d+$")
_NAMED: Final = 3
# Reasons of lines that have no place in the source.
_UNPLACED: Final = ("text", "file", "blanks", "wrapped")

_COLUMNS: Final = (
    Column("file", PATH, meaning="source file, as in the change"),
    Column("line", NUMBER, meaning="line in the file after the change"),
    Column(
        "state",
        value=lambda row: row.state.value,
        meaning=(
            "`executed`, `partly` (not all of its code), `not-executed`, `unknown`, `no-code`, "
            "`not-instrumented` or `not-built`"
        ),
    ),
    Column(
        "hits",
        NUMBER,
        meaning=(
            "largest number of records of its code, summed over the traces; 1 where it is inferred"
        ),
        unit="records",
    ),
    Column("text", TEXT, meaning="the line's text in the change"),
    Column(
        "reason",
        TEXT,
        meaning=(
            "why the state is unknown: `undecided`, `moved`, `edges` or `outside` as for source; "
            "`text` or `file`: the kernel was built from another text; `blanks` or `wrapped`: mail "
            "replaced tabs or wrapped a line in its hunk; `module`: a module "
            "whose file is not named may have the code; `path`: not in the tree; `assembly`: "
            "assembly outside of functions, which may have code; `order`: several patches change "
            "the file, and its source is missing"
        ),
        null="it is known",
    ),
    Column(
        "option",
        TEXT,
        meaning="option of the kernel's configuration that builds the file",
        null="the file is built, or the Makefiles do not say",
    ),
    Column(
        "built_line",
        NUMBER,
        meaning="the line's number in the source that the kernel was built from",
        null="it could not be placed, or has no code",
    ),
    Column(
        "traces",
        items=(
            Column("trace", TEXT, meaning="name of the trace"),
            Column("hits", NUMBER, meaning="its records", unit="records"),
        ),
        json_only=True,
        meaning="the traces that executed the line",
    ),
)
_MARKS: Final = {
    ChangeState.EXECUTED: ("covered", "+"),
    ChangeState.PARTLY: ("covered", "~"),
    ChangeState.NOT_EXECUTED: ("uncovered", "!"),
    ChangeState.UNKNOWN: ("remark", "?"),
    ChangeState.NOT_INSTRUMENTED: ("remark", "x"),
    ChangeState.NOT_BUILT: ("remark", "#"),
    ChangeState.NO_CODE: ("gutter", " "),
}
_NOUNS: Final = {
    ChangeState.NOT_EXECUTED: "not executed",
    ChangeState.UNKNOWN: "unknown",
    ChangeState.NO_CODE: "without code",
    ChangeState.NOT_INSTRUMENTED: "not instrumented",
    ChangeState.NOT_BUILT: "not built",
}
_KNOWN: Final = {*ChangeState} - {ChangeState.UNKNOWN, ChangeState.NO_CODE}
_MISSED: Final = (ChangeState.NOT_EXECUTED, ChangeState.PARTLY, ChangeState.UNKNOWN)


def _run(context: Context, args: Namespace) -> Lines:
    word, names = _split_words(args)
    # Executed addresses need no coverage points.
    table = find_point_table(context, needs_points=False)
    text, name = _read_change(context, word)
    changes = read_diff(text, name)
    buffers, skipped = find_trace_buffers(context.inputs, names, takes_addresses=True)
    for buffer in buffers:
        if not buffer.encoding.codec.is_exact:
            require_fit(buffer, "patch")
    traces = [name_trace(buffer, read_trace_records(context.inputs, buffer)) for buffer in buffers]
    points = context.kernel.points
    modules = points.find_module_tables()
    built = BuiltFiles(_list_files((table, *modules)))
    read = context.kernel.sources.tree.read
    patches = Counter(change.file for change in changes)
    placed = [
        place_change(change, built, read, is_only=patches[change.file] == 1) for change in changes
    ]
    files = _judge(context, placed, (table, *modules), traces)
    rows = [row for file in files for row in file.rows]
    context.status = _find_status(count_states(rows))
    remarks = [*context.kernel.names.remarks, *skipped]
    remarks += _trace_remarks(traces)
    remarks += points.explain_modules([one.records for one in traces])
    for buffer in buffers[:_NAMED]:
        remarks += name_remarks(buffer.name, dict.fromkeys(buffer.remarks))
    remarks += _compare_remarks(files)
    one_sided = find_one_sided(text)
    if one_sided:
        missing = name_some(one_sided, _NAMED)
        remarks.append(f"lines not in the diff, since one tree lacks the files: {missing}: diff -N")
    summary = "the change adds no lines"
    if rows:
        summary = f"{_count_text(count_states(rows))}, in {amount_text(len(files), 'file')}"
    remarks.append(summary)
    shown = [row for row in rows if row.state in _MISSED] if args.missed else rows
    drawing = Drawing(len(shown), lambda most: _lines(files, shown, most))
    return Lines(drawing, data=Table(_COLUMNS, shown), remarks=remarks)


def _list_files(tables: Iterable[LocationTable]) -> Iterator[str]:
    """Iterate over the names of all files that have code."""
    for table in tables:
        yield from table.files()
        if table.blocks is not None:
            yield from table.blocks.files


def _judge(
    context: Context,
    placed: Sequence[PlacedChange],
    tables: Sequence[LocationTable],
    traces: Sequence[NamedTrace],
) -> list[PatchFile]:
    """Return the lines of each change with their states.

    :param tables: the table of the image, then tables of modules.
    """
    names: set[str] = set()
    for one in placed:
        names.update(one.names)
    states = join_states(CodeStates(tables), traces, names)
    lacks_modules = context.kernel.points.lacks_modules
    options = _find_options(context, placed)
    files: list[PatchFile] = []
    for one in placed:
        rule, is_in_tree = None, True
        if options is not None and not one.names and one.change.is_inside:
            rule = options.find(one.change.file)
            is_in_tree = not options.lacks(one.change.file)
        judged = judge_change(
            one, states, lacks_modules=lacks_modules, rule=rule, is_in_tree=is_in_tree
        )
        files.append(judged)
    return files


def _find_status(states: Collection[ChangeState]) -> int:
    """Return the exit status for the states of all lines."""
    if ChangeState.NOT_EXECUTED in states:
        return 1
    if ChangeState.UNKNOWN in states and not _KNOWN.intersection(states):
        # No state is known.
        return KcovdbgError.status
    return 0


def _split_words(args: Namespace) -> tuple[str, list[str]]:
    """Return the name of the change, by default uncommitted changes, and the names of buffers."""
    if args.change is None:
        (only,) = args.what
        if not _BUFFER.match(only) and only != ALL:
            raise WordError(
                "patch: no trace is named",
                None,
                hint=f"patch {only} file:TRACE; help buffers lists the names",
            )
        return _UNCOMMITTED, [only]
    if _BUFFER.match(args.change):
        return _UNCOMMITTED, [args.change, *args.what]
    return args.change, args.what


def _read_change(context: Context, word: str) -> tuple[str, str]:
    """Return the text of a diff and its name."""
    confinement = context.workspace.inputs.confinement
    folders = context.kernel.options.source_folders
    if confinement is not None and "\n" in word:
        return word, "the change"
    if confinement is not None and context.args.change is None:
        raise CapabilityError(
            "patch: no change is given", hint="give the text of the diff, or the name of its file"
        )
    near = Path(word)
    if confinement is not None and confinement.folder is not None:
        near = confinement.folder / word
    is_file = word.endswith((".diff", ".patch")) or ("\0" not in word and near.is_file())
    if word == STDIN or confinement is not None or is_file:
        # Another program's words start no program.
        path = None if word == STDIN else word
        hint = "name a file or a range of commits"
        name, data = read_argument(path, confinement, "patch", hint)
        return decode_diff(data, name), name
    if context.workspace.reads_only:
        raise CapabilityError(
            "patch: only a script that is named may run git",
            hint="name a diff, or the script: --script FILE",
        )
    return git_diff(Path(folders[0]) if folders else Path(), word), f"git diff {word}"


def _find_options(context: Context, placed: Sequence[PlacedChange]) -> BuildOptions | None:
    """Return the Makefiles' options of the source tree, None where the tree is unknown."""
    folders = context.kernel.options.source_folders
    if folders:
        return BuildOptions(Path(os.path.realpath(folders[0])))
    for one in placed:
        path = context.kernel.sources.tree.find(one.names[0]) if one.names else None
        options = BuildOptions.around(path, one.change.file)
        if options is not None:
            return options
    return None


def _trace_remarks(traces: Sequence[NamedTrace]) -> Iterator[str]:
    """Yield a remark on the quality of each trace."""
    for trace in traces[:_NAMED]:
        yield f"{trace.name}: {trace.quality}"
    if len(traces) > _NAMED:
        yield f"{len(traces) - _NAMED} more traces"


def _compare_remarks(files: Sequence[PatchFile]) -> Iterator[str]:
    """Yield where the source does not fit the change."""
    unplaced, moved, unread = [], [], []
    for file in files:
        has_unplaced = has_moved = False
        for row in file.rows:
            if row.built_line is None:
                has_unplaced = has_unplaced or row.reason in _UNPLACED
            elif row.built_line != row.line:
                has_moved = True
        if has_unplaced:
            unplaced.append(file.file)
        if has_moved:
            moved.append(file.file)
        if not file.is_compared:
            unread.append(file.file)
    built = "the source that the kernel was built from"
    if unplaced:
        yield f"{name_some(unplaced, _NAMED)}: lines have no place in {built}"
    if moved:
        yield f"{name_some(moved, _NAMED)}: lines have other numbers in {built}"
    if unread:
        names = name_some(unread, _NAMED)
        yield f"{names}: not compared with the source, which is missing; --source-dir names it"


def _count_text(counts: Counter[ChangeState]) -> str:
    """Return in words how many lines have each state."""
    executed = counts[ChangeState.EXECUTED] + counts[ChangeState.PARTLY]
    rest = [f"{counts[state]} {noun}" for state, noun in _NOUNS.items() if counts[state]]
    return ", ".join([f"{executed} executed", *rest])


def _lines(files: Sequence[PatchFile], rows: Sequence[PatchLine], most: int) -> Iterator[Line]:
    if not rows:
        yield (("remark", "no line to show"),)
    counts = {file.file: count_states(file.rows) for file in files}
    for number, (name, group) in enumerate(groupby(islice(rows, most), key=lambda row: row.file)):
        members = list(group)
        if number:
            yield ()
        yield (("path", name), ("remark", f"  {_count_text(counts[name])}"))
        option = members[0].option
        if option is not None:
            yield (("remark", f"  {option} builds it"),)
        digits = len(str(max(row.line for row in members)))
        previous = None
        for row in members:
            if previous is not None and row.line != previous + 1:
                yield (("gutter", "     ⋮"),)
            previous = row.line
            style, mark = _MARKS[row.state]
            yield (
                (style, f"{row.hits or '':>8} {mark} {row.line:>{digits}}  "),
                ("", row.text.expandtabs(8)),
            )
    reasons = Counter(row.reason for row in rows if row.reason is not None)
    for reason, count in reasons.most_common():
        yield (("remark", f"{count} unknown: {REASONS[reason]}"),)


COMMAND: Final = Command(
    name="patch",
    summary="show which lines of a change were executed",
    topic=Topic.BUFFERS,
    run=_run,
    row_types=(RowType(_COLUMNS),),
    description=(
        "Each line that the change adds has a mark: + executed, ~ executed but not all of its "
        "code, ! not executed, ? unknown, x not instrumented, # not built; none where the "
        "kernel has no code of the line. The exit status is 1 if a line was not executed.\n\n"
        "git reads a range in --source-dir or the current directory; without a range, the changes "
        "that are not committed. kcovdbg finds each line in the source that the kernel was built "
        "from, by its text and the lines around it; a line that it does not find is unknown. "
        "Several traces count together: --json names the traces that executed each line."
    ),
    arguments=(
        Argument(
            "change [RANGE|FILE.diff|-]",
            Value.FILE,
            "the change: a range of commits, a diff, or - for standard input",
        ),
        Argument(
            "what WHAT…", Value.BUFFER, "the traces, each file of a directory or pattern by itself"
        ),
        Argument(
            "-m, --missed",
            Value.FLAG,
            "only lines that were not executed, partly executed or unknown",
        ),
        *TRACE_OPTIONS,
    ),
    examples=(
        Example("patch HEAD~3.. file:test.kcov", "did the test run what these commits add?"),
        Example("patch --missed fix.patch 'file:cov/*'", "what did none of these traces run?"),
    ),
    needs=frozenset(),
)
