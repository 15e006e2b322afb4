# SPDX-License-Identifier: LGPL-2.1-or-later
"""Join several buffers or traces into one."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from kcovdbg.abi import record
from kcovdbg.errors import KcovdbgError
from kcovdbg.model.buffer import Buffer, Gap, ListFit, Order
from kcovdbg.model.kcov import name_some

# Limit for remarks on the traces of a directory.
_NAMED: Final = 5


def concatenate(buffers: Sequence[Buffer], remarks: Sequence[str]) -> Buffer:
    """Return buffers of one encoding as one.

    :param remarks: remarks on the whole.
    """
    words = array(buffers[0].words.typecode)
    gaps: list[Gap] = []
    count = 0
    was_full = is_open = is_incomplete = False
    for buffer in buffers:
        words.extend(buffer.words)
        gaps += (gap._replace(first=count + gap.first) for gap in buffer.gaps)
        count += buffer.count
        was_full = was_full or buffer.was_full or bool(buffer.full)
        is_open = is_open or buffer.is_open
        is_incomplete = is_incomplete or buffer.is_incomplete
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
        is_open=is_open,
        was_full=was_full,
        is_incomplete=is_incomplete,
        remarks=tuple(remarks),
    )


def sum_up_remarks(remark_counts: Counter[str], count: int, noun: str) -> Iterator[str]:
    """Yield the most frequent remarks about several traces or buffers.

    :param count: how many there are.
    :param noun: what they are, in the plural.
    """
    for remark, times in remark_counts.most_common(_NAMED):
        yield f"{times} of {count} {noun}: {remark}" if count > 1 else remark
    if len(remark_counts) > _NAMED:
        yield f"{len(remark_counts) - _NAMED} more remarks about single {noun}"


def merge_buffers(name: str, buffers: Sequence[Buffer], others: Sequence[str]) -> Buffer:
    """Return several buffers, or the traces of a directory or pattern, as one buffer.

    :param others: why further buffers were left out.
    :raises KcovdbgError: when records are of several kinds.
    """
    is_incomplete = any(buffer.is_incomplete for buffer in buffers)
    buffers = [buffer for buffer in buffers if buffer.count] or buffers[:1]
    first, count = buffers[0], len(buffers)
    remark_counts: Counter[str] = Counter()
    builds: set[str | None] = set()
    orders: dict[bool | None, Order] = {}
    for buffer in buffers:
        codec, word_size = buffer.encoding.codec, buffer.encoding.word_size
        if (codec, word_size) != (first.encoding.codec, first.encoding.word_size):
            raise KcovdbgError(
                f"{name.removeprefix('file:')}: traces of several modes",
                hint="name those of one mode by a pattern",
            )
        remark_counts.update(buffer.remarks)
        builds.add(buffer.build_id)
        orders.setdefault(buffer.order.is_known, buffer.order)
    noun = "traces" if name.startswith("file:") else "buffers"
    remarks = [f"{count} {noun}, one after another"] if count > 1 else []
    remarks += sum_up_remarks(remark_counts, count, noun)
    if others:
        remarks.append(f"left out: {name_some(others, 1)}")
    listed = _join_words(buffer.listed_code for buffer in buffers)
    fit = _merge_fits(buffers)
    if fit is not None and fit.is_low:
        remarks.insert(0, fit.remark)
    return replace(
        concatenate(buffers, remarks),
        listed_code=None if listed is None else array("Q", sorted(set(listed))),
        file_words=_join_words(buffer.file_words for buffer in buffers),
        fit=fit,
        name=name,
        pid=None,
        comm=None,
        build_id=builds.pop() if len(builds) == 1 else None,
        # No order before an unknown one.
        order=orders.get(False) or orders.get(None) or orders[True],
        is_incomplete=is_incomplete,
    )


def _join_words(columns: Iterable[array[int] | None]) -> array[int] | None:
    """Return the words of several files one after another; None if the words of one are unknown."""
    words = array("Q")
    for column in columns:
        if column is None:
            return None
        words.extend(column)
    return words


def _merge_fits(buffers: Sequence[Buffer]) -> ListFit | None:
    """Return how several buffers together fit; None where nothing is known of any."""
    points = judged = 0
    hint: str | None = None
    is_known = False
    for buffer in buffers:
        if buffer.fit is not None:
            is_known = True
            points += buffer.fit.points
            judged += buffer.fit.judged
            hint = hint or buffer.fit.hint
    if not is_known:
        return None
    remark = (
        f"{points} of {judged} PCs are coverage points of this kernel: are they another build's?"
    )
    return ListFit(points, judged, remark, hint)
