# SPDX-License-Identifier: LGPL-2.1-or-later
"""Trace files: a buffer as the kernel laid it out, with a side file that describes it; and files of
other tools. Buffers that are kept in memory, compressed.

The side file of ``NAME.kcov`` is ``NAME.kcov.json``. Without one, :mod:`kcovdbg.records.pc_file`
finds out what a file is.
"""

from __future__ import annotations

import errno
import platform
import re
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from kcovdbg.abi import record
from kcovdbg.abi.address import is_word
from kcovdbg.abi.record import CALL_LENGTHS, PC, Encoding
from kcovdbg.errors import KcovdbgError
from kcovdbg.input_file import find_number, parse_json, parse_number, read_input, unpack_data
from kcovdbg.limits import TRACE_SIZE, count_trace, room_for_trace
from kcovdbg.model.buffer import Buffer, Gap, ListFit
from kcovdbg.model.location import LoadedModule, move_pcs
from kcovdbg.records.pc_convention import Convention, find_convention
from kcovdbg.records.pc_counts import distinct_words
from kcovdbg.records.pc_file import PcFile
from kcovdbg.records.pc_list import (
    AUTO,
    FEW,
    ReadingOptions,
    TraceKernel,
    interpret,
    make_buffer,
    read_pc_list,
    restored_remark,
)
from kcovdbg.records.pc_names import is_pattern
from kcovdbg.series import table
from kcovdbg.target.dump_file import path_hint
from kcovdbg.target.end_signals import reading
from kcovdbg.walk.record_decoder import clamp_count, decode_records, find_full_remarks


def decode_buffer(
    name: str,
    data: bytes,
    encoding: Encoding,
    *,
    size: int | None,
    word_size: int,
    mode: str | None = None,
    pid: int | None = None,
    comm: str | None = None,
) -> Buffer:
    """Return the buffer that some bytes hold, from its count word on.

    The count is clamped to the capacity and to the complete records in the data.

    :param data: may be empty, or end within a record.
    :param size: size of the buffer in words of the kernel, without a prefix before the count; None
        if unknown.
    :param word_size: size of a word of the kernel in bytes.
    """
    stored = record.decode_word(data[: encoding.word_size], encoding) if data else 0
    capacity = None if size is None else encoding.capacity(size, word_size)
    clamped = clamp_count(stored, capacity)
    found = decode_records(
        data[encoding.records_offset :], encoding, clamped.count, cause="the data ends"
    )
    buffer = Buffer(
        name=name,
        encoding=found.encoding,
        words=found.words,
        count=found.count,
        stored_count=stored,
        capacity=capacity,
        size=size,
        mode=mode,
        pid=pid,
        comm=comm,
    )
    remarks = (*clamped.remarks, *found.remarks, *find_full_remarks(buffer))
    return replace(buffer, remarks=remarks)


def concatenate(buffers: Sequence[Buffer], remarks: Sequence[str]) -> Buffer:
    """Return buffers of one encoding as one.

    :param remarks: of the whole.
    """
    words = array(buffers[0].words.typecode)
    gaps: list[Gap] = []
    count = 0
    for buffer in buffers:
        words.extend(buffer.words)
        gaps += (gap._replace(first=count + gap.first) for gap in buffer.gaps)
        count += buffer.count
    words, encoding = record.split_records(words, buffers[0].encoding)
    # The capacity of one buffer says nothing about all of them.
    return replace(
        buffers[0],
        words=words,
        encoding=encoding,
        count=count,
        stored_count=count,
        capacity=None,
        size=None,
        gaps=tuple(gaps),
        is_open=any(buffer.is_open for buffer in buffers),
        was_full=any(buffer.full or buffer.was_full for buffer in buffers),
        is_incomplete=any(buffer.is_incomplete for buffer in buffers),
        remarks=tuple(remarks),
    )


FORMAT: Final = 1
SUFFIX: Final = ".json"
NAMES_MAY_BE_WRONG: Final = "names may be wrong"
"""The end of the remark on a trace of another kernel."""
# PCs that decide what those of several lists are.
_DECIDING: Final = 1000
_LEAST_SHARE: Final = 0.5
# Limit for remarks on the traces of a directory.
_NAMED: Final = 5


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
    modules: tuple[LoadedModule, ...] | None = None
    """The loaded modules that records are in."""

    @property
    def recorded_modules(self) -> tuple[LoadedModule, ...]:
        """The loaded modules, with addresses as KCOV records them; none where that is unknown."""
        return tuple(
            module.shift(-self.kaslr_offset)
            for module in self.modules or ()
            if self.kaslr_offset is not None
        )


def side_path(path: Path) -> Path:
    """Return the path of a trace file's side file."""
    return path.with_name(path.name + SUFFIX)


def find_traces(path: Path | str) -> list[Path]:
    """Return the trace files in a directory, or those that match a pattern, by name.

    Hidden files and side files are left out.

    :param path: of a directory; with a pattern as its last component (``runs/a*.kcov``); or of a
        file, which is returned alone.
    :raises KcovdbgError: when a directory holds no trace file, or none matches.
    """
    path = Path(path)
    if path.is_dir():
        found = set(path.iterdir())
    elif not path.exists() and is_pattern(path.name):
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


# One file per program and call, of syz-execprog's -coverfile and of vock: cov_prog1.0, cov_prog1.1,
# cov_prog1.extra.
_CALL_FILE: Final = re.compile(r"(.*prog\d+)\.(?:\d+|extra)")


def group_runs(paths: Iterable[Path]) -> list[list[Path]]:
    """Return trace files by run: those of the calls of one program are one, any other is a run of
    its own.
    """
    runs: dict[str, list[Path]] = {}
    for path in paths:
        match = _CALL_FILE.fullmatch(path.name)
        runs.setdefault(path.name if match is None else match[1], []).append(path)
    return list(runs.values())


def sum_up_remarks(remark_counts: Counter[str], count: int, noun: str) -> Iterator[str]:
    """Yield the most frequent remarks about several traces or buffers.

    :param count: how many there are.
    :param noun: in the plural.
    """
    for remark, times in remark_counts.most_common(_NAMED):
        yield f"{times} of {count} {noun}: {remark}" if count > 1 else remark
    if len(remark_counts) > _NAMED:
        yield f"{len(remark_counts) - _NAMED} more remarks about single {noun}"


def merge_buffers(name: str, buffers: Sequence[Buffer], others: Sequence[str]) -> Buffer:
    """Return several buffers, or the traces of a directory or pattern, as one buffer.

    :param others: why further ones were left out.
    :raises KcovdbgError: when records are of several kinds.
    """
    if (
        len(
            {
                (buffer.encoding.codec, buffer.encoding.word_size)
                for buffer in buffers
                if buffer.count
            }
        )
        > 1
    ):
        raise KcovdbgError(
            f"{name.removeprefix('file:')}: traces of several modes",
            hint="name those of one mode by a pattern",
        )
    is_incomplete = any(buffer.is_incomplete for buffer in buffers)
    buffers = [buffer for buffer in buffers if buffer.count] or buffers[:1]
    count = len(buffers)
    remark_counts = Counter(remark for buffer in buffers for remark in buffer.remarks)
    builds = {buffer.build_id for buffer in buffers}
    noun = "traces" if name.startswith("file:") else "buffers"
    remarks = [f"{count} {noun}, one after another"] if count > 1 else []
    remarks += sum_up_remarks(remark_counts, count, noun)
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        remarks.append(f"left out: {others[0]}{more}")
    merged = concatenate(buffers, remarks)
    build = builds.pop() if len(builds) == 1 else None
    # No order before an unknown one.
    order = min(
        (buffer.order for buffer in buffers),
        key=lambda order: (order.is_known is not False, order.is_known is True),
    )
    merged = replace(merged, listed_code=_merge_listed(buffers))
    merged = replace(
        merged,
        name=name,
        pid=None,
        comm=None,
        build_id=build,
        order=order,
        is_incomplete=is_incomplete,
    )
    return _merge_fits(merged, buffers)


def _merge_listed(buffers: Sequence[Buffer]) -> array[int] | None:
    """Return the code that may have been executed by several lists; None where one does not say."""
    lists = [buffer.listed_code for buffer in buffers if buffer.listed_code is not None]
    return array("Q", sorted(set().union(*lists))) if len(lists) == len(buffers) else None


def _merge_fits(merged: Buffer, buffers: Sequence[Buffer]) -> Buffer:
    """Return several buffers as one with how all of them fit."""
    fits = [buffer.fit for buffer in buffers if buffer.fit is not None]
    lists = [buffer.file_words for buffer in buffers if buffer.file_words is not None]
    file_words = None
    if len(lists) == len(buffers):
        file_words = array("Q")
        for words in lists:
            file_words.extend(words)
    if not fits:
        return replace(merged, fit=None, file_words=file_words)
    points, judged = sum(fit.points for fit in fits), sum(fit.judged for fit in fits)
    remark = (
        f"{points} of {judged} PCs are coverage points of this kernel: are they another build's?"
    )
    fit = ListFit(
        points, judged, remark, next((fit.hint for fit in fits if fit.hint is not None), None)
    )
    remarks = (remark, *merged.remarks) if fit.is_low else merged.remarks
    return replace(merged, fit=fit, file_words=file_words, remarks=remarks)


def read_header(path: Path, folder: Path | None = None) -> TraceHeader | None:
    """Return the content of a trace file's side file; None if there is no side file.

    :param folder: a directory that it must be in once links are followed.
    :raises KcovdbgError: when the side file could not be read or is malformed.
    """
    side = side_path(path)
    if not side.exists():
        # Of a link, beside the file that it leads to.
        side = side_path(path.resolve())
    try:
        text = read_input(side, folder=folder).decode("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise KcovdbgError(f"{side}: could not be read: {error}") from error
    try:
        content = parse_json(text)
    except ValueError as error:
        raise KcovdbgError(
            f"{side}: invalid JSON: {error}", hint="remove it to read the trace as raw words"
        ) from error
    if not isinstance(content, dict):
        raise KcovdbgError(f"{side}: not a JSON object")
    if content.get("format") != FORMAT:
        raise KcovdbgError(
            f"{side}: unknown format {content.get('format')!r}, expected {FORMAT}",
            hint="a newer kcovdbg may have written it",
        )
    return _parse_header(content)


def _parse_header(content: dict[str, Any]) -> TraceHeader:
    def number(key: str) -> int | None:
        # Addresses are hexadecimal strings, as in everything that kcovdbg prints.
        value = find_number(content.get(key))
        return value if value is not None and is_word(value) else None

    def string(key: str) -> str | None:
        value = content.get(key)
        return value if isinstance(value, str) else None

    argv = content.get("argv")
    mode = string("mode")
    members: dict[str, Any] = {
        key: string(key) for key in ("byteorder", "release", "build_id", "comm", "captured_at")
    }
    members |= {
        key: number(key) for key in ("word_size", "kaslr_offset", "pid", "tid", "size", "count")
    }
    return TraceHeader(
        mode=None if mode is None else mode.upper().removeprefix("KCOV_").removeprefix("MODE_"),
        argv=tuple(str(word) for word in argv) if isinstance(argv, list) else None,
        modules=_parse_modules(content.get("modules")),
        **members,
    )


def _parse_modules(content: Any) -> tuple[LoadedModule, ...] | None:
    """Return the modules in a side file, without those that are malformed; None if there is no list
    of them.
    """
    if not isinstance(content, list):
        return None
    found: list[LoadedModule] = []
    for module in content:
        try:
            build_id = module["build_id"]
            sections = [
                (str(name), parse_number(address, 16))
                for name, address in module["sections"].items()
            ]
            name, size = str(module["name"]), find_number(module["size"])
        except (AttributeError, KeyError, TypeError):
            continue
        known = tuple(
            (section, address)
            for section, address in sections
            if address is not None and is_word(address)
        )
        if size is not None and is_word(size) and len(known) == len(sections):
            found.append(LoadedModule(name, build_id and str(build_id).lower(), size, known))
    return tuple(found)


def read_trace(
    path: Path | str,
    kernel: TraceKernel | None = None,
    options: ReadingOptions = ReadingOptions(),  # noqa: B008 - immutable
    folder: Path | None = None,
) -> Buffer:
    """Read a trace file: with a side file, raw binary, or a list of PCs by another tool.

    PCs in modules that the kernel has loaded elsewhere are changed to where it has them.

    :param kernel: that it is read for. Recorded PCs do not include its KASLR offset, so that traces
        of different boots of one kernel agree; a trace of another build gets a remark.
    :param options: for files without a side file.
    :param folder: a directory that the file and its side file must be in once links are followed;
        an absolute path without links. A pipe is refused then.
    :raises KcovdbgError: when the file is missing, could not be read, or holds no trace.
    """
    with reading(str(path)):
        return _read_trace(Path(path), kernel, options, folder)


def _read_trace(
    path: Path, kernel: TraceKernel | None, options: ReadingOptions, folder: Path | None
) -> Buffer:
    try:
        data = (
            _read_pipe(path)
            if folder is None and path.is_fifo()
            else read_input(path, TRACE_SIZE, folder=folder)
        )
    except OSError as error:
        hint = None
        if isinstance(error, FileNotFoundError):
            hint = path_hint(path)
        elif isinstance(error, IsADirectoryError):
            hint = "name a file in it; diff takes directories of trace files"
        elif error.errno == errno.ESPIPE:
            hint = "name a file, or a pipe that ends"
        raise KcovdbgError(
            f"{path}: could not be read: {error.strerror or error}", hint=hint
        ) from error
    name = f"file:{path}"
    header = read_header(path, folder)
    if header is not None:
        build = None if header.build_id is None else header.build_id.lower()
        buffer = replace(_read_binary(name, unpack_data(path, data), header), build_id=build)
        if kernel is not None:
            require_build(str(path), build, kernel, header.release)
        if kernel is not None and header.recorded_modules:
            buffer = _move_modules(buffer, header.recorded_modules, kernel.find_modules())
        if kernel is not None and buffer.encoding.word_size == 4:
            buffer = _restore_upper_halves(buffer, kernel)
    else:
        found = read_pc_list(str(path), data, kernel, options)
        buffer = (
            make_buffer(name, found, kernel)
            if found.buffer is None
            else _read_buffer(name, found.buffer, found)
        )
        call_length = CALL_LENGTHS.get(platform.machine() if kernel is None else kernel.machine, 0)
        buffer = interpret(
            buffer,
            kernel,
            options,
            call_length,
            names_pcs=found.names_pcs,
            is_exact=found.is_exact,
        )
    return replace(buffer, kaslr_offset=0 if kernel is None else kernel.kaslr_offset)


def require_build(
    name: str, build_id: str | None, kernel: TraceKernel, release: str | None = None
) -> None:
    """Make sure that a trace is of the kernel that it is read for: PCs of two builds are equal by
    chance only.

    :param build_id: as the trace has it; None where it has none.
    :param release: of its kernel.
    :raises KcovdbgError: when it is not.
    """
    own = (kernel.build_id or "").lower()
    if own and build_id and build_id != own:
        known = f" ({release})" if release else ""
        raise KcovdbgError(
            f"{name}: the trace is of another build{known}, build-id {build_id}, not {own}",
            hint="name its vmlinux: --other-vmlinux FILE, or -s FILE in place of the other one",
        )


def find_common_reading(
    paths: Iterable[Path], kernel: TraceKernel, options: ReadingOptions, folder: Path | None
) -> ReadingOptions:
    """Return the options with what the PCs of the lists among some files are, for those that are
    too short to decide.

    :param kernel: as for :func:`read_trace`, as the others.
    """
    points = kernel.find_points()
    if not points or options.pc != AUTO or options.kaslr_offset is not None:
        return options
    raw = options._replace(pc=Convention.RAW.value)
    distinct: dict[int, None] = {}
    for path in paths:
        if side_path(path).exists():
            continue
        with suppress(KcovdbgError):
            # An error is reported when the file is read.
            distinct.update(dict.fromkeys(read_trace(path, kernel, raw, folder).file_words or ()))
        if len(distinct) >= _DECIDING:
            break
    call_length = CALL_LENGTHS.get(kernel.machine, 0)
    found = find_convention(
        array("Q", distinct), points, call_length, kaslr_offset=kernel.kaslr_offset, least=FEW
    )
    if found.choices is not None or not found.readings or (found.share or 0) < _LEAST_SHARE:
        return options
    return options._replace(assumed=found.readings[0])


def _read_pipe(path: Path) -> bytes:
    """Return what comes out of a pipe until it ends."""
    with path.open("rb") as pipe:
        data = pipe.read(room_for_trace(str(path)) + 1)
    count_trace(str(path), len(data))
    return data


def _read_buffer(name: str, data: bytes, found: PcFile) -> Buffer:
    """Return the buffer in a file without a side file."""
    mode = None if found.codec == PC else table.mode_of_codec(found.codec)
    header = TraceHeader(
        mode=mode, word_size=found.word_size, byteorder="big" if found.big_endian else "little"
    )
    buffer = _read_binary(name, data, header)
    remark = (
        f"no side file: read as {buffer.encoding.codec.name} records of {found.word_size * 8}-bit "
        f"words"
    )
    return replace(buffer, remarks=(remark, *buffer.remarks))


def _restore_upper_halves(buffer: Buffer, kernel: TraceKernel) -> Buffer:
    """Return a buffer of 32-bit words with whole PCs, if the kernel is a 64-bit one."""
    points = kernel.find_points()
    high = points[0].base & ~0xFFFFFFFF if points else 0
    if not high or buffer.encoding.codec != record.PC:
        return buffer
    words = array("Q", (word | high for word in buffer.words))
    return replace(buffer, words=words, remarks=(*buffer.remarks, restored_remark(len(words))))


def _move_modules(
    buffer: Buffer, old: Sequence[LoadedModule], new: Sequence[LoadedModule] | None
) -> Buffer:
    """Return a buffer with its PCs in modules where the modules are."""
    words = array(buffer.words.typecode, buffer.words)
    width, first = buffer.encoding.codec.record_words, buffer.encoding.codec.pc_word
    counts = Counter(record.pc_words(words, buffer.encoding))
    pcs = record.pcs_of_words(counts, buffer.encoding)
    new_pcs, lacking_pcs = move_pcs(set(pcs.values()), old, new or ())
    # Whatever else is in an address word is above the bits that tell modules apart.
    moved = {word: word + new_pcs[pc] - pc for word, pc in pcs.items() if pc in new_pcs}
    if moved:
        for index in range(first, len(words), width):
            words[index] = moved.get(words[index], words[index])
    remarks = []
    if moved:
        remarks.append(
            f"{sum(counts[word] for word in moved)} records in modules are moved to where this "
            f"kernel has them"
        )
    lacking = sum(counts[word] for word, pc in pcs.items() if pc in lacking_pcs)
    if lacking:
        names = ", ".join(sorted(set(lacking_pcs.values())))
        reason = (
            "not known to be loaded here" if new is None else "not loaded here, or of another build"
        )
        remarks.append(f"{lacking} records are in modules {reason} ({names}): {NAMES_MAY_BE_WRONG}")
    return replace(buffer, words=words, remarks=(*buffer.remarks, *remarks))


def _read_binary(name: str, data: bytes, header: TraceHeader) -> Buffer:
    word_size = header.word_size if header.word_size in (4, 8) else 8
    encoding = record.make_encoding(
        table.codec_of_trace(header.mode), word_size, header.byteorder == "big"
    )
    if len(data) < encoding.word_size:
        raise KcovdbgError(f"{name.removeprefix('file:')}: not a trace: only {len(data)} bytes")
    pid = header.tid if header.tid is not None else header.pid
    buffer = decode_buffer(
        name,
        data,
        encoding,
        size=header.size,
        word_size=word_size,
        mode=header.mode,
        pid=pid,
        comm=header.comm,
    )
    if header.count is None or header.count == buffer.stored_count:
        return buffer
    remark = f"the side file has {header.count} records, the count word {buffer.stored_count}"
    return replace(buffer, remarks=(*buffer.remarks, remark))


# The fastest: traces repeat themselves, so that higher levels save little.
_COMPRESSION: Final = 1


@dataclass(frozen=True, slots=True)
class Kept:
    """A buffer in compressed form."""

    empty: Buffer
    """The buffer without its words."""
    source: str
    """Name of the buffer that was kept."""
    distinct: int
    """Number of distinct address words."""
    data: bytes
    """The words, compressed."""


def keep(buffer: Buffer, name: str, source: str) -> Kept:
    """Return the compressed form of a buffer.

    :param name: ``@name``.
    :param source: the name of the buffer that is kept.
    """
    empty = replace(
        buffer, name=name, words=array(buffer.words.typecode), live=False, file_words=None
    )
    return Kept(
        empty, source, len(distinct_words(buffer)), zlib.compress(buffer.words, _COMPRESSION)
    )


def restore(kept: Kept) -> Buffer:
    """Return the buffer as it was kept."""
    words = array(kept.empty.words.typecode)
    words.frombytes(zlib.decompress(kept.data))
    return replace(kept.empty, words=words)
