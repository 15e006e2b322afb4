# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcov_ext_format`` of the 2026 series: whether records have a type (kcov-abi.md 7)."""

from __future__ import annotations

from typing import Final

from kcovdbg.target import Target
from kcovdbg.walk.block import BlockLayout, find_member
from kcovdbg.walk.layout import KCOV, PERCPU, TASK

_PATHS: Final = {TASK: "kcov_ext_format", KCOV: "kcov_ext_format", PERCPU: "saved_kcov_ext_format"}


def read_format(target: Target, type_name: str, address: int) -> int | None:
    """Read the flag of a task, an object, or a CPU's saved state.

    :param type_name: of what is at the address.
    :return: 0 or 1, None where the debug info has no such member.
    :raises ReadError: when it can't be read.
    """
    path = _PATHS[type_name]
    if find_member(target, type_name, (path,)) is None:
        return None
    (value,) = BlockLayout(target, type_name, {"flag": (path,)}).read(target, address)
    return int(value)
