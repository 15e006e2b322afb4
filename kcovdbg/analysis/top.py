# SPDX-License-Identifier: LGPL-2.1-or-later
"""What fills a buffer: records by function, file or PC, and how many of them are repeats within loops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from kcovdbg.analysis.loop_folding import FunctionRun
from kcovdbg.analysis.pc_names import Names


class Share(NamedTuple):
    """The share of a buffer that one function, file or PC takes."""

    records: int
    share: float
    """Fraction of all records, 0 to 1."""
    points: int
    """Distinct PCs."""
    pc: int
    """The PC with the most records."""
    repeats: int
    """Records of points that the same function run already had, mostly from loops."""


def rank(counts: Mapping[int, int], key: Callable[[int], str | int | None], repeats: Mapping[int, int]) -> list[Share]:
    """Group PCs and sort the groups, the largest first.

    :param counts: PC -> records.
    :param key: returns the group of a PC.
    :param repeats: PC -> repeated records, from :func:`count_repeats`.
    """
    groups: dict[str | int | None, list[int]] = {}
    for pc in counts:
        groups.setdefault(key(pc), []).append(pc)
    total = sum(counts.values())
    shares = [
        Share(
            records=(records := sum(counts[pc] for pc in pcs)),
            share=records / total,
            points=len(pcs),
            pc=max(pcs, key=lambda pc: (counts[pc], -pc)),
            repeats=sum(repeats.get(pc, 0) for pc in pcs),
        )
        for pcs in groups.values()
    ]
    return sorted(shares, key=lambda share: (-share.records, share.pc))


def group_key(by: str, names: Names) -> Callable[[int], str | int | None]:
    """Return a function from a PC to its group.

    :param by: ``function`` (innermost, including inlined ones), ``file`` or ``pc``. A PC without a name is its own group.
    """
    if by == "pc":
        return lambda pc: pc
    if by == "file":
        return names.file

    def function(pc: int) -> str | int:
        frame = names.frame(pc)
        # Static functions in different files may share a name. What a tail call recorded is in a callee of the function.
        return f"{frame.function}\0{frame.file}\0{names[pc].approximate}" if frame.function else pc

    return function


def count_repeats(pcs: Sequence[int], runs: Iterable[FunctionRun]) -> Counter[int]:
    """Count the records that repeat a point of the same function run, mostly in loops.

    :param pcs: the sequence to which the runs belong.
    :return: PC -> repeated records.
    """
    repeats: Counter[int] = Counter()
    for run in runs:
        if run.length == 1:
            continue
        part = pcs[run.first : run.first + run.length]
        distinct = set(part)
        if len(distinct) < run.length:
            repeats.update(part)
            repeats.subtract(distinct)
    return +repeats
