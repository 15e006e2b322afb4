# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel's log: printk()'s ring buffer.

Since Linux kernel commit 896fbe20b4e2 ("printk: use the lockless ringbuffer") (in v5.10) that is
``struct printk_ringbuffer`` with rings of descriptors, of their details and of text; before,
``struct printk_log`` records one after another. Symbols say which one a kernel has.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal

from kcovdbg.abi.address import word_mask
from kcovdbg.errors import KcovdbgError, MissingTypeError, ReadError
from kcovdbg.model.log_record import KernelLog, LogRecord
from kcovdbg.target.pointer import check_pointer, is_kernel_pointer, read_pointer, read_word
from kcovdbg.target.struct_layout import BlockLayout, find_kernel_symbol, read_partly
from kcovdbg.target.target import Symbol, Target

# Limits of a plausible ring: 32 MiB of text is the most that CONFIG_LOG_BUF_SHIFT allows.
_MOST_TEXT_BITS: Final = 25
_MOST_RECORD_BITS: Final = 20
# enum desc_state of kernel/printk/printk_ringbuffer.h, in the upper two bits of a descriptor's
# state.
_COMMITTED: Final = (1, 2)
# EMPTY_LINE_LPOS of kernel/printk/printk_ringbuffer.c; other odd positions are of a record whose
# text is lost.
_EMPTY_LINE: Final = 3
# Of a record's caller_id: the rest is a CPU, not a thread.
_CALLER_IS_CPU: Final = 1 << 31
# Pieces closer than this are read at once.
_GAP: Final = 256


def read_kernel_log(target: Target, newest: int | None = None) -> KernelLog:
    """Read the kernel's log; what is missing of it is among the remarks.

    :param newest: read only so many of the newest records, where records can be read by number;
        None for all.
    """
    try:
        symbol = find_kernel_symbol(target, "prb")
        if symbol is not None:
            ring = read_pointer(target, symbol.address)
            check_pointer(target, ring, "prb")
            return _read_ring(target, ring, newest)
        # Without CONFIG_PRINTK there is no log.
        symbol = find_kernel_symbol(target, "log_buf")
        return KernelLog() if symbol is None else _read_records(target, symbol)
    except KcovdbgError as error:
        return KernelLog(remarks=(f"the kernel's log is unreadable: {error}",))


def _read_ring(target: Target, ring: int, newest: int | None) -> KernelLog:
    count_bits, size_bits, descs, infos, data, head, tail = BlockLayout(
        target,
        "struct printk_ringbuffer",
        {
            "count_bits": ("desc_ring.count_bits",),
            "size_bits": ("text_data_ring.size_bits",),
            "descs": ("desc_ring.descs",),
            "infos": ("desc_ring.infos",),
            "data": ("text_data_ring.data",),
            "head": ("desc_ring.head_id.counter",),
            "tail": ("desc_ring.tail_id.counter",),
        },
    ).read(target, ring)
    if None in (count_bits, size_bits, descs, infos, data, head, tail):
        raise MissingTypeError(
            "a member of struct printk_ringbuffer is missing from the debug info"
        )
    if not (0 < count_bits <= _MOST_RECORD_BITS and 0 < size_bits <= _MOST_TEXT_BITS):
        raise ReadError(
            f"prb: impossible sizes: 1 << {count_bits} records, 1 << {size_bits} bytes", ring
        )
    for pointer, what in ((descs, "descs"), (infos, "infos"), (data, "data")):
        check_pointer(target, pointer, f"prb: {what}", 1)
    word = target.word_size
    state_shift = 8 * word - 2
    mask = word_mask(word)
    id_mask, count_mask, size = (1 << state_shift) - 1, (1 << count_bits) - 1, 1 << size_bits
    there = (head - tail & id_mask) + 1
    remarks: list[str] = []
    if there > count_mask + 1:
        remarks.append(
            f"the kernel's log: the ring's tail {tail:#x} is not within its size of its head "
            f"{head:#x}"
        )
        there = count_mask + 1
    wanted = there if newest is None else min(there, newest)
    ids = [head - back & id_mask for back in range(wanted - 1, -1, -1)]

    desc = BlockLayout(
        target,
        "struct prb_desc",
        {
            "state": ("state_var.counter",),
            "begin": ("text_blk_lpos.begin",),
            "next": ("text_blk_lpos.next",),
        },
    )
    states = _read_elements(target, descs, desc, [number & count_mask for number in ids])
    blocks: dict[int, tuple[int, int]] = {}
    """Offset and size of the text of each record, its id included."""
    lost = 0
    for number in ids:
        found = states(number & count_mask)
        if found is None:
            lost += 1
            continue
        state, begin, end = (value & mask for value in found)
        if state & id_mask != number or state >> state_shift not in _COMMITTED:
            # Reserved by a printk() that is under way, or free.
            continue
        if begin == end == _EMPTY_LINE:
            blocks[number] = (0, 0)
        elif begin & end & 1:
            lost += 1
        else:
            # A block that would cross the ring's end is at its start instead.
            wraps = begin >> size_bits != (end - 1 & mask) >> size_bits
            offset = 0 if wraps else begin & size - 1
            length = (end & size - 1) if wraps else end - begin & mask
            if begin % word or end % word or not word <= length <= size - offset:
                lost += 1
            else:
                blocks[number] = (offset, length)
    info = BlockLayout(
        target,
        "struct printk_info",
        {
            name: (name,)
            for name in ("seq", "ts_nsec", "text_len", "facility", "level", "caller_id")
        },
    )
    details = _read_elements(target, infos, info, [number & count_mask for number in blocks])
    text = _read_pieces(target, data, [span for span in blocks.values() if span[1]])
    order: Literal["big", "little"] = "big" if target.big_endian else "little"
    records = []
    for number, (offset, length) in blocks.items():
        found, block = details(number & count_mask), text(offset, length)
        # A block of a running kernel may have been overwritten meanwhile.
        if found is None or block is None:
            lost += 1
            continue
        first_word = int.from_bytes(block[:word], order)
        if length and first_word & id_mask != number:
            lost += 1
            continue
        seq, time, text_len, facility, level, caller = found
        records.append(
            LogRecord(seq, time, level, facility, _caller(caller), _decode(block[word:][:text_len]))
        )
    if lost:
        remarks.append(f"the kernel's log: {lost} records are lost or unreadable")
    return KernelLog(tuple(records), tuple(remarks))


def _read_records(target: Target, log_buf: Symbol) -> KernelLog:
    """Read the log of a kernel before v5.10."""
    first, end, seq, size = (
        read_word(target, symbol.address, symbol.size or 4)
        for symbol in map(
            target.symbol, ("log_first_idx", "log_next_idx", "log_first_seq", "log_buf_len")
        )
    )
    buffer = read_pointer(target, log_buf.address)
    if not is_kernel_pointer(target, buffer, 1):
        # Until v4.15 kernel/bpf/verifier.c has a log_buf as well.
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
    spans = [(first, end - first)] if first <= end else [(first, size - first), (0, end)]
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
            # The rest did not fit before the end of the buffer.
            position, has_wrapped = 0, True
            continue
        text = read(position + layout.size, text_len)
        if text is None or length < layout.size + text_len:
            return KernelLog(tuple(records), (f"the kernel's log is damaged after record {seq}",))
        records.append(LogRecord(seq, time, level, facility, _caller(caller), _decode(text)))
        position, seq = position + length, seq + 1
    return KernelLog(tuple(records))


_RECORD: Final = {
    name: (name,) for name in ("ts_nsec", "len", "text_len", "facility", "level", "caller_id")
}


def _caller(caller: int | None) -> str | None:
    if caller is None:
        return None
    return f"C{caller & ~_CALLER_IS_CPU}" if caller & _CALLER_IS_CPU else f"T{caller}"


def _decode(text: bytes) -> str:
    return text.decode("utf-8", "backslashreplace")


def _read_elements(
    target: Target, array: int, layout: BlockLayout, indexes: Sequence[int]
) -> Callable[[int], tuple[int, ...] | None]:
    """Read elements of an array; return a function of an index that returns its members, None where
    they are unreadable.
    """
    read = _read_pieces(
        target, array, [(index * layout.size + layout.start, layout.span) for index in indexes]
    )

    def element(index: int) -> tuple[int, ...] | None:
        block = read(index * layout.size + layout.start, layout.span)
        return None if block is None else layout.decode(block)

    return element


def _read_pieces(
    target: Target, base: int, pieces: Iterable[tuple[int, int]]
) -> Callable[[int, int], bytes | None]:
    """Read pieces of memory, adjacent ones at once; return a function that returns a piece, None
    where any of it is unreadable.

    :param pieces: offset from the base, and size.
    """
    merged: list[tuple[int, int]] = []
    for start, size in sorted(pieces):
        first, end = merged.pop() if merged and start <= merged[-1][1] + _GAP else (start, 0)
        merged.append((first, max(end, start + size)))
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
        if start + size > len(data) or any(
            first < start + size and start < first + gap for first, gap in missing
        ):
            return None
        return data[start : start + size]

    return piece
