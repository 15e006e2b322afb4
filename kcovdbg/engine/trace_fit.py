# SPDX-License-Identifier: LGPL-2.1-or-later
"""How well traces fit a build, for traces that do not say of which build they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from kcovdbg.collect.trace_file import find_traces
from kcovdbg.engine.buffer_sources import TraceKernel, confine, find_points, find_trace_operands, read_trace_file
from kcovdbg.engine.context import Context
from kcovdbg.errors import KcovdbgError
from kcovdbg.records.pc_counts import pc_sequence

# Enough to tell builds apart that differ by a few functions: all PCs behind these differ.
_SAMPLE: Final = 4096
# As for PCs in text: real traces have 95 % and more.
_SUSPICIOUS: Final = 0.5


class TraceFit(NamedTuple):
    """How many PCs of a trace are coverage points of a build."""

    points: int
    pcs: int

    @property
    def share(self) -> float:
        """The part of the PCs that are points."""
        return self.points / self.pcs

    def __str__(self) -> str:
        doubt = " (suspiciously few; is it of another build?)" if self.share < _SUSPICIOUS else ""
        return f"{self.share:.1%} of its PCs are coverage points{doubt}"


def find_fit(context: Context, words: Sequence[str], kernel: TraceKernel | None) -> TraceFit | None:
    """Return how well the first of some traces fits a build; None where none can be read, or its points are not known yet.

    :param kernel: of the build; None for the workspace's.
    """
    points = find_points(context.workspace) if kernel is None else kernel.find_points()
    if points is None:
        return None
    for path in sorted(path for word in words for path in find_trace_operands(word)):
        try:
            trace = str(find_traces(confine(context.workspace, path))[0])
            pcs = sorted(set(pc_sequence(read_trace_file(context.workspace, trace, context.pc, kernel))) - {0})
        except (KcovdbgError, OSError):
            # What cannot be read is reported when it is.
            continue
        sample = pcs[:: len(pcs) // _SAMPLE + 1]
        if sample:
            return TraceFit(sum(pc in points for pc in sample), len(sample))
    return None
