# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a user may ask KCOV to collect, and the request for it.

User modes 2, 3 and 4 and ioctl 103 mean different things in different series (kcov-abi.md 8.6): what a kernel has comes from
its debug info. Without any, only what mainline has is asked for, as a wrong guess would give another format's records.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from kcovdbg.abi.era import Feature
from kcovdbg.abi.record import RecordFormat
from kcovdbg.errors import UsageError


class CollectMode(NamedTuple):
    """One way of collecting."""

    name: str
    """As users write it, and as side files of traces have it."""
    format: RecordFormat
    """Of the records, from the count word on."""
    argument: int
    """Of KCOV_ENABLE. Of KCOV_UNIQUE_ENABLE it depends on the buffer."""
    feature: Feature | None = None
    """What a kernel must have for it; None: every kernel."""
    request: str = "ENABLE"
    second: bool = False
    """Whether there is a second buffer, of edges."""
    series: str = ""

    @property
    def is_unique(self) -> bool:
        """Whether a buffer holds everything once only."""
        return "UNIQ" in self.name

    def bitmap_words(self, size: int) -> int:
        """Return how many words of a buffer of this size are a bitmap, before the count word."""
        # A bit per point that is met: as many as there are words for their addresses, and a little to spare.
        return max(1, size // 32) if self.request.startswith("UNIQUE_ENABLE") else 0


_DEDUPLICATION: Final = "the unique-mode series of January 2025"

MODES: Final = (
    CollectMode("TRACE_PC", RecordFormat.PC, 0),
    CollectMode("TRACE_CMP", RecordFormat.CMP, 1, Feature.COMPARISONS, series="v4.15"),
    CollectMode("TRACE_PC_EXT", RecordFormat.PC_EXT, 2, Feature.EXT_RECORDS, series="the extended-record series of 2026"),
    CollectMode("TRACE_UNIQ_PC", RecordFormat.UNIQ_PC, 2, Feature.UNIQUE_MAPS, series=_DEDUPLICATION),
    CollectMode("TRACE_UNIQ_EDGE", RecordFormat.UNIQ_EDGE, 4, Feature.UNIQUE_MAPS, second=True, series=_DEDUPLICATION),
    CollectMode("TRACE_UNIQ_PC_EDGE", RecordFormat.UNIQ_PC, 6, Feature.UNIQUE_MAPS, second=True, series=_DEDUPLICATION),
    CollectMode("TRACE_UNIQ_CMP", RecordFormat.UNIQ_CMP, 8, Feature.UNIQUE_MAPS, series=_DEDUPLICATION),
    # Its first version before those that have a feature less.
    CollectMode(
        "UNIQUE_PC",
        RecordFormat.PC,
        0,
        Feature.UNIQUE_ENABLE_V1,
        request="UNIQUE_ENABLE_V1",
        series="the deduplication series of April 2025",
    ),
    CollectMode(
        "UNIQUE_PC",
        RecordFormat.PC,
        0,
        Feature.UNIQUE_BITMAP,
        request="UNIQUE_ENABLE",
        series="the deduplication series of July 2025",
    ),
)


def user_name(mode: CollectMode) -> str:
    """Return what users write for a mode: ``uniq-pc``."""
    return mode.name.removeprefix("TRACE_").lower().replace("_", "-")


NAMES: Final = tuple(dict.fromkeys(map(user_name, MODES)))
"""As users write them."""


def find_mode(name: str, features: Collection[str] | None = None) -> CollectMode:
    """Return the mode with this name.

    :param name: ``pc``, ``TRACE_PC`` and ``KCOV_TRACE_PC`` are the same.
    :param features: of the running kernel; None where nobody knows.
    :raises UsageError: when there is none, or this kernel hasn't got it.
    """
    plain = name.upper().replace("-", "_").replace("|", "_").removeprefix("KCOV_").removeprefix("MODE_").removeprefix("TRACE_")
    found = [mode for mode in MODES if mode.name.removeprefix("TRACE_") == plain]
    if not found:
        raise UsageError(f"no mode is called {name}", hint=f"there are {', '.join(NAMES)}")
    if features is None:
        # Whether comparisons were compiled in, the kernel says itself.
        if found[0].feature in (None, Feature.COMPARISONS):
            return found[0]
        raise UsageError(
            f"whether this kernel has mode {name} can't be told without its debug info",
            hint="its number means something else on other kernels: give the kernel's vmlinux with -s",
        )
    if Feature.WORDS_32 in features:
        raise UsageError(
            "this kernel's buffers hold words of 32 bits, which can't be collected", hint="the posting of 2016 alone had them"
        )
    for mode in found:
        if mode.feature is None or mode.feature in features:
            return mode
    has = dict.fromkeys(user_name(mode) for mode in MODES if mode.feature is None or mode.feature in features)
    raise UsageError(f"this kernel has no mode {name}: {found[-1].series} has it", hint=f"it has {', '.join(has)}")
