# SPDX-License-Identifier: LGPL-2.1-or-later
"""``sym``: the source locations of recorded PCs, and of the code locations in an oops."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

from kcovdbg.abi.address import pc_of
from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.buffer_arguments import PC_CONVENTION
from kcovdbg.console.column import ADDRESS, SYMBOL, WORD, Column, RowType
from kcovdbg.console.command import Command, Example, Need, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.record_columns import frames_column, where_column
from kcovdbg.console.renderable import Line, Lines, Table
from kcovdbg.console.text import escape
from kcovdbg.console.wording import frame_fragments, function_text, place_text
from kcovdbg.console.writer import Format
from kcovdbg.errors import KcovdbgError, UsageError, WordError
from kcovdbg.input_file import unpack_data
from kcovdbg.inputs.input_commands import find_hint
from kcovdbg.inputs.trace_paths import FILE, STDIN, read_argument
from kcovdbg.records.log_text import LogLine, decode_log, split_log
from kcovdbg.records.oops_words import CodeWord, find_code_words, parse_words
from kcovdbg.records.pc_options import AUTO, Convention
from kcovdbg.records.written_locations import (
    FoundWord,
    WordLookup,
    WrittenLocation,
    find_log_locations,
)
from kcovdbg.target.dump_file import FileKind, identify_start


class UnknownWordError(KcovdbgError):
    """None of the words that were asked for is code of this kernel."""

    status = 1


def _details(row: WrittenLocation) -> Iterator[Line]:
    """Yield the functions that the innermost one was inlined into."""
    for frame in row.location.frames[1:]:
        yield ("", "    inlined into "), *frame_fragments(frame)


def _function(row: WrittenLocation) -> str | None:
    if row.is_missing:
        return row.location.remark
    # The functions that it was inlined into follow on lines of their own.
    location = row.location
    return function_text(location._replace(frames=location.frames[:1]))


_COLUMNS: Final = (
    Column(
        "pc",
        WORD,
        meaning="address without the KASLR offset, as KCOV records it",
        null="this kernel has no such function, or has freed it",
    ),
    Column("address", ADDRESS, meaning="`pc` plus the KASLR offset", null="as of `pc`"),
    Column("symbol", SYMBOL, title="FUNCTION", value="location.symbol", text=_function),
    where_column(elastic=None),
    frames_column(),
    Column(
        "input",
        value="word.text",
        json_only=True,
        meaning="the location as it was given",
    ),
)


def _label(row: WrittenLocation) -> str:
    if row.word.function or row.pc is None:
        return row.word.text
    return f"{row.pc:#x}"


def _find_start(context: Context, row: WrittenLocation) -> str | None:
    """Return the function that starts at a location, None where none does."""
    symbolizer = context.kernel.names.symbolizer
    if symbolizer is None or row.pc is None:
        return None
    return symbolizer.function_starting_at(row.pc)


def _doubts(context: Context, row: WrittenLocation) -> Iterator[str]:
    """Yield reasons to distrust the location."""
    yield from row.errors
    if row.pc is None or row.word.function is not None:
        return
    start, remark = _find_start(context, row), row.location.remark
    offset = context.target.kaslr_offset
    if start is not None and remark is not None:
        yield f"start of {start}(), which is not a return address"
    elif offset and not row.location.frames and context.names[pc_of(row.pc, offset)].frames:
        yield f"its KASLR offset is included: sym --address {row.pc:#x}"
    elif remark is not None and (row.is_missing or not row.word.is_oops):
        yield remark


def _run(context: Context, args: Namespace) -> Table | Lines:
    lookup = context.kernel.names.make_word_lookup(is_running=args.address)
    first, *others = args.pcs
    if not others and (first == STDIN or first.startswith(FILE)):
        return _annotate(context, lookup, split_log(_read_text(context, first)))
    words = _parse_words(context, args.pcs)
    if args.pc == Convention.EXACT.value:
        words = [word._replace(is_exact=True) for word in words]
    convention = None if args.pc == AUTO else Convention(args.pc)
    points = context.kernel.points.find_sets() or ()
    rows = list(lookup.find_recorded(words, convention, points))
    # The byte before the start of a function may be in no code.
    missing = [row for row in rows if row.is_missing and _find_start(context, row) is None]
    remarks = [*context.kernel.names.remarks]
    if len(missing) == len(rows):
        context.status = UnknownWordError.status
        if context.format is Format.TEXT:
            raise _refuse_words(context, first, missing)
    elif missing:
        remarks.insert(0, f"not found: {len(missing)} of {len(words)} words")
    return _make_table(context, rows, remarks)


def _refuse_words(
    context: Context, first: str, missing: Sequence[WrittenLocation]
) -> UnknownWordError:
    """Return the error for words of which this kernel has none.

    :param first: the first word as it was given.
    """
    row = missing[0]
    problem = next(_doubts(context, row))
    if row.pc is not None:
        problem = f"{_label(row)}: {problem}"
    more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
    return UnknownWordError(f"{problem}{more}", hint=_find_hint(context, first))


def _find_hint(context: Context, word: str) -> str | None:
    """Return what to type for a word that is a file's name."""
    # Another program must not ask what is at a path.
    if context.workspace.inputs.confinement is not None:
        return None
    return find_hint(word)


def _parse_words(context: Context, given: Sequence[str]) -> list[CodeWord]:
    """Return the words of a command line: places in code, or a line of an oops.

    :raises WordError: for anything else.
    """
    text = " ".join(given)
    in_line = [word for word in find_code_words(text) if not word.is_torn]
    if in_line and ": " in text:
        # A line with the name of a register or another label.
        return in_line
    try:
        return list(parse_words(text))
    except ValueError as error:
        wrong = str(error)
    if in_line:
        return in_line
    word = next((word for word in given if wrong in word), given[0])
    raise WordError(
        f"'{wrong}' is neither an address nor a function", word, hint=_find_hint(context, word)
    )


def _make_table(
    context: Context, rows: Sequence[WrittenLocation], remarks: Sequence[str] = ()
) -> Table:
    return Table(
        _COLUMNS,
        rows,
        remarks,
        errors=lambda row: tuple(_doubts(context, row)),
        label=_label,
        details=_details,
    )


def _read_text(context: Context, what: str) -> str:
    """Return the text of a log.

    :param what: ``-`` for standard input, or ``file:PATH``.
    """
    name, data = read_argument(
        None if what == STDIN else what.removeprefix(FILE),
        context.workspace.inputs.confinement,
        "sym",
        "name the locations: sym func+0x15/0x40",
    )
    data = unpack_data(name, data)
    kind = identify_start(data[:18])
    if kind.is_dump or kind is FileKind.ELF:
        raise UsageError(
            f"sym: {name} is a dump or an image, not a log", hint="log shows the log of a dump"
        )
    return decode_log(name, data)


def _annotate(context: Context, lookup: WordLookup, lines: Sequence[LogLine]) -> Lines:
    """Return the lines of a log with source lines for the functions in them."""
    found = find_log_locations(lookup, lines)
    known = list(chain.from_iterable(found))
    rows = [row for word in known for row in word.choices]
    remarks = [*context.kernel.names.remarks]
    others = [row for row in rows if row.is_other_build]
    missing = [row for row in rows if row.is_missing]
    for group in (others, missing):
        if group:
            more = f" (and {len(group) - 1} more)" if len(group) > 1 else ""
            remarks.append(f"{group[0].word.text}{more}: {group[0].errors[0]}")
    torn = sum(not word.choices for word in known)
    if torn:
        remarks.append(f"words that another message cut off, left as they are: {torn}")
    if not known:
        remarks.append("no line has a function with its offset, or is an address")
    if not known or (rows and all(row.is_missing for row in rows)):
        context.status = 1
    shown: list[Line] = []
    for line, words in zip(lines, found, strict=True):
        text = _annotate_line(line.text.rstrip("\r\0"), words)
        shown.append((("", escape(text.expandtabs())),))
    return Lines(shown, data=_make_table(context, rows), remarks=remarks)


def _annotate_line(text: str, words: Sequence[FoundWord]) -> str:
    """Return a line as scripts/decode_stacktrace.sh shows it: lines of inlined functions first,
    unknown functions unchanged.
    """
    pieces, at = [], 0
    for word, choices in words:
        if not choices or choices[0].is_other_build or word.is_located:
            continue
        where = " ".join(filter(None, map(place_text, choices[0].location.frames)))
        if not where:
            continue
        start, end = word.span
        name = word.function or text[start:end].strip()
        pieces += [text[at:start], f"{name} ({where})"]
        at = end
    return "".join(pieces) + text[at:]


COMMAND: Final = Command(
    name="sym",
    summary="show the source locations of recorded PCs, or of the code in an oops",
    topic=Topic.BUFFERS,
    run=_run,
    row_types=(RowType(_COLUMNS, errors=True),),
    description=(
        "A recorded PC is the return address of the compiler's call, minus the KASLR offset; the "
        "line is that of the call. If an address is the call of a coverage point instead, as in "
        "some lists of PCs, its return address is shown; --pc overrides that, and --pc exact also "
        "takes func+0x15 as an instruction's address. PCs are hexadecimal; decimal ones "
        "need all 20 digits or a sign.\n\n"
        "Words of an oops may be func+0x15/0x40, func [mod], RIP: 0010:func+0x15/0x40, or "
        "[<ffffffff8108cb35>]. Words of a call trace are return addresses; a word after RIP, or "
        "after another machine's program counter, is the address of an instruction. If the size "
        "after the slash differs from this build's, the vmlinux is of another build.\n\n"
        "sym - reads a whole oops, report or console log from standard input, and sym file:PATH "
        "from a file, and adds source lines, inlined functions first, as the kernel's "
        "scripts/decode_stacktrace.sh does. The text may be compressed with gzip, xz, lzma or "
        "zstd, be in UTF-16, and have the colors of dmesg. Words that another CPU's message cut "
        "off are counted.\n\n"
        "The exit status is 1 if no word was found: this kernel has none of the functions, and no "
        "code at any of the addresses."
    ),
    arguments=(
        Argument(
            "pcs PLACE…",
            Value.FUNCTION,
            "PCs as recorded, words of an oops, file:PATH for a log, or - for standard input",
        ),
        Argument(
            "--address", Value.FLAG, "take addresses in the running kernel, KASLR offset included"
        ),
        PC_CONVENTION,
    ),
    examples=(
        Example("sym ffffffff81234567", "one PC of a trace"),
        Example("sym vfs_read+0x15/0x40", "a line of a call trace"),
        Example("sym file:oops.txt", "annotate an oops"),
        Example("sym -", "the same: cat oops.txt | kcovdbg -s vmlinux sym -"),
    ),
    needs=frozenset({Need.NAMES}),
)
