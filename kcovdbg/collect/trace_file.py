# SPDX-License-Identifier: LGPL-2.1-or-later
"""Trace files: a buffer as the kernel laid it out, with a side file that says where it comes from; and other tools' text.

The side file of ``NAME.kcov`` is ``NAME.kcov.json``. Text files hold one hexadecimal PC per line: kcovtrace's as the kernel
recorded them, syzkaller's rawcover as addresses of the call instructions. Which of the two can't be told from the text.
"""

from __future__ import annotations

import json
import re
import stat
import sys
from array import array
from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from kcovdbg.abi import record
from kcovdbg.abi.record import Encoding, RecordFormat
from kcovdbg.errors import KcovdbgError
from kcovdbg.model.buffer import Buffer
from kcovdbg.walk.buffers import full_remark

FORMAT: Final = 1
SUFFIX: Final = ".json"
# More than any kernel allows would be damage; files are read whole.
_MAX_BYTES: Final = 1 << 34
_HEX_LINE: Final = re.compile(rb"\s*(?:0[xX])?([0-9a-fA-F]{1,16})\s*(?:#.*)?")
_TEXT_BYTES: Final = frozenset((*b"\t\r\n", *range(0x20, 0x7F)))
# What a mode is called in side files: the user's words for KCOV_ENABLE, or the kernel's for the task.
_FORMATS: Final = {
    "TRACE_CMP": RecordFormat.CMP,
    "CMP": RecordFormat.CMP,
    "TRACE_PC_EXT": RecordFormat.PC_EXT,
    "PC_EXT": RecordFormat.PC_EXT,
    "UNIQ_PC": RecordFormat.UNIQ_PC,
    "TRACE_UNIQ_PC": RecordFormat.UNIQ_PC,
    "UNIQ_EDGE": RecordFormat.UNIQ_EDGE,
    "TRACE_UNIQ_EDGE": RecordFormat.UNIQ_EDGE,
    "UNIQ_CMP": RecordFormat.UNIQ_CMP,
    "TRACE_UNIQ_CMP": RecordFormat.UNIQ_CMP,
}


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """What the side file says; None is a key that isn't there or isn't of the right type."""

    mode: str | None = None
    """Name without prefix: ``TRACE_PC``."""
    word_size: int | None = None
    """Bytes of the kernel's word."""
    byteorder: str | None = None
    """``little`` or ``big``."""
    release: str | None = None
    build_id: str | None = None
    kaslr_offset: int | None = None
    pid: int | None = None
    tid: int | None = None
    comm: str | None = None
    argv: tuple[str, ...] | None = None
    size: int | None = None
    """Of the buffer, in words of the kernel."""
    count: int | None = None
    """Records."""
    captured_at: str | None = None


def side_path(path: Path) -> Path:
    """Return where a trace file's side file is."""
    return path.with_name(path.name + SUFFIX)


def read_header(path: Path) -> TraceHeader | None:
    """Read a trace file's side file; None where there is none.

    :raises KcovdbgError: when there is one that can't be understood.
    """
    side = side_path(path)
    try:
        text = side.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise KcovdbgError(f"{side} can't be read: {error}") from error
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise KcovdbgError(f"{side} is no JSON: {error}", hint="without it the trace is read as raw words") from error
    if not isinstance(content, dict):
        raise KcovdbgError(f"{side} holds no JSON object")
    if content.get("format") != FORMAT:
        raise KcovdbgError(
            f"{side} has format {content.get('format')!r}, and only {FORMAT} is known", hint="a newer kcovdbg wrote it"
        )
    return _parse_header(content)


def _parse_header(content: dict[str, Any]) -> TraceHeader:
    def number(key: str) -> int | None:
        value = content.get(key)
        if isinstance(value, str):
            # Addresses are hexadecimal strings, as in everything that kcovdbg prints.
            try:
                value = int(value, 0)
            except ValueError:
                return None
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64 else None

    def string(key: str) -> str | None:
        value = content.get(key)
        return value if isinstance(value, str) else None

    argv = content.get("argv")
    mode = string("mode")
    return TraceHeader(
        mode=None if mode is None else mode.upper().removeprefix("KCOV_").removeprefix("MODE_"),
        word_size=number("word_size"),
        byteorder=string("byteorder"),
        release=string("release"),
        build_id=string("build_id"),
        kaslr_offset=number("kaslr_offset"),
        pid=number("pid"),
        tid=number("tid"),
        comm=string("comm"),
        argv=tuple(str(word) for word in argv) if isinstance(argv, list) else None,
        size=number("size"),
        count=number("count"),
        captured_at=string("captured_at"),
    )


def read_trace(
    path: Path | str,
    *,
    kaslr_offset: int = 0,
    build_id: str | None = None,
    pc: str = "auto",
    call_length: int = 0,
    find_points: Callable[[], Container[int] | None] | None = None,
) -> Buffer:
    """Read a trace file: with side file, raw binary, or text.

    :param kaslr_offset: of the kernel that is looked at, for the addresses shown beside the recorded PCs. A recorded PC is
        free of it, so that traces of different boots of one kernel agree.
    :param build_id: of the kernel that is looked at: a trace of another one gets a remark.
    :param pc: what text holds: ``raw``, what the kernel recorded; ``call``, the call before it; ``auto``, what fits better.
    :param call_length: of a call on the machine that it is of, in bytes; 0: not known.
    :param find_points: returns the recorded PCs that the kernel can have, by which ``auto`` decides; None where nobody knows.
    :raises KcovdbgError: when there is no such file, it can't be read, or it holds no trace.
    """
    path = Path(path)
    try:
        status = path.stat()
        if status.st_size > _MAX_BYTES:
            raise KcovdbgError(f"{path} is larger than any buffer")
        if stat.S_ISCHR(status.st_mode):
            # /dev/zero has no end.
            raise KcovdbgError(f"{path} is a device, not a trace", hint="name a file, or a pipe that ends")
        data = path.read_bytes()
    except OSError as error:
        hint = None
        if isinstance(error, FileNotFoundError):
            hint = "check the name; a relative one starts at the working directory"
        elif isinstance(error, IsADirectoryError):
            hint = "name the file in it"
        raise KcovdbgError(f"{path} can't be read: {error.strerror or error}", hint=hint) from error
    except MemoryError:
        raise KcovdbgError(f"{path} is too large for this machine's memory", hint="is it a trace at all?") from None
    name = f"file:{path}"
    header = read_header(path)
    if header is not None:
        buffer = _read_binary(name, data, header)
        if build_id and header.build_id and header.build_id.lower() != build_id.lower():
            other = f"the trace is of another kernel ({header.release or 'build-id ' + header.build_id}): names may be wrong"
            buffer = replace(buffer, remarks=(*buffer.remarks, other))
    elif _looks_like_text(data):
        buffer = _as_recorded(_read_text(name, data), pc, call_length, find_points)
    else:
        buffer = _read_binary(name, data, _guess_header(path, data))
        if buffer.encoding.format is RecordFormat.PC:
            guessed = _guess_format(buffer, data)
            if guessed is not None:
                header = TraceHeader(mode=guessed, byteorder="big" if buffer.encoding.big_endian else "little")
                buffer = _read_binary(name, data, header)
        guess = f"no side file: read as {buffer.encoding.format.value} records of {buffer.encoding.word_size * 8}-bit words"
        buffer = replace(buffer, remarks=(guess, *buffer.remarks))
    return replace(buffer, kaslr_offset=kaslr_offset)


def _looks_like_text(data: bytes) -> bool:
    if not data or not _TEXT_BYTES.issuperset(data[:4096]):
        return False
    first = next((line for line in data[:4096].splitlines() if line.strip()), b"")
    return first.lstrip().startswith(b"#") or _HEX_LINE.fullmatch(first) is not None


def _read_text(name: str, data: bytes) -> Buffer:
    words = array("Q")
    bad = 0
    for line in data.splitlines():
        match = _HEX_LINE.fullmatch(line)
        if match is not None:
            words.append(int(match[1], 16))
        elif line.strip() and not line.lstrip().startswith(b"#"):
            bad += 1
    remarks = []
    if bad:
        remarks.append(f"{bad} lines hold no address and are left out")
    encoding = record.make_encoding(RecordFormat.PC, 8, sys.byteorder == "big")
    return Buffer(name, encoding, words, len(words), remarks=tuple(remarks))


# This share of PCs that are points tells; on real raw traces it was 95.7 to 97 % (coverage.md 2.3).
_SHARE: Final = 0.5


def _as_recorded(buffer: Buffer, pc: str, call_length: int, find_points: Callable[[], Container[int] | None] | None) -> Buffer:
    """Return a buffer from text with PCs as the kernel records them, whichever of the two the text holds."""
    pcs = buffer.words
    if pc == "auto":
        points = find_points() if find_points is not None and call_length else None
        if points is None:
            told = "PCs from text, taken as recorded (kcovtrace's are, syzkaller's rawcover isn't): --pc call says otherwise"
            return replace(buffer, remarks=(told, *buffer.remarks))
        distinct = set(pcs)
        raw = sum(word in points for word in distinct)
        called = sum(word + call_length in points for word in distinct)
        pc = "call" if called > raw else "raw"
        share = max(called, raw) / max(len(distinct), 1)
        told = f"PCs from text: {share:.0%} of them are {'calls of' if pc == 'call' else 'return addresses of'} coverage points"
        if share < _SHARE:
            told += ", which is little: is it another kernel's?"
        buffer = replace(buffer, remarks=(told, *buffer.remarks))
    if pc == "call":
        if not call_length:
            raise KcovdbgError("how long a call is isn't known for this kernel's machine", hint="--pc raw")
        fitting = array("Q", (word + call_length for word in pcs if word + call_length < 1 << 64))
        if len(fitting) < len(pcs):
            told = (
                f"{len(pcs) - len(fitting)} addresses are at the end of the address space, where no call is: they are left out"
            )
            buffer = replace(buffer, count=len(fitting), remarks=(*buffer.remarks, told))
        pcs = fitting
    return replace(buffer, words=pcs)


def _guess_header(path: Path, data: bytes) -> TraceHeader:
    if len(data) < 8:
        raise KcovdbgError(f"{path} holds no trace: it has {len(data)} bytes", hint="a trace starts with a count word")
    # The count fits the file in the right byte order only.
    little, big = int.from_bytes(data[:8], "little"), int.from_bytes(data[:8], "big")
    return TraceHeader(byteorder="big" if little > len(data) // 8 >= big else "little")


def _guess_format(buffer: Buffer, data: bytes) -> str | None:
    """Guess whether a file without side file holds comparisons: the kernel's half of the address space is all that is known."""
    words = record.decode_words(data[8 : 8 + 64 * 8], buffer.encoding)
    guessed = record.guess_format(words, buffer.count, 1 << 63, (1 << 64) - 1)
    return {RecordFormat.CMP: "TRACE_CMP", RecordFormat.PC_EXT: "TRACE_PC_EXT"}.get(guessed) if guessed is not None else None


def _read_binary(name: str, data: bytes, header: TraceHeader) -> Buffer:
    encoding = _encoding_of(header)
    remarks: list[str] = []
    if len(data) < encoding.word_size:
        raise KcovdbgError(f"{name.removeprefix('file:')} holds no trace: it has {len(data)} bytes")
    stored = record.decode_word(data, encoding)
    whole = (len(data) - encoding.records_offset) // encoding.record_size
    word_size = header.word_size if header.word_size in (4, 8) else 8
    capacity = None
    if header.size is not None:
        capacity = record.find_capacity(encoding.format, header.size, word_size)
    limit = whole if capacity is None else min(whole, capacity)
    used = min(stored, limit)
    if capacity is not None and stored > capacity:
        remarks.append(f"the count is {stored:#x}, {capacity} records fit: it is cut to what fits")
    if min(stored, capacity if capacity is not None else stored) > whole:
        remarks.append(f"the file is cut: it holds {whole} whole records, and its count is {stored:#x}")
    if capacity is not None and used == capacity:
        remarks.append(full_remark(capacity))
    if header.count is not None and header.count != stored:
        remarks.append(f"the side file says {header.count} records, the count is {stored}")
    start = encoding.records_offset
    words = record.decode_words(data[start : start + used * encoding.record_size], encoding)
    return Buffer(
        name=name,
        encoding=encoding,
        words=words,
        count=used,
        stored_count=stored,
        capacity=capacity,
        size=header.size,
        mode=header.mode,
        pid=header.tid if header.tid is not None else header.pid,
        comm=header.comm,
        remarks=tuple(remarks),
    )


def _encoding_of(header: TraceHeader) -> Encoding:
    word_size = header.word_size if header.word_size in (4, 8) else 8
    record_format = _FORMATS.get(header.mode or "", RecordFormat.PC)
    return record.make_encoding(record_format, word_size or 8, header.byteorder == "big")
