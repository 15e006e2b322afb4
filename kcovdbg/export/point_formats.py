# SPDX-License-Identifier: LGPL-2.1-or-later
"""Formats of coverage points for other tools."""

from __future__ import annotations

import csv
import html
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from io import StringIO
from itertools import groupby
from posixpath import dirname, normpath
from typing import Final, NamedTuple, TypeVar

from kcovdbg.console.text import escape
from kcovdbg.model.location import Frame
from kcovdbg.records.coverage import FileCoverage, FunctionCoverage, PointCoverage


def hexadecimal_lines(addresses: Iterable[int]) -> Iterator[str]:
    """Iterate over ``0xffffffff81000000``, one after another."""
    return map(hex, addresses)


def module_file(module: str | None) -> str:
    """Return the file name of a module; of the kernel's image for None."""
    return "vmlinux" if module is None else f"{escape(module)}.ko"


_NAME: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


def lcov_lines(name: str, coverage: Iterable[FileCoverage], path_of: Callable[[str], str]) -> Iterator[str]:
    """Iterate over the tracefile's lines.

    :param name: of the test; genhtml takes letters, digits and underscores, anything else becomes an underscore.
    :param coverage: ordered by file and line.
    :param path_of: from a file's name in debug info to where its text is.
    """
    test = "".join(character if character in _NAME else "_" for character in name)
    for file in coverage:
        yield f"TN:{test}"
        yield f"SF:{escape(path_of(file.file))}"
        for line, hits in zip(file.lines, file.hits, strict=True):
            yield f"DA:{line},{hits}"
        yield f"LF:{len(file.lines)}"
        yield f"LH:{file.covered_lines}"
        yield "end_of_record"


_Text = TypeVar("_Text", str, tuple[str, str])


class _FrameTexts(dict[tuple[str | None, Frame], _Text | None]):
    """Frames of points in syzkaller's form, each written once.

    It leaves out what has no function, file or line, writes paths without ``./``, and calls the function that the code was
    compiled into by its symbol, as llvm-addr2line does.

    :param write: returns the text of a function, a file and a line.
    """

    def __init__(self, write: Callable[[str, str, int], _Text]) -> None:
        super().__init__()
        self._write: Callable[[str, str, int], _Text] = write

    def __missing__(self, key: tuple[str | None, Frame]) -> _Text | None:
        symbol, frame = key
        function = symbol or frame.function
        text = None
        if function and frame.file and frame.line:
            text = self._write(function, normpath(frame.file).lstrip("/"), frame.line)
        self[key] = text
        return text

    def of(self, point: PointCoverage) -> list[_Text]:
        """Return the texts of a point's frames, innermost first."""
        texts = [self[None, frame] for frame in point.frames]
        if point.symbol and texts:
            texts[-1] = self[point.symbol, point.frames[-1]]
        return [text for text in texts if text is not None]


_NO_BRANCHES = 'branch-rate="0" complexity="0"'


class SourcePlace(NamedTuple):
    """Where the text of a source file is."""

    root: str | None
    """The directory that the name is relative to; None for an absolute name, or where the text is not found."""
    name: str


def cobertura_lines(coverage: Iterable[FileCoverage], place_of: Callable[[str], SourcePlace]) -> Iterator[str]:
    """Iterate over the lines of the document.

    :param coverage: ordered by line within a file.
    :param place_of: from a file's name in debug info to where its text is.
    """
    placed = [(place_of(file.file), file) for file in coverage]
    files = sorted(((place.name, file) for place, file in placed), key=lambda item: (dirname(item[0]), item[0]))
    valid, covered = _sums(file for _, file in files)
    yield '<?xml version="1.0" encoding="UTF-8"?>'
    yield '<!DOCTYPE coverage SYSTEM "http://cobertura.sourceforge.net/xml/coverage-04.dtd">'
    # KCOV records no time: the same trace gives the same file.
    yield (
        f'<coverage line-rate="{_rate(covered, valid)}" branch-rate="0" lines-covered="{covered}" lines-valid="{valid}" '
        'branches-covered="0" branches-valid="0" complexity="0" version="0" timestamp="0">'
    )
    yield " <sources>"
    for root in dict.fromkeys(place.root for place, _ in placed):
        if root is not None:
            yield f"  <source>{html.escape(escape(root))}</source>"
    yield " </sources>"
    yield " <packages>"
    for directory, members in groupby(files, key=lambda item: dirname(item[0])):
        yield from _package(directory, list(members))
    yield " </packages>"
    yield "</coverage>"


def _package(directory: str, files: Sequence[tuple[str, FileCoverage]]) -> Iterator[str]:
    rate = _rate(*reversed(_sums(file for _, file in files)))
    yield f'  <package name={_quote(directory)} line-rate="{rate}" {_NO_BRANCHES}>'
    yield "   <classes>"
    for name, file in files:
        rate = _rate(file.covered_lines, len(file.lines))
        yield f'    <class name={_quote(name)} filename={_quote(name)} line-rate="{rate}" {_NO_BRANCHES}>'
        yield "     <methods/>"
        yield "     <lines>"
        for line, hits in zip(file.lines, file.hits, strict=True):
            yield f'      <line number="{line}" hits="{hits}"/>'
        yield "     </lines>"
        yield "    </class>"
    yield "   </classes>"
    yield "  </package>"


def _quote(text: str) -> str:
    return f'"{html.escape(escape(text))}"'


def _sums(files: Iterable[FileCoverage]) -> tuple[int, int]:
    """Return the number of lines with points, and of those covered."""
    valid = covered = 0
    for file in files:
        valid += len(file.lines)
        covered += file.covered_lines
    return valid, covered


def _rate(covered: int, valid: int) -> str:
    return f"{covered / valid:.4g}" if valid else "0"


def modoff_lines(points: Iterable[PointCoverage]) -> Iterator[str]:
    """Iterate over ``vmlinux+1a2b3c`` and ``name.ko+40``; points without a known offset are left out."""
    for point in points:
        if point.offset is not None:
            yield f"{module_file(point.module)}+{point.offset:x}"


def drcov_lines(points: Iterable[PointCoverage], call_length: int, end_of: Callable[[str | None], int | None]) -> Iterator[str]:
    """Iterate over the log's lines; points without a known offset are left out.

    :param points: each once.
    :param call_length: bytes of a call of a callback.
    :param end_of: from the name of a module, None for the image, to the end of its code; None where that is unknown.
    """
    numbers: dict[str | None, int] = {}
    starts: list[int] = []
    ends: list[int] = []
    blocks: list[tuple[int, int]] = []
    for point in points:
        if point.offset is None:
            continue
        number = numbers.setdefault(point.module, len(numbers))
        if number == len(starts):
            starts.append(point.call - point.offset)
            ends.append(end_of(point.module) or 0)
        ends[number] = max(ends[number], point.call + call_length)
        blocks.append((number, point.offset))
    yield "DRCOV VERSION: 2"
    yield "DRCOV FLAVOR: kcov"
    yield f"Module Table: version 2, count {len(numbers)}"
    yield "Columns: id, base, end, entry, path"
    for name, number in numbers.items():
        # Readers split at commas.
        file = module_file(name).replace(",", "\\x2c")
        yield f"{number:3}, 0x{starts[number]:016x}, 0x{ends[number]:016x}, 0x{0:016x}, {file}"
    yield f"BB Table: {len(blocks)} bbs"
    yield "module id, start, size:"
    for number, offset in blocks:
        yield f"module[{number:3}]: 0x{offset:016x}, {call_length:3}"


def jsonl_lines(points: Iterable[PointCoverage]) -> Iterator[str]:
    """Yield the objects; ``hit_count``, which counts programs there, counts records."""
    # Names recur, and quoting one takes longer than all else here.
    quote = cache(lambda text: json.dumps(escape(text)))

    def write(function: str, file: str, line: int) -> str:
        return f'{{"file_path":{quote(file)},"func_name":{quote(function)},"sl":{line},"sc":0,"el":{line},"ec":-1'

    texts_of = _FrameTexts(write).of
    for point in points:
        texts = texts_of(point)
        if texts:
            middle, end = f',"hit_count":{point.hits},"inline":', f',"pc":{point.call}}}'
            for text in texts[:-1]:
                yield f"{text}{middle}true{end}"
            yield f"{texts[-1]}{middle}false{end}"


RAWCOVERFILES_HEADER: Final = ("PC", "Module", "Offset", "Filename", "Inline", "StartLine", "EndLine")


def rawcoverfiles_lines(points: Iterable[PointCoverage]) -> Iterator[str]:
    """Yield the lines of the table."""
    yield csv_line(RAWCOVERFILES_HEADER)
    texts_of = _FrameTexts(lambda _function, file, line: (csv_line((escape(file),)), f"{line},{line}")).of
    for point in sorted(points, key=lambda point: point.call):
        offset = point.call if point.module is None else point.offset
        start = csv_line((hex(point.call), escape(point.module or ""), "" if offset is None else hex(offset)))
        for number, (file, lines) in enumerate(reversed(texts_of(point))):
            yield f"{start},{file},{'true' if number else 'false'},{lines}"


def csv_line(values: Iterable[object]) -> str:
    """Return one line of CSV."""
    stream = StringIO()
    csv.writer(stream, lineterminator="").writerow(values)
    return stream.getvalue()


FUNCCOVER_HEADER: Final = ("Module", "Filename", "Function", "Covered PCs", "Total PCs")


def funccover_lines(functions: Iterable[FunctionCoverage]) -> Iterator[str]:
    """Iterate over the table's lines, by file and function; the kernel image's module name is empty."""
    yield csv_line(FUNCCOVER_HEADER)
    for function in sorted(functions):
        yield csv_line(("", escape(function.file), escape(function.function), function.covered, function.points))
