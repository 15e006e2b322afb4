# SPDX-License-Identifier: LGPL-2.1-or-later
"""The system calls whose own functions a trace has records of."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from kcovdbg.model.location import Location

# The functions that SYSCALL_DEFINE() and COMPAT_SYSCALL_DEFINE() make: include/linux/syscalls.h, and asm/syscall_wrapper.h of
# the architectures.
_FUNCTION: Final = re.compile(r"__(?:x64|ia32|arm64|riscv|s390x?|do|se)_(?:compat_)?sys_(\w+)$")


def find_recorded_syscalls(locations: Iterable[Location]) -> tuple[str, ...]:
    """Return the names of system calls in the order of their first records.

    A trace that began or ended within a call may have no record of the call's own functions, and a call without a branch may
    have none at all.

    :param locations: of the records, in their order; repeated ones may be left out.
    """
    found: dict[str, None] = {}
    for location in locations:
        if location.approximate:
            continue
        for frame in location.frames:
            match = _FUNCTION.match((frame.function or "").split(".", 1)[0])
            if match is not None:
                found.setdefault(match[1])
    return tuple(found)
