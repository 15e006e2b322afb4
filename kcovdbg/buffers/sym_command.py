# SPDX-License-Identifier: LGPL-2.1-or-later
"""``sym``: the source locations of recorded PCs, and of the code locations in an oops."""

from __future__ import annotations

import contextlib
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

from kcovdbg.abi.address import address_of, align, pc_of
from kcovdbg.console.argument import Argument, Value, WordError
from kcovdbg.console.column import ADDRESS, PATH, SYMBOL, TEXT, WORD, Column, RowType
from kcovdbg.console.command import Command, Example, Need, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.input_commands import find_hint
from kcovdbg.console.record_columns import frames_column
from kcovdbg.console.renderable import Line, Lines, Table
from kcovdbg.console.text import escape
from kcovdbg.console.trace_paths import FILE, confine
from kcovdbg.console.wording import function_text, place_text
from kcovdbg.elf.file import ElfFile, open_image
from kcovdbg.elf.header import SHF_EXECINSTR
from kcovdbg.errors import CapabilityError, KcovdbgError, TargetError
from kcovdbg.input_file import read_input
from kcovdbg.limits import TEXT_SIZE, find_limit, over_limit
from kcovdbg.model.location import Location
from kcovdbg.records.log_text import decode_log
from kcovdbg.records.oops_words import CodeWord, find_code_words, parse_words
from kcovdbg.symbols.symbolizer import demangle_location

# Functions start at multiples of this, in kernels of any architecture.
_ALIGNMENT: Final = 16


class FunctionStart(NamedTuple):
    """A function's code."""

    pc: int
    """Of its first instruction, minus the KASLR offset."""
    size: int
    """In bytes."""

    @property
    def room(self) -> int:
        """Bytes up to the next symbol: what the kernel prints as the size, which includes padding."""
        return align(self.size, _ALIGNMENT)


class WrittenLocation(NamedTuple):
    """A location that somebody wrote down, in this kernel."""

    word: CodeWord
    pc: int | None
    """None where this kernel has no such function."""
    address: int | None
    """With the KASLR offset."""
    location: Location
    errors: tuple[str, ...] = ()
    is_other_build: bool = False
    """Whether the function has another size here."""


class WrittenLocations:
    """Finds written locations in the code of a kernel.

    :param is_running: whether all addresses include the KASLR offset.
    """

    def __init__(self, context: Context, *, is_running: bool = False) -> None:
        self._target = context.target
        self._kernel = context.kernel
        self._is_running = is_running
        self.starts: Callable[[str, str | None], tuple[FunctionStart, ...]] = cache(self._find_starts)
        """Returns the functions with a name, of the image or of a module."""

    def find(self, word: CodeWord) -> Iterator[WrittenLocation]:
        """Yield the locations that a word can mean: one, or one for each function of a name that several have."""
        if word.address is not None:
            yield self._find_address(word, word.address)
            return
        assert word.function is not None
        starts = self.starts(word.function, word.module)
        fitting = [start for start in starts if not (word.size and start.size) or start.size <= word.size <= start.room]
        is_other = bool(starts) and not fitting
        for start in fitting or starts:
            errors = []
            if is_other:
                errors.append(f"its size is {start.size:#x} here, not {word.size:#x}: the vmlinux is another build's")
            elif start.size and word.offset > start.room:
                errors.append(f"the function ends at +{start.size:#x} here")
            if len(fitting or starts) > 1:
                errors.append(f"{len(fitting or starts)} functions have this name")
            pc = start.pc + word.offset
            yield self._make(word, pc, tuple(errors), is_other_build=is_other)
        if not starts:
            yield WrittenLocation(word, None, None, Location(0, ()), (self._explain_missing(word),))

    def _find_address(self, word: CodeWord, address: int) -> WrittenLocation:
        offset, names = self._target.kaslr_offset, self._kernel.names
        pc = pc_of(address, offset) if self._is_running else address
        if word.is_oops and offset and names[pc_of(address, offset)].frames and not names[address].frames:
            pc = pc_of(address, offset)
        return self._make(word, pc)

    def _make(self, word: CodeWord, pc: int, errors: tuple[str, ...] = (), *, is_other_build: bool = False) -> WrittenLocation:
        address = address_of(pc, self._target.kaslr_offset)
        is_recorded = word.function is None and not word.is_exact and not word.is_oops
        lines = self._kernel.lines
        # A coverage point's row may be of a function that recorded its caller by a tail call.
        frames = () if is_recorded or lines is None else tuple(lines.frames_at(address if word.is_exact else address - 1))
        # Names are of the instruction before an address.
        location = demangle_location(Location(address, frames)) if frames else self._kernel.names[pc + word.is_exact]
        if location.frames and not is_recorded:
            # It need not be a coverage point.
            location = location._replace(remark=None, approximate=False)
        return WrittenLocation(word, pc, address, location, errors, is_other_build)

    def _explain_missing(self, word: CodeWord) -> str:
        if word.module is None:
            return f"this kernel has no function {word.function}"
        known = {loaded.name for loaded in self._kernel.modules or ()}
        if _module_name(word.module) in known:
            return f"module {word.module} has no function {word.function}, or its debug info is missing: -s {word.module}.ko"
        return f"module {word.module} is unknown: -s {word.module}.ko"

    def _find_starts(self, name: str, module: str | None) -> tuple[FunctionStart, ...]:
        if module is not None:
            return tuple(self._of_modules(name, _module_name(module)))
        return tuple(self._of_image(name)) or tuple(self._of_modules(name, None))

    def _of_image(self, name: str) -> Iterator[FunctionStart]:
        symbolizer, image = self._kernel.symbolizer, self._kernel.image
        table = None if symbolizer is None else symbolizer.table
        named = [] if table is None else [one for one in table.functions_named(name) if name in (one.name, one.alias)]
        yield from (FunctionStart(known.address, known.size) for known in named)
        # The table has no labels of assembly.
        if not named and image is not None:
            with open_image(image, self._kernel.code) as elf:
                yield from _functions_of(elf, name, None)
        elif not named:
            with contextlib.suppress(KcovdbgError):
                found = self._target.symbol(name)
                yield FunctionStart(pc_of(found.address, self._target.kaslr_offset), found.size)

    def _of_modules(self, name: str, module: str | None) -> Iterator[FunctionStart]:
        files = self._kernel.module_files
        for loaded in self._kernel.modules or ():
            path = files.get(loaded.build_id or "")
            if path is not None and module in (None, loaded.name):
                with contextlib.suppress(TargetError), ElfFile(path) as elf:
                    yield from _functions_of(elf, name, dict(loaded.sections))


def _module_name(name: str) -> str:
    return name.replace("-", "_")


def _functions_of(elf: ElfFile, name: str, starts: Mapping[str, int] | None) -> Iterator[FunctionStart]:
    """Yield the functions of a file with a name.

    :param starts: of the sections of a module that are loaded; None for an image.
    """
    for symbol in elf.symbols.find_containing(name):
        if symbol.name == name and symbol.section < len(elf.sections):
            section = elf.sections[symbol.section]
            start = 0 if starts is None else starts.get(section.name)
            if section.flags & SHF_EXECINSTR and start is not None:
                yield FunctionStart(start + symbol.address, symbol.size)


_STDIN: Final = "-"


def _details(row: WrittenLocation) -> Iterator[Line]:
    """Yield the functions that the innermost one was inlined into."""
    for frame in row.location.frames[1:]:
        yield (("", "    inlined into "), ("symbol", frame.function or "?"), ("", "  "), ("path", place_text(frame)))


def _function(row: WrittenLocation) -> str | None:
    # The functions that it was inlined into follow on lines of their own.
    location = row.location
    return function_text(location._replace(frames=location.frames[:1])) if row.pc is not None else None


_COLUMNS: Final = (
    Column("pc", WORD, meaning="address without the KASLR offset, as KCOV records it", null="this kernel has no such function"),
    Column("address", ADDRESS, meaning="`pc` plus the KASLR offset", null="this kernel has no such function"),
    Column("symbol", SYMBOL, title="FUNCTION", value=lambda row: row.location.symbol, text=_function),
    Column(
        "where",
        PATH,
        text=lambda row: place_text(row.location.frames[0]) if row.location.frames else None,
        text_only=True,
    ),
    frames_column(lambda row: row.location.frames),
    Column("input", TEXT, value=lambda row: row.word.text, json_only=True, meaning="the location as it was given"),
)


def _doubts(context: Context, row: WrittenLocation) -> Iterator[str]:
    """Yield why the location may be another one than meant, or the address none that KCOV recorded."""
    yield from row.errors
    if row.pc is None or row.word.function is not None:
        return
    kernel, offset = context.kernel, context.target.kaslr_offset
    start = None if kernel.symbolizer is None else kernel.symbolizer.function_starting_at(row.pc)
    if start is not None and row.location.remark is not None:
        yield f"start of {start}(), which is not a return address"
    elif offset and not row.location.frames and kernel.names[pc_of(row.pc, offset)].frames:
        yield f"its KASLR offset is included: sym --address {row.pc:#x}"
    elif row.location.remark is not None and not row.word.is_oops:
        yield row.location.remark


def _run(context: Context, args: Namespace) -> Table | Lines:
    written = WrittenLocations(context, is_running=args.address)
    if len(args.pcs) == 1 and (args.pcs[0] == _STDIN or args.pcs[0].startswith(FILE)):
        return _annotate(context, written, _read_lines(context, args.pcs[0]))
    try:
        words = list(parse_words(" ".join(args.pcs)))
    except ValueError as error:
        words = find_code_words(" ".join(args.pcs))
        if not words:
            wrong = str(error)
            given = next((word for word in args.pcs if wrong in word), args.pcs[0])
            hint = None if context.workspace.confinement is not None else find_hint(given)
            raise WordError(f"'{wrong}' is neither an address nor a function", given, hint=hint) from None
    if args.exact:
        words = [word._replace(is_exact=True) for word in words]
    context.kernel.names.prefetch(
        pc_of(word.address, context.target.kaslr_offset) if args.address else word.address
        for word in words
        if word.address is not None
    )
    rows = [found for word in words for found in written.find(word)]
    if all(row.pc is None for row in rows):
        hint = None if context.workspace.confinement is not None else find_hint(args.pcs[0])
        raise KcovdbgError(rows[0].errors[0], hint=hint)
    return _make_table(context, rows)


def _make_table(context: Context, rows: Sequence[WrittenLocation]) -> Table:
    return Table(
        _COLUMNS,
        rows,
        errors=lambda row: tuple(_doubts(context, row)),
        label=lambda row: row.word.text if row.word.function or row.pc is None else f"{row.pc:#x}",
        details=_details,
    )


def _read_lines(context: Context, what: str) -> list[str]:
    """Return the lines of a log.

    :param what: ``-`` for standard input, or ``file:PATH``.
    """
    confinement = context.workspace.confinement
    name = "standard input"
    if what != _STDIN:
        name, folder = confine(what.removeprefix(FILE), confinement)
        data = read_input(name, folder=folder)
    elif confinement is not None:
        raise CapabilityError("sym: standard input belongs to another program", hint="name the locations: sym func+0x15/0x40")
    else:
        limit = find_limit(TEXT_SIZE)
        data = sys.stdin.buffer.read(limit + 1)
        if len(data) > limit:
            raise over_limit(TEXT_SIZE, name)
    return decode_log(name, data).splitlines()


def _annotate(context: Context, written: WrittenLocations, lines: Sequence[str]) -> Lines:
    """Return the lines of a log with source lines for the functions in them."""
    found = [[(word, list(written.find(word))) for word in find_code_words(line)] for line in lines]
    rows = [row for line in found for _, choices in line for row in choices]
    remarks = []
    wrong = [row for row in rows if row.is_other_build]
    missing = [row for row in rows if row.pc is None]
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
        row = choices[0]
        where = " ".join(filter(None, map(place_text, row.location.frames)))
        if not where or row.is_other_build:
            continue
        start, end = word.span
        name = word.function or line[start:end].strip()
        pieces += [line[at:start], f"{name} ({where})"]
        at = end
    return "".join(pieces) + line[at:]


COMMAND: Final = Command(
    name="sym",
    summary="show the source locations of recorded PCs, or of the code in an oops",
    topic=Topic.BUFFERS,
    run=_run,
    row_types=(RowType(_COLUMNS, errors=True),),
    description=(
        "A recorded PC is the return address of the compiler's call, minus the KASLR offset; the line shown is that of the "
        "call before it. PCs are hexadecimal; decimal ones need all 20 digits or a sign.\n\n"
        "The words of an oops are taken as they are: func+0x15/0x40, func [mod], RIP: 0010:func+0x15/0x40, "
        "[<ffffffff8108cb35>]. In a call trace they are return addresses, after RIP the address of an instruction. "
        "If the size after the slash differs from this build's, the vmlinux is of another build.\n\n"
        "sym - reads a whole oops or console log from standard input, and sym file:PATH from a file, compressed or not. It is "
        "shown with source lines, those of inlined functions first, as the kernel's scripts/decode_stacktrace.sh does."
    ),
    arguments=(
        Argument(
            "pcs PLACE…", Value.FUNCTION, "PCs as recorded, words of an oops, file:PATH for a log, or - for standard input"
        ),
        Argument("--address", Value.FLAG, "take addresses in the running kernel, KASLR offset included"),
        Argument("--exact", Value.FLAG, "take func+0x15 as an instruction's address, not as a return address"),
    ),
    examples=(
        Example("sym ffffffff81234567", "one PC of a trace"),
        Example("sym vfs_read+0x15/0x40", "a line of a call trace"),
        Example("sym file:oops.txt", "annotate an oops"),
        Example("sym -", "the same: cat oops.txt | kcovdbg -s vmlinux sym -"),
    ),
    needs=frozenset({Need.NAMES}),
)
