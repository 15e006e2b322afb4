# SPDX-License-Identifier: LGPL-2.1-or-later
"""What fills a buffer: records by function, file or PC, and those that loops of one function waste."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from kcovdbg.analysis.folding import Run
from kcovdbg.analysis.naming import Names


class Share(NamedTuple):
    """What one function, file or PC takes of a buffer."""

    records: int
    share: float
    """Of all records: 0 to 1."""
    points: int
    """Distinct PCs."""
    pc: int
    """The one that was recorded most."""
    repeats: int
    """Records of points that the same run of one function already had: what a loop adds."""


def rank(counts: Mapping[int, int], key: Callable[[int], str | int | None], repeats: Mapping[int, int]) -> list[Share]:
    """Group PCs and sort the groups, the largest first.

    :param counts: PC -> records.
    :param key: from a PC to its group.
    :param repeats: PC -> records that are repetitions, see :func:`count_repeats`.
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
    """Return what PCs are grouped by.

    :param by: ``function`` (innermost, inlined ones too), ``file`` or ``pc``. What has no name is grouped by itself.
    """
    if by == "pc":
        return lambda pc: pc
    if by == "file":
        return names.file

    def function(pc: int) -> str | int:
        frame = names.frame(pc)
        # Static functions of different files share names.
        return f"{frame.function}\0{frame.file}" if frame.function else pc

    return function


def count_repeats(pcs: Sequence[int], runs: Iterable[Run]) -> Counter[int]:
    """Count the records that only repeat a point which the same run of one function already had: loops, mostly.

    :param pcs: the sequence that the runs were made of.
    :return: PC -> such records.
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
