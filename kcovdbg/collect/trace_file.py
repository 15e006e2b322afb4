# SPDX-License-Identifier: LGPL-2.1-or-later
"""Trace files: a buffer as the kernel laid it out, with a side file that describes it; and files of other tools.

The side file of ``NAME.kcov`` is ``NAME.kcov.json``. Without one, :mod:`kcovdbg.records.pc_file` finds out what a file is.
"""

from __future__ import annotations

import json
import stat
from array import array
from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from kcovdbg.abi import record
from kcovdbg.abi.address import WORD_MASK, is_word
from kcovdbg.abi.record import PC
from kcovdbg.collect.buffer_data import decode_buffer
from kcovdbg.errors import KcovdbgError
from kcovdbg.model.buffer import Buffer, FileFacts
from kcovdbg.model.module_place import ModulePlace, move_pcs
from kcovdbg.records.pc_file import PcFile, PcFormat, read_pc_file
from kcovdbg.records.unpacked_data import unpack_data
from kcovdbg.series import table
from kcovdbg.target.dump_file import path_hint

FORMAT: Final = 1
SUFFIX: Final = ".json"
NAMES_MAY_BE_WRONG: Final = "names may be wrong"
"""The end of the remark on a trace of another kernel."""
# Larger than any buffer that a kernel allows; files are read whole.
_MAX_BYTES: Final = 1 << 34


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """The content of a side file; a key that is missing or of the wrong type is None."""

    mode: str | None = None
    """Name without prefix: ``TRACE_PC``."""
    word_size: int | None = None
    """Size of the kernel's word in bytes."""
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
    """Size of the buffer in words of the kernel."""
    count: int | None = None
    """Number of records."""
    captured_at: str | None = None
    modules: tuple[ModulePlace, ...] | None = None
    """Where the modules were loaded that records are in."""

    @property
    def recorded_modules(self) -> tuple[ModulePlace, ...]:
        """Where the modules were, with addresses as KCOV records them; none where that is unknown."""
        return tuple(place.shift(-self.kaslr_offset) for place in self.modules or () if self.kaslr_offset is not None)


def side_path(path: Path) -> Path:
    """Return the path of a trace file's side file."""
    return path.with_name(path.name + SUFFIX)


def find_traces(path: Path | str) -> list[Path]:
    """Return the trace files in a directory, or those that match a pattern, by name.

    Hidden files and side files are left out.

    :param path: of a directory; with a pattern as its last component (``runs/a*.kcov``); or of a file, which is returned alone.
    :raises KcovdbgError: when a directory holds no trace file, or none matches.
    """
    path = Path(path)
    if path.is_dir():
        found = set(path.iterdir())
    elif not path.exists() and any(character in path.name for character in "*?["):
        found = set(path.parent.glob(path.name))
    else:
        return [path]
    traces = [
        entry
        for entry in found
        if entry.is_file()
        and not entry.name.startswith(".")
        and not (entry.suffix == SUFFIX and entry.with_suffix("") in found)
    ]
    if not traces:
        raise KcovdbgError(f"no trace files: '{path}'", hint="collect -o FILE writes one")
    return sorted(traces)


def read_header(path: Path) -> TraceHeader | None:
    """Return the content of a trace file's side file; None if there is no side file.

    :raises KcovdbgError: when the side file could not be read or is malformed.
    """
    side = side_path(path)
    if not side.exists():
        # Of a link, beside the file that it leads to.
        side = side_path(path.resolve())
    try:
        text = side.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise KcovdbgError(f"{side}: could not be read: {error}") from error
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise KcovdbgError(f"{side}: invalid JSON: {error}", hint="remove it to read the trace as raw words") from error
    if not isinstance(content, dict):
        raise KcovdbgError(f"{side}: not a JSON object")
    if content.get("format") != FORMAT:
        raise KcovdbgError(
            f"{side}: unknown format {content.get('format')!r}, expected {FORMAT}", hint="a newer kcovdbg may have written it"
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
        return value if isinstance(value, int) and not isinstance(value, bool) and is_word(value) else None

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
        modules=_parse_modules(content.get("modules")),
    )


def _parse_modules(content: Any) -> tuple[ModulePlace, ...] | None:
    """Return the modules in a side file, without those that are malformed; None if there is no list of them."""
    if not isinstance(content, list):
        return None
    found: list[ModulePlace] = []
    for module in content:
        try:
            build_id = module["build_id"]
            sections = tuple((str(name), int(address, 16)) for name, address in module["sections"].items())
            place = ModulePlace(str(module["name"]), build_id and str(build_id).lower(), int(module["size"]), sections)
        except (AttributeError, KeyError, TypeError, ValueError):
            continue
        if is_word(place.size) and all(is_word(address) for _, address in sections):
            found.append(place)
    return tuple(found)


def read_trace(
    path: Path | str,
    *,
    kaslr_offset: int = 0,
    build_id: str | None = None,
    pc: str = "auto",
    call_length: int = 0,
    find_points: Callable[[], Container[int] | None] | None = None,
    file_format: PcFormat | None = None,
    find_base: Callable[[str], int | None] | None = None,
    find_modules: Callable[[], Sequence[ModulePlace] | None] | None = None,
) -> Buffer:
    """Read a trace file: with a side file, raw binary, or text.

    PCs in modules that the target has loaded elsewhere are changed to where it has them.

    :param kaslr_offset: KASLR offset of the target, for the addresses shown beside recorded PCs. Recorded PCs do not include
        it, so that traces of different boots of one kernel agree.
    :param build_id: build ID of the target; a trace of another kernel gets a remark.
    :param pc: the meaning of PCs in text: ``raw``, as the kernel recorded them; ``call``, the calls before them; ``auto``, the
        one for which more PCs are coverage points.
    :param call_length: length of a call on the target's machine in bytes; 0 if unknown.
    :param find_points: returns the PCs that the target can record, which ``auto`` needs; None if they are unknown.
    :param file_format: of a file without a side file; None to find it by its content.
    :param find_base: returns where the code of the image or of a module starts, by its file name, as KCOV records addresses.
    :param find_modules: returns where the target's modules are, with addresses as KCOV records them; None if that is unknown.
    :raises KcovdbgError: when the file is missing, could not be read, or holds no trace.
    """
    path = Path(path)
    try:
        status = path.stat()
        if status.st_size > _MAX_BYTES:
            raise KcovdbgError(f"{path}: larger than any buffer")
        if stat.S_ISCHR(status.st_mode):
            # /dev/zero has no end.
            raise KcovdbgError(f"{path}: a device, not a trace", hint="name a file, or a pipe that ends")
        data = path.read_bytes()
    except OSError as error:
        hint = None
        if isinstance(error, FileNotFoundError):
            hint = path_hint(path)
        elif isinstance(error, IsADirectoryError):
            hint = "name a file in it; diff takes directories of trace files"
        raise KcovdbgError(f"{path}: could not be read: {error.strerror or error}", hint=hint) from error
    except MemoryError:
        raise KcovdbgError(f"{path}: too large for this machine's memory", hint="is it a trace?") from None
    name = f"file:{path}"
    header = read_header(path)
    if header is not None:
        build = None if header.build_id is None else header.build_id.lower()
        buffer = replace(_read_binary(name, unpack_data(path, data).data, header), build_id=build)
        if build_id and header.build_id and header.build_id.lower() != build_id.lower():
            other = f"the trace is of another kernel ({header.release or 'build-id ' + header.build_id}): {NAMES_MAY_BE_WRONG}"
            buffer = replace(buffer, remarks=(*buffer.remarks, other))
        elif find_modules is not None and header.recorded_modules:
            buffer = _move_modules(buffer, header.recorded_modules, find_modules())
    else:
        found = read_pc_file(path, data, file_format)
        buffer = _as_recorded(_make_buffer(name, found, find_base), pc, call_length, find_points)
    return replace(buffer, kaslr_offset=kaslr_offset)


def _make_buffer(name: str, found: PcFile, find_base: Callable[[str], int | None] | None) -> Buffer:
    """Return the buffer in a file of another tool."""
    facts = FileFacts(found.format.value, found.packing, found.skipped)
    remarks: list[str] = []
    if found.format is PcFormat.BINARY:
        mode = None if found.codec == PC else table.mode_of_codec(found.codec)
        header = TraceHeader(mode=mode, word_size=found.word_size, byteorder="big" if found.big_endian else "little")
        buffer = _read_binary(name, found.data, header)
        remarks.append(f"no side file: read as {buffer.encoding.codec.name} records of {found.word_size * 8}-bit words")
        return replace(buffer, remarks=(*remarks, *buffer.remarks), facts=facts)
    words = found.words
    if found.modules:
        words = _add_bases(name, found, find_base)
    if found.skipped:
        first = found.first_skipped
        where = "" if first is None else f"; line {first.number}: '{first.text}'"
        remarks.append(f"{found.skipped} {'lines' if found.skipped > 1 else 'line'} without an address skipped{where}")
    if found.lists_all_points:
        remarks.append("its points are all those of the functions that it lists, covered or not")
    encoding = record.make_encoding(PC, found.word_size if words.typecode == "I" else 8, found.big_endian)
    return Buffer(name, encoding, words, len(words), remarks=tuple(remarks), facts=facts)


def _add_bases(name: str, found: PcFile, find_base: Callable[[str], int | None] | None) -> array[int]:
    """Return the words of a file with offsets as addresses.

    :raises KcovdbgError: when it is unknown where a module is.
    """
    bases: list[int] = []
    for module in found.modules:
        base = None if find_base is None else find_base(module.name)
        base = module.base or None if base is None else base
        if base is None:
            raise KcovdbgError(
                f"{name.removeprefix('file:')}: unknown where '{module.name}' is loaded, which its offsets count from",
                hint="name the kernel: -s VMLINUX, or a dump in which the module is loaded",
            )
        bases.append(base)
    pairs = zip(found.words, found.module_of, strict=True)
    return array("Q", [offset + bases[module] & WORD_MASK for offset, module in pairs])


def _move_modules(buffer: Buffer, old: Sequence[ModulePlace], new: Sequence[ModulePlace] | None) -> Buffer:
    """Return a buffer with its PCs in modules where the modules are."""
    words = array(buffer.words.typecode, buffer.words)
    width, first = buffer.encoding.codec.record_words, buffer.encoding.codec.pc_word
    counts = Counter(record.pc_words(words, buffer.encoding))
    pcs = record.pcs_of_words(counts, buffer.encoding)
    moves = move_pcs(set(pcs.values()), old, new or ())
    # Whatever else is in an address word is above the bits that tell modules apart.
    moved = {word: word + moves.moved[pc] - pc for word, pc in pcs.items() if pc in moves.moved}
    if moved:
        for index in range(first, len(words), width):
            words[index] = moved.get(words[index], words[index])
    remarks = []
    if moved:
        remarks.append(f"{sum(counts[word] for word in moved)} records in modules are moved to where this kernel has them")
    lacking = sum(counts[word] for word, pc in pcs.items() if pc in moves.lacking)
    if lacking:
        names = ", ".join(sorted(set(moves.lacking.values())))
        reason = "not known to be loaded here" if new is None else "not loaded here, or of another build"
        remarks.append(f"{lacking} records are in modules {reason} ({names}): {NAMES_MAY_BE_WRONG}")
    return replace(buffer, words=words, remarks=(*buffer.remarks, *remarks))


# A smaller share of PCs that are points is suspicious; real raw traces had 95.7 to 97 % (docs/coverage.md).
_SHARE: Final = 0.5


def _as_recorded(buffer: Buffer, pc: str, call_length: int, find_points: Callable[[], Container[int] | None] | None) -> Buffer:
    """Return a buffer read from text with PCs as the kernel records them, whichever kind the text holds."""
    pcs = buffer.words
    if buffer.encoding.codec != PC or buffer.stored_count is not None:
        return buffer
    if pc == "auto":
        points = find_points() if find_points is not None and call_length else None
        if points is None:
            told = "PCs from text are taken as recorded, which fits kcovtrace; for syzkaller's rawcover use --pc call"
            return replace(buffer, remarks=(told, *buffer.remarks))
        distinct = set(pcs)
        raw = sum(word in points for word in distinct)
        called = sum(word + call_length in points for word in distinct)
        pc = "call" if called > raw else "raw"
        share = max(called, raw) / max(len(distinct), 1)
        told = f"PCs from text: {share:.0%} of them are {'calls of' if pc == 'call' else 'return addresses of'} coverage points"
        if share < _SHARE:
            told += " (suspiciously few; is this another kernel's trace?)"
        buffer = replace(buffer, remarks=(told, *buffer.remarks))
    if pc == "call":
        if not call_length:
            raise KcovdbgError("--pc call: the length of a call is unknown for this kernel's machine", hint="--pc raw")
        fitting = array(pcs.typecode, (word + call_length for word in pcs if is_word(word + call_length)))
        if len(fitting) < len(pcs):
            told = f"{len(pcs) - len(fitting)} addresses at the end of the address space skipped: no call can be there"
            buffer = replace(buffer, count=len(fitting), remarks=(*buffer.remarks, told))
        pcs = fitting
    return replace(buffer, words=pcs)


def _read_binary(name: str, data: bytes, header: TraceHeader) -> Buffer:
    word_size = header.word_size if header.word_size in (4, 8) else 8
    encoding = record.make_encoding(table.codec_of_trace(header.mode), word_size, header.byteorder == "big")
    if len(data) < encoding.word_size:
        raise KcovdbgError(f"{name.removeprefix('file:')}: not a trace: only {len(data)} bytes")
    pid = header.tid if header.tid is not None else header.pid
    buffer = decode_buffer(
        name, data, encoding, size=header.size, word_size=word_size, mode=header.mode, pid=pid, comm=header.comm
    )
    if header.count is None or header.count == buffer.stored_count:
        return buffer
    told = f"the side file has {header.count} records, the count word {buffer.stored_count}"
    return replace(buffer, remarks=(*buffer.remarks, told))
