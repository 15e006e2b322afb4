# SPDX-License-Identifier: LGPL-2.1-or-later
"""``enum kcov_mode`` and the flag bits in a task's mode word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PREFIX: Final = "KCOV_MODE_"

# The task's word is a mode plus flags. Since Linux kernel commit 0ed557aa8139 ("sched/core / kcov: avoid kcov_area during
# task switch") (in v4.18) bit 30 is set in every task that is switched out, also in those that never used KCOV.
IN_CTXSW: Final = 1 << 30
# The series "Keep timer and scheduler noise out of task coverage" (2026, posted) pauses a task with bit 29.
PAUSED: Final = 1 << 29
# The series "kcov: unique PC" (2020-2021, posted) moved KCOV_IN_CTXSW to the sign bit.
IN_CTXSW_LOCHMANN: Final = 1 << 31

# Modes of a task by the plain release series, for when the debug info lacks the enumeration. Values of one generation
# don't hold for another one: kcov-abi.md 3.1 and 8.6 list what collides.
DISABLED: Final = "DISABLED"
INIT: Final = "INIT"
REMOTE: Final = "REMOTE"

# Modes in which nothing is recorded; every other mode of a task records (E1's only mode but DISABLED is TRACE).
_IDLE_MODES: Final = frozenset({DISABLED, INIT, REMOTE, "INVALID", "INIT_TRACE", "INIT_UNIQUE"})


def strip_flags(word: int, flags: int = IN_CTXSW) -> int:
    """Return the mode in ``task_struct.kcov_mode`` without flag bits.

    :param word: the member as stored, ``unsigned int``.
    :param flags: the bits that this kernel uses as flags.
    """
    return word & ~flags & 0xFFFFFFFF


def mode_name(value: int, enumerators: Mapping[str, int]) -> str:
    """Name a mode as the kernel's own ``enum kcov_mode`` does, without the prefix.

    :param value: the mode without flag bits.
    :param enumerators: the enumerators of ``enum kcov_mode`` in this kernel, with prefix.
    :return: for instance ``TRACE_PC``, or the number in hexadecimal where the enumeration doesn't have it.
    """
    for name, number in enumerators.items():
        if number == value:
            # The 2016 posting spells it kcov_mode_trace.
            return name[len(PREFIX) :].upper() if name.upper().startswith(PREFIX) else name
    # Zero means "not initialised" in the 2016 posting, whose enumeration has no name for it.
    return DISABLED if value == 0 else f"{value:#x}"


UNIQ_BOTH: Final = "TRACE_UNIQ_PC|TRACE_UNIQ_EDGE"
"""Of the January 2025 series, whose modes are bits: the only two that go together."""


def combined_name(value: int, enumerators: Mapping[str, int]) -> str:
    """Name a mode of a kernel whose modes are bits (January 2025 series): ``TRACE_UNIQ_PC|TRACE_UNIQ_EDGE``."""
    name = mode_name(value, enumerators)
    if is_known(name):
        return name
    parts = [(number, full) for full, number in enumerators.items() if number > 0 and value & number]
    if sum(number for number, _ in parts) != value:
        return name
    return "|".join(mode_name(number, enumerators) for number, _ in sorted(parts))


def is_known(name: str) -> bool:
    """Tell whether a mode's name is one, and not the number of a mode that the kernel's enumeration lacks."""
    return not name.startswith("0x")


def is_tracing(name: str) -> bool:
    """Tell whether a task in this mode records coverage.

    A mode that nobody knows isn't called tracing: it is shown by its number.
    """
    return name not in _IDLE_MODES and is_known(name)
