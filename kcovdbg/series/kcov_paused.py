# SPDX-License-Identifier: LGPL-2.1-or-later
"""KCOV_PAUSED: "Keep timer and scheduler noise out of task coverage", by Karl Mehltretter, 2026
(kcov-abi.md 8.4).

Under review. A bit in a task's mode word pauses it. The series leaves no trace in the kernel's
types.
"""

from __future__ import annotations

from typing import Final

from kcovdbg.series.declaration import ModeFlag, Series

PAUSED: Final = 1 << 29

SERIES: Final = Series(
    name="KCOV_PAUSED",
    feature="paused-flag",
    # No mode of any kernel is as large.
    flags=(
        ModeFlag(
            PAUSED,
            "bit 29 of kcov_mode is set: KCOV_PAUSED of a posted series, another flag, or damage",
            "bit 29 of kcov_mode is set: if it is KCOV_PAUSED, the task is in __schedule(), "
            "try_to_wake_up() or wake_up_new_task(), whose callees are not recorded",
            stays_when_switched_out=True,
        ),
    ),
)
