# SPDX-License-Identifier: LGPL-2.1-or-later
"""KCOV_PC_RANGE: only PCs within a range are recorded, by Joey Jiao, November 2021 (kcov-abi.md 8.2)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Final

from kcovdbg.abi.record import PC
from kcovdbg.abi.structures import KCOV
from kcovdbg.errors import ReadError
from kcovdbg.model.finding import Severity
from kcovdbg.model.rule import Hex, Violation, rule, values
from kcovdbg.model.state import Part, State
from kcovdbg.series.declaration import BufferReader, Detection, Series, SeriesMember, SeriesState, Variant
from kcovdbg.target.protocol import Target
from kcovdbg.target.struct_layout import BlockLayout, find_member

PC_RANGE: Final = "pc-range"
"""KCOV_PC_RANGE filters by address."""
_PATHS: Final = ("pc_range.start", "pc_range.end")
_LOW_HALF: Final = 0xFFFFFFFF


def _read(target: Target, state: State, read_buffer: BufferReader) -> SeriesState:
    """Read the range of each object: first and last PC, low halves; by ``struct kcov *``."""
    del read_buffer
    ranges: dict[int, tuple[int, int]] = {}
    if all(find_member(target, KCOV, (path,)) is not None for path in _PATHS):
        layout = BlockLayout(target, KCOV, {path: (path,) for path in _PATHS})
        for address in state.kcovs:
            with contextlib.suppress(ReadError):
                start, end = layout.read(target, address)
                ranges[address] = start, end
    return SeriesState(ranges)


@rule(
    "B11",
    Severity.ADVICE,
    "records of an object with a range lie in it",
    since="posted series of 2021 with KCOV_PC_RANGE",
    guaranteed_by="__sanitizer_cov_trace_pc()",
    consequence="The buffer has coverage that was not asked for.",
    needs=Part.SERIES | Part.BUFFERS,
    features=(PC_RANGE,),
    detail="The range may be set while the object is enabled: earlier records stay, legally.",
)
def check_range(state: State) -> Iterator[Violation]:
    """B11."""
    ranges: Mapping[int, tuple[int, int]] = state.series[PC_RANGE]
    for contents in state.buffers:
        if contents.buffer.encoding.codec != PC or contents.kcov not in ranges:
            continue
        start, end = ranges[contents.kcov]
        missing = contents.missing
        outside = [
            word
            for number, word in enumerate(contents.written)
            if number not in missing and not start <= word & _LOW_HALF <= end
        ]
        # With an empty range the kernel records everything.
        if start < end and outside:
            yield Violation(
                contents.about,
                f"{len(outside)} of its records are outside of the range {start:#x} to {end:#x}, the first is {outside[0]:#x}",
                values(start=Hex(start), end=Hex(end), pc=Hex(outside[0])),
                kcovs=(contents.kcov,),
                tasks=() if contents.section is None else (contents.section.address,),
            )


def _detect(target: Target, enumerators: Mapping[str, int]) -> Detection | None:
    del enumerators
    return None if find_member(target, KCOV, ("pc_range",)) is None else Detection(frozenset({PC_RANGE}), VARIANT)


VARIANT: Final = Variant(
    "KCOV_PC_RANGE (2021)",
    recognized_by="`pc_range` in `struct kcov`",
    also_shown="records outside of the range, by `check --all` (B11)",
    tested_on="imitation `r`",
    not_shown="the range itself",
)

SERIES: Final = Series(
    name="KCOV_PC_RANGE",
    feature=PC_RANGE,
    features=(PC_RANGE,),
    variants=(VARIANT,),
    detect=_detect,
    members=tuple(SeriesMember(KCOV, (path,)) for path in _PATHS),
    read=_read,
    rules=(check_range,),
)
