# SPDX-License-Identifier: LGPL-2.1-or-later
"""Read lists of PCs of other tools: find the format of a file by its content, and return the
addresses in it.

:mod:`.pc_convention` then finds out what the addresses are: return addresses or calls. A file in
which fewer than half of the lines or words can be addresses of a kernel is refused; the error says
what the file is.
"""

from __future__ import annotations

import csv
import re
import struct
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from kcovdbg.abi.address import WORD_MASK
from kcovdbg.abi.record import PC, Codec, decode_words, guess_codec, make_encoding
from kcovdbg.elf.header import MAGIC as ELF_MAGIC
from kcovdbg.errors import KcovdbgError
from kcovdbg.input_file import (
    decode_utf16,
    find_other_packing,
    find_packing,
    parse_number,
    unpack_data,
)
from kcovdbg.records.pc_options import PcFormat
from kcovdbg.series import table
from kcovdbg.target.dump_file import FileKind, identify_start
from kcovdbg.target.memory_image import find_memory_image

if TYPE_CHECKING:
    from kcovdbg.records.oops_words import CodeWord


class ModuleBase(NamedTuple):
    """A module that the addresses of a file count from."""

    name: str
    """File name without directory: ``vmlinux``, ``ext4.ko``."""
    base: int | None
    """The start that the file gives it; None where the file gives none."""


class PcFile(NamedTuple):
    """The content of a file with addresses."""

    words: array[int] = array("Q")
    """The addresses in order; none where the file is a buffer."""
    buffer: bytes | None = None
    """The plain contents of a KCOV buffer, whose records need not be PCs; None for a list."""
    word_size: int = 8
    """Bytes of a word of a binary file."""
    big_endian: bool = sys.byteorder == "big"
    codec: Codec = PC
    """The format of the records of a binary file with a count."""
    skipped: int = 0
    """Lines without an address."""
    first_skipped: tuple[int, str] | None = None
    """The number of the first of them, counted from 1, and its text."""
    modules: tuple[ModuleBase, ...] = ()
    """The modules that offsets count from, for formats with offsets."""
    module_of: array[int] = array("I")
    """The index of each word's module."""
    places: tuple[CodeWord, ...] = ()
    """Functions with offsets, for a format with functions: the words are their indexes."""
    lists_all_points: bool = False
    """Whether it lists points that were not covered as well."""
    names_pcs: bool = False
    """Whether the file itself calls the numbers PCs: then all of them are records, whatever their
    values.
    """
    disorder: str = ""
    """Why its records are in no order; empty where they may be in order."""
    is_exact: bool = False
    """Whether its format says that these are addresses of executed code."""
    listed_code: array[int] | None = None
    """With :attr:`is_exact`, the addresses of all instructions that may have been executed; None
    where these are unknown.
    """
    others: int = 0
    """Number of addresses that are left out: of user space, and of callers."""


class NotATraceError(KcovdbgError):
    """A file is not a trace.

    :param path: path of the file.
    :param found: what it is: ``an lcov file``.
    :param detail: why, if the message does not say.
    """

    def __init__(
        self, path: object, found: str, *, detail: str = "", hint: str | None = None
    ) -> None:
        super().__init__(f"{path}: {found}, not a trace{detail and ': '}{detail}", hint=hint)
        self.found = found


class _Text(NamedTuple):
    """A text file to read."""

    path: object
    """The path of the file, for errors."""
    data: bytes
    is_address: Callable[[int], bool]
    """Returns whether a number can be an address of the kernel."""


_Row: TypeAlias = tuple[int, bytes, Iterable[int | None]]
"""Number and text of a line, and the numbers in it that may be addresses."""

_HALF: Final = 1 << 63
# The number of error codes, which take the highest addresses (include/linux/err.h).
_ERRORS: Final = 4095
# The smallest share of the lines or words of a list that are addresses.
_LEAST: Final = 0.5
# Characters of an offending line that are quoted.
_QUOTED: Final = 60
_HEX_HINT: Final = (
    "a list has an address per line, as in 0xffffffff81000000; --format names another format"
)
# Bytes of a file that decide its format.
_START: Final = 4096
# Bytes of lists of numbers.
_PLAIN: Final = b"0123456789abcdefABCDEFxX \t\r\n,;"
# An empty list, map, tuple or set, as JSON and Python write it.
_EMPTY_LIST: Final = re.compile(rb"\s*(\[\s*\]|\{\s*\}|\(\s*\)|set\(\))\s*")
# A number may be a constant of C.
_LINE: Final = re.compile(rb"\s*(-?(?:0[xX])?[0-9a-fA-F]{1,20})[uUlL]{0,3}\s*(?:[,;]\s*)?(?:#.*)?")
# The lines of a stack are numbered in the same way: "#1 [ffffc90000013b80] ksys_read at
# ffffffff811dc419".
_COMMENT: Final = re.compile(rb"\s*(#(?!\d{1,4}\s)|//|;|\Z)")
# Addresses among words: not the offsets and sizes of symbols.
_TOKEN: Final = re.compile(
    rb"(?<![\w+/.-])(0[xX][0-9a-fA-F]{8,16}|[0-9a-fA-F]{16}|1844[0-9]{16}|-[0-9]{9,19})[uUlL]{0,3}"
    rb"(?![\w.])"
)
# Bytes that one call into a pattern looks at: a signal is handled between two calls.
_PIECE: Final = 1 << 20
# The longest line that is matched as a whole; of a longer one the addresses count.
_LONGEST: Final = 1 << 16


def read_pc_file(
    path: object, data: bytes, wanted: PcFormat | None = None, code: tuple[int, int] = (0, 0)
) -> PcFile:
    """Read a list of PCs.

    :param path: path of the file, for errors.
    :param data: its contents.
    :param wanted: its format; None to find it by its content.
    :param code: where the kernel's code may be, in addition to the upper half: the first address,
        and the one after the last.
    :raises NotATraceError: when it is not such a list.
    :raises KcovdbgError: when it is compressed and damaged, or too large.
    """
    other = find_other_packing(data)
    if other is not None:
        hint = f"decompress it: {other.command}"
        raise NotATraceError(path, f"data compressed with {other.name}", hint=hint)
    data = unpack_data(path, data)
    packing = find_packing(data)
    if packing is not None:
        hint = f"decompress it: {packing.program} -d"
        raise NotATraceError(path, "data compressed twice", hint=hint)
    text = decode_utf16(data)

    def is_address(value: int) -> bool:
        return is_upper(value) or code[0] <= value < code[1]

    if wanted in _BINARY_FORMATS or not _is_text(text[:_START]):
        return _read_binary(path, data, wanted, code)
    return _read_text(_Text(path, text, is_address), wanted)


# The numbers that may be addresses in the upper half of an address space, by its bits.
_UPPER_HALVES: Final = {bits: range(1 << bits - 1, (1 << bits) - _ERRORS) for bits in (32, 64)}


def is_upper(value: int) -> bool:
    """Return whether a number may be an address in the upper half of an address space of 32 or 64
    bits.
    """
    return any(value in half for half in _UPPER_HALVES.values())


# Bytes of text files besides printable ASCII; ESC is in consoles' logs.
_TEXT_BYTES: Final = bytes((*b"\t\n\v\f\r\x1b", *range(0x20, 0x7F)))


def _is_text(start: bytes) -> bool:
    odd = start.translate(None, _TEXT_BYTES)
    if odd and min(odd) < 0x80:
        return False
    # A character may be cut at the end.
    end = len(start) - 3
    return not odd or start.decode("utf-8", "ignore").encode()[:end] == start[:end]


def _read_text(file: _Text, wanted: PcFormat | None) -> PcFile:
    path, data = file.path, file.data
    start = data[:_START].lstrip()
    if len(data) <= _START and _EMPTY_LIST.fullmatch(start):
        return PcFile()
    if _COMMENT.match(data) and data.strip() and all(map(_COMMENT.match, _lines(data))):
        raise NotATraceError(path, "comments", detail="no line has an address", hint=_HEX_HINT)
    if wanted is None:
        _refuse_other_texts(path, start)
    for kind, is_of_kind, read in _TEXT_READERS:
        if wanted is kind or (wanted is None and is_of_kind(start, data)):
            return read(file)
    return _read_numbers(file, wanted)


def _first_line(start: bytes, pattern: re.Pattern[bytes]) -> bool:
    """Return whether the first lines that are no comments match, mostly."""
    lines = [line for line in start.splitlines()[:8] if not _COMMENT.match(line)]
    return sum(bool(pattern.fullmatch(line)) for line in lines) > len(lines) // 2


# Beginnings of text files of other kinds.
_OTHER_TEXTS: Final = (
    (re.compile(rb"(TN:|SF:)"), "an lcov file"),
    (re.compile(rb"<!doctype html|<html|<head", re.IGNORECASE), "HTML"),
    (re.compile(rb"<\?xml[^>]*>\s*<!DOCTYPE coverage|<coverage"), "a Cobertura file"),
    (re.compile(rb"<\?xml|<!|(?!<[0-9a-fA-F]{8,16}>)<[a-zA-Z]\w*[ />]"), "XML or HTML"),
    (re.compile(rb"Module,Filename,Function,Covered"), "syzkaller's funccover"),
    (re.compile(rb"#!"), "a script"),
    (re.compile(rb"\s*-:\s*0:Source:"), "a gcov file"),
    (re.compile(rb'[{\[].*"covered_blocks"', re.DOTALL), "syzkaller's JSON of covered lines"),
    (
        re.compile(rb"(#[^\n]*\n|\s)*(r\d{1,5} = [a-z]\w*(\$\w+)?|[a-z]\w*\$\w+)\("),
        "a program of syzkaller",
    ),
    # Stacks, and functions with addresses, are read.
    (
        re.compile(rb"(# tracer: \w+|cpus=\d+)\s(?!.*([0-9a-f]{16}|\+0x[0-9a-f]))", re.DOTALL),
        "a trace of ftrace",
    ),
)
# Lines of files whose addresses are not what a run executed.
_LISTINGS: Final = (
    # By /proc/kallsyms, nm and nm -S; readelf -s; objdump -t.
    (
        re.compile(
            rb"\s*[0-9a-fA-F]{8,16}( [0-9a-fA-F]{8,16})? [a-zA-Z?] \S+(\s+\[\S+\])?\s*"
            rb"|\s*\d{1,9}: [0-9a-f]{8,16} {1,8}(0x)?[0-9a-f]{1,16} [A-Z]{4,8} .*"
            rb"|[0-9a-f]{8,16} [lgu!w CWIidDFfO]{7} \S+\t[0-9a-f]{8,16}\s.*"
        ),
        "a list of symbols",
    ),
    (
        re.compile(rb"0x[0-9a-f]{8,16}  (pc|cmp) {2,8}0x[0-9a-f]{8,16}  .*"),
        "a table of points, executed or not",
    ),
    (re.compile(rb"(0x)?[0-9a-f]{8,16}  [kr]  \S+\+0x[0-9a-f]+\s.*"), "a list of probes"),
    (
        re.compile(
            rb".*:\s+file format \S+\s*|Disassembly of section .*|[0-9a-fA-F]{8,16} <.*>:\s*|"
            rb"\s*[0-9a-fA-F]{8,16}:\t([0-9a-fA-F]{2,8} )+ *\t.*"
        ),
        "a disassembly",
    ),
    (
        re.compile(rb"\S+ \d+ -?\d+ \S+ (Live|Loading|Unloading) (0x)?[0-9a-f].*"),
        "a list of modules",
    ),
    (
        re.compile(rb"\s*(0x)?[0-9a-fA-F]{8,16}-(0x)?[0-9a-fA-F]{8,16}\s.*"),
        "a list of address ranges",
    ),
)
# A line of a stack, as GDB (which wraps lines), crash, drgn and sanitizers print it.
_STACK: Final = re.compile(
    rb"\s*#\d{1,4}\s+(0[xX][0-9a-fA-F]{8,16}\s|\[[0-9a-fA-F]{8,16}\]\s|[^\s(]+( \(|\+0x)).*"
    rb"|\s{4}\s*at [^\s:]+:\d+"
)


_ADDRESS: Final = re.compile(rb"0[xX][89a-fA-F][0-9a-fA-F]{15}(?![0-9a-zA-Z])")
_READ_ADDRESSES: Final = "--format text reads its addresses nevertheless"


def _refuse_other_texts(path: object, start: bytes) -> None:
    for pattern, found in _OTHER_TEXTS:
        if pattern.match(start):
            hint = _READ_ADDRESSES if _ADDRESS.search(start) else "it has no PCs"
            raise NotATraceError(path, found, hint=hint)
    for pattern, found in _LISTINGS:
        if _first_line(start, pattern):
            raise NotATraceError(path, found, hint=_READ_ADDRESSES)
    if _first_line(start, _STACK):
        raise NotATraceError(
            path, "a stack", hint="sym - shows its source lines; --format text reads its addresses"
        )


def _match_rows(
    data: bytes,
    pattern: re.Pattern[bytes],
    read: Callable[[re.Match[bytes]], Iterable[int | None]],
    read_other: Callable[[bytes], Iterable[int | None]] = lambda _: (),
) -> Iterator[_Row]:
    """Yield the lines of a text that are no comments.

    :param read: returns the numbers in a line that matches.
    :param read_other: returns the numbers in any other line.
    """
    for number, line in enumerate(_lines(data), 1):
        match = _match_line(pattern, line)
        if match is not None:
            yield number, line, read(match)
        elif not _COMMENT.match(line[:_LONGEST]):
            yield number, line, read_other(line)


def _read_rows(file: _Text, rows: Iterable[_Row]) -> PcFile:
    """Return the addresses in lines.

    :param rows: number and text of each line, and the numbers in it.
    :raises NotATraceError: when too few lines have an address.
    """
    words = array("Q")
    lines = skipped = 0
    first: tuple[int, str] | None = None
    count = b""
    for number, line, values in rows:
        found = [value for value in values if value is not None and file.is_address(value)]
        if found:
            words.extend(found)
        else:
            skipped += 1
            if first is None:
                first = number, line.strip()[:_QUOTED].decode("utf-8", "replace")
            if not lines:
                count = line.strip()
        lines += 1
    if count.isdigit() and parse_number(count) == len(words):
        # The number of lines that follow.
        lines -= 1
        skipped -= 1
        if not skipped:
            first = None
    if first is not None and lines - skipped < _LEAST * lines:
        detail = "line {} has no address: '{}'".format(*first)
        raise NotATraceError(file.path, "text", detail=detail, hint=_HEX_HINT)
    return PcFile(words, skipped=skipped, first_skipped=first)


def _parse(token: bytes, wanted: PcFormat | None = None) -> int | None:
    """Return the number in a word, None where it does not fit a word of the kernel."""
    sign = token.startswith(b"-")
    digits = token[sign:]
    has_prefix = digits[1:2] in (b"x", b"X")
    # Hexadecimal addresses have 8 or 16 digits.
    looks_decimal = sign or len(digits) > 16 or 8 < len(digits) < 16
    is_decimal = wanted is PcFormat.DECIMAL or (wanted is not PcFormat.HEX and looks_decimal)
    if is_decimal and digits.isdigit():
        value = parse_number(digits)
    elif has_prefix or (len(digits) <= 16 and not sign):
        value = parse_number(digits, 16)
    else:
        return None
    if value is None or value > (_HALF if sign else WORD_MASK):
        return None
    return -value & WORD_MASK if sign else value


_BLANK_MARKS: Final = bytes.maketrans(b",;", b"  ")


def _read_numbers(file: _Text, wanted: PcFormat | None) -> PcFile:
    """Read addresses in lines."""
    data = file.data
    if wanted in (None, PcFormat.HEX) and not data.translate(None, _PLAIN):
        found = _read_hexadecimal(data)
        if found is not None:
            return found
    rows = _match_rows(
        data,
        _LINE,
        lambda match: (_parse(match[1], wanted),),
        lambda line: _find_tokens(line, wanted),
    )
    read = _read_rows(file, rows)
    # Python prints sets so, and JSON numbers with counts.
    if data[:_START].lstrip()[:1] == b"{":
        return read._replace(disorder="it is a set or a map")
    return read


def _match_line(pattern: re.Pattern[bytes], line: bytes) -> re.Match[bytes] | None:
    """Return the match of a whole line, None for a very long one."""
    return pattern.fullmatch(line) if len(line) <= _LONGEST else None


# In front of a line's words: their address, as GDB and crash print it, or the address of a frame on
# the stack, as crash prints it.
_PLACE: Final = re.compile(
    rb"\s*(0[xX])?[0-9a-fA-F]{8,16}( <[^>]*>)?:\s+(?=0[xX][0-9a-fA-F]{8}|[0-9a-fA-F]{16}\b)|"
    rb"\s*#\d{1,4}\s+\[[0-9a-fA-F]{8,16}\]\s"
)


def _find_tokens(line: bytes, wanted: PcFormat | None) -> Iterator[int | None]:
    """Yield the numbers among the words of a line."""
    place = _PLACE.match(line[:_LONGEST])
    if place is not None:
        line = line[place.end() :]
    for piece in _split(line, (b" ", b"\t", b",", b";"), _LONGEST):
        for token in _TOKEN.findall(piece):
            yield _parse(token, wanted)


def _split(data: bytes, marks: Sequence[bytes], size: int = _PIECE) -> Iterator[bytes]:
    """Yield data in pieces of about so many bytes. Each piece but the last ends behind a mark.

    :param marks: single bytes that separate words or lines.
    """
    start = 0
    while len(data) - start > size:
        end = max(data.rfind(mark, start, start + size) for mark in marks) + 1
        if end <= start:
            later = (data.find(mark, start + size) for mark in marks)
            end = min((at + 1 for at in later if at >= 0), default=len(data))
        yield data[start:end]
        start = end
    yield data[start:]


def _pieces(text: bytes) -> Iterator[bytes]:
    """Yield a text in pieces of whole lines."""
    return _split(text, (b"\n",))


def _lines(text: bytes) -> Iterator[bytes]:
    """Yield the lines of a text, without a list of all of them."""
    for piece in _pieces(text):
        yield from piece.splitlines()


def _read_hexadecimal(data: bytes) -> PcFile | None:
    """Read hexadecimal numbers alone, many at a time; None where there is anything else."""
    words = array("Q")
    first = b""
    try:
        for piece in _split(data.translate(_BLANK_MARKS), (b" ", b"\n")):
            tokens = piece.split()
            first = first or b"".join(tokens[:1])
            added = array("Q", map(int, tokens, repeat(16)))
            # The first number may be the count of the others.
            if min(added[not words :], default=_HALF) < _HALF:
                return None
            words.extend(added)
    except (ValueError, OverflowError):
        return None
    if len(words) > 1 and first.isdigit() and parse_number(first) == len(words) - 1:
        del words[0]
    return None if words and words[0] < _HALF else PcFile(words)


def _find_column(start: bytes, wanted: Collection[bytes]) -> int | None:
    """Return the index of the column of a table that has one of some names; None if none has."""
    first = start.split(b"\n", 1)[0]
    names = [name.strip().strip(b'"').lower() for name in first.split(b",")]
    found = (index for index, name in enumerate(names) if name in wanted)
    return next(found, None) if len(names) > 1 else None


def _split_row(line: bytes, last: int) -> list[bytes]:
    """Return the cells of a row of CSV.

    :param last: the last one that is needed.
    """
    cells = line.split(b",", last + 1)
    if any(map(_has_open_quote, cells[:last])):
        # A cell has a comma, as names of Rust have.
        text = line.decode("utf-8", "surrogateescape")
        rows = csv.reader([text])
        cells = [cell.encode("utf-8", "surrogateescape") for cell in next(rows)]
    return [cell.strip(b'" ') for cell in cells]


def _has_open_quote(cell: bytes) -> bool:
    return cell.count(b'"') % 2 == 1


def _read_csv(file: _Text) -> PcFile:
    start = file.data[:_START].lstrip()
    column = _find_column(start, {b"pc"})
    if column is None:
        raise NotATraceError(
            file.path, "text", detail="its first line names no column PC", hint=_HEX_HINT
        )
    hits = _find_column(start, _HITS_COLUMNS)
    last_column = column if hits is None else max(column, hits)
    rows = ((number, line) for number, line in enumerate(_lines(file.data), 1) if line.strip())
    lists_all_points = b"Inline" in next(rows)[1]

    def find_values() -> Iterator[_Row]:
        last: int | None = None
        for number, line in rows:
            cells = _split_row(line[:_LONGEST], last_column)
            if hits is not None and hits < len(cells) and cells[hits].lower() in _NO_HITS:
                continue
            cell = cells[column] if column < len(cells) else b""
            value = _parse(cell) if _match_line(_LINE, cell) else None
            # Otherwise it is another frame of the same point.
            if value is None or value != last or not lists_all_points:
                yield number, line, (value,)
            last = value

    found = _read_rows(file, find_values())
    if not lists_all_points:
        return found if hits is None else found._replace(disorder=_HITS_DISORDER)
    return found._replace(lists_all_points=True, disorder="it lists points by their functions")


_JSON_PC: Final = re.compile(
    rb'"(?:(hit_count|hits|covered)"\s*:\s*(\d+|true|false|null)|pc"\s*:\s*"?(0[xX][0-9a-fA-F]+'
    rb'|-?\d+)|(pcs|cover|coverage)"\s*:\s*\[([^\[\]{}]*)\])',
    re.IGNORECASE,
)
# Values of a point that was not executed, or is of a kind that was not recorded.
_NO_HITS: Final = frozenset((b"", b"0", b"false", b"no", b"null"))
_HITS_COLUMNS: Final = frozenset((b"hits", b"hit_count", b"count", b"covered"))
_JSON_ITEM: Final = re.compile(rb"[^\s,\"]+")
_JSON_NUMBER: Final = re.compile(rb"0[xX][0-9a-fA-F]+|-?\d+")


def _is_json(start: bytes, data: bytes) -> bool:
    """Return whether a text is JSON with names: more than a list of numbers, or a map from numbers
    to numbers.
    """
    if start[:1] == b"{":
        return bool(data.translate(None, _PLAIN + b"-[]{}:\"'")) or not _TOKEN.search(data)
    return start[:1] == b"[" and _JSON_PC.search(data) is not None


_HITS_DISORDER: Final = "it lists points with their hits"


def _read_json(file: _Text) -> PcFile:
    words = array("Q")
    is_list = has_hits = False
    # Whether the hits of a point stand in front of its PC.
    is_hits_first = False
    # Whether the next point was covered, where its hits stand in front; None for a point without.
    is_covered: bool | None = None
    # Whether the last word is of the point whose hits may follow.
    is_latest_new = False
    last: int | None = None
    for match in _JSON_PC.finditer(file.data):
        if match[1] is not None:
            has_hits = True
            is_hits_first = is_hits_first or not is_list
            has_run = match[2] not in _NO_HITS
            if is_hits_first:
                is_covered = has_run
            elif is_latest_new:
                is_latest_new = False
                if not has_run:
                    words.pop()
            continue
        is_one = match[4] is None
        is_list = is_list or (not is_one and _JSON_ITEM.search(match[5]) is None)
        for token in _JSON_ITEM.finditer(file.data, *match.span(3 if is_one else 5)):
            value = None
            if _JSON_NUMBER.fullmatch(token[0]):
                value = _parse(token[0], PcFormat.DECIMAL)
            # Coverage of lines is a list of counts.
            if value is None or (match[4] not in (None, b"pcs") and not file.is_address(value)):
                continue
            is_list = True
            # Otherwise it is another frame of the same point, or was not covered.
            is_latest_new = is_covered is None or (is_covered and value != last)
            last = value
            if is_latest_new:
                words.append(value)
        is_covered = None
    if not is_list:
        raise NotATraceError(file.path, "JSON without PCs", hint=_HEX_HINT)
    disorder = _HITS_DISORDER if has_hits else ""
    return PcFile(words, names_pcs=True, disorder=disorder)


def _file_name(path: bytes) -> str:
    return re.split(rb"[/\\]", path.strip())[-1].decode("utf-8", "replace")


# A module with an offset; a number such as 1.8e+19 is none.
_OFFSET: Final = re.compile(
    rb"\s*(?!\d(?:\.\d{1,30})?e\+)([^\s+;#][^\s;#]*)\+(?:0[xX])?([0-9a-fA-F]{1,16})\s*(?:[;#].*)?"
)


def _read_offsets(file: _Text) -> PcFile:
    """Read modules with offsets; lines without one are counted."""
    names: dict[str, int] = {}
    module_of = array("I")

    def read_offset(match: re.Match[bytes]) -> Iterable[int | None]:
        module_of.append(names.setdefault(_file_name(match[1]), len(names)))
        _check_modules(file.path, names)
        return (parse_number(match[2], 16),)

    found = _read_indexes(file, _OFFSET, read_offset)
    modules = tuple(ModuleBase(name, None) for name in names)
    return found._replace(modules=modules, module_of=module_of)


# A function with an offset, as printk's %pS, /proc/PID/stack and ftrace print it. Without a size it
# may be a module with an offset.
_FUNCTION: Final = re.compile(
    rb"\s*(?:(?:=>|\[<0{0,16}>\])\s{1,8})?"
    rb"(?:[A-Za-z_.$][\w.$]*\+0x[0-9a-fA-F]{1,16}/0x[0-9a-fA-F]{1,16}|"
    rb"(?!vmlinux|bzImage|Image)[A-Za-z_.$][\w.$]*(?<!\.ko)\+0x[0-9a-fA-F]{1,16})"
    rb"(?:\s\[[\w-]{1,64}(?:\s[0-9a-f]{1,64})?\])?\s*(?:[;#].*)?"
)


def _read_functions(file: _Text) -> PcFile:
    """Read functions with offsets."""
    # Its patterns take longer to load than most lists take to read.
    from kcovdbg.records.oops_words import find_code_words

    places: dict[CodeWord, int] = {}

    def read_place(match: re.Match[bytes]) -> Iterable[int]:
        place, *_ = find_code_words(match[0].decode("utf-8", "replace"))
        # Equal functions with equal offsets are one place, wherever they stand.
        index = places.setdefault(place._replace(span=(0, 0)), len(places))
        _check_modules(file.path, places)
        return (index,)

    return _read_indexes(file, _FUNCTION, read_place)._replace(places=tuple(places))


def _read_indexes(
    file: _Text,
    pattern: re.Pattern[bytes],
    read: Callable[[re.Match[bytes]], Iterable[int | None]],
) -> PcFile:
    """Read numbers that are no addresses, from lines that match."""
    rows = _match_rows(file.data, pattern, read)
    return _read_rows(file._replace(is_address=lambda _: True), rows)


# A module's number in a block of drcov has 16 bits.
_MOST_MODULES: Final = 1 << 16


def _check_modules(path: object, modules: Collection[object]) -> None:
    if len(modules) > _MOST_MODULES:
        raise NotATraceError(path, f"a list of more than {_MOST_MODULES} modules or functions")


_DRCOV_COLUMNS: Final = re.compile(rb"Columns:([^\n]*)")
_DRCOV_BLOCK: Final = re.compile(rb"module\[ *(\d{1,10})\]: *(0[xX][0-9a-fA-F]{1,16}) *,")
# Start, size and module of a block.
_DRCOV_ENTRY: Final = struct.Struct("<IHH")


def _drcov_modules(path: object, head: bytes) -> dict[int, ModuleBase]:
    """Return the modules of a drcov file by their numbers. Its version decides which columns the
    table of modules has.
    """
    columns = _DRCOV_COLUMNS.search(head)
    heading = columns[1] if columns else b"id, base, end, entry, path"
    names = [name.strip() for name in heading.split(b",")]
    base = next((index for index, name in enumerate(names) if name in (b"base", b"start")), None)
    modules: dict[int, ModuleBase] = {}
    for line in _lines(head):
        cells = [cell.strip() for cell in line.split(b",", len(names) - 1)]
        if len(cells) != len(names) or not cells[0].isdigit():
            continue
        number = parse_number(cells[0])
        if number is None:
            continue
        start = None
        if base is not None and _JSON_NUMBER.fullmatch(cells[base]):
            start = parse_number(cells[base], 0)
        modules[number] = ModuleBase(_file_name(cells[-1]), start)
        _check_modules(path, modules)
    return modules


def _read_drcov(path: object, data: bytes) -> PcFile:
    head, mark, rest = data.partition(b"BB Table:")
    title, _, body = rest.partition(b"\n")
    modules = _drcov_modules(path, head)
    blocks = _drcov_text(body) if body.startswith(b"module id") else _drcov_entries(title, body)
    order = {number: index for index, number in enumerate(modules)}
    offsets, module_of = array("Q"), array("I")
    skipped = 0
    for number, offset in blocks:
        if number in order:
            offsets.append(offset)
            module_of.append(order[number])
        else:
            skipped += 1
    if not mark or (skipped and not modules):
        raise NotATraceError(
            path, "a drcov file without a table of modules or blocks", hint="write it again"
        )
    return PcFile(
        offsets,
        skipped=skipped,
        modules=tuple(modules.values()),
        module_of=module_of,
        disorder="drcov lists each block once",
    )


def _drcov_text(body: bytes) -> Iterator[tuple[int, int]]:
    """Yield the module and the offset of each block of a table with a line for each."""
    for line in _lines(body):
        match = _DRCOV_BLOCK.match(line.lstrip())
        if match is not None:
            yield int(match[1]), int(match[2], 16)


def _drcov_entries(title: bytes, body: bytes) -> Iterator[tuple[int, int]]:
    """Yield the module and the offset of each block of a binary table.

    :param title: what follows the table's name in its line: the number of blocks.
    """
    size = b"".join(title.split()[:1])
    claimed = parse_number(size) if size.isdigit() else 0
    entry = _DRCOV_ENTRY.size
    # A number with too many digits is larger than the number of entries.
    count = len(body) // entry if claimed is None else min(claimed, len(body) // entry)
    for start, _, module in _DRCOV_ENTRY.iter_unpack(memoryview(body)[: count * entry]):
        yield module, start


# A line of kAFL: from, to and count.
_EDGE: Final = re.compile(
    rb"\s*((?:0[xX])?[0-9a-fA-F]{8,16})(?:\s*[,;]\s*|\s+)((?:0[xX])?[0-9a-fA-F]{8,16})"
    rb"(?:\s*[,;]\s*|\s+)[0-9]{1,20}\s*"
)
_EDGE_HEADING: Final = re.compile(
    rb"\"?(from|src|source)\"?[,;\s]+\"?(to|dst|dest|target)\"?([,;\s][^\n]*)?\r?(\n|\Z)",
    re.IGNORECASE,
)


def _is_edge_list(start: bytes, _data: bytes) -> bool:
    heading = _EDGE_HEADING.match(start)
    rest = start if heading is None else start[heading.end() :]
    return _first_line(rest, _EDGE) or (heading is not None and not rest.strip())


def _read_edges(file: _Text) -> PcFile:
    """Read the addresses of edges, each once."""
    rows = _match_rows(
        file.data, _EDGE, lambda match: [_parse(end, PcFormat.HEX) for end in match.groups()]
    )
    if _EDGE_HEADING.match(file.data):
        rows = (row for row in rows if row[0] > 1)
    found = _read_rows(file, rows)
    return found._replace(
        words=array("Q", sorted(set(found.words))), disorder="it lists edges, each with its count"
    )


def _make_exact(
    file: _Text, what: str, addresses: Iterable[int], others: int = 0, disorder: str = ""
) -> PcFile:
    """Return addresses of executed code as a file.

    :param addresses: numbers; those that cannot be kernel addresses are left out.
    :param others: how many were left out before.
    :param disorder: why the addresses are in no order.
    :raises NotATraceError: when there are no addresses of a kernel.
    """
    every = array("Q", addresses)
    words = array("Q", filter(file.is_address, every))
    if words and max(words) >= _HALF:
        # Firmware is below 4 GiB.
        words = array("Q", filter(_HALF.__le__, words))
    others += len(every) - len(words)
    if not words:
        detail = "it has no address"
        if others:
            detail = f"none of its {others} addresses can be of a kernel"
        raise NotATraceError(file.path, what, detail=detail)
    return PcFile(words, is_exact=True, others=others, disorder=disorder)


# The address of a translation block follows the base of its segment; in QEMU before 2.11 the number
# of the CPU.
_QEMU_BLOCK: Final = re.compile(
    rb"^Trace (?:(\d{1,5}): )?0x[0-9a-f]{1,16} \[(?:[0-9a-f]{1,16}/"
    rb"|\d{1,5}: )?([0-9a-f]{1,16})[/\]]|"
    rb"^(?:Stopped"
    rb"|Abandoned) execution of TB chain before "
    rb"0x[0-9a-f]{1,16} \[(?:\d{1,5}: )?([0-9a-f]{1,16})\]",
    re.MULTILINE,
)
# A block that QEMU logged but did not execute is among so many last ones: other CPUs may have
# logged blocks meanwhile.
_RECENT: Final = 64


def _read_qemu_blocks(file: _Text) -> PcFile:
    """Read QEMU's log of executed translation blocks: where each begins."""
    words = array("Q")
    cpus = set()
    for match in chain.from_iterable(map(_QEMU_BLOCK.finditer, _pieces(file.data))):
        address = int(match[2] or match[3], 16)
        if match[2] is None:
            # It was logged, and then an interrupt came first.
            _remove_last(words, address)
            continue
        words.append(address)
        if file.is_address(address):
            cpus.add(match[1])
    disorder = "several CPUs wrote it" if len(cpus) > 1 else ""
    return _make_exact(file, "QEMU's log of blocks", words, disorder=disorder)


def _remove_last(words: array[int], address: int) -> None:
    """Remove the last of the recent records of an address, if there is one."""
    for index in range(len(words) - 1, max(len(words) - _RECENT, 0) - 1, -1):
        if words[index] == address:
            del words[index]
            return


_QEMU_TITLE: Final = re.compile(
    rb"^-{8,32}\r?\nIN: ?[^\n]{0,400}\n(?:[^0\n][^\n]{0,400}\n){0,2}0x[0-9a-f]{8,16}: ",
    re.MULTILINE,
)
_QEMU_INSTRUCTION: Final = re.compile(rb"^IN:|^0x([0-9a-f]{8,16}): ", re.MULTILINE)


def _read_qemu_instructions(file: _Text) -> PcFile:
    """Read QEMU's log of the instructions that it translated, in blocks.

    It translates a block right before it executes it first. An exception may keep it from executing
    more than the first instruction.
    """
    firsts: dict[int, None] = {}
    every: set[int] = set()
    others = 0
    is_first = False
    for match in chain.from_iterable(map(_QEMU_INSTRUCTION.finditer, _pieces(file.data))):
        if match[1] is None:
            is_first = True
            continue
        address = int(match[1], 16)
        if not file.is_address(address):
            others += 1
        else:
            every.add(address)
            if is_first:
                firsts[address] = None
        is_first = False
    found = _make_exact(
        file, "QEMU's log of instructions", firsts, others, "it lists code when it is translated"
    )
    return found._replace(listed_code=array("Q", sorted(every)))


# Command, PID, CPU and time of a sample; each of its addresses has a symbol, or a file in
# parentheses.
_PERF_HEAD: Final = re.compile(
    rb"[ \t]{0,16}\S[^\n]{0,31}?[ \t]{1,16}-?\d{1,10}(?:/-?\d{1,10})?[ \t]{1,16}"
    rb"(?:\[\d{1,5}\][ \t]{1,16})?\d{1,12}\.\d{1,9}:[ \t]"
)
_PERF_ADDRESS: Final = re.compile(rb"(?:(?<=[ \t])|^)([0-9a-f]{8,16})(?=[ \t]|$)")
_PERF_LINE: Final = re.compile(rb"[ \t]{0,32}[0-9a-f]{8,16} [^\n]{1,400} \(\S{1,400}\)(?:[ \t].*)?")


def _is_perf_script(start: bytes, _data: bytes) -> bool:
    lines = [line for line in start.splitlines()[:16] if line.strip() and not _COMMENT.match(line)]
    if not any(map(_PERF_ADDRESS.search, lines)):
        return False
    if any(map(_PERF_HEAD.match, lines)):
        return True
    return sum(map(bool, map(_PERF_LINE.fullmatch, lines))) > len(lines) // 2


def _read_perf(file: _Text) -> PcFile:
    """Read samples: the address of each, and the destination of a branch. Callers are left out,
    since their addresses are return addresses.
    """
    words: list[int] = []
    callers = 0
    has_heads = _PERF_HEAD.match(file.data.lstrip()[: _QUOTED * 4]) is not None
    has_chains = has_heads or b"\n\n" in file.data[:_START]
    is_first = True
    for line in _lines(file.data):
        if not line.strip() or _COMMENT.match(line[:_LONGEST]):
            is_first = True
            continue
        text = line[:_LONGEST]
        head = _PERF_HEAD.match(line)
        if head is not None:
            text = text[head.end() :]
            is_first = True
        found = [int(match[1], 16) for match in _PERF_ADDRESS.finditer(text)]
        if not found:
            continue
        wanted = 0
        if b" => " in text:
            wanted = 2
        elif is_first or not has_chains:
            wanted = 1
        is_first = False
        words += found[:wanted]
        callers += len(found[wanted:])
    return _make_exact(file, "perf's samples", words, callers, "perf takes samples")


_GDB_STOP: Final = re.compile(
    rb"(?:\s*=>\s{1,8}|\d{1,9}\t\s{0,8})0x([0-9a-f]{8,16})(?: <[^>\n]{1,400}>)?:\s.*|"
    rb"(?:Thread \d{1,5} [^\n]{0,80}hit )?(?:Temporary breakpoint|Hardware assisted breakpoint"
    rb"|Breakpoint) "
    rb"\d{1,6}(?:\.\d{1,6})?, "
    rb"0x([0-9a-f]{8,16}) in .*"
)


def _read_gdb(file: _Text) -> PcFile:
    """Read where GDB stopped."""
    lines = (_GDB_STOP.fullmatch(line[:_LONGEST]) for line in _lines(file.data))
    stops = (int(match[1] or match[2], 16) for match in lines if match is not None)
    return _make_exact(file, "GDB's log", stops)


_TEXT_READERS: Final[
    tuple[tuple[PcFormat, Callable[[bytes, bytes], bool], Callable[[_Text], PcFile]], ...]
] = (
    (
        PcFormat.DRCOV,
        lambda start, _: start.startswith(b"DRCOV VERSION"),
        lambda file: _read_drcov(file.path, file.data),
    ),
    (PcFormat.CSV, lambda start, _: _find_column(start, {b"pc"}) is not None, _read_csv),
    (PcFormat.JSON, _is_json, _read_json),
    (PcFormat.QEMU_EXEC, lambda start, _: _QEMU_BLOCK.search(start) is not None, _read_qemu_blocks),
    (
        PcFormat.QEMU_ASM,
        lambda start, _: _QEMU_TITLE.search(start) is not None,
        _read_qemu_instructions,
    ),
    (
        PcFormat.GDB,
        lambda start, _: any(map(_GDB_STOP.fullmatch, start.splitlines()[:32])),
        _read_gdb,
    ),
    (PcFormat.PERF, _is_perf_script, _read_perf),
    (PcFormat.EDGES, _is_edge_list, _read_edges),
    (PcFormat.FUNCTIONS, lambda start, _: _first_line(start, _FUNCTION), _read_functions),
    (PcFormat.MODOFF, lambda start, _: _first_line(start, _OFFSET), _read_offsets),
)
"""The formats of text, except for numbers in lines. Each has a function that recognizes it by the
start of a file or by all of it, and one that reads it.
"""


_BINARY_FORMATS: Final = (PcFormat.BINARY, PcFormat.WORDS, PcFormat.SANCOV)
# Words of the largest buffer.
_LARGEST: Final = 1 << 31
# Words that decide.
_SAMPLE: Final = 8192


def _share(words: Sequence[int], word_size: int, code: tuple[int, int]) -> float:
    """Return the share of words that are addresses of one kernel: its addresses have most of their
    upper bits in common.
    """
    sample = words[:: len(words) // _SAMPLE + 1]
    inside = sum(code[0] <= word < code[1] for word in sample)
    upper = _UPPER_HALVES[8 * word_size]
    low_bits = 32 if word_size == 8 else 24
    tops = Counter(word >> low_bits for word in sample if word in upper)
    for top in list(tops):
        # 0xff: x86-64, arm64 and riscv64. 0xc000: powerpc64. 0x9000: loongarch64.
        if word_size == 8 and top >> 24 != 0xFF and top >> 16 not in (0xC000, 0x9000):
            del tops[top]
    most = max((count + tops[top + 1] for top, count in tops.items()), default=0)
    return max(inside, most) / len(sample)


def _try_words(
    data: bytes, word_size: int, big_endian: bool, code: tuple[int, int]
) -> tuple[float, PcFile]:
    """Read binary words with one size and byte order. Return the share of words that are addresses,
    and the file read in this way.
    """
    encoding = make_encoding(PC, word_size, big_endian)
    words = decode_words(data, encoding)
    first = words[0] if words else 0
    found = PcFile(buffer=data, word_size=word_size, big_endian=big_endian)
    if not words:
        return 0.0, found
    # Half of all 32-bit numbers are in the upper half.
    is_enough = len(words) >= 4 or word_size == 8
    if _share(words[:1], word_size, code):
        if not is_enough:
            return 0.0, found
        return _share(words, word_size, code), found._replace(buffer=None, words=words)
    records = words[1:]
    if word_size == 8 and first <= _LARGEST:
        for low, high in ((_HALF, WORD_MASK), code):
            if not high:
                continue
            codec = guess_codec(records[:64], first, low, high, table.guessable_codecs())
            if codec is not None and codec != PC:
                return 1.0, found._replace(codec=codec)
    if first > len(records) and not (is_enough and len(records) > 1):
        return 0.0, found
    if not first and not any(records[:_SAMPLE]):
        return 1.0, found
    return _share(records[:first] if first else records, word_size, code), found


def _read_binary(
    path: object, data: bytes, wanted: PcFormat | None, code: tuple[int, int]
) -> PcFile:
    if wanted in (None, PcFormat.SANCOV):
        found = _read_sancov(data)
        if found is not None:
            return found
    if wanted is PcFormat.SANCOV:
        raise NotATraceError(path, "a file without sancov's magic number")
    if data.startswith(b"DRCOV VERSION") and wanted in (None, PcFormat.DRCOV):
        return _read_drcov(path, data)
    if wanted is None:
        _refuse_other_binaries(path, data)
    if wanted not in (None, PcFormat.BINARY, PcFormat.WORDS):
        raise NotATraceError(path, "binary data", detail=f"it is not {wanted.value}")
    is_big = sys.byteorder == "big"
    tried = [_try_words(data, size, big, code) for size in (8, 4) for big in (is_big, not is_big)]
    share, best = max(tried, key=lambda one: (one[0], wanted is None and one[1].buffer is not None))
    if wanted is PcFormat.BINARY:
        return best._replace(buffer=data, words=array("Q"))
    if wanted is PcFormat.WORDS:
        words = decode_words(data, make_encoding(PC, best.word_size, best.big_endian))
        return best._replace(buffer=None, words=words)
    if share < _LEAST:
        what = "binary data"
        if len(data) < 8:
            what = f"{len(data)} bytes of binary data"
        raise NotATraceError(
            path,
            what,
            detail="fewer than half of its words can be addresses of a kernel",
            hint="--format binary, or words where there is no count, reads it nevertheless",
        )
    return best


_ORDERS: Final[tuple[Literal["little", "big"], ...]] = ("little", "big")
_SANCOV: Final = {0xC0BFFFFFFFFFFF64: 8, 0xC0BFFFFFFFFFFF32: 4}


def _read_sancov(data: bytes) -> PcFile | None:
    """Return the words of a sanitizer's file; None for a file without its magic number."""
    for order in _ORDERS:
        word_size = _SANCOV.get(int.from_bytes(data[:8], order))
        if word_size is not None:
            is_big = order == "big"
            words = decode_words(data[8:], make_encoding(PC, word_size, is_big))
            found = PcFile(words, word_size=word_size, big_endian=is_big)
            return found._replace(disorder="a sanitizer's file is a set")
    return None


_OTHER_BINARIES: Final = (
    (b"KCOVSYM\0", "a location table of kcovdbg", "give it as --symbol-table"),
    (b"BZh", "compressed with bzip2", "decompress it first: bzip2 -d"),
    (b"\x04\x22\x4d\x18", "compressed with lz4", "decompress it first: lz4 -d"),
    (b"\x1f\x9d", "compressed with compress", "decompress it first: uncompress"),
    (b"\x89LZO", "compressed with lzop", "decompress it first: lzop -d"),
    (b"7z\xbc\xaf", "a 7z archive", "unpack it first"),
    (b"PK\x03\x04", "a ZIP archive", "unpack it first"),
    (
        b"\xdb\xad\x0b\0",
        "syzkaller's corpus, programs without coverage",
        "its manager serves PCs at /rawcover",
    ),
    (b"PAR1", "a Parquet file", None),
    (b"SQLite format 3", "an SQLite database", None),
    (b"\x93NUMPY", "an array of NumPy", "write its words alone: array.tofile(FILE)"),
    (b"PERFILE2", "perf's data", None),
    (b"\x89PNG", "an image in PNG", None),
    (b"\xd4\xc3\xb2\xa1", "packets of a network", None),
    (b"\xa1\xb2\xc3\xd4", "packets of a network", None),
    (b"\x0a\x0d\x0d\x0a", "packets of a network", None),
    (b"%PDF", "a PDF document", None),
    (b"\x81rforpl\xff", "a profile of LLVM", None),
    (b"\xfflprofi\x81", "a profile of LLVM", None),
    (b"\xfflprofr\x81", "a profile of LLVM", None),
    (b"oncg", "gcov's notes", None),
    (b"adcg", "gcov's data", None),
)


def _refuse_other_binaries(path: object, data: bytes) -> None:
    kind = identify_start(data[:18])
    if kind.is_dump:
        raise NotATraceError(path, "a dump", hint=f"open it: kcovdbg -c {path} -s VMLINUX")
    if kind is FileKind.ELF or data.startswith(ELF_MAGIC):
        raise NotATraceError(
            path, "an ELF program or kernel image", hint=f"open it: kcovdbg -s {path}"
        )
    image = find_memory_image(data)
    if image is not None:
        raise NotATraceError(path, image.noun, hint=image.hint)
    for magic, found, hint in _OTHER_BINARIES:
        if data.startswith(magic):
            raise NotATraceError(path, found, hint=hint)
    if data[0x202:0x206] == b"HdrS":
        raise NotATraceError(
            path, "a boot image (bzImage)", hint="its vmlinux is in the build directory"
        )
    if data[257:262] == b"ustar":
        raise NotATraceError(path, "a tar archive", hint="unpack it first")
