# SPDX-License-Identifier: LGPL-2.1-or-later
"""Several buffers as one."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from kcovdbg.abi import record
from kcovdbg.errors import KcovdbgError
from kcovdbg.model.buffer import Buffer, Gap, ListFit

# Limit for remarks on the traces of a directory.
_NAMED: Final = 5


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
    is_incomplete = any(buffer.is_incomplete for buffer in buffers)
    buffers = [buffer for buffer in buffers if buffer.count] or buffers[:1]
    kinds = {(buffer.encoding.codec, buffer.encoding.word_size) for buffer in buffers}
    if len(kinds) > 1:
        raise KcovdbgError(
            f"{name.removeprefix('file:')}: traces of several modes",
            hint="name those of one mode by a pattern",
        )
    count = len(buffers)
    remark_counts = Counter(remark for buffer in buffers for remark in buffer.remarks)
    builds = {buffer.build_id for buffer in buffers}
    noun = "traces" if name.startswith("file:") else "buffers"
    remarks = [f"{count} {noun}, one after another"] if count > 1 else []
    remarks += sum_up_remarks(remark_counts, count, noun)
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        remarks.append(f"left out: {others[0]}{more}")
    build = builds.pop() if len(builds) == 1 else None
    # No order before an unknown one.
    order = min(
        (buffer.order for buffer in buffers),
        key=lambda order: (order.is_known is not False, order.is_known is True),
    )
    merged = replace(
        concatenate(buffers, remarks),
        listed_code=_merge_listed(buffers),
        file_words=_merge_file_words(buffers),
        fit=None,
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
    listed: set[int] = set()
    for buffer in buffers:
        if buffer.listed_code is None:
            return None
        listed.update(buffer.listed_code)
    return array("Q", sorted(listed))


def _merge_file_words(buffers: Sequence[Buffer]) -> array[int] | None:
    """Return the words of several files; None where one is unknown."""
    words = array("Q")
    for buffer in buffers:
        if buffer.file_words is None:
            return None
        words.extend(buffer.file_words)
    return words


def _merge_fits(merged: Buffer, buffers: Sequence[Buffer]) -> Buffer:
    """Return several buffers as one with how all of them fit."""
    fits = [buffer.fit for buffer in buffers if buffer.fit is not None]
    if not fits:
        return merged
    points, judged = sum(fit.points for fit in fits), sum(fit.judged for fit in fits)
    remark = (
        f"{points} of {judged} PCs are coverage points of this kernel: are they another build's?"
    )
    hints = (fit.hint for fit in fits if fit.hint is not None)
    fit = ListFit(points, judged, remark, next(hints, None))
    merged = replace(merged, fit=fit)
    if fit.is_low:
        merged = replace(merged, remarks=(remark, *merged.remarks))
    return merged
