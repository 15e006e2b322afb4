# SPDX-License-Identifier: LGPL-2.1-or-later
"""Formats of coverage points for other tools."""

from __future__ import annotations

import csv
import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from io import StringIO
from itertools import accumulate, chain, compress, count, islice, repeat
from operator import itemgetter, ne
from posixpath import normpath
from typing import NamedTuple

from kcovdbg.console.text import escape
from kcovdbg.model.location import FrameColumns
from kcovdbg.records.native_loops import flatten_chains
from kcovdbg.symbols.table_rows import gather


class ModulePoint(NamedTuple):
    """A coverage point in the code of the image or of a module."""

    call: int
    """The address of the call of the callback."""
    module: str | None
    """Name of the module with the point; None for the kernel's image, or if unknown."""
    offset: int | None
    """Distance of the call from the start of the image's or the module's code; None if unknown."""


def module_file(module: str | None) -> str:
    """Return the file name of a module, or for None of the kernel's image."""
    return "vmlinux" if module is None else f"{escape(module)}.ko"


class PointColumns(NamedTuple):
    """Coverage points in columns, because a kernel has a million points."""

    calls: Sequence[int]
    """Addresses of the calls of callbacks."""
    records: Sequence[int]
    """Number of records of each point."""
    chains: array[int]
    """Words of chains of ``frames``."""
    frames: FrameColumns
    symbols: Sequence[str | None]
    """The name that llvm-addr2line shows for the code; None if only frames have a name."""


def _frame_rows(points: PointColumns) -> Iterator[tuple[int, bool, str, str, int]]:
    """Iterate over the frames of points in syzkaller's form, innermost first.

    syzkaller leaves out frames without a function, a file or a line. It calls the outermost
    function by the symbol of the code.

    :return: the index of the point, whether no other frame of it follows, function, file and line.
    """
    frames, text = points.frames, points.frames.strings.__getitem__
    lengths, numbers = flatten_chains(frames, points.chains)
    functions = list(map(text, gather(numbers, frames.function, 0)))
    for end, length, symbol in zip(accumulate(lengths), lengths, points.symbols, strict=True):
        if symbol and length:
            functions[end - 1] = symbol
    owners = array("I", chain.from_iterable(map(repeat, count(), lengths)))
    files = list(map(text, gather(numbers, frames.file, 0)))
    lines = gather(numbers, frames.line, 0)
    complete = list(map(all, zip(functions, files, lines, strict=True)))
    owners = array("I", compress(owners, complete))
    is_last = map(ne, owners, chain(islice(owners, 1, None), (-1,)))
    columns = (compress(column, complete) for column in (functions, files, lines))
    return zip(owners, is_last, *columns, strict=True)


def _syzkaller_path(file: str) -> str:
    """Return a path without ``./``."""
    return escape(normpath(file).lstrip("/"))


def modoff_lines(points: Iterable[ModulePoint]) -> Iterator[str]:
    """Iterate over ``vmlinux+1a2b3c`` and ``name.ko+40``; points without a known offset are left
    out.
    """
    for point in points:
        if point.offset is not None:
            yield f"{module_file(point.module)}+{point.offset:x}"


def drcov_lines(
    points: Iterable[ModulePoint], call_length: int, end_of: Callable[[str | None], int | None]
) -> Iterator[str]:
    """Iterate over the log's lines, without points whose offset is unknown.

    :param points: distinct points.
    :param call_length: length of the call of a callback in bytes.
    :param end_of: returns the end of the code of a module, or for None of the image; None if
        unknown.
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


def jsonl_lines(groups: Iterable[PointColumns]) -> Iterator[str]:
    """Yield the objects; ``hit_count``, which counts programs there, counts records."""
    # Names recur, and quoting one takes longer than all else here.
    quote = cache(lambda text: json.dumps(escape(text)))
    quote_path = cache(lambda file: json.dumps(_syzkaller_path(file)))
    for points in groups:
        calls, records = points.calls, points.records
        for point, is_last, function, file, line in _frame_rows(points):
            inline = "false" if is_last else "true"
            yield (
                f'{{"file_path":{quote_path(file)},"func_name":{quote(function)},'
                f'"sl":{line},"sc":0,"el":{line},"ec":-1,'
                f'"hit_count":{records[point]},"inline":{inline},"pc":{calls[point]}}}'
            )


def rawcoverfiles_lines(
    groups: Iterable[PointColumns], modules: Mapping[int, ModulePoint]
) -> Iterator[str]:
    """Yield the lines of the table.

    :param modules: points in modules, by the addresses of their calls.
    """
    yield csv_line(("PC", "Module", "Offset", "Filename", "Inline", "StartLine", "EndLine"))
    quote_path = cache(lambda file: csv_line((_syzkaller_path(file),)))
    rows: list[tuple[int, bool, str, int]] = []
    for points in groups:
        for number, is_last, _, file, line in _frame_rows(points):
            rows.append((points.calls[number], is_last, file, line))
    # A function comes before the functions that are inlined into it.
    rows.reverse()
    rows.sort(key=itemgetter(0))
    for call, is_last, file, line in rows:
        point = modules.get(call)
        start = f"{call:#x},,{call:#x}"
        if point is not None:
            offset = "" if point.offset is None else hex(point.offset)
            start = csv_line((hex(call), escape(point.module or ""), offset))
        inline = "false" if is_last else "true"
        yield f"{start},{quote_path(file)},{inline},{line},{line}"


def csv_line(values: Iterable[object]) -> str:
    """Return one line of CSV."""
    stream = StringIO()
    csv.writer(stream, lineterminator="").writerow(values)
    return stream.getvalue()


def funccover_lines(functions: Iterable[tuple[str, str, int, int]]) -> Iterator[str]:
    """Iterate over the table's lines, by file and function; the kernel image's module name is
    empty.

    :param functions: file, name, points that were executed, and all of them.
    """
    yield csv_line(("Module", "Filename", "Function", "Covered PCs", "Total PCs"))
    for file, name, covered, total in sorted(functions):
        yield csv_line(("", escape(file), escape(name), covered, total))
