# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every reader of an input costs in proportion to it: time and memory on one input, and on one
twice as large.
"""

from __future__ import annotations

import itertools
import json
import os
import struct
import zlib
from array import array
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import zstandard

from kcovdbg.compiled_module import zeros
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.symbol_table import demangle
from kcovdbg.errors import KcovdbgError
from kcovdbg.farm.syzkaller_workdir import find_manager, find_program
from kcovdbg.input_file import FrameReader, parse_json
from kcovdbg.model.location import Frame
from kcovdbg.monitor.samples import read_samples
from kcovdbg.records.crash_report import summarize_report
from kcovdbg.records.log_text import decode_log, is_log, split_log, untangle
from kcovdbg.records.native_loops import Numbering
from kcovdbg.records.oops_words import find_code_words, parse_words
from kcovdbg.records.pc_file import read_pc_file
from kcovdbg.records.pc_options import PcFormat
from kcovdbg.records.side_file import read_header
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.dwarf_reader import NO_UNIT, SECTIONS, DwarfReader
from kcovdbg.symbols.location_table import FunctionSymbol, LocationTable, TextRange
from kcovdbg.symbols.table_rows import Locations
from kcovdbg.target.dump_file import unpack_dump
from tests.support import input_cost
from tests.support.input_cost import check_cost
from tests.support.table_writer import TableWriter

_LISTS: Final[dict[str, tuple[bytes, bytes, bytes]]] = {
    # Start, what is repeated, end.
    "hexadecimal": (b"", b"0xffffffff81000000\n", b""),
    "decimal": (b"", b"18446744071579107328\n", b""),
    "words of text": (b"", b"x 0xffffffff81000000 y\n", b""),
    "one line": (b"[", b"18446744071579107328, ", b"]"),
    "blanks": (b"0xffffffff81000000\n" * 3 + b"0xffffffff81000000", b" ", b"x\n"),
    "empty lines": (b"0xffffffff81000000\n", b"\n", b"x"),
    "comments": (b"0xffffffff81000000\n", b"# a\n", b""),
    "digits": (b"", b"9", b"\n0xffffffff81000000\n"),
    "table": (b"PC,x\n", b"0xffffffff81000000,1\n", b""),
    "cells": (b"PC,x\n0xffffffff81000000", b",", b"\n"),
    "JSON": (b"", b'{"pc":18446744071579107328,"hit_count":1}\n', b""),
    "JSON list": (b'{"pcs":[', b"18446744071579107328,", b"1]}"),
    "JSON keys": (b'{"pcs":[1],', b'"pcs":', b"}"),
    "JSON blanks": (b'{"pcs":[18446744071579107328]', b'"pc" ', b"}"),
    "offsets": (b"", b"vmlinux+0x10\n", b""),
    "offsets of modules": (b"", b"a+1+", b"\nvmlinux+0x10\n"),
    "drcov": (
        b"DRCOV VERSION: 2\nColumns: id, base, end, path\n0, 0x1, 0x2, /a\nBB Table: 1 bbs\n",
        b"\x01" * 8,
        b"",
    ),
    "drcov text": (
        b"DRCOV VERSION: 2\nColumns: id, base, path\n0, 0x1, /a\nBB Table: 1 bbs\nmodule id, "
        b"start, size:\n",
        b"module[0]: 0x10, 1\n",
        b"",
    ),
    "drcov blanks": (
        b"DRCOV VERSION: 2\nColumns: id, base, path\n0, 0x1, /a\nBB Table: 1 bbs\nmodule id, "
        b"start, size:\n",
        b" ",
        b"",
    ),
    "drcov modules": (
        b"DRCOV VERSION: 2\nColumns: id, base, path\n",
        b"0, 0x1, /a\n",
        b"BB Table: 0 bbs\n",
    ),
    "words": (b"", struct.pack("<Q", 0xFFFFFFFF81000000), b""),
    "sancov": (struct.pack("<Q", 0xC0BFFFFFFFFFFF64), struct.pack("<Q", 0xFFFFFFFF81000000), b""),
    "UTF-16": (b"\xff\xfe", "0xffffffff81000000\n".encode("utf-16-le"), b""),
}


_COSTS: Final[dict[str, tuple[Callable[[int], float], bool]]] = {
    # Seconds by number of parts, and whether that is in proportion.
    "linear": (lambda size: 1e-6 * size, True),
    "logarithmic": (lambda size: 1e-7 * size * size.bit_length(), True),
    "cache": (lambda size: 1e-7 * size * (1 if size < 1 << 17 else 3), True),
    "memory": (lambda size: 1e-9 * size * (1 if size <= 1 << 20 else 10), True),
    "square beside": (lambda size: 1e-7 * size + 1e-11 * size**2, False),
    "power": (lambda size: 1e-7 * size**1.5, False),
    "square": (lambda size: 1e-7 * size**2, False),
}


@pytest.mark.parametrize("name", _COSTS)
def test_measured_costs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs are compared by a clock that readers move, on which every third reading is slow."""
    cost, is_proportional = _COSTS[name]
    clock = [0.0]
    calls = itertools.count()
    monkeypatch.setattr(input_cost, "time", SimpleNamespace(process_time=lambda: clock[0]))

    def prepare(size: int) -> Callable[[], None]:
        def read() -> None:
            clock[0] += cost(size) * (1 if next(calls) % 3 else 4)

        return read

    with nullcontext() if is_proportional else pytest.raises(AssertionError):
        check_cost(prepare)


@pytest.mark.parametrize("name", _LISTS)
def test_lists(name: str) -> None:
    start, repeated, end = _LISTS[name]

    def prepare(size: int) -> Callable[[], object]:
        data = start + repeated * size + end

        def read() -> object:
            with suppress(KcovdbgError):
                return read_pc_file("a", data)
            return None

        return read

    check_cost(prepare)


@pytest.mark.parametrize("wanted", list(PcFormat))
def test_blanks_in_every_format(wanted: PcFormat) -> None:
    def prepare(size: int) -> Callable[[], object]:
        data = b" " * size + b"x\n"

        def read() -> None:
            with suppress(KcovdbgError):
                read_pc_file("a", data, wanted)

        return read

    check_cost(prepare)


_LOG: Final = (
    "[   12.345678] BUG: KASAN: use-after-free in f+0x10/0x20\n[   12.345679] Call Trace:\n[   "
    "12.34568]  g+0x1/0x2\n"
)
_PARTS: Final = (
    _LOG,
    "Call Trace:\n",
    " f+0x1/0x2",
    "[",
    " ",
    "\n",
    "PID: 1 Comm: a",
    "executing program 1:",
    "WARNING: a at ",
)


@pytest.mark.parametrize("part", _PARTS)
def test_logs(part: str) -> None:
    def prepare(size: int) -> Callable[[], object]:
        text = part * size
        data = text.encode()

        def read() -> None:
            is_log(data)
            lines = split_log(decode_log("a", data))
            untangle(lines)
            summarize_report(text)
            find_program(data, None)
            find_program(data, "syz-executor.1")

        return read

    check_cost(prepare)


@pytest.mark.parametrize(
    "part", ["f+0x1/0x2 ", "0xffffffff81000000 ", " ", "[<0> ", "RIP: ", "WARNING: a at ", "(", "a"]
)
def test_words_of_code(part: str) -> None:
    def prepare(size: int) -> Callable[[], object]:
        text = part * size

        def read() -> None:
            find_code_words(text)
            with suppress(ValueError):
                list(parse_words(text))

        return read

    check_cost(prepare)


@pytest.mark.parametrize("part", ["[],", "1,", '"a",', '{"a":1},', " "])
def test_json(part: str, tmp_path: Path) -> None:
    def prepare(size: int) -> Callable[[], object]:
        text = f'{{"format": 1, "mode": "TRACE_PC", "modules": [{part * size}0]}}'
        (tmp_path / "a.kcov.json").write_text(text)
        (tmp_path / "recording").write_text(f"{text}\n")

        def read() -> None:
            with suppress(ValueError):
                parse_json(text)
            with suppress(KcovdbgError):
                read_header(tmp_path / "a.kcov")
            with suppress(KcovdbgError):
                list(read_samples(str(tmp_path / "recording")))

        return read

    check_cost(prepare)


def test_location_tables(tmp_path: Path) -> None:
    numbers = itertools.count()

    def prepare(size: int) -> Callable[[], object]:
        start = 0xFFFFFFFF81000000
        writer = TableWriter("00" * 20, [TextRange(start, start + 16 * size + 16, ".text")])
        for index in range(size):
            frame = Frame(f"f{index}", f"{index}.c", index + 1, None)
            writer.add_frames(start + 16 * index + 8, PointKind.PC, (frame,))
            writer.add_function(FunctionSymbol(f"f{index}", start + 16 * index, 16))
        path = tmp_path / str(next(numbers))
        writer.write(path)

        def read() -> object:
            table = LocationTable(path)
            pcs = table.pcs()
            return (
                table,
                table.get_rows(pcs),
                table.files(),
                table.find(function="f1"),
                table.function_names(),
            )

        return read

    check_cost(prepare)


@pytest.mark.parametrize("step", [1, 16, 1 << 32, 1 << 53, 0x9E3779B97F4A7C15])
def test_pcs_outside_of_code(step: int) -> None:
    """Whatever they have in common, they do not share one place of a table."""

    def prepare(size: int) -> Callable[[], object]:
        words = zeros("Q", size)
        for index in range(size):
            words[index] = index * step & (1 << 64) - 1
        return lambda: Numbering().number(words)

    check_cost(prepare)


def _frames(size: int, pack: Callable[[bytes], bytes], parts: int) -> bytes:
    return (
        pack(bytes(range(256)) * size)
        if parts == 1
        else b"".join(pack(b"x" * 256) for _ in range(size))
    )


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("kind", ["zlib", "zstd"])
def test_compressed_data(kind: str, parts: int) -> None:
    packs: dict[str, Any] = {"zlib": zlib.compress, "zstd": zstandard.ZstdCompressor().compress}
    starts: dict[str, Any] = {
        "zlib": zlib.decompressobj,
        "zstd": lambda: zstandard.ZstdDecompressor().decompressobj(),
    }

    def prepare(size: int) -> Callable[[], object]:
        import io

        data = _frames(size, packs[kind], parts)
        return lambda: FrameReader(starts[kind], io.BytesIO(data)).read_first(1 << 40)

    check_cost(prepare)


_ELF: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")


@pytest.mark.parametrize("kind", ["sections", "segments", "notes", "symbols"])
def test_elf(kind: str, tmp_path: Path) -> None:
    numbers = itertools.count()

    def prepare(size: int) -> Callable[[], object]:
        size = min(size, 30_000) if kind in ("sections", "segments") else size
        names = b"\0.symtab\0.strtab\0.note\0"
        body = {
            "notes": struct.pack("<III", 4, 0, 1) + b"abc\0",
            "symbols": struct.pack("<IBBHQQ", 1, 2, 0, 1, 64, 16),
        }
        data = body.get(kind, b"") * size
        offset = 64 + len(names)
        sections = [(0,) * 10, (9, 3, 0, 0, 64, len(names), 0, 0, 1, 0)]
        if kind == "symbols":
            sections.append((1, 2, 0, 0, offset, len(data), 1, 0, 8, 24))
        if kind == "notes":
            sections.append((17, 7, 0, 0, offset, len(data), 0, 0, 4, 0))
        sections += [
            (0, 1, 6, 64 * index, 64, 16, 0, 0, 1, 0)
            for index in range(size if kind == "sections" else 0)
        ]
        table = b"".join(_SECTION.pack(*row) for row in sections)
        segments = struct.pack("<IIQQQQQQ", 1, 4, 64, 0, 0, 8, 8, 1) * (
            size if kind == "segments" else 0
        )
        at = offset + len(data)
        header = _ELF.pack(
            b"\x7fELF\2\1\1",
            2,
            62,
            1,
            0,
            at + len(table),
            at,
            0,
            64,
            56,
            len(segments) // 56,
            64,
            len(sections),
            1,
        )
        path = tmp_path / str(next(numbers))
        path.write_bytes(header + names + data + table + segments)

        def read() -> object:
            with ElfFile(path) as elf:
                return (
                    elf.sections,
                    elf.segments,
                    elf.notes,
                    elf.build_id,
                    elf.text_sections(),
                    list(elf.symbols.functions()),
                )

        return read

    check_cost(prepare)


@pytest.mark.parametrize("part", ["3abc", "NtC", "IC", "TT", "u", "B_", "0"])
def test_names_of_rust(part: str) -> None:
    check_cost(
        lambda size: (
            lambda: (
                demangle("_RNvC1a" + part * size),
                demangle("_ZN" + part * size + "17h0123456789abcdefE"),
            )
        )
    )


@pytest.mark.parametrize("order", ["ascending", "backwards", "overlapping", "apart"])
def test_flattened_dumps(order: str, tmp_path: Path) -> None:
    """Whatever the offsets of its pieces, and however far apart."""
    numbers = itertools.count()
    offsets: dict[str, Callable[[int, int], int]] = {
        "ascending": lambda index, _: 4096 * index,
        "backwards": lambda index, size: 4096 * (size - index),
        "overlapping": lambda index, _: index % 7,
        "apart": lambda index, _: (index << 28) % (1 << 43),
    }

    def prepare(size: int) -> Callable[[], object]:
        pieces = (
            struct.pack(">qq", offsets[order](index, size), 16) + b"KDUMP   " * 2
            for index in range(min(size, 4096))
        )
        data = (b"makedumpfile\0\0\0\0" + struct.pack(">qq", 1, 1)).ljust(4096, b"\0") + b"".join(
            pieces
        )
        path = tmp_path / str(next(numbers))
        path.write_bytes(data + struct.pack(">qq", -1, -1))

        def read() -> None:
            with suppress(KcovdbgError):
                unpack_dump(path)

        return read

    check_cost(prepare)


@pytest.mark.parametrize("kind", ["crashes", "logs", "comments"])
def test_work_directories(kind: str, tmp_path: Path) -> None:
    numbers = itertools.count()

    def prepare(size: int) -> Callable[[], object]:
        size = min(size, 500) if kind in ("crashes", "logs") else size
        top = tmp_path / str(next(numbers))
        crashes = top / "crashes"
        crashes.mkdir(parents=True)
        if kind == "comments":
            (top / "a.cfg").write_text("\n" * size + json.dumps({"workdir": str(top)}))
        for index in range(size if kind == "crashes" else 1):
            (crashes / str(index)).mkdir()
            (crashes / str(index) / "description").write_text("title")
            for number in range(size if kind == "logs" else 1):
                (crashes / str(index) / f"log{number}").write_text("executing program 1:")
                (crashes / str(index) / f"report{number}").write_text("BUG: x")
        return lambda: find_manager(os.fspath(top)).crashes()

    check_cost(prepare)


# DW_TAG_compile_unit with a name, lines, an address and a size, or with ranges; DW_TAG_subprogram
# with a name and a size.
_ABBREVIATIONS: Final = b"".join(
    (
        bytes((1, 0x11, 1, 0x03, 8, 0x10, 0x17, 0x11, 1, 0x12, 7, 0, 0)),
        bytes((2, 0x2E, 0, 0x03, 8, 0x11, 1, 0x12, 7, 0, 0)),
        bytes((3, 0x11, 0, 0x03, 8, 0x55, 0x17, 0x11, 1, 0, 0, 0)),
    )
)
_START: Final = 0x401000


def _unit(body: bytes, version: int = 4) -> bytes:
    head = struct.pack("<HIB", 4, 0, 8) if version == 4 else struct.pack("<HBBI", 5, 1, 8, 0)
    return struct.pack("<I", len(head) + len(body)) + head + body


def _lines(size: int) -> bytes:
    program = (
        b"\0\x09\x02"
        + struct.pack("<Q", _START)
        + b"\x03\x01\x05\x07\x01\x02\x01" * size
        + b"\0\x01\x01"
    )
    header = (
        bytes([1, 1, 1, 0xFB, 14, 13, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0]) + b"a.c\0\0\0\0\0"
    )
    body = struct.pack("<HI", 4, len(header)) + header + program
    return struct.pack("<I", len(body)) + body


def _find_sections(kind: str, size: int) -> dict[str, bytes]:
    """Return debug info with so many lines, functions, units or ranges."""
    functions, units = b"", b""
    if kind == "functions":
        functions = b"".join(
            b"\2f%x\0" % index + struct.pack("<QQ", _START + index, 1) for index in range(size)
        )
    if kind == "units":
        units = _unit(b"\1a\0" + struct.pack("<IQQ", 0, _START, 8) + b"\0") * size
    if kind == "ranges":
        units = _unit(b"\3a\0" + struct.pack("<IQ", 12, _START), 5)
    main = b"\1a.c\0" + struct.pack("<IQQ", 0, _START, size) + functions + b"\0"
    return {
        "info": (_unit(main) if kind in ("lines", "functions") else b"") + units,
        "abbrev": _ABBREVIATIONS,
        "line": _lines(size if kind == "lines" else 1),
        "rnglists": struct.pack("<IHBBI", 0x7FFFFFEF, 5, 8, 0, 0)
        + b"\x04\x00\x01" * (size if kind == "ranges" else 0)
        + b"\0",
    }


@pytest.mark.parametrize("kind", ["lines", "functions", "units", "ranges"])
def test_debug_info(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(_ELF.pack(b"\x7fELF\2\1\1", 2, 62, 1, 0, 0, 0, 0, 64, 56, 0, 64, 0, 0))

    def prepare(size: int) -> Callable[[], object]:
        contents = {**dict.fromkeys(SECTIONS, b""), **_find_sections(kind, size)}
        addresses = array("Q", range(_START, _START + size))

        def read() -> None:
            with ElfFile(path) as elf:
                reader = DwarfReader(elf, contents)
                units = reader.find_units(addresses)
                if kind in ("lines", "functions"):
                    assert set(units) == {0}
                    found = reader.read([0], [size], addresses)
                    assert NO_UNIT not in found.chains
                    Locations().add_all(found.locations)

        return read

    check_cost(prepare)
