# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reads the kernel's log: the buffer of printk().

Since Linux kernel commit 896fbe20b4e2 ("printk: use the lockless ringbuffer") (in v5.10), the log
is a ``struct printk_ringbuffer`` with rings of descriptors, of their details and of text. Before,
it is a sequence of ``struct printk_log`` records. A kernel's symbols show which one it has.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from kcovdbg.abi.address import word_mask
from kcovdbg.errors import KcovdbgError, MissingTypeError, ReadError
from kcovdbg.model.log_record import KernelLog, LogRecord
from kcovdbg.target.pointer import check_pointer, is_kernel_pointer, read_pointer, read_word
from kcovdbg.target.struct_layout import BlockLayout, find_kernel_symbol, read_partly
from kcovdbg.target.target import Symbol, Target

# Limits of a plausible ring: 32 MiB of text is the most that CONFIG_LOG_BUF_SHIFT allows.
_MOST_TEXT_BITS: Final = 25
_MOST_RECORD_BITS: Final = 20
# Values of enum desc_state of kernel/printk/printk_ringbuffer.h, which is in the upper two bits of
# a descriptor's state.
_COMMITTED: Final = (1, 2)
# EMPTY_LINE_LPOS of kernel/printk/printk_ringbuffer.c.
_EMPTY_LINE: Final = 3
# This bit of a record's caller_id is set if the other bits are a CPU, and not a thread.
_CALLER_IS_CPU: Final = 1 << 31
# Pieces with fewer bytes between them are read at once.
_GAP: Final = 256

LOG_RECORDS: Final = 4000
"""Limit for the newest records that are searched for a crash."""


def read_kernel_log(target: Target, newest: int | None = None) -> KernelLog:
    """Read the kernel's log. Its remarks name missing records.

    :param newest: limit for the records, of which the newest are read; None for no limit. Kernels
        before v5.10 give all records.
    """
    try:
        symbol = find_kernel_symbol(target, "prb")
        if symbol is not None:
            ring = read_pointer(target, symbol.address)
            check_pointer(target, ring, "prb")
            return _read_ring(target, ring, newest)
        symbol = find_kernel_symbol(target, "log_buf")
        if symbol is not None:
            return _read_records(target, symbol)
        # Without CONFIG_PRINTK there is no log.
        return KernelLog()
    except KcovdbgError as error:
        return KernelLog(remarks=(f"the kernel's log is unreadable: {error}",))


class _Ring(NamedTuple):
    """``struct printk_ringbuffer``."""

    count_bits: int
    """Binary logarithm of the number of records."""
    size_bits: int
    """Binary logarithm of the size of the text in bytes."""
    descs: int
    infos: int
    data: int
    head: int
    """Number of the newest record."""
    tail: int
    """Number of the oldest record."""

    def slot(self, number: int) -> int:
        """Return the index of a record's descriptor."""
        return number & (1 << self.count_bits) - 1


_RING: Final = (
    "desc_ring.count_bits text_data_ring.size_bits desc_ring.descs desc_ring.infos "
    "text_data_ring.data desc_ring.head_id.counter desc_ring.tail_id.counter"
)
_DESCRIPTOR: Final = "state_var.counter text_blk_lpos.begin text_blk_lpos.next"


def _read_ring(target: Target, address: int, newest: int | None) -> KernelLog:
    ring = _Ring(*BlockLayout(target, "struct printk_ringbuffer", _RING).read(target, address))
    if None in ring:
        raise MissingTypeError(
            "a member of struct printk_ringbuffer is missing from the debug info"
        )
    if not (0 < ring.count_bits <= _MOST_RECORD_BITS and 0 < ring.size_bits <= _MOST_TEXT_BITS):
        sizes = f"1 << {ring.count_bits} records, 1 << {ring.size_bits} bytes"
        raise ReadError(f"prb: impossible sizes: {sizes}", address)
    for name in ("descs", "infos", "data"):
        check_pointer(target, getattr(ring, name), f"prb: {name}", 1)
    id_mask = _id_mask(target)
    remarks: list[str] = []
    count, most = (ring.head - ring.tail & id_mask) + 1, 1 << ring.count_bits
    if count > most:
        remarks.append(
            f"the kernel's log: the ring's tail {ring.tail:#x} is not within its size of its head "
            f"{ring.head:#x}"
        )
        count = most
    if newest is not None:
        count = min(count, newest)
    ids = [ring.head - back & id_mask for back in reversed(range(count))]
    blocks, lost_blocks = _find_blocks(target, ring, ids)
    records, lost_records = _read_texts(target, ring, blocks)
    lost = lost_blocks + lost_records
    if lost:
        remarks.append(f"the kernel's log: {lost} records are lost or unreadable")
    return KernelLog(records, tuple(remarks))


def _id_mask(target: Target) -> int:
    """Return the bits of a descriptor's state that are the record's number."""
    return (1 << 8 * target.word_size - 2) - 1


def _find_blocks(
    target: Target, ring: _Ring, ids: Sequence[int]
) -> tuple[dict[int, tuple[int, int]], int]:
    """Return offset and size of the text of each record, its number included, and how many records
    are lost.
    """
    word, size = target.word_size, 1 << ring.size_bits
    mask, id_mask = word_mask(word), _id_mask(target)
    layout = BlockLayout(target, "struct prb_desc", _DESCRIPTOR)
    descriptors = _read_elements(target, ring.descs, layout, map(ring.slot, ids))
    blocks: dict[int, tuple[int, int]] = {}
    lost = 0
    for number in ids:
        found = descriptors(ring.slot(number))
        if found is None:
            lost += 1
            continue
        state, begin, end = (value & mask for value in found)
        if state & id_mask != number or state >> 8 * word - 2 not in _COMMITTED:
            # Reserved by a printk() that is under way, or free.
            continue
        if begin == end == _EMPTY_LINE:
            blocks[number] = (0, 0)
            continue
        offset, length = begin & size - 1, end - begin & mask
        if begin >> ring.size_bits != (end - 1 & mask) >> ring.size_bits:
            # A block that would cross the ring's end is at its start instead.
            offset, length = 0, end & size - 1
        # The odd positions of a record whose text is lost are not aligned either.
        if begin % word or end % word or not word <= length <= size - offset:
            lost += 1
        else:
            blocks[number] = (offset, length)
    return blocks, lost


def _read_texts(
    target: Target, ring: _Ring, blocks: Mapping[int, tuple[int, int]]
) -> tuple[tuple[LogRecord, ...], int]:
    """Return the records of some blocks, and how many are lost."""
    members = "seq ts_nsec text_len facility level caller_id"
    layout = BlockLayout(target, "struct printk_info", members)
    infos = _read_elements(target, ring.infos, layout, map(ring.slot, blocks))
    text = _read_pieces(target, ring.data, [span for span in blocks.values() if span[1]])
    word, id_mask = target.word_size, _id_mask(target)
    records: list[LogRecord] = []
    for number, (offset, length) in blocks.items():
        info, block = infos(ring.slot(number)), text(offset, length)
        if info is None or block is None:
            continue
        # In a live kernel, the block may have been overwritten.
        stored = int.from_bytes(block[:word], target.byte_order) & id_mask
        if length and stored != number:
            continue
        seq, time, text_len, facility, level, caller = info
        message = _decode(block[word:][:text_len])
        records.append(LogRecord(seq, time, level, facility, _caller(caller), message))
    return tuple(records), len(blocks) - len(records)


def _read_records(target: Target, log_buf: Symbol) -> KernelLog:
    """Read the log of a kernel before v5.10."""
    names = ("log_first_idx", "log_next_idx", "log_first_seq", "log_buf_len")
    symbols = map(target.symbol, names)
    first, end, seq, size = (
        read_word(target, symbol.address, symbol.size or 4) for symbol in symbols
    )
    buffer = read_pointer(target, log_buf.address)
    if not is_kernel_pointer(target, buffer, 1):
        # This is another variable: until v4.15, kernel/bpf/verifier.c has a log_buf as well.
        buffer = target.symbol("__log_buf").address
    try:
        layout = BlockLayout(target, "struct printk_log", _RECORD)
    except MissingTypeError:
        # Before Linux kernel commit 62e32ac3505a ("printk: rename struct log to struct printk_log")
        # (in v3.11).
        layout = BlockLayout(target, "struct log", _RECORD)
    if not (0 < size <= 1 << _MOST_TEXT_BITS and first < size and end < size):
        raise ReadError(
            f"log_buf: impossible sizes: {first:#x} to {end:#x} of {size:#x} bytes", buffer
        )
    spans = [(first, end - first)]
    if first > end:
        spans = [(first, size - first), (0, end)]
    read = _read_pieces(target, buffer, [span for span in spans if span[1]])
    records: list[LogRecord] = []
    position, has_wrapped = first, False
    while position != end:
        head = read(position, layout.size)
        if head is None:
            return KernelLog(
                tuple(records), (f"the kernel's log is unreadable after record {seq}",)
            )
        time, length, text_len, facility, level, caller = layout.decode(
            head[layout.start :][: layout.span]
        )
        if length == 0 and not has_wrapped and position > end:
            # The next record did not fit at the end of the buffer.
            position, has_wrapped = 0, True
            continue
        text = read(position + layout.size, text_len)
        if text is None or length < layout.size + text_len:
            return KernelLog(tuple(records), (f"the kernel's log is damaged after record {seq}",))
        records.append(LogRecord(seq, time, level, facility, _caller(caller), _decode(text)))
        position, seq = position + length, seq + 1
    return KernelLog(tuple(records))


_RECORD: Final = "ts_nsec len text_len facility level caller_id"


def _caller(caller: int | None) -> str | None:
    if caller is None:
        return None
    if caller & _CALLER_IS_CPU:
        return f"C{caller & ~_CALLER_IS_CPU}"
    return f"T{caller}"


def _decode(text: bytes) -> str:
    return text.decode("utf-8", "backslashreplace")


def _read_elements(
    target: Target, array: int, layout: BlockLayout, indexes: Iterable[int]
) -> Callable[[int], tuple[int, ...] | None]:
    """Read elements of an array; return a function that returns the members of an element by its
    index, None if it is unreadable.
    """

    def span(index: int) -> tuple[int, int]:
        return index * layout.size + layout.start, layout.span

    read = _read_pieces(target, array, map(span, indexes))

    def element(index: int) -> tuple[int, ...] | None:
        block = read(*span(index))
        return None if block is None else layout.decode(block)

    return element


def _read_pieces(
    target: Target, base: int, pieces: Iterable[tuple[int, int]]
) -> Callable[[int, int], bytes | None]:
    """Read pieces of memory, adjacent ones at once; return a function that returns a piece by its
    offset and size, None if a part of it is unreadable.

    :param pieces: offset from the base, and size, of each piece.
    """
    merged: list[tuple[int, int]] = []
    for start, size in sorted(pieces):
        first, end = start, start + size
        if merged and start <= merged[-1][1] + _GAP:
            first, before = merged.pop()
            end = max(end, before)
        merged.append((first, end))
    starts = [start for start, _ in merged]
    spans = [read_partly(target, base + start, end - start) for start, end in merged]

    def piece(offset: int, size: int) -> bytes | None:
        if not size:
            return b""
        number = bisect_right(starts, offset) - 1
        if number < 0:
            return None
        data, missing = spans[number]
        start = offset - starts[number]
        end = start + size
        is_cut = any(first < end and start < first + gap for first, gap in missing)
        if is_cut or end > len(data):
            return None
        return data[start:end]

    return piece
