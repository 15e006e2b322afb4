# SPDX-License-Identifier: LGPL-2.1-or-later
"""The functions of KCOV in which a task may hold what is not linked: a reference or an area that no list shows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kcovdbg.model.memory import StackFrame
from kcovdbg.series import table

_PREFIXES: Final = (
    "kcov_open",
    "kcov_close",
    "kcov_mmap",
    "kcov_ioctl",
    "kcov_remote_start",
    "kcov_remote_stop",
    "kcov_task_exit",
    "kcov_task_init",
    "kcov_start",
    "kcov_stop",
    "kcov_put",
    "kcov_init",
)


def find_kcov_function(stack: Iterable[StackFrame] | None) -> str | None:
    """Return the innermost function of KCOV on a stack, None where there is none."""
    prefixes = (*_PREFIXES, *(name for series in table.SERIES for name in series.functions))
    for frame in stack or ():
        if frame.function is not None and frame.function.startswith(prefixes):
            return frame.function
    return None
