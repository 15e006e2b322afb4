# SPDX-License-Identifier: LGPL-2.1-or-later
"""``sym``: the source locations of recorded PCs, and of the places in an oops."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Final

from kcovdbg.abi.address import pc_of
from kcovdbg.buffers.written_locations import WrittenLocation, WrittenLocations
from kcovdbg.console.argument import Argument, Count, Value, WordError
from kcovdbg.console.column import ADDRESS, PATH, SYMBOL, TEXT, WORD, Column
from kcovdbg.console.command import Command, Example, Need, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.json_schema import RowType
from kcovdbg.console.record_columns import frames_column
from kcovdbg.console.renderable import Line, Lines, Table
from kcovdbg.console.text import escape
from kcovdbg.console.wording import function_text, place_text
from kcovdbg.errors import CapabilityError, KcovdbgError
from kcovdbg.limits import TEXT_SIZE, find_limit, over_limit
from kcovdbg.records.oops_words import CodeWord, find_places, parse_words

_STDIN: Final = "-"


def _details(place: WrittenLocation) -> Iterator[Line]:
    """Yield the functions that the innermost one was inlined into."""
    for frame in place.location.frames[1:]:
        yield (("", "    inlined into "), ("symbol", frame.function or "?"), ("", "  "), ("path", place_text(frame)))


def _function(place: WrittenLocation) -> str | None:
    # What it was inlined into follows on lines of its own.
    location = place.location
    return function_text(location._replace(frames=location.frames[:1])) if place.pc is not None else None


_COLUMNS: Final = (
    Column("pc", WORD, meaning="address without the KASLR offset, as KCOV records it", null="this kernel has no such function"),
    Column("address", ADDRESS, meaning="`pc` plus the KASLR offset", null="this kernel has no such function"),
    Column("symbol", SYMBOL, title="FUNCTION", value=lambda place: place.location.symbol, text=_function),
    Column(
        "where",
        PATH,
        text=lambda place: place_text(place.location.frames[0]) if place.location.frames else None,
        text_only=True,
    ),
    frames_column(lambda place: place.location.frames),
    Column("input", TEXT, value=lambda place: place.word.text, json_only=True, meaning="the place as it was given"),
)


def _doubts(context: Context, place: WrittenLocation) -> Iterator[str]:
    """Yield why the place may be another one than meant, or the address none that KCOV recorded."""
    yield from place.errors
    if place.pc is None or place.word.function is not None:
        return
    kernel, offset = context.kernel, context.target.kaslr_offset
    start = None if kernel.symbolizer is None else kernel.symbolizer.function_starting_at(place.pc)
    if start is not None and place.location.remark is not None:
        yield f"start of {start}(), which is not a return address"
    elif offset and not place.location.frames and kernel.names[pc_of(place.pc, offset)].frames:
        yield f"its KASLR offset is included: sym --address {place.pc:#x}"
    elif place.location.remark is not None and not place.word.is_oops:
        yield place.location.remark


def _run(context: Context, args: Namespace) -> Table | Lines:
    places = WrittenLocations(context, is_running=args.address)
    if args.pcs == [_STDIN]:
        return _annotate(context, places, _read_lines(context))
    try:
        words = list(parse_words(" ".join(args.pcs)))
    except ValueError as error:
        words = find_places(" ".join(args.pcs))
        if not words:
            wrong = str(error)
            raise WordError(f"'{wrong}' is neither an address nor a function", _find_word(args.pcs, wrong)) from None
    if args.exact:
        words = [word._replace(is_exact=True) for word in words]
    context.kernel.names.prefetch(
        pc_of(word.address, context.target.kaslr_offset) if args.address else word.address
        for word in words
        if word.address is not None
    )
    rows = [place for word in words for place in places.find(word)]
    if all(row.pc is None for row in rows):
        raise KcovdbgError(rows[0].errors[0])
    return _make_table(context, rows)


def _make_table(context: Context, rows: Sequence[WrittenLocation]) -> Table:
    return Table(
        _COLUMNS,
        rows,
        errors=lambda place: tuple(_doubts(context, place)),
        label=lambda place: place.word.text if place.word.function or place.pc is None else f"{place.pc:#x}",
        details=_details,
    )


def _find_word(words: Sequence[str], part: str) -> str:
    return next((word for word in words if part in word), words[0])


def _read_lines(context: Context) -> list[str]:
    if context.workspace.confinement is not None:
        raise CapabilityError("sym: standard input belongs to another program", hint="name the places: sym func+0x15/0x40")
    limit = find_limit(TEXT_SIZE)
    data = sys.stdin.buffer.read(limit + 1)
    if len(data) > limit:
        raise over_limit(TEXT_SIZE, "standard input")
    return data.decode("utf-8", "backslashreplace").splitlines()


def _annotate(context: Context, places: WrittenLocations, lines: Sequence[str]) -> Lines:
    """Return the lines of a log with source lines for the functions in them."""
    found = [[(word, list(places.find(word))) for word in find_places(line)] for line in lines]
    rows = [place for line in found for _, choices in line for place in choices]
    remarks = []
    wrong = [place for place in rows if place.is_other_build]
    missing = [place for place in rows if place.pc is None]
    for group in (wrong, missing):
        if group:
            more = f", and of {len(group) - 1} more" if len(group) > 1 else ""
            remarks.append(f"{group[0].word.text}{more}: {group[0].errors[0]}")
    if not rows:
        remarks.append("no line has a function with its offset, or is an address")
    text = tuple(
        (("", escape(_annotate_line(line.expandtabs(), of_line))),) for line, of_line in zip(lines, found, strict=True)
    )
    return Lines(text, data=_make_table(context, rows), remarks=remarks)


def _annotate_line(line: str, words: Sequence[tuple[CodeWord, Sequence[WrittenLocation]]]) -> str:
    """Return a line as scripts/decode_stacktrace.sh shows it: lines of inlined functions first, unknown functions unchanged."""
    pieces, at = [], 0
    for word, choices in words:
        place = choices[0]
        where = " ".join(filter(None, map(place_text, place.location.frames)))
        if not where or place.is_other_build:
            continue
        start, end = word.span
        name = word.function or line[start:end].strip()
        pieces += [line[at:start], f"{name} ({where})"]
        at = end
    return "".join(pieces) + line[at:]


COMMAND: Final = Command(
    name="sym",
    summary="show the source locations of recorded PCs, or of the places in an oops",
    topic=Topic.BUFFERS,
    run=_run,
    row_types=(RowType(_COLUMNS, errors=True),),
    description=(
        "A recorded PC is the return address of the compiler's call, minus the KASLR offset; the line shown is that of the "
        "call before it. PCs are hexadecimal; decimal ones need all 20 digits or a sign.\n\n"
        "The words of an oops are taken as they are: func+0x15/0x40, func [mod], RIP: 0010:func+0x15/0x40, "
        "[<ffffffff8108cb35>]. In a call trace they are return addresses, after RIP the address of an instruction. "
        "If the size after the slash differs from this build's, the vmlinux is of another build.\n\n"
        "sym - reads a whole oops or console log from standard input and shows it with source lines, those of inlined "
        "functions first, as the kernel's scripts/decode_stacktrace.sh does."
    ),
    arguments=(
        Argument(
            ("pcs",),
            Value.FUNCTION,
            "PCs as recorded, words of an oops, or - for standard input",
            count=Count.SOME,
            metavar="PLACE",
        ),
        Argument(("--address",), Value.FLAG, "take addresses in the running kernel, KASLR offset included"),
        Argument(("--exact",), Value.FLAG, "take func+0x15 as an instruction's address, not as a return address"),
    ),
    examples=(
        Example("sym ffffffff81234567", "one PC of a trace"),
        Example("sym vfs_read+0x15/0x40", "a line of a call trace"),
        Example("sym -", "annotate an oops: cat oops | kcovdbg -s vmlinux sym -"),
    ),
    needs=frozenset({Need.NAMES}),
)
