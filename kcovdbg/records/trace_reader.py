# SPDX-License-Identifier: LGPL-2.1-or-later
"""Trace files, read: with a side file, and those of other tools."""

from __future__ import annotations

import errno
import platform
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from kcovdbg.abi import record
from kcovdbg.abi.record import CALL_LENGTHS, PC, Encoding
from kcovdbg.errors import KcovdbgError
from kcovdbg.input_file import read_input, unpack_data
from kcovdbg.limits import TRACE_SIZE, count_trace, room_for_trace
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.location import LoadedModule, move_pcs
from kcovdbg.records.pc_convention import Convention, find_convention
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
from kcovdbg.records.side_file import TraceHeader, read_header, side_path
from kcovdbg.series import table
from kcovdbg.target.dump_file import path_hint
from kcovdbg.target.end_signals import reading
from kcovdbg.walk.record_decoder import clamp_count, decode_records, find_full_remarks

NAMES_MAY_BE_WRONG: Final = "names may be wrong"
"""The end of the remark on a trace of another kernel."""
# PCs that decide what those of several lists are.
_DECIDING: Final = 1000
_LEAST_SHARE: Final = 0.5


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
