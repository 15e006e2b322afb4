# SPDX-License-Identifier: LGPL-2.1-or-later
"""Read trace files, with a side file or of other tools, in three steps: the bytes of a file, its
words (:func:`read_trace_words`), and their meaning for a kernel (:func:`find_meaning`).
"""

from __future__ import annotations

import errno
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from kcovdbg.abi import record
from kcovdbg.abi.record import CALL_LENGTHS, PC
from kcovdbg.errors import KcovdbgError
from kcovdbg.input_file import read_input, unpack_data
from kcovdbg.limits import TRACE_SIZE, count_trace, room_for_trace
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.location import LoadedModule, move_pcs
from kcovdbg.records.pc_convention import find_convention, restore_upper_halves
from kcovdbg.records.pc_file import PcFile, read_pc_file
from kcovdbg.records.pc_list import (
    FEW,
    NO_KERNEL,
    TraceKernel,
    find_low_code,
    interpret,
    make_buffer,
    restored_remark,
)
from kcovdbg.records.pc_options import AUTO, PcFormat, ReadingOptions
from kcovdbg.records.side_file import TraceHeader, read_header
from kcovdbg.series import table
from kcovdbg.target.dump_file import path_hint
from kcovdbg.target.end_signals import reading
from kcovdbg.walk.record_decoder import decode_buffer

NAMES_MAY_BE_WRONG: Final = "names may be wrong"
"""The end of the remark on a trace of another kernel."""
# So many PCs decide what the PCs of several lists are.
_DECIDING: Final = 1000
_LEAST_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True)
class TraceWords:
    """The content of a trace file, before its words have a meaning for a kernel."""

    buffer: Buffer
    """The words as the file has them."""
    header: TraceHeader | None = None
    """The content of the side file."""
    listed: PcFile | None = None
    """The content of a file without a side file."""


def read_trace(
    path: Path | str,
    kernel: TraceKernel = NO_KERNEL,
    options: ReadingOptions = ReadingOptions(),  # noqa: B008 - immutable
    folder: Path | None = None,
) -> Buffer:
    """Read a trace file: with a side file, raw binary, or a list of PCs by another tool.

    :param kernel: as for :func:`find_meaning`.
    :param options: for files without a side file.
    :param folder: as for :func:`read_trace_words`.
    :raises KcovdbgError: when the file is missing, could not be read, or holds no trace.
    """
    return find_meaning(read_trace_words(path, kernel, options, folder), kernel, options)


def read_trace_words(
    path: Path | str,
    kernel: TraceKernel,
    options: ReadingOptions,
    folder: Path | None = None,
) -> TraceWords:
    """Read the words of a trace file.

    :param folder: a directory that the file and its side file must be in once links are followed;
        an absolute path without links. A pipe is refused then.
    :raises NotATraceError: when the file is not a trace.
    :raises KcovdbgError: when it is missing, or could not be read.
    """
    path = Path(path)
    name = f"file:{path}"
    with reading(str(path)):
        data = _read_content(path, folder)
        header = read_header(path, folder)
        if header is not None:
            return TraceWords(_decode(name, unpack_data(path, data), header), header)
        wanted = None if options.format == AUTO else PcFormat(options.format)
        listed = read_pc_file(path, data, wanted, find_low_code(kernel))
        if listed.buffer is None:
            return TraceWords(make_buffer(name, listed, kernel), listed=listed)
        return TraceWords(_decode_bare(name, listed.buffer, listed), listed=listed)


def find_meaning(words: TraceWords, kernel: TraceKernel, options: ReadingOptions) -> Buffer:
    """Return a trace with its PCs as a kernel records them.

    PCs in modules that the kernel has loaded elsewhere are changed to where it has them.

    :param kernel: the kernel to read it for. Recorded PCs do not include its KASLR offset, so that
        traces of different boots of one kernel agree.
    :raises KcovdbgError: when the trace is of another build, or its words cannot be PCs of the
        kernel.
    """
    buffer = words.buffer
    with reading(buffer.name.removeprefix("file:")):
        if words.listed is not None:
            buffer = interpret(buffer, words.listed, kernel, options)
        elif words.header is not None and kernel is not NO_KERNEL:
            buffer = _match_kernel(buffer, words.header, kernel)
        return replace(buffer, kaslr_offset=kernel.kaslr_offset)


def _match_kernel(buffer: Buffer, header: TraceHeader, kernel: TraceKernel) -> Buffer:
    """Return a trace with a side file with the addresses that a kernel has."""
    path = buffer.name.removeprefix("file:")
    require_build(path, buffer.build_id, kernel, header.release)
    if header.recorded_modules:
        buffer = _move_modules(buffer, header.recorded_modules, kernel.find_modules())
    if buffer.encoding.word_size == 4:
        buffer = _restore_upper_halves(buffer, kernel)
    return buffer


def _read_content(path: Path, folder: Path | None) -> bytes:
    """Return the bytes of a file, or of a pipe."""
    try:
        if folder is None and path.is_fifo():
            return _read_pipe(path)
        return read_input(path, TRACE_SIZE, folder=folder)
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


def require_build(
    name: str, build_id: str | None, kernel: TraceKernel, release: str | None = None
) -> None:
    """Make sure that a trace is of the kernel that it is read for: PCs of two builds are equal by
    chance only.

    :param build_id: as the trace has it; None where it has none.
    :param release: the release of its kernel.
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
    traces: Iterable[TraceWords], kernel: TraceKernel, options: ReadingOptions
) -> ReadingOptions:
    """Return the options for reading lists that are too short to decide: as the PCs of all lists
    among some traces are read.

    :param traces: read only until their PCs decide.
    """
    points = kernel.find_points()
    if not points or options.pc != AUTO or options.kaslr_offset is not None:
        return options
    distinct: dict[int, None] = {}
    for trace in traces:
        if trace.listed is not None and not trace.listed.places:
            distinct.update(dict.fromkeys(trace.listed.words))
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
    """Return the data of a pipe until it ends."""
    with path.open("rb") as pipe:
        data = pipe.read(room_for_trace(str(path)) + 1)
    count_trace(str(path), len(data))
    return data


def _decode_bare(name: str, data: bytes, found: PcFile) -> Buffer:
    """Return the buffer in a file without a side file."""
    mode = None if found.codec == PC else table.mode_of_codec(found.codec)
    header = TraceHeader(
        mode=mode, word_size=found.word_size, byteorder="big" if found.big_endian else "little"
    )
    buffer = _decode(name, data, header)
    remark = (
        f"no side file: read as {buffer.encoding.codec.name} records of {found.word_size * 8}-bit "
        f"words"
    )
    return buffer.with_remarks(remark)


def _restore_upper_halves(buffer: Buffer, kernel: TraceKernel) -> Buffer:
    """Return a buffer of 32-bit words with whole PCs, if the kernel is a 64-bit one."""
    points = kernel.find_points()
    if not points or buffer.encoding.codec != record.PC:
        return buffer
    words, count = restore_upper_halves(buffer.words, points[0])
    if not count:
        return buffer
    return replace(buffer, words=words, remarks=(*buffer.remarks, restored_remark(count)))


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
        records = sum(map(counts.__getitem__, moved))
        remarks.append(f"{records} records in modules are moved to where this kernel has them")
    lacking = sum(counts[word] for word, pc in pcs.items() if pc in lacking_pcs)
    if lacking:
        names = ", ".join(sorted(set(lacking_pcs.values())))
        reason = "not loaded here, or of another build"
        if new is None:
            reason = "not known to be loaded here"
        remarks.append(f"{lacking} records are in modules {reason} ({names}): {NAMES_MAY_BE_WRONG}")
    return replace(buffer, words=words, remarks=(*buffer.remarks, *remarks))


def _decode(name: str, data: bytes, header: TraceHeader) -> Buffer:
    """Return the buffer that a side file describes.

    :raises KcovdbgError: when there is not even a count.
    """
    word_size = header.word_size if header.word_size in (4, 8) else 8
    codec = table.codec_of_trace(header.mode)
    encoding = record.make_encoding(codec, word_size, header.byteorder == "big")
    if len(data) < encoding.word_size:
        raise KcovdbgError(f"{name.removeprefix('file:')}: not a trace: only {len(data)} bytes")
    buffer = decode_buffer(
        name,
        data,
        encoding,
        size=header.size,
        word_size=word_size,
        mode=header.mode,
        pid=header.pid if header.tid is None else header.tid,
        comm=header.comm,
    )
    remarks = buffer.remarks
    if header.count not in (None, buffer.stored_count):
        remark = f"the side file has {header.count} records, the count word {buffer.stored_count}"
        remarks = (*remarks, remark)
    build_id = None if header.build_id is None else header.build_id.lower()
    return replace(buffer, build_id=build_id, remarks=remarks)
